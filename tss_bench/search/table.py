"""What has been measured so far, by skip set and prompt, whoever asked for it.

May import: the standard library, tss_bench.types and tss_bench.search (layer L1 of the design).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tss_bench.search.seconds import SecondsTable, Taken
from tss_bench.search.types import PER_PROMPT, Evaluation, Want
from tss_bench.types import SkipSet


@dataclass(frozen=True)
class Job:
    """One thing an executor has to do: these fields of one skip set on these prompts.

    `want` holds fields of a prompt, or "cost" alone, with no prompts: the executor picks what it
    times.
    """

    skip: SkipSet
    want: frozenset[Want]
    prompts: tuple[int, ...]


class EvaluationTable:
    """Values by (skip set, prompt, field); the first value stays. Costs are not kept.

    `seconds` knows what the values took, where that was told.
    """

    def __init__(self) -> None:
        self._values: dict[Want, dict[SkipSet, dict[int, Any]]] = {name: {} for name in PER_PROMPT}
        self.seconds = SecondsTable()

    def add(self, evaluation: Evaluation, taken: Taken | None = None) -> None:
        self.seconds.add(evaluation, taken)
        for name in PER_PROMPT:
            values = getattr(evaluation, name)
            if values is None:
                continue
            known = self._values[name].setdefault(evaluation.skip, {})
            for prompt, value in zip(evaluation.prompts, values, strict=True):
                known.setdefault(prompt, value)

    def missing(
        self, skip: SkipSet, want: Iterable[Want], prompts: Sequence[int]
    ) -> tuple[Job, ...]:
        """The jobs that complete these fields of one set; none where all is known.

        Prompts that lack the same fields go together, in order of their index.
        """
        wanted = frozenset(want)
        lacking: dict[frozenset[Want], list[int]] = {}
        for prompt in prompts:
            fields = frozenset(
                name
                for name in PER_PROMPT
                if name in wanted and prompt not in self._values[name].get(skip, {})
            )
            if fields:
                lacking.setdefault(fields, []).append(prompt)
        return tuple(Job(skip, fields, tuple(found)) for fields, found in lacking.items())

    def get(self, skip: SkipSet, want: Iterable[Want], prompts: Sequence[int]) -> Evaluation:
        """These fields and no others. Raises KeyError for a prompt that is not known."""
        wanted = frozenset(want)
        fields: dict[str, Any] = {
            name: tuple(self._values[name].get(skip, {})[prompt] for prompt in prompts)
            for name in PER_PROMPT
            if name in wanted
        }
        return Evaluation(skip, tuple(prompts) if fields else (), **fields)

    def known(self, skip: SkipSet, prompts: Sequence[int]) -> Evaluation:
        """Every field that is known on all of these prompts."""
        fields = [
            name
            for name in PER_PROMPT
            if all(prompt in self._values[name].get(skip, {}) for prompt in prompts)
        ]
        return self.get(skip, fields, prompts)

    def sets(self) -> tuple[SkipSet, ...]:
        """Every skip set with a value of some prompt, in the order in which they came."""
        ordered = dict.fromkeys(skip for name in PER_PROMPT for skip in self._values[name])
        return tuple(ordered)

    def pairs(self) -> int:
        """How many (set, prompt) pairs have been decoded, plus those whose loss is known."""
        decoded = {
            (skip, prompt)
            for name in PER_PROMPT[:2]
            for skip, known in self._values[name].items()
            for prompt in known
        }
        return len(decoded) + sum(map(len, self._values["loss"].values()))
