"""Times skip sets: milliseconds a verification step, as a target takes them in real decoding.

The measured cost C(S) of a search. Knows neither strategies nor files.

May import: model_adapters, tss_bench (layer L3 of the design).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise

from model_adapters.answering import Job
from model_adapters.base import SpeculativeLM
from tss_bench.harness import interleave
from tss_bench.scoring.pooled import Pair, ratio, request_pairs
from tss_bench.search import Evaluation
from tss_bench.types import SkipSet

ROWS = 4
"""Rows a set is timed on: the first that take a verification step with the dense target."""

GROUP = 6
"""Most sets timed side by side, beside the dense one: a row comes round before a machine drifts."""


class VerifyTimer:
    """Times skip sets on the rows of one task with one loaded adapter.

    `jobs` are the jobs of all rows, in the task's order. Called with sets, it decodes `ROWS` rows
    one after the other, in groups of at most `GROUP` sets and always the dense one, interleaved
    row by row, and yields the evaluations of a group as soon as it is done, each set once.

    Their cost is `verify_ms` in milliseconds, 1000 * sum(verify_s) / sum(verify_steps) over the
    rows, times (dense in the first group of all / dense in the set's own group): that takes out
    how much slower or faster the machine became between groups and between calls. So a cost can
    be compared with every other one of the same object, and with those of no other.

    Raises ValueError where no row, or a set on none of these rows, takes a verification step;
    with scope `verify` a set takes one wherever dense does.
    """

    def __init__(self, adapter: SpeculativeLM, jobs: Sequence[Job]) -> None:
        self._adapter, self._jobs = adapter, jobs
        self._dense = SkipSet.dense(adapter.info.num_layers)
        self._rows: list[Job] = []
        self._reference: float | None = None

    def __call__(self, sets: Iterable[SkipSet]) -> Iterator[Evaluation]:
        waiting = dict.fromkeys(sets)
        if not waiting:
            return
        sparse = [skip for skip in waiting if skip != self._dense]
        done = 0
        for group in _groups(sparse):
            label = f"timing sets {done + 1}-{done + len(group)} of {len(sparse)}"
            costs = self._measure([self._dense, *group], label if group else "timing dense")
            for skip in [skip for skip in costs if skip in waiting]:
                del waiting[skip]
                yield Evaluation(skip, cost=costs[skip])
            done += len(group)

    def _measure(self, sets: Sequence[SkipSet], label: str) -> dict[SkipSet, float]:
        """Costs of sets, the dense one first, timed side by side."""
        self._rows = self._rows or self._choose_rows()
        methods = {str(skip): self._method(skip) for skip in sets}
        pairs = interleave(
            methods, self._rows, label, begin=lambda: self._adapter.begin_run(self._jobs)
        )
        found = {skip: _milliseconds(skip, pairs[str(skip)]) for skip in sets}
        dense = found[self._dense]
        if self._reference is None:
            self._reference = dense
        return {skip: self._reference * value / dense for skip, value in found.items()}

    def _method(self, skip: SkipSet) -> Callable[[Job], Pair]:
        return lambda row: self._time(row, skip)

    def _time(self, row: Job, skip: SkipSet) -> Pair:
        """(milliseconds, steps) of one answer."""
        answer = self._adapter.answer(row.under(skip, "a search times it"))
        return request_pairs(answer.stats)["verify_ms"]

    def _choose_rows(self) -> list[Job]:
        rows: list[Job] = []
        for job in self._jobs:
            _, steps = self._time(job, self._dense)
            if steps:
                rows.append(job)
            if len(rows) == ROWS:
                break
        if not rows:
            raise ValueError(
                "no calibration row takes a verification step, so there is nothing to time; raise "
                "max_gen_toks, or search with --cost layers"
            )
        return rows


def _milliseconds(skip: SkipSet, pairs: Sequence[Pair]) -> float:
    value = ratio(pairs)
    if not value:
        raise ValueError(
            f"skip set {skip} takes no verification step on the {len(pairs)} rows that it is timed "
            f"on, so it has no cost in milliseconds; search with --cost layers"
        )
    return value


def _groups(sets: Sequence[SkipSet]) -> list[Sequence[SkipSet]]:
    """As few groups as there can be, at least one, of sizes as even as they can be."""
    count = max(1, math.ceil(len(sets) / GROUP))
    bounds = [len(sets) * place // count for place in range(count + 1)]
    return [sets[begin:end] for begin, end in pairwise(bounds)]
