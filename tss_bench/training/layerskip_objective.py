"""The loss of a model that learns to do without blocks.

May import: torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

OBJECTIVES = ("distill", "cross-entropy")

Head = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Agreement:
    """Sums over positions: KL to the teacher in nats, equal first choices, and their number."""

    divergence: float = 0.0
    equal: int = 0
    positions: int = 0

    def __add__(self, other: Agreement) -> Agreement:
        return Agreement(
            self.divergence + other.divergence,
            self.equal + other.equal,
            self.positions + other.positions,
        )

    @property
    def kl(self) -> float:
        """Mean KL(teacher || student) in nats."""
        return self.divergence / max(1, self.positions)

    @property
    def top1(self) -> float:
        """Share of positions where both prefer the same id."""
        return self.equal / max(1, self.positions)


def divergence(teacher: Tensor, student: Tensor) -> Tensor:
    """KL(teacher || student) in nats of logits [N, V], one value a row [N]; float32."""
    wanted = teacher.float().log_softmax(dim=-1)
    found = student.float().log_softmax(dim=-1)
    return F.kl_div(found, wanted, log_target=True, reduction="none").sum(dim=-1)


def exit_loss(
    states: Sequence[Tensor],
    weights: Sequence[float],
    head: Head,
    teacher: Tensor | None,
    labels: Tensor,
) -> Tensor:
    """The weighted sum over exits of the mean loss of N positions, a scalar.

    `states`: hidden states [N, H] after the final norm, one an exit. Forward KL to the
    `teacher`'s logits [N, V]; without a teacher cross-entropy against `labels` [N].
    """
    total = states[0].new_zeros((), dtype=torch.float32)
    for state, weight in zip(states, weights, strict=True):
        logits = head(state)
        if teacher is None:
            loss = F.cross_entropy(logits.float(), labels)
        else:
            loss = divergence(teacher, logits).mean()
        total = total + weight * loss
    return total


def agreement(teacher: Tensor, student: Tensor) -> Agreement:
    """How close logits [N, V] are to the teacher's."""
    return Agreement(
        float(divergence(teacher, student).sum()),
        int((teacher.argmax(dim=-1) == student.argmax(dim=-1)).sum()),
        len(teacher),
    )
