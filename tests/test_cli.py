"""The command `tss-bench`: which function runs, what a wrong input prints, what it loads.

May import: pytest, tss_bench and the standard library.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tss_bench import cli
from tss_bench.commands import COMMANDS, GROUPS, Command
from tss_bench.domains import DOMAINS, DomainMap

ROOT = Path(__file__).resolve().parent.parent


def stand_in(seen: list[Any]) -> SimpleNamespace:
    """A module with the functions a command calls; what they get is appended to `seen`."""

    def add_arguments(parser: argparse.ArgumentParser) -> None:
        seen.append("arguments")
        parser.add_argument("--tokens", type=int, default=3)

    def run(args: argparse.Namespace) -> None:
        seen.append(args.tokens)

    return SimpleNamespace(add_arguments=add_arguments, run=run, run_engine=run)


def put_in_place(monkeypatch: pytest.MonkeyPatch, module: str, instead: Any) -> None:
    """What is imported as `module` of tss_bench from now on."""
    monkeypatch.setitem(sys.modules, f"tss_bench.{module}", instead)


@pytest.mark.parametrize(
    ("words", "module"),
    [
        (["bench", "engine"], "bench"),
        (["bench", "domains"], "bench_domains"),
        (["generate"], "generate_command"),
        (["train", "eagle"], "training.eagle"),
        (["search"], "search_command"),
        (["run"], "run_command"),
    ],
)
def test_a_command_gets_its_arguments_and_ends_with_zero(
    monkeypatch: pytest.MonkeyPatch, words: list[str], module: str
) -> None:
    seen: list[Any] = []
    put_in_place(monkeypatch, module, stand_in(seen))
    assert cli.main([*words, "--tokens", "5"]) == 0
    assert seen == ["arguments", 5]


@pytest.mark.parametrize("row", COMMANDS, ids=lambda row: f"{row.group} {row.name}".strip())
def test_a_row_names_a_module_and_its_functions(row: Command) -> None:
    module = importlib.import_module(f"tss_bench.{row.module}")
    assert row.group in GROUPS
    assert callable(getattr(module, row.run))
    row.fill(argparse.ArgumentParser())


def test_only_the_chosen_command_adds_its_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    put_in_place(monkeypatch, "bench", stand_in(seen))
    put_in_place(monkeypatch, "training.eagle", stand_in(seen))
    assert cli.main(["domains", "list"]) == 0
    assert seen == []


def test_help_names_every_group_and_loads_no_heavy_module() -> None:
    code = (
        "import sys; from tss_bench.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit as stop: assert stop.code == 0\n"
        "heavy = {'torch', 'transformers', 'numpy', 'lm_eval', 'datasets', 'scipy'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert all(group in done.stdout for group in GROUPS)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ([], "COMMAND"),
        (["bench"], "WHAT"),
        (["fly"], "invalid choice: 'fly'"),
        (["domains", "show"], "map"),
        (["domains", "list", "--frobnicate"], "domains list: error: unknown arguments: --frobn"),
        (["audit", "look", "--jsno"], "unknown arguments: --jsno; did you mean --json?"),
        (["audit", "look", "--jsno=1", "--x"], "--jsno=1 --x; did you mean --json?"),
        (["audit", "look", "--whatever"], "audit: error: unknown arguments: --whatever"),
    ],
)
def test_a_wrong_command_line_ends_with_two_and_names_what_is_wrong(
    capsys: pytest.CaptureFixture[str], words: list[str], named: str
) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main(words)
    assert stop.value.code == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("tss-bench")
    assert named in last


def test_a_map_that_is_not_there_is_one_line_and_exit_code_two(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main(["domains", "show", "published/vicuna-7b"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("tss-bench: error: ")
    assert "published/vicuna-7b" in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    "error",
    [
        ValueError("layer 99\n  does not exist"),
        FileNotFoundError(2, "No such file or directory", "map.json"),
        LookupError("no model of that name"),
        ImportError("No module named 'tss_bench.bench'"),
        type("WeightsUnavailable", (RuntimeError,), {"__module__": "tss_bench.weights.cache"})(
            "off"
        ),
    ],
)
def test_an_error_of_input_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception
) -> None:
    put_in_place(monkeypatch, "bench", _failing(error))
    assert cli.main(["bench", "engine"]) == 2
    text = capsys.readouterr().err
    own = type(error).__module__ == "tss_bench.weights.cache"
    hint = "" if own else " (--traceback shows where)"
    assert text == f"tss-bench: error: {' '.join(str(error).split())}{hint}\n"


@pytest.mark.parametrize(
    "words",
    [
        ["--traceback", "bench", "engine", "--tokens", "5"],
        ["bench", "engine", "--tokens", "5", "--traceback"],
    ],
)
def test_the_traceback_comes_before_the_line_where_it_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    failing = _failing(ValueError("shapes differ"))
    failing.add_arguments = lambda parser: parser.add_argument("--tokens", type=int)
    put_in_place(monkeypatch, "bench", failing)
    assert cli.main(words) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert any("raise error" in line for line in lines)
    assert lines[-1] == "tss-bench: error: shapes differ"


@pytest.mark.parametrize(
    "error", [KeyError("layers"), IndexError(3), TypeError("no"), RuntimeError()]
)
def test_a_bug_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    put_in_place(monkeypatch, "bench", _failing(error))
    with pytest.raises(type(error)):
        cli.main(["bench", "engine"])


def _failing(error: Exception) -> SimpleNamespace:
    def run(args: argparse.Namespace) -> None:
        raise error

    return SimpleNamespace(add_arguments=lambda parser: None, run_engine=run)


@pytest.fixture
def rows_of_qa_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """`resolve` gives two rows of the mini set for qa and refuses every other domain."""
    source = SimpleNamespace(kind="mini", path=Path("folder/qa.jsonl"), note="no network")

    def resolve(domain: str) -> tuple[list[str], SimpleNamespace]:
        if domain != "qa":
            raise ValueError(f"no rows of {domain}\nhere")
        return ["one", "two"], source

    monkeypatch.setattr("tss_bench.data_report.resolve", resolve)


@pytest.mark.usefixtures("rows_of_qa_only")
def test_data_show_has_a_line_for_each_domain(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["data", "show"]) == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert list(lines) == list(DOMAINS)
    assert lines["qa"].split() == ["qa", "mini", "2", "rows", "folder/qa.jsonl", "(no", "network)"]
    assert lines["rag"].split() == ["rag", "none", "no", "rows", "of", "rag", "here"]


@pytest.mark.usefixtures("rows_of_qa_only")
def test_data_show_of_one_domain_fails_where_it_has_no_rows(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main(["data", "show", "qa"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1
    assert cli.main(["data", "show", "rag"]) == 2
    error = capsys.readouterr().err
    assert error == "tss-bench: error: no rows of rag here (--traceback shows where)\n"


def test_domains_show_prints_a_published_map(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["domains", "show", "published/vicuna-7b-v1.3-eagle"]) == 0
    text = capsys.readouterr().out
    assert "lmsys/vicuna-7b-v1.3 (32 layers)" in text
    (line,) = [line for line in text.splitlines() if line.startswith("translation")]
    assert " ".join(line.split()) == "translation skip {3,25,30} 9.4% of the layers A 4.53, M 0.237"


def test_domains_list_names_the_published_maps(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["domains", "list"]) == 0
    names = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert {"published/vicuna-7b-v1.3-eagle", "published/llama-2-13b-chat-samd"} <= set(names)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "arguments", "told"),
    [
        ("tss_ar", "skip_layers=99", "skip layer 99 does not exist"),
        ("tss_ar", "skiplayers=[1]", "no argument 'skiplayers'"),
        ("tss_ar", "domain_map=torn.json", "torn.json"),
        ("tss_ar", "batch_size=2", "batch_size must be 1 or auto, got 2"),
        ("tss_fly", "", "tss_fly"),
    ],
)
def test_a_benchmark_refuses_bad_input_with_two_and_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    model: str,
    arguments: str,
    told: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TSS_BENCH_DATA", "mini")
    (tmp_path / "torn.json").write_text('{"schema": 1, "mo', encoding="utf-8")
    words = ["--tasks", "specbench_qa", "--model", model, "--model_args", arguments]
    assert cli.main(["bench", "domains", *words]) == 2
    error = capsys.readouterr().err
    assert "Traceback" not in error
    last = error.splitlines()[-1]
    assert last.startswith("tss-bench: error: ")
    assert told in last


def test_domains_show_json_is_a_map_to_start_from(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """As the README says: print a packaged map, change a domain, use the file."""
    name = "smollm2-135m-instruct-eagle"
    assert cli.main(["domains", "show", name, "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    content["domains"]["translation"] = {"skip": [3, 25]}
    path = tmp_path / "my-map.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    found = DomainMap.load(path)
    assert list(found.domains["translation"].skip) == [3, 25]
    assert found.model == DomainMap.load(name).model


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_has_gone_ends_the_command_quietly(unbuffered: str) -> None:
    """As in `tss-bench … | head`: at the first print, or when what was buffered is written."""
    reader, writer = os.pipe()
    os.close(reader)
    words = [sys.executable, "-m", "tss_bench", "domains", "list"]
    env = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    try:
        done = subprocess.run(
            words, cwd=ROOT, env=env, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60
        )
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (cli.CLOSED_PIPE_CODE, "")


def test_another_broken_pipe_is_no_quiet_end(monkeypatch: pytest.MonkeyPatch) -> None:
    put_in_place(monkeypatch, "bench", _failing(BrokenPipeError(32, "worker")))
    with pytest.raises(BrokenPipeError, match="worker"):
        cli.main(["bench", "engine"])
