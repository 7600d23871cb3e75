"""What training loops share: the learning-rate schedule, the order of batches, checkpoints.

May import: torch, filelock, tss_bench.files.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, TypeVar

import torch
from filelock import FileLock, Timeout

from tss_bench.files import remove_stale_parts, replace

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


@contextmanager
def only_run(directory: Path, *inside: str) -> Iterator[None]:
    """Keep other runs out of `directory`; raises ValueError when one is in it.

    Files that a killed run was writing are removed from it and from its directories `inside`.
    """
    directory.mkdir(parents=True, exist_ok=True)
    lock = FileLock(directory / ".lock")
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        raise ValueError(
            f"another training runs in {directory}; wait for it or choose another --out"
        ) from error
    try:
        for place in (directory, *(directory / name for name in inside)):
            remove_stale_parts(place)
        yield
    finally:
        lock.release()


def check_loss(loss: float, step: int) -> None:
    """Raises ValueError for a loss that is not finite, before it gets into a checkpoint.

    Weights that give such a loss may be in one already: the update before made them.
    """
    if not math.isfinite(loss):
        raise ValueError(
            f"the loss is {loss} at step {step}: training has diverged; lower --learning-rate and "
            f"use another --out (what diverged may be in this one's checkpoint)"
        )


def save_checkpoint(path: Path, state: Mapping[str, Any]) -> None:
    """Write `state` whole or not at all."""
    replace(path, lambda part: torch.save(dict(state), part))


def load_checkpoint(
    path: Path, run: Mapping[str, Any], text_arguments: str = "--data or --held-out"
) -> dict[str, Any] | None:
    """The state saved at `path`, None if there is none.

    `run` is all that the weights depend on, as it was saved under the key "run". Raises
    ValueError naming the first part in which the saved run differs; of its digest "text", the
    arguments that choose the text.
    """
    if not path.is_file():
        return None
    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        theirs = state["run"]
    except (RuntimeError, EOFError, UnpicklingError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path} is torn or no checkpoint of this command; delete it to start over"
        ) from error
    wrong = [name for name, value in run.items() if theirs.get(name) != value]
    if wrong and wrong[0] == "text":
        raise ValueError(
            f"{path} was made with other text or other parts of it ({text_arguments} was another, "
            f"or what is in the directories of text); use the same to resume, or another --out"
        )
    if wrong:
        raise ValueError(
            f"{path} was made with another {wrong[0]} ({theirs.get(wrong[0])!r}, now "
            f"{run[wrong[0]]!r}); use the same settings to resume, or another --out"
        )
    return state


@contextmanager
def reading_parts(path: Path) -> Iterator[None]:
    """Inside, the parts of the state that `load_checkpoint` gave for `path` are taken.

    Raises ValueError for a part that is missing or does not fit.
    """
    try:
        yield
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        problem = f"has no {error}" if isinstance(error, KeyError) else str(error).split("\n")[0]
        raise ValueError(
            f"{path} is no whole checkpoint of this run ({problem}); delete it to start over"
        ) from error
