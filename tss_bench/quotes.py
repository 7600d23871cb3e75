"""What an answer quotes of its row, so that files without the data's text do not hold it that way.

May import: the standard library.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

SHORTEST = 32
"""Characters in a row that make a quotation: five or six words; a name or a date is none."""
GAP = "[…]"


def without_quotes(answer: str, texts: Iterable[str]) -> str:
    """`answer` with `GAP` for each stretch of `SHORTEST` characters or more that is in `texts`."""
    known = {
        text[start : start + SHORTEST]
        for text in texts
        for start in range(len(text) - SHORTEST + 1)
    }
    quoted = [False] * len(answer)
    for start in range(len(answer) - SHORTEST + 1):
        if answer[start : start + SHORTEST] in known:
            quoted[start : start + SHORTEST] = [True] * SHORTEST
    runs = groupby(zip(answer, quoted, strict=True), key=lambda each: each[1])
    return "".join(GAP if is_quote else "".join(c for c, _ in run) for is_quote, run in runs)
