"""Calibration and test rows, as the TSS paper split them (16 / 64 of 80).

May import: the standard library, tss_bench.data.rows (layer L1 of the design).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Literal, get_args

from tss_bench.data.rows import DataError, Row

Split = Literal["calibration", "test", "all"]
SPLITS: tuple[Split, ...] = get_args(Split)

POOL_SIZE = 80
SEED = 42


def check_split(name: object) -> Split:
    """`name` as a split; raises DataError naming the three there are."""
    for split in SPLITS:
        if name == split:
            return split
    raise DataError(f"split={name!r} is unknown; choose {', '.join(SPLITS)}")


def split_rows(rows: Sequence[Row], split: Split = "test") -> list[Row]:
    """The rows of one split.

    Rows in file order are shuffled by `random.Random(42)`; the first 80 are the pool, its first
    20 % calibration and the rest test. A later row with the text of a calibration row joins
    calibration, so that no text is in both. `all` is the whole pool in shuffled order. Raises
    DataError for an unknown split and for one that would be empty.
    """
    check_split(split)
    pool = list(rows)
    random.Random(SEED).shuffle(pool)
    pool = pool[:POOL_SIZE]
    seen = {row.content_hash for row in pool[: len(pool) // 5]}
    if split == "all":
        chosen = pool
    else:
        chosen = [row for row in pool if (row.content_hash in seen) == (split == "calibration")]
    if not chosen:
        raise DataError(f"split {split!r} of {len(rows)} rows is empty; it takes at least 5 rows")
    return chosen
