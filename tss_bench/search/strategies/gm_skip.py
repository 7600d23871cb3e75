"""GM-Skip: metric-guided greedy removal, from the last block backwards.

May import: the standard library and tss_bench.search (layer L1 of the design).
"""

from __future__ import annotations

from tss_bench.search.asking import ask, preset, stopped_before, union
from tss_bench.search.rules import Rules
from tss_bench.search.space import SearchSpace
from tss_bench.search.types import Query, Score, Search, SearchResult


@preset(early=2, late=0, depth=4)
def gm_skip(space: SearchSpace, rules: Rules, *, balance: float | None = None) -> Search:
    """Greedy by the task metric, reverse order (GM-Skip, arXiv 2508.18227).

    Each round skips the block that keeps the metric highest, ties to the later block, down to
    the depth. Chosen is the last set on that path inside the metric tolerance, or, with `balance`
    in 0 … 1, the one with the highest balance * M/M0 + (1 - balance) * |S|/L.
    Raises ValueError for a balance outside its range, or one to a dense metric of 0.
    """
    if balance is not None and not 0 <= balance <= 1:
        raise ValueError(f"balance must lie in 0 … 1, got {balance}")
    sizes = range(len(space.candidates), len(space.candidates) - space.depth, -1)
    (first,) = yield Query([space.dense], {"metric"}, planned=1 + sum(sizes))
    dense = first.score()
    if dense.metric is None or (balance is not None and not dense.metric):
        raise ValueError(
            f"gm_skip is guided by the metric, and the dense one is {dense.metric}; take another "
            f"strategy for this task" + (", or leave out balance" if balance is not None else "")
        )
    path, stopped = [dense], None
    while len(path) <= space.depth:
        skip = path[-1].skip
        layers = [layer for layer in reversed(space.candidates) if layer not in skip]
        answered = yield from ask(Query([union(skip, layer) for layer in layers], {"metric"}))
        if answered is None:
            stopped = stopped_before(len(path))
            break
        # The first of equals is the latest block.
        path.append(max(answered, key=lambda score: score.metric or 0))
    if balance is None:
        best = [score for score in path if not score.skip or rules.keeps_metric(dense, score)][-1]
        reason = "last set of the path inside the metric tolerance"
    else:
        best = max(path, key=lambda score: _balanced(score, dense.metric or 1, balance))
        reason = f"best balance {balance} of the path"
    if not best.skip:
        reason = "dense kept: no set of the path is better"
    return SearchResult(best, reason=reason, stopped=stopped)


def _balanced(score: Score, dense: float, weight: float) -> float:
    return weight * (score.metric or 0) / dense + (1 - weight) * score.skip.sparsity
