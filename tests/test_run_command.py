"""`tss-bench run` on a tiny model: its files, resuming, failures, and what it refuses.

May import: pytest, lm_eval, torch, model_adapters, tss_bench and the standard library.
"""

from __future__ import annotations

import copy
import functools
import json
import logging
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from lm_eval.api import registry
from lm_eval.tasks import TaskManager

from model_adapters.adapters import ADAPTERS
from model_adapters.base import SpeculativeLM
from tests.model_adapters.conftest import TEMPLATE, save_model
from tss_bench import cli, harness, run_command, run_plan
from tss_bench.answer_records import digest
from tss_bench.domains import DomainConfig, DomainMap
from tss_bench.report.board import Board
from tss_bench.report.files import find
from tss_bench.report.spec_bench import compare, read_answers
from tss_bench.run_choices import routes, skip_sets
from tss_bench.run_divergences import _comparable, plain_adapters
from tss_bench.run_files import _unless_failed
from tss_bench.run_records import Record, RunError
from tss_bench.task_paths import task_directory
from tss_bench.types import GeneratedText, SkipSet

NATIVE, SPARSE = "native_token_recycling", "tss_token_recycling"
TRANSLATION, MT_BENCH, MMLU = "specbench_translation", "specbench_mt_bench", "tss_mmlu"
TIMED = ("tokens_per_second", "decode_tokens_per_second", "steps_per_second", "verify_ms")


@pytest.fixture(scope="module")
def patch() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patch:
        yield patch


@pytest.fixture(scope="module", autouse=True)
def quick(patch: pytest.MonkeyPatch) -> None:
    """The mini set, an index of our own tasks only, and no long look at the machine."""
    patch.setenv("TSS_BENCH_DATA", "mini")
    own = functools.partial(TaskManager, include_defaults=False)
    patch.setattr(harness, "TaskManager", own)
    patch.setattr("lm_eval.tasks.TaskManager", own)
    patch.setattr("torch.utils.collect_env.get_pretty_env_info", lambda: "a machine")


