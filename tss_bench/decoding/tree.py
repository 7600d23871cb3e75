"""Draft trees: tokens and parents; mask, depths and children are derived.

May import: torch (for the mask). A chain is a tree in which the parent of i is i - 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True)
class DraftTree:
    """Node 0 is the root: the last emitted token, parent -1. Drafts follow, parents first.

    Raises ValueError for a tree whose parents do not come before their children.
    """

    tokens: tuple[int, ...]
    parents: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.tokens or len(self.tokens) != len(self.parents):
            raise ValueError(f"a tree of {len(self.tokens)} tokens has {len(self.parents)} parents")
        if self.parents[0] != -1:
            raise ValueError(f"node 0 is the root, its parent must be -1, not {self.parents[0]}")
        for node, parent in enumerate(self.parents[1:], start=1):
            if not 0 <= parent < node:
                raise ValueError(f"node {node} has parent {parent}; parents come before children")

    @classmethod
    def root(cls, token: int) -> DraftTree:
        """No draft at all: verifying it is one step of plain decoding."""
        return cls((token,), (-1,))

    @classmethod
    def chain(cls, token: int, drafts: Sequence[int]) -> DraftTree:
        return cls((token, *drafts), tuple(range(-1, len(drafts))))

    def __len__(self) -> int:
        return len(self.tokens)

    @cached_property
    def depths(self) -> tuple[int, ...]:
        """Distance of each node from the root, which has depth 0."""
        depths = [0]
        for parent in self.parents[1:]:
            depths.append(depths[parent] + 1)
        return tuple(depths)

    @cached_property
    def children(self) -> tuple[tuple[int, ...], ...]:
        """Children of each node, in order."""
        lists: list[list[int]] = [[] for _ in self.tokens]
        for node, parent in enumerate(self.parents[1:], start=1):
            lists[parent].append(node)
        return tuple(map(tuple, lists))

    def cut(self, max_depth: int) -> DraftTree:
        """The tree without nodes deeper than `max_depth`."""
        if max(self.depths) <= max_depth:
            return self
        kept = [node for node, depth in enumerate(self.depths) if depth <= max_depth]
        place = {node: i for i, node in enumerate(kept)} | {-1: -1}
        return DraftTree(
            tuple(self.tokens[node] for node in kept),
            tuple(place[self.parents[node]] for node in kept),
        )

    def mask(self, past: int, device: torch.device | None = None) -> Tensor:
        """bool [n, past + n], True = may attend: the past, the node itself and its ancestors."""
        rows: list[list[bool]] = []
        for node, parent in enumerate(self.parents):
            row = list(rows[parent]) if parent >= 0 else [False] * len(self)
            row[node] = True
            rows.append(row)
        among = torch.tensor(rows, dtype=torch.bool)
        seen = torch.cat((torch.ones(len(self), past, dtype=torch.bool), among), dim=1)
        return seen.to(device) if device is not None else seen
