"""What an EAGLE head is trained for: several steps on its own features, as in a real draft.

Step 1 sees true features. Step j feeds the features of step j - 1 back, one slot later, and its
attention sees what a drafter sees at depth j: keys of true features up to slot t - j + 1 and of
its own earlier steps on the way from there to t (HASS, arXiv 2408.15766; training-time test of
EAGLE-3, arXiv 2503.01840). Loss of a step: smooth L1 to the true feature and cross-entropy
against the target's own distribution over the draft vocabulary.

May import: torch, tss_bench.decoding and tss_bench.training.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import functional as F

from tss_bench.decoding.drafters.eagle_head import EagleHead
from tss_bench.decoding.target import Target
from tss_bench.training.eagle_data import Batch
from tss_bench.training.eagle_scaling import Scales


@dataclass(frozen=True)
class Weights:
    """How the parts of the loss add up; step j counts `decay` ** (j - 1)."""

    feature: float = 0.5
    token: float = 1.0
    decay: float = 0.8


@dataclass(frozen=True)
class Frozen:
    """The target's parts that a head uses; they are not trained.

    `rows` are the output matrix's rows [D, H] of the ids `draft_ids` [D]; `place` [V] maps an
    id to its row, -1 where it has none.
    """

    target: Target
    rows: Tensor
    draft_ids: Tensor
    place: Tensor

    @classmethod
    def of(cls, target: Target, draft_ids: Tensor | None) -> Frozen:
        """The parts for a draft vocabulary; None stands for the full one."""
        ids = torch.arange(target.vocab_size) if draft_ids is None else draft_ids
        ids = ids.to(target.device)
        place = torch.full((target.vocab_size,), -1, device=target.device)
        place[ids] = torch.arange(len(ids), device=target.device)
        return cls(target, target.head_rows(ids), ids, place)

    def embed(self, ids: Tensor) -> Tensor:
        with torch.no_grad():
            return self.target.embed(ids).float()

    def logits(self, features: Tensor) -> Tensor:
        """float32 [.., D] of raw features; computed in the target's dtype, as in drafting."""
        return self.target.logits(features.to(self.rows.dtype), self.rows).float()


@dataclass(frozen=True)
class StepOutput:
    """Depth j of the roll-out on the answer part: hidden [B, A, H] in units of the scale.

    `asked` [B, A]: slots that a drafter could be asked for at this depth.
    """

    depth: int
    hidden: Tensor
    asked: Tensor


def roll_out(
    head: EagleHead,
    batch: Batch,
    embeddings: Tensor,
    scales: Scales,
    steps: int,
    noise: Tensor | None = None,
) -> Iterator[StepOutput]:
    """The head on its own features for `steps` depths; answer part = slots from `batch.start`.

    `noise` [B, T, H] is added to the true features (EAGLE's augmentation).
    """
    start, valid = batch.start, batch.valid
    true = batch.features / scales.feature
    true = true if noise is None else true + noise
    embedded = embeddings / scales.embedding
    hidden, past = head(embedded, true, batch.positions, _first_mask(valid))
    hidden, asked = hidden[:, start:], valid[:, start:]
    yield StepOutput(1, hidden, asked)
    for depth in range(2, steps + 1):
        # One slot later: what depth - 1 said about slot t - 1 is the feature of slot t.
        fed = torch.cat((true[:, start : start + 1], hidden[:, :-1]), dim=1)
        mask = step_mask(valid, start, depth)
        hidden, past = head(embedded[:, start:], fed, batch.positions[:, start:], mask, past)
        asked = asked.clone()
        asked[:, : depth - 1] = False
        yield StepOutput(depth, hidden, asked)


def _first_mask(valid: Tensor) -> Tensor:
    """bool [B, 1, T, T]: causal over real slots; padding sees itself."""
    size = valid.shape[1]
    square = torch.ones(size, size, dtype=torch.bool, device=valid.device)
    return (square.tril() & valid[:, None] | square.diag().diag())[:, None]


def step_mask(valid: Tensor, start: int, depth: int) -> Tensor:
    """bool [B, 1, A, T + (depth - 1) A] for depth >= 2: true slots, then steps 2 … depth."""
    size = valid.shape[1]
    slots = torch.arange(size, device=valid.device)
    queries = slots[start:, None]
    true = (slots <= queries - (depth - 1)) & valid[:, None]
    own = [slots[start:] == queries - (depth - step) for step in range(2, depth + 1)]
    drafted = torch.cat(own, dim=1).expand(len(valid), -1, -1)
    return torch.cat((true, drafted), dim=2)[:, None]


