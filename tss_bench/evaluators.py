"""The evaluators that a search can use in a process, by name.

May import: model_adapters, tss_bench (layer L3 of the design).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Literal, Protocol, get_args

from model_adapters.base import SpeculativeLM
from tss_bench.batched_evaluator import BatchedEvaluator
from tss_bench.calibration import SequentialEvaluator
from tss_bench.harness import TaskRequests
from tss_bench.search import Evaluation, Job, Limits

EvaluatorName = Literal["batched", "sequential"]
NAMES: tuple[EvaluatorName, ...] = get_args(EvaluatorName)


class Evaluator(Protocol):
    """The executor of one task: `search.Executor`, what it can exceed, and what it has done.

    `answered` counts the answers and losses so far.
    """

    answered: int

    def __call__(self, jobs: Sequence[Job]) -> Iterator[Evaluation]: ...

    def limits(self) -> Limits: ...


def evaluator_for(adapter: SpeculativeLM, name: EvaluatorName) -> EvaluatorName:
    """The evaluator of that name if the adapter can be used with it, else `sequential`.

    What it comes to is said in a line on stderr.
    """
    if name == "batched" and not adapter.side_by_side:
        print(
            f"{adapter.name}: its answers cannot be decoded side by side, so they are decoded one "
            f"after the other (--evaluator sequential)",
            file=sys.stderr,
            flush=True,
        )
        return "sequential"
    return name


def make_evaluator(
    adapter: SpeculativeLM, task: TaskRequests, name: EvaluatorName = "batched"
) -> Evaluator:
    """What evaluates the rows of a task in this process, with a loaded adapter."""
    made = BatchedEvaluator if name == "batched" else SequentialEvaluator
    return made(adapter, task)
