"""Which blocks a training step drops: LayerSkip's layer dropout, and a uniform draw from a pool.

Formulas of "LayerSkip: Enabling Early Exit Inference and Self-Speculative Decoding" (ACL 2024,
section 4.1). Layers are 0-based, L of them; steps are 0-based, T of them.

May import: torch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

DEPTH_PROFILES = ("linear", "exp")
TIME_CURRICULA = ("constant", "exp")


def depth_profile(kind: str, layer: int, num_layers: int) -> float:
    """D(l): 0 at the first layer, 1 at the last.

    `linear` is l / (L - 1), `exp` is exp(l ln 2 / (L - 1)) - 1. Raises
    ValueError for another kind or a layer that is not there.
    """
    _check_place("layer", layer, num_layers)
    place = layer / max(1, num_layers - 1)
    if kind == "linear":
        return place
    if kind == "exp":
        return math.exp(place * math.log(2)) - 1
    raise ValueError(f"unknown depth profile {kind!r}; use one of {', '.join(DEPTH_PROFILES)}")


def time_curriculum(kind: str, step: int, steps: int) -> float:
    """S(t): `constant` is 1, for fine-tuning; `exp` is exp(t ln 2 / (T - 1)) - 1, from 0 to 1.

    Raises ValueError for another kind or a step that is not there.
    """
    _check_place("step", step, steps)
    if kind == "constant":
        return 1.0
    if kind == "exp":
        return math.exp(step / max(1, steps - 1) * math.log(2)) - 1
    raise ValueError(f"unknown curriculum {kind!r}; use one of {', '.join(TIME_CURRICULA)}")


def drop_rates(
    num_layers: int, step: int, steps: int, *, p_max: float, depth: str, time: str
) -> list[float]:
    """p_l(t) = S(t) * D(l) * p_max of every layer: 0 for layer 0, S(t) * p_max for the last."""
    scale = time_curriculum(time, step, steps) * p_max
    return [scale * depth_profile(depth, layer, num_layers) for layer in range(num_layers)]


def draw_bernoulli(rates: Sequence[float], rows: int, generator: torch.Generator) -> Tensor:
    """Dropped blocks, bool [rows, L]: one draw a sample and layer."""
    chances = torch.tensor(list(rates)).expand(rows, -1)
    return torch.bernoulli(chances, generator=generator).bool()


def draw_uniform(
    num_layers: int,
    pool: Sequence[int],
    most: int,
    dense_share: float,
    rows: int,
    generator: torch.Generator,
) -> Tensor:
    """Dropped blocks, bool [rows, L]: a share of the rows drops none, the others 1 … `most`.

    Their number is uniform, and so is the choice among the layers of `pool`.
    """
    dropped = torch.zeros(rows, num_layers, dtype=torch.bool)
    layers = torch.tensor(list(pool))
    for row in range(rows):
        dense = torch.rand((), generator=generator) < dense_share
        count = int(torch.randint(1, most + 1, (), generator=generator))
        order = torch.randperm(len(pool), generator=generator)
        if not dense:
            dropped[row, layers[order[:count]]] = True
    return dropped


def kept_positions(
    dropped: Tensor, prompt_lengths: Tensor, sparse_prompt: Tensor, n: int
) -> Tensor:
    """Which block runs at which position, bool [L, B, n].

    `dropped` [B, L]. Where `sparse_prompt` [B] is False the `prompt_lengths` [B] first positions
    run every block, as scope `verify` does: the prompt is prefilled densely.
    """
    in_prompt = torch.arange(n) < prompt_lengths[:, None]
    dense = in_prompt & ~sparse_prompt[:, None]
    return ~dropped.T[:, :, None] | dense


def _check_place(name: str, value: int, count: int) -> None:
    if not 0 <= value < count:
        raise ValueError(f"{name} {value} is not among {name}s 0 … {count - 1}")
