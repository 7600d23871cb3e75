"""Interleaved runs over real lm-eval tasks, with a tiny model."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.model_adapters.conftest import TEMPLATE, save_model
from tss_bench.harness import Outcome, load_tasks, make_adapters, run_interleaved


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("models") / "tiny-chat", TEMPLATE)


@pytest.fixture(autouse=True)
def mini_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TSS_BENCH_DATA", "mini")


def test_adapters_share_one_target(model_dir: Path) -> None:
    made = make_adapters(["native_ar", "native_token_recycling"], f"pretrained={model_dir}")
    assert made["native_ar"].target is made["native_token_recycling"].target
    assert made["native_ar"].drafter is not made["native_token_recycling"].drafter


def test_every_adapter_answers_every_request(model_dir: Path) -> None:
    arguments = f"pretrained={model_dir},dtype=float32,max_gen_toks=8"
    adapters = make_adapters(["native_ar", "native_token_recycling"], arguments)
    task = load_tasks(["specbench_qa"])["specbench_qa"]
    outcomes = run_interleaved(adapters, task, limit=3, repeats=2)
    assert {name: outcome.requests for name, outcome in outcomes.items()} == {
        "native_ar": 6,
        "native_token_recycling": 6,
    }
    plain, recycling = (outcomes[name].aggregate(task) for name in outcomes)
    assert plain["accept_len"] == 1.0
    assert plain["f1"] == recycling["f1"]
    assert plain["scored"] == 6


def test_figures_are_pooled_by_the_task() -> None:
    task = load_tasks(["specbench_qa"])["specbench_qa"]
    outcome = Outcome()
    outcome.add({"accept_len": (10, 2), "f1": 1.0, "scored": 1})
    outcome.add({"accept_len": (90, 45), "f1": 0.0, "scored": 1})
    found = outcome.aggregate(task)
    assert found["accept_len"] == pytest.approx(100 / 47)
    assert (found["f1"], found["scored"]) == (0.5, 2)


def test_an_unknown_task_and_an_untimed_one_are_refused() -> None:
    with pytest.raises(ValueError, match="no task specbench_nothing"):
        load_tasks(["specbench_nothing"])
    with pytest.raises(ValueError, match="tss_mmlu_ll asks for no generated answer"):
        load_tasks(["tss_mmlu_ll"])


def test_a_foreign_model_is_refused() -> None:
    with pytest.raises(ValueError, match="no adapter 'dummy'; there is native_ar, tss_ar"):
        make_adapters(["dummy"], "")
