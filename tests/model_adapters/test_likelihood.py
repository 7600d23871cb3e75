"""Loglikelihood requests, against lm-eval's own `hf` model on the same weights.

May import: pytest, torch, transformers, lm_eval, model_adapters.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from transformers import AutoModelForCausalLM, AutoTokenizer

from model_adapters.adapters import NativeAR, TssAR
from model_adapters.arguments import AdapterError
from model_adapters.base import SpeculativeLM

Build = Callable[..., SpeculativeLM]

PAIRS = [
    ("The capital of France is", " Paris"),
    ("The capital of France is", " Rome"),
    ("Trailing space ", "belongs to the continuation"),
    ("Eins", ", zwei, drei"),
    ("", "no context at all"),
    ("a" * 300, " too long for the context"),
]


def instances(pairs: list[tuple[str, str]], task: str = "arc_easy") -> list[Instance]:
    return [
        Instance("loglikelihood", {"question": "x"}, pair, 0, (task, number, 1))
        for number, pair in enumerate(pairs)
    ]


def rolling(texts: list[str]) -> list[Instance]:
    return [
        Instance("loglikelihood_rolling", {}, (text,), 0, ("wikitext", number, 1))
        for number, text in enumerate(texts)
    ]


def reference(directory: Path, removed: tuple[int, ...] = ()) -> HFLM:
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    model.model.layers = torch.nn.ModuleList(
        layer for index, layer in enumerate(model.model.layers) if index not in removed
    )
    tokenizer = AutoTokenizer.from_pretrained(directory)
    tokenizer.pad_token = tokenizer.eos_token
    return HFLM(pretrained=model, tokenizer=tokenizer, batch_size=1)


@pytest.fixture(params=[(), (1, 2), (0,)], ids=str)
def pair_of_models(
    request: pytest.FixtureRequest, build: Build, chat_model: Path
) -> tuple[SpeculativeLM, HFLM]:
    skip = request.param
    ours = build(TssAR, skip_layers=list(skip)) if skip else build(NativeAR)
    return ours, reference(chat_model, skip)


def test_scores_and_greedy_flags_are_those_of_the_sparse_model(
    pair_of_models: tuple[SpeculativeLM, HFLM],
) -> None:
    ours, theirs = pair_of_models
    expected = theirs.loglikelihood(instances(PAIRS), disable_tqdm=True)
    found = ours.loglikelihood(instances(PAIRS), disable_tqdm=True)
    assert [total for total, _ in found] == pytest.approx([t for t, _ in expected], rel=1e-4)
    assert [flag for _, flag in found] == [flag for _, flag in expected]


def test_rolling_windows_are_those_of_lm_eval(
    pair_of_models: tuple[SpeculativeLM, HFLM],
) -> None:
    ours, theirs = pair_of_models
    texts = ["short", "longer than the context of 256 tokens " * 18, "x" * 255]
    expected = theirs.loglikelihood_rolling(rolling(texts), disable_tqdm=True)
    found = ours.loglikelihood_rolling(rolling(texts), disable_tqdm=True)
    assert found == pytest.approx(expected, rel=1e-4)


def test_the_greedy_flag_is_true_for_the_model_s_own_answer(build: Build) -> None:
    lm = build(NativeAR)
    ids = lm.tok_encode("Guten Morgen")
    best = int(lm.target.score(ids, lm.controller.choose("x").skip)[-1].argmax())
    ((_, right), (_, wrong)) = lm._loglikelihood_tokens(
        [(None, ids, [best]), (None, ids, [best - 1])],
        True,
        places=[(_Place(), lm.controller.choose("x").skip)] * 2,  # type: ignore[list-item]
    )
    assert (right, wrong) == (True, False)


class _Place:
    where = "document 0 of x"


def test_the_prompt_of_a_chat_row_is_templated_and_the_answer_starts_at_once(
    build: Build, row: Callable[..., dict[str, Any]]
) -> None:
    lm = build(NativeAR)
    doc = row("a", "Pick a letter.", domain="mmlu")
    chat = Instance("loglikelihood", doc, ("Pick a letter.", " A"), 0, ("tss_mmlu_ll", 0, 1))
    by_hand = instances([("<s><|user|>Pick a letter.<|end|><|assistant|>", "A")])
    assert lm.loglikelihood([chat], True) == lm.loglikelihood(by_hand, True)
    plain = row("a", "Pick a letter.", style="completion", domain="mmlu")
    bare = Instance("loglikelihood", plain, ("Pick a letter.", " A"), 0, ("tss_mmlu_ll", 0, 1))
    untouched = instances([("Pick a letter.", " A")])
    assert lm.loglikelihood([bare], True) == lm.loglikelihood(untouched, True)


def test_the_choices_of_one_question_share_a_pass(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    lm = build(NativeAR)
    passes: list[int] = []
    score = lm.target.score

    def counted(ids: Any, skip: Any) -> torch.Tensor:
        passes.append(len(ids))
        return score(ids, skip)

    monkeypatch.setattr(lm.target, "score", counted)
    lm.loglikelihood(instances([("Question", letter) for letter in "ABCD"]), True)
    assert len(passes) == 1


@pytest.mark.parametrize("pair", [("context", ""), ("", "")])
def test_an_empty_continuation_names_the_document(build: Build, pair: tuple[str, str]) -> None:
    with pytest.raises(AdapterError, match="document 0 of arc_easy has an empty continuation"):
        build(NativeAR).loglikelihood(instances([pair]), True)


def test_a_long_context_is_counted_or_refused(build: Build) -> None:
    lm = build(NativeAR)
    lm.loglikelihood(instances([("a" * 300, "b"), ("a", "b")]), True)
    assert lm.get_model_info()["tss_bench"]["overflow"]["loglikelihood_truncated"] == 1
    strict = build(NativeAR, on_overflow="error")
    with pytest.raises(AdapterError, match=r"document 1 of arc_easy has 301 tokens.*256"):
        strict.loglikelihood(instances([("a", "b"), ("a" * 300, "b")]), True)


def test_a_continuation_longer_than_the_context_is_refused(build: Build) -> None:
    with pytest.raises(AdapterError, match="continuation of document 0 of arc_easy has 300"):
        build(NativeAR).loglikelihood(instances([("a", "b" * 300)]), True)


def test_no_text_has_no_loss(build: Build) -> None:
    lm = build(NativeAR)
    assert lm.loglikelihood([], True) == []
    assert lm.generate_until([], True) == []