@dataclass(frozen=True)
class Losses:
    """Means over the answer slots of a batch, of which there are `slots`.

    `total` is what is minimised, over all steps; the others are of step 1. `token` is a mean over
    the `known` slots alone, whose next id is in the draft vocabulary.
    """

    total: Tensor
    feature: Tensor
    token: Tensor
    slots: int
    known: int


def losses(
    head: EagleHead,
    batch: Batch,
    frozen: Frozen,
    scales: Scales,
    weights: Weights,
    steps: int,
    noise: Tensor | None = None,
) -> Losses:
    """The weighted loss of a batch over all steps.

    Slots whose next id is outside the draft vocabulary have no token loss.
    """
    embeddings = frozen.embed(batch.ids)
    after, labels = batch.next_features[:, batch.start :], batch.labels[:, batch.start :]
    known = batch.valid[:, batch.start :] & (frozen.place[labels] >= 0)
    with torch.no_grad():
        wanted = frozen.logits(after[known]).softmax(dim=-1)
    row_of = torch.zeros_like(labels)
    row_of[known] = torch.arange(len(wanted), device=labels.device)
    parts = []
    for step in roll_out(head, batch, embeddings, scales, steps, noise):
        ours, theirs = step.hidden[step.asked].float(), after[step.asked] / scales.feature
        feature = F.smooth_l1_loss(ours, theirs, reduction="sum") / max(theirs.numel(), 1)
        spoken_at = step.asked & known
        spoken = frozen.logits(step.hidden[spoken_at] * scales.feature).log_softmax(dim=-1)
        token = -(wanted[row_of[spoken_at]] * spoken).sum() / max(len(spoken), 1)
        parts.append((feature, token))
    slots = int(batch.valid[:, batch.start :].sum())
    shares = [weights.decay**j for j in range(len(parts))]
    total = sum(
        share * (weights.feature * feature + weights.token * token)
        for share, (feature, token) in zip(shares, parts, strict=True)
    ) / sum(shares)
    assert isinstance(total, Tensor)
    return Losses(total, parts[0][0].detach(), parts[0][1].detach(), slots, len(wanted))


@dataclass(frozen=True)
class Hits:
    """Counts over chains that start at each slot: `asked[j]`, and `kept[j]` of them accepted
    down to depth j + 1, when the most likely id is drafted at each depth."""

    asked: tuple[int, ...]
    kept: tuple[int, ...]

    def __add__(self, other: Hits) -> Hits:
        return Hits(
            tuple(a + b for a, b in zip(self.asked, other.asked, strict=True)),
            tuple(a + b for a, b in zip(self.kept, other.kept, strict=True)),
        )

    @property
    def acceptance(self) -> tuple[float | None, ...]:
        """Per depth: the share of chains accepted so far that its draft extends.

        None where no chain was accepted so far, or none could get that deep.
        """
        shares = (1.0, *self._shares())
        return tuple(
            now / last if asked and last else None
            for asked, (last, now) in zip(self.asked, pairwise(shares), strict=True)
        )

    @property
    def chain_length(self) -> float | None:
        """Expected tokens a step of a chain this deep, bonus included; None without a chain."""
        return 1 + sum(self._shares()) if self.asked[0] else None

    def _shares(self) -> list[float]:
        return [k / max(a, 1) for k, a in zip(self.kept, self.asked, strict=True)]


@torch.no_grad()
def chain_hits(head: EagleHead, batch: Batch, frozen: Frozen, scales: Scales, steps: int) -> Hits:
    """Acceptance of a greedy chain on the greedy rows of a batch."""
    labels = batch.labels[:, batch.start :]
    greedy = ~batch.sampled[:, None]
    alive = torch.ones_like(labels, dtype=torch.bool)
    asked, kept = [], []
    for step in roll_out(head, batch, frozen.embed(batch.ids), scales, steps):
        if step.depth > 1:
            alive = torch.cat((torch.zeros_like(alive[:, :1]), alive[:, :-1]), dim=1)
        drafts = frozen.draft_ids[frozen.logits(step.hidden * scales.feature).argmax(dim=-1)]
        counted = step.asked & greedy
        alive = alive & counted & (drafts == labels)
        asked.append(int(counted.sum()))
        kept.append(int(alive.sum()))
    return Hits(tuple(asked), tuple(kept))
