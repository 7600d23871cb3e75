"""What an answer quotes of its row, so that files without the data's text do not hold it that way.

May import: the standard library.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

SHORTEST = 24
"""Letters and digits in a row that make a quotation: five or six words; a name or a date is none.
Case, spaces and punctuation count for nothing: a model often sets those of its own."""
SHORTEST_AS_IT_STANDS = 32
"""Characters of any kind that make one, too: a formula or a table has few letters."""
GAP = "[…]"


def without_quotes(answer: str, texts: Iterable[str]) -> str:
    """`answer` with `GAP` for each stretch of it that is a quotation of one of `texts`."""
    given = list(texts)
    quoted = [False] * len(answer)
    for read, shortest in ((_letters, SHORTEST), (_characters, SHORTEST_AS_IT_STANDS)):
        known = {part for text in given for part in _parts(read(text)[0], shortest)}
        letters, places = read(answer)
        for start, part in enumerate(_parts(letters, shortest)):
            if part in known:
                first, last = places[start], places[start + shortest - 1]
                quoted[first : last + 1] = [True] * (last + 1 - first)
    runs = groupby(zip(answer, quoted, strict=True), key=lambda each: each[1])
    return "".join(GAP if is_quote else "".join(c for c, _ in run) for is_quote, run in runs)


def _characters(text: str) -> tuple[str, Sequence[int]]:
    return text, range(len(text))


def _letters(text: str) -> tuple[str, Sequence[int]]:
    """The letters and digits of a text without their case, and where each stands in it."""
    # A letter may fold into several ("ß" into "ss").
    found = [
        (letter, place)
        for place, character in enumerate(text)
        for letter in character.casefold()
        if letter.isalnum()
    ]
    return "".join(letter for letter, _ in found), [place for _, place in found]


def _parts(letters: str, length: int) -> list[str]:
    return [letters[start : start + length] for start in range(len(letters) - length + 1)]
