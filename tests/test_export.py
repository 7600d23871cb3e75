"""The command `tss-bench export`: what it takes, what it refuses, and what can be done with it.

May import: pytest, model_adapters, tss_bench, tests.model_adapters.conftest.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from model_adapters.adapters import NativeAR, TssAR
from model_adapters.base import SpeculativeLM
from model_adapters.draft_model import TssDraftModel
from tests.model_adapters.conftest import TEMPLATE, make_request, make_row, save_model
from tss_bench import __version__, cli
from tss_bench.domains import DomainConfig, DomainMap
from tss_bench.types import Scope, SkipSet
from tss_bench.weights import weights_fingerprint
from tss_bench.weights.export import PROVENANCE


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("models") / "tiny", TEMPLATE)


def export(source: Path, out: Path, *words: str) -> int:
    return cli.main(["export", "--pretrained", str(source), "--out", str(out), *words])


def refused(capsys: pytest.CaptureFixture[str], source: Path, out: Path, *words: str) -> str:
    """The line that a refusal prints; nothing was written."""
    assert export(source, out, *words) == 2
    assert not out.exists()
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("tss-bench: error: ")
    return error


def save_map(path: Path, scope: Scope = "verify", model: str = "tiny", layers: int = 4) -> str:
    domains = {
        "summarization": DomainConfig(SkipSet.of([1, 3], layers)),
        "specbench_qa_fewshot": DomainConfig(SkipSet.of([2], layers)),
        "rag": DomainConfig(SkipSet.dense(layers)),
    }
    DomainMap(model, "eagle", layers, scope=scope, domains=domains).save(path)
    return str(path)


def answer(adapter: type[SpeculativeLM], **arguments: Any) -> Any:
    lm = adapter(dtype="float32", device="cpu", **arguments)
    request = make_request(make_row("a", "Guten Abend, Welt"), max_gen_toks=24)
    return lm.generate_until([request], disable_tqdm=True)[0]


def test_an_exported_model_is_a_target_and_a_draft(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert export(source, out, "--skip", "1,3") == 0
    told = capsys.readouterr().out
    assert told.startswith(f"{out}: tiny without layers {{1,3}}, 2 of 4 left, ")
    sparse = answer(TssAR, pretrained=str(source), skip_layers="1+3", scope="all")
    assert answer(NativeAR, pretrained=str(out)) == sparse
    drafted = answer(
        TssDraftModel, pretrained=str(source), draft=str(out), skip_layers="1+3", scope="all"
    )
    assert drafted == sparse
    (stats,) = drafted.stats
    # It is the sparse target, so it is always right.
    assert stats.accepted == stats.drafted > 0


def test_it_says_what_it_was_made_from(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert export(source, out, "--skip", "0+2", "--dtype", "bfloat16") == 0
    record = json.loads((out / PROVENANCE).read_text(encoding="utf-8"))
    commit = record.pop("commit")
    assert commit is None or re.fullmatch(r"[0-9a-f]{40}(\+changes-[0-9a-f]{8})?", commit)
    assert record == {
        "tss_bench": __version__,
        "model": "tiny",
        "revision": weights_fingerprint(source),
        "base": None,
        "num_layers": 4,
        "skip": [0, 2],
        "kept_layers": [1, 3],
        "dtype": "bfloat16",
        "equals": "the target with this skip set under scope all",
    }


@pytest.mark.parametrize(
    ("task", "domain", "skip"),
    [
        ("specbench_summarization", "summarization", [1, 3]),
        ("summarization", "summarization", [1, 3]),
        ("specbench_qa_fewshot", "specbench_qa_fewshot", [2]),
    ],
)
def test_the_set_of_a_task_comes_from_a_map(
    source: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    task: str,
    domain: str,
    skip: list[int],
) -> None:
    found = save_map(tmp_path / "map.json", scope="verify" if task == domain else "all")
    assert export(source, tmp_path / "out", "--domain-map", found, "--task", task) == 0
    record = json.loads((tmp_path / "out" / PROVENANCE).read_text(encoding="utf-8"))
    scope = record["map"]["scope"]
    assert record["skip"] == skip
    assert record["map"] == {"drafter": "eagle", "scope": scope, "domain": domain}
    note = "found with scope verify, where prompts are read by all layers"
    assert (note in capsys.readouterr().out) == (scope == "verify")


def test_a_set_that_is_not_there(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, found = tmp_path / "out", save_map(tmp_path / "map.json")
    asked = ("--domain-map", found, "--task")
    line = refused(capsys, source, out, *asked, "specbench_translation")
    assert "has neither task nor domain specbench_translation; it has summarization, " in line
    assert "neither task nor domain nonsense" in refused(capsys, source, out, *asked, "nonsense")
    line = refused(capsys, source, out, *asked, "specbench_rag")
    assert "keeps rag dense, so there is nothing to remove; --skip dense exports" in line
    assert "--task and --domain-map go together" in refused(capsys, source, out, *asked[:2])
    line = refused(capsys, source, out, "--skip", "1", "--task", "rag")
    assert "--task and --domain-map go together" in line
    other = save_map(tmp_path / "other.json", model="other")
    line = refused(capsys, source, out, "--domain-map", other, "--task", "summarization")
    assert "is for model other, but the target is tiny" in line


@pytest.mark.parametrize(
    ("skip", "told"),
    [
        ("4", "skip layer 4 does not exist: the target has 4 layers, numbered 0 to 3"),
        ("", "an empty list of layers; write dense to skip none"),
        ("1,x", "'x' is no layer index"),
        ("0,1,2,3", "all 4 layers would be removed; at least one must stay"),
    ],
)
def test_a_set_that_is_none(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], skip: str, told: str
) -> None:
    assert told in refused(capsys, source, tmp_path / "out", "--skip", skip)


def test_a_place_that_is_taken(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(source.iterdir())
    assert export(source, source, "--skip", "1") == 2
    assert "is there already and not empty; choose another --out" in capsys.readouterr().err
    assert sorted(source.iterdir()) == before


@pytest.mark.parametrize(
    "words", [[], ["--skip", "1", "--domain-map", "x"], ["--skip", "1", "--dtype", "int8"]]
)
def test_a_wrong_command_line(source: Path, tmp_path: Path, words: list[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        export(source, tmp_path / "out", *words)
    assert stop.value.code == 2


@pytest.mark.slow
def test_a_packaged_lora_is_exported_with_its_base(tmp_path: Path) -> None:
    lora, out = "smollm2-135m-layerdrop", tmp_path / "out"
    assert (
        cli.main(
            [
                "export",
                "--pretrained",
                lora,
                "--skip",
                "3,10,25",
                "--dtype",
                "bfloat16",
                "--out",
                str(out),
            ]
        )
        == 0
    )
    record = json.loads((out / PROVENANCE).read_text(encoding="utf-8"))
    assert (record["model"], record["base"]) == (lora, "smollm2-135m-instruct")
    request = make_request(make_row("a", "Name three colours."), max_gen_toks=8)
    sparse = TssAR(
        pretrained=lora, skip_layers="3+10+25", scope="all", device="cpu"
    ).generate_until([request], True)
    assert NativeAR(pretrained=str(out), device="cpu").generate_until([request], True) == sparse
