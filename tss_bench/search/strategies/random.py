"""Random sets: what a search must beat.

May import: the standard library, tss_bench.types and tss_bench.search (layer L1 of the design).
"""

from __future__ import annotations

import math
import random

from tss_bench.search.asking import BOTH, ask, decide, stopped_before
from tss_bench.search.rules import Choice, Rules
from tss_bench.search.space import SearchSpace
from tss_bench.search.types import Query, Search
from tss_bench.types import SkipSet


def random_sets(
    space: SearchSpace,
    rules: Rules,
    *,
    samples: int = 100,
    seed: int = 0,
    choice: Choice = "min_cost",
) -> Search:
    """Distinct sets of random size up to the depth; the best feasible one (TSS paper, baseline).

    Each size is equally likely, then each set of it. `samples` is lowered to the sets there are
    and to what the budget of evaluations leaves. Raises ValueError for samples below 1.
    """
    if samples < 1:
        raise ValueError(f"samples must be at least 1, got {samples}")
    layers = len(space.candidates)
    most = sum(math.comb(layers, size) for size in range(1, space.depth + 1))
    wanted = min(samples, most)
    if space.budget.evaluations is not None:
        wanted = min(wanted, space.budget.evaluations - 1)
    (first,) = yield Query([space.dense], BOTH, planned=1 + wanted)
    dense = first.score()
    rules.check_dense(dense)
    answered = yield from ask(Query(_draw(space, wanted, random.Random(seed)), BOTH))
    if answered is None:
        return (yield from decide(choice, rules, dense, [], stopped_before(1)))
    return (yield from decide(choice, rules, dense, answered))


def _draw(space: SearchSpace, wanted: int, source: random.Random) -> list[SkipSet]:
    """Distinct sets in the order drawn; a size of which every set is drawn is drawn no more."""
    left = {size: math.comb(len(space.candidates), size) for size in range(1, space.depth + 1)}
    drawn: dict[SkipSet, None] = {}
    while len(drawn) < wanted:
        size = source.choice([size for size, count in left.items() if count])
        skip = space.skip(source.sample(space.candidates, size))
        if skip not in drawn:
            drawn[skip] = None
            left[size] -= 1
    return list(drawn)
