"""Runs and entries: the requests of one adapter on one task, and all repeats of that together.

A `Run` is one samples file with what its results file says of it. An `Entry` is what a table
shows as one row: the same configuration on the same task, written into the same folder.

May import: the standard library, tss_bench.{types,domains,scoring} (layer L2 of the design).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import PurePosixPath
from typing import Any

from tss_bench.domains import DOMAINS, domain_of
from tss_bench.report.files import ResultFile
from tss_bench.report.samples import (
    UNSTATED,
    Sample,
    primary,
    read_sample,
    whole_numbers,
    with_filter,
)
from tss_bench.scoring.pooled import PRIMARY_METRICS, Pair

_IN_ROW = frozenset(
    {"pretrained", "skip_layers", "domain_map", "scope", "protocol", "draft", "device"}
)
"""Model arguments that a row shows elsewhere, or that are the same for a pair."""


@dataclass(frozen=True, eq=False)
class Run:
    """One adapter on one task, once. `skips` are the sets it used, None where not recorded.

    `place` is the folder of its files, `session` the one above it: runs that were interleaved
    lie side by side in one session. `arguments` are those a row's label shows.
    """

    place: str
    date: str
    adapter: str
    native: str | None
    model: str
    drafter: str
    task: str
    domain: str
    data: str
    split: str
    protocol: str
    scope: str
    num_layers: int | None
    skips: tuple[tuple[int, ...], ...] | None
    arguments: tuple[tuple[str, str], ...]
    metric: str | None
    samples: tuple[Sample, ...]
    repeat: int = 0
    interleaved_with: frozenset[str] = frozenset()
    machine: str = ""
    commit: str = ""
    peak_memory_bytes: int | None = None

    @property
    def session(self) -> str:
        return PurePosixPath(self.place).parent.as_posix()

    @property
    def setting(self) -> tuple[Any, ...]:
        """What makes two runs of one folder repeats of each other."""
        return (
            self.place,
            *(self.task, self.data, self.split, self.protocol),
            *(self.adapter, self.model, self.scope, self.skips, self.arguments),
        )


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


def read_runs(result: ResultFile, notes: list[str]) -> list[Run]:
    """The runs of one results file. Raises ValueError naming what is no sample or no record."""
    runs = []
    for task in sorted(result.samples):
        samples = _samples(result, task, notes)
        try:
            runs.append(_run(result, task, samples))
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"{result.name}: what it says of {task} cannot be read "
                f"({type(error).__name__}: {error})"
            ) from None
    return runs


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


def _samples(result: ResultFile, task: str, notes: list[str]) -> tuple[Sample, ...]:
    """The requests of a task: several filters of one request together, keys made unique."""
    found: dict[str, Sample] = {}
    filters: dict[str, str] = {}
    for number, line in enumerate(result.samples[task], 1):
        try:
            sample, request = read_sample(line), str(line["doc_id"])
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise ValueError(
                f"{result.place}: sample {number} of {task} is no sample of lm-eval "
                f"({type(error).__name__}: {error})"
            ) from None
        name = str(line.get("filter"))
        if request not in found:
            found[request], filters[request] = sample, name
        elif filters[request] != name:
            found[request] = with_filter(found[request], sample, name)
        else:
            notes.append(f"{result.place}: request {request} of {task} stands there twice")
    return _unique(found.values())


def _unique(samples: Iterable[Sample]) -> tuple[Sample, ...]:
    seen: dict[str, int] = {}
    unique = []
    for sample in samples:
        count = seen[sample.key] = seen.get(sample.key, 0) + 1
        key = sample.key if count == 1 else f"{sample.key}#{count}"
        unique.append(Sample(**{**vars(sample), "key": key}))
    return tuple(unique)


def _run(result: ResultFile, task: str, samples: tuple[Sample, ...]) -> Run:
    config = _mapping(result.data.get("config"))
    ours = _mapping(result.data.get("tss_bench"))
    told = {**_mapping(config.get("tss_bench")), **ours}
    adapter = str(told.get("adapter") or config.get("model") or UNSTATED)
    return Run(
        place=result.place,
        date=result.date,
        adapter=adapter,
        native=_native(adapter, told),
        model=str(told.get("model") or result.data.get("model_name") or UNSTATED),
        drafter=str(told.get("drafter") or ""),
        task=task,
        domain=_domain(task, samples),
        scope=_scope(samples, told),
        num_layers=int(told.get("num_layers") or 0) or None,
        skips=_skips(task, adapter, samples, told),
        arguments=_arguments(ours.get("model_args", config.get("model_args"))),
        metric=primary(samples, PRIMARY_METRICS),
        samples=samples,
        repeat=int(told.get("repeat") or 0),
        interleaved_with=frozenset(map(str, told.get("interleaved_with") or ())),
        machine=str(told.get("machine") or ""),
        commit=str(told.get("commit") or ""),
        peak_memory_bytes=int(told.get("peak_memory_bytes") or 0) or None,
        **_source(result, task, samples, told),
    )


def _source(
    result: ResultFile, task: str, samples: Sequence[Sample], told: Mapping[str, Any]
) -> dict[str, str]:
    """Data, split and protocol: what decides which table a run stands in."""
    config = _mapping(_mapping(result.data.get("configs")).get(task))
    metadata = _mapping(config.get("metadata"))
    data = _mapping(_mapping(told.get("data")).get(task)) or _mapping(metadata.get("data"))
    own_split = config.get("test_split") or config.get("validation_split")
    split = (metadata.get("split") or told.get("split")) if data else own_split
    return {
        "data": str(data.get("kind") or config.get("dataset_path") or UNSTATED),
        "split": str(split or UNSTATED),
        "protocol": _said("protocol", samples, told),
    }


def _said(name: str, samples: Sequence[Sample], told: Mapping[str, Any]) -> str:
    values = sorted({getattr(s, name) for s in samples} - {None})
    return " and ".join(values) if values else str(told.get(name) or UNSTATED)


def _scope(samples: Sequence[Sample], told: Mapping[str, Any]) -> str:
    """The scope of a run; a loglikelihood has no pass after prefill, so it is always `all`."""
    said = _said("scope", samples, told)
    answered = any(sample.turns or sample.failed is not None for sample in samples)
    return said if answered or not samples or said == UNSTATED else "all"


def _skips(
    task: str, adapter: str, samples: Sequence[Sample], told: Mapping[str, Any]
) -> tuple[tuple[int, ...], ...] | None:
    used = {sample.skip for sample in samples if sample.skip is not None}
    if used:
        return tuple(sorted(used))
    for name in ("skip_sets", "used"):
        choice = _mapping(_mapping(told.get(name)).get(task))
        if "skip" in choice:
            return (whole_numbers(choice["skip"]),)
    return ((),) if adapter.startswith("native_") else None


def _native(adapter: str, told: Mapping[str, Any]) -> str | None:
    if not adapter.startswith("tss_"):
        return None
    return str(told.get("native") or adapter.replace("tss_", "native_", 1))


def _domain(task: str, samples: Sequence[Sample]) -> str:
    named = {sample.domain for sample in samples} - {None}
    return domain_of(task) or (named.pop() if len(named) == 1 else None) or task


def _arguments(given: Any) -> tuple[tuple[str, str], ...]:
    """Model arguments that tell two rows of one adapter apart, as sorted (name, text)."""
    if isinstance(given, str):
        pieces = re.split(r",(?![^\[]*\])", given)
        given = dict(piece.split("=", 1) for piece in pieces if "=" in piece)
    shown = {str(k): _shown(v) for k, v in _mapping(given).items() if k not in _IN_ROW}
    return tuple(sorted(shown.items()))


def _shown(value: Any) -> str:
    return "+".join(map(str, value)) if isinstance(value, list) else str(value)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
