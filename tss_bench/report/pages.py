"""The pages of a report: blocks of text, tables, pictures and cases, and how markdown shows them.

May import: the standard library (layer L2 of the design).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from tss_bench.report.audit import Audit, audit
from tss_bench.report.audit_tables import audit_tables
from tss_bench.report.board import Board
from tss_bench.report.cases import SHOWN, CaseGroup, case_groups
from tss_bench.report.main_table import main_tables, time_tables
from tss_bench.report.plots import Plot, with_own_stems
from tss_bench.report.published import MARK, published_strategies, published_tables
from tss_bench.report.run_plots import run_plots
from tss_bench.report.search_plots import search_plots
from tss_bench.report.searches import strategy_tables, tolerance_tables
from tss_bench.report.tables import Table
from tss_bench.report.text import fenced, markdown_cell


@dataclass(frozen=True)
class Heading:
    text: str


@dataclass(frozen=True)
class Paragraph:
    text: str


@dataclass(frozen=True)
class Notes:
    """A list of short remarks."""

    items: Sequence[str]


Block: TypeAlias = Heading | Paragraph | Notes | Table | Plot | CaseGroup


@dataclass(frozen=True)
class Page:
    """One markdown file `stem`.md, and one chapter of index.html."""

    stem: str
    title: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Report:
    """All pages, and what the audit found."""

    pages: Sequence[Page]
    found: Audit

    def blocks(self) -> Iterator[Block]:
        for page in self.pages:
            yield from page.blocks


def make_report(board: Board, cases: int = SHOWN) -> Report:
    """The four pages of a board."""
    found = audit(board)
    return Report(
        (
            Page("main", "Leaderboard", list(_main(board, found))),
            Page("strategies", "Search strategies", list(_strategies(board))),
            Page("tolerance", "Tolerances", list(_tolerance(board))),
            Page("cases", "Cases", list(_cases(board, cases))),
        ),
        found,
    )


def _main(board: Board, found: Audit) -> Iterator[Block]:
    yield Paragraph(
        "Native and sparse (TSS) speculative decoding. Rows of different data, split, protocol "
        "or rows of a task stand in tables of their own. Brackets are 95 % bootstrap intervals "
        "over rows; p is the paired bootstrap p-value against the native run of the same "
        "drafter; a TSS row is lossy with respect to the dense target. Speed-up is given only "
        "for runs that were measured interleaved."
    )
    yield from main_tables(board, found.flags)
    yield from with_own_stems(run_plots(board))
    published = published_tables(board)
    if published:
        yield Heading(f"Beside the paper ({MARK})")
        yield Paragraph(
            "Other rows, another protocol and another machine: look at the direction of a change, "
            "not at the size of a figure."
        )
        yield from published
    times = time_tables(board)
    if times:
        yield Heading("Times and memory")
        yield from times
    yield Heading("Validity audit")
    yield from audit_blocks(board, found)
    if board.notes:
        yield Heading("Left out")
        yield Notes(board.notes)


def audit_blocks(board: Board, found: Audit) -> Iterator[Block]:
    """The audit as blocks: what the words mean, then its tables."""
    yield Paragraph(
        "Answers: distinct-2 is low and the longest repeat high where an answer goes round in "
        "circles; same as dense compares with the native run of the same drafter. Text after the "
        "end: the same requests under both protocols. Repeated text: accept length in new text, "
        "which is all that lies in no 5-gram that the answer had before, from files that hold ids "
        "(tss-bench run writes them). Losslessness: under protocol strict, each answer against "
        "that of plain decoding of the same target; in 16-bit formats answers may part where two "
        "logits are equal within rounding. Allowed for are two units in the last place of the "
        "largest logit; errors of many layers can add up to more, so an answer beyond that is to "
        "be compared again in float32 (--model_args dtype=float32), where none may part."
    )
    yield from audit_tables(board, found)


def _strategies(board: Board) -> Iterator[Block]:
    tables = strategy_tables(board)
    if not tables:
        yield Paragraph("No domain map of a search was among the files.")
    else:
        yield Paragraph(
            "What each search chose on calibration rows, beside the test rows of a run with the "
            "same set. A gain on calibration rows that the test rows do not have is over-fitting."
        )
    yield from tables
    yield from published_strategies(_targets(board))
    yield from with_own_stems(search_plots(board))


def _targets(board: Board) -> set[tuple[str, str]]:
    ours = {(entry.run.model, entry.run.drafter) for entry in board.entries}
    return ours | {(found.model, found.drafter) for _, found in board.inputs.maps}


def _tolerance(board: Board) -> Iterator[Block]:
    tables = tolerance_tables(board)
    if not tables:
        yield Paragraph("No ledger of a search was among the files.")
        return
    yield Paragraph(
        "The cheapest set that keeps accept length and metric within each tolerance (a share of "
        "the dense value; a negative one must be gained), among all sets that the ledger holds."
    )
    yield from tables


def _cases(board: Board, shown: int) -> Iterator[Block]:
    groups = case_groups(board, shown)
    if not groups:
        yield Paragraph(
            "No cases: they need a native and a sparse run on the same rows, in files that hold "
            "the text of the data."
        )
        return
    yield Paragraph(
        "Answers of the native and the sparse target to the same requests, as many improved as "
        "unchanged and worse ones. The rows are chosen by their hash, not by their figures."
    )
    yield from groups


def markdown(page: Page) -> str:
    """The page as GitHub markdown; no text from a file can act as markup."""
    parts = [f"# {page.title}"]
    for block in page.blocks:
        parts += _markdown(block)
    return "\n\n".join(parts) + "\n"


def _markdown(block: Block) -> Iterator[str]:
    match block:
        case Heading():
            yield f"## {markdown_cell(block.text)}"
        case Paragraph():
            yield block.text
        case Notes():
            yield "\n".join(f"- {markdown_cell(item)}" for item in block.items)
        case Table():
            yield f"### {markdown_cell(block.title)}"
            yield block.markdown()
            if remarks := block.remarks():
                yield "\n".join(f"- {markdown_cell(remark)}" for remark in remarks)
        case Plot():
            yield f"### {markdown_cell(block.title)}"
            yield f"![{markdown_cell(block.alt)}](plots/{block.stem}.svg)"
            yield block.caption
        case CaseGroup():
            yield from _case_markdown(block)


def _case_markdown(group: CaseGroup) -> Iterator[str]:
    yield f"## {markdown_cell(group.title)}"
    yield f"{markdown_cell(group.summary)}."
    for case in group.cases:
        yield f"### {case.kind}: row {markdown_cell(case.row)}"
        yield "Prompt:"
        yield fenced(case.prompt)
        yield "Reference:" if len(case.references) == 1 else "References:"
        yield from map(fenced, case.references)
        for side in (case.native, case.sparse):
            yield f"{markdown_cell(side.title)} ({markdown_cell(side.figures(group.metric_name))}):"
            yield fenced(side.answer)
