"""Differences, intervals and verdicts of `bench skips` against values computed by hand.

May import: pytest, tss_bench and the standard library.
"""

from __future__ import annotations

from typing import Any

import pytest

from tss_bench import tolerance_report as report
from tss_bench.tolerance_report import compare, difference, difference_interval, figures, keeps


def records(*rows: tuple[float | None, list[list[int]]]) -> list[dict[str, Any]]:
    """Records of (rougeL or no reference, accept lengths by turn)."""
    return [
        {
            "metrics": {"scored": 0} if metric is None else {"rouge1": 0.9, "rougeL": metric},
            "accept_lengths": lengths,
            "verify_steps": [len(turn) for turn in lengths],
        }
        for metric, lengths in rows
    ]


@pytest.mark.parametrize(
    ("value", "dense", "holds"),
    [
        (0.95, 1.0, True),
        (0.9499, 1.0, False),
        (2.0, 1.0, True),
        (0.0, 0.0, True),
        (-0.06, 0.0, False),
    ],
)
def test_a_value_may_lose_a_twentieth(value: float, dense: float, holds: bool) -> None:
    assert keeps(value, dense) is holds


def test_figures_pool_steps_and_turns_and_average_scored_rows() -> None:
    found = figures(records((0.2, [[1, 2], [3]]), (0.4, [[2]]), (None, [[4]])))
    # 1 + 2 + 3 + 2 + 4 = 12 ids in 5 steps; the third row has no reference.
    assert found["accept_len"] == pytest.approx(12 / 5)
    assert found["metric"] == pytest.approx(0.3)
    assert (found["metric_name"], found["scored"], found["rows"]) == ("rougeL", 2, 3)
    assert found["intervals"]["metric"] == pytest.approx((0.2, 0.4))


def test_rows_that_all_change_alike_have_no_spread() -> None:
    dense = records((0.2, [[2, 2]]), (0.6, [[1, 3]]))
    found = compare(dense, records((0.18, [[2, 1]]), (0.54, [[1, 2]])))
    # Metric 0.4 -> 0.36; accept length 8 / 4 -> 6 / 4.
    assert found["metric"]["value"] == pytest.approx(-0.1)
    assert found["metric"]["interval"] == pytest.approx((-0.1, -0.1))
    assert found["accept_len"]["value"] == pytest.approx(-0.25)
    assert found["accept_len"]["interval"] == pytest.approx((-0.25, -0.25))
    assert found["metric"]["relative"]
    assert not found["holds"]


def test_the_interval_resamples_rows_on_both_sides_at_once() -> None:
    dense, sparse = [(1.0, 1.0), (1.0, 1.0)], [(0.0, 1.0), (2.0, 1.0)]
    # Of two rows drawn, a quarter are both the first (-1), a quarter both the second (+1).
    assert difference_interval(dense, sparse, relative=True) == (-1.0, 1.0)
    # Rows that scale together: every resample is exactly 1.5 times the dense one.
    dense, sparse = [(1.0, 1.0), (5.0, 1.0)], [(1.5, 1.0), (7.5, 1.0)]
    assert difference_interval(dense, sparse, relative=True) == pytest.approx((0.5, 0.5))
    assert difference_interval(dense[:1], sparse[:1], relative=True) is None


def test_the_p_value_is_that_of_the_paired_test() -> None:
    # Equal samples are no evidence; two rows can never give less than one half.
    same = [(1.0, 2.0), (3.0, 4.0)]
    found = difference(same, same)
    assert found is not None
    assert (found["value"], found["p"], found["holds"]) == (0.0, 1.0, True)
    found = difference([(1.0, 1.0), (1.0, 1.0)], [(2.0, 1.0), (2.0, 1.0)])
    assert found is not None
    assert (found["value"], found["p"]) == (1.0, 0.5)


def test_behind_a_dense_value_of_zero_the_difference_is_absolute() -> None:
    dense = records((0.0, [[1]]), (0.0, [[1]]))
    found = compare(dense, records((0.0, [[1]]), (0.3, [[1]])))
    metric = found["metric"]
    assert (metric["relative"], metric["value"]) == (False, pytest.approx(0.15))
    assert metric["interval"] == pytest.approx((0.0, 0.3))
    assert found["holds"]


