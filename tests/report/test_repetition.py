"""Accept length without repeated text: the rule, the record and the flag, against hand counts.

May import: pytest, tss_bench, tests.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.report.helpers import line, stats, write_run
from tss_bench.report.audit import audit
from tss_bench.report.board import Board
from tss_bench.report.entries import Entry
from tss_bench.report.files import find
from tss_bench.report.repetition import FEWEST_ROWS, new_text
from tss_bench.report.samples import Turn

CIRCLE = (1, 2, 3, 4, 5, 1, 2, 3, 4, 5, 1, 2)
"""From place 5 on each id lies in five ids that stood before."""

PLAIN = tuple(range(12))
Answer = tuple[Sequence[int], Sequence[int]]


@pytest.mark.parametrize(
    ("ids", "accept_lengths", "expected"),
    [
        # Steps begin at 1, 5, 9 and 11; only the first one in new text.
        (CIRCLE, (4, 4, 2, 1), (4.0, 1.0)),
        # The step that begins at 4 has one new id and runs into repeated text.
        (CIRCLE, (3, 3, 5), (4.0, 2.0)),
        (PLAIN, (4, 4, 2, 1), (11.0, 4.0)),
        ((1,) * 7, (1,) * 6, (0.0, 0.0)),
        ((1,) * 5, (1,) * 4, (4.0, 4.0)),
        ((7,), (), (0.0, 0.0)),
    ],
)
def test_repeated_text_is_left_out(
    ids: tuple[int, ...], accept_lengths: tuple[int, ...], expected: tuple[float, float]
) -> None:
    assert new_text([Turn("", ids, accept_lengths=accept_lengths)]) == expected


def test_counts_that_do_not_belong_to_the_ids_say_nothing() -> None:
    assert new_text([Turn("", PLAIN, accept_lengths=(4, 4))]) is None
    assert new_text([Turn("an answer of a stranger's file")]) is None


def test_a_turn_that_says_the_former_one_again_is_repeated_text() -> None:
    turn = Turn("", PLAIN, accept_lengths=(11,))
    assert new_text([turn, turn]) == new_text([turn]) == (11.0, 1.0)


def both(
    folder: Path, native: Sequence[Answer], sparse: Sequence[Answer], skip: Sequence[int] = (1,)
) -> tuple[Board, Entry]:
    """Native and sparse runs with one answer (ids, accept lengths) a row."""
    for adapter, answers, skipped in (("native_eagle", native, ()), ("tss_eagle", sparse, skip)):
        lines = [
            line(number, {}, ids=ids, turns=[stats(lengths)])
            for number, (ids, lengths) in enumerate(answers)
        ]
        write_run(folder, adapter, lines, skip=skipped)
    board = Board(find([folder]), resamples=999)
    (entry,) = (entry for entry in board.entries if entry.sparse)
    return board, entry


NATIVE: Answer = (PLAIN, (2, 2, 2, 2, 3))
LOOPING: Answer = (CIRCLE, (2, 2, 2, 2, 3))
"""Steps begin at 1, 3, 5, 7 and 9; the last three in repeated text."""


def test_the_record_has_both_sides_with_and_without_repeated_text(tmp_path: Path) -> None:
    board, entry = both(tmp_path, [NATIVE] * 6, [LOOPING] * 6)
    record = audit(board).repetition[entry]
    assert record["requests"] == 6
    assert record["repeated_steps_native"] == 0
    assert record["repeated_steps_tss"] == pytest.approx(3 / 5)
    assert record["accept_len_new_native"] == pytest.approx(11 / 5)
    assert record["accept_len_new_tss"] == pytest.approx(4 / 2)
    assert record["gain_all"] == pytest.approx(0.0)
    assert record["gain_new"] == pytest.approx(2 / 2.2 - 1)
    assert record["verdict"] is None


SLOW: Answer = (PLAIN, (2, 2, 2, 2, 2, 1))
SLOWER: Answer = (PLAIN, (1,) * 9 + (2,))
CIRCLING: Answer = (CIRCLE, (1, 1, 1, 1, 1, 1, 1, 1, 3))


def test_a_gain_that_only_repeated_text_makes_is_flagged(tmp_path: Path) -> None:
    # 11 of 5 against 11 of 6, and still 4 of 2 in new text.
    board, entry = both(tmp_path / "kept", [SLOW] * 6, [LOOPING] * 6)
    assert list(audit(board).flags[entry]) == []
    # 11 of 9 against 11 of 10, but 4 of 4 in new text.
    board, entry = both(tmp_path / "gone", [SLOWER] * 6, [CIRCLING] * 6)
    record = audit(board).repetition[entry]
    assert record["gain_all"] == pytest.approx(10 / 9 - 1)
    assert record["gain_new"] == pytest.approx(1 / 1.1 - 1)
    assert list(audit(board).flags[entry]) == ["gain gone without repeated text"]


def test_a_gain_of_answers_that_are_all_repetition_is_flagged(tmp_path: Path) -> None:
    native: Answer = (PLAIN, (2, 2, 2, 2, 3))
    loop: Answer = ((9,) * 12, (6, 5))
    board, entry = both(tmp_path, [native] * 6, [loop] * 6)
    record = audit(board).repetition[entry]
    assert record["gain_all"] == pytest.approx((11 / 2) / (11 / 5) - 1)
    assert (record["repeated_steps_tss"], record["gain_new"]) == (1.0, None)
    assert list(audit(board).flags[entry]) == ["gain not shown without repeated text"]


def test_rows_without_a_step_are_no_evidence(tmp_path: Path) -> None:
    short: Answer = ((7,), ())
    board, entry = both(tmp_path, [SLOWER] + [short] * 9, [CIRCLING] + [short] * 9)
    record = audit(board).repetition[entry]
    assert (record["requests"], record["verdict"]) == (10, None)


def test_both_gains_are_those_of_the_rows_with_ids(tmp_path: Path) -> None:
    unknown: Answer = (PLAIN, (1, 1))
    board, entry = both(tmp_path, [SLOW] * 6 + [unknown], [SLOW] * 6 + [LOOPING])
    record = audit(board).repetition[entry]
    assert (record["requests"], record["gain_all"], record["gain_new"]) == (6, 0.0, 0.0)
    assert record["repeated_steps_tss"] == 0


def test_few_rows_are_not_judged(tmp_path: Path) -> None:
    rows = FEWEST_ROWS - 1
    board, entry = both(tmp_path, [SLOWER] * rows, [CIRCLING] * rows)
    record = audit(board).repetition[entry]
    assert (record["gain_all"] > 0, record["gain_new"] < 0) == (True, True)
    assert record["verdict"] is None


def test_nothing_is_said_of_a_target_that_skips_nothing(tmp_path: Path) -> None:
    board, entry = both(tmp_path, [NATIVE] * 6, [LOOPING] * 6, skip=())
    assert entry not in audit(board).repetition
