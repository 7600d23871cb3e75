"""Whole evaluations: lm-eval's `simple_evaluate` with our adapters, our tasks and a foreign one.

May import: pytest, lm_eval, model_adapters, tss_bench.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import lm_eval
import pytest
from lm_eval.api.task import ConfigurableTask
from lm_eval.tasks import TaskManager

from model_adapters.adapters import NativeAR, TssTokenRecycling
from model_adapters.base import SpeculativeLM
from tss_bench.task_paths import task_directory
from tss_bench.types import GeneratedText

Build = Callable[..., SpeculativeLM]

GENERATED = [
    "specbench_translation",
    "specbench_summarization",
    "specbench_qa",
    "specbench_rag",
    "specbench_math_reasoning",
    "specbench_mt_bench",
    "tss_mmlu",
    "tss_nq_open",
    "specbench_translation_fewshot",
]


def evaluate(lm: SpeculativeLM, tasks: list[Any], **options: Any) -> dict[str, Any]:
    """Results of two rows a task."""
    settings = {"limit": 2, "bootstrap_iters": 0, **options}
    results: dict[str, Any] = lm_eval.simple_evaluate(model=lm, tasks=tasks, **settings)
    return results


@pytest.fixture
def manager(monkeypatch: pytest.MonkeyPatch) -> TaskManager:
    monkeypatch.setenv("TSS_BENCH_DATA", "mini")
    return TaskManager(include_path=str(task_directory()), include_defaults=False)


def test_every_task_runs_and_reports_acceptance_and_speed(
    build: Build, manager: TaskManager, small_tree: str
) -> None:
    lm = build(TssTokenRecycling, tree=small_tree, skip_layers="2")
    results = evaluate(
        lm, [*GENERATED, "tss_mmlu_ll"], task_manager=manager, gen_kwargs="max_gen_toks=6"
    )
    for task in GENERATED:
        assert results["results"][task]["accept_len,none"] >= 1.0
        assert results["results"][task]["tokens_per_second,none"] > 0
        for sample in results["samples"][task]:
            ((answer,),) = sample["resps"]
            assert type(answer) is GeneratedText
            assert answer.config["skip"] == [2]
            assert all(1 <= stats.new_tokens <= 6 for stats in answer.stats)
    assert "acc,none" in results["results"]["tss_mmlu_ll"]
    assert "accept_len,none" not in results["results"]["tss_mmlu_ll"]
    two_turns = results["samples"]["specbench_mt_bench"][0]["resps"][0][0]
    assert len(two_turns.turns) == len(two_turns.stats) == 2
    used = results["config"]["tss_bench"]["used"]
    assert {task: entry["skip"] for task, entry in used.items()} == {
        task: [2] for task in [*GENERATED, "tss_mmlu_ll"]
    }


def test_the_chat_template_stands_once_with_and_without_lm_eval_s_flag(
    build: Build, manager: TaskManager
) -> None:
    tasks = ["tss_nq_open", "specbench_mt_bench", "tss_nq_open_fewshot"]
    lm = build(NativeAR)
    plain = evaluate(lm, tasks, task_manager=manager, gen_kwargs="max_gen_toks=4")
    flagged = evaluate(
        lm, tasks, task_manager=manager, gen_kwargs="max_gen_toks=4", apply_chat_template=True
    )
    for task in tasks:
        ours, theirs = (
            [sample["resps"][0][0] for sample in results["samples"][task]]
            for results in (plain, flagged)
        )
        assert ours == theirs
        lengths = [[stats.prompt_tokens for stats in answer.stats] for answer in ours]
        assert lengths == [[stats.prompt_tokens for stats in answer.stats] for answer in theirs]


def test_a_foreign_task_is_run_as_it_is(build: Build, manager: TaskManager) -> None:
    task = ConfigurableTask(
        config={
            "task": "foreign",
            "custom_dataset": lambda **_: {
                "test": datasets.Dataset.from_list([{"question": "Q: one?\nA:", "answer": "x"}])
            },
            "test_split": "test",
            "output_type": "generate_until",
            "doc_to_text": "question",
            "doc_to_target": "answer",
            "generation_kwargs": {"until": ["\n"], "max_gen_toks": 4, "do_sample": False},
            "process_results": lambda doc, results: {"letters": len(results[0])},
            "metric_list": [
                {"metric": "letters", "aggregation": "mean", "higher_is_better": False}
            ],
        }
    )
    lm = build(NativeAR)
    results = evaluate(lm, [task], task_manager=manager)
    ((answer,),) = results["samples"]["foreign"][0]["resps"]
    assert answer.stats[0].prompt_tokens == len(lm.tok_encode("Q: one?\nA:"))
    assert results["results"]["foreign"]["letters,none"] == len(answer)


def test_a_cached_run_has_no_speed(build: Build, manager: TaskManager, tmp_path: Path) -> None:
    cache = str(tmp_path / "cache")
    options = {"task_manager": manager, "gen_kwargs": "max_gen_toks=4", "use_cache": cache}
    first = evaluate(build(NativeAR), ["tss_nq_open"], **options)["results"]["tss_nq_open"]
    again = evaluate(build(NativeAR), ["tss_nq_open"], **options)["results"]["tss_nq_open"]
    assert "tokens_per_second,none" in first
    assert "tokens_per_second,none" not in again
    assert "accept_len,none" not in again
    assert first["f1,none"] == again["f1,none"]
