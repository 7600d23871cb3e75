"""Entries: what a table shows as one row, with the rows of all its repeats.

That is one configuration on one task, written into one folder.

May import: the standard library, tss_bench.{domains,scoring} (layer L2 of the design).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from tss_bench.domains import DOMAINS
from tss_bench.report.files import ResultFile
from tss_bench.report.runs import Run, read_runs
from tss_bench.report.samples import Sample
from tss_bench.scoring.pooled import Pair


@dataclass(frozen=True, eq=False)
class Entry:
    """The repeats of one run.

    `subset` is a mark where its rows are not all that others had; `folder` names where its files
    lie if the same configuration was run in another folder, too.
    """

    runs: tuple[Run, ...]
    subset: str = ""
    folder: str = ""

    @property
    def run(self) -> Run:
        return self.runs[0]

    @property
    def section(self) -> tuple[str, str, str, str]:
        """Entries are ranked only with those of the same data, split, protocol and rows."""
        return (self.run.data, self.run.split, self.run.protocol, self.subset)

    @property
    def sparse(self) -> bool:
        """Whether the adapter is one that may skip blocks, whatever it skipped here."""
        return self.run.adapter.startswith("tss_")

    @property
    def target(self) -> str:
        """`+TSS`, `native`, or `lossy` where nothing verifies a part of the target."""
        if self.sparse:
            return "+TSS"
        return "lossy" if self.run.drafter.endswith("(lossy)") else "native"

    @property
    def skip(self) -> tuple[int, ...] | None:
        """The one skip set of the entry; None where it used several or did not record it."""
        skips = self.run.skips
        return skips[0] if skips is not None and len(skips) == 1 else None

    @property
    def sparsity(self) -> float | None:
        layers = self.run.num_layers
        return None if self.skip is None or not layers else len(self.skip) / layers

    @cached_property
    def rows(self) -> dict[str, tuple[Sample, ...]]:
        """The answered requests by key, one a repeat, in the order of the keys."""
        found: dict[str, list[Sample]] = {}
        for run in self.runs:
            for sample in run.samples:
                if sample.failed is None:
                    found.setdefault(sample.key, []).append(sample)
        return {key: tuple(found[key]) for key in sorted(found)}

    @property
    def failed(self) -> int:
        return sum(sample.failed is not None for run in self.runs for sample in run.samples)

    def pairs(self, name: str, keys: Iterable[str] | None = None) -> list[Pair]:
        """The (numerator, denominator) of each row, repeats added up; (0, 0) where it has none.

        `name` is a pooled figure, or `metric`: the row's value over 1 (the mean of its repeats).
        """
        rows = self.rows.keys() if keys is None else keys
        return [self._pair(name, self.rows[key]) for key in rows]

    def _pair(self, name: str, samples: Sequence[Sample]) -> Pair:
        if name != "metric":
            found = [sample.pairs[name] for sample in samples if name in sample.pairs]
            return sum(a for a, _ in found) + 0.0, sum(b for _, b in found) + 0.0
        metric = self.run.metric or ""
        values = [sample.metrics[metric] for sample in samples if metric in sample.metrics]
        return (sum(values) / len(values), 1.0) if values else (0.0, 0.0)


def entries(results: Iterable[ResultFile], notes: list[str]) -> tuple[Entry, ...]:
    """All entries, ordered by task, model and adapter; `notes` gets what was left out."""
    found: dict[tuple[Any, ...], dict[int, Run]] = {}
    for result in results:
        for run in read_runs(result, notes):
            repeats = found.setdefault(run.setting, {})
            other = repeats.get(run.repeat)
            if other is not None:
                older, run = sorted((other, run), key=lambda each: each.date)
                notes.append(
                    f"{run.place}: {run.adapter} on {run.task} was run again; the results of "
                    f"{older.date} are left out"
                )
            repeats[run.repeat] = run
    whole = [Entry(tuple(found[key][n] for n in sorted(found[key]))) for key in found]
    return tuple(sorted(_with_folders(_marked(whole)), key=_order))


def _with_folders(marked: Sequence[Entry]) -> list[Entry]:
    """The entries, those that only their folder tells apart with its name."""
    times = Counter((*entry.section, *entry.run.setting[1:]) for entry in marked)
    return [
        replace(entry, folder=entry.run.place.removesuffix(f"/{entry.run.adapter}"))
        if times[(*entry.section, *entry.run.setting[1:])] > 1
        else entry
        for entry in marked
    ]


def _marked(whole: Sequence[Entry]) -> list[Entry]:
    """The entries with a mark where their rows differ from the most that the task was run on."""
    rows = [frozenset(sample.key for sample in entry.run.samples) for entry in whole]
    most: dict[tuple[str, ...], frozenset[str]] = {}
    for entry, keys in zip(whole, rows, strict=True):
        best = most.get((*entry.section, entry.run.task), frozenset())
        most[(*entry.section, entry.run.task)] = max(best, keys, key=lambda k: (len(k), sorted(k)))
    marked = []
    for entry, keys in zip(whole, rows, strict=True):
        best = most[(*entry.section, entry.run.task)]
        mark = "other rows" if len(keys) == len(best) else f"{len(keys)} of {len(best)} rows"
        marked.append(replace(entry, subset="" if keys == best else mark))
    return marked


def _order(entry: Entry) -> tuple[Any, ...]:
    run = entry.run
    place = DOMAINS.index(run.domain) if run.domain in DOMAINS else len(DOMAINS)
    drafts = run.drafter not in ("", "none")
    return (
        *(place, run.task, run.model, drafts, run.drafter, entry.sparse, run.adapter),
        *(run.skips or (), run.scope, run.arguments, run.place),
    )
