"""What searches found, beside test rows: strategies (the paper's Table 2), tolerances (Table 4).

Calibration figures come from domain maps and ledgers, test figures from the results of runs with
the same target, drafter and skip set. A gap between the two is over-fitting.

May import: the standard library, tss_bench.{types,domains,search} (layer L2 of the design).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tss_bench.domains import DomainMap, same_model
from tss_bench.report import text
from tss_bench.report.board import Board
from tss_bench.report.entries import Entry
from tss_bench.report.files import LedgerFile
from tss_bench.report.main_table import (
    MODEL,
    SCOPE,
    SKIP,
    SPARSITY,
    field_column,
    figure_column,
    spread,
)
from tss_bench.report.tables import Column, Record, Table
from tss_bench.search import Rules, Score
from tss_bench.search.rules import choose
from tss_bench.types import SkipSet

TOLERANCES = (0.05, 0.0, -0.05)
"""Shares of the dense A and M that a set may lose; a negative one must be gained."""


@dataclass(frozen=True)
class Searched:
    """The target of a search: what a run must agree in to be its test."""

    model: str
    drafter: str
    task: str
    scope: str
    protocol: str
    data: str | None = None
    settings: tuple[tuple[str, str], ...] = ()

    def tests(self, board: Board, skip: Sequence[int]) -> Entry | None:
        """The test run of a skip set; of the dense one also a native run.

        None where it is not known which data the search was on.
        """
        found = (
            entry
            for entry in board.entries
            if (entry.run.task, entry.run.data, entry.run.protocol, entry.run.split)
            == (self.task, self.data, self.protocol, "test")
            and entry.run.drafter == self.drafter
            and same_model(entry.run.model, self.model)
            and entry.skip == tuple(skip)
            and (not skip or entry.run.scope == self.scope)
            and not entry.subset
            and self._agrees(entry)
        )
        return next(found, None)

    def _agrees(self, entry: Entry) -> bool:
        """Whether the run decoded as the search did, as far as its files say how."""
        run = entry.run
        greedy = {**_GREEDY, **run.resolved, **run.generation}
        return (
            run.generation.keys() <= _GREEDY.keys()
            and all(str(greedy[name]) in ("0", "0.0", "False") for name in _GREEDY)
            and all(
                json.dumps(run.resolved[name], sort_keys=True) == value
                for name, value in self.settings
                if name in run.resolved
            )
        )


_GREEDY = {"temperature": 0.0, "do_sample": False}
"""How every search decodes; its records do not say so."""


def search_records(found: DomainMap) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """What `tss-bench search` wrote into a map about each domain that it has a set for."""
    records = found.provenance.get("search")
    if isinstance(records, Mapping):
        for name, record in records.items():
            if name in found.domains and isinstance(record, Mapping) and "task" in record:
                yield name, record


def searched(found: DomainMap, record: Mapping[str, Any]) -> Searched:
    """The target of a map's domain; which data it was on stands in the task's label."""
    marks = re.search(r"\(([^()]*)\)$", str(record.get("data")))
    kinds = [m for m in (marks[1].split(", ") if marks else ()) if m != "calibration"]
    return Searched(
        found.model,
        found.drafter,
        str(record["task"]),
        found.scope,
        found.protocol,
        kinds[0] if kinds else "official",
        _settings(record.get("fingerprint")),
    )


def _settings(parts: Any) -> tuple[tuple[str, str], ...]:
    """What the parts of a fingerprint say of target, drafter and limits, values as JSON.

    On which device the search ran is left out, and of what it left to the model its default.
    """
    groups = parts if isinstance(parts, Mapping) else {}
    found: dict[str, Any] = {}
    for name in ("model", "drafter", "other"):
        found |= groups[name] if isinstance(groups.get(name), Mapping) else {}
    unset = {name for name in ("max_length", "chat_template") if found.get(name) is None}
    names = sorted(found.keys() - {"id", "device"} - unset)
    return tuple((name, json.dumps(found[name], sort_keys=True)) for name in names)


def strategy_tables(board: Board) -> list[Table]:
    """One row a strategy and domain, the dense target first; a table a data source and protocol."""
    records: dict[tuple[str, str], dict[tuple[Any, ...], Record]] = {}
    for label, found in board.inputs.maps:
        for name, record in search_records(found):
            target = searched(found, record)
            rows = records.setdefault((target.data or "", target.protocol), {})
            dense = SkipSet.dense(found.num_layers)
            where = (target.task, target.model, target.drafter, target.scope)
            base = dense_score(record)
            metric = record.get("metric_name")
            # Searches on two machines may differ in it, and each is compared with its own.
            own = (*where, f"{base.accept} {base.metric}")
            rows.setdefault(
                (*own, 0, ""),
                _strategy(board, target, "dense", dense, base, base, {}, "", metric),
            )
            config = found.domains[name]
            score = Score(config.skip, config.accept, config.metric)
            if not config.skip:
                score = base
            strategy = str(record.get("strategy"))
            row = _strategy(
                board, target, strategy, config.skip, score, base, record, label, metric
            )
            # A map that was copied, or taken over into another one, tells nothing new.
            if not any({**row, "map": other["map"]} == other for other in rows.values()):
                rows[(*own, 1, strategy, label)] = row
    return [
        Table(
            "strategies",
            f"{data} data, protocol {protocol}",
            [rows[key] for key in sorted(rows)],
            STRATEGY_COLUMNS,
            _notes(rows.values()),
        )
        for (data, protocol), rows in sorted(records.items())
    ]


def dense_score(record: Mapping[str, Any]) -> Score:
    """The dense A and M that a search wrote down; its skip set says nothing of the depth."""
    told = record.get("dense")
    told = told if isinstance(told, Mapping) else {}
    return Score(SkipSet.dense(1), told.get("accept"), told.get("metric"))


def _strategy(
    board: Board,
    target: Searched,
    strategy: str,
    skip: SkipSet,
    score: Score,
    dense: Score,
    record: Mapping[str, Any],
    label: str,
    metric_name: str | None,
) -> dict[str, Any]:
    counts = record.get("counts")
    counts = counts if isinstance(counts, Mapping) else {}
    return {
        "task": target.task,
        "model": target.model,
        "drafter": target.drafter,
        "data": target.data,
        "protocol": target.protocol,
        "scope": target.scope,
        "strategy": strategy,
        "skip": str(skip),
        "sparsity": skip.sparsity,
        "metric_name": metric_name,
        **_both_splits(board, target, skip, score, dense),
        "evaluations": counts.get("evaluations"),
        "answers": counts.get("prompt_evaluations"),
        "seconds": _seconds(record),
        "machine": record.get("machine"),
        "note": record.get("metric_floor") or (record.get("reason") if not skip else None),
        "map": label or None,
    }


def _seconds(record: Mapping[str, Any]) -> float | None:
    """What a search took; None in maps of before, and where its ledger did not know."""
    told = record.get("seconds")
    return float(told) if isinstance(told, int | float) and not isinstance(told, bool) else None


def _notes(records: Iterable[Record]) -> list[str]:
    """What the seconds mean and where they were taken; nothing where there are none."""
    timed = [record for record in records if record["seconds"] is not None]
    machines = sorted({str(record["machine"]) for record in timed if record["machine"]})
    where = [f"Searched on: {'; '.join(machines)}"] if machines else []
    return [_SECONDS_NOTE, *where] if timed else []


def _both_splits(
    board: Board, target: Searched, skip: SkipSet, score: Score, dense: Score
) -> dict[str, Any]:
    """A and M of a set on calibration and test rows, and their changes to the dense target."""
    entry = target.tests(board, tuple(skip))
    base = target.tests(board, ()) if skip else None
    if entry is not None and skip:
        base = board.native_of(entry) or base
    found: dict[str, Any] = {
        "accept_calibration": score.accept,
        "accept_calibration_change": _relative(dense.accept, score.accept) if skip else None,
        "metric_calibration": score.metric,
        "metric_calibration_change": _relative(dense.metric, score.metric) if skip else None,
        "test_run": entry.run.place if entry else None,
    }
    for name, key in (("accept_len", "accept"), ("metric", "metric")):
        found |= spread(f"{key}_test", board.figure(entry, name) if entry else None)
        change = board.change(base, entry, name) if base and entry else None
        found[f"{key}_test_change"] = change.value if change and change.relative else None
        found[f"{key}_test_p"] = change.p if change else None
    found |= spread(
        "tokens_per_second", board.figure(entry, "tokens_per_second") if entry else None
    )
    return found | spread("speed_up", board.speed_up(entry) if entry else None)


def _relative(before: float | None, after: float | None) -> float | None:
    return None if not before or after is None else after / before - 1


def scores(ledger: LedgerFile) -> tuple[Score | None, list[Score]]:
    """The dense score and those of the other sets that the ledger knows on all prompts."""
    data = ledger.parts.get("data")
    rows = data.get("rows") if isinstance(data, Mapping) else None
    if not isinstance(rows, int):
        return None, []
    found: dict[SkipSet, Score] = {}
    for skip in ledger.table.sets():
        known = ledger.table.known(skip, range(rows))
        if known.accept is not None and known.metric is not None:
            scored = known.score()
            cost = len(skip.active) / skip.num_layers
            found[skip] = Score(skip, scored.accept, scored.metric, cost)
    dense = found.pop(SkipSet.dense(ledger.num_layers), None)
    return dense, list(found.values())


def ledger_target(board: Board, ledger: LedgerFile) -> Searched:
    """Whose ledger it is, from its header; the data from the map of a search that used it."""

    def part(name: str, field: str) -> str:
        told = ledger.parts.get(name)
        return str(told.get(field)) if isinstance(told, Mapping) else text.NOTHING

    return Searched(
        part("model", "id"),
        part("drafter", "id"),
        part("data", "task"),
        str(ledger.parts.get("scope")),
        str(ledger.parts.get("protocol")),
        next(
            (
                searched(found, record).data
                for _, found in board.inputs.maps
                for _, record in search_records(found)
                if is_of(ledger, record)
            ),
            None,
        ),
        _settings(ledger.parts),
    )


def is_of(ledger: LedgerFile, record: Mapping[str, Any]) -> bool:
    """Whether a map's record is of a search with this ledger, or one with equal settings."""
    told = record.get("fingerprint")
    return isinstance(told, Mapping) and told.get("sha256") == ledger.fingerprint


