"""The EAGLE drafter for many answers side by side: one head pass a tree level for all rows.

May import: torch, decoding.{batch_cache, tree}, drafters.{base, eagle}. Proposes for each row the
very tree that `Eagle` would, with a dynamic tree as in EAGLE-2 (arXiv 2406.16858). Shapes: B
rows, k candidates a node, P nodes tried, H hidden.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tss_bench.decoding.batch_cache import BatchCache, Prefix
from tss_bench.decoding.drafters.base import Prompt, Step
from tss_bench.decoding.drafters.eagle import DynamicTree, Eagle, assemble
from tss_bench.decoding.tree import DraftTree


@dataclass(frozen=True, eq=False)
class HeadPrompt:
    """What the head knows of a prompt: its keys and values, the feature [H] it predicts next."""

    prefix: Prefix
    feature: Tensor

    @classmethod
    @torch.inference_mode()
    def read(cls, drafter: Eagle, prompt: Prompt) -> HeadPrompt:
        """Run the head of `drafter` over a prefilled prompt; the drafter forgets its own."""
        (keys, values), feature = drafter.read(prompt)
        return cls(Prefix(torch.stack((keys[0], values[0]))[None]), feature)


@dataclass
class _Pool:
    """The nodes tried so far: scores, ids and parents (places in the pool, -1: the root), each
    [B, P]. A node that its row does not try has the score -inf."""

    scores: Tensor
    ids: Tensor
    parents: Tensor

    def add(self, scores: Tensor, ids: Tensor, parents: Tensor) -> None:
        self.scores = torch.cat((self.scores, scores), dim=1)
        self.ids = torch.cat((self.ids, ids), dim=1)
        self.parents = torch.cat((self.parents, parents), dim=1)

    def is_final(self, level: _Level, wanted: int) -> Tensor:
        """bool [B]: no child of the level can beat a node that is in."""
        if self.scores.shape[1] < wanted:
            return torch.zeros(len(self.scores), dtype=torch.bool, device=self.scores.device)
        lowest = self.scores.topk(wanted, dim=1).values[:, -1]
        return level.scores.max(dim=1).values <= lowest

    def trees(self, roots: Sequence[int], depths: Sequence[int], wanted: int) -> list[DraftTree]:
        """The best `wanted` nodes of each row on its root, none where no depth is left."""
        # A stable sort keeps parents before children at equal scores.
        ranked = self.scores.sort(dim=1, descending=True, stable=True)
        known = ranked.values[:, :wanted].isfinite().tolist()
        order, ids, parents = (
            part.tolist() for part in (ranked.indices[:, :wanted], self.ids, self.parents)
        )
        trees = []
        for row, root in enumerate(roots):
            tried = [node for node, there in zip(order[row], known[row], strict=True) if there]
            chosen = sorted(tried) if depths[row] > 0 else []
            trees.append(assemble(root, chosen, ids[row], parents[row]))
        return trees


@dataclass(frozen=True)
class _Level:
    """The nodes to grow on: scores, ids and places in the pool [B, k], the rows of their parents
    in the level before [B, k], that level's features [B, k', H], and which of the nodes behind
    the past it sees, bool [B, k', w]."""

    scores: Tensor
    ids: Tensor
    places: Tensor
    parents: Tensor
    features: Tensor
    seen: Tensor


class EagleRows:
    """The state of `drafter`'s head on answers that begin at `starts`, none longer than `longest`.

    `drafter` lends its weights and sizes; what it remembers is not used. Raises ValueError for
    one with a static tree.
    """

    def __init__(self, drafter: Eagle, starts: Sequence[HeadPrompt], longest: int) -> None:
        if not isinstance(drafter.tree, DynamicTree):
            raise ValueError("only dynamic EAGLE trees grow side by side; replay static ones alone")
        self._drafter = drafter
        self._tree = drafter.tree
        self._wanted = drafter.tree.total_token - 1
        # A node behind `wanted` better ones of its level is in no tree, nor is what grows on it.
        self._top_k = min(drafter.tree.top_k, self._wanted)
        self._features = torch.stack([start.feature for start in starts])
        behind = 2 + self._tree.depth * self._top_k
        self._cache = BatchCache(
            num_layers=1,
            kv_heads=drafter.head.config.num_key_value_heads,
            head_dim=drafter.head.config.head_dim,
            rows=len(starts),
            capacity=longest + behind,
            dtype=self._features.dtype,
            device=self._features.device,
        )
        for start in starts:
            self._cache.add(start.prefix)

    def propose(self, roots: Sequence[int], depths: Sequence[int]) -> list[DraftTree]:
        """One tree a row on its last emitted id, for nodes no deeper than `depths[row]`."""
        pool, level = self._first_level()
        limits = torch.tensor(depths, device=self._features.device) - 1
        grows = torch.ones_like(limits, dtype=torch.bool)
        for depth in range(min(self._tree.depth, max(depths) - 1)):
            grows = grows & (limits > depth) & ~pool.is_final(level, self._wanted)
            if not grows.any():
                break
            level = self._next_level(pool, level, depth, grows)
        return pool.trees(roots, depths, self._wanted)

    def observe(self, steps: Sequence[Step]) -> None:
        """Run the head over what the last step of each row emitted."""
        counts = [len(step.accepted) for step in steps]
        width = max(2 if len(steps) == 1 else 1, *counts)
        features = self._features.new_zeros(len(steps), width, steps[0].features.shape[-1])
        ids = torch.zeros(len(steps), width, dtype=torch.long)
        for row, (step, count) in enumerate(zip(steps, counts, strict=True)):
            ids[row, :count] = torch.tensor(step.accepted)
            features[row, :count] = step.features[list(step.acceptance.path)]
        device = features.device
        among = torch.ones(width, width, dtype=torch.bool, device=device).tril()
        self._cache.open(width)
        hidden = self._drafter.head.forward_rows(
            self._drafter.embed(ids.to(device)),
            self._drafter.head.fuse(features),
            self._cache.positions()[:, None] + torch.arange(width, device=device),
            self._cache.visible(among.expand(len(steps), -1, -1)),
            self._cache,
        )
        self._cache.keep([range(count) for count in counts])
        last = torch.tensor(counts, device=device) - 1
        self._features = hidden[torch.arange(len(steps), device=device), last]

    def drop(self, row: int) -> None:
        """End an answer; the last row takes its place."""
        self._cache.drop(row)
        left = list(range(len(self._features) - 1))
        if row < len(left):
            left[row] = len(left)
        self._features = self._features[left]

    def _first_level(self) -> tuple[_Pool, _Level]:
        features = self._features[:, None]
        scores, ids = (part[:, 0] for part in self._candidates(features))
        root = torch.zeros_like(ids)
        places = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
        seen = torch.zeros(len(ids), 1, 0, dtype=torch.bool, device=ids.device)
        return _Pool(scores, ids, root - 1), _Level(scores, ids, places, root, features, seen)

    def _next_level(self, pool: _Pool, level: _Level, depth: int, grows: Tensor) -> _Level:
        """Run the head over a level, put its children into the pool, and return the best."""
        features, seen = self._descend(level, depth)
        scores, ids = self._candidates(features)
        each, first = ids.shape[2], pool.ids.shape[1]
        scores = (scores + level.scores[:, :, None]).flatten(1)
        scores = scores.masked_fill(~grows[:, None], float("-inf"))
        pool.add(scores, ids.flatten(1), level.places.repeat_interleave(each, dim=1))
        best = scores.topk(min(self._top_k, scores.shape[1]), dim=1)
        chosen = ids.flatten(1).gather(1, best.indices)
        parents = best.indices // each
        return _Level(best.values, chosen, first + best.indices, parents, features, seen)

    def _descend(self, level: _Level, depth: int) -> tuple[Tensor, Tensor]:
        """Features [B, k, H] of the level's nodes, and which nodes behind the past they see."""
        width = level.ids.shape[1]
        own = torch.eye(width, dtype=torch.bool, device=level.ids.device)
        seen = _rows_of(level.seen, level.parents)
        seen = torch.cat((seen, own.expand(len(seen), -1, -1)), dim=2)
        self._cache.open(width, offset=seen.shape[2] - width)
        positions = (self._cache.positions() + depth)[:, None].expand(-1, width)
        features = self._drafter.head.forward_rows(
            self._drafter.embed(level.ids),
            _rows_of(level.features, level.parents),
            positions,
            self._cache.visible(seen),
            self._cache,
        )
        return features, seen

    def _candidates(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probabilities and ids [B, n, k] of the best drafts after features [B, n, H]."""
        scores, ids = self._drafter.candidates(features.flatten(0, 1), self._top_k)
        shape = (*features.shape[:2], -1)
        return scores.view(shape), ids.view(shape)


def _rows_of(values: Tensor, rows: Tensor) -> Tensor:
    """values [B, n, D], rows [B, k] -> the chosen rows [B, k, D]."""
    return values.gather(1, rows[:, :, None].expand(-1, -1, values.shape[2]))
