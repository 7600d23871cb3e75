"""lm-eval's `--use_cache` never mixes configurations and never replays a speed.

May import: pytest, lm_eval, safetensors, sqlitedict, model_adapters, tss_bench.types.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lm_eval.api.instance import Instance
from lm_eval.api.model import CachingLM
from safetensors.torch import load_file, save_file
from sqlitedict import SqliteDict

from model_adapters.adapters import NativeAR, NativeEagle, TssAR
from model_adapters.arguments import AdapterError
from model_adapters.base import SpeculativeLM
from tss_bench.domains import DomainConfig, DomainMap
from tss_bench.types import SkipSet

Build = Callable[..., SpeculativeLM]
Row = Callable[..., dict[str, Any]]
RequestFor = Callable[..., Instance]


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "cache_rank0.db")


def test_a_second_run_of_the_same_configuration_replays_texts_without_timings(
    build: Build, row: Row, request_for: RequestFor, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = [request_for(row("a", "Hallo")), request_for(row("m", "Eins?", "Zwei?"))]
    first = CachingLM(build(TssAR, skip_layers="3"), path).generate_until(requests)
    assert all(text.stats for text in first)
    lm = build(TssAR, skip_layers="3")
    monkeypatch.setattr(lm, "generate_until", lambda *_: pytest.fail("decoded again"))
    again = CachingLM(lm, path).generate_until(requests)
    assert again == first
    assert [text.stats for text in again] == [(), ()]
    assert again[1].turns == first[1].turns
    assert again[0].config == {**first[0].config, "cached": True}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"skip_layers": "3+1"}, "skip_sets"),
        ({"scope": "all"}, "scope: there verify, here all"),
        ({"protocol": "paper"}, "protocol: there strict, here paper"),
        ({"dtype": "bfloat16"}, "dtype: there float32, here bfloat16"),
        ({"max_length": 64}, "max_length: there 256, here 64"),
        ({"chat_template": False}, "chat_template: there True, here False"),
        ({"on_overflow": "error"}, "on_overflow"),
    ],
)
def test_another_configuration_is_refused_and_named(
    build: Build, row: Row, request_for: RequestFor, path: str, change: dict[str, Any], named: str
) -> None:
    arguments = {"skip_layers": "3"}
    requests = [request_for(row("a", "Hallo"))]
    CachingLM(build(TssAR, **arguments), path).generate_until(requests)
    with pytest.raises(AdapterError, match="holds answers of another configuration") as caught:
        CachingLM(build(TssAR, **{**arguments, **change}), path)
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)


def test_another_adapter_and_another_model_are_refused(
    build: Build, row: Row, request_for: RequestFor, path: str, base_model: Path
) -> None:
    CachingLM(build(NativeAR), path).generate_until([request_for(row("a", "Hallo"))])
    with pytest.raises(AdapterError, match="adapter: there native_ar, here tss_ar"):
        CachingLM(build(TssAR), path)
    with pytest.raises(AdapterError, match="model: there tiny-chat, here tiny-base"):
        CachingLM(build(NativeAR, pretrained=str(base_model)), path)


def test_another_head_at_the_same_place_is_refused(
    build: Build, row: Row, request_for: RequestFor, path: str, eagle_head: Path, tmp_path: Path
) -> None:
    head = tmp_path / "head"
    shutil.copytree(eagle_head, head)
    requests = [request_for(row("a", "Hallo"))]
    CachingLM(build(NativeEagle, draft=str(head)), path).generate_until(requests)
    CachingLM(build(NativeEagle, draft=str(head)), path)
    state = load_file(head / "model.safetensors")
    save_file({name: value * 2 for name, value in state.items()}, head / "model.safetensors")
    with pytest.raises(AdapterError, match=r"another configuration \(draft_fingerprint: there"):
        CachingLM(build(NativeEagle, draft=str(head)), path)


def test_a_cache_of_another_kind_of_model_is_refused(build: Build, path: str) -> None:
    with SqliteDict(path, autocommit=True) as store:
        store["some hash"] = "an answer of hf"
    with pytest.raises(AdapterError, match="was not filled by an adapter of tss_bench"):
        CachingLM(build(NativeAR), path)


def test_an_interrupted_run_keeps_what_it_answered(
    build: Build, row: Row, request_for: RequestFor, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lm = build(NativeAR)
    requests = [request_for(row("a", "Hallo")), request_for(row("b", "Welt"))]
    answer = lm._answerer.answer

    def stop_at_b(job: Any) -> Any:
        if job.request.name == "b":
            raise KeyboardInterrupt
        return answer(job)

    monkeypatch.setattr(lm._answerer, "answer", stop_at_b)
    with pytest.raises(KeyboardInterrupt):
        CachingLM(lm, path).generate_until(requests)
    second = build(NativeAR)
    cached = CachingLM(second, path)
    left: list[str] = []
    run = second.generate_until

    def watched(remaining: list[Instance]) -> Any:
        left.extend(request.doc["id"] for request in remaining)
        return run(remaining, True)

    monkeypatch.setattr(second, "generate_until", watched)
    cached.generate_until(requests)
    assert left == ["b"]


@pytest.fixture
def two_domains(tmp_path: Path) -> str:
    path = tmp_path / "map.json"
    domains = {"qa": DomainConfig(SkipSet.of([1], 4)), "rag": DomainConfig(SkipSet.of([2], 4))}
    DomainMap("tiny-chat", "none", 4, domains=domains).save(path)
    return str(path)


def test_one_prompt_under_two_skip_sets_is_refused(
    build: Build, row: Row, request_for: RequestFor, path: str, two_domains: str
) -> None:
    same = [
        request_for(row("1", "Hallo", domain="qa"), task="specbench_qa"),
        request_for(row("2", "Hallo", domain="rag"), task="specbench_rag"),
    ]
    with pytest.raises(AdapterError, match=r"document 2 of specbench_rag .*file of its own"):
        CachingLM(build(TssAR, domain_map=two_domains), path).generate_until(same)
    pairs = [Instance("loglikelihood", r.doc, ("x", "y"), 0, r.metadata) for r in same]
    with pytest.raises(AdapterError, match="document 2 of specbench_rag"):
        CachingLM(build(TssAR, domain_map=two_domains), path).loglikelihood(pairs)


def test_two_conversations_with_one_beginning_are_refused(
    build: Build, row: Row, request_for: RequestFor, path: str
) -> None:
    requests = [request_for(row("1", "Eins?", "Zwei?")), request_for(row("2", "Eins?", "Drei?"))]
    with pytest.raises(AdapterError, match=r"document 2 of .* or conversation"):
        CachingLM(build(NativeAR), path).generate_until(requests)


def test_sampled_answers_are_not_cached(
    build: Build, row: Row, request_for: RequestFor, path: str
) -> None:
    requests = [request_for(row("a", "Hallo"))]
    with pytest.raises(AdapterError, match="leave it out when sampling"):
        CachingLM(build(NativeAR, temperature=1.0), path).generate_until(requests)


def test_likelihoods_are_cached_under_the_same_guard(
    build: Build, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs = [Instance("loglikelihood", {}, ("x", letter), 0, ("arc", 0, 1)) for letter in "ab"]
    rolling = [Instance("loglikelihood_rolling", {}, ("text",), 0, ("wiki", 0, 1))]
    first = CachingLM(build(TssAR, skip_layers="3"), path)
    expected = first.loglikelihood(pairs), first.loglikelihood_rolling(rolling)
    lm = build(TssAR, skip_layers="3")
    monkeypatch.setattr(lm.target, "score", lambda *_: pytest.fail("scored again"))
    second = CachingLM(lm, path)
    assert (second.loglikelihood(pairs), second.loglikelihood_rolling(rolling)) == expected
    with pytest.raises(AdapterError, match="another configuration"):
        CachingLM(build(TssAR, skip_layers="2"), path)