def test_both_quantities_must_hold() -> None:
    dense = records((0.5, [[2]]), (0.5, [[2]]))
    assert compare(dense, records((0.48, [[2]]), (0.48, [[2]])))["holds"]
    assert not compare(dense, records((0.47, [[2]]), (0.47, [[2]])))["holds"]
    assert not compare(dense, records((0.9, [[1]]), (0.9, [[2]])))["holds"]


def test_without_a_judge_accept_length_decides_and_without_a_step_nothing() -> None:
    dense = records((None, [[2]]), (None, [[2]]))
    found = compare(dense, records((None, [[1]]), (None, [[1]])))
    assert (found["metric"], found["holds"]) == (None, False)
    stepless = records((None, [[]]), (None, [[]]))
    assert compare(stepless, stepless) == {"metric": None, "accept_len": None, "holds": None}


def test_other_rows_are_refused() -> None:
    with pytest.raises(ValueError, match="needs the same rows on both sides, got 1 and 2"):
        compare(records((0.5, [[2]])), records((0.5, [[2]]), (0.5, [[2]])))


def row(
    skip: list[int], against: dict[str, Any], drafter: str = "ar", target: str = "m"
) -> dict[str, Any]:
    return {
        "task": "t",
        "role": "target",
        "target": target,
        "skip": skip,
        "sparsity": len(skip) / 4,
        "drafter": drafter,
        **figures(records((0.5, [[2]]), (0.5, [[2]]))),
        "against": against,
        "data": "mini",
        "split": "test",
        "scope": "verify",
        "protocol": "strict",
    }


def test_the_table_tells_figures_differences_and_verdicts() -> None:
    dense = records((0.5, [[2]]), (0.5, [[2]]))
    own = compare(dense, records((0.4, [[2]]), (0.4, [[2]])))
    lines = report.table([row([], {}), row([1, 3], {"own": own})]).splitlines()
    cells = [cell.strip() for cell in lines[-1].strip("|").split("|")]
    assert cells == [
        "t",
        "target",
        "m",
        "{1,3}",
        "0.500",
        "ar",
        "2.00 [2.00, 2.00]",
        "rougeL 0.500 [0.500, 0.500]",
        "-20.0 % [-20.0, -20.0] p 0.5",
        "+0.0 % [+0.0, +0.0] p 1",
        "lost",
        "2 of 2",
        "mini test verify strict",
    ]
    assert "reference" not in lines[0]
    assert "reference" in report.table([row([], {"reference": own})]).splitlines()[0]


def test_the_ablation_has_a_curve_a_target_and_drafter() -> None:
    dense = records((0.5, [[2]]), (0.5, [[2]]))
    own = {"own": compare(dense, records((0.4, [[3]]), (0.4, [[3]])))}
    rows = [row([], {}), row([0], own), row([2], own), row([0, 2], own), row([2], own, "eagle")]
    accept, metric = report.ablation_panels(rows)
    assert accept.title == "t: accept length A"
    # Plain decoding emits one id a step, whatever is skipped.
    assert accept.curves == {"target m, eagle": ([2], [pytest.approx(50)])}
    assert metric.curves == {
        "target m, ar": ([0, 2], [pytest.approx(-20)] * 2),
        "target m, eagle": ([2], [pytest.approx(-20)]),
    }


@pytest.mark.parametrize(
    ("text", "sets"),
    [
        ("", ["{}"]),
        ("dense", ["{}"]),
        ("1+3, 2", ["{}", "{1,3}", "{2}"]),
        ("3+1,1+3", ["{}", "{1,3}"]),
        ("singles,0+1", ["{}", "{0}", "{1}", "{2}", "{3}", "{0,1}"]),
    ],
)
def test_sets_are_read(text: str, sets: list[str]) -> None:
    assert [str(skip) for skip in report.parse_sets(text, 4)] == sets


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("3+4", "--sets: skip layer 4 does not exist: the target has 4 layers"),
        ("1-3", "--sets: '1-3' is no layer index.*for example 3"),
        ("single", "--sets: 'single' is no layer index.*or singles"),
    ],
)
def test_bad_sets_are_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        report.parse_sets(text, 4)
