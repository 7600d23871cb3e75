"""`tss-bench bench evaluator` on a tiny model; the speeds themselves are never tested."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from tests.model_adapters.conftest import TEMPLATE, save_model
from tss_bench import bench_evaluator

FIGURES = ["task", "model", "rows", "sets", "first_s", "sequential_s", "batched_s", "ratio"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("models") / "tiny", TEMPLATE)


def arguments(model: Path, *words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    bench_evaluator.add_arguments(parser)
    text = f"pretrained={model},dtype=float32,device=cpu,max_length=96"
    base = ["--model", "tss_token_recycling,tss_ar", "--model_args", text]
    return parser.parse_args([*base, "--tasks", "specbench_qa", "--limit", "2", *words])


def test_it_reports_both_evaluators_and_their_agreement(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TSS_BENCH_DATA", "mini")
    bench_evaluator.run(arguments(model, "--sets", "3", "--turns", "2"))
    lines = capsys.readouterr().out.splitlines()
    report = json.loads(lines[-1])
    assert (report["bench"], report["scope"], report["sets"]) == ("evaluator", "verify", 3)
    assert [row["model"] for row in report["results"]] == ["tss_token_recycling", "tss_ar"]
    for row in report["results"]:
        assert list(row) == [*FIGURES, "equal", "compared", "beside"]
        assert row["beside"] == 2
        # Two turns of one set each, two rows a set; float32 answers are the same.
        assert (row["rows"], row["sets"], row["equal"], row["compared"]) == (2, 3, 4, 4)
        assert row["ratio"] == pytest.approx(row["sequential_s"] / row["batched_s"])
    assert "equal rows" in lines[-5]
    assert lines[-2].count("4/4") == lines[-2].count("2/2") == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--sets", "0"), "--sets must be at least 1"),
        (("--turns", "0"), "--turns must be at least 1"),
        (("--model", "tss_nothing"), "no adapter 'tss_nothing'"),
    ],
)
def test_bad_input_is_refused_before_loading(
    model: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], message: str
) -> None:
    monkeypatch.setenv("TSS_BENCH_DATA", "mini")
    monkeypatch.setattr("tss_bench.weights.load_model", lambda *_, **__: pytest.fail("loaded"))
    with pytest.raises(ValueError, match=message):
        bench_evaluator.run(arguments(model, *words))