def tolerance_tables(board: Board) -> list[Table]:
    """The cheapest set within each tolerance among all that a ledger holds, and its test."""
    tables: dict[tuple[str, str], list[Record]] = {}
    for ledger in board.inputs.ledgers:
        dense, others = scores(ledger)
        if dense is None or dense.accept is None or not others:
            continue
        target = ledger_target(board, ledger)
        for tolerance in TOLERANCES:
            use_metric = dense.metric is not None
            rules = Rules(eps=tolerance, tau=max(tolerance, 0.0), use_metric=use_metric)
            best = choose("min_cost", rules, dense, others) or dense
            tables.setdefault((target.data or "", target.protocol), []).append(
                {
                    "task": target.task,
                    "model": target.model,
                    "drafter": target.drafter,
                    "data": target.data,
                    "protocol": target.protocol,
                    "scope": target.scope,
                    "tolerance": tolerance,
                    "skip": str(best.skip),
                    "sparsity": best.skip.sparsity,
                    **_both_splits(board, target, best.skip, best, dense),
                    "sets": len(others),
                    "ledger": ledger.name,
                }
            )
    return [
        Table(
            "tolerance",
            f"{data_title(data)}, protocol {protocol}",
            tables[data, protocol],
            TOLERANCE_COLUMNS,
        )
        for data, protocol in sorted(tables)
    ]


