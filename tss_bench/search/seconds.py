"""How long a search takes: the wall-clock seconds that its executor worked for its answers.

The seconds of a search are those that passed on the wall clock while the executor worked for the
answers that the search asked for, when each was really made, and for the costs that this run timed.
Several workers at once are no sum. An answer is a prompt decoded under a set, or its loss. Answers
grow side by side, so none has a time of its own: a batch of jobs shares its seconds equally among
the answers it gave.

May import: the standard library, tss_bench.types and tss_bench.search (layer L1 of the design).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from tss_bench.search.types import PER_PROMPT, Evaluation, Spent, Want
from tss_bench.types import SkipSet

Value = tuple[SkipSet, Want, int]
"""A field of a prompt under a skip set."""


@dataclass(frozen=True)
class Taken:
    """What an evaluation took: seconds since the one before, in which batch, on which machine."""

    seconds: float
    batch: int
    machine: str = ""


@dataclass
class _Batch:
    machine: str
    seconds: float = 0.0
    answers: set[tuple[SkipSet, bool, int]] = field(default_factory=set)


class SecondsTable:
    """Which batch gave each value, and what it took; the first one stays, as its value does."""

    def __init__(self) -> None:
        self._batches: dict[int, _Batch] = {}
        self._batch_of: dict[Value, int | None] = {}

    def next_batch(self) -> int:
        """A number that no batch has."""
        return max(self._batches, default=0) + 1

    def add(self, evaluation: Evaluation, taken: Taken | None) -> None:
        """Note an evaluation; `taken` is None where nobody knows."""
        batch = None
        if taken is not None:
            batch = self._batches.setdefault(taken.batch, _Batch(taken.machine))
            batch.seconds += taken.seconds
        for name in PER_PROMPT:
            if getattr(evaluation, name) is None:
                continue
            for prompt in evaluation.prompts:
                value = (evaluation.skip, name, prompt)
                if value in self._batch_of:
                    continue
                self._batch_of[value] = None if taken is None else taken.batch
                if batch is not None:
                    batch.answers.add(_answer(value))

    def of(self, values: Iterable[Value]) -> Spent | None:
        """What these values took together; None where that of one of them is not known."""
        found = set()
        for value in values:
            number = self._batch_of.get(value)
            if number is None:
                return None
            found.add((number, _answer(value)))
        batches = [self._batches[number] for number, _ in found]
        return Spent(
            math.fsum(batch.seconds / len(batch.answers) for batch in batches),
            tuple(sorted({batch.machine for batch in batches} - {""})),
        )


def _answer(value: Value) -> tuple[SkipSet, bool, int]:
    """Accept length and metric of a prompt come from one answer, a loss is one of its own."""
    skip, name, prompt = value
    return skip, name == "loss", prompt
