"""`tss-bench domains route-test` on a tiny model and the packaged mini set.

May import: pytest, model_adapters, tss_bench, tests.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from model_adapters.base import SpeculativeLM
from tests.model_adapters.conftest import TEMPLATE, save_model
from tss_bench import cli
from tss_bench.data.resolve import resolve
from tss_bench.data.split import split_rows
from tss_bench.domains import DomainConfig, DomainMap
from tss_bench.types import SkipSet

LAYERS = 4
SETS = {"translation": [1], "qa": [2], "mmlu": []}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("models") / "tiny", TEMPLATE)


@pytest.fixture
def arguments(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setenv("TSS_BENCH_DATA", "mini")
    monkeypatch.setenv("TSS_BENCH_CACHE", str(tmp_path / "cache"))
    domains = {name: DomainConfig(SkipSet.of(skip, LAYERS)) for name, skip in SETS.items()}
    path = tmp_path / "map.json"
    DomainMap("tiny", "none", LAYERS, domains=domains).save(path)
    given = f"dtype=float32,device=cpu,domain_map={path}"
    return ["domains", "route-test", "--model", "tss_ar", "--pretrained", str(model),
            "--limit", "3", "--model_args", given]  # fmt: skip


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Answers of at most four ids; what was answered."""
    decode = SpeculativeLM.routed_job
    jobs: list[Any] = []

    def routed_job(self: Any, request: Any, given: Any, router: Any) -> Any:
        jobs.append(decode(self, request, {**given, "max_gen_toks": 4}, router))
        return jobs[-1]

    monkeypatch.setattr(SpeculativeLM, "routed_job", routed_job)
    return jobs


@pytest.mark.parametrize("scope", ["verify", "all"])
def test_test_rows_are_routed_without_their_names(
    arguments: list[str], short: list[Any], scope: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([*arguments, "--scope", scope, "--k", "1"]) == 0
    out = capsys.readouterr().out
    found = json.loads(out.splitlines()[-1])
    assert set(found["results"]) == {"chat", "plain"}
    for form in found["results"].values():
        assert set(form["domains"]) == set(SETS)
        for one in form["domains"].values():
            assert one["rows"] == sum(one["went"].values()) == one["left_out"]["rows"] == 3
        assert form["right"]["rows"] == 9
    assert (found["scope"], found["router"]["k"]) == (scope, 1)
    assert found["cost"]["requests"] == 3
    assert found["cost"]["request_ms"] > found["cost"]["router_ms"] > 0
    assert "| test rows of" in out
    assert {(job.request.task, job.request.domain) for job in short} == {("route-test", None)}
    test = {row.turns[0] for domain in SETS for row in split_rows(resolve(domain)[0], "test")}
    assert {job.request.turns[0].split("\nA. ")[0] for job in short} <= test


def test_without_a_map_every_domain_is_a_candidate(
    arguments: list[str], short: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    given = [*arguments[:-1], "dtype=float32,device=cpu,max_length=64", "--threshold", "0"]
    assert cli.main([*given, "--limit", "1"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    form = found["results"]["plain"]
    assert len(form["domains"]) == 8
    # Nothing but a calibration prompt itself lies within a distance of 0.
    assert all(one["left_out"]["share"] == 1.0 for one in form["domains"].values())
    assert form["dense"]["share"] == 1.0


def test_a_remainder_with_too_few_prompts_has_no_strangers(
    arguments: list[str], short: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """24 prompts of three domains are enough for 17 neighbours, the 16 of two are not."""
    assert cli.main([*arguments, "--limit", "1", "--k", "17"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    for form in found["results"].values():
        assert {one["left_out"] for one in form["domains"].values()} == {None}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--limit", "0"], "--limit must be at least 1, got 0"),
        (["--timed", "0"], "--timed must be at least 1, got 0"),
        (["--k", "0"], "router_k must be a whole number of at least 1"),
        (["--k", "25"], "router_k=25 is more than the 24 calibration prompts"),
        (["--threshold", "3"], "router_threshold must be a cosine distance"),
        (["--model_args", "router_k=3"], "may not hold router_k; use --k"),
        (["--model_args", "skip_layers=3"], "may not hold skip_layers"),
    ],
)
def test_bad_input_is_one_line_before_any_weight_is_loaded(
    arguments: list[str],
    words: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("tss_bench.weights.load_model", lambda *_, **__: pytest.fail("loaded"))
    assert cli.main([*arguments, *words]) == 2
    assert message in capsys.readouterr().err.splitlines()[-1]
