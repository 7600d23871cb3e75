"""The EAGLE drafter: a one-block head that extrapolates the target's features into a tree.

May import: torch, decoding.{linear, target, tree}, drafters.*. Static tree as in EAGLE-1
(arXiv 2401.15077), dynamic tree as in EAGLE-2 (arXiv 2406.16858); heads of either, and of EAGLE-3
(arXiv 2503.01840), grow both.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor

from tss_bench.decoding.drafters.base import Prompt, Step
from tss_bench.decoding.drafters.eagle3_head import Eagle3Head
from tss_bench.decoding.drafters.eagle_head import EagleHead
from tss_bench.decoding.drafters.head_block import KeyValues
from tss_bench.decoding.drafters.tree_template import TreeTemplate
from tss_bench.decoding.linear import Linear, pack_linears
from tss_bench.decoding.target import Target
from tss_bench.decoding.tree import DraftTree


@dataclass(frozen=True)
class DynamicTree:
    """EAGLE-2's tree: of the top_k + depth * top_k^2 nodes tried, the best total_token - 1.

    `total_token` counts the root. Raises ValueError for sizes below their least.
    """

    total_token: int
    depth: int
    top_k: int

    def __post_init__(self) -> None:
        for name, least in (("total_token", 2), ("depth", 0), ("top_k", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")

    @classmethod
    def default_for(cls, device: torch.device) -> DynamicTree:
        """A CPU is compute-bound at a few nodes; the paper's GPU setting is 60 nodes."""
        return cls(8, 5, 3) if device.type == "cpu" else cls(60, 5, 10)

    def most_nodes(self, target: Target) -> int:
        """Nodes of the largest tree, the root among them, in a context of `target`."""
        top_k, depth = min(self.top_k, target.vocab_size), min(self.depth, target.context_length)
        return min(self.total_token, 1 + top_k + depth * top_k**2)


