"""Evaluations of one row, and the sequential evaluator: against other ways to get the same figures.

May import: pytest, torch, transformers, model_adapters, tss_bench, tests.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from model_adapters.adapters import TssEagle, TssTokenRecycling
from model_adapters.base import SpeculativeLM
from tests.model_adapters.conftest import (
    LAYERS,
    TEMPLATE,
    make_request,
    make_row,
    make_tokenizer,
    save_model,
)
from tss_bench.calibration import SequentialEvaluator, metric_name
from tss_bench.decoding.drafters.eagle_head import EagleConfig, EagleHead
from tss_bench.harness import TaskRequests
from tss_bench.scoring.pooled import request_pairs
from tss_bench.search import Job
from tss_bench.types import SkipSet
from tss_bench.weights import save_eagle_head

BOTH = frozenset({"accept", "metric"})
SKIP = SkipSet.of([1], LAYERS)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("models") / "tiny", TEMPLATE)


@pytest.fixture(scope="module")
def build(model: Path) -> Callable[..., SpeculativeLM]:
    def make(**given: Any) -> SpeculativeLM:
        shared = {"pretrained": str(model), "dtype": "float32", "device": "cpu"}
        return TssTokenRecycling(**{**shared, "skip_layers": "dense", **given})

    return make


@pytest.fixture
def small_tree(tmp_path: Path) -> str:
    """The file of a tree of four drafts."""
    path = tmp_path / "small.json"
    path.write_text(json.dumps({"paths": [[0], [1], [0, 0], [0, 0, 0]]}), encoding="utf-8")
    return str(path)


@pytest.fixture
def eagle_head(tmp_path: Path) -> Path:
    torch.manual_seed(8)
    config = EagleConfig(32, 64, 4, 2, 8, vocab_size=len(make_tokenizer()))
    head = EagleHead(config, own_embedding=False)
    save_eagle_head(head, tmp_path / "head", {"source": "random"})
    return tmp_path / "head"


def task_of(*docs: dict[str, Any], name: str = "f1") -> TaskRequests:
    """Rows of a task whose metric is a tenth of the answer's last digit of length."""

    def process_results(doc: dict[str, Any], found: list[str]) -> dict[str, float]:
        return {name: len(found[0]) % 10 / 10} if doc["references"] else {}

    task = SimpleNamespace(
        process_results=process_results,
        aggregation=lambda: {"accept_len": sum, name: sum, "exact_match": sum},
    )
    return TaskRequests("specbench_qa", cast(Any, task), [make_request(doc) for doc in docs])


def row(identity: str, *turns: str, references: tuple[str, ...] = ("Yes",)) -> dict[str, Any]:
    return {**make_row(identity, *turns), "references": list(references)}


def test_an_evaluation_is_that_of_the_same_adapter_with_the_set_given(
    build: Callable[..., SpeculativeLM],
) -> None:
    task = task_of(row("a", "Who?"), row("b", "First?", "And then?"), row("c", "When?"))
    (answers,) = (build(skip_layers="1").generate_until(task.requests, disable_tqdm=True),)
    executor = SequentialEvaluator(build(), task)
    found = list(executor([Job(SKIP, BOTH, (0, 2)), Job(SKIP, BOTH, (1,))]))
    assert [(one.skip, one.prompts) for one in found] == [(SKIP, (0,)), (SKIP, (2,)), (SKIP, (1,))]
    for one, place in zip(found, (0, 2, 1), strict=True):
        answer = answers[place]
        assert one.accept == (request_pairs(answer.stats)["accept_len"],)
        assert one.metric == (len(answer) % 10 / 10,)
        assert one.loss is None
        assert one.cost is None
    assert executor.answered == 3


