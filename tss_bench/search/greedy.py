"""Forward greedy on one objective, which two strategies share.

May import: the standard library and tss_bench.search (layer L1 of the design).
"""

from __future__ import annotations

import math
from typing import Literal

from tss_bench.search.asking import ask, stopped_before, union
from tss_bench.search.space import SearchSpace
from tss_bench.search.types import Query, Score, Search, SearchResult


def forward_greedy(space: SearchSpace, objective: Literal["accept", "metric"]) -> Search:
    """Add the best layer while the objective rises and the depth allows.

    Returns the highest set of all evaluated ones, the dense one included; equal ones by lower
    layer cost, then the lexicographically smaller layers.
    Raises ValueError where the dense target has no value of the objective.
    """

    def value(score: Score) -> float:
        found = score.accept if objective == "accept" else score.metric
        return -math.inf if found is None else found

    def key(score: Score) -> tuple[float, int, tuple[int, ...]]:
        return (-value(score), -len(score.skip), tuple(score.skip))

    (first,) = yield Query([space.dense], {objective})
    dense = top = first.score()
    if value(dense) == -math.inf:
        raise ValueError(f"the dense target has no {objective} on any calibration prompt")
    tried, stopped = [dense], None
    while len(top.skip) < space.depth:
        layers = [layer for layer in space.candidates if layer not in top.skip]
        answered = yield from ask(Query([union(top.skip, layer) for layer in layers], {objective}))
        if answered is None:
            stopped = stopped_before(len(top.skip) + 1)
            break
        tried += answered
        best = min(answered, key=key)
        if value(best) <= value(top):
            break
        top = best
    chosen = min(tried, key=key)
    if chosen.skip:
        reason = f"highest {objective} of {len(tried)} sets"
    else:
        reason = f"dense kept: no set of {len(tried) - 1} has a higher {objective}"
    return SearchResult(chosen, reason=reason, stopped=stopped)
