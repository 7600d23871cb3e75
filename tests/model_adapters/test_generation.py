"""Generation requests through the adapters, on a tiny random model.

May import: pytest, torch, transformers, lm_eval, model_adapters, tss_bench.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lm_eval.api.instance import Instance
from transformers import AutoModelForCausalLM

from model_adapters.adapters import (
    NativeAR,
    NativeEagle,
    NativeTokenRecycling,
    TssAR,
    TssEagle,
    TssTokenRecycling,
)
from model_adapters.arguments import AdapterError
from model_adapters.base import SpeculativeLM
from tss_bench.decoding.drafters.eagle_head import EagleConfig, EagleHead
from tss_bench.decoding.generate import generate_steps
from tss_bench.domains import DomainConfig, DomainMap
from tss_bench.types import GeneratedText, SkipSet
from tss_bench.weights import save_eagle_head, weights_fingerprint

CONTEXT = 256
EOS = 1
Build = Callable[..., SpeculativeLM]
Row = Callable[..., dict[str, Any]]
RequestFor = Callable[..., Instance]


def hf_ids(directory: Path, ids: list[int], count: int, removed: tuple[int, ...] = ()) -> list[int]:
    """Greedy ids from Hugging Face's own forward pass, with blocks taken out of the model."""
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    layers = model.model.layers
    model.model.layers = torch.nn.ModuleList(
        layer for index, layer in enumerate(layers) if index not in removed
    )
    answer: list[int] = []
    with torch.inference_mode():
        while len(answer) < count and EOS not in answer:
            logits = model(torch.tensor([ids + answer]), use_cache=False).logits[0, -1]
            answer.append(int(logits.argmax()))
    return answer


def decode(lm: SpeculativeLM, ids: list[int]) -> str:
    return str(lm.tokenizer.decode(ids, skip_special_tokens=True))


def test_native_ar_gives_the_model_s_own_greedy_answer(
    build: Build, row: Row, request_for: RequestFor, chat_model: Path
) -> None:
    lm = build(NativeAR)
    (answer,) = lm.generate_until([request_for(row("a", "Guten Morgen"))], disable_tqdm=True)
    prompt = lm.tok_encode("<s><|user|>Guten Morgen<|end|><|assistant|>")
    expected = hf_ids(chat_model, prompt, 8)
    assert answer == decode(lm, expected)
    assert type(answer) is GeneratedText
    (stats,) = answer.stats
    assert (stats.prompt_tokens, stats.new_tokens) == (len(prompt), len(expected))
    assert set(stats.accept_lengths) == {1}


def test_tss_ar_under_scope_all_is_the_model_without_those_blocks(
    build: Build, row: Row, request_for: RequestFor, chat_model: Path
) -> None:
    lm = build(TssAR, skip_layers="1+2", scope="all")
    (answer,) = lm.generate_until([request_for(row("a", "Guten Morgen"))], disable_tqdm=True)
    prompt = lm.tok_encode("<s><|user|>Guten Morgen<|end|><|assistant|>")
    assert answer == decode(lm, hf_ids(chat_model, prompt, 8, removed=(1, 2)))
    assert answer != decode(lm, hf_ids(chat_model, prompt, 8))


@pytest.mark.parametrize("skip", ["dense", "1", "0+3"])
def test_every_drafter_gives_the_text_of_plain_decoding(
    build: Build, row: Row, request_for: RequestFor, eagle_head: Path, small_tree: str, skip: str
) -> None:
    requests = [request_for(row(str(n), f"Satz {n} " * n), max_gen_toks=24) for n in (1, 2, 3)]
    plain = build(TssAR, skip_layers=skip).generate_until(copy.deepcopy(requests), True)
    eagle = build(TssEagle, skip_layers=skip, draft=str(eagle_head))
    recycling = build(TssTokenRecycling, skip_layers=skip, tree=small_tree)
    assert eagle.generate_until(copy.deepcopy(requests), True) == plain
    recycled = recycling.generate_until(copy.deepcopy(requests), True)
    assert recycled == plain
    assert sum(text.stats[0].drafted for text in recycled) > 0


