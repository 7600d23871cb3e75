"""The practice of the TSS paper: a beam over growing sets.

May import: the standard library, tss_bench.types and tss_bench.search (layer L1 of the design).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Generator, Sequence

from tss_bench.search.asking import BOTH, ask, decide, preset, stopped_before, union, with_costs
from tss_bench.search.rules import Choice, Rules, at_least
from tss_bench.search.space import SearchSpace
from tss_bench.search.types import Evaluation, Query, Score, Search
from tss_bench.types import SkipSet


@preset(early=2, late=0, depth=8)
def tss_beam(
    space: SearchSpace, rules: Rules, *, beam: int = 3, choice: Choice = "triple_win"
) -> Search:
    """Beam search (TSS paper, arXiv 2609.26100, Table 3: beam 3, early barrier 2, late 0).

    All singles, then every one-layer extension of the `beam` best sets of a depth. A set is
    extended only if its A is at least the dense one; rank: A, M, tokens/s, later layers.
    The depth of 8 is above every published set; the search mostly ends before.
    Raises ValueError for a beam below 1.
    """
    if beam < 1:
        raise ValueError(f"beam must be at least 1, got {beam}")
    first = [space.dense, *space.singles()]
    planned = len(first) + _most(space, beam, 2)
    dense, *level = [one.score() for one in (yield Query(first, BOTH, planned=planned))]
    rules.check_dense(dense)
    tried = [*level]
    for depth in range(2, space.depth + 1):
        grown = [score for score in level if at_least(score.accept, dense.accept or 0)]
        best = (yield from _ranked(dense, grown))[:beam]
        if not best:
            break
        sets = _extensions(space, best)
        planned = 1 + len(tried) + len(sets) + _most(space, beam, depth + 1)
        answered = yield from ask(Query(sets, BOTH, planned=planned))
        if answered is None:
            return (yield from decide(choice, rules, dense, tried, stopped_before(depth)))
        level = answered
        tried += level
    return (yield from decide(choice, rules, dense, tried))


def _most(space: SearchSpace, beam: int, first: int) -> int:
    """Sets that the depths from `first` on can have: each of `beam` sets grows by every layer."""
    layers = len(space.candidates)
    depths = range(first, space.depth + 1)
    return sum(min(math.comb(layers, k), beam * (layers - k + 1)) for k in depths)


def _extensions(space: SearchSpace, sets: Sequence[Score]) -> list[SkipSet]:
    grown = (
        union(score.skip, layer)
        for score in sets
        for layer in space.candidates
        if layer not in score.skip
    )
    return list(dict.fromkeys(grown))


def _ranked(
    dense: Score, scores: Sequence[Score]
) -> Generator[Query, list[Evaluation], list[Score]]:
    """Best first; a cost is asked for only where A and M leave a tie."""
    shared = Counter((score.accept, score.metric) for score in scores)
    tied = [score for score in scores if shared[score.accept, score.metric] > 1]
    if tied:
        _, priced = yield from with_costs(dense, tied)
        known = {score.skip: score for score in priced}
        scores = [known.get(score.skip, score) for score in scores]
    return sorted(scores, key=_key)


def _key(score: Score) -> tuple[float, float, float, list[int]]:
    later = [-layer for layer in sorted(score.skip, reverse=True)]
    return (-(score.accept or 0), -(score.metric or 0), -(score.speed or 0), later)
