"""`tss-bench bench domains`: every method on the Spec-Bench domains, interleaved, in one table.

With `--out` each task is kept once it is measured, so a killed run goes on with the next one. A
task is measured by one process alone: no ratio mixes the times of two.

May import: model_adapters, tss_bench (layer L3 of the design).
"""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tss_bench import bench
from tss_bench.answer_records import digest
from tss_bench.bench_report import (
    PLAIN,
    answer_pairs,
    domains_row,
    domains_table,
    summarize,
    summary_table,
)
from tss_bench.files import replace_text
from tss_bench.harness import TaskRequests, load_adapters, run_interleaved
from tss_bench.locks import only_writer
from tss_bench.weights.cache import say

SUMMARY, RESULTS = "summary.md", "results.json"

_OF_A_RUN = frozenset({"used", "overflow", "routed"})
"""What an adapter's record says of a run, not of its configuration."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `tss-bench bench domains`."""
    bench.add_arguments(parser)
    parser.epilog = (
        "--model native gives the table of every method: a row each, accept length and speed-up "
        f"over {PLAIN} by domain."
    )
    parser.add_argument(
        "--out",
        type=Path,
        help=f"folder for {SUMMARY}, {RESULTS} and each measured task, which the same command "
        "does not measure again; give another one after a change of the code",
    )


def run(args: argparse.Namespace) -> None:
    """Accept length, metric and throughput of each adapter on each task, then the summary.

    Raises ValueError for bad input, and where another process writes to `--out`, before any
    weight is loaded.
    """
    if args.out is None:
        _run(args)
        return
    if args.out.exists() and not args.out.is_dir():
        raise ValueError(f"--out {args.out} is a file; give a folder")
    args.out.mkdir(parents=True, exist_ok=True)
    refusal = f"another bench domains writes {args.out}; wait for it or choose another --out"
    with only_writer(args.out / ".lock", refusal):
        _run(args)


def _run(args: argparse.Namespace) -> None:
    adapters, tasks, left_out = bench.prepare(args)
    load_adapters(adapters)
    headline = bench.machine(adapters, left_out)
    print(headline, flush=True)
    rows: list[dict[str, Any]] = []
    pairs: dict[str, Any] = {}
    for task in tasks:
        found = _measured(args.out, adapters, task)
        rows += found["rows"]
        pairs[task.label] = found["pairs"]
        print(domains_table(rows), flush=True)
    summary = summarize(pairs)
    text = _summary_text(args, headline, summary)
    print(f"\n{text}")
    line = {
        "bench": "domains",
        **bench.setting(args, adapters, left_out),
        "results": rows,
        "summary": summary,
    }
    if args.out is not None:
        replace_text(args.out / SUMMARY, f"{text}\n\n{domains_table(rows)}\n")
        replace_text(args.out / RESULTS, json.dumps(line, indent=1) + "\n")
    print(json.dumps(line))


def _measured(out: Path | None, adapters: bench.Adapters, task: TaskRequests) -> dict[str, Any]:
    """Rows of figures and pairs of one task: those kept in `out`, or measured now."""
    key = digest(_configuration(adapters, task))
    path = out / f"{task.name}.json" if out is not None else None
    kept = _read(path) if path is not None else {}
    if kept.get("key") == key:
        say(f"{task.label}: kept, measured {kept['measured']} with the same settings ({path})")
        return kept
    if kept:
        say(f"{task.label}: {path} was measured with other settings: it is measured again")
    rows, pairs = [], {}
    for name, answers in run_interleaved(adapters, task.requests, task.label).items():
        outcome = task.score(answers)
        figures = domains_row(answers, outcome.samples, outcome.aggregate(task.task))
        label = adapters[name].label
        rows.append({"task": task.label, "model": label, **figures})
        pairs[label] = answer_pairs(answers)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    text = json.dumps({"key": key, "measured": now, "rows": rows, "pairs": pairs})
    if path is not None:
        replace_text(path, text + "\n")
    # Read back, so that figures are the same whether this run measured them or an earlier one.
    found: dict[str, Any] = json.loads(text)
    return found


def _configuration(adapters: bench.Adapters, task: TaskRequests) -> dict[str, Any]:
    """All that the figures of a task depend on: machine, adapters side by side, rows."""
    records = {
        name: {
            key: value
            for key, value in adapter.get_model_info()["tss_bench"].items()
            if key not in _OF_A_RUN
        }
        for name, adapter in adapters.items()
    }
    return {
        "machine": [platform.node(), bench.machine(adapters)],
        "adapters": records,
        "task": task.label,
        "requests": [digest([request.args, request.doc]) for request in task.requests],
    }


def _summary_text(
    args: argparse.Namespace, headline: str, summary: Mapping[str, Mapping[str, Any]]
) -> str:
    over = f", tokens/s over those of {PLAIN}" if PLAIN in summary else ""
    told = (
        f"accept_len{over}; 95 % bootstrap intervals over rows; at most {args.limit} rows a task, "
        f"split {args.split}, adapters interleaved request by request; {headline.splitlines()[0]}"
    )
    missing = [line for line in headline.splitlines() if " is left out: " in line]
    return "\n".join([told, "", summary_table(summary), *(["", *missing] if missing else [])])


def _read(path: Path) -> dict[str, Any]:
    """A task that was kept; an empty record where there is none that can be read."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError:
        return {"key": None}
    return found if isinstance(found, dict) else {"key": None}
