"""What runs inside one actor of the Ray executor: an adapter of its own, and the rows.

Knows nothing of Ray: a plain class that is asked for one evaluation after the other.

May import: torch, model_adapters, tss_bench (layer L3 of the design).
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from model_adapters.base import SpeculativeLM
from tss_bench.data.resolve import DATA_VARIABLE
from tss_bench.evaluators import Evaluator, EvaluatorName, make_evaluator
from tss_bench.harness import TaskRequests, load_adapters, load_tasks, prepare_adapters
from tss_bench.machine import device_line
from tss_bench.paths import CACHE_VARIABLE
from tss_bench.search import Evaluation, Fingerprint, Job, Limits
from tss_bench.search.ledger import differences
from tss_bench.search_plan import fingerprint


@dataclass(frozen=True)
class Recipe:
    """All that another process needs to make the same adapter and rows; small and picklable.

    `arguments` are the adapter's by name, scope and protocol among them; `limit` is the number of
    calibration rows a task (None: all), `evaluator` a name of `evaluators`, `include_path` a
    folder of more tasks.
    """

    model: str
    arguments: Mapping[str, Any]
    tasks: tuple[str, ...]
    limit: int | None
    evaluator: EvaluatorName = "batched"
    include_path: str | None = None

    def prepare(self) -> tuple[SpeculativeLM, list[TaskRequests]]:
        """The adapter, checked and not loaded, and the calibration rows. Raises ValueError."""
        adapter = prepare_adapters([self.model], self.arguments)[self.model]
        return adapter, load_tasks(
            self.tasks, self.limit, {"split": "calibration"}, self.include_path
        )


@dataclass(frozen=True)
class Place:
    """What a worker decodes with and where; `machine` is the device in words."""

    dtype: str
    device: str
    machine: str

    def __str__(self) -> str:
        return f"{self.dtype} on {self.device}"


def place_of(adapter: SpeculativeLM) -> Place:
    """The place of a loaded adapter in this process."""
    device = str(adapter.device)
    return Place(adapter.dtype, device, device_line(device))


class Worker:
    """One loaded adapter for all tasks of a search; `begin` and `take` give evaluations.

    It loads at the first call, after it has seen that its adapter and rows are those of `expected`
    (by task name). Every method raises ValueError where they are not, and for bad arguments. The
    evaluator of one task is kept at a time, so what an evaluator holds is held once. Relative
    paths start at `folder`, where this machine has it.
    """

    def __init__(
        self, recipe: Recipe, expected: Mapping[str, Fingerprint], threads: int, folder: str
    ) -> None:
        self._recipe, self._expected = recipe, expected
        self._threads, self._folder = threads, folder
        self._loaded: tuple[SpeculativeLM, dict[str, TaskRequests]] | None = None
        self._current: tuple[str, Evaluator] | None = None
        self._stream: Iterator[Evaluation] = iter(())

    def load(self) -> Place:
        """Load now what has not been loaded."""
        adapter, _ = self._open()
        return place_of(adapter)

    def limits(self, task: str) -> Limits:
        """What no answer to this task can exceed."""
        return self._evaluator(task).limits()

    def begin(self, task: str, jobs: Sequence[Job]) -> Evaluation | None:
        """Start on these jobs, leaving what was begun before; the first evaluation, or None."""
        self._stream = iter(self._evaluator(task)(jobs))
        return self.take()

    def take(self) -> Evaluation | None:
        """The next evaluation of what was begun, None after the last."""
        return next(self._stream, None)

    def _open(self) -> tuple[SpeculativeLM, dict[str, TaskRequests]]:
        if self._loaded is None:
            torch.set_num_threads(self._threads)
            with suppress(OSError):
                os.chdir(self._folder)
            adapter, tasks = self._recipe.prepare()
            for task in tasks:
                found = fingerprint(adapter, task, self._recipe.evaluator)
                _require_same(self._expected[task.name], found, task.name)
            load_adapters({self._recipe.model: adapter})
            self._loaded = adapter, {task.name: task for task in tasks}
        return self._loaded

    def _evaluator(self, task: str) -> Evaluator:
        adapter, tasks = self._open()
        if self._current is None or self._current[0] != task:
            self._stream, self._current = iter(()), None
            self._current = task, make_evaluator(adapter, tasks[task], self._recipe.evaluator)
        return self._current[1]


def _require_same(expected: Fingerprint, found: Fingerprint, task: str) -> None:
    """Raises ValueError naming every part in which this process differs from the search's."""
    changed = [
        f"{name} is {there} in the search and {here} in the actor"
        for name, there, here in differences(expected.parts(), found.parts())
    ]
    if changed:
        raise ValueError(
            f"an actor on {platform.node()} would measure something else of {task}: "
            f"{'; '.join(changed)}. Every machine needs the same versions, model files and data "
            f"(TSS_BENCH_DATA), and device=… if some have a GPU and some have none"
        )


def environment() -> dict[str, str]:
    """What a worker must find in its environment: where data and cache are, as they are here.

    A folder is named from the root; words for the data and a user's own folder stay as they are.
    """
    found = {name: os.environ.get(name, "").strip() for name in (DATA_VARIABLE, CACHE_VARIABLE)}
    return {name: _from_root(value) for name, value in found.items() if value}


def _from_root(value: str) -> str:
    kept = value in ("mini", "official") or value.startswith("~")
    return value if kept else str(Path(value).absolute())
