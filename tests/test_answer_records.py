"""Records of answers: keys, resuming, torn lines.

May import: pytest, tss_bench and the standard library.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tss_bench.answer_records import FILE, AnswerRecords, answer_record, digest
from tss_bench.types import GeneratedText, GenerationStats

SETTINGS = {"model": "a", "skip": [3]}


def fill(directory: Path, *rows: str) -> None:
    with AnswerRecords(directory) as records:
        for row in rows:
            records.add(SETTINGS, "qa", row, {"metrics": {"f1": 0.5}, "verify_steps": [3]})


def test_what_was_written_is_found_by_the_next_process(tmp_path: Path) -> None:
    fill(tmp_path, "one")
    with AnswerRecords(tmp_path) as records:
        found = records.find(digest(SETTINGS), "qa", "one")
        assert found == {"metrics": {"f1": 0.5}, "verify_steps": [3]}
        assert records.find(digest(SETTINGS), "qa", "two") is None
        assert records.find(digest(SETTINGS), "rag", "one") is None
        assert records.find(digest({**SETTINGS, "skip": []}), "qa", "one") is None


def test_settings_are_written_once_and_lines_are_only_appended(tmp_path: Path) -> None:
    fill(tmp_path, "one")
    before = (tmp_path / FILE).read_text("utf-8")
    fill(tmp_path, "two")
    text = (tmp_path / FILE).read_text("utf-8")
    assert text.startswith(before)
    lines = [json.loads(line) for line in text.splitlines()]
    assert [("settings" in line, line.get("row")) for line in lines] == [
        (True, None),
        (False, "one"),
        (False, "two"),
    ]


def test_a_torn_last_line_is_dropped_with_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(tmp_path, "one", "two")
    path = tmp_path / FILE
    path.write_bytes(path.read_bytes()[:-7])
    fill(tmp_path, "three")
    assert f"the last line of {path} is torn" in capsys.readouterr().err
    with AnswerRecords(tmp_path) as records:
        rows = [records.find(digest(SETTINGS), "qa", row) for row in ("one", "two", "three")]
    assert [row is not None for row in rows] == [True, False, True]
    assert capsys.readouterr().err == ""


def test_a_broken_line_in_the_middle_is_refused(tmp_path: Path) -> None:
    fill(tmp_path, "one")
    path = tmp_path / FILE
    path.write_text("{}\n" + path.read_text("utf-8"), "utf-8")
    with pytest.raises(ValueError, match=r"line 1 of .*answers\.jsonl is no record"):
        fill(tmp_path, "two")
    path.unlink()
    fill(tmp_path, "two")


def test_two_processes_do_not_write_to_one_directory(tmp_path: Path) -> None:
    with AnswerRecords(tmp_path), pytest.raises(ValueError, match="another process writes to"):
        fill(tmp_path, "one")
    fill(tmp_path, "one")


def test_a_digest_does_not_depend_on_the_order_of_names() -> None:
    assert digest({"a": 1, "b": [2]}) == digest({"b": [2], "a": 1}) != digest({"a": 1, "b": [3]})


def test_a_record_has_counts_by_turn_and_no_times() -> None:
    turns = tuple(
        GenerationStats(
            prompt_tokens=4,
            new_tokens=sum(lengths) + 1,
            verify_steps=len(lengths),
            drafted=9,
            accepted=1,
            accept_lengths=lengths,
            prefill_s=0.1,
            draft_s=0.2,
            verify_s=0.3,
            wall_s=0.6,
            stop="eos",
        )
        for lengths in ((1, 2), (3,))
    )
    answer = GeneratedText("b", turns, ("a", "b"), ids=((5, 6, 7, 8), (5, 6, 7, 1)))
    metrics = {"f1": 0.5, "bleu": ("b", ["c"]), "accept_len": (6, 3), "tokens_per_second": (8, 1.2)}
    assert answer_record(answer, metrics) == {
        "metrics": {"f1": 0.5, "bleu": ("b", ["c"]), "accept_len": (6, 3)},
        "accept_lengths": [[1, 2], [3]],
        "new_tokens": [4, 4],
        "verify_steps": [2, 1],
        "stop": ["eos", "eos"],
        "ids": [[5, 6, 7, 8], [5, 6, 7, 1]],
        "turns": ["a", "b"],
    }
