"""Figures of `tss-bench domains route-test`, counted by hand.

May import: pytest, tss_bench.
"""

from __future__ import annotations

import pytest

from tss_bench.route_report import Routed, Timed, accuracy, by_domain, cost, cost_line, shown, table
from tss_bench.types import GeneratedText, GenerationStats, SkipSet

ROWS = [
    Routed("qa", "qa", "qa", True),
    Routed("qa", "nq_open", "nq_open", False),
    Routed("qa", "qa", None, False),
    Routed("qa", "rag", "rag", True),
    Routed("rag", "rag", "rag", None),
]


def test_shares_of_all_rows() -> None:
    sets = {"qa": SkipSet.dense(4), "nq_open": SkipSet.of([1], 4), "rag": SkipSet.of([2], 4)}
    found = accuracy(ROWS, sets)
    shares = {name: one["share"] for name, one in found.items()}
    assert shares == {
        "right": 2 / 5,
        "right_kind": 3 / 5,
        "nearest_right": 3 / 5,
        "dense": 1 / 5,
        # The stranger is dense, and so is its domain.
        "right_set": 3 / 5,
    }
    assert "right_set" not in accuracy(ROWS, dict.fromkeys(sets, SkipSet.dense(4)))
    assert found["right"]["rows"] == 5


def test_a_domain_has_its_confusions_its_recall_and_its_strangers() -> None:
    found = by_domain(ROWS)
    assert list(found) == ["qa", "rag"]
    assert found["qa"]["went"] == {"qa": 1, "nq_open": 1, "dense": 1, "rag": 1}
    assert found["qa"]["recall"]["share"] == 1 / 4
    assert found["qa"]["left_out"]["share"] == 2 / 4
    # No other domain was left to be mistaken for.
    assert found["rag"]["left_out"] is None


def test_the_table_has_a_row_a_domain_and_a_column_a_place() -> None:
    head, _, first, second = table(by_domain(ROWS[:1] + ROWS[4:])).splitlines()
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in (head, first, second)]
    assert cells[0] == ["test rows of", "qa", "rag", "dense", "recall", "dense if not in the index"]
    assert cells[1] == ["qa", "1", "", "", "100 % [21, 100]", "100 % [21, 100]"]
    assert cells[2] == ["rag", "", "1", "", "100 % [21, 100]", ""]


def test_a_share_is_shown_in_percent_with_its_interval() -> None:
    assert shown({"share": 0.5, "interval": (0.254, 0.746), "rows": 8}) == "50 % [25, 75]"
    assert shown(None) == ""


def answer(wall: float, *prefill: float) -> GeneratedText:
    stats = tuple(
        GenerationStats(1, 1, 0, 0, 0, (), seconds, 0.0, 0.0, wall, "eos") for seconds in prefill
    )
    return GeneratedText("x", stats)


def test_the_cost_is_pooled_over_requests() -> None:
    found = cost(
        [
            Timed(0.001, answer(1.0, 0.5), answer(0.9, 0.4)),
            # Two turns: both count for the request, the first alone was routed.
            Timed(0.003, answer(1.5, 0.2, 0.9), answer(1.5, 0.3, 0.1)),
        ]
    )
    assert found == pytest.approx(
        {
            "requests": 2,
            "request_ms": 2000.0,
            "router_ms": 2.0,
            "router_share": 0.001,
            "prefill_more_ms": 0.0,
            "prefill_more_share": 0.0,
        },
        abs=1e-12,
    )
    assert cost_line(found).startswith("routing takes 2.00 ms, 0.100% of a request of 2000 ms;")
