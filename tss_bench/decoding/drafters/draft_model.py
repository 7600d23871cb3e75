"""A draft model: any smaller causal LM with the target's tokenizer drafts a chain greedily.

May import: torch, decoding.{target, tree}, drafters.base, tss_bench.types. Source:
speculative decoding with a draft model (arXiv 2211.17192, 2302.01318); greedy drafts, so that
the probability of a draft is 1.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from tss_bench.decoding.drafters.base import Prompt, Step
from tss_bench.decoding.target import Target
from tss_bench.decoding.tree import DraftTree
from tss_bench.types import SkipSet

# Positions by which a full cache grows.
_ROOM = 128


class DraftModel:
    """Drafts `num_draft_tokens` ids with `model`, which keeps its own keys and values.

    Every id is read once: a rejected draft's entries are cut off, and the last draft of a chain
    is read with the bonus if it was accepted. `vocab_size` is the target's: ids from there on
    are never drafted, and behind an id that `model` has no embedding for, or outside its
    context, nothing is. Raises ValueError for `num_draft_tokens` below 1.
    """

    replayable = True
    feature_layers: tuple[int, ...] = ()

    def __init__(self, model: Target, vocab_size: int, num_draft_tokens: int = 5) -> None:
        if num_draft_tokens < 1:
            raise ValueError(f"num_draft_tokens must be at least 1, got {num_draft_tokens}")
        self.model = model
        self.max_nodes = 1 + num_draft_tokens
        self._length = num_draft_tokens
        self._vocab_size = min(vocab_size, model.vocab_size)
        self._dense = SkipSet.dense(model.num_layers)
        self.reset()

    def reset(self) -> None:
        self._cache = self.model.new_cache(0)
        # The text so far; the cache holds a beginning of it, then drafts that wait for a verdict.
        self._ids: list[int] = []
        self._readable = True

    @torch.inference_mode()
    def begin(self, prompt: Prompt) -> None:
        self.reset()
        self._extend(prompt.ids)
        if self._room() > 0:
            self._reserve(len(self._ids) + self.max_nodes)
            self._read(self._tensor(self._ids))
        self._extend((prompt.first,))

    @torch.inference_mode()
    def propose(self, root: int, max_depth: int) -> DraftTree:
        # The last draft is not read here, so it may lie one position outside the context.
        count = min(self._length, max_depth, self._room() + 1)
        if count < 1:
            return DraftTree.root(root)
        self._reserve(len(self._ids) + count)
        drafts = [self._read(self._tensor(self._ids[self._cache.length :]))]
        while len(drafts) < count:
            drafts.append(self._read(drafts[-1]))
        return DraftTree.chain(root, torch.cat(drafts).tolist())

    def observe(self, step: Step) -> None:
        right = len(self._ids) + len(step.acceptance.path) - 1
        self._cache.truncate(min(self._cache.length, right))
        self._extend(step.accepted)

    def fork(self) -> DraftModel:
        forked = copy.copy(self)
        forked._ids = [*self._ids]
        forked._cache = self._cache.copy(self._cache.capacity)
        return forked

    def _extend(self, ids: Collection[int]) -> None:
        self._ids.extend(ids)
        self._readable &= max(ids) < self.model.vocab_size

    def _room(self) -> int:
        """Positions of the context behind the text; negative where nothing can be drafted."""
        return self.model.context_length - len(self._ids) if self._readable else -1

    def _reserve(self, positions: int) -> None:
        if positions > self._cache.capacity:
            self._cache = self._cache.copy(positions + _ROOM)

    def _read(self, ids: Tensor) -> Tensor:
        """Append ids [n] to the cache; the likeliest next id [1], the lowest of equal ones."""
        hidden = self.model.prefill(ids[None], self._cache, self._dense)[0, -1:]
        scores = self.model.logits(hidden)[:, : self._vocab_size]
        return scores.max(dim=-1).indices

    def _tensor(self, ids: Sequence[int]) -> Tensor:
        return torch.tensor(ids, device=self.model.device)
