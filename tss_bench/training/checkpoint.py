"""What training loops share: the learning-rate schedule, the order of batches, checkpoints.

May import: torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch

T = TypeVar("T")


def learning_rate(step: int, total: int, warmup: int, peak: float) -> float:
    """Linear warm-up to `peak`, then a cosine to a twentieth of it at step `total`."""
    if step < warmup:
        return peak * (step + 1) / warmup
    done = min(1.0, (step - warmup) / max(1, total - warmup))
    return peak * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * done)))


def batches_from(step: int, total: int, plan: Callable[[int], list[T]]) -> Iterator[T]:
    """The batches of steps `step` … `total` - 1; `plan(epoch)` gives those of an epoch in order."""
    seen = 0
    for epoch in range(total + 1):
        for batch in plan(epoch):
            if seen >= total:
                return
            if seen >= step:
                yield batch
            seen += 1


def save_checkpoint(path: Path, state: Mapping[str, Any]) -> None:
    """Write `state` whole or not at all."""
    unfinished = path.with_suffix(".tmp")
    torch.save(dict(state), unfinished)
    unfinished.replace(path)


def load_checkpoint(path: Path, run: Mapping[str, Any]) -> dict[str, Any] | None:
    """The state saved at `path`, None if there is none.

    `run` is all that the weights depend on, as it was saved under the key "run". Raises
    ValueError naming the first part in which the saved run differs.
    """
    if not path.is_file():
        return None
    state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    theirs = state["run"]
    wrong = [name for name, value in run.items() if theirs.get(name) != value]
    if wrong:
        raise ValueError(
            f"{path} was made with another {wrong[0]} ({theirs.get(wrong[0])!r}, now "
            f"{run[wrong[0]]!r}); use the same settings to resume, or another --out"
        )
    return state
