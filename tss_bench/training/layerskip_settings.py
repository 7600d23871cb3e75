"""What a LayerSkip run can be told, checked; and what each step draws from it.

May import: torch, tss_bench.types, tss_bench.training.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from tss_bench.training.early_exit import EXIT_CURRICULA, exit_weights, exits_at
from tss_bench.training.layer_drop import (
    DEPTH_PROFILES,
    TIME_CURRICULA,
    draw_bernoulli,
    draw_uniform,
    drop_rates,
    kept_positions,
)
from tss_bench.training.layerskip_objective import OBJECTIVES
from tss_bench.types import parse_layers

DROPS = ("layerskip", "uniform", "none")
SCOPES = ("all", "verify", "mixed")
WEIGHTS = ("lora", "full")
PRECISIONS = ("bfloat16", "float32")


@dataclass(frozen=True)
class LayerSkipSettings:
    """All that the weights depend on beside the data. Raises ValueError for a bad value.

    `drop` layerskip: one Bernoulli draw a sample and layer at rate S(t) D(l) p_max. uniform:
    `dense_share` of the samples drop nothing, the others 1 … `max_drop` blocks of `pool` (empty:
    all but the first and the last). `drop_scope`: whether the prompt is sparse too (`all`), dense
    as under scope `verify`, or either by chance (`mixed`).
    """

    seed: int = 0
    epochs: float = 1.0
    batch_slots: int = 2048
    learning_rate: float = 1e-3
    warmup: int = 20
    weight_decay: float = 0.0
    clip: float = 1.0
    drop: str = "layerskip"
    p_max: float = 0.2
    depth_profile: str = "linear"
    time_curriculum: str = "constant"
    pool: str = ""
    max_drop: int = 4
    dense_share: float = 0.4
    drop_scope: str = "all"
    exits: str = "none"
    exit_scale: float = 0.2
    exit_every: int = 4
    objective: str = "distill"
    prompt_share: float = 0.1
    train: str = "lora"
    rank: int = 32
    eval_every: int = 50
    eval_answers: int = 48
    precision: str = "bfloat16"

    def __post_init__(self) -> None:
        choices = {
            "drop": DROPS,
            "depth_profile": DEPTH_PROFILES,
            "time_curriculum": TIME_CURRICULA,
            "drop_scope": SCOPES,
            "exits": EXIT_CURRICULA,
            "objective": OBJECTIVES,
            "train": WEIGHTS,
            "precision": PRECISIONS,
        }
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise ValueError(
                    f"{name}={getattr(self, name)!r} is unknown; use one of {', '.join(allowed)}"
                )
        for name, value in vars(self).items():
            if isinstance(value, float) and not math.isfinite(value):
                raise ValueError(f"{name} must be a finite number, got {value}")
        for name in ("batch_slots", "max_drop", "exit_every", "rank", "eval_every", "eval_answers"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("epochs", "learning_rate", "clip"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)}")
        for name in ("warmup", "weight_decay", "exit_scale"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative, got {getattr(self, name)}")
        for name in ("p_max", "dense_share", "prompt_share"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must lie in 0 … 1, got {getattr(self, name)}")
        self._pool()

    def layers(self, num_layers: int) -> list[int]:
        """The layers of the pool, ascending; raises ValueError where they do not fit."""
        pool = self._pool() or list(range(1, num_layers - 1))
        wrong = [layer for layer in pool if not 0 <= layer < num_layers]
        if wrong:
            raise ValueError(
                f"pool names layer {wrong[0]}; the model has layers 0 … {num_layers - 1}"
            )
        if self.drop == "uniform" and self.max_drop >= num_layers:
            raise ValueError(
                f"max_drop is {self.max_drop} of {num_layers} layers; leave one at least"
            )
        if self.drop == "uniform" and self.max_drop > len(pool):
            raise ValueError(
                f"max_drop is {self.max_drop}, but the pool has {len(pool)} layers: "
                f"{', '.join(map(str, pool))}"
            )
        return pool

    def _pool(self) -> list[int]:
        if not self.pool:
            return []
        pool = sorted(set(parse_layers(self.pool)))
        if not pool:
            raise ValueError(f"pool={self.pool!r} names no layer; write layers such as 3,4,6")
        return pool


@dataclass(frozen=True)
class Draw:
    """What one step leaves out and where it has a loss: kept bool [L, B, n], exits, weights."""

    kept: Tensor
    exits: list[int]
    weights: list[float]


def draw(
    settings: LayerSkipSettings,
    num_layers: int,
    step: int,
    steps: int,
    prompt_lengths: Tensor,
    n: int,
    generator: torch.Generator,
) -> Draw:
    """The blocks to run at each position [L, B, n] and the exits of step `step` of `steps`."""
    rows = len(prompt_lengths)
    dropped = _dropped(settings, num_layers, step, steps, rows, generator)
    chance = {"all": 1.0, "verify": 0.0, "mixed": 0.5}[settings.drop_scope]
    sparse_prompt = torch.rand(rows, generator=generator) < chance
    kept = kept_positions(dropped, prompt_lengths.cpu(), sparse_prompt, n)
    exits = exits_at(settings.exits, step, steps, num_layers, every=settings.exit_every)
    return Draw(kept, exits, exit_weights(exits, num_layers, settings.exit_scale))


def _dropped(
    settings: LayerSkipSettings,
    num_layers: int,
    step: int,
    steps: int,
    rows: int,
    generator: torch.Generator,
) -> Tensor:
    if settings.drop == "uniform":
        pool = settings.layers(num_layers)
        share = settings.dense_share
        return draw_uniform(num_layers, pool, settings.max_drop, share, rows, generator)
    rates = [0.0] * num_layers
    if settings.drop == "layerskip":
        rates = drop_rates(
            num_layers,
            step,
            steps,
            p_max=settings.p_max,
            depth=settings.depth_profile,
            time=settings.time_curriculum,
        )
    return draw_bernoulli(rates, rows, generator)
