"""What the audit finds, against values worked out by hand.

May import: pytest, tss_bench, tests.report.helpers and the standard library.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.report.helpers import line, stats, write_run
from tss_bench.report.audit import audit, distinct_2, longest_repeat
from tss_bench.report.board import Board
from tss_bench.report.entries import Entry
from tss_bench.report.files import find


def board(folder: Path) -> Board:
    return Board(find([folder]), resamples=999)


def of(found: Board, adapter: str, protocol: str = "strict") -> Entry:
    return next(e for e in found.entries if (e.run.adapter, e.run.protocol) == (adapter, protocol))


def rows(steps: Sequence[Sequence[int]], **given: Any) -> list[dict[str, Any]]:
    return [line(n, {"f1": 0.5}, turns=[stats(one)], **given) for n, one in enumerate(steps)]


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [([], None), ([1], None), ([1, 2], 1.0), ([1, 2, 1, 2, 1], 0.5), ([7] * 5, 0.25)],
)
def test_distinct_2(tokens: list[int], expected: float | None) -> None:
    assert distinct_2(tokens) == expected


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ([1, 2, 3, 4], None),
        (list(range(20)), 0.0),
        # 15 ids of period 3: the 5-grams from place 3 to 10 began before, which is 12 ids.
        ([1, 2, 3] * 5, 12 / 15),
        # One 5-gram comes back after other text.
        ([1, 2, 3, 4, 5, 9, 8, 1, 2, 3, 4, 5, 0], 5 / 13),
        (["a"] * 6, 5 / 6),
    ],
)
def test_longest_repeat(tokens: list[Any], expected: float | None) -> None:
    assert longest_repeat(tokens) == expected


def test_repetition_reads_ids_and_else_words(tmp_path: Path) -> None:
    write_run(tmp_path, "native_eagle", [line(0, {}, ids=[5] * 11, answer="all words differ")])
    write_run(tmp_path / "b", "native_eagle", [line(0, {}, answer="la la la", ours=False)])
    found = board(tmp_path)
    records = [audit(found).texts[entry] for entry in found.entries]
    by_place = {record["run"].split("/")[-2]: record["distinct_2"] for record in records}
    assert by_place == {tmp_path.name: 0.1, "b": 0.5}


def test_cut_answers_and_prompts_are_counted_by_turn(tmp_path: Path) -> None:
    turns = [
        stats(stop="length"),
        stats(stop="eos"),
        stats(stop="context", prompt_truncated=True),
        stats(stop="length"),
    ]
    write_run(tmp_path, "native_eagle", [line(0, {}, turns=turns)])
    found = board(tmp_path)
    (entry,) = found.entries
    result = audit(found)
    record = result.texts[entry]
    assert (record["cut_by_limit"], record["cut_by_context"]) == (0.5, 0.25)
    assert record["prompts_truncated"] == 1
    assert list(result.flags[entry]) == ["prompts truncated: 1"]


def test_what_no_file_says_is_not_claimed(tmp_path: Path) -> None:
    write_run(tmp_path, "native_eagle", [line(0, {"f1": 1.0}, ours=False)], ours=False)
    found = board(tmp_path)
    record = audit(found).texts[found.entries[0]]
    assert record["cut_by_limit"] is record["prompts_truncated"] is record["same_as_dense"] is None


def test_agreement_is_with_the_dense_answer_to_the_same_request(tmp_path: Path) -> None:
    native = [line(0, {}, ids=[1, 2, 3, 4]), line(1, {}, ids=[1, 2, 3, 4]), line(2, {}, ids=[9])]
    sparse = [line(0, {}, ids=[1, 2, 3, 4]), line(1, {}, ids=[1, 8])]
    write_run(tmp_path, "native_eagle", native)
    write_run(tmp_path, "tss_eagle", sparse, skip=[1])
    found = board(tmp_path)
    result = audit(found)
    record = result.texts[of(found, "tss_eagle")]
    assert record["same_as_dense"] == 0.5
    assert record["same_start_as_dense"] == pytest.approx((1 + 1 / 4) / 2)
    assert record["compared_with_dense"] == 2


STRICT = [[2, 2], [2, 2], [2, 2], [2, 2], [2, 2], [2, 2]]


def both_protocols(
    folder: Path, sparse_strict: Sequence[Sequence[int]], sparse_paper: Sequence[Sequence[int]]
) -> tuple[Board, Any]:
    for protocol, sparse in (("strict", sparse_strict), ("paper", sparse_paper)):
        config = {"protocol": protocol, "scope": "verify"}
        place = folder / protocol
        write_run(place, "native_eagle", rows(STRICT, config=config), protocol=protocol)
        write_run(place, "tss_eagle", rows(sparse, config=config), protocol=protocol, skip=[1])
    found = board(folder)
    return found, audit(found)


def test_text_after_the_end_is_what_strict_lacks_of_paper(tmp_path: Path) -> None:
    # Paper: 3 ids a step and one step more: 9 of 3 steps against 4 of 2.
    found, result = both_protocols(tmp_path, STRICT, [[3, 3, 3]] * 6)
    record = result.protocols[of(found, "tss_eagle", "paper")]
    assert (record["accept_len_paper"], record["accept_len_strict"]) == (3.0, 2.0)
    assert record["after_end"] == pytest.approx(1 / 3)
    assert record["after_end_low"] == pytest.approx(1 / 3)
    # With the id of the prefill: 10 ids against 5.
    assert record["ids_after_end"] == pytest.approx(0.5)
    assert record["requests"] == 6
    assert record["gain_paper"] == pytest.approx(0.5)
    assert record["gain_strict"] == pytest.approx(0.0)
    assert of(found, "tss_eagle") not in result.protocols


def test_a_gain_that_strict_does_not_have_is_flagged(tmp_path: Path) -> None:
    found, result = both_protocols(tmp_path / "gone", STRICT, [[3, 3, 3]] * 6)
    assert list(result.flags[of(found, "tss_eagle", "paper")]) == ["gain gone under strict"]
    assert list(result.flags[of(found, "tss_eagle")]) == []
    unsure = [[4, 4], [2, 2], [1, 1], [2, 2], [2, 2], [2, 3]]
    found, result = both_protocols(tmp_path / "unsure", unsure, [[3, 3, 3]] * 6)
    assert list(result.flags[of(found, "tss_eagle", "paper")]) == ["gain not shown under strict"]
    found, result = both_protocols(tmp_path / "kept", [[3, 3]] * 6, [[3, 3, 3]] * 6)
    assert list(result.flags[of(found, "tss_eagle", "paper")]) == []


def test_losslessness_is_checked_against_plain_decoding_of_the_same_target(tmp_path: Path) -> None:
    plain = [line(n, {}, ids=[1, 2, 3, 4], turns=[stats()] * 2) for n in range(3)]
    told = {"against": "native_ar", "position": 2, "gap": 0.5, "rounding": 0.25}
    drafted = [
        line(0, {}, ids=[1, 2, 3, 4], turns=[stats()] * 2),
        line(1, {}, ids=[1, 2, 7, 4], turns=[stats()] * 2, divergence=told),
        line(2, {}, ids=[1, 2, 3, 4, 5], turns=[stats()] * 2),
    ]
    write_run(tmp_path, "native_ar", plain)
    write_run(tmp_path, "native_eagle", drafted)
    found = board(tmp_path)
    result = audit(found)
    record = result.lossless[of(found, "native_eagle")]
    assert (record["requests"], record["equal"], record["against"]) == (3, 1, "native_ar")
    assert (record["first_divergence"], record["median_divergence"]) == (2, 3.0)
    assert (record["largest_gap"], record["beyond_rounding"]) == (0.5, 1)
    assert [(one["row"], one["turn"], one["position"]) for one in result.divergences] == [
        ("row-1", 0, 2),
        ("row-2", 0, 4),
    ]
    assert list(result.flags[of(found, "native_eagle")]) == [
        "beyond rounding other than native_ar: 1; float32 decides",
        "other than native_ar, logit gaps not recorded: 1",
    ]
    assert of(found, "native_ar") not in result.lossless


def test_an_answer_has_the_gap_of_the_native_one_with_the_same_ids(tmp_path: Path) -> None:
    told = {"against": "native_ar", "position": 1, "gap": 0.5, "rounding": 0.25}
    write_run(tmp_path, "native_ar", [line(n, {}, ids=[1, 2]) for n in range(2)])
    native = [line(n, {}, ids=[1, 3], divergence=told) for n in range(2)]
    write_run(tmp_path, "native_eagle", native)
    # The second answer is another one.
    sparse = [line(0, {}, ids=[1, 3]), line(1, {}, ids=[1, 4])]
    write_run(tmp_path, "tss_eagle", sparse)
    found = board(tmp_path)
    record = audit(found).lossless[of(found, "tss_eagle")]
    assert (record["equal"], record["gaps_known"], record["largest_gap"]) == (0, 1, 0.5)
    # Of another skip set the native answers tell nothing.
    write_run(tmp_path, "tss_ar", [line(n, {}, ids=[1, 2]) for n in range(2)], skip=[1])
    write_run(tmp_path, "tss_eagle", sparse, skip=[1])
    found = board(tmp_path)
    assert audit(found).lossless[of(found, "tss_eagle")]["gaps_known"] == 0


def test_an_answer_that_ends_early_is_not_explained_by_rounding(tmp_path: Path) -> None:
    told = {"position": 2, "gap": None, "rounding": 0.0}
    write_run(tmp_path, "native_ar", [line(0, {}, ids=[1, 2, 3])])
    write_run(tmp_path, "native_eagle", [line(0, {}, ids=[1, 2], divergence=told)])
    found = board(tmp_path)
    result = audit(found)
    record = result.lossless[of(found, "native_eagle")]
    assert (record["largest_gap"], record["beyond_rounding"]) == (None, 1)
    (flag,) = result.flags[of(found, "native_eagle")]
    assert flag == "beyond rounding other than native_ar: 1; float32 decides"


@pytest.mark.parametrize(
    ("protocol", "arguments", "flags"),
    [
        ("strict", {"dtype": "float32"}, ["beyond rounding other than native_ar: 1"]),
        ("strict", {"dtype": "bfloat16"}, ["other than native_ar, logit gaps not recorded: 1"]),
        ("strict", {"dtype": "float32", "temperature": "1.0"}, []),
        ("paper", {"dtype": "float32"}, []),
    ],
)
def test_float32_answers_may_not_differ_at_all_under_strict_and_greedy(
    tmp_path: Path, protocol: str, arguments: dict[str, str], flags: list[str]
) -> None:
    for adapter, ids in (("native_ar", [1, 2]), ("native_eagle", [1, 3])):
        lines = [line(0, {}, ids=ids, config={"protocol": protocol})]
        write_run(tmp_path, adapter, lines, protocol=protocol, model_args=arguments)
    found = board(tmp_path)
    assert list(audit(found).flags[of(found, "native_eagle", protocol)]) == flags


def test_failed_and_missing_rows_are_flagged(tmp_path: Path) -> None:
    lines = [line(0, {"f1": float("nan")}), line(1, {"f1": 0.5}), line(2, {}, failed="stopped")]
    write_run(tmp_path, "tss_eagle", lines, skip=[1])
    write_run(tmp_path, "native_eagle", [lines[1], line(0, {}, failed="x"), lines[2]])
    write_run(tmp_path / "empty", "native_ar", [])
    found = board(tmp_path)
    flags = audit(found).flags
    assert list(flags[of(found, "tss_eagle")]) == [
        "failed: 1",
        "not a number in some rows: f1",
        "paired on 1 of 2 rows",
    ]
    assert list(flags[of(found, "native_ar")]) == ["no answered rows"]
