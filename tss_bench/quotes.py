"""What an answer quotes of its row, so that files without the data's text do not hold it that way.

May import: the standard library.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

SHORTEST = 24
"""Letters and digits in a row that make a quotation: five or six words; a name or a date is none.
Case, spaces and punctuation count for nothing: a model often sets those of its own."""
GAP = "[…]"


def without_quotes(answer: str, texts: Iterable[str]) -> str:
    """`answer` with `GAP` for each stretch whose `SHORTEST` or more letters are so in `texts`."""
    known = {part for text in texts for part in _parts(_letters(text)[0])}
    letters, places = _letters(answer)
    quoted = [False] * len(answer)
    for start, part in enumerate(_parts(letters)):
        if part in known:
            first, last = places[start], places[start + SHORTEST - 1]
            quoted[first : last + 1] = [True] * (last + 1 - first)
    runs = groupby(zip(answer, quoted, strict=True), key=lambda each: each[1])
    return "".join(GAP if is_quote else "".join(c for c, _ in run) for is_quote, run in runs)


def _letters(text: str) -> tuple[str, list[int]]:
    """The letters and digits of a text without their case, and where each stands in it."""
    # A letter may fold into several ("ß" into "ss").
    found = [
        (letter, place)
        for place, character in enumerate(text)
        for letter in character.casefold()
        if letter.isalnum()
    ]
    return "".join(letter for letter, _ in found), [place for _, place in found]


def _parts(letters: str) -> list[str]:
    return [letters[start : start + SHORTEST] for start in range(len(letters) - SHORTEST + 1)]
