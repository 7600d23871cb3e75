"""Answers side by side: native and sparse, beside the reference, better, equal and worse alike.

Which rows are shown is decided by the hash of a row, never by how much it changed. Files that
hold no text of the data (`--no-docs`) give no cases.

May import: the standard library, tss_bench.scoring (layer L2 of the design).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tss_bench.report import text
from tss_bench.report.board import Board
from tss_bench.report.entries import Entry
from tss_bench.report.main_table import section_title
from tss_bench.report.samples import Sample
from tss_bench.scoring.pooled import ratio

KINDS = ("improved", "unchanged", "worse")
SHOWN = 2
LONGEST = 1200


@dataclass(frozen=True)
class Side:
    """One answer: its text (turns joined), and the figures of this request alone."""

    title: str
    answer: str
    metric: float
    accept_len: float | None
    tokens_per_second: float | None

    def figures(self, metric_name: str) -> str:
        return (
            f"{metric_name} {text.number(self.metric, 4)}, "
            f"accept_len {text.number(self.accept_len)}, "
            f"tokens/s {text.number(self.tokens_per_second, 1)}"
        )


@dataclass(frozen=True)
class Case:
    """One request with both answers; texts are cut at `LONGEST` characters, which is marked."""

    kind: str
    row: str
    prompt: str
    references: tuple[str, ...]
    native: Side
    sparse: Side


@dataclass(frozen=True)
class CaseGroup:
    """The cases of one pair; `counts` says how many rows of each kind there are in all."""

    title: str
    metric_name: str
    counts: Mapping[str, int]
    cases: Sequence[Case]

    @property
    def summary(self) -> str:
        told = ", ".join(f"{self.counts[kind]} {kind}" for kind in KINDS)
        return f"{self.metric_name} by row: {told}"


def case_groups(board: Board, shown: int = SHOWN) -> list[CaseGroup]:
    """The cases of each sparse entry that skipped a block, `shown` of each kind at most."""
    groups = []
    for entry in (one for section in board.sections.values() for one in section):
        native = board.native_of(entry)
        if native is None or entry.skip == () or entry.run.metric is None:
            continue
        found = _group(native, entry, shown)
        if found is not None:
            groups.append(found)
    return groups


def _group(native: Entry, entry: Entry, shown: int) -> CaseGroup | None:
    metric = str(entry.run.metric)
    kinds: dict[str, list[tuple[Sample, Sample]]] = {kind: [] for kind in KINDS}
    for key in sorted(entry.rows, key=_by_hash):
        pair = (native.rows[key][0], entry.rows[key][0]) if key in native.rows else None
        if pair is None or not _can_show(*pair, metric):
            continue
        change = pair[1].metrics[metric] - pair[0].metrics[metric]
        change = -change if metric in entry.run.lower_is_better else change
        kinds[KINDS[1 if change == 0 else 0 if change > 0 else 2]].append(pair)
    counts = {kind: len(rows) for kind, rows in kinds.items()}
    there = [count for count in counts.values() if count]
    if not there:
        return None
    each = min(shown, *there)
    skip = text.layers(entry.skip)
    return CaseGroup(
        f"{entry.run.task}, {entry.run.model}: {entry.run.adapter} {skip} against "
        f"{native.run.adapter} ({section_title(entry.section)})",
        metric,
        counts,
        [_case(kind, pair, metric, entry) for kind in KINDS for pair in kinds[kind][:each]],
    )


def _can_show(native: Sample, sparse: Sample, metric: str) -> bool:
    scored = metric in native.metrics and metric in sparse.metrics
    told = sparse.prompt is not None and bool(sparse.references)
    return scored and told and bool(native.turns and sparse.turns)


def _case(kind: str, pair: tuple[Sample, Sample], metric: str, entry: Entry) -> Case:
    native, sparse = pair
    return Case(
        kind,
        sparse.row,
        _cut(sparse.prompt or ""),
        tuple(_cut(reference) for reference in sparse.references or ()),
        _side("native", native, metric),
        _side(f"TSS {text.layers(entry.skip)}", sparse, metric),
    )


def _side(title: str, sample: Sample, metric: str) -> Side:
    return Side(
        title,
        _cut("\n\n".join(sample.texts)),
        sample.metrics[metric],
        *(
            ratio([sample.pairs.get(name, (0.0, 0.0))])
            for name in ("accept_len", "tokens_per_second")
        ),
    )


def case_records(groups: Sequence[CaseGroup]) -> list[dict[str, Any]]:
    """The cases as plain records for CSV and JSON."""
    return [
        {
            "group": group.title,
            "kind": case.kind,
            "row": case.row,
            "metric_name": group.metric_name,
            "prompt": case.prompt,
            "references": " || ".join(case.references),
            **{
                f"{name}_{field}": getattr(side, field)
                for name, side in (("native", case.native), ("tss", case.sparse))
                for field in ("answer", "metric", "accept_len", "tokens_per_second")
            },
        }
        for group in groups
        for case in group.cases
    ]


def _by_hash(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def _cut(answer: str) -> str:
    return answer if len(answer) <= LONGEST else f"{answer[:LONGEST]} […]"
