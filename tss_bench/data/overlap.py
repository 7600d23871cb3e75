"""The text of the evaluation rows, for whoever must keep it out of what they make.

Read anew at each call: the packaged mini set always, and what `TSS_BENCH_DATA` names beside it.
No rule here about what counts as an overlap.

May import: the standard library, tss_bench.data (layer L1 of the design).
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from tss_bench.data.resolve import DATA_VARIABLE, NEEDS, DataSource, mini_rows, resolve
from tss_bench.data.rows import Row


def evaluation_texts() -> list[str]:
    """Every turn and every choice of the evaluation rows, each once, in order of domain.

    Whole files, not the split that a run uses. Raises DataError as `resolve` does where
    `TSS_BENCH_DATA` names official rows that cannot be had.
    """
    texts = [text for rows, _ in _sources() for row in rows for text in (*row.turns, *row.choices)]
    return list(dict.fromkeys(texts))


def evaluation_sources() -> list[dict[str, str | int]]:
    """What `evaluation_texts` holds, an entry a domain and source: for a provenance record.

    Each has `domain`, `kind` (`official`, `custom` or `mini`), `sha256` of the file and `rows`,
    how many of its rows are of that domain. Raises DataError as `evaluation_texts` does.
    """
    return [
        {
            "domain": rows[0].domain,
            "kind": source.kind,
            "sha256": source.sha256,
            "rows": len(rows),
        }
        for rows, source in _sources()
    ]


def _sources() -> Iterator[tuple[list[Row], DataSource]]:
    for domain in NEEDS:
        yield mini_rows(domain)
        if os.environ.get(DATA_VARIABLE, "").strip() not in ("", "mini"):
            yield resolve(domain)
