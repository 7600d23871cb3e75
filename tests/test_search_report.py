"""Tables and provenance of a search, from results made by hand.

May import: pytest, tss_bench.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tss_bench.domains import DomainConfig, DomainMap
from tss_bench.harness import TaskRequests
from tss_bench.search import (
    Counts,
    Evaluation,
    EvaluationTable,
    Fingerprint,
    Option,
    Rules,
    Score,
    SearchResult,
    SearchSpace,
    Spent,
    Strategy,
)
from tss_bench.search_report import (
    METRIC_FLOOR,
    Found,
    joined,
    metric_floor,
    record,
    results_table,
    singles_table,
    strategies_table,
    sweep_table,
)
from tss_bench.types import SkipSet

DENSE, ONE = SkipSet.dense(4), SkipSet.of([1], 4)
PRINT = Fingerprint("m", "d", "data", "strict", "verify", "v")


def found(best: SkipSet = ONE, floor: str | None = None, **rules: Any) -> Found:
    task = SimpleNamespace(
        aggregation=lambda: {"f1": sum}, config=SimpleNamespace(task_alias="qa (calibration)")
    )
    scores = {DENSE: Score(DENSE, 2.0, 0.5, 1.0), ONE: Score(ONE, 1.0, 0.25, 0.75)}
    result = SearchResult(
        scores[best],
        pareto=(scores[ONE],),
        reason="because",
        dense=scores[DENSE],
        counts=Counts(evaluations=5, prompt_evaluations=10),
        spent=Spent(12.34567, ("a CPU", "a GPU")),
        strategy="tss_bfs",
        options={"seeds": (1, 2)},
    )
    requests = TaskRequests("specbench_qa", cast(Any, task), [])
    return Found("qa", requests, SearchSpace(4, 2, depth=1), Rules(**rules), result, floor, 7)


@pytest.fixture
def table() -> EvaluationTable:
    """Dense: A 2.0 and M 0.5 over two rows, one of them unscored; without layer 1: 1.0, 0.25."""
    table = EvaluationTable()
    table.add(Evaluation(DENSE, (0, 1), accept=((8, 4), (4, 2)), metric=(0.5, None)))
    for layer in range(4):
        skip = SkipSet.of([layer], 4)
        table.add(Evaluation(skip, (0, 1), accept=((6, 6), (6, 6)), metric=(0.25, None)))
    return table


def cells(text: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()[2:]]


def rows(*choices: int) -> TaskRequests:
    """A task whose rows have this many choices."""
    requests = [SimpleNamespace(doc={"choices": ["x"] * count}) for count in choices]
    return TaskRequests("one", cast(Any, None), cast(Any, requests))


def test_a_metric_is_at_its_floor_below_the_constant_or_where_there_is_none() -> None:
    assert metric_floor(Score(DENSE, 2.0, METRIC_FLOOR), rows(0, 0)) is None
    assert "0.0499 is at its floor" in str(metric_floor(Score(DENSE, 2.0, 0.0499), rows(0)))
    assert "no calibration row has a reference" in str(metric_floor(Score(DENSE, 2.0), rows(0)))


def test_an_accuracy_is_at_its_floor_where_guessing_gives_as_much() -> None:
    # Guesses among 4, 4 and 2 choices are right in a third of the rows.
    four_and_two = rows(4, 4, 2)
    told = str(metric_floor(Score(DENSE, 2.0, 1 / 3), four_and_two))
    assert "guessing among the choices gives 0.3333" in told
    assert metric_floor(Score(DENSE, 2.0, 0.34), four_and_two) is None
    assert metric_floor(Score(DENSE, 2.0, 0.2), rows(4, 0)) is None


def test_a_result_row_has_the_set_both_figures_their_changes_and_the_effort(
    table: EvaluationTable,
) -> None:
    (row,) = cells(results_table([(found(), table)]))
    assert row[:4] == ["qa", "qa (calibration)", "{1}", "0.250"]
    # Both rows lose half: the interval is a point, the p-value the smallest there is.
    assert row[4] == "1.00 [1.00, 1.00]"
    assert row[5].startswith("-50.0 % [-50.0, -50.0]")
    assert row[6] == "f1 0.250"
    assert row[7].startswith("-50.0 %")
    assert row[8:] == ["0.750", "5 (7)", "12.3", "because; outside the tolerance"]


def test_a_dense_row_has_no_change_and_a_choice_on_a_alone_says_so(table: EvaluationTable) -> None:
    (row,) = cells(results_table([(found(DENSE), table)]))
    assert (row[2], row[5], row[7], row[-1]) == ("{}", "", "", "because")
    alone = found(floor="the metric is low", use_metric=False, eps=0.5)
    (row,) = cells(sweep_table([(alone, table)]))
    assert row[1] == "+0.50"
    assert row[-1] == "because; chosen on A alone: the metric is low"


def timed(best: SkipSet, dense_ms: float | None, best_ms: float | None) -> Found:
    """A result under measured costs."""
    one = found(best, cost="measured")
    dense = Score(DENSE, 2.0, 0.5, dense_ms)
    chosen = replace(one.result.best, cost=best_ms)
    return replace(one, result=replace(one.result, best=chosen, dense=dense))


def test_a_measured_cost_is_shown_in_milliseconds_beside_dense(table: EvaluationTable) -> None:
    shown = [timed(ONE, 42.0, 31.504), timed(DENSE, 42.0, 42.0), timed(DENSE, None, None)]
    rows = cells(results_table([(one, table) for one in shown]))
    assert [row[8] for row in rows] == ["31.50 ms (dense 42.00)", "42.00 ms", ""]
    told = [record(one, PRINT, "qa.jsonl") for one in shown]
    assert [one["cost"] for one in told] == [31.504, 42.0, None]
    assert [one["dense"]["cost"] for one in told] == [42.0, 42.0, None]
    assert {one["cost_unit"] for one in told} == {"ms a verification step"}


def test_unknown_seconds_are_an_empty_cell_and_null(table: EvaluationTable) -> None:
    one = found()
    one = replace(one, result=replace(one.result, spent=None))
    (row,) = cells(results_table([(one, table)]))
    assert row[10] == ""
    told = record(one, PRINT, "qa.jsonl")
    assert (told["seconds"], told["machine"]) == (None, None)


def test_singles_have_a_row_each_and_a_verdict(table: EvaluationTable) -> None:
    rows = cells(singles_table([(found(DENSE), table)]))
    assert [row[1] for row in rows] == ["{}", "{0}", "{1}", "{2}", "{3}"]
    assert [row[-1] for row in rows] == ["yes", "no", "no", "no", "no"]


def test_a_set_without_evaluations_has_empty_figures() -> None:
    (row,) = cells(results_table([(found(), EvaluationTable())]))
    assert row[4:8] == ["", "", "f1", ""]


def test_a_record_is_plain_json_and_a_map_keeps_what_it_had() -> None:
    told = record(found(), PRINT, "qa.jsonl")
    assert told["options"] == {"seeds": [1, 2]}
    assert (told["cost"], told["cost_unit"]) == (0.75, "active / L")
    assert told["dense"] == {"accept": 2.0, "metric": 0.5, "cost": 1.0}
    assert (told["seconds"], told["machine"]) == (12.346, "a CPU; a GPU")
    assert told["fingerprint"]["sha256"] == PRINT.digest()
    before = DomainMap(
        "m",
        "d",
        4,
        domains={"rag": DomainConfig(DENSE)},
        provenance={"by": "hand", "search": {"rag": {"rows": 3}}},
    )
    after = joined(before, found(), told)
    assert list(after.domains) == ["rag", "qa"]
    assert after.domains["qa"] == DomainConfig(ONE, 1.0, 0.25)
    assert list(after.pareto["qa"]) == [DomainConfig(ONE, 1.0, 0.25)]
    assert after.provenance["by"] == "hand"
    assert list(after.provenance["search"]) == ["rag", "qa"]


def test_the_list_of_strategies_writes_options_as_they_are_typed() -> None:
    options = (
        Option("layers", (1, 2), tuple[int, ...]),
        Option("keep", True, bool),
        Option("most", None, int | None),
    )
    one = Strategy("mine", lambda: None, "my-package", "What it does.", options, {"early": 2})
    assert strategies_table([one]).splitlines() == [
        "mine  (my-package)",
        "  What it does.",
        "  runs with --early 2 where these are not given",
        "  --opt layers=1+2  a list like 1+2, each a whole number",
        "  --opt keep=true  true or false",
        "  --opt most=none  a whole number or none",
    ]
