"""Token Recycling (arXiv 2408.08696): drafts from the target's own recent top-8 candidates.

May import: torch, decoding.tree, drafters.base, drafters.tree_template. An adjacency matrix
[V, 8] remembers for each id the top-8 ids of the logits it last produced; a fixed tree of ranks
is filled from it. Rejected nodes teach it too.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from tss_bench.decoding.drafters.base import Prompt, Step
from tss_bench.decoding.drafters.tree_template import TreeTemplate
from tss_bench.decoding.tree import DraftTree

CANDIDATES = 8
# Rows of the prompt whose logits are computed at once: bounds memory at large vocabularies.
_PROMPT_ROWS = 128

State = Literal["request", "run"]


class TokenRecycling:
    """`state="request"` starts each request empty (results do not depend on request order);
    `"run"` keeps the matrix between requests, as the published code does, until `reset`.

    Raises ValueError for a template that needs more than 8 candidates a node.
    """

    # Rejected nodes teach it.
    replayable = False
    feature_layers: tuple[int, ...] = ()

    def __init__(self, vocab_size: int, template: TreeTemplate, state: State = "request") -> None:
        if template.max_children > CANDIDATES:
            raise ValueError(
                f"tree {template.name!r} has {template.max_children} children at a node; "
                f"Token Recycling remembers {CANDIDATES} candidates a token"
            )
        if state not in ("request", "run"):
            raise ValueError(f"state must be 'request' or 'run', got {state!r}")
        self.max_nodes = len(template.nodes) + 1
        self._template = template
        self._state = state
        self._vocab_size = vocab_size
        self._next: dict[int, list[int]] = {}

    def begin(self, prompt: Prompt) -> None:
        if self._state == "request":
            self.reset()
        for start in range(0, len(prompt.ids), _PROMPT_ROWS):
            rows = slice(start, start + _PROMPT_ROWS)
            self._learn(prompt.ids[rows], prompt.logits(prompt.features[rows]))

    def propose(self, root: int, max_depth: int) -> DraftTree:
        """Fill the template from the root down; a node without a known candidate is left out."""
        tokens, parents, depths = [root], [-1], [0]
        places = {0: 0}
        for node, (parent, rank) in enumerate(self._template.nodes, start=1):
            place = places.get(parent)
            if place is None or depths[place] >= max_depth:
                continue
            row = self._next.get(tokens[place])
            if row is None:
                continue
            places[node] = len(tokens)
            tokens.append(row[rank])
            parents.append(place)
            depths.append(depths[place] + 1)
        return DraftTree(tuple(tokens), tuple(parents))

    def observe(self, step: Step) -> None:
        self._learn(step.tree.tokens, step.logits)

    def fork(self) -> TokenRecycling:
        forked = copy.copy(self)
        forked._next = dict(self._next)
        return forked

    def reset(self) -> None:
        self._next = {}

    def _learn(self, ids: Sequence[int], logits: Tensor) -> None:
        best = top_candidates(logits, min(CANDIDATES, self._vocab_size)).tolist()
        self._next.update(zip(ids, best, strict=True))


def top_candidates(logits: Tensor, count: int) -> Tensor:
    """Ids [n, count] of the highest logits [n, V], best first, equal ones by id.

    Which of several equal ids at the border are among the `count` is left to torch.
    """
    values, ids = torch.topk(logits, count, dim=-1)
    ids, order = ids.sort(dim=-1)
    ranking = values.gather(-1, order).sort(dim=-1, descending=True, stable=True).indices
    return ids.gather(-1, ranking)
