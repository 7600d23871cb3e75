"""What is read of result files: ours, a stranger's, damaged ones.

May import: pytest, tss_bench, tests.report.helpers and the standard library.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.report.helpers import DATE, TASK, line, stats, write_run
from tss_bench.report.board import Board
from tss_bench.report.entries import Entry
from tss_bench.report.files import find
from tss_bench.report.main_table import identity


def board(*paths: Path) -> Board:
    return Board(find(paths), resamples=99)


def only(found: Board) -> Entry:
    (entry,) = found.entries
    return entry


def two(f1: Sequence[float] = (0.25, 0.75), **given: object) -> list[dict[str, object]]:
    return [line(number, {"f1": value}, **given) for number, value in enumerate(f1)]  # type: ignore[arg-type]


@pytest.mark.parametrize("ours", [True, False])
def test_our_files_and_those_of_plain_lm_eval_give_the_same_figures(
    tmp_path: Path, ours: bool
) -> None:
    config = {"skip": [1, 2], "scope": "all", "protocol": "strict", "domain": "qa"}
    lines = two(ours=ours, config=config)
    write_run(tmp_path, "tss_eagle", lines, skip=[1, 2], ours=ours, scope="all")
    found = board(tmp_path)
    entry = only(found)
    run = entry.run
    assert (run.adapter, run.native, run.drafter) == ("tss_eagle", "native_eagle", "eagle")
    assert (run.model, run.domain, entry.skip, entry.sparsity) == ("four-layers", "qa", (1, 2), 0.5)
    assert entry.section == ("mini", "test", "strict", "")
    assert (run.scope, run.metric) == ("all", "f1")
    # 2 requests of 2 steps that emit 2 ids each, and 1 id at prefill; 1 s each.
    values = {
        name: found.figure(entry, name).value  # type: ignore[union-attr]
        for name in ("accept_len", "tokens_per_second", "metric")
    }
    assert values == {"accept_len": 2.0, "tokens_per_second": 5.0, "metric": 0.5}


def test_a_task_of_anyone_with_two_filters_is_read(tmp_path: Path) -> None:
    place = tmp_path / "some__model"
    place.mkdir()
    results = {
        "results": {},
        "configs": {"gsm8k": {"dataset_path": "openai/gsm8k", "test_split": "test"}},
        "config": {
            "model": "hf",
            "model_args": "pretrained=some/model,dtype=float32,max_gen_toks=9",
            "gen_kwargs": {"max_gen_toks": 32},
        },
        "model_name": "some/model",
    }
    (place / f"results_{DATE}.json").write_text(json.dumps(results), encoding="utf-8")
    samples = [
        {
            "doc_id": 0,
            "doc": {"question": "1 + 1?"},
            "target": "2",
            "resps": [["It is 2"]],
            "filter": name,
            "exact_match": value,
            "doc_hash": "d0",
        }
        for name, value in (("strict-match", 0.0), ("flexible-extract", 1.0))
    ]
    text = "".join(json.dumps(one) + "\n" for one in samples)
    (place / f"samples_gsm8k_{DATE}.jsonl").write_text(text, encoding="utf-8")
    entry = only(board(tmp_path))
    (sample,) = entry.run.samples
    assert sample.metrics == {"exact_match": 0.0, "exact_match,flexible-extract": 1.0}
    assert (sample.texts, sample.references) == (("It is 2",), ("2",))
    assert entry.section == ("openai/gsm8k", "test", "not stated", "")
    assert (entry.run.adapter, entry.run.model) == ("hf", "some/model")
    assert entry.run.arguments == (("dtype", "float32"), ("max_gen_toks", "32"))
    assert (entry.run.metric, entry.skip) == ("exact_match", None)


def test_a_loglikelihood_has_no_answer_and_always_scope_all(tmp_path: Path) -> None:
    one = line(0, {"acc": 1.0}, turns=[], ours=False)
    one |= {"resps": [[["-1.5", "False"]], [["-2.5", "True"]]]}
    write_run(tmp_path, "tss_eagle", [one], skip=[1], ours=False, task="tss_mmlu_ll")
    entry = only(board(tmp_path))
    assert entry.run.samples[0].turns == ()
    assert (entry.run.scope, entry.run.metric) == ("all", "acc")


def test_a_failed_request_has_no_figures(tmp_path: Path) -> None:
    write_run(tmp_path, "native_eagle", [*two(), line(2, {}, failed="out of memory")])
    entry = only(board(tmp_path))
    assert (len(entry.rows), entry.failed) == (2, 1)
    assert entry.run.samples[2].pairs == {}
    assert sum(below for _, below in entry.pairs("metric")) == 2


def test_values_that_are_no_numbers_are_left_out_and_named(tmp_path: Path) -> None:
    lines = two([float("nan"), 0.5])
    lines[1]["accept_len"] = [float("inf"), 2]
    lines[1]["tss"]["stats"] = []  # type: ignore[index]
    write_run(tmp_path, "native_eagle", lines)
    found = board(tmp_path)
    entry = only(found)
    assert entry.pairs("metric") == [(0.0, 0.0), (0.5, 1.0)]
    assert entry.pairs("accept_len") == [(4.0, 2.0), (0.0, 0.0)]
    assert [sample.not_finite for sample in entry.run.samples] == [("f1",), ("accept_len",)]


def test_a_missing_metric_is_no_zero(tmp_path: Path) -> None:
    lines = [line(0, {"f1": 0.5}), line(1, {})]
    write_run(tmp_path, "native_eagle", lines)
    found = board(tmp_path)
    assert found.figure(only(found), "metric").value == 0.5  # type: ignore[union-attr]
    write_run(tmp_path / "none", "native_eagle", [line(0, {})])
    entry = only(board(tmp_path / "none"))
    assert entry.run.metric is None
    assert board(tmp_path / "none").figure(entry, "metric") is None


def test_an_empty_domain_is_an_entry_without_rows(tmp_path: Path) -> None:
    write_run(tmp_path, "native_eagle", [])
    found = board(tmp_path)
    assert only(found).rows == {}
    assert found.figure(only(found), "accept_len") is None


def test_files_without_docs_hold_answers_and_hashes_only(tmp_path: Path) -> None:
    write_run(tmp_path, "native_eagle", two(docs=False))
    first = only(board(tmp_path)).run.samples[0]
    assert (first.prompt, first.references) == (None, None)
    assert (first.key, first.row, first.texts) == ("hash-0", "row-0", ("an answer",))


def test_statistics_stand_in_where_lm_eval_has_no_pairs(tmp_path: Path) -> None:
    one = line(0, {"f1": 0.5}, turns=[stats([3, 1]), stats([2])])
    one["metrics"] = ["f1"]
    write_run(tmp_path, "native_eagle", [one])
    # 6 ids in 3 steps over both turns; 8 new ids in 2 s.
    entry = only(board(tmp_path))
    assert entry.pairs("accept_len") == [(6.0, 3.0)]
    assert entry.pairs("tokens_per_second") == [(8.0, 2.0)]


def test_repeats_of_one_folder_are_one_entry(tmp_path: Path) -> None:
    for repeat, wall in enumerate((1.0, 2.0, 4.0)):
        lines = two([0.5, 0.7], turns=[stats(wall_s=wall)])
        date = f"2026-11-30T06-44-5{repeat}"
        write_run(tmp_path, "native_eagle", lines, date=date, repeat=repeat, repeats=3)
    entry = only(board(tmp_path))
    assert [run.repeat for run in entry.runs] == [0, 1, 2]
    # Added up over the repeats by row: 3 * 5 ids in 7 s.
    assert entry.pairs("tokens_per_second") == [(15.0, 7.0)] * 2
    assert entry.pairs("metric") == [(0.5, 1.0), (pytest.approx(0.7), 1.0)]


def test_of_two_runs_of_one_configuration_the_newer_counts(tmp_path: Path) -> None:
    write_run(tmp_path, "native_eagle", two([0.0, 0.0]), date="2026-11-30T07-00-00")
    write_run(tmp_path, "native_eagle", two([1.0, 1.0]), date="2026-11-30T06-00-00")
    found = board(tmp_path)
    assert found.figure(only(found), "metric").value == 0.0  # type: ignore[union-attr]
    assert "the results of 2026-11-30T06-00-00 are left out" in found.notes[0]


def test_data_split_protocol_and_rows_are_never_mixed(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "native_eagle", two())
    write_run(tmp_path / "b", "native_eagle", two(), data="official")
    write_run(tmp_path / "c", "native_eagle", two(), protocol="paper")
    write_run(tmp_path / "d", "native_eagle", two(), split="calibration")
    write_run(tmp_path / "e", "native_eagle", two()[:1])
    assert list(board(tmp_path).sections) == [
        ("official", "test", "strict", ""),
        ("mini", "calibration", "strict", ""),
        ("mini", "test", "strict", ""),
        ("mini", "test", "paper", ""),
        ("mini", "test", "strict", "1 of 2 rows"),
    ]


def test_a_torn_last_line_is_noted_and_any_other_bad_line_refused(tmp_path: Path) -> None:
    place = write_run(tmp_path, "native_eagle", two())
    samples = place / f"samples_{TASK}_{DATE}.jsonl"
    whole = samples.read_bytes()
    samples.write_bytes(whole[:-20])
    found = board(tmp_path)
    assert len(only(found).rows) == 1
    assert "its last line is cut off" in found.notes[0]
    samples.write_bytes(b"{broken\n" + whole)
    with pytest.raises(ValueError, match=rf"samples_{TASK}_{DATE}.jsonl, line 1: no JSON"):
        board(tmp_path)
    samples.write_text('{"doc": {}}\n', encoding="utf-8")
    with pytest.raises(ValueError, match=rf"sample 1 of {TASK} is no sample of lm-eval"):
        board(tmp_path)


def test_results_that_cannot_be_used_say_why(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="does not exist"):
        board(tmp_path / "nowhere")
    with pytest.raises(ValueError, match=r"no results file of lm-eval.*--log_samples"):
        board(tmp_path)
    place = write_run(tmp_path, "native_eagle", two())
    (place / f"samples_{TASK}_{DATE}.jsonl").unlink()
    assert f"has no samples of {TASK}" in board(tmp_path).notes[0]
    (place / f"results_{DATE}.json").write_text('{"results": {', encoding="utf-8")
    with pytest.raises(ValueError, match="no whole JSON file"):
        board(tmp_path)


def test_a_folder_given_twice_counts_once_and_other_files_are_passed_over(tmp_path: Path) -> None:
    write_run(tmp_path / "runs", "native_eagle", two())
    (tmp_path / "runs" / "notes.json").write_text("no JSON", encoding="utf-8")
    (tmp_path / "runs" / "list.json").write_text("[1]", encoding="utf-8")
    (tmp_path / "runs" / "other.jsonl").write_text('{"a": 1}\n', encoding="utf-8")
    found = board(tmp_path / "runs", tmp_path / "runs" / "native_eagle")
    assert only(found).run.place == "runs/native_eagle"
    assert found.notes == ("runs/notes.json is no JSON and was left out",)


def test_arguments_tell_runs_of_one_folder_apart_and_name_no_place(tmp_path: Path) -> None:
    for hour, draft in enumerate(("/home/someone/heads/first", "org/second")):
        given = {"model_args": {"draft": draft, "skip_layers": [1]}}
        write_run(tmp_path, "native_eagle", two(), date=f"2026-11-30T0{hour}-00-00", **given)
    found = [entry.run.arguments for entry in board(tmp_path).entries]
    assert found == [(("draft", "first"),), (("draft", "org/second"),)]


def test_a_configuration_run_in_two_folders_is_two_rows_that_name_them(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "native_eagle", two())
    write_run(tmp_path / "b", "native_eagle", two())
    write_run(tmp_path / "b", "native_ar", two())
    found = {entry.run.place: entry.folder for entry in board(tmp_path).entries}
    root = tmp_path.name
    assert found == {
        f"{root}/a/native_eagle": f"{root}/a",
        f"{root}/b/native_eagle": f"{root}/b",
        f"{root}/b/native_ar": "",
    }


def test_folders_of_one_name_stay_apart(tmp_path: Path) -> None:
    for parent in "abc":
        write_run(tmp_path / parent / "runs", "native_eagle", two(), machine=parent)
    (one,) = (tmp_path / "c" / "runs" / "native_eagle").glob("results_*")
    given = [tmp_path / "a" / "runs", tmp_path / "b" / "runs", one]
    found = {entry.run.machine: entry.run for entry in board(*given).entries}
    places = {name: run.place for name, run in found.items()}
    assert places == {"a": "runs/native_eagle", "b": "runs (2)/native_eagle", "c": "native_eagle"}
    assert len({run.session for run in found.values()}) == 3


def test_data_of_a_foreign_task_are_those_that_plain_lm_eval_names(tmp_path: Path) -> None:
    for name, told in (("native_eagle", {"data": {TASK: {"kind": "foreign"}}}), ("hf", {})):
        place = write_run(tmp_path, name, two(), **told)
        (path,) = place.glob("results_*")
        results = json.loads(path.read_text(encoding="utf-8"))
        results["configs"][TASK] = {"dataset_path": "openai/gsm8k", "validation_split": "train"}
        path.write_text(json.dumps(results), encoding="utf-8")
    assert [entry.section[:2] for entry in board(tmp_path).entries] == [
        ("openai/gsm8k", "train"),
        ("openai/gsm8k", "train"),
    ]


def test_a_routed_task_has_several_skip_sets_and_early_exit_is_lossy(tmp_path: Path) -> None:
    sets = [{"skip": [2], "domain": "qa"}, {"skip": [1], "domain": "rag"}, {"skip": [2]}]
    write_run(tmp_path, "tss_eagle", two(), skip_sets={TASK: sets})
    write_run(tmp_path, "early_exit", two(), skip=[2, 3], drafter="early exit (lossy)")
    write_run(tmp_path, "native_eagle", two())
    found = {entry.run.adapter: entry for entry in board(tmp_path).entries}
    assert found["tss_eagle"].run.skips == ((1,), (2,))
    assert found["tss_eagle"].skip is None
    targets = {name: identity(entry)["target"] for name, entry in found.items()}
    assert targets == {"tss_eagle": "+TSS", "early_exit": "lossy", "native_eagle": "native"}
