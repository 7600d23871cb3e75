"""How the audit is shown: its columns and tables, one table a kind of check and section.

May import: the standard library (layer L2 of the design).
"""

from __future__ import annotations

from tss_bench.report import text
from tss_bench.report.audit import Audit
from tss_bench.report.board import Board
from tss_bench.report.main_table import METHOD, MODEL, SKIP, field_column, section_title
from tss_bench.report.repetition import NGRAM
from tss_bench.report.tables import Column, Record, Table


def _share(title: str, key: str, help: str = "") -> Column:
    return field_column(title, key, text.share, help, sorts=True)


_WHO = (field_column("task", "task"), MODEL, METHOD, SKIP)

TEXT_COLUMNS = (
    *_WHO,
    field_column(
        "distinct-2",
        "distinct_2",
        lambda value: text.number(value, 3),
        "different bigrams over all, mean over answers",
        sorts=True,
    ),
    _share("longest repeat", "longest_repeat", f"share in one stretch of repeated {NGRAM}-grams"),
    _share("cut by the limit", "cut_by_limit", "answers that the token limit ended"),
    _share("cut by the context", "cut_by_context", "answers that the model's context ended"),
    field_column("prompts cut", "prompts_truncated", text.whole, sorts=True),
    _share("same as dense", "same_as_dense", "answers equal to the dense target's"),
    _share("same start", "same_start_as_dense", "common start with the dense target's answer"),
)


def _gain_text(name: str, title: str) -> Column:
    def shown(record: Record) -> str:
        value, p = record[f"gain_{name}"], record[f"gain_{name}_p"]
        told = text.signed_share(value)
        return told if p is None else f"{told} p {text.p_value(p)}"

    return Column(f"gain, {title}", shown, f"gain_{name}", "accept_len against native")


def _after_end(record: Record) -> str:
    value, low, high = (record[f"after_end{end}"] for end in ("", "_low", "_high"))
    if value is None or low is None:
        return text.share(value)
    shown, bracket, ends = text.figure(100 * value, 100 * low, 100 * high, 1).partition(" [")
    return f"{shown} %{bracket}{ends}"


PROTOCOL_COLUMNS = (
    *_WHO,
    field_column("requests", "requests", text.whole, sorts=True),
    field_column("accept_len, paper", "accept_len_paper", text.number, sorts=True),
    field_column("accept_len, strict", "accept_len_strict", text.number, sorts=True),
    Column(
        "from after the end",
        _after_end,
        "after_end",
        "share of accept_len that strict lacks: text after the end or the token limit",
    ),
    _share("ids after the end", "ids_after_end", "share of the emitted ids that strict lacks"),
    _gain_text("paper", "paper"),
    _gain_text("strict", "strict"),
    field_column("verdict", "verdict"),
)

REPETITION_COLUMNS = (
    *_WHO,
    field_column("requests", "requests", text.whole, sorts=True),
    _share("repeated, native", "repeated_steps_native", "steps that begin in repeated text"),
    _share("repeated, TSS", "repeated_steps_tss", "steps that begin in repeated text"),
    field_column(
        "new text, native", "accept_len_new_native", text.number, "accept_len", sorts=True
    ),
    field_column("new text, TSS", "accept_len_new_tss", text.number, "accept_len", sorts=True),
    _gain_text("all", "all text"),
    _gain_text("new", "new text"),
    field_column("verdict", "verdict"),
)

LOSSLESS_COLUMNS = (
    *_WHO,
    field_column("against", "against"),
    Column("equal", lambda r: f"{r['equal']} of {r['requests']}", "equal", "equal answers"),
    field_column("first divergence", "first_divergence", text.whole, "earliest place", sorts=True),
    field_column(
        "median", "median_divergence", text.number, "of the first divergences", sorts=True
    ),
    field_column("largest logit gap", "largest_gap", lambda v: text.number(v, 4), sorts=True),
    field_column("beyond rounding", "beyond_rounding", text.whole, sorts=True),
)


def audit_tables(board: Board, found: Audit) -> list[Table]:
    """The kinds of checks, one table a section each."""
    kinds = (
        ("audit_protocols", "Text after the end", found.protocols, PROTOCOL_COLUMNS),
        ("audit_repetition", "Repeated text", found.repetition, REPETITION_COLUMNS),
        ("audit_texts", "Answers", found.texts, TEXT_COLUMNS),
        ("audit_lossless", "Losslessness", found.lossless, LOSSLESS_COLUMNS),
    )
    tables = []
    for name, title, records, columns in kinds:
        for section, entries in board.sections.items():
            shown = [records[entry] for entry in entries if entry in records]
            if shown:
                where = section_title(section)
                tables.append(Table(name, f"{title}: {where}", shown, columns))
    return tables
