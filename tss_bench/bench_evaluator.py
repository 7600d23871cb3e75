"""`tss-bench bench evaluator`: seconds a skip set takes in a search, batched and one by one.

Both evaluators measure the same calibration rows in one process, taking turns.

May import: tabulate, model_adapters, tss_bench (layer L3 of the design).
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from tabulate import tabulate

from model_adapters.arguments import split_arguments
from model_adapters.base import SpeculativeLM
from tss_bench.batched_evaluator import BatchedEvaluator
from tss_bench.bench import DOMAIN_TASKS, machine
from tss_bench.calibration import SequentialEvaluator, require_calibration
from tss_bench.evaluators import Evaluator
from tss_bench.harness import TaskRequests, load_adapters, load_tasks, prepare_adapters, split_names
from tss_bench.search import Evaluation, Job, SearchSpace
from tss_bench.types import SCOPES, SkipSet

TASKS = (*DOMAIN_TASKS, "tss_mmlu")
MODELS = ("tss_eagle", "tss_token_recycling")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `tss-bench bench evaluator`."""
    parser.epilog = (
        "Turn by turn, the batched evaluator takes all the sets and the sequential one a single "
        "set of them. Prompts are read beforehand, once for all sets under scope verify."
    )
    parser.add_argument("--tasks", default=",".join(TASKS), help="comma-separated tasks")
    parser.add_argument("--model", default=",".join(MODELS), help="comma-separated adapters")
    parser.add_argument("--model_args", default="", help="arguments as in lm_eval")
    parser.add_argument("--scope", default="verify", choices=SCOPES, help="default verify")
    parser.add_argument("--limit", type=int, help="calibration rows a task (default all)")
    parser.add_argument(
        "--sets", type=int, default=16, help="dense and single layers, side by side (default 16)"
    )
    parser.add_argument("--turns", type=int, default=2, help="of each evaluator (default 2)")


def run(args: argparse.Namespace) -> None:
    """Measure and print. Raises ValueError for bad input before any weight is loaded."""
    for name in ("sets", "turns", "limit"):
        value = getattr(args, name)
        if value is not None and value < 1:
            raise ValueError(f"--{name} must be at least 1, got {value}")
    tasks = load_tasks(split_names(args.tasks), args.limit, {"split": "calibration"})
    require_calibration(tasks)
    shared = {"scope": args.scope, "skip_layers": "dense"}
    given = {**split_arguments(args.model_args), **shared}
    adapters = prepare_adapters(split_names(args.model), given)
    load_adapters(adapters)
    print(machine(adapters), flush=True)
    rows: list[dict[str, Any]] = []
    for task in tasks:
        for name, adapter in adapters.items():
            found = _measure(adapter, task, args.sets, args.turns)
            rows.append({"task": task.label, "model": name, **found})
            print(table(rows), flush=True)
    print(json.dumps({"bench": "evaluator", "machine": machine(adapters).splitlines()[0],
                      "scope": args.scope, "sets": args.sets, "turns": args.turns,
                      "results": rows}))  # fmt: skip


@dataclass
class _Timed:
    """What one evaluator found, and the seconds and sets it took."""

    evaluator: Evaluator
    found: dict[tuple[SkipSet, int], Evaluation] = field(default_factory=dict)
    seconds: float = 0.0
    sets: int = 0

    def take(self, jobs: Sequence[Job]) -> None:
        start = time.perf_counter()
        for one in self.evaluator(jobs):
            self.found[one.skip, one.prompts[0]] = one
        self.seconds += time.perf_counter() - start
        self.sets += len(jobs)

    @property
    def each(self) -> float:
        """Seconds a set."""
        return self.seconds / self.sets


def _measure(adapter: SpeculativeLM, task: TaskRequests, sets: int, turns: int) -> dict[str, Any]:
    """Figures of one adapter and task; see `table` for their meaning."""
    prompts = tuple(range(len(task.requests)))
    jobs = [Job(skip, frozenset({"accept", "metric"}), prompts) for skip in _sets(adapter, sets)]
    evaluator = BatchedEvaluator(adapter, task)
    first, batched = _Timed(evaluator), _Timed(evaluator)
    first.take(jobs[:1])
    alone = _Timed(SequentialEvaluator(adapter, task))
    for turn in range(turns):
        work = [(batched, jobs), (alone, [jobs[turn % len(jobs)]])]
        for timed, wanted in work if turn % 2 == 0 else reversed(work):
            timed.take(wanted)
    equal = sum(batched.found[place] == one for place, one in alone.found.items())
    beside = sum(batched.found[place] == one for place, one in first.found.items())
    return {
        "rows": len(prompts),
        "sets": len(jobs),
        "first_s": first.seconds,
        "sequential_s": alone.each,
        "batched_s": batched.each,
        "ratio": alone.each / batched.each,
        "equal": equal,
        "compared": len(alone.found),
        "beside": beside,
    }


def _sets(adapter: SpeculativeLM, count: int) -> list[SkipSet]:
    """The dense set and the first single layers, spread over the depth."""
    layers = adapter.info.num_layers
    space = SearchSpace(layers, 1, depth=1)
    singles = space.singles()
    step = max(1, layers // max(1, count - 1))
    return [space.dense, *islice(singles[::step], count - 1)]


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Seconds a skip set over all rows, in Markdown.

    `first`: the dense set alone, prompts read with it. `equal rows`: same counts and metric by
    both evaluators. `alone = beside`: dense rows that are the same alone and beside other sets.
    """
    shown = [
        {
            "task": row["task"],
            "model": row["model"],
            "rows": row["rows"],
            "first": f"{row['first_s']:.1f}",
            "sequential": f"{row['sequential_s']:.2f}",
            f"batched ({row['sets']} sets)": f"{row['batched_s']:.2f}",
            "ratio": f"{row['ratio']:.1f}",
            "equal rows": f"{row['equal']}/{row['compared']}",
            "alone = beside": f"{row['beside']}/{row['rows']}",
        }
        for row in rows
    ]
    return tabulate(shown, headers="keys", tablefmt="github", disable_numparse=True)