def test_answers_come_in_the_order_of_the_requests(
    build: Build, row: Row, request_for: RequestFor
) -> None:
    lm = build(NativeAR)
    texts = ["x" * 30, "y", "z" * 12, "w" * 5]
    requests = [request_for(row(text[0], text), doc_id=n) for n, text in enumerate(texts)]
    together = lm.generate_until(requests, True)
    alone = [lm.generate_until([request], True)[0] for request in requests]
    assert together == alone
    assert len(set(together)) > 1


def test_an_answer_carries_its_ids(build: Build, row: Row, request_for: RequestFor) -> None:
    lm = build(NativeAR)
    (answer,) = lm.generate_until([request_for(row("m", "Eins?", "Zwei?"))], True)
    assert [len(ids) for ids in answer.ids] == [stats.new_tokens for stats in answer.stats]
    assert tuple(decode(lm, list(ids)) for ids in answer.ids) == answer.turns


def test_the_prompt_of_every_turn_can_be_had(
    build: Build, row: Row, request_for: RequestFor
) -> None:
    lm = build(NativeAR)
    requests = [request_for(row("m", "Eins?", "Zwei?"))]
    (answer,) = lm.generate_until(requests, True)
    (job,) = lm.jobs(requests)
    lengths = [len(lm.prompt_ids(job, answer.turns[:turn])) for turn in (0, 1)]
    assert lengths == [stats.prompt_tokens for stats in answer.stats]


def test_an_answer_says_under_what_it_was_made(
    build: Build, row: Row, request_for: RequestFor
) -> None:
    lm = build(TssAR, skip_layers=[2, 1], scope="all", protocol="paper")
    (answer,) = lm.generate_until([request_for(row("a", "Hallo"))], True)
    assert answer.config == {
        "skip": [1, 2],
        "scope": "all",
        "protocol": "paper",
        "domain": "translation",
        "why": "skip_layers=1+2",
    }


def test_the_first_answer_is_fed_into_the_second_turn(
    build: Build, row: Row, request_for: RequestFor
) -> None:
    lm = build(NativeAR)
    (answer,) = lm.generate_until([request_for(row("m", "Eins?", "Zwei?"))], True)
    first, second = answer.turns
    assert answer == second
    conversation = (
        f"<s><|user|>Eins?<|end|><|assistant|>{first}<|end|><|user|>Zwei?<|end|><|assistant|>"
    )
    (alone,) = lm.generate_until([request_for(row("b", conversation, style="completion"))], True)
    assert second == alone
    assert len(answer.stats) == 2
    assert answer.stats[1].prompt_tokens == len(lm.tok_encode(conversation))


def test_lm_eval_s_own_template_is_not_applied_again(
    build: Build, row: Row, request_for: RequestFor
) -> None:
    lm = build(NativeAR)
    doc = row("a", "Hallo")
    templated = lm.apply_chat_template([{"role": "user", "content": "Hallo"}])
    ours, theirs = lm.generate_until([request_for(doc), request_for(doc, templated)], True)
    assert ours.stats[0].prompt_tokens == theirs.stats[0].prompt_tokens == 1 + 1 + 5 + 1 + 1
    assert ours == theirs


def test_chat_template_false_and_base_models_get_the_bare_prompt(
    build: Build, row: Row, request_for: RequestFor, base_model: Path
) -> None:
    for lm in (build(NativeAR, chat_template=False), build(NativeAR, pretrained=str(base_model))):
        (answer,) = lm.generate_until([request_for(row("a", "Hallo"))], True)
        assert answer.stats[0].prompt_tokens == 1 + 5