@pytest.fixture(scope="module")
def arguments(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Model arguments: a tiny model, two skipped layers, a small tree."""
    folder = tmp_path_factory.mktemp("run")
    tree = folder / "small.json"
    tree.write_text(json.dumps({"paths": [[0], [1], [0, 0], [0, 0, 0]]}), encoding="utf-8")
    model = save_model(folder / "tiny-chat", TEMPLATE)
    return f"pretrained={model},dtype=float32,device=cpu,skip_layers=1+2,tree={tree}"


Run = Callable[..., int]


@pytest.fixture(scope="module")
def run(arguments: str) -> Run:
    """`run(out, words, tasks=…, extra=…)` -> exit code of `tss-bench run` on the tiny model."""

    def start(
        out: Path, *words: str, tasks: str = TRANSLATION, limit: int = 2, extra: str = ""
    ) -> int:
        given = ("--model_args", arguments + extra, "--gen_kwargs", "max_gen_toks=6")
        place = ("--tasks", tasks, "--limit", str(limit), "--out", str(out))
        return cli.main(["run", "--model", SPARSE, *given, *place, *words])

    return start


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory, run: Run) -> Path:
    """The files of a run of three rows a task that nothing came between."""
    out = tmp_path_factory.mktemp("done")
    words = ("--format", "both")
    assert run(out, *words, tasks=f"{TRANSLATION},{MT_BENCH}", limit=3) == 0
    return out


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """(adapter, row) of every answer that is asked for, warm-ups included."""
    seen: list[tuple[str, str]] = []
    answer = SpeculativeLM.answer

    def watched(self: SpeculativeLM, job: Any) -> Any:
        seen.append((self.name, job.request.name))
        return answer(self, job)

    monkeypatch.setattr(SpeculativeLM, "answer", watched)
    return seen


def results(out: Path, adapter: str, repeat: int = 0) -> dict[str, Any]:
    paths = sorted((out / adapter).glob("results_*.json"))
    found: dict[str, Any] = json.loads(paths[repeat].read_text("utf-8"))
    return found


def samples(out: Path, adapter: str, task: str, repeat: int = 0) -> list[dict[str, Any]]:
    paths = sorted((out / adapter).glob(f"samples_{task}_*.jsonl"))
    return [json.loads(line) for line in paths[repeat].read_text("utf-8").splitlines()]


def untimed(line: dict[str, Any]) -> dict[str, Any]:
    """A sample without what a clock gave."""
    own = {name: value for name, value in line.items() if name not in (*TIMED, "tss")}
    tss = {name: value for name, value in line["tss"].items() if name != "first_token_s"}
    stats = [
        {name: value for name, value in turn.items() if not name.endswith("_s")}
        for turn in tss.get("stats", ())
    ]
    return {**own, "tss": {**tss, "stats": stats}}


def break_off(monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    """The process is killed when `after` answers, warm-ups included, have been given."""
    answer = SpeculativeLM.answer
    left = iter(range(after))

    def mortal(self: SpeculativeLM, job: Any) -> Any:
        if next(left, None) is None:
            raise KeyboardInterrupt
        return answer(self, job)

    monkeypatch.setattr(SpeculativeLM, "answer", mortal)


def test_native_is_added_and_both_have_their_files(done: Path) -> None:
    for name, other, skip in ((NATIVE, SPARSE, []), (SPARSE, NATIVE, [1, 2])):
        record = results(done, name)["tss_bench"]
        assert record["adapter"] == name
        assert (record["native"], record["drafter"]) == (NATIVE, "token_recycling")
        assert (record["model"], record["num_layers"]) == ("tiny-chat", 4)
        assert (record["scope"], record["protocol"], record["split"]) == (
            "verify",
            "strict",
            "test",
        )
        assert [record["skip_sets"][task]["skip"] for task in (TRANSLATION, MT_BENCH)] == [skip] * 2
        assert record["skip_sets"][TRANSLATION]["domain"] == "translation"
        assert record["data"][TRANSLATION]["kind"] == "mini"
        assert record["interleaved_with"] == [other]
        assert (record["repeat"], record["repeats"], record["processes"]) == (0, 1, 1)
        assert (record["failed"], record["no_docs"]) == (0, False)
        assert record["peak_memory_bytes"] > 10_000_000
        assert {"commit", "machine", "versions"} <= set(record)
    assert "skip_layers" in results(done, SPARSE)["tss_bench"]["model_args"]
    assert "skip_layers" not in results(done, NATIVE)["tss_bench"]["model_args"]


def test_a_sample_has_the_answer_of_every_turn(done: Path) -> None:
    for line in samples(done, SPARSE, MT_BENCH):
        tss = line["tss"]
        assert tss["row"] == line["doc"]["id"]
        assert tss["content_hash"] == line["doc"]["content_hash"]
        assert len(tss["turns"]) == len(tss["ids"]) == len(tss["stats"]) == 2
        assert [turn["new_tokens"] for turn in tss["stats"]] == [len(ids) for ids in tss["ids"]]
        assert tss["first_token_s"] == [turn["prefill_s"] for turn in tss["stats"]]
        assert tss["turns"][-1] == line["resps"][0][0]
        assert tss["config"]["skip"] == [1, 2]
        assert (tss["failed"], tss["repeat"]) == (None, 0)
    translated = samples(done, NATIVE, TRANSLATION)
    assert [line["tss"]["references"] for line in translated] == [
        line["doc"]["references"] for line in translated
    ]


def test_the_files_are_those_of_lm_eval(
    done: Path, arguments: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same evaluation through lm-eval's own command line."""
    from lm_eval.__main__ import cli_evaluate

    monkeypatch.setattr(registry, "get_model", ADAPTERS.__getitem__)
    words = f"--model {SPARSE} --model_args {arguments} --tasks {TRANSLATION},{MT_BENCH} --limit 3"
    place = f"--output_path {tmp_path} --log_samples --include_path {task_directory()}"
    command = f"lm_eval run {words} --gen_kwargs max_gen_toks=6 {place}"
    monkeypatch.setattr(sys, "argv", command.split())
    # It sets up logging for a process of its own; what it changes is put back.
    logger = logging.getLogger("lm_eval")
    for name in ("propagate", "handlers", "level"):
        monkeypatch.setattr(logger, name, copy.copy(getattr(logger, name)))
    monkeypatch.setattr("lm_eval.utils._LOGGING_CONFIGURED", False)
    cli_evaluate()
    (folder,) = tmp_path.iterdir()
    theirs, ours = results(tmp_path, folder.name), results(done, SPARSE)
    assert set(ours) - set(theirs) == {"tss_bench"}
    assert set(theirs) <= set(ours)
    assert set(ours["config"]) == set(theirs["config"])
    same = ("n-samples", "n-shot", "versions", "higher_is_better", "group_subtasks", "task_hashes",
            "model_source", "model_name", "model_name_sanitized", "git_hash", "lm_eval_version",
            "tokenizer_eos_token", "eot_token_id", "max_length", "chat_template")  # fmt: skip
    assert {key: ours[key] for key in same} == {key: theirs[key] for key in same}
    own = ("model", "model_args", "model_dtype", "tss_bench", "batch_size", "limit", "random_seed")
    assert {key: ours["config"][key] for key in own} == {key: theirs["config"][key] for key in own}
    for task in (TRANSLATION, MT_BENCH):
        first, second = (dict(each["results"][task]) for each in (ours, theirs))
        assert first.keys() == second.keys()
        for timed in TIMED:
            assert first.pop(f"{timed},none") > 0 < second.pop(f"{timed},none")
        assert first == second
        lines = samples(done, SPARSE, task), samples(tmp_path, folder.name, task)
        for line, other in zip(*lines, strict=True):
            del line["tss"]
            assert line.keys() == other.keys()
            assert {k: line[k] for k in line if k not in TIMED} == {
                k: other[k] for k in other if k not in TIMED
            }


def test_spec_bench_files_can_be_compared(done: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [next((done / name).glob("spec_bench_*.jsonl")) for name in (SPARSE, NATIVE)]
    sparse, native = map(read_answers, paths)
    lines = [*samples(done, SPARSE, TRANSLATION), *samples(done, SPARSE, MT_BENCH)]
    for answer, line in zip(sparse, lines, strict=True):
        (choice,) = answer.choices
        assert str(answer.question_id) == line["doc"]["id"]
        assert list(choice.turns) == line["tss"]["turns"]
        assert list(choice.wall_time) == [turn["wall_s"] for turn in line["tss"]["stats"]]
        lengths = [n for turn in line["tss"]["stats"] for n in turn["accept_lengths"]]
        assert list(choice.accept_lengths) == lengths
    # The mini set's file says which of the eight categories a row is of.
    categories = {answer.category for answer in sparse}
    assert "translation" in categories
    assert "mt_bench" not in categories
    assert [row["category"] for row in compare(sparse, native)] == [
        "mt_bench",
        "translation",
        "overall",
    ]
    assert cli.main(["spec-bench", "compare", *map(str, paths)]) == 0
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    pair = results(done, SPARSE), results(done, NATIVE)
    speeds = [each["results"][TRANSLATION]["tokens_per_second,none"] for each in pair]
    assert last["results"][1]["pooled_speedup"] == pytest.approx(speeds[0] / speeds[1])


def test_the_order_changes_from_request_to_request(
    run: Run, tmp_path: Path, asked: list[tuple[str, str]], capsys: pytest.CaptureFixture[str]
) -> None:
    """And from repeat to repeat; each repeat has files of its own."""
    assert run(tmp_path, "--repeats", "2") == 0
    assert "8 answers (2 requests, 2 adapters, 2 repeats), none failed" in capsys.readouterr().out
    names = {NATIVE: "n", SPARSE: "t"}
    order = "".join(names[name] for name, _ in asked)
    # Each repeat: one answer of each as a warm-up, then two rounds.
    assert order == "ntnttn" + "nttnnt"
    rows = [row for _, row in asked]
    assert rows[:4] == [rows[0]] * 4
    for repeat in (0, 1):
        found = results(tmp_path, SPARSE, repeat)
        assert (found["tss_bench"]["repeat"], found["tss_bench"]["repeats"]) == (repeat, 2)
        lines = samples(tmp_path, SPARSE, TRANSLATION, repeat)
        assert [line["tss"]["repeat"] for line in lines] == [repeat] * 2
        times = [turn["wall_s"] for line in lines for turn in line["tss"]["stats"]]
        pair = [line["tokens_per_second"][1] for line in lines]
        assert pair == pytest.approx(times)
    first, second = (samples(tmp_path, SPARSE, TRANSLATION, repeat) for repeat in (0, 1))
    assert [line["tss"]["ids"] for line in first] == [line["tss"]["ids"] for line in second]
    assert first[0]["tss"]["stats"] != second[0]["tss"]["stats"]


def test_a_killed_run_goes_on_and_ends_in_the_same_files(
    run: Run,
    done: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    asked: list[tuple[str, str]],
) -> None:
    both = f"{TRANSLATION},{MT_BENCH}"
    with monkeypatch.context() as patch:
        # Two warm-ups, the first round, and half of the second.
        break_off(patch, after=5)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path, tasks=both, limit=3)
    assert not list(tmp_path.glob("*/results_*"))
    before = list(asked)
    asked.clear()
    assert run(tmp_path, "--format", "both", tasks=both, limit=3) == 0
    again = Counter(asked)
    first = [line["doc"]["id"] for line in samples(tmp_path, SPARSE, TRANSLATION)]
    assert before[2:4] == [(NATIVE, first[0]), (SPARSE, first[0])]
    assert (NATIVE, first[0]) not in again
    # The half round is done again whole, by both in this process, behind its warm-up.
    assert again[NATIVE, first[1]] == again[SPARSE, first[1]] == 2
    assert again[NATIVE, first[2]] == again[SPARSE, first[2]] == 1
    for name in (NATIVE, SPARSE):
        for task in (TRANSLATION, MT_BENCH):
            lines = samples(tmp_path, name, task), samples(done, name, task)
            assert [untimed(line) for line in lines[0]] == [untimed(line) for line in lines[1]]
        assert results(tmp_path, name)["tss_bench"]["processes"] == 2
        overflow = [
            results(out, name)["config"]["tss_bench"]["overflow"] for out in (tmp_path, done)
        ]
        assert overflow[0] == overflow[1]
        assert overflow[0]["turns"] == 3 + 2 * 3


def test_a_run_that_is_complete_answers_nothing_and_writes_the_same_bytes(
    run: Run, done: Path, asked: list[tuple[str, str]]
) -> None:
    before = {path: path.read_bytes() for path in done.rglob("*") if path.is_file()}
    assert run(done, "--format", "both", tasks=f"{TRANSLATION},{MT_BENCH}", limit=3) == 0
    assert asked == []
    assert {path: path.read_bytes() for path in done.rglob("*") if path.is_file()} == before


def test_a_drafter_that_remembers_answers_a_broken_task_from_its_start(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: list[tuple[str, str]]
) -> None:
    with monkeypatch.context() as patch:
        break_off(patch, after=5)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path, extra=",state=run")
    asked.clear()
    assert run(tmp_path, extra=",state=run") == 0
    rows = [line["doc"]["id"] for line in samples(tmp_path, SPARSE, TRANSLATION)]
    assert [row for name, row in asked if name == SPARSE] == [rows[0], *rows]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"extra": ",protocol=paper"}, f"adapters.{SPARSE}.protocol: there strict, here paper"),
        ({"tasks": f"{TRANSLATION},{MMLU}"}, "tasks: there"),
        ({"words": ("--split", "calibration")}, "split: there test, here calibration"),
        ({"words": ("--alone",)}, f"adapters.{NATIVE}"),
        ({"commit": "other"}, r"commit: there [0-9a-f]{40}\S*, here other"),
    ],
)
def test_a_run_with_other_settings_is_refused_before_it_loads(
    run: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    change: dict[str, Any],
    named: str,
) -> None:
    monkeypatch.setattr(run_command, "load_adapters", _interrupt)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path)
    if "commit" in change:
        monkeypatch.setattr(run_plan, "source_state", lambda: change["commit"])
    words = change.get("words", ())
    given = {name: value for name, value in change.items() if name in ("extra", "tasks")}
    assert run(tmp_path, *words, **given) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert f"{tmp_path} holds a run with other settings (" in error
    assert re.search(named, error)
    assert "give another --out" in error


