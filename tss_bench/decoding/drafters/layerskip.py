"""LayerSkip self-speculation (arXiv 2404.16710): the target's first blocks draft for it.

A draft is what the final norm and head make of the hidden state that leaves block E - 1. Those
states are kept: verification goes on from them with blocks E … L-1, so no block is run twice for
a node, and there is one cache. Under a skip set the draft leaves out the skipped blocks below E,
too: its states and keys are then the sparse target's own, and the output stays exact.

May import: torch, decoding.{kv_cache, target, tree}, drafters.base, tss_bench.types.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from tss_bench.decoding.drafters.base import Prompt, Step
from tss_bench.decoding.kv_cache import KVCache
from tss_bench.decoding.target import Target
from tss_bench.decoding.tree import DraftTree
from tss_bench.types import SkipSet


class LayerSkip:
    """Drafts a chain of at most `num_speculations` ids with blocks 0 … `exit_layer` - 1.

    A draft in `ends` (end-of-text ids) is the last one, as in facebook's code. So is one whose
    probability is below `confidence`, as `assistant_confidence_threshold` works in transformers;
    0 never stops. Raises ValueError for sizes outside their range.
    """

    # It needs the cache of a target that answers.
    replayable = False
    feature_layers: tuple[int, ...] = ()

    def __init__(
        self,
        exit_layer: int,
        num_speculations: int,
        confidence: float = 0.0,
        ends: Collection[int] = (),
    ) -> None:
        for name, value in (("exit_layer", exit_layer), ("num_speculations", num_speculations)):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if not 0 <= confidence <= 1:
            raise ValueError(f"the draft confidence must be 0 to 1, got {confidence}")
        self.exit_layer = exit_layer
        self.max_nodes = num_speculations + 1
        self._confidence = confidence
        self._ends = frozenset(ends)
        self._shared: tuple[Target, KVCache, SkipSet] | None = None
        self._states: list[Tensor] = []

    def reset(self) -> None:
        self.detach()

    def fork(self) -> LayerSkip:
        forked = copy.copy(self)
        forked._states = list(self._states)
        return forked

    def attach(self, target: Target, cache: KVCache, skip: SkipSet) -> None:
        """See `SharesTarget`. Raises ValueError for a target without a block `exit_layer`."""
        if self.exit_layer >= target.num_layers:
            raise ValueError(
                f"exit_layer must be 1 to {target.num_layers - 1} for a target of "
                f"{target.num_layers} layers, got {self.exit_layer}"
            )
        self._shared = target, cache, skip

    def detach(self) -> None:
        self._shared = None
        self._states = []

    def begin(self, prompt: Prompt) -> None:
        self._states = []

    def propose(self, root: int, max_depth: int) -> DraftTree:
        self._states = []
        chain = [root]
        while len(chain) <= min(self.max_nodes - 1, max_depth):
            self._run(chain[-1:])
            draft, sure = self._draft()
            chain.append(draft)
            if not sure or draft in self._ends:
                break
        return DraftTree.chain(root, chain[1:])

    def entering(self, tree: DraftTree) -> Tensor:
        # The last draft has been through no block yet, nor has a root without drafts.
        if len(self._states) < len(tree):
            self._run(tree.tokens[len(self._states) :])
        return torch.cat(self._states[: len(tree)])

    def observe(self, step: Step) -> None:
        pass

    def _run(self, tokens: Sequence[int]) -> None:
        """Put the chain's next nodes through the early blocks, behind those that were."""
        target, cache, skip = self._attached()
        past = cache.length
        cache.advance(len(self._states))
        ids = torch.tensor([list(tokens)], device=target.device)
        positions = torch.arange(len(tokens), device=target.device)[None] + cache.length
        hidden = target.forward_to(self.exit_layer, ids, positions, cache, skip)
        cache.truncate(past)
        self._states.extend(hidden[0].split(1))

    def _draft(self) -> tuple[int, bool]:
        """The likeliest id behind the last node, and whether it is likely enough to go on."""
        target, _, _ = self._attached()
        logits = target.exit_logits(self._states[-1])[0]
        best, draft = logits.max(dim=-1)
        if not self._confidence:
            return int(draft), True
        logarithm = float(best) - float(logits.float().logsumexp(dim=-1))
        return int(draft), math.exp(logarithm) >= self._confidence

    def _attached(self) -> tuple[Target, KVCache, SkipSet]:
        if self._shared is None:
            raise RuntimeError("LayerSkip drafts with a target: call attach before propose")
        return self._shared