def test_a_row_without_reference_has_no_metric(build: Callable[..., SpeculativeLM]) -> None:
    executor = SequentialEvaluator(build(), task_of(row("a", "Who?", references=())))
    (one,) = executor([Job(SKIP, BOTH, (0,))])
    assert one.metric == (None,)
    assert one.accept is not None
    assert metric_name(task_of(row("a", "Who?"), name="rougeL")) == "rougeL"
    assert metric_name(task_of(row("a", "Who?"), name="own")) is None


@pytest.mark.parametrize(
    ("style", "references", "text"),
    [
        ("chat", ("Yes", "No"), "<s><|user|>Who?<|end|><|assistant|>Yes"),
        ("completion", ("Yes",), "Who? Yes"),
        ("chat", (), "<s><|user|>Who?<|end|><|assistant|>"),
    ],
)
def test_the_loss_is_that_of_prompt_and_first_reference(
    model: Path, build: Callable[..., SpeculativeLM], style: str, references: Any, text: str
) -> None:
    doc = {**row("a", "Who?", references=references), "prompt_style": style}
    executor = SequentialEvaluator(build(), task_of(doc))
    dense = SkipSet.dense(LAYERS)
    (one,) = executor([Job(dense, frozenset({"loss"}), (0,))])
    tokenizer: PreTrainedTokenizerFast = make_tokenizer()
    ids = tokenizer.encode(text, add_special_tokens=not text.startswith("<s>"))
    with torch.inference_mode():
        reference = LlamaForCausalLM.from_pretrained(model)
        row_of_ids = torch.tensor([ids])
        mean = float(reference(input_ids=row_of_ids, labels=row_of_ids).loss)
    assert one.loss is not None
    ((nats, tokens),) = one.loss
    assert tokens == len(ids) - 1
    assert nats / tokens == pytest.approx(mean, rel=1e-4)
    assert one.accept is None
    assert executor.answered == 1


def test_limits_are_never_exceeded_by_their_own_answers(
    build: Callable[..., SpeculativeLM], small_tree: str
) -> None:
    docs = (row("a", "Who?"), row("b", "First?", "And then?"))
    for protocol, emitted in (("strict", 2 * 7), ("paper", 2 * (7 + 4))):
        executor = SequentialEvaluator(build(tree=small_tree, protocol=protocol), task_of(*docs))
        limits = executor.limits()
        # The tree has four drafts, an answer eight ids, of which the prefill gives one.
        assert (limits.max_accept, limits.max_emitted) == (5, emitted)
        for one in executor([Job(SKIP, BOTH, (0, 1))]):
            assert one.accept is not None
            assert all(limits.allows(pair) for pair in one.accept)


def test_costs_are_timed_after_the_rest_and_count_as_no_answers(
    build: Callable[..., SpeculativeLM],
) -> None:
    executor = SequentialEvaluator(build(), task_of(row("a", "Who?")))
    dense = SkipSet.dense(LAYERS)
    jobs = [Job(skip, frozenset({"cost"}), ()) for skip in (dense, SKIP)]
    jobs.append(Job(SKIP, BOTH, (0,)))
    answer, *timed = executor(jobs)
    assert (answer.skip, answer.prompts, answer.cost) == (SKIP, (0,), None)
    assert [(one.skip, one.prompts, one.accept) for one in timed] == [
        (dense, (), None),
        (SKIP, (), None),
    ]
    assert all(one.cost is not None and one.cost > 0 for one in timed)
    assert executor.answered == 1


def test_eagle_is_measured_too(model: Path, eagle_head: Path) -> None:
    adapter = TssEagle(
        pretrained=str(model), dtype="float32", device="cpu", draft=str(eagle_head), skip_layers="0"
    )
    task = task_of(row("a", "Who?"))
    (answer,) = adapter.generate_until(task.requests, disable_tqdm=True)
    (one,) = SequentialEvaluator(adapter, task)([Job(SkipSet.of([0], LAYERS), BOTH, (0,))])
    assert one.accept == (request_pairs(answer.stats)["accept_len"],)
