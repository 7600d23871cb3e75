"""The TSS paper's published figures beside ours, where model and drafter are the same.

They come from the packaged maps `published/…` and `assets/published_strategies.json`. Protocol
paper, one RTX 4090: its tokens/s compare with no others.

May import: the standard library, tss_bench.domains (layer L2 of the design).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tss_bench.domains import MAPS_DIR, DomainMap, packaged_maps, same_model
from tss_bench.report import text
from tss_bench.report.board import Board
from tss_bench.report.entries import Entry
from tss_bench.report.main_table import SKIP, field_column, section_title
from tss_bench.report.tables import Column, Record, Table

MARK = "published, protocol paper, RTX 4090"

_STRATEGIES = MAPS_DIR.parent / "published_strategies.json"
_FOLDER = "published/"
_QA = "nq_open"
"""The domain that the paper calls qa: its prompts are those of NQ-open."""
_FIGURES = (("accept_len", 2), ("metric", 3), ("tokens_per_second", 1))


def published_tables(board: Board) -> list[Table]:
    """One row a domain and pair of ours, the published figures in columns beside them."""
    tables = []
    for name in packaged_maps():
        if not name.startswith(_FOLDER):
            continue
        found = DomainMap.load(name)
        records = [
            _record(board, found, domain, native, sparse)
            for domain in found.domains
            for native, sparse in _pairs(board, found, domain)
        ]
        if records:
            title = f"{found.model}, {found.drafter} ({MARK})"
            tables.append(Table("published", title, records, COLUMNS))
    return tables


def _pairs(
    board: Board, found: DomainMap, domain: str
) -> Iterator[tuple[Entry | None, Entry | None]]:
    """Native and sparse entries of the prompts that the paper used for this domain."""
    ours = [
        entry
        for entry in board.entries
        if entry.run.domain == (_QA if domain == "qa" else domain)
        and domain != _QA
        and not entry.run.task.endswith(("_fewshot", "_ll"))
        and entry.run.drafter == found.drafter
        and same_model(entry.run.model, found.model)
    ]
    sparse = [(board.native_of(entry), entry) for entry in ours if entry.sparse]
    yield from sparse
    taken = {id(native) for native, _ in sparse}
    yield from ((entry, None) for entry in ours if not entry.sparse and id(entry) not in taken)


def _record(
    board: Board, found: DomainMap, domain: str, native: Entry | None, sparse: Entry | None
) -> dict[str, Any]:
    config = found.domains[domain]
    either = sparse or native
    assert either is not None
    speeds = found.provenance.get("tss_tokens_per_second", {})
    theirs = {
        "native": found.provenance.get("native", {}).get(domain, {}),
        "tss": {
            "accept_len": config.accept,
            "metric": config.metric,
            "tokens_per_second": speeds.get(domain),
        },
    }
    record: dict[str, Any] = {
        "domain": domain,
        "task": either.run.task,
        "model": found.model,
        "drafter": found.drafter,
        "ours": section_title(either.section),
        "published_skip": str(config.skip),
        "skip": text.layers(sparse.skip) if sparse else None,
    }
    for side, entry in (("native", native), ("tss", sparse)):
        for name, _ in _FIGURES:
            figure = board.figure(entry, name) if entry else None
            record[f"published_{side}_{name}"] = theirs[side].get(name)
            record[f"{side}_{name}"] = figure.value if figure else None
    return record


def _both(title: str, prefix: str, name: str, digits: int) -> Column:
    def shown(record: Record) -> str:
        ends = [text.number(record[f"{prefix}{side}_{name}"], digits) for side in ("native", "tss")]
        return text.NOTHING if set(ends) == {text.NOTHING} else " → ".join(ends)

    return Column(title, shown, f"{prefix}tss_{name}", "native → TSS")


COLUMNS = (
    field_column("domain", "domain"),
    field_column("our task", "task"),
    field_column("ours", "ours"),
    field_column("skip set, published", "published_skip"),
    SKIP,
    *(
        _both(f"{name.replace('tokens_per_second', 'tokens/s')}, {source}", prefix, name, digits)
        for name, digits in _FIGURES
        for source, prefix in (("published", "published_"), ("ours", ""))
    ),
)


def published_strategies(targets: Iterable[tuple[str, str]]) -> list[Table]:
    """The paper's Table 2, where `targets` (model, drafter) names its target."""
    told: Mapping[str, Any] = json.loads(_STRATEGIES.read_text(encoding="utf-8"))
    model, drafter = told["model"], told["drafter"]
    if not any(same_model(model, name) and drafter == other for name, other in targets):
        return []
    records = [
        {
            "domain": domain,
            "strategy": strategy,
            "skip": text.layers(row["skip"]),
            **{name: row[name] for name, _ in _FIGURES},
            "evaluations": row.get("evaluations"),
        }
        for domain, rows in told["domains"].items()
        for strategy, row in rows.items()
    ]
    return [Table("published_strategies", f"{model}, {drafter} ({MARK})", records, _TABLE_2)]


_TABLE_2 = (
    field_column("domain", "domain"),
    field_column("strategy", "strategy"),
    SKIP,
    field_column("accept_len", "accept_len", text.number, sorts=True),
    field_column("metric", "metric", lambda value: text.number(value, 3), sorts=True),
    field_column("tokens/s", "tokens_per_second", lambda v: text.number(v, 1), sorts=True),
    field_column("evaluations", "evaluations", text.whole, sorts=True),
)
