"""Writes a report: markdown, index.html, pictures, CSV, JSON. The same files give the same bytes.

May import: jinja2, tss_bench.scoring (layer L2 of the design).
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from tss_bench.report.board import Board
from tss_bench.report.cases import SHOWN, CaseGroup, case_records
from tss_bench.report.files import find
from tss_bench.report.pages import Report, make_report, markdown
from tss_bench.report.plots import Plot
from tss_bench.report.tables import Record, Table, by_name, csv_text, json_text
from tss_bench.scoring.statistics import RESAMPLES

LIST = "files.json"
"""Names the files of a report, so that the next one can take away what it no longer makes."""

_TEMPLATES = Path(__file__).parent / "templates"
_OWN = re.compile(r"(?:(?:tables|plots)/)?[a-z0-9_.-]+\.(?:md|html|csv|json|png|svg)")


def write_report(
    paths: Sequence[Path], out: Path, *, cases: int = SHOWN, resamples: int = RESAMPLES
) -> list[str]:
    """Make the report of the files under `paths` in the folder `out`; names of what was written.

    Raises ValueError for input that is no result (see `files.find`) and where `out` is a file.
    """
    if out.exists() and not out.is_dir():
        raise ValueError(f"--out {out} is a file; give a folder")
    board = Board(find(paths), resamples)
    report = make_report(board, cases)
    for folder in ("tables", "plots"):
        (out / folder).mkdir(parents=True, exist_ok=True)
    written = [*_pictures(report, out), *_data(report, out)]
    for page in report.pages:
        written.append(_write(out, f"{page.stem}.md", markdown(page)))
    written.append(_write(out, "index.html", page_html(report, out)))
    written = sorted([*written, LIST])
    _remove_former(out, written)
    _write(out, LIST, json.dumps(written, indent=1) + "\n")
    return written


def page_html(report: Report, out: Path) -> str:
    """index.html: every page as a chapter, pictures and all in one file."""
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["kind"] = lambda block: type(block).__name__
    environment.filters["picture"] = lambda plot: _data_uri(out / "plots" / f"{plot.stem}.svg")
    return environment.get_template("index.html.jinja").render(pages=report.pages)


def data_records(report: Report) -> dict[str, list[Record]]:
    """The records behind each CSV and JSON file, by its name."""
    blocks = list(report.blocks())
    records = by_name(block for block in blocks if isinstance(block, Table))
    if report.found.divergences:
        records["audit_divergences"] = list(report.found.divergences)
    cases: list[Record] = [*case_records([b for b in blocks if isinstance(b, CaseGroup)])]
    return {**records, "cases": cases} if cases else records


def _pictures(report: Report, out: Path) -> list[str]:
    names = []
    for block in report.blocks():
        if isinstance(block, Plot):
            block.save(out / "plots")
            names += [f"plots/{block.stem}.{kind}" for kind in ("png", "svg")]
    return names


def _data(report: Report, out: Path) -> list[str]:
    names = []
    for name, records in data_records(report).items():
        names.append(_write(out, f"tables/{name}.csv", csv_text(records)))
        names.append(_write(out, f"tables/{name}.json", json_text(records)))
    return names


def _write(out: Path, name: str, content: str) -> str:
    (out / name).write_text(content, encoding="utf-8", newline="\n")
    return name


def _remove_former(out: Path, written: Sequence[str]) -> None:
    """Take away what an earlier report listed and this one did not make."""
    try:
        listed: Any = json.loads((out / LIST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return
    for name in listed if isinstance(listed, list) else ():
        if isinstance(name, str) and _OWN.fullmatch(name) and name not in written:
            (out / name).unlink(missing_ok=True)


def _data_uri(path: Path) -> str:
    return f"data:image/svg+xml;base64,{base64.b64encode(path.read_bytes()).decode()}"
