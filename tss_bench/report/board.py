"""All entries of a report, which of them belong together, and their figures with intervals.

Figures and tests are those of `tss_bench.scoring.statistics`, over rows, with its seed; each is
computed once.

May import: the standard library, tss_bench.{scoring,domains} (layer L2 of the design).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tss_bench.report.entries import Entry, entries
from tss_bench.report.files import Inputs
from tss_bench.report.samples import Sample
from tss_bench.scoring.pooled import Pair, ratio
from tss_bench.scoring.statistics import (
    RESAMPLES,
    difference_interval,
    paired_ratio_p_value,
    ratio_interval,
)

_OF_STEPS = frozenset({"accept_len", "accepted_per_step", "steps_per_second", "verify_ms"})


@dataclass(frozen=True)
class Figure:
    """A value and its 95 % bootstrap interval; no interval for fewer than two rows."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Change:
    """`after` against `before` on the rows that both have: relative, but plain after a zero.

    `p` is the two-sided paired bootstrap p-value of the difference, `rows` the number of rows that
    count on both sides: one without a step tells nothing of a figure by steps.
    """

    value: float
    relative: bool
    low: float | None
    high: float | None
    p: float | None
    rows: int


class Board:
    """Entries and what is computed of them; `notes` says what the tables leave out, and why."""

    def __init__(self, inputs: Inputs, resamples: int = RESAMPLES) -> None:
        notes = list(inputs.notes)
        self.inputs = inputs
        self.entries = entries(inputs.results, notes)
        self.notes = tuple(dict.fromkeys(notes))
        self._resamples = resamples
        self._figures: dict[tuple[Entry, str], Figure | None] = {}
        self._changes: dict[tuple[Entry, Entry, str], Change | None] = {}

    @cached_property
    def sections(self) -> dict[tuple[str, str, str, str], tuple[Entry, ...]]:
        """The entries by section: whole tasks, official data and strict before the others."""

        def order(key: tuple[str, str, str, str]) -> tuple[Any, ...]:
            data, _, protocol, subset = key
            return subset != "", data != "official", protocol != "strict", key

        keys = sorted({entry.section for entry in self.entries}, key=order)
        return {key: tuple(e for e in self.entries if e.section == key) for key in keys}

    def figure(self, entry: Entry, name: str) -> Figure | None:
        """A pooled figure, or `metric`; None where no row has it."""
        key = (entry, name)
        if key not in self._figures:
            self._figures[key] = self._figure(entry.pairs(name))
        return self._figures[key]

    def _figure(self, pairs: Sequence[Pair]) -> Figure | None:
        value = ratio(pairs)
        if value is None:
            return None
        interval = ratio_interval(pairs, resamples=self._resamples)
        return Figure(value, *(interval or (None, None)))

    def change(self, before: Entry, after: Entry, name: str) -> Change | None:
        """The paired difference of a figure; None where one side has none on the shared rows.

        And of `metric` where the two sides were scored by different ones.
        """
        if name == "metric" and before.run.metric != after.run.metric:
            return None
        key = (before, after, name)
        if key not in self._changes:
            first, second = paired(before, after, name)
            self._changes[key] = self.compare(first, second)
        return self._changes[key]

    def compare(self, first: Sequence[Pair], second: Sequence[Pair]) -> Change | None:
        """The paired difference of two lists of pairs, row by row; None where a side has none."""
        old, new = ratio(first), ratio(second)
        if old is None or new is None:
            return None
        relative = old != 0
        low, high = difference_interval(
            first, second, relative=relative, resamples=self._resamples
        ) or (None, None)
        p = paired_ratio_p_value(first, second, resamples=self._resamples)
        value = new / old - 1 if relative else new - old
        rows = sum(bool(a[1] and b[1]) for a, b in zip(first, second, strict=True))
        return Change(value, relative, low, high, p, rows)

    def speed_up(self, entry: Entry) -> Figure | None:
        """tokens/s over those of its native entry, only where the two ran interleaved."""
        native = self.native_of(entry)
        if native is None or not interleaved(native, entry):
            return None
        found = self.change(native, entry, "tokens_per_second")
        if found is None or not found.relative:
            return None
        ends = (None if end is None else 1 + end for end in (found.low, found.high))
        return Figure(1 + found.value, *ends)

    def native_of(self, entry: Entry) -> Entry | None:
        """The dense entry of the same drafter and arguments."""
        found = (
            other
            for other in self._alike(entry)
            if other.run.adapter == entry.run.native
            and other.run.protocol == entry.run.protocol
            and other.run.arguments == entry.run.of_native
        )
        return next(found, None)

    def plain_of(self, entry: Entry) -> Entry | None:
        """Plain decoding of the same target with the same skip set, which loses nothing."""
        if entry.run.drafter == "none" or entry.skip is None:
            return None
        found = (
            other
            for other in self._alike(entry)
            if other.run.drafter == "none"
            and other.run.protocol == entry.run.protocol
            and other.skip == entry.skip
            and other.run.of_target == entry.run.of_target
            and (not entry.skip or other.run.scope == entry.run.scope)
        )
        return next(found, None)

    def under(self, protocol: str, entry: Entry) -> Entry | None:
        """The same configuration under another protocol."""
        found = (
            other
            for other in self._alike(entry)
            if other.run.protocol == protocol
            and (other.run.adapter, other.skip) == (entry.run.adapter, entry.skip)
            and (other.run.scope, other.run.arguments) == (entry.run.scope, entry.run.arguments)
        )
        return next(found, None)

    def _alike(self, entry: Entry) -> Iterator[Entry]:
        """Entries of the same target on the same data that share a row, the nearest ones first."""
        run = entry.run
        wanted = (run.task, run.model, run.data, run.split)
        found = [
            other
            for other in self.entries
            if (other.run.task, other.run.model, other.run.data, other.run.split) == wanted
            and not entry.rows.keys().isdisjoint(other.rows)
        ]

        def far(other: Entry) -> tuple[bool, bool, bool]:
            apart = other.run.session != run.session, other.run.date != run.date
            return *apart, other.subset != entry.subset

        yield from sorted(found, key=far)


def paired(before: Entry, after: Entry, name: str) -> tuple[list[Pair], list[Pair]]:
    """Pairs of both entries on the rows that both have, in one order.

    A row without a step says so by (0, 0); of any other figure both sides must have a value.
    """
    keys = [key for key in before.rows if key in after.rows]
    both = zip(before.pairs(name, keys), after.pairs(name, keys), strict=True)
    kept = [pair for pair in both if name in _OF_STEPS or (pair[0][1] and pair[1][1])]
    return [one for one, _ in kept], [two for _, two in kept]


def interleaved(first: Entry, second: Entry) -> bool:
    """Whether both say that they ran side by side, and lie in one session as the files of one run.

    All files of a run and repeat carry the time at which it began.
    """
    return (
        first.run.session == second.run.session
        and first.run.adapter in second.run.interleaved_with
        and second.run.adapter in first.run.interleaved_with
        and [(run.repeat, run.date) for run in first.runs]
        == [(run.repeat, run.date) for run in second.runs]
    )


def answers(first: Entry, second: Entry) -> list[tuple[Sample, Sample]]:
    """The first repeat's answers of both entries to the requests that both have."""
    return [(first.rows[key][0], second.rows[key][0]) for key in first.rows if key in second.rows]