def test_chat_prompts_on_a_base_model_are_told_once(
    build: Build,
    row: Row,
    request_for: RequestFor,
    base_model: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    note = "tiny-base has no chat template"
    requests = [request_for(row(name, name), task=f"task_{name}") for name in "ab"]
    completion = [request_for(row("c", "c", style="completion"))]
    lm = build(NativeAR, pretrained=str(base_model))
    lm.generate_until(completion, True)
    assert note not in capsys.readouterr().err
    lm.generate_until(requests, True)
    assert capsys.readouterr().err.count(note) == 1
    for silent in (
        build(NativeAR),
        build(NativeAR, pretrained=str(base_model), chat_template=False),
    ):
        silent.generate_until(requests, True)
        assert "has no chat template" not in capsys.readouterr().err


def test_an_empty_prompt_names_the_document(
    build: Build, row: Row, request_for: RequestFor
) -> None:
    lm = build(NativeAR)
    requests = [request_for(row("ok", "Hallo")), request_for(row("tr-9", ""))]
    with pytest.raises(AdapterError, match="document tr-9 of specbench_translation has an empty"):
        lm.generate_until(requests, True)


def test_a_prompt_longer_than_the_context_is_cut_counted_and_flagged(
    build: Build, row: Row, request_for: RequestFor, capsys: pytest.CaptureFixture[str]
) -> None:
    lm = build(NativeAR, chat_template=False)
    text = "abcdefghij" * 26
    requests = [request_for(row("long", text[:CONTEXT])), request_for(row("ok", "Hallo"))]
    long, short = lm.generate_until(requests, True)
    assert long.stats[0].prompt_truncated
    assert long.stats[0].prompt_tokens == CONTEXT - 8
    assert long.stats[0].new_tokens >= 1
    assert not short.stats[0].prompt_truncated
    assert "1 of 2 prompts did not fit the context of 256 tokens" in capsys.readouterr().err
    assert lm.get_model_info()["tss_bench"]["overflow"]["prompt_truncated"] == 1
    kept = lm.tokenizer.decode(lm.tok_encode(text[:CONTEXT])[-(CONTEXT - 8) :])
    assert text[:CONTEXT].endswith(str(kept))


def test_a_prompt_longer_than_the_context_can_be_refused_by_name(
    build: Build, row: Row, request_for: RequestFor
) -> None:
    lm = build(NativeAR, on_overflow="error")
    requests = [request_for(row("ok", "Hallo")), request_for(row("tr-3", "a" * CONTEXT))]
    with pytest.raises(AdapterError, match="document tr-3 of specbench_translation"):
        lm.generate_until(requests, True)


def test_a_limit_above_the_context_is_clamped_and_flagged(
    build: Build, row: Row, request_for: RequestFor, capsys: pytest.CaptureFixture[str]
) -> None:
    lm = build(NativeAR, max_length=32)
    (answer,) = lm.generate_until([request_for(row("a", "Hallo"), max_gen_toks=8192)], True)
    (stats,) = answer.stats
    assert stats.limit_clamped
    assert stats.prompt_tokens + stats.new_tokens <= 32
    assert not stats.prompt_truncated
    assert "1 of 1 answers had less room in the context of 32 tokens" in capsys.readouterr().err


def test_no_new_tokens_is_an_empty_text(build: Build, row: Row, request_for: RequestFor) -> None:
    lm = build(NativeAR)
    (answer,) = lm.generate_until([request_for(row("a", "Hallo"), max_gen_toks=0)], True)
    assert answer == ""
    assert (answer.stats[0].new_tokens, answer.stats[0].stop) == (0, "length")


def test_the_adapter_s_limit_holds_where_the_request_has_none(
    build: Build, row: Row, request_for: RequestFor
) -> None:
    lm = build(NativeAR, max_gen_toks=3)
    request = request_for(row("a", "Hallo"))
    del request.arguments[1]["max_gen_toks"]
    (answer,) = lm.generate_until([request], True)
    assert answer.stats[0].new_tokens <= 3


def test_a_stop_string_ends_the_answer_and_is_cut_off(
    build: Build, row: Row, request_for: RequestFor
) -> None:
    lm = build(NativeAR)
    doc = row("a", "Hallo")
    (free,) = lm.generate_until([request_for(doc, max_gen_toks=20)], True)
    stop = free[2]
    (cut,) = lm.generate_until([request_for(doc, max_gen_toks=20, until=stop)], True)
    assert cut == free[: free.index(stop)]
    assert cut.stats[0].stop == "stop_string"
    (listed,) = lm.generate_until([request_for(doc, max_gen_toks=20, until=[stop])], True)
    assert listed == cut


def test_an_unknown_generation_argument_is_refused(
    build: Build, row: Row, request_for: RequestFor
) -> None:
    with pytest.raises(AdapterError, match="unknown generation argument 'max_gen_tok'"):
        build(NativeAR).generate_until([request_for(row("a", "x"), max_gen_tok=3)], True)


def test_sampling_is_seeded_by_row_and_repeat_not_by_order(
    build: Build, row: Row, request_for: RequestFor
) -> None:
    lm = build(NativeAR, temperature=5.0, seed=3)
    requests = [request_for(row(name, f"Text {name}"), max_gen_toks=16) for name in "abc"]
    forward = lm.generate_until(requests, True)
    backward = lm.generate_until(requests[::-1], True)
    assert forward == backward[::-1]
    other_seed = build(NativeAR, temperature=5.0, seed=4)
    assert other_seed.generate_until(requests, True) != forward
    repeated = lm.generate_until([requests[0]] * 3, True)
    assert repeated[0] == forward[0]
    assert len(set(repeated)) == 3


def test_the_request_s_temperature_wins_over_the_adapter_s(
    build: Build, row: Row, request_for: RequestFor, capsys: pytest.CaptureFixture[str]
) -> None:
    request = request_for(row("a", "Hallo"), max_gen_toks=16, temperature=0.0)
    (cold, _) = build(NativeAR, temperature=5.0).generate_until([request] * 2, True)
    (greedy,) = build(NativeAR).generate_until([request], True)
    assert cold == greedy
    said = capsys.readouterr().err
    assert said.count("asks for greedy decoding, which wins over temperature=5.0") == 1


def test_each_skip_set_is_warmed_up_once_before_the_clock(
    build: Build, row: Row, request_for: RequestFor, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths: list[int] = []

    def counted(target: Any, drafter: Any, ids: Any, skip: Any, options: Any, *rest: Any) -> Any:
        lengths.append(options.max_new_tokens)
        return generate_steps(target, drafter, ids, skip, options, *rest)

    monkeypatch.setattr("model_adapters.answering.generate_steps", counted)
    lm = build(NativeAR)
    requests = [request_for(row(name, name), max_gen_toks=5) for name in "ab"]
    lm.generate_until(requests, True)
    assert lengths == [8, 5, 5]
    lm.generate_until(requests, True)
    assert lengths == [8, 5, 5, 5, 5]


def test_each_task_gets_the_set_of_its_domain_and_says_so_once(
    build: Build,
    row: Row,
    request_for: RequestFor,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "map.json"
    domains = {"qa": DomainConfig(SkipSet.of([1, 2], 4)), "rag": DomainConfig(SkipSet.of([3], 4))}
    DomainMap("tiny-chat", "none", 4, scope="all", domains=domains).save(path)
    lm = build(TssAR, domain_map=str(path))
    requests = [
        request_for(row("1", "Hallo", domain="qa"), task="specbench_qa"),
        request_for(row("2", "Hallo", domain="rag"), task="specbench_rag"),
        request_for(row("3", "Hallo", domain="qa"), task="specbench_qa"),
        request_for({"question": "Hallo"}, "Hallo", task="arc_easy"),
    ]
    answers = lm.generate_until(requests, True)
    assert [answer.config["skip"] for answer in answers] == [[1, 2], [3], [1, 2], []]
    for skip, number in (("1+2", 0), ("3", 1), ("dense", 3)):
        alone = build(TssAR, skip_layers=skip, scope="all")
        assert alone.generate_until([requests[number]], True)[0] == answers[number]
    said = capsys.readouterr().err
    line = f"tss_ar: specbench_qa: skips {{1,2}} of 4 layers (domain qa in map {path})"
    assert said.count(line) == 1
    assert f"arc_easy: runs all 4 layers (map {path} has no task arc_easy: dense)" in said
    used = lm.get_model_info()["tss_bench"]["used"]
    assert used["specbench_rag"]["skip"] == [3]


def test_the_progress_bar_can_be_silenced(
    build: Build, row: Row, request_for: RequestFor, capsys: pytest.CaptureFixture[str]
) -> None:
    lm = build(NativeAR)
    lm.generate_until([request_for(row("a", "Hallo"))])
    assert "Running generate_until requests" in capsys.readouterr().err
    lm.generate_until([request_for(row("a", "Hallo"))], disable_tqdm=True)
    assert "Running" not in capsys.readouterr().err


def test_state_run_starts_empty_at_every_run(
    build: Build, row: Row, request_for: RequestFor, small_tree: str
) -> None:
    def steps(state: str) -> list[list[int]]:
        """Verification steps of two equal requests, in two runs."""
        lm = build(NativeTokenRecycling, tree=small_tree, state=state)
        same = [request_for(row(name, "Satz"), max_gen_toks=24) for name in "ab"]
        runs = [lm.generate_until(same, True) for _ in range(2)]
        return [[text.stats[0].verify_steps for text in run] for run in runs]

    kept, forgotten = steps("run"), steps("request")
    assert kept[0] == kept[1]
    # Only in one run does the second request draft from the rows of the first.
    assert kept[0][0] == forgotten[0][0] == forgotten[0][1]
    assert kept[0][1] < kept[0][0]


def test_drafters_take_their_own_arguments(
    build: Build, row: Row, request_for: RequestFor, eagle_head: Path
) -> None:
    request = request_for(row("a", "Hallo"), max_gen_toks=4)
    lm = build(NativeEagle, draft=str(eagle_head), total_token=4, depth=2, top_k=2)
    (answer,) = lm.generate_until([request], True)
    assert 0 < answer.stats[0].drafted <= 3 * answer.stats[0].verify_steps
    static = build(NativeEagle, draft=str(eagle_head), tree="eagle_mc_sim_7b_63")
    assert static.drafter.max_nodes == 26


def test_results_record_what_was_run(build: Build, chat_model: Path) -> None:
    lm = build(TssAR, skip_layers=[3], scope="all", on_overflow="error", seed=5)
    info = lm.get_model_info()
    assert info["model_dtype"] == "float32"
    record = info["tss_bench"]
    expected = {
        "adapter": "tss_ar",
        "model": "tiny-chat",
        "num_layers": 4,
        "drafter": "none",
        "skip_source": "skip_layers=3",
        "skip_sets": {"*": [3]},
        "scope": "all",
        "protocol": "strict",
        "dtype": "float32",
        "device": "cpu",
        "on_overflow": "error",
        "seed": 5,
        "chat_template": True,
        "max_length": CONTEXT,
    }
    assert {name: record[name] for name in expected} == expected


def test_dtype_auto_is_the_stored_one(build: Build) -> None:
    lm = build(NativeAR, dtype="auto")
    assert lm.target.dtype == torch.float32
    info = lm.get_model_info()
    assert info["model_dtype"] == info["tss_bench"]["dtype"] == "float32"


def test_a_head_is_recorded_by_its_content(build: Build, eagle_head: Path) -> None:
    record = build(NativeEagle, draft=str(eagle_head)).get_model_info()["tss_bench"]
    assert record["draft"] == str(eagle_head)
    assert record["draft_fingerprint"] == weights_fingerprint(eagle_head)


def test_a_head_of_fewer_rows_drafts_for_a_padded_target(
    build: Build, row: Row, request_for: RequestFor, tmp_path: Path
) -> None:
    """The last ids of the target are beyond the head's own embedding."""
    config = EagleConfig(32, 64, 4, 2, 8, vocab_size=200)
    save_eagle_head(EagleHead(config, own_embedding=True), tmp_path, {})
    requests = [request_for(row("a", "Guten Morgen, Welt"), max_gen_toks=24)]
    plain = build(NativeAR).generate_until(copy.deepcopy(requests), True)
    lm = build(NativeEagle, draft=str(tmp_path))
    assert lm.generate_until(requests, True) == plain
    assert max(lm.prompt_ids(lm.jobs(requests)[0])) >= 200 or max(plain[0].ids[0]) >= 200


def test_arguments_win_over_the_command_line_s_options(chat_model: Path) -> None:
    text = f"pretrained={chat_model},dtype=float32,skip_layers=[1,3],max_length=64"
    options = {"batch_size": "1", "max_batch_size": None, "device": "cuda:0", "max_length": 32}
    lm = TssAR.create_from_arg_string(text, options)
    assert list(lm.controller.choose("x").skip) == [1, 3]
    assert lm.max_length == 64
    assert lm.batch_size == 1
    as_object = TssAR.create_from_arg_obj(
        {"pretrained": str(chat_model), "dtype": "float32", "device": "cpu", "skip_layers": "1+3"},
        {"device": "cuda:0", "batch_size": "auto"},
    )
    assert list(as_object.controller.choose("x").skip) == [1, 3]
    assert as_object.device.type == "cpu"
