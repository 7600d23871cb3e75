"""Counts what one run asks for and stops it at its budget.

May import: the standard library, tss_bench.types and tss_bench.search (layer L1 of the design).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from tss_bench.search.space import Budget
from tss_bench.search.table import Job
from tss_bench.search.types import BudgetExhausted, Counts, Want
from tss_bench.types import SkipSet


class Meter:
    """What was asked for the first time, by skip set; `counts` adds it up."""

    def __init__(self, budget: Budget) -> None:
        self.counts = Counts()
        self._budget = budget
        self._asked: dict[SkipSet, set[tuple[bool, int]]] = {}

    def charge(
        self, sets: Sequence[SkipSet], want: Iterable[Want], prompts: Iterable[int]
    ) -> frozenset[SkipSet]:
        """Count what is new in this query, and return the sets never asked for before.

        `sets` are distinct, `want` has no cost. Accept length and metric come from one decoding
        and count once, a loss counts on its own. Raises BudgetExhausted, with nothing counted,
        where the budget does not reach; ValueError where it does not reach the first query.
        """
        kinds = {name == "loss" for name in want}
        works = {(kind, prompt) for prompt in prompts for kind in kinds}
        if not works:
            return frozenset()
        new_sets = frozenset(skip for skip in sets if skip not in self._asked)
        new_pairs = sum(len(works - self._asked.get(skip, set())) for skip in sets)
        self._require(
            "evaluations", self._budget.evaluations, self.counts.evaluations, len(new_sets)
        )
        self._require(
            "prompt evaluations",
            self._budget.prompt_evaluations,
            self.counts.prompt_evaluations,
            new_pairs,
        )
        for skip in sets:
            self._asked.setdefault(skip, set()).update(works)
        self.counts = replace(
            self.counts,
            evaluations=self.counts.evaluations + len(new_sets),
            prompt_evaluations=self.counts.prompt_evaluations + new_pairs,
        )
        return new_sets

    def did(self, jobs: Sequence[Job]) -> None:
        """Count jobs that the executor has done in this run."""
        timings = sum("cost" in job.want for job in jobs)
        fresh = {job.skip for job in jobs if "cost" not in job.want}
        self.counts = replace(
            self.counts,
            fresh_evaluations=self.counts.fresh_evaluations + len(fresh),
            fresh_prompt_evaluations=self.counts.fresh_prompt_evaluations
            + sum(len(job.prompts) for job in jobs),
            timings=self.counts.timings + timings,
        )

    def _require(self, name: str, limit: int | None, done: int, more: int) -> None:
        if limit is None or not more or done + more <= limit:
            return
        text = f"the next step takes {more} {name}, {limit - done} of {limit} are left"
        if not self._asked:
            raise ValueError(f"the budget is below the first step of the search: {text}; raise it")
        raise BudgetExhausted(text)
