"""The batched evaluator against the one that decodes row after row, on tiny float32 models.

May import: pytest, torch, model_adapters, tss_bench, tests.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from model_adapters.adapters import TssAR, TssEagle, TssTokenRecycling
from model_adapters.base import SpeculativeLM
from model_adapters.draft_model import TssDraftModel
from model_adapters.layerskip import TssLayerSkip
from model_adapters.prompt_lookup import TssPromptLookup
from model_adapters.samd import TssSamd
from tests import eagle3
from tests.model_adapters.conftest import LAYERS, TEMPLATE, make_tokenizer, save_model
from tests.test_calibration import row, task_of
from tss_bench import batched_answers
from tss_bench.batched_evaluator import BatchedEvaluator
from tss_bench.calibration import SequentialEvaluator
from tss_bench.decoding import lockstep
from tss_bench.decoding.drafters.eagle_head import EagleConfig, EagleHead
from tss_bench.decoding.target import Target
from tss_bench.evaluators import evaluator_for, make_evaluator
from tss_bench.harness import TaskRequests
from tss_bench.search import Evaluation, Job
from tss_bench.types import SkipSet
from tss_bench.weights import save_eagle_head

BOTH = frozenset({"accept", "metric"})
ALL = BOTH | {"loss"}
SETS = [SkipSet.of(layers, LAYERS) for layers in ([], [0], [1], [1, 2], [3], [0, 1, 2, 3])]
ADAPTERS = {
    "plain": (TssAR, {}),
    "recycling": (TssTokenRecycling, {"tree": "tree"}),
    "dynamic": (TssEagle, {"draft": "head"}),
    "static": (TssEagle, {"draft": "head", "tree": "tree"}),
    "lookup": (TssPromptLookup, {}),
    "draft model": (TssDraftModel, {"draft": "draft"}),
    "eagle3": (TssEagle, {"draft": "head3"}),
    "sam": (
        TssSamd,
        {"fallback": "eagle", "draft": "head", "tree": "tree", "len_threshold": "2"},
    ),
}
ALONE: dict[str, tuple[type[SpeculativeLM], dict[str, str]]] = {"layerskip": (TssLayerSkip, {})}
"""Adapters that decode one answer at a time."""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    folder = tmp_path_factory.mktemp("files")
    torch.manual_seed(8)
    head = EagleHead(EagleConfig(32, 64, 4, 2, 8, vocab_size=len(make_tokenizer())))
    save_eagle_head(head, folder / "head", {"source": "random"})
    vocab = len(make_tokenizer())
    config = eagle3.official_config(vocab, 60, eagle_aux_hidden_state_layer_ids=[1, 2, 3])
    eagle3.write(folder / "head3", config, eagle3.official_state(vocab, 60))
    tree = {"paths": [[0], [1], [0, 0], [0, 0, 0]]}
    (folder / "tree.json").write_text(json.dumps(tree), encoding="utf-8")
    return {
        "model": save_model(folder / "tiny", TEMPLATE),
        "head": folder / "head",
        "head3": folder / "head3",
        "tree": folder / "tree.json",
        "draft": save_model(folder / "draft", TEMPLATE, layers=1),
    }


def build(files: Mapping[str, Path], kind: str, **given: Any) -> SpeculativeLM:
    adapter, own = (ADAPTERS | ALONE)[kind]
    shared = {"pretrained": str(files["model"]), "dtype": "float32", "device": "cpu"}
    places = {name: str(files.get(value, value)) for name, value in own.items()}
    return adapter(**{**shared, "skip_layers": "dense", **places, **given})


def rows() -> TaskRequests:
    return task_of(
        row("a", "Who?"),
        row("b", "First?", "And then?"),
        row("c", "When was it, and who were they?"),
        row("d", "What?", references=()),
    )


def by_place(found: list[Evaluation]) -> dict[tuple[SkipSet, int], Evaluation]:
    placed = {(one.skip, one.prompts[0]): one for one in found}
    assert len(placed) == len(found)
    return placed


@pytest.mark.parametrize("kind", ADAPTERS)
@pytest.mark.parametrize(
    ("scope", "protocol"), [("verify", "strict"), ("all", "strict"), ("verify", "paper")]
)
def test_it_measures_what_the_sequential_one_measures(
    files: Mapping[str, Path], kind: str, scope: str, protocol: str
) -> None:
    adapter = build(files, kind, scope=scope, protocol=protocol)
    # A draft model takes its time even when it is tiny.
    sets = SETS[1:3] if kind == "draft model" else SETS
    jobs = [Job(skip, BOTH, (0, 1, 2, 3)) for skip in sets]
    expected = list(SequentialEvaluator(adapter, rows())(jobs))
    batched = BatchedEvaluator(adapter, rows())
    found = by_place(list(batched(jobs)))
    assert found == by_place(expected)
    assert batched.answered == len(expected) == 4 * len(sets)
    # And once more, on prompts that are read already.
    assert by_place(list(batched(jobs[::-1]))) == found


def test_losses_come_with_the_answer_or_alone(files: Mapping[str, Path]) -> None:
    adapter = build(files, "recycling")
    jobs = [
        Job(SETS[1], ALL, (0, 1)),
        Job(SETS[2], frozenset({"loss"}), (2,)),
        Job(SETS[2], BOTH, (0,)),
    ]
    expected = by_place(list(SequentialEvaluator(adapter, rows())(jobs)))
    batched = BatchedEvaluator(adapter, rows())
    assert by_place(list(batched(jobs))) == expected
    assert batched.answered == 2 + 2 + 1 + 1
    assert batched.limits() == SequentialEvaluator(adapter, rows()).limits()


def test_costs_are_timed_after_the_rest(files: Mapping[str, Path]) -> None:
    jobs = [Job(skip, frozenset({"cost"}), ()) for skip in SETS[:2]]
    jobs.append(Job(SETS[1], BOTH, (0,)))
    answer, *timed = BatchedEvaluator(build(files, "dynamic"), rows())(jobs)
    assert (answer.prompts, answer.cost) == ((0,), None)
    assert [(one.skip, one.prompts) for one in timed] == [(skip, ()) for skip in SETS[:2]]
    assert all(one.cost is not None and one.cost > 0 for one in timed)


@pytest.mark.parametrize("kind", ["recycling", "dynamic"])
def test_little_memory_changes_no_figure(
    files: Mapping[str, Path], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = [Job(skip, BOTH, (0, 1, 2)) for skip in SETS]
    expected = by_place(list(BatchedEvaluator(build(files, kind), rows())(jobs)))
    monkeypatch.setattr(batched_answers, "ROW_BYTES", 1)
    monkeypatch.setattr(batched_answers, "REPLAYED", 2)
    widths: list[int] = []
    forward = Target.forward_rows

    def noted(self: Target, ids: torch.Tensor, *more: Any) -> torch.Tensor:
        widths.append(len(ids))
        return forward(self, ids, *more)

    monkeypatch.setattr(Target, "forward_rows", noted)
    assert by_place(list(BatchedEvaluator(build(files, kind), rows())(jobs))) == expected
    assert set(widths) == {1}


def test_scope_verify_reads_every_prompt_once_and_scope_all_for_every_set(
    files: Mapping[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[tuple[tuple[int, ...], SkipSet]] = []
    plain = lockstep.read_prompt

    def noted(target: Target, ids: list[int], skip: SkipSet, *more: Any) -> lockstep.ReadPrompt:
        read.append((tuple(ids), skip))
        return plain(target, ids, skip, *more)

    monkeypatch.setattr(batched_answers, "read_prompt", noted)
    jobs = [Job(skip, BOTH, (0, 2)) for skip in SETS]
    list(BatchedEvaluator(build(files, "dynamic"), rows())(jobs))
    assert len(read) == 2
    assert {skip for _, skip in read} == {SETS[0]}
    read.clear()
    list(BatchedEvaluator(build(files, "dynamic", scope="all"), rows())(jobs))
    assert len(set(read)) == len(read) == 2 * len(SETS)


def test_rows_of_different_sets_share_a_pass(
    files: Mapping[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Six sets on three rows take the steps of the longest answer, not those of all 18."""
    passes: list[int] = []
    forward = Target.forward_rows

    def noted(self: Target, ids: torch.Tensor, *more: Any) -> torch.Tensor:
        passes.append(len(ids))
        return forward(self, ids, *more)

    monkeypatch.setattr(Target, "forward_rows", noted)
    found = list(
        BatchedEvaluator(build(files, "plain"), rows())([Job(s, BOTH, (0, 2, 3)) for s in SETS])
    )
    steps = [one.accept[0][1] for one in found if one.accept]
    assert len(steps) == 18
    assert len(passes) == max(steps)
    assert sum(passes) == sum(steps)


