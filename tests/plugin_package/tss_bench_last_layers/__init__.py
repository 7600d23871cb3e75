"""A search strategy of another package: skip the last k layers, for every k.

May import: tss_bench.
"""

from __future__ import annotations

from tss_bench.search import Query, Rules, Search, SearchSpace, decide


def last_layers(space: SearchSpace, rules: Rules, *, first: int = 1) -> Search:
    """The last `first`, `first` + 1, … layers up to the depth, the cheapest feasible ones."""
    layers = space.candidates
    sets = [space.skip(layers[-size:]) for size in range(first, space.depth + 1)]
    dense, *tried = (one.score() for one in (yield Query([space.dense, *sets])))
    return (yield from decide("min_cost", rules, dense, tried))
