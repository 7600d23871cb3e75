"""What updates a head's weights. May import: pytest, torch, tss_bench."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tss_bench.training.optimizers import OPTIMIZERS, check_optimizer, make_optimizers

RATE = 0.01


def first_update(name: str, weight_decay: float = 0.0) -> tuple[torch.Tensor, torch.Tensor]:
    """What one step adds to a matrix [6, 24] of ones and to a vector [6] of ones."""
    module = nn.Linear(24, 6)
    draws = torch.Generator().manual_seed(0)
    for parameter in module.parameters():
        nn.init.ones_(parameter)
        parameter.grad = torch.randn(parameter.shape, generator=draws)
    for optimizer in make_optimizers(module, name, RATE, weight_decay):
        optimizer.step()
    return module.weight.detach() - 1, module.bias.detach() - 1


def test_adamw_moves_every_weight_by_the_learning_rate() -> None:
    """At step 1 both moments are those of one gradient: g / sqrt(g ** 2) = ± 1."""
    for update in first_update("adamw"):
        torch.testing.assert_close(update.abs(), torch.full_like(update, RATE), rtol=1e-3, atol=0)


def test_muon_turns_a_matrix_in_all_directions_alike() -> None:
    """Singular values are near 1 before scaling (Newton-Schulz: 0.7 … 1.2), whatever those of the
    gradient; scaled by 0.2 sqrt(24) an entry moves by 0.2 of the learning rate."""
    matrix, vector = first_update("muon")
    singular = torch.linalg.svdvals(matrix) / (RATE * 0.2 * 24**0.5)
    assert 0.6 < float(singular.min()) <= float(singular.max()) < 1.3
    torch.testing.assert_close(vector.abs(), torch.full_like(vector, RATE), rtol=1e-3, atol=0)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_weights_decay_by_the_learning_rate_times_the_decay(name: str) -> None:
    """Weights of one lose RATE * 0.5, in addition to what the gradient says."""
    plain, decayed = first_update(name), first_update(name, weight_decay=0.5)
    for without, decay in zip(plain, decayed, strict=True):
        lost = torch.full_like(without, -RATE * 0.5)
        torch.testing.assert_close(decay - without, lost, rtol=1e-3, atol=1e-6)


def test_unknown_and_missing_optimizers(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="optimizer='sgd' is unknown; use one of muon, adamw"):
        check_optimizer("sgd")
    monkeypatch.delattr(torch.optim, "Muon")
    check_optimizer("adamw")
    with pytest.raises(ValueError, match=r"has no Muon; update it to 2\.9 or later, or use"):
        check_optimizer("muon")
