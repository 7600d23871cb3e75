"""The drafter protocols and the records that the decoding loop hands to a drafter.

May import: torch, decoding.{kv_cache, target, tree, verify}, tss_bench.types.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor

from tss_bench.decoding.kv_cache import KVCache
from tss_bench.decoding.target import Target
from tss_bench.decoding.tree import DraftTree
from tss_bench.decoding.verify import Acceptance
from tss_bench.types import SkipSet


@dataclass(frozen=True)
class Prompt:
    """A prefilled prompt: ids (n), features [n, F] as `Drafter.feature_layers` asks for them, the
    target's head.

    `logits` maps final hidden states [.., H] to logits [.., V]; `first` is the id that prefill
    gave.
    """

    ids: Sequence[int]
    features: Tensor
    logits: Callable[[Tensor], Tensor]
    first: int


@dataclass(frozen=True)
class Step:
    """One verified tree: features [n, F] and logits [n, V] of all its nodes, and the outcome."""

    tree: DraftTree
    features: Tensor
    logits: Tensor
    acceptance: Acceptance

    @property
    def accepted(self) -> tuple[int, ...]:
        """Ids that the step appends to the answer: accepted drafts, then the bonus."""
        drafts = (self.tree.tokens[node] for node in self.acceptance.path[1:])
        return (*drafts, self.acceptance.bonus)


class Drafter(Protocol):
    """Proposes continuations; the loop decides what is accepted, so no drafter changes the text.

    Calls come in the order `begin`, then `propose` / `observe` in turn. A drafter keeps no
    state from one request to the next unless it says so. `max_nodes` is the size of the largest
    tree it proposes, the root included. `replayable`: what it proposes depends on the accepted
    ids and their features alone, so that it can be run along a known answer (decoding.replay).
    `feature_layers`: the target's blocks whose inputs, side by side, are its features, ascending
    (see `decoding.capture.Capture`); none: the hidden states after the final norm.
    """

    max_nodes: int
    replayable: bool
    feature_layers: tuple[int, ...]

    def begin(self, prompt: Prompt) -> None:
        """Start a request; must forget the one before."""
        ...

    def propose(self, root: int, max_depth: int) -> DraftTree:
        """A tree on the last emitted id; nodes deeper than `max_depth` are of no use.

        A token that the drafter has no evidence for must not be proposed: no padding.
        """
        ...

    def observe(self, step: Step) -> None:
        """Learn from a verified tree; not called after the last step of a request."""
        ...

    def fork(self) -> Drafter:
        """Another drafter in the same state that goes its own way; weights are shared."""
        ...

    def reset(self) -> None:
        """Forget everything, also what a run carries over between requests."""
        ...


@runtime_checkable
class SharesTarget(Protocol):
    """What a drafter has besides that drafts with the target's own first blocks and cache.

    Verification begins at block `exit_layer` with what the drafter has computed, so no block is
    run twice for a node. Only `generate` serves such a drafter: answers side by side have another
    cache.
    """

    exit_layer: int

    def attach(self, target: Target, cache: KVCache, skip: SkipSet) -> None:
        """What this request is verified with; called before `begin`.

        The drafter may write behind the cache's past, node i of a chain at place i, and must leave
        `cache.length` as it was.
        """
        ...

    def detach(self) -> None:
        """Let go of what `attach` gave; called when the answer has come to its end."""
        ...

    def entering(self, tree: DraftTree) -> Tensor:
        """Hidden states [n, H] that enter block `exit_layer`, of all nodes of the proposed tree or
        of what `cut` left of it; keys and values of the blocks below are in the cache then."""
        ...