def test_evaluators_by_name(files: Mapping[str, Path]) -> None:
    adapter = build(files, "plain")
    assert isinstance(make_evaluator(adapter, rows()), BatchedEvaluator)
    assert isinstance(make_evaluator(adapter, rows(), "sequential"), SequentialEvaluator)


def test_an_adapter_that_decodes_alone_falls_back(
    files: Mapping[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    adapter = build(files, "layerskip", exit_layer=2, num_speculations=3)
    assert evaluator_for(adapter, "batched") == "sequential"
    said = capsys.readouterr().err.splitlines()
    assert said == [
        "tss_layerskip: its answers cannot be decoded side by side, so they are decoded one "
        "after the other (--evaluator sequential)"
    ]
    assert evaluator_for(adapter, "sequential") == "sequential"
    assert evaluator_for(build(files, "plain"), "batched") == "batched"
    assert capsys.readouterr().err == ""
    with pytest.raises(ValueError, match="tss_layerskip decodes one answer at a time"):
        BatchedEvaluator(adapter, rows())
    found = list(make_evaluator(adapter, rows(), "sequential")([Job(SETS[1], BOTH, (0, 1))]))
    assert [one.skip for one in found] == [SETS[1], SETS[1]]


def test_answers_of_an_adapter_that_decodes_alone(files: Mapping[str, Path]) -> None:
    """The texts are those of a drafter that decodes side by side."""
    asked = [(0, SETS[1]), (2, SETS[0]), (0, SETS[3])]
    texts = []
    for kind in ("layerskip", "plain"):
        adapter = build(files, kind)
        jobs = adapter.jobs(rows().requests)
        adapter.begin_run(jobs)
        found = dict(batched_answers.answers_of(adapter, jobs, "a test")(asked))
        texts.append([str(found[place]) for place in range(len(asked))])
        assert found[2].config["skip"] == list(SETS[3])
        assert found[2].config["why"] == "a test"
    assert texts[0] == texts[1]
