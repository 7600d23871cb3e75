"""Forward greedy on the accept length alone.

May import: the standard library and tss_bench.search (layer L1 of the design).
"""

from __future__ import annotations

from tss_bench.search.asking import preset
from tss_bench.search.greedy import forward_greedy
from tss_bench.search.rules import Rules
from tss_bench.search.space import SearchSpace
from tss_bench.search.types import Search


@preset(early=2, late=0, depth=8)
def accept_only(space: SearchSpace, rules: Rules) -> Search:
    """Add the layer that raises the accept length most, until none does (TSS paper, its ablation).

    Chosen is the set of highest accept length among those evaluated; equal ones by lower
    layer cost, then the lexicographically smaller. The other objective is not looked at.
    """
    return (yield from forward_greedy(space, "accept"))
