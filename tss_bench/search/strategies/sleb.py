"""SLEB: remove the block that the language-model loss misses least, again and again.

May import: the standard library and tss_bench.search (layer L1 of the design).
"""

from __future__ import annotations

import math

from tss_bench.search.asking import ask, preset, stopped_before, union
from tss_bench.search.rules import Rules
from tss_bench.search.space import SearchSpace
from tss_bench.search.types import Query, Score, Search, SearchResult


@preset(early=2, late=0, depth=4)
def sleb(space: SearchSpace, rules: Rules, *, blocks: int | None = None) -> Search:
    """Greedy removal by token loss (SLEB, arXiv 2402.09025, Algorithm 1).

    Each round takes out the block whose removal raises the mean token loss of the calibration
    text least (ties: the lower layer), until `blocks` are out (default: the depth). SLEB counts
    its barriers on the alive blocks; since those behind a barrier never go, that is the same as
    counting them once. Acceptance and metric are not looked at.
    Raises ValueError for more blocks than the barriers leave.
    """
    wanted = space.depth if blocks is None else blocks
    if not 1 <= wanted <= len(space.candidates):
        raise ValueError(f"blocks must lie in 1 … {len(space.candidates)}, got {wanted}")
    best = Score(space.dense)
    rounds = len(space.candidates)
    planned = sum(rounds - done for done in range(wanted))
    for _ in range(wanted):
        layers = [layer for layer in space.candidates if layer not in best.skip]
        query = Query([union(best.skip, layer) for layer in layers], {"loss"}, planned=planned)
        answered = yield from ask(query)
        if answered is None:
            stopped = stopped_before(len(best.skip) + 1)
            return SearchResult(best, reason="the blocks that the budget allowed", stopped=stopped)
        best = min(answered, key=lambda score: math.inf if score.loss is None else score.loss)
    return SearchResult(best, reason=f"lowest token loss with {wanted} blocks removed")
