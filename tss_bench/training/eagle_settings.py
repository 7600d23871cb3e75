"""What a training run of an EAGLE head can be told, checked.

May import: torch, tss_bench.training.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tss_bench.training.eagle_objective import Weights
from tss_bench.training.optimizers import check_optimizer

# Of matrix products while training; weights, norms and losses are float32 either way.
PRECISIONS = ("bfloat16", "float32")
# A million times this, plus a step, still is a seed of torch's generators (63 bits).
MAX_SEED = 2**31 - 1


@dataclass(frozen=True)
class Settings:
    """All that the weights depend on beside the data. Raises ValueError for a bad value."""

    seed: int = 0
    epochs: int = 3
    batch_slots: int = 2048
    optimizer: str = "muon"
    learning_rate: float = 7e-4
    warmup: int = 50
    weight_decay: float = 0.1
    clip: float = 1.0
    multi_steps: int = 3
    noise: float = 0.0
    feature_weight: float = 0.5
    token_weight: float = 1.0
    step_decay: float = 0.8
    eval_every: int = 100
    patience: int = 8
    precision: str = "bfloat16"

    def __post_init__(self) -> None:
        if self.precision not in PRECISIONS:
            raise ValueError(
                f"precision={self.precision!r} is unknown; use one of {', '.join(PRECISIONS)}"
            )
        check_optimizer(self.optimizer)
        if not 0 <= self.seed <= MAX_SEED:
            raise ValueError(f"seed must lie in 0 … {MAX_SEED}, got {self.seed}")
        for name, value in vars(self).items():
            if isinstance(value, float) and not math.isfinite(value):
                raise ValueError(f"{name} must be a finite number, got {value}")
        for name in ("epochs", "batch_slots", "multi_steps", "eval_every", "patience"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("learning_rate", "clip"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)}")
        parts = ("feature_weight", "token_weight")
        for name in ("warmup", "weight_decay", "noise", "step_decay", *parts):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative, got {getattr(self, name)}")
        if not any(getattr(self, name) for name in parts):
            raise ValueError(f"one of {' and '.join(parts)} must be above 0, or nothing is learnt")

    @property
    def weights(self) -> Weights:
        return Weights(self.feature_weight, self.token_weight, self.step_decay)
