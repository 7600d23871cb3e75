"""`tss-bench leaderboard` and `tss-bench audit`: tables, pictures and checks of result files.

May import: the standard library (layer L2 of the design).
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from tss_bench.report.audit import audit
from tss_bench.report.board import Board
from tss_bench.report.build import write_report
from tss_bench.report.cases import SHOWN
from tss_bench.report.files import find
from tss_bench.report.pages import Page, audit_blocks, markdown
from tss_bench.report.tables import Table, by_name, plain

_PATHS = (
    "folders or files: results and samples of lm-eval (--output_path with --log_samples) or of "
    "tss-bench run, domain maps, ledgers of a search; told apart by what is in them"
)


def add_leaderboard_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `tss-bench leaderboard`."""
    parser.epilog = "The same files give the same bytes. Nothing is decoded or scored again."
    parser.add_argument("paths", nargs="+", type=Path, metavar="PATH", help=_PATHS)
    parser.add_argument(
        "--out", type=Path, default=Path("leaderboards"), help="its folder (default leaderboards)"
    )
    parser.add_argument(
        "--cases", type=int, default=SHOWN, help=f"cases of each kind and pair (default {SHOWN})"
    )


def leaderboard(args: argparse.Namespace) -> None:
    """Write the report. Raises ValueError for bad input."""
    if args.cases < 0:
        raise ValueError(f"--cases must be 0 or more, got {args.cases}")
    for name in write_report(args.paths, args.out, cases=args.cases):
        print(args.out / name)


def add_audit_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `tss-bench audit`."""
    parser.add_argument("paths", nargs="+", type=Path, metavar="PATH", help=_PATHS)
    parser.add_argument("--json", action="store_true", help="all records as JSON, not as tables")


def print_audit(args: argparse.Namespace) -> None:
    """Print the audit, the flags of each row first. Raises ValueError for bad input."""
    board = Board(find(args.paths))
    found = audit(board)
    page = Page("audit", "Validity audit", list(audit_blocks(board, found)))
    flagged = {
        f"{entry.run.place}, {entry.run.task}": list(flags)
        for entry, flags in found.flags.items()
        if flags
    }
    if args.json:
        tables = by_name(block for block in page.blocks if isinstance(block, Table))
        records = {name: [plain(row) for row in rows] for name, rows in tables.items()}
        records["audit_divergences"] = [plain(row) for row in found.divergences]
        print(json.dumps({"flags": flagged, **records}, indent=1, ensure_ascii=False))
        return
    print(markdown(page))
    for where, flags in flagged.items():
        print(f"- flagged: {where}: {'; '.join(flags)}")