def test_a_failed_request_is_a_failed_row_and_is_asked_again(
    run: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    asked: list[tuple[str, str]],
) -> None:
    answer = SpeculativeLM.answer
    (task,) = harness.open_tasks([TRANSLATION], {"split": "test"}).requests(2)
    rows = [request.doc["id"] for request in task.requests]

    def fail_second(self: SpeculativeLM, job: Any) -> Any:
        if self.name == SPARSE and job.request.name == rows[1]:
            raise RuntimeError("no more\nmemory")
        return answer(self, job)

    with monkeypatch.context() as patch:
        patch.setattr(SpeculativeLM, "answer", fail_second)
        assert run(tmp_path, "--format", "both") == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("tss-bench: error: 1 of 4 answers failed")
    assert f"{SPARSE}: {TRANSLATION} row {rows[1]}, RuntimeError: no more memory" in last
    good, failed = samples(tmp_path, SPARSE, TRANSLATION)
    assert failed["tss"]["failed"] == "RuntimeError: no more memory"
    assert failed["metrics"] == []
    assert failed["resps"] == [[""]]
    assert not {"stats", "ids", "turns", "first_token_s"} & set(failed["tss"])
    assert not {"sentence_bleu", "accept_len", "tokens_per_second"} & set(failed)
    assert results(tmp_path, SPARSE)["tss_bench"]["failed"] == 1
    assert results(tmp_path, NATIVE)["tss_bench"]["failed"] == 0
    figures = results(tmp_path, SPARSE)["results"][TRANSLATION]
    assert figures["tokens_per_second,none"] == pytest.approx(
        good["tokens_per_second"][0] / good["tokens_per_second"][1]
    )
    assert figures["scored,none"] == 1
    assert samples(tmp_path, NATIVE, TRANSLATION)[1]["tss"]["failed"] is None
    (path,) = (tmp_path / SPARSE).glob("spec_bench_*")
    assert [str(answer.question_id) for answer in read_answers(path)] == [rows[0]]

    asked.clear()
    assert run(tmp_path) == 0
    assert {row for _, row in asked} == {rows[1]}
    assert [line["tss"]["failed"] for line in samples(tmp_path, SPARSE, TRANSLATION)] == [None] * 2