def data_title(data: str | None) -> str:
    """How titles name what a search was on."""
    return f"{data} data" if data else "data not stated (no map of a search with this ledger)"


def _split_columns(key: str, letter: str, digits: int) -> tuple[Column, ...]:
    """A figure on calibration and test rows, each beside its change to dense."""

    def calibration(record: Record) -> str:
        value = text.number(record[f"{key}_calibration"], digits)
        name = record.get("metric_name") if key == "metric" else None
        value = f"{name} {value}" if name and value != text.NOTHING else value
        change = record[f"{key}_calibration_change"]
        return value if change is None else f"{value} ({text.signed_share(change)})"

    def test(record: Record) -> str:
        value, low, high = (record[f"{key}_test{end}"] for end in ("", "_low", "_high"))
        shown = text.figure(value, low, high, digits)
        change, p = record[f"{key}_test_change"], record[f"{key}_test_p"]
        if change is None:
            return shown
        return f"{shown} ({text.signed_share(change)}, p {text.p_value(p)})"

    return (
        Column(f"{letter}, calibration", calibration, f"{key}_calibration", "and change to dense"),
        Column(f"{letter}, test", test, f"{key}_test", "95 % interval, change to dense and its p"),
    )


_SPLITS = (*_split_columns("accept", "A", 2), *_split_columns("metric", "M", 3))
_WHO = (
    field_column("task", "task"),
    MODEL,
    field_column("drafter", "drafter", folds=True),
)
_SPEED = (
    figure_column("tokens/s, test", "tokens_per_second", 1),
    figure_column("speed-up", "speed_up", 2, "over native, measured interleaved"),
)


def _count(title: str, key: str, help: str = "") -> Column:
    return field_column(title, key, text.whole, help, sorts=True)


_SECONDS_HELP = "wall-clock seconds of evaluating them, as if this search had been alone"
_SECONDS_NOTE = (
    "search, s: wall-clock seconds in which the answers that the search asked for were decoded and "
    "scored, counted for every search that asked, also where strategies share a ledger and another "
    "one had paid for them first: what it would have taken alone. The seconds of answers decoded "
    "side by side are shared equally among them"
)

STRATEGY_COLUMNS = (
    *_WHO,
    field_column("strategy", "strategy"),
    SKIP,
    SPARSITY,
    *_SPLITS,
    *_SPEED,
    _count("evaluations", "evaluations", "skip sets that the search asked for"),
    _count("answers", "answers", "answers decoded for it"),
    field_column("search, s", "seconds", lambda v: text.number(v, 1), _SECONDS_HELP, sorts=True),
    SCOPE,
    field_column("note", "note"),
)

TOLERANCE_COLUMNS = (
    *_WHO,
    field_column("tolerance", "tolerance", lambda v: f"{v:+.2f}" if v else "0.00", sorts=True),
    SKIP,
    SPARSITY,
    *_SPLITS,
    *_SPEED,
    _count("sets", "sets", "skip sets in the ledger that all calibration rows were answered under"),
    SCOPE,
)
