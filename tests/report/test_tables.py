"""Cells, files of values, and that no text can act as markup.

May import: pytest, tss_bench and the standard library.
"""

from __future__ import annotations

import json

import pytest

from tss_bench.report import text
from tss_bench.report.main_table import field_column
from tss_bench.report.tables import Column, Table, by_name, csv_text, json_text


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (text.figure(2.0512, 1.9, 2.214), "2.05 [1.90, 2.21]"),
        (text.figure(2.0512), "2.05"),
        (text.figure(None, 1.0, 2.0), "-"),
        (text.number(float("nan")), "-"),
        (text.number(-0.001), "0.00"),
        (text.share(0.125), "12.5 %"),
        (text.signed_share(-0.0001), "+0.0 %"),
        (text.layers((3, 25)), "{3,25}"),
        (text.layers(()), "{}"),
        (text.layers(None), "-"),
        (text.slug("Official data, v1.3"), "official-data-v1-3"),
    ],
)
def test_figures_as_text(shown: str, expected: str) -> None:
    assert shown == expected


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("tss_eagle [1.0, 2.0]", "tss_eagle [1.0, 2.0]"),
        ("a|b\nc", r"a\|b c"),
        ("<img src=x onerror=alert(1)>", "&lt;img src=x onerror=alert(1)&gt;"),
        ("[here](javascript:x) `code` *bold*", r"[here\](javascript:x) \`code\` \*bold\*"),
        ("_emphasis_", r"\_emphasis\_"),
    ],
)
def test_a_markdown_cell_shows_any_text_as_it_is(given: str, expected: str) -> None:
    assert text.markdown_cell(given) == expected


def test_no_answer_can_close_its_block() -> None:
    block = text.fenced("one\n```\n````\n# heading")
    first, *middle, last = block.split("\n")
    assert (first, last) == ("`````text", "`````")
    assert "`````" not in "\n".join(middle)


COLUMNS = (
    field_column("task", "task"),
    field_column("model", "model", folds=True),
    field_column("value", "value", text.number, sorts=True),
    field_column("empty", "empty"),
)
RECORDS = [
    {"task": "a", "model": "m", "value": 1 / 3, "empty": None},
    {"task": "b", "model": "m", "value": float("nan"), "empty": None},
]


def test_a_table_folds_what_all_rows_share_and_drops_what_none_has() -> None:
    table = Table("t", "title", RECORDS, COLUMNS, ["a note"])
    assert [column.title for column in table.shown()] == ["task", "value"]
    assert table.remarks() == ["All rows: model m", "a note"]
    assert table.markdown().splitlines()[2:] == ["| a      | 0.33    |", "| b      | -       |"]
    one = Table("t", "title", RECORDS[:1], COLUMNS)
    assert [column.title for column in one.shown()] == ["task", "model", "value"]


def test_a_cell_sorts_by_its_value_and_a_text_by_itself() -> None:
    value, missing = (COLUMNS[2].sort_value(record) for record in RECORDS)
    assert (value, missing) == ("0.333333", "")
    assert COLUMNS[0].sort_value(RECORDS[0]) == "a"
    assert Column("x", lambda record: "shown").sort_value({}) == "shown"


def test_values_are_rounded_and_what_is_no_number_is_missing() -> None:
    assert csv_text(RECORDS).splitlines() == [
        "task,model,value,empty",
        "a,m,0.333333,",
        "b,m,,",
    ]
    assert [row["value"] for row in json.loads(json_text(RECORDS))] == [0.333333, None]


def test_tables_of_one_name_share_a_file() -> None:
    tables = [Table("x", "one", RECORDS[:1], COLUMNS), Table("x", "two", RECORDS[1:], COLUMNS)]
    assert by_name(tables) == {"x": RECORDS}