def _interrupt(*args: Any, **kwargs: Any) -> None:
    raise KeyboardInterrupt


def test_without_docs_no_text_of_a_row_is_in_any_file(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = SpeculativeLM.answer

    def quote(self: SpeculativeLM, job: Any) -> Any:
        if self.name == NATIVE and job.request.task == MMLU:
            raise ValueError(f"cannot answer {job.request.turns[0]!r:.60}")
        return answer(self, job)

    monkeypatch.setattr(SpeculativeLM, "answer", quote)
    tasks = f"{TRANSLATION},{MMLU}"
    assert run(tmp_path, "--no-docs", "--format", "both", tasks=tasks) == 2
    files = {path: path.read_text("utf-8") for path in tmp_path.rglob("*") if path.is_file()}
    assert len(files) == 2 + 2 * 4
    searched = 0
    for task in harness.open_tasks(tasks.split(",")).requests(2):
        for request in task.requests:
            doc = request.doc
            for text in (*doc["turns"], *doc["references"], *doc["choices"], request.args[0]):
                # An answer is one letter, an option a number or a word that stands elsewhere too.
                for part in (text, text[:30]) if len(text) > 12 else ():
                    searched += 1
                    forms = part, json.dumps(part)[1:-1], json.dumps(part, ensure_ascii=False)[1:-1]
                    assert not [path for path in files if any(f in files[path] for f in forms)]
    assert searched > 8
    for line in samples(tmp_path, SPARSE, TRANSLATION):
        assert set(line["doc"]) == {"id", "content_hash", "data_source"}
        assert line["doc"]["data_source"] == "mini"
        assert not {"arguments", "target", "bleu", "chrf"} & set(line)
        assert {"doc_hash", "prompt_hash", "target_hash"} <= set(line)
        assert "sentence_bleu" in line["metrics"]
        assert "bleu" not in line["metrics"]
        assert "references" not in line["tss"]
        assert line["tss"]["turns"]
    failed = samples(tmp_path, NATIVE, MMLU)[0]["tss"]["failed"]
    assert failed == "ValueError: (its message quotes the row)"
    record = results(tmp_path, SPARSE)
    assert record["tss_bench"]["no_docs"] is True
    assert "bleu,none" in record["results"][TRANSLATION]


def test_without_docs_no_format_keeps_what_an_answer_quotes_of_its_prompt(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the examples in a few-shot prompt, too, which are in no field of the row."""
    answer = SpeculativeLM.answer

    def quote(self: SpeculativeLM, job: Any) -> GeneratedText:
        given = answer(self, job)
        text = f"So: {job.request.turns[0]}"
        return GeneratedText(text, given.stats, (text,), given.config, given.ids)

    monkeypatch.setattr(SpeculativeLM, "answer", quote)
    assert run(tmp_path, "--no-docs", "--format", "both", tasks="specbench_qa_fewshot") == 0
    (path,) = (tmp_path / SPARSE).glob("spec_bench_*")
    told = [answer.choices[0].turns for answer in read_answers(path)]
    told += [line["tss"]["turns"] for line in samples(tmp_path, SPARSE, "specbench_qa_fewshot")]
    assert len(told) == 4
    for (text,) in told:
        assert text.startswith("So: […]")
        assert len(text) < 24


def test_without_docs_names_the_files_that_an_earlier_call_left(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, "--format", "both", "--repeats", "2", limit=1) == 0
    assert "may hold texts" not in capsys.readouterr().out
    assert run(tmp_path, "--no-docs", limit=1) == 0
    told = capsys.readouterr().out
    named = re.findall(r"[^ ,;]+\.jsonl", told[told.index("may hold texts") :])
    assert f"{len(named)} files from other calls" in told
    holds = [path for path in tmp_path.glob("*/*.jsonl") if "references" in path.read_text("utf-8")]
    assert {str(path) for path in holds} < set(named)
    assert {Path(name).name.partition("_2")[0] for name in named} == {
        "samples_specbench_translation",
        "spec_bench",
    }
    assert len(named) == 2 * (1 + 2)
    assert run(tmp_path, "--no-docs", "--format", "both", "--repeats", "2", limit=1) == 0
    assert "may hold texts" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--limit", "0"), "--limit must be at least 1, got 0"),
        (("--repeats", "0"), "--repeats must be at least 1, got 0"),
        (("--threads", "0"), "--threads must be at least 1, got 0"),
        (("--model", "hf"), "no adapter 'hf'"),
        (("--split", "train"), "train"),
        (("--tasks", "specbench_nothing"), "no task specbench_nothing"),
        (("--tasks", "tss_mmlu_ll"), "tss_mmlu_ll asks for no generated answer"),
        (("--gen_kwargs", "num_beams=4"), "num_beams"),
        (("--model_args", "protocol=loose"), "protocol must be one of strict, paper"),
        (
            ("--tasks", "specbench_qa,specbench_qa_fewshot", "--format", "both"),
            "is in specbench_qa and specbench_qa_fewshot, but a Spec-Bench file has one answer",
        ),
    ],
)
def test_bad_input_is_refused_before_anything_is_loaded_or_written(
    run: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    named: str,
) -> None:
    monkeypatch.setattr(run_command, "load_adapters", _interrupt)
    assert run(tmp_path / "out", *words) == 2
    assert named in capsys.readouterr().err.splitlines()[-1]
    assert not (tmp_path / "out").exists()


def test_native_stands_before_its_sparse_adapter_once() -> None:
    names = run_plan.adapter_names
    assert names(["tss_eagle"], alone=False) == ["native_eagle", "tss_eagle"]
    assert names(["tss_eagle", "native_eagle"], alone=False) == ["native_eagle", "tss_eagle"]
    assert names(["tss_eagle"], alone=True) == ["tss_eagle"]
    assert names(["native_ar", "tss_ar", "tss_eagle"], alone=False) == [
        "native_ar",
        "tss_ar",
        "native_eagle",
        "tss_eagle",
    ]


@pytest.fixture(scope="module")
def routed(arguments: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Model arguments that route what the map does not know."""
    path = tmp_path_factory.mktemp("maps") / "map.json"
    domains = {"qa": DomainConfig(SkipSet.of([2], 4)), "rag": DomainConfig(SkipSet.of([1], 4))}
    DomainMap("tiny-chat", "token_recycling", 4, domains=domains).save(path)
    shared = arguments.replace("skip_layers=1+2", f"domain_map={path}")
    return f"{shared},router=knn,router_k=1,router_threshold=2"


def test_a_routed_run_is_written_from_its_answers(
    routed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sets and counts are those of all answers, those of a killed process, too."""
    monkeypatch.setenv("TSS_BENCH_CACHE", str(tmp_path / "cache"))
    given = ("--model_args", routed, "--gen_kwargs", "max_gen_toks=6", "--limit", "4")
    place = ("--tasks", f"{MT_BENCH},specbench_qa", "--out", str(tmp_path / "out"))
    command = ["run", "--model", SPARSE, *given, *place]
    with monkeypatch.context() as patch:
        break_off(patch, after=2 + 4)
        with pytest.raises(KeyboardInterrupt):
            cli.main(command)
    assert cli.main(command) == 0
    found, lines = results(tmp_path / "out", SPARSE), samples(tmp_path / "out", SPARSE, MT_BENCH)
    counts = Counter(line["tss"]["config"]["domain"] for line in lines)
    assert set(counts) <= {"qa", "rag"}
    sets = found["tss_bench"]["skip_sets"]
    used = sets[MT_BENCH] if isinstance(sets[MT_BENCH], list) else [sets[MT_BENCH]]
    assert {each["domain"]: each["requests"] for each in used} == counts
    assert all(each["skip"] == {"qa": [2], "rag": [1]}[each["domain"]] for each in used)
    assert (sets["specbench_qa"]["skip"], sets["specbench_qa"]["requests"]) == ([2], 4)
    assert "domain qa in map" in sets["specbench_qa"]["why"]
    assert found["tss_bench"]["router"]["k"] == 1
    summary = found["config"]["tss_bench"]["routed"]
    assert {name: each["requests"] for name, each in summary[MT_BENCH].items()} == counts
    assert list(summary) == [MT_BENCH]
    assert "router" not in results(tmp_path / "out", NATIVE)["tss_bench"]


def test_the_sets_of_a_routed_task_are_listed_with_their_requests() -> None:
    def record(skip: list[int], domain: str | None, why: str) -> Record:
        config = {"skip": skip, "domain": domain, "why": f"router: {why}"}
        return Record(GeneratedText("", (), ("",), config, ((),)), None, 0)

    near, far = record([2], "qa", "nearest qa, 0"), record([2], "qa", "nearest qa, 1")
    dense, failed = record([], None, "dense"), Record(None, "ValueError: no", 0)
    assert skip_sets([near, dense, far, failed], None) == [
        {"skip": [2], "domain": "qa", "why": None, "requests": 2},
        {"skip": [], "domain": None, "why": "router: dense", "requests": 1},
    ]
    assert skip_sets([failed], None) == []
    assert routes({"x": [near, dense, far, failed], "y": [failed]}) == {
        "x": {"qa": {"skip": [2], "requests": 2}, "dense": {"skip": [], "requests": 1}}
    }


def test_other_data_of_the_router_are_other_settings(
    routed: str,
) -> None:
    adapter = harness.prepare_adapters([SPARSE], routed)[SPARSE]
    assert set(run_plan._settings(adapter)["router_data"]) == {"qa", "rag"}
    assert "router_data" not in run_plan._settings(harness.prepare_adapters([NATIVE], "")[NATIVE])


@pytest.mark.parametrize(
    ("plain", "name", "skip"),
    [
        ("tss_ar", SPARSE, "1"),
        # Other labels of the same target; a sparse adapter that skips nothing is the dense one.
        ("tss_ar@a", f"{SPARSE}@b", "1"),
        ("native_ar", SPARSE, "dense"),
    ],
)
def test_what_leaves_plain_decoding_is_told_with_its_logit_gap(
    arguments: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    plain: str,
    name: str,
    skip: str,
) -> None:
    answer = SpeculativeLM.answer

    def wrong_third_id(self: SpeculativeLM, job: Any) -> Any:
        given = answer(self, job)
        if self.name != name:
            return given
        (first,) = given.ids
        ids = ((*first[:2], (first[2] + 1) % 200, *first[3:]),)
        # Without a text, which is no reason to leave it out.
        return GeneratedText("", given.stats, ("",), given.config, ids)

    monkeypatch.setattr(SpeculativeLM, "answer", wrong_third_id)
    words = ("--model", f"{plain},{name}", "--tasks", TRANSLATION, "--limit", "2", "--alone")
    model = arguments.partition(",skip_layers=")[0] + f",skip_layers={skip}"
    given = ("--model_args", model, "--gen_kwargs", "max_gen_toks=6")
    assert cli.main(["run", *words, *given, "--out", str(tmp_path)]) == 0
    first, second = (line["tss"]["divergence"] for line in samples(tmp_path, name, TRANSLATION))
    for told in (first, second):
        assert (told["against"], told["turn"], told["position"]) == (plain, 0, 2)
        # The likeliest id against another one, in float32.
        assert told["gap"] > 0
        assert told["rounding"] == 0.0
    kept = samples(tmp_path, plain, TRANSLATION)
    assert not any("divergence" in line["tss"] for line in kept)


def test_only_greedy_strict_answers_of_one_target_have_to_be_equal(
    arguments: str,
) -> None:
    def plain(names: list[str], more: str = "") -> list[str]:
        given = arguments.partition(",skip_layers=")[0]
        return plain_adapters(harness.prepare_adapters(names, given + more), names[-1])

    assert plain(["native_ar", NATIVE]) == ["native_ar"]
    assert plain(["native_ar", "tss_ar@a", "tss_ar", f"{SPARSE}@a"]) == [
        *("native_ar", "tss_ar@a", "tss_ar"),
    ]
    assert plain(["native_ar", NATIVE], ",native_ar.dtype=bfloat16") == []
    assert plain(["native_ar"]) == plain([NATIVE, SPARSE]) == plain(["native_ar", "tss_ar@a"]) == []
    config = {"skip": [1], "scope": "verify", "protocol": "strict"}
    dense = {**config, "skip": []}
    assert _comparable(config, config)
    assert _comparable(dense, {**dense, "scope": "all"})
    for other in ({"skip": [2]}, {"scope": "all"}, {"protocol": "paper"}):
        assert not _comparable(config, {**config, **other})


def test_a_failed_row_takes_no_metrics_from_an_equal_one() -> None:
    row = {"text": "the same"}
    score = _unless_failed(lambda doc, results: {"f1": results}, {digest(row): [True, False]})
    assert [score(row, each) for each in (1, 2, 3, 4)] == [{}, {"f1": 2}, {}, {"f1": 4}]


def test_arguments_of_a_sparse_adapter_are_for_the_native_one_added_for_it(arguments: str) -> None:
    model = ",".join(part for part in arguments.split(",") if "skip_layers" not in part)
    own = f"{model},{SPARSE}.state=run,{SPARSE}.skip_layers=1,{SPARSE}.seed=5,{NATIVE}.seed=6"
    adapters, given, _ = run_plan.prepare_run([SPARSE], own, alone=False)
    told = {name: adapters[name].arguments for name in (NATIVE, SPARSE)}
    assert {name: each.state for name, each in told.items()} == {NATIVE: "run", SPARSE: "run"}
    assert {name: each.seed for name, each in told.items()} == {NATIVE: 6, SPARSE: 5}
    assert "skip_layers" not in given[NATIVE]
    adapters, _, _ = run_plan.prepare_run([NATIVE, SPARSE], own, alone=False)
    assert adapters[NATIVE].arguments.state == "request"


def test_labels_let_several_skip_sets_run_beside_one_native(
    arguments: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, two = f"{SPARSE}@one", f"{SPARSE}@two"
    model = ",".join(part for part in arguments.split(",") if "skip_layers" not in part)
    given = f"{model},{one}.skip_layers=1,{two}.skip_layers=1+2"
    place = ("--tasks", TRANSLATION, "--limit", "2", "--out", str(tmp_path / "out"))
    limit = ("--gen_kwargs", "max_gen_toks=6")
    words = ("run", "--model", f"{one},{two}", "--model_args", given, *limit, *place)
    assert cli.main([*words]) == 0
    assert {path.name for path in (tmp_path / "out").iterdir() if path.is_dir()} == {
        *(NATIVE, one, two)
    }
    for name, skip in ((NATIVE, []), (one, [1]), (two, [1, 2])):
        told = results(tmp_path / "out", name)["tss_bench"]
        assert (told["adapter"], told["native"]) == (name, NATIVE)
        assert told["skip_sets"][TRANSLATION]["skip"] == skip
        assert set(told["interleaved_with"]) == {NATIVE, one, two} - {name}
    assert f"{two}: tiny-chat" in capsys.readouterr().out
    board = Board(find([tmp_path / "out"]), resamples=99)
    sparse = [entry for entry in board.entries if entry.skip]
    assert [board.native_of(entry).run.adapter for entry in sparse] == [NATIVE] * 2
    assert [board.speed_up(entry) is None for entry in sparse] == [False] * 2


def test_sparse_adapters_that_need_different_natives_are_refused(arguments: str) -> None:
    one, two = f"{SPARSE}@one", f"{SPARSE}@two"
    for given in (f"{one}.state=run,{two}.state=request", f"{two}.state=run"):
        with pytest.raises(RunError, match=f"{one} and {two} differ in state.*{NATIVE}.state="):
            run_plan.prepare_run([one, two], f"{arguments},{given}", alone=False)
        own = f"{arguments},{given},{NATIVE}.state=run"
        adapters, _, _ = run_plan.prepare_run([one, two], own, alone=False)
        assert adapters[NATIVE].arguments.state == "run"
    dense = ",".join(part for part in arguments.split(",") if "skip_layers" not in part)
    adapters, _, _ = run_plan.prepare_run([f"{NATIVE}@a"], dense, alone=False)
    assert [*adapters] == [f"{NATIVE}@a"]
    for bad in ("tss_ar@", "tss_ar@a/b", "tss_ar@a.b"):
        with pytest.raises(ValueError, match=r"tss_ar@.*a label is letters.*such as tss_ar@a"):
            run_plan.prepare_run([bad], arguments, alone=False)


def test_a_group_is_the_adapters_that_can_run_with_their_natives(
    arguments: str, capsys: pytest.CaptureFixture[str]
) -> None:
    adapters, given, left_out = run_plan.prepare_run(["tss"], arguments, alone=False)
    assert list(adapters)[:2] == ["native_ar", "tss_ar"]
    assert list(given) == list(adapters)
    assert {NATIVE, SPARSE} <= set(adapters)
    # The tiny model has no EAGLE head.
    assert {"native_eagle", "tss_eagle"} <= set(left_out)
    assert "early_exit" not in adapters
    alone, _, _ = run_plan.prepare_run(["tss"], arguments, alone=True)
    assert set(alone) == {name for name in adapters if name.startswith("tss_")}
    with pytest.raises(ValueError, match="skip layer 9"):
        run_plan.prepare_run(["tss"], arguments.replace("1+2", "9"), alone=False)
    with pytest.raises(SystemExit):
        cli.main(["run", "--help"])
    told = " ".join(capsys.readouterr().out.split())
    for part in ("native, tss and all", "ADAPTER.name=value", "all adapters of the run loaded"):
        assert part in told


def test_early_exit_is_shown_as_lossy(
    arguments: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (
        "--model",
        "early_exit",
        "--tasks",
        TRANSLATION,
        "--limit",
        "1",
        "--out",
        str(tmp_path),
    )
    model = arguments.replace("skip_layers=1+2,", "").partition(",tree=")[0]
    given = ("--model_args", model, "--gen_kwargs", "max_gen_toks=6")
    assert cli.main(["run", *words, *given]) == 0
    printed = capsys.readouterr().out
    assert "early_exit (lossy): tiny-chat in float32" in printed
    assert "early_exit (lossy) ({" in printed


def test_peak_memory_on_a_gpu_is_what_the_device_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 77)
    assert run_command.peak_memory(torch.device("cuda")) == 77
    assert run_command.peak_memory(torch.device("cpu")) > 10_000_000
