"""Acceptance of a draft tree, greedy and sampled: pure functions of tree and logits.

May import: torch, decoding.tree. Sources: speculative sampling (arXiv 2302.01318, 2211.17192),
its tree form for deterministic drafts (SpecInfer, arXiv 2305.09781).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tss_bench.decoding.tree import DraftTree


@dataclass(frozen=True)
class Acceptance:
    """`path`: accepted nodes from the root (node 0, always there); `bonus`: the target's own id."""

    path: tuple[int, ...]
    bonus: int


@dataclass(frozen=True)
class Sampling:
    """Temperature 0 is greedy; above it ids are drawn with `generator` (needed then)."""

    temperature: float = 0.0
    generator: torch.Generator | None = None

    def __post_init__(self) -> None:
        if self.temperature < 0:
            raise ValueError(f"temperature must be 0 or more, got {self.temperature}")
        if self.temperature > 0 and self.generator is None:
            raise ValueError("sampling needs a torch.Generator")


def verify(tree: DraftTree, logits: Tensor, sampling: Sampling) -> Acceptance:
    """The longest path of `tree` that the target agrees with. logits [n, V], one row a node."""
    if logits.shape[0] != len(tree):
        raise ValueError(f"{logits.shape[0]} rows of logits for a tree of {len(tree)} nodes")
    if sampling.temperature == 0:
        return follow(tree, best_ids(logits))
    return _verify_sampled(tree, logits, sampling)


def best_ids(logits: Tensor) -> list[int]:
    """The id of the highest logit of each row of [n, V]; the lowest of equal ones."""
    # `max` returns the first of equal maxima; `argmax` does too, but takes four times as long in
    # bfloat16 on a CPU.
    ids: list[int] = logits.max(dim=-1).indices.tolist()
    return ids


def follow(tree: DraftTree, best: Sequence[int]) -> Acceptance:
    """Greedy acceptance where `best[node]` is what the target wants behind each node."""
    path = [0]
    while True:
        wanted = best[path[-1]]
        match = [child for child in tree.children[path[-1]] if tree.tokens[child] == wanted]
        if not match:
            return Acceptance(tuple(path), wanted)
        path.append(match[0])


def _verify_sampled(tree: DraftTree, logits: Tensor, sampling: Sampling) -> Acceptance:
    """Drafts are deterministic (q = 1): accept with probability p, else remove it from p.

    Each node's children are tried in order against what is left of p, so that the emitted id
    has exactly the target's distribution whatever was drafted.
    """
    path = [0]
    while True:
        weights = _chances(logits[path[-1]], sampling)
        for child in tree.children[path[-1]]:
            total = weights.sum()
            draw = torch.rand((), generator=sampling.generator, device=weights.device)
            if total > 0 and draw * total < weights[tree.tokens[child]]:
                path.append(child)
                break
            weights[tree.tokens[child]] = 0.0
        else:
            return Acceptance(tuple(path), _draw(weights, logits[path[-1]], sampling))


def _chances(logits: Tensor, sampling: Sampling) -> Tensor:
    """Probabilities [V]; the best logit is moved to 0 first, so no temperature overflows."""
    logits = logits.double()
    return ((logits - logits.max()) / sampling.temperature).softmax(dim=-1).float()


def _draw(weights: Tensor, logits: Tensor, sampling: Sampling) -> int:
    if not weights.sum() > 0:
        # Every id with a positive probability was drafted and refused: only rounding gets here.
        weights = _chances(logits, sampling)
    return int(torch.multinomial(weights, 1, generator=sampling.generator))
