"""Algorithm 1 of the TSS paper: every subset of the pool, level by level.

May import: the standard library and tss_bench.search (layer L1 of the design).
"""

from __future__ import annotations

from tss_bench.search.asking import BOTH, ask, decide, stopped_before
from tss_bench.search.rules import Choice, Rules
from tss_bench.search.space import SearchSpace
from tss_bench.search.types import Query, Score, Search


def tss_bfs(space: SearchSpace, rules: Rules, *, choice: Choice = "min_cost") -> Search:
    """Exhaustive search by level (TSS paper, arXiv 2609.26100, Algorithm 1).

    Dense and singles; pool of the layers that pass tau on A or M; for k = 1 … depth all k-subsets
    of the pool, of which those that pass eps on A and M are kept; it ends at a depth with none.
    Raises ValueError for a depth above 2 without a budget.
    """
    space.require_budget("tss_bfs")
    first = yield Query([space.dense, *space.singles()], BOTH, planned=space.count())
    dense, *singles = (evaluation.score() for evaluation in first)
    rules.check_dense(dense)
    level = [single for single in singles if rules.in_pool(dense, single)]
    pool = [layer for single in level for layer in single.skip]
    tried: list[Score] = []
    for depth in range(1, space.depth + 1):
        if depth > 1:
            subsets = space.subsets(pool, depth)
            answered = yield from ask(Query(subsets, BOTH, planned=space.count(len(pool))))
            if answered is None:
                return (yield from decide(choice, rules, dense, tried, stopped_before(depth)))
            level = answered
        tried += level
        if not any(rules.feasible(dense, score) for score in level):
            break
    return (yield from decide(choice, rules, dense, tried))
