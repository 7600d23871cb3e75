"""Losses and agreement. May import: pytest, torch, tss_bench."""

from __future__ import annotations

import math

import pytest
import torch

from tss_bench.training.layerskip_objective import Agreement, agreement, divergence, exit_loss

# Chances 1/2, 1/4, 1/4 and 1/4, 1/2, 1/4.
TEACHER = torch.tensor([[math.log(2), 0.0, 0.0]])
STUDENT = torch.tensor([[0.0, math.log(2), 0.0]])


def test_divergence_by_hand() -> None:
    # 1/2 ln 2 + 1/4 ln(1/2) = 1/4 ln 2
    assert divergence(TEACHER, STUDENT).tolist() == pytest.approx([math.log(2) / 4])
    assert divergence(TEACHER, TEACHER).tolist() == pytest.approx([0], abs=1e-7)


def test_divergence_is_the_forward_one() -> None:
    teacher = torch.tensor([[0.0, -30.0]])
    student = torch.tensor([[0.0, 0.0]])
    assert float(divergence(teacher, student)) == pytest.approx(math.log(2), abs=1e-5)
    assert float(divergence(student, teacher)) == pytest.approx(15 - math.log(2), abs=1e-4)


def test_exit_losses_are_weighted_means_over_positions() -> None:
    states = [STUDENT.repeat(2, 1), TEACHER.repeat(2, 1)]
    teacher, labels = TEACHER.repeat(2, 1), torch.tensor([0, 1])
    distilled = exit_loss(states, [0.25, 0.75], lambda x: x, teacher, labels)
    assert float(distilled) == pytest.approx(0.25 * math.log(2) / 4)
    # -log of (1/4 and 1/2) and of (1/2 and 1/4): a mean of 1.5 ln 2 in both.
    against_text = exit_loss(states, [0.25, 0.75], lambda x: x, None, labels)
    assert float(against_text) == pytest.approx(1.5 * math.log(2))


def test_agreement_adds_up() -> None:
    found = agreement(TEACHER, STUDENT) + agreement(TEACHER, TEACHER) + Agreement()
    assert found.positions == 2
    assert found.top1 == 0.5
    assert found.kl == pytest.approx(math.log(2) / 8)
    assert Agreement().kl == 0
