"""Run lm-eval tasks on several adapters, interleaved request by request in one process.

May import: lm_eval, model_adapters, tss_bench (layer L3 of the design). Tasks, metrics and
aggregations are lm-eval's own, so a figure here means what it means in lm-eval's table.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.api.task import Task
from lm_eval.tasks import TaskManager
from tqdm import tqdm

from model_adapters.adapters import ADAPTERS
from model_adapters.base import SpeculativeLM
from tss_bench.task_paths import task_directory

__all__ = [
    "Instance",
    "Outcome",
    "load_tasks",
    "make_adapters",
    "requests_of",
    "run_interleaved",
]

GENERATION = "generate_until"


@dataclass
class Outcome:
    """Metric values of one adapter on one task, one list entry a scored request."""

    samples: dict[str, list[Any]] = field(default_factory=lambda: defaultdict(list))
    requests: int = 0

    def add(self, metrics: Mapping[str, Any]) -> None:
        self.requests += 1
        for name, value in metrics.items():
            self.samples[name].append(value)

    def aggregate(self, task: Task) -> dict[str, float]:
        """The task's own aggregation of each metric that was emitted."""
        aggregations = task.aggregation()
        return {name: aggregations[name](values) for name, values in self.samples.items()}


def make_adapters(names: Sequence[str], arguments: str) -> dict[str, SpeculativeLM]:
    """Adapters by their lm-eval names, all with `arguments` and one shared copy of the target.

    Raises ValueError for a name that is none of our adapters, AdapterError for bad arguments.
    """
    made: dict[str, SpeculativeLM] = {}
    for name in names:
        if name not in ADAPTERS:
            raise ValueError(f"no adapter {name!r}; there is {', '.join(ADAPTERS)}")
        first = next(iter(made.values()), None)
        made[name] = ADAPTERS[name].create_from_arg_string(arguments, {"share": first})
    return made


def load_tasks(names: Sequence[str], metadata: Mapping[str, Any] | None = None) -> dict[str, Task]:
    """Generation tasks by name; groups are opened. Raises ValueError for any other task."""
    manager = TaskManager(include_path=str(task_directory()), metadata=dict(metadata or {}))
    unknown = sorted(set(names) - set(manager.all_tasks))
    if unknown:
        raise ValueError(f"no task {', '.join(unknown)}; `lm_eval ls tasks` lists them")
    tasks: dict[str, Task] = manager.load(list(names))["tasks"]
    for name, task in tasks.items():
        if task.OUTPUT_TYPE != GENERATION:
            raise ValueError(f"{name} asks for no generated answer; it has nothing to time")
    return tasks


def requests_of(task: Task, limit: int | None) -> list[Instance]:
    """The first `limit` requests of a task, in its order."""
    task.build_all_requests(limit=limit)
    return list(task.instances)


def run_interleaved(
    adapters: Mapping[str, SpeculativeLM], task: Task, limit: int | None, *, repeats: int = 1
) -> dict[str, Outcome]:
    """Answer every request with every adapter in turn, the order rotating by request.

    Slow drifts of the machine hit all adapters alike. Each adapter warms up on its first
    request (see the adapters), outside its clocks.
    """
    instances = requests_of(task, limit)
    outcomes = {name: Outcome() for name in adapters}
    order = list(adapters)
    with tqdm(total=len(instances) * len(order) * repeats, desc=str(task.config.task)) as bar:
        for turn in range(repeats * len(instances)):
            instance = instances[turn % len(instances)]
            for name in _rotated(order, turn):
                (text,) = adapters[name].generate_until([instance], disable_tqdm=True)
                outcomes[name].add(task.process_results(instance.doc, [text]))
                bar.update()
    return outcomes


def _rotated(items: Sequence[str], turn: int) -> list[str]:
    start = turn % len(items)
    return [*items[start:], *items[:start]]
