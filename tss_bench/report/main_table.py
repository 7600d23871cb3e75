"""The paper's Table 1, and times: native and sparse runs side by side, one table a section.

May import: numpy, tss_bench.scoring (layer L2 of the design).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tss_bench.report import text
from tss_bench.report.board import Board, Figure
from tss_bench.report.entries import Entry
from tss_bench.report.tables import Column, Record, Table
from tss_bench.scoring.pooled import ratio

_FIGURES = (
    "accept_len",
    "metric",
    "tokens_per_second",
    "decode_tokens_per_second",
    "steps_per_second",
    "accepted_per_step",
    "accept_rate",
    "verify_ms",
)


def section_title(section: tuple[str, str, str, str]) -> str:
    """`official data, split test, protocol strict`, and which part of the rows."""
    data, split, protocol, subset = section
    title = f"{data} data, split {split}, protocol {protocol}"
    return f"{title}, {subset}" if subset else title


def identity(entry: Entry) -> dict[str, Any]:
    """What a record says of where its figures come from."""
    run = entry.run
    return {
        "task": run.task,
        "domain": run.domain,
        "model": run.model,
        "drafter": run.drafter or None,
        "adapter": run.adapter,
        "arguments": " ".join(f"{key}={value}" for key, value in run.arguments) or None,
        "target": entry.target,
        "data": run.data,
        "split": run.split,
        "protocol": run.protocol,
        "rows_of_task": entry.subset or "all",
        "scope": run.scope,
        "skip": text.layers(entry.skip) if entry.skip is not None else None,
        "sparsity": entry.sparsity,
        "run": run.place,
        "folder": entry.folder or None,
    }


def method(record: Record) -> str:
    """The adapter, with the arguments or the folder that tell it from others."""
    folder = f"({record['folder']})" if record["folder"] else None
    return " ".join(filter(None, (record["adapter"], record["arguments"], folder)))


def main_record(board: Board, entry: Entry, flags: Sequence[str]) -> dict[str, Any]:
    """Everything that the main table and its CSV say of one entry."""
    record = {
        **identity(entry),
        "rows": len(entry.rows),
        "scored": sum(1 for _, below in entry.pairs("metric") if below),
        "failed": entry.failed,
        "metric_name": entry.run.metric,
    }
    for name in _FIGURES:
        record |= spread(name, board.figure(entry, name))
    speeds = [ratio(Entry((run,)).pairs("tokens_per_second")) for run in entry.runs]
    known = [speed for speed in speeds if speed is not None]
    record["repeats"] = len(entry.runs)
    repeated = len(known) > 1
    record["tokens_per_second_mean"] = float(np.mean(known)) if repeated else None
    record["tokens_per_second_sd"] = float(np.std(known, ddof=1)) if repeated else None
    native = board.native_of(entry)
    for name in ("accept_len", "metric"):
        change = board.change(native, entry, name) if native else None
        record[f"{name}_p"] = change.p if change else None
    record |= spread("speed_up", board.speed_up(entry))
    record["commit"] = entry.run.commit or None
    record["machine"] = entry.run.machine or None
    record["flags"] = "; ".join(flags) or None
    return record


def spread(name: str, figure: Figure | None) -> dict[str, float | None]:
    """A figure as three values: itself, and the ends of its interval."""
    if figure is None:
        return {name: None, f"{name}_low": None, f"{name}_high": None}
    return {name: figure.value, f"{name}_low": figure.low, f"{name}_high": figure.high}


def figure_column(
    title: str, key: str, digits: int, help: str = "", before: str | None = None
) -> Column:
    """A column of a figure with its interval; `before` is the field that names it."""

    def shown(record: Record) -> str:
        value = text.figure(record[key], record[f"{key}_low"], record[f"{key}_high"], digits)
        told = record.get(before) if before else None
        return value if value == text.NOTHING or not told else f"{told} {value}"

    return Column(title, shown, key, help)


def field_column(
    title: str,
    key: str,
    show: Callable[[Any], str] = lambda value: text.name(value),
    help: str = "",
    *,
    sorts: bool = False,
    folds: bool = False,
) -> Column:
    """A column of one field; `sorts` where its value is a number."""
    return Column(title, lambda record: show(record[key]), key if sorts else None, help, folds)


MODEL = field_column("model", "model", folds=True)
SCOPE = field_column("scope", "scope", help="verify: dense prefill; all: sparse", folds=True)
METHOD = Column("method", method)
SKIP = field_column("skip set", "skip", help="blocks of the target left out, numbered from 0")
SPARSITY = field_column("|S|/L", "sparsity", lambda value: text.number(value, 3), sorts=True)


def _tokens(record: Record) -> str:
    """tokens/s: with repeats their mean and standard deviation, else the interval over rows."""
    mean, deviation = record["tokens_per_second_mean"], record["tokens_per_second_sd"]
    if mean is not None:
        return f"{mean:.1f} ± {deviation:.1f} (n={record['repeats']})"
    ends = (record["tokens_per_second_low"], record["tokens_per_second_high"])
    return text.figure(record["tokens_per_second"], *ends, 1)


def _scored(record: Record) -> str:
    return f"{record['scored']} of {record['rows']}"


def _speed_up(record: Record) -> str:
    value, *ends = (record[f"speed_up{end}"] for end in ("", "_low", "_high"))
    interval = text.figure(value, *ends).partition(" ")[2]
    return text.NOTHING if value is None else f"{value:.2f}x {interval}".rstrip()


MAIN_COLUMNS = (
    field_column("task", "task"),
    MODEL,
    METHOD,
    field_column("target", "target"),
    SKIP,
    SPARSITY,
    figure_column(
        "accept_len", "accept_len", 2, "ids emitted per verification step, bonus included"
    ),
    field_column(
        "p", "accept_len_p", text.p_value, "accept_len against native, paired bootstrap", sorts=True
    ),
    figure_column("metric", "metric", 3, "the task's metric, 0 to 1", before="metric_name"),
    field_column(
        "p (metric)",
        "metric_p",
        text.p_value,
        "metric against native, paired bootstrap",
        sorts=True,
    ),
    Column("scored", _scored, "scored", "rows with a reference, of all answered ones"),
    Column("tokens/s", _tokens, "tokens_per_second", "prefill and detokenisation included"),
    Column("speed-up", _speed_up, "speed_up", "tokens/s over native, measured interleaved"),
    figure_column("accepted/step", "accepted_per_step", 2, "drafted ids kept, bonus excluded"),
    figure_column("steps/s", "steps_per_second", 1, "verification steps, drafting included"),
    SCOPE,
    field_column("flags", "flags", help="what speaks against reading the row as it stands"),
)


def main_tables(board: Board, flags: Mapping[Entry, Sequence[str]]) -> list[Table]:
    """One table a section."""
    tables = []
    for section, found in board.sections.items():
        records = [main_record(board, entry, flags.get(entry, ())) for entry in found]
        tables.append(Table("main", section_title(section), records, MAIN_COLUMNS, _notes(found)))
    return tables


def _notes(found: Sequence[Entry]) -> list[str]:
    notes = []
    machines = sorted({entry.run.machine for entry in found} - {""})
    if machines:
        where = "; ".join(machines)
        notes.append(f"Machine: {where}" if len(machines) == 1 else f"Several machines: {where}")
    commits = sorted({_short_commit(entry.run.commit) for entry in found} - {""})
    if commits:
        notes.append(f"Commit: {', '.join(commits)}")
    if any(entry.run.protocol == "paper" for entry in found):
        notes.append(
            "Protocol paper counts text after the end of an answer, as the TSS authors' code did; "
            "its figures compare with no table of protocol strict"
        )
    return notes


def _short_commit(commit: str) -> str:
    """Twelve digits of a hash, and what is said after it."""
    return re.sub(r"^([0-9a-f]{12})[0-9a-f]+", r"\1", commit)


TIME_COLUMNS = (
    field_column("task", "task"),
    MODEL,
    METHOD,
    SKIP,
    *(
        field_column(title, key, lambda value: text.number(value, 3), help, sorts=True)
        for title, key, help in (
            ("first token p50, s", "first_token_p50", "from the prompt to the first id, by turn"),
            ("first token p90, s", "first_token_p90", ""),
            ("request p50, s", "latency_p50", "a whole request, all its turns"),
            ("request p90, s", "latency_p90", ""),
            ("request p99, s", "latency_p99", ""),
        )
    ),
    figure_column("decode tokens/s", "decode_tokens_per_second", 1, "without prefill"),
    figure_column("verify ms", "verify_ms", 2, "mean of a verification pass"),
    field_column(
        "peak memory, MiB",
        "peak_memory_mib",
        lambda value: text.number(value, 0),
        "of the process with all adapters of the run loaded",
        sorts=True,
    ),
)


def time_tables(board: Board) -> list[Table]:
    """Latency percentiles and memory of the entries that recorded them, one table a section."""
    tables = []
    for section, found in board.sections.items():
        records = [time_record(board, entry) for entry in found]
        known = [record for record in records if record["latency_p50"] is not None]
        if known:
            tables.append(Table("times", section_title(section), known, TIME_COLUMNS))
    return tables


def time_record(board: Board, entry: Entry) -> dict[str, Any]:
    """Percentiles over requests (first token: over turns), all repeats together; seconds."""
    samples = [sample for row in entry.rows.values() for sample in row]
    timed = [[turn.wall_s for turn in sample.turns] for sample in samples]
    latency = [sum(t or 0.0 for t in turns) for turns in timed if turns and None not in turns]
    first = [
        turn.first_token_s
        for sample in samples
        for turn in sample.turns
        if turn.first_token_s is not None
    ]
    memory = [run.peak_memory_bytes for run in entry.runs if run.peak_memory_bytes is not None]
    record = {
        **identity(entry),
        **_percentiles("first_token", first, (50, 90)),
        **_percentiles("latency", latency, (50, 90, 99)),
        "peak_memory_mib": max(memory) / 2**20 if memory else None,
    }
    for name in ("decode_tokens_per_second", "verify_ms"):
        record |= spread(name, board.figure(entry, name))
    return record


def _percentiles(
    name: str, values: Sequence[float], ranks: Sequence[int]
) -> dict[str, float | None]:
    return {
        f"{name}_p{rank}": float(np.percentile(values, rank)) if values else None for rank in ranks
    }