class Eagle:
    """Drafts with `head`; keeps keys and values of verified positions only.

    Takes over the head, which is not to be used or trained any more. Raises ValueError when it
    was made for a target of another width or vocabulary, or one with more layers.
    """

    replayable = True

    def __init__(
        self, head: EagleHead | Eagle3Head, target: Target, tree: DynamicTree | TreeTemplate
    ) -> None:
        _check_fits(head, target)
        self.feature_layers = head.feature_layers(target.num_layers)
        self.head = head.to(device=target.device, dtype=target.dtype).eval()
        pack_linears(self.head)
        self._target = target
        self.tree = tree
        rows = head.draft_rows
        self._rows = None if rows is None else rows.to(target.device)
        self._logits = _draft_logits(head, target, self._rows)
        if isinstance(tree, DynamicTree):
            self.max_nodes = tree.most_nodes(target)
        else:
            self.max_nodes = len(tree.nodes) + 1
        self.reset()

    def reset(self) -> None:
        self._past: KeyValues | None = None
        self._ids: list[int] = []
        self._features: list[Tensor] = []

    def fork(self) -> Eagle:
        forked = copy.copy(self)
        forked._ids, forked._features = [*self._ids], [*self._features]
        return forked

    def begin(self, prompt: Prompt) -> None:
        self.reset()
        # Feature i goes with token i + 1.
        self._ids = [*prompt.ids[1:], prompt.first]
        self._features = [prompt.features]

    def read(self, prompt: Prompt) -> tuple[KeyValues, Tensor]:
        """`begin`, and run the head over the prompt: its keys and values, the feature [H] that it
        predicts for the first id."""
        self.begin(prompt)
        feature = self._feed()
        return self._verified(), feature

    def observe(self, step: Step) -> None:
        path = torch.tensor(step.acceptance.path, device=self._target.device)
        self._ids.extend(step.accepted)
        self._features.append(step.features.index_select(0, path))

    def propose(self, root: int, max_depth: int) -> DraftTree:
        if max_depth < 1:
            return DraftTree.root(root)
        growth = _Growth(self, self._feed(), self._verified())
        if isinstance(self.tree, DynamicTree):
            return _grow_dynamic(growth, self.tree, root, max_depth)
        return _grow_static(growth, self.tree, root, max_depth)

    def candidates(self, hidden: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Log-probabilities and target ids [n, count] of the best drafts after `hidden` [n, H]."""
        scores = self._logits(hidden).float().log_softmax(dim=-1)
        values, ids = scores.topk(min(count, scores.shape[-1]), dim=-1)
        return values, ids if self._rows is None else self._rows[ids]

    def extend(
        self, ids: Tensor, features: Tensor, positions: Tensor, mask: Tensor, past: KeyValues
    ) -> tuple[Tensor, KeyValues]:
        """One head pass over tree nodes: next features [n, H] and the grown keys/values."""
        hidden, past = self.head(self.embed(ids[None]), features[None], positions[None], mask, past)
        return hidden[0], past

    def _feed(self) -> Tensor:
        """Run the head over newly verified positions; the feature [H] predicted for the next."""
        ids = torch.tensor([self._ids], device=self._target.device)
        start = self._verified_length()
        positions = torch.arange(start, start + ids.shape[1], device=ids.device)[None]
        features = self.head.fuse(torch.cat(self._features))[None]
        hidden, self._past = self.head(self.embed(ids), features, positions, None, self._past)
        self._ids, self._features = [], []
        return hidden[0, -1]

    def embed(self, ids: Tensor) -> Tensor:
        own = self.head.embed_tokens
        return self._target.embed(ids) if own is None else own(ids)

    def _verified(self) -> KeyValues:
        assert self._past is not None
        return self._past

    def _verified_length(self) -> int:
        return 0 if self._past is None else self._past[0].shape[2]


class _Growth:
    """Head passes over the levels of one tree; its keys and values are thrown away with it."""

    def __init__(self, drafter: Eagle, feature: Tensor, past: KeyValues) -> None:
        self._drafter = drafter
        self._past = past
        self._verified = past[0].shape[2]
        self._level = 0
        self.features = feature[None]
        # Row i: which of the tree nodes that went through the head row i's node may see.
        self._seen = torch.zeros(1, 0, dtype=torch.bool, device=feature.device)

    def candidates(self, count: int) -> tuple[Tensor, Tensor]:
        """Children of each node of the current level, see `Eagle.candidates`."""
        return self._drafter.candidates(self.features, count)

    def descend(self, ids: Tensor, parents: Tensor) -> None:
        """Make `ids` the current level; `parents` are their parents' rows in the level before."""
        width = len(ids)
        device = ids.device
        own = torch.eye(width, dtype=torch.bool, device=device)
        self._seen = torch.cat((self._seen[parents], own), dim=1)
        past = torch.ones(width, self._verified, dtype=torch.bool, device=device)
        positions = torch.full((width,), self._verified + self._level, device=device)
        self.features, self._past = self._drafter.extend(
            ids, self.features[parents], positions, torch.cat((past, self._seen), dim=1), self._past
        )
        self._level += 1


def _grow_dynamic(growth: _Growth, tree: DynamicTree, root: int, max_depth: int) -> DraftTree:
    wanted = tree.total_token - 1
    # A node behind `wanted` better ones of its level is in no tree, nor is what grows on it.
    top_k = min(tree.top_k, wanted)
    scores, ids = growth.candidates(top_k)
    # The pool of tried nodes, level by level, so that parents stand before children.
    pool_scores = scores[0].tolist()
    pool_ids = ids[0].tolist()
    pool_parents = [-1] * len(pool_ids)
    level_scores, level_ids = scores[0], ids[0]
    parents = torch.zeros(len(pool_ids), dtype=torch.long, device=ids.device)
    places = list(range(len(pool_ids)))
    for _ in range(min(tree.depth, max_depth - 1)):
        if len(pool_scores) >= wanted and level_scores.max() <= sorted(pool_scores)[-wanted]:
            break  # No child can beat a node that is in: the tree is final.
        growth.descend(level_ids, parents)
        scores, ids = growth.candidates(top_k)
        scores = scores + level_scores[:, None]
        width = ids.shape[1]
        first = len(pool_ids)
        pool_parents.extend(place for place in places for _ in range(width))
        pool_scores.extend(scores.flatten().tolist())
        pool_ids.extend(ids.flatten().tolist())
        level_scores, best = scores.flatten().topk(min(top_k, scores.numel()))
        level_ids = ids.flatten()[best]
        parents = best // width
        places = [first + index for index in best.tolist()]
    # A stable sort keeps parents before children at equal scores.
    order = sorted(range(len(pool_ids)), key=lambda node: -pool_scores[node])[:wanted]
    return assemble(root, sorted(order), pool_ids, pool_parents)


def assemble(root: int, chosen: list[int], ids: list[int], parents: list[int]) -> DraftTree:
    """The tree of the `chosen` nodes (ascending) of a pool, whose parent -1 is the root."""
    place = {node: i for i, node in enumerate(chosen, start=1)} | {-1: 0}
    return DraftTree(
        (root, *(ids[node] for node in chosen)),
        (-1, *(place[parents[node]] for node in chosen)),
    )


def _grow_static(growth: _Growth, tree: TreeTemplate, root: int, max_depth: int) -> DraftTree:
    tokens = {0: root}
    level, rows = [0], {0: 0}
    for depth in range(1, min(max(tree.depths), max_depth) + 1):
        _, ids = growth.candidates(tree.max_children)
        table = ids.tolist()
        children = [node for node, d in enumerate(tree.depths) if d == depth]
        for node in children:
            parent, rank = tree.nodes[node - 1]
            if parent in tokens and rank < len(table[rows[parent]]):
                tokens[node] = table[rows[parent]][rank]
        inner = {parent for parent, _ in tree.nodes}
        level = [node for node in children if node in tokens and node in inner]
        if not level or depth == max_depth:
            break
        device = ids.device
        parents = torch.tensor([rows[tree.nodes[node - 1][0]] for node in level], device=device)
        growth.descend(torch.tensor([tokens[node] for node in level], device=device), parents)
        rows = {node: row for row, node in enumerate(level)}
    chosen = sorted(tokens)
    place = {node: i for i, node in enumerate(chosen)} | {-1: -1}
    return DraftTree(
        tuple(tokens[node] for node in chosen),
        (-1, *(place[tree.nodes[node - 1][0]] for node in chosen[1:])),
    )


def _draft_logits(head: EagleHead | Eagle3Head, target: Target, rows: Tensor | None) -> Linear:
    """Scores of the draft vocabulary: by the head's own output matrix, or by the target's."""
    if isinstance(head, Eagle3Head):
        return head.logits
    return target.logits if rows is None else target.draft_head(rows)


def _check_fits(head: EagleHead | Eagle3Head, target: Target) -> None:
    config = head.config
    if config.feature_size != target.hidden_size:
        raise ValueError(
            f"the EAGLE head has hidden size {config.feature_size}, the target "
            f"{target.hidden_size}; use the head that was trained for this target"
        )
    if config.vocab_size > target.vocab_size:
        raise ValueError(
            f"the EAGLE head has {config.vocab_size} tokens, the target {target.vocab_size}; "
            "use the head that was trained for this target"
        )
    rows = head.draft_rows
    if rows is not None and not 0 <= int(rows.min()) <= int(rows.max()) < target.vocab_size:
        raise ValueError("the EAGLE head's d2t names ids outside the target's vocabulary")
