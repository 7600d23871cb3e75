"""No drafter: plain autoregressive decoding through the same loop.

May import: decoding.tree, drafters.base.
"""

from __future__ import annotations

from tss_bench.decoding.drafters.base import Prompt, Step
from tss_bench.decoding.tree import DraftTree


class NoDraft:
    """Proposes nothing, so every step emits exactly one id."""

    max_nodes = 1
    replayable = True
    feature_layers: tuple[int, ...] = ()

    def begin(self, prompt: Prompt) -> None:
        pass

    def propose(self, root: int, max_depth: int) -> DraftTree:
        return DraftTree.root(root)

    def observe(self, step: Step) -> None:
        pass

    def fork(self) -> NoDraft:
        return self

    def reset(self) -> None:
        pass
