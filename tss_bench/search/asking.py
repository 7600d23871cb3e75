"""What strategies share: asking for scores, and putting their answer together.

May import: the standard library, tss_bench.types and tss_bench.search (layer L1 of the design).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from typing import TypeVar

from tss_bench.search.rules import Choice, Rules, choose, explain, pareto_front, qualifies
from tss_bench.search.types import (
    BudgetExhausted,
    Evaluation,
    Query,
    Score,
    SearchResult,
    StrategyFunction,
    Want,
)
from tss_bench.types import SkipSet

F = TypeVar("F", bound=StrategyFunction)
Asking = Generator[Query, list[Evaluation], list[Score] | None]

BOTH: tuple[Want, ...] = ("accept", "metric")


def ask(query: Query) -> Asking:
    """Scores in the order of the query's sets, or None where the budget does not reach it."""
    try:
        evaluations = yield query
    except BudgetExhausted:
        return None
    return [evaluation.score() for evaluation in evaluations]


def with_costs(
    dense: Score, scores: Sequence[Score]
) -> Generator[Query, list[Evaluation], tuple[Score, list[Score]]]:
    """Dense and the others with their costs, all asked for in one batch."""
    listed = [dense, *scores]
    answered = yield Query([score.skip for score in listed], want={"cost"})
    first, *others = (
        Score(score.skip, score.accept, score.metric, answer.cost, score.loss)
        for score, answer in zip(listed, answered, strict=True)
    )
    return first, others


def decide(
    choice: Choice,
    rules: Rules,
    dense: Score,
    scores: Iterable[Score],
    stopped: str | None = None,
) -> Generator[Query, list[Evaluation], SearchResult]:
    """The result of a traversal that kept these scores: costs, Pareto set, choice and reason.

    Costs are asked only for the sets whose A and M qualify.
    """
    tried = [score for score in scores if score.skip]
    good = [score for score in tried if qualifies(choice, rules, dense, score)]
    dense, good = yield from with_costs(dense, good)
    best = choose(choice, rules, dense, good)
    reason = explain(choice, rules, dense, tried)
    if best:
        reason = f"{choice} among {len(good)} of {len(tried)} sets that qualify"
    return SearchResult(best or dense, pareto_front(good), reason, stopped, dense)


def preset(**values: int) -> Callable[[F], F]:
    """Mark a strategy with the barriers and depth it runs with where the user gives none."""

    def mark(function: F) -> F:
        vars(function)["preset"] = values
        return function

    return mark


def union(skip: SkipSet, layer: int) -> SkipSet:
    return SkipSet(skip.layers | {layer}, skip.num_layers)


def stopped_before(depth: int) -> str:
    """What `SearchResult.stopped` says where the budget ended a search between two depths."""
    return f"the budget ended before depth {depth}"
