"""The choice of Algorithm 1 without measuring every set on every prompt.

May import: the standard library, tss_bench.types and tss_bench.search (layer L1 of the design).
"""

from __future__ import annotations

import random
from collections.abc import Generator, Sequence
from dataclasses import replace

from tss_bench.search.asking import BOTH, decide
from tss_bench.search.bounds import FEWEST, Bound
from tss_bench.search.racing import Race
from tss_bench.search.rules import Rules, min_cost
from tss_bench.search.space import SearchSpace
from tss_bench.search.types import BudgetExhausted, Evaluation, Query, Score, Search
from tss_bench.types import SkipSet

Steps = Generator[Query, list[Evaluation], None]


def tss_race(
    space: SearchSpace,
    rules: Rules,
    *,
    bound: Bound = "exact",
    delta: float = 0.05,
    chunk: int = 1,
    width: int = 1,
    seed: int = 0,
) -> Search:
    """Racing for the `min_cost` choice of `tss_bfs` (ours; racing: Maron and Moore 1993).

    Sets are measured `chunk` prompts at a time and dropped as soon as they can no longer be
    feasible, or no longer be best: below the last depth one feasible set is enough to go on, and
    at the deepest depth that has one, sets that cannot reach the best accept length so far are
    out. (With cost `measured` any feasible set may be best, so only infeasible ones are dropped.)

    `bound=exact` (default) drops on certainty alone and gives provably the set that `tss_bfs`
    gives, with at most as many prompt evaluations. It assumes what `space.limits` says of a
    prompt not seen (at most max_accept ids a step, max_emitted ids in all; without limits nothing
    is dropped on A) and metrics in 0 … 1. `hoeffding` and `student` also drop on a paired bound
    that errs with probability `delta` a look (see `tss_bench.search.bounds`); prompts then come
    in random order from `seed`. Nothing is let in on such a bound: a set that is chosen is
    feasible, but it may not be the best, or dense may be kept though one is. Without a budget that
    ends it early, no race asks for a set that `tss_bfs` would not. `width` sets at a time are
    measured where one would do, for executors that work in parallel.

    The Pareto set is over the sets measured in full. Raises ValueError for a depth above 2
    without a budget, and for options out of range.
    """
    space.require_budget("tss_race")
    if not 0 < delta < 0.5 or chunk < 1 or width < 1:
        raise ValueError(
            f"delta must lie in 0 … 0.5, chunk and width be at least 1; got {delta}, {chunk}, "
            f"{width}"
        )
    (dense,) = yield Query([space.dense], BOTH, planned=space.count())
    rules.check_dense(dense.score())
    race = Race(space, rules, dense, _order(dense, bound, seed), bound, delta)
    levels: list[list[SkipSet]] = []
    stopped = None
    try:
        yield from _traverse(space, rules, race, levels, chunk, width)
    except BudgetExhausted as error:
        stopped = str(error)
    known = [race.score(skip) for level in levels for skip in level if race.complete(skip)]
    result = yield from decide("min_cost", rules, race.dense, known, stopped)
    if result.kept_dense and not stopped:
        tried = sum(map(len, levels))
        sure = "can be feasible" if bound == "exact" else f"is likely to be feasible ({bound})"
        return replace(result, reason=f"dense kept: none of {tried} sets {sure}")
    return result


def _order(dense: Evaluation, bound: Bound, seed: int) -> list[int]:
    """Random for a bound on samples; for the exact one, where acceptance is worst, first.

    There a bad set loses most, and what is not seen yet counts as good.
    """
    score, pairs = dense.score(), dict(zip(dense.prompts, dense.accept or (), strict=True))
    order = list(dense.prompts)
    if bound == "exact":
        return sorted(order, key=lambda i: pairs[i][0] - (score.accept or 0) * pairs[i][1])
    random.Random(seed).shuffle(order)
    return order


def _traverse(
    space: SearchSpace,
    rules: Rules,
    race: Race,
    levels: list[list[SkipSet]],
    chunk: int,
    width: int,
) -> Steps:
    """Fill `levels` as Algorithm 1 would, and measure what may be chosen in full."""
    singles = [*space.singles()]
    while open_singles := [skip for skip in singles if race.in_pool(skip) is None]:
        few = [skip for skip in open_singles if race.seen(skip) < FEWEST]
        yield from race.advance(few or open_singles, max(chunk, FEWEST) if few else chunk)
    level = [skip for skip in singles if race.in_pool(skip)]
    pool = [layer for skip in level for layer in skip]
    all_of_them = rules.cost == "measured"
    for depth in range(1, space.depth + 1):
        if depth > 1:
            level = [*space.subsets(pool, depth)]
        levels.append(level)
        if all_of_them:
            yield from _measure_feasible(race, level, chunk)
        elif depth < space.depth:
            yield from _find_feasible(race, level, chunk, width)
        if depth < space.depth and not any(race.feasible(skip) for skip in level):
            break
    for level in reversed(levels):
        if not all_of_them:
            yield from _find_best(race, level, chunk, width)
        if any(race.complete(skip) and race.feasible(skip) for skip in level):
            break


def _measure_feasible(race: Race, level: Sequence[SkipSet], chunk: int) -> Steps:
    """Measure every set of the level in full, unless it cannot be feasible."""
    while left := [
        skip for skip in level if race.feasible(skip) is not False and not race.complete(skip)
    ]:
        yield from race.advance(left, chunk)


def _find_feasible(race: Race, level: Sequence[SkipSet], chunk: int, width: int) -> Steps:
    """Until one set of the level is feasible or none can be, the likeliest ones first."""
    while not any(race.feasible(skip) for skip in level):
        left = [skip for skip in level if race.feasible(skip) is None]
        if not left:
            return
        yield from race.advance(sorted(left, key=race.outlook, reverse=True)[:width], chunk)


def _find_best(race: Race, level: Sequence[SkipSet], chunk: int, width: int) -> Steps:
    """Until every set of the level is measured in full, not feasible, or beaten.

    All sets see a few prompts; then the one that looks best is measured on, until none that is
    not complete looks better than the best complete one; then all that are left move on together.
    """
    while True:
        best = _best_complete(race, level)
        left = [
            skip
            for skip in level
            if not race.complete(skip)
            and race.feasible(skip) is not False
            and not race.beaten(skip, best)
        ]
        if not left:
            return
        if few := [skip for skip in left if race.seen(skip) < FEWEST]:
            yield from race.advance(few, max(chunk, FEWEST))
            continue
        ranked = sorted(left, key=race.outlook, reverse=True)
        better = [skip for skip in ranked if _looks_better(race, skip, best)]
        yield from race.advance(better[:width] or left, chunk)


def _best_complete(race: Race, level: Sequence[SkipSet]) -> Score | None:
    return min_cost(
        race.score(skip) for skip in level if race.complete(skip) and race.feasible(skip)
    )


def _looks_better(race: Race, skip: SkipSet, best: Score | None) -> bool:
    feasible, accept = race.outlook(skip)
    return feasible and (best is None or accept > (best.accept or 0))
