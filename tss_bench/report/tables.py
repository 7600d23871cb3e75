"""Tables: records with plain values, and columns that say how a record is shown.

Markdown is made of what a table shows; CSV and JSON of all that its records hold.

May import: pandas (layer L2 of the design).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from tss_bench.report.text import NOTHING, markdown_cell

Record = Mapping[str, Any]

SIGNIFICANT = 6
"""Digits that CSV and JSON keep: more would differ between machines in the last bits."""


@dataclass(frozen=True)
class Column:
    """`text` shows a record; `key` is the value it sorts by, its text where there is none.

    `help` is one line for a reader who does not know the word. A column that `folds` becomes a
    remark below the table where all rows say the same.
    """

    title: str
    text: Callable[[Record], str]
    key: str | None = None
    help: str = ""
    folds: bool = False

    def sort_value(self, record: Record) -> str:
        value = record.get(self.key) if self.key else None
        if isinstance(value, bool | int | float) and math.isfinite(value):
            return repr(round_value(float(value)))
        return "" if self.key else self.text(record)


@dataclass(frozen=True)
class Table:
    """`name` is that of its CSV and JSON files, which all tables of one name share."""

    name: str
    title: str
    records: Sequence[Record]
    columns: Sequence[Column]
    notes: Sequence[str] = field(default_factory=tuple)

    def shown(self) -> list[Column]:
        """The columns that have something of their own to say; the first one always."""
        return [
            column
            for place, column in enumerate(self.columns)
            if not place or not (self._said(column) == {NOTHING} or self._folded(column))
        ]

    def remarks(self) -> list[str]:
        """What all rows share, then the notes."""
        shared = [
            f"{column.title} {self._said(column).pop()}"
            for column in self.columns
            if self._folded(column)
        ]
        return [*([f"All rows: {', '.join(shared)}"] if shared else []), *self.notes]

    def _said(self, column: Column) -> set[str]:
        return {column.text(record) for record in self.records}

    def _folded(self, column: Column) -> bool:
        said = self._said(column)
        return column.folds and len(self.records) > 1 and len(said) == 1 and said != {NOTHING}

    def markdown(self) -> str:
        columns = self.shown()
        rows = [[markdown_cell(c.text(record)) for c in columns] for record in self.records]
        frame = pd.DataFrame(rows, columns=[markdown_cell(c.title) for c in columns])
        return frame.to_markdown(index=False, tablefmt="github", disable_numparse=True)


def csv_text(records: Sequence[Record]) -> str:
    """All values of the records; an empty field where one is missing."""
    frame = pd.DataFrame([plain(record) for record in records])
    return frame.to_csv(index=False, lineterminator="\n", na_rep="")


def json_text(records: Sequence[Record]) -> str:
    """A list of objects; null where a value is missing or not finite."""
    listed = [plain(record) for record in records]
    return json.dumps(listed, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def plain(record: Record) -> dict[str, Any]:
    """The record with rounded finite numbers, texts and None."""
    return {name: round_value(value) for name, value in record.items()}


def round_value(value: Any) -> Any:
    if not isinstance(value, float):
        return value
    if not math.isfinite(value):
        return None
    rounded = float(f"{value:.{SIGNIFICANT}g}")
    return 0.0 if rounded == 0 else rounded


def by_name(tables: Iterable[Table]) -> dict[str, list[Record]]:
    """The records of all tables of one name, in order."""
    found: dict[str, list[Record]] = {}
    for table in tables:
        found.setdefault(table.name, []).extend(table.records)
    return found
