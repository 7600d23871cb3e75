"""The file of a run: rounds, what a later one replaces, settings, messages without row text.

May import: pytest, tss_bench and the standard library.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tss_bench.run_records import FILE, Record, RunError, RunRecords, one_line
from tss_bench.types import GeneratedText, GenerationStats

SETTINGS = {"commit": "a1", "adapters": {"tss_x": {"skip_sets": {"*": (3,)}, "seed": 0}}}


def answer(text: str = "Größe") -> GeneratedText:
    turn = GenerationStats(
        prompt_tokens=4,
        new_tokens=4,
        verify_steps=2,
        drafted=9,
        accepted=1,
        accept_lengths=(2, 1),
        prefill_s=0.1,
        draft_s=0.2,
        verify_s=1 / 3,
        wall_s=0.7,
        stop="eos",
        prompt_truncated=True,
    )
    return GeneratedText(text, (turn, turn), ("a", text), {"skip": [3]}, ((5, 6, 7, 8), (1, 2)))


PAIR = {"native_x": Record(answer(), None, 7), "tss_x": Record(answer("b"), None, 9)}


def test_an_answer_comes_back_as_it_was(tmp_path: Path) -> None:
    with RunRecords(tmp_path, SETTINGS) as records:
        records.add("qa", "row", 0, PAIR)
        started = records.started
    with RunRecords(tmp_path, SETTINGS) as records:
        found = records.find("qa", "row", 0)
        assert found is not None
        given = found.records["native_x"].answer
        assert given == answer()
        assert given is not None
        assert (given.stats, given.turns, given.ids) == (
            answer().stats,
            answer().turns,
            answer().ids,
        )
        assert given.config == {"skip": [3]}
        assert found.records["tss_x"].memory == 9
        assert not found.failed
        assert records.started == started
        for key in (("qa", "row", 1), ("qa", "other", 0), ("rag", "row", 0)):
            assert records.find(*key) is None


def test_a_later_round_replaces_a_failed_one(tmp_path: Path) -> None:
    with RunRecords(tmp_path, SETTINGS) as records:
        failed = {**PAIR, "tss_x": Record(None, "ValueError: no", 9)}
        records.add("qa", "row", 0, failed)
        found = records.find("qa", "row", 0)
        assert found is not None
        assert found.failed
        assert found.records["tss_x"] == Record(None, "ValueError: no", 9)
        first = found.process
    with RunRecords(tmp_path, SETTINGS) as records:
        records.add("qa", "row", 0, PAIR)
    with RunRecords(tmp_path, SETTINGS) as records:
        found = records.find("qa", "row", 0)
        assert found is not None
        assert not found.failed
        assert found.process != first


@pytest.mark.parametrize("keep", [0.4, 0.99])
def test_a_torn_round_is_dropped_whole(tmp_path: Path, keep: float) -> None:
    with RunRecords(tmp_path, SETTINGS) as records:
        records.add("qa", "one", 0, PAIR)
        records.add("qa", "two", 0, PAIR)
    path = tmp_path / FILE
    data = path.read_bytes()
    start = data.rstrip(b"\n").rfind(b"\n") + 1
    path.write_bytes(data[: start + int(keep * (len(data) - start))])
    with RunRecords(tmp_path, SETTINGS) as records:
        assert records.find("qa", "one", 0) is not None
        assert records.find("qa", "two", 0) is None
        records.add("qa", "two", 0, PAIR)
    with RunRecords(tmp_path, SETTINGS) as records:
        assert records.find("qa", "two", 0) is not None


def test_a_torn_header_begins_the_file_again(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text('{"schema": 1, "start', encoding="utf-8")
    with RunRecords(tmp_path, SETTINGS) as records:
        records.add("qa", "one", 0, PAIR)
    with RunRecords(tmp_path, SETTINGS) as records:
        assert records.find("qa", "one", 0) is not None


def test_other_settings_are_refused_with_what_changed(tmp_path: Path) -> None:
    with RunRecords(tmp_path, SETTINGS):
        pass
    other = {"commit": "b2", "adapters": {"tss_x": {"skip_sets": {"*": [3, 4]}, "seed": 0}}}
    with pytest.raises(RunError) as caught, RunRecords(tmp_path, other):
        pass
    told = str(caught.value)
    assert "commit: there a1, here b2" in told
    assert "adapters.tss_x.skip_sets.*: there [3], here [3, 4]" in told
    assert "seed" not in told
    with pytest.raises(RunError, match="depth: there None, here 4"):
        RunRecords(tmp_path, {**SETTINGS, "depth": 4}).__enter__()
    # A refusal leaves the directory free and as it was.
    with RunRecords(tmp_path, SETTINGS):
        pass
    assert len((tmp_path / FILE).read_text("utf-8").splitlines()) == 1


def test_another_schema_is_refused(tmp_path: Path) -> None:
    header = {"schema": 99, "started": "2026-01-01T00:00:00", "settings": SETTINGS}
    (tmp_path / FILE).write_text(json.dumps(header) + "\n", encoding="utf-8")
    with pytest.raises(RunError, match="has schema 99, this version reads 1"):
        RunRecords(tmp_path, SETTINGS).__enter__()


DOC = {
    "id": "900005",
    "domain": "translation",
    "turns": ["Translate German to English:\nObwohl es stark regnete."],
    "references": ["Rain"],
    "choices": [],
}


@pytest.mark.parametrize(
    ("message", "kept"),
    [
        ("no more\n  memory", "no more memory"),
        ("row 900005 of specbench_translation", "row 900005 of specbench_translation"),
        ("cannot answer 'lish: Obwohl es stark…'", None),
        ("the reference is Rain", None),
        ("", ""),
    ],
)
def test_an_error_is_one_line_that_quotes_no_row(message: str, kept: str | None) -> None:
    quoted = "(its message quotes the row)" if kept is None else kept
    assert one_line(RuntimeError(message), DOC) == ": ".join(filter(None, ["RuntimeError", quoted]))
