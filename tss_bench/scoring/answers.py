"""Read answers out of generated text: the letter of a multiple choice, the last number.

Knows nothing of tasks; letters are upper case, as the prompts print them.

May import: the standard library (layer L1 of the design).
"""

from __future__ import annotations

import math
import re
from functools import cache

_OPEN = r"[ \t*_(\[\"'“]*"
_BETWEEN = r"[\s:*_(\[\"'“]*"
_CLOSE = r"[*_)\]\"'”]*"

_ELIMINATION = re.compile(
    r"\b(?:eliminat|exclud|incorrect|wrong|reject|discard|ruled? out|not\b)", re.IGNORECASE
)
_CLAUSE_END = re.compile(r"[\n.:;!?]")

_NUMBER = re.compile(
    r"""
    (?P<sign>(?<![\w.)\]])[-\u2212])?          # a minus, not a hyphen or an operator
    [$€£]?
    (?P<sign_after>(?<=[$€£])[-\u2212])?
    (?<!\w)(?<!\d[.])
    (?P<digits>
        [0-9]{1,3}(?:,[0-9]{3})+(?![0-9])(?:\.[0-9]+)?   # 1,234 and 1,234.5
      | [0-9]+(?:\.[0-9]+)?                              # 12 and 12.5
      | (?<!\.)\.[0-9]+                                  # .5
    )
    (?P<exponent>[eE][+-]?[0-9]+)?
    """,
    re.VERBOSE,
)


def answer_letter(text: str, letters: str = "ABCD") -> str | None:
    """The chosen letter of a multiple-choice answer, or None.

    The first rule that matches decides; inside a rule the first place in the text does:
    1. "answer is X"; 2. a word, a colon and a lone letter ("Answer: X", "Antwort: C"), unless
    the clause before the colon eliminates ("Eliminated: A"); 3. a letter that leads the text
    ("B.", "(B)", "B) …"); 4. a lone letter on its own line. Markdown and brackets around the
    letter are allowed. A letter inside a word, in a list of letters ("A, C and D"), in
    initials ("D.C.") or used as a word after a colon ("Note: A cat") never counts.

    Raises ValueError if `letters` is not one or more different letters A … Z.
    """
    if not re.fullmatch(r"[A-Z]+", letters) or len(set(letters)) != len(letters):
        raise ValueError(f"letters={letters!r} must be different letters A to Z, such as 'ABCD'")
    answer_is, labelled, leading, own_line = _letter_rules(letters)
    if match := answer_is.search(text):
        return match["letter"]
    for match in labelled.finditer(text):
        clause = _CLAUSE_END.split(text[: match.end("label")])[-1]
        if not _ELIMINATION.search(clause):
            return match["letter"]
    match = leading.match(text) or own_line.search(text)
    return match["letter"] if match else None


def last_number(text: str) -> float | None:
    """The last number of a text, or None.

    Reads 1,234 and 1,234.5, $ € £ before or after a minus, .5, 1e3, and both minus signs;
    a trailing dot or unit is ignored ("42.", "5kg"). A number that continues a word ("H2O")
    or a decimal ("1.2.3") does not count; a hyphen after a word or number is no minus.
    """
    matches = list(_NUMBER.finditer(text))
    return _value(matches[-1]) if matches else None


def reference_number(text: str) -> float | None:
    """The number after the last "####" of a reference solution, or None if there is none."""
    _, mark, answer = text.rpartition("####")
    match = _NUMBER.search(answer) if mark else None
    return _value(match) if match else None


def numbers_equal(left: float | None, right: float | None) -> bool:
    """Whether two numbers read from text are the same; None equals nothing.

    18 and 18.00 are equal; the tolerance (1e-9) only absorbs the rounding of floats.
    """
    if left is None or right is None:
        return False
    return math.isclose(left, right, rel_tol=1e-9, abs_tol=1e-9)


@cache
def _letter_rules(letters: str) -> tuple[re.Pattern[str], ...]:
    """The four rules of `answer_letter` in order, each with a group `letter`."""
    in_word = r"['’_-]?[^\W_]"
    initials = r"\.[A-Z]\b"
    second = rf"{_OPEN}[{letters}](?![^\W_])"
    joined = rf"{_CLOSE}[ \t]*,?[ \t]*(?:\b(?:and|or)\b|&|/){second}"
    listed = rf"{_CLOSE}[ \t]*,{second}{_CLOSE}[ \t]*(?:[,.;&/]|\b(?:and|or)\b|$)"
    lone = rf"(?P<letter>[{letters}])(?!{in_word}|{initials}|{joined}|{listed})"
    used_as_word = r"(?<=[AI])[ \t]+(?!(?:because|since|as|is)\b)[^\W\d_]"
    naming = r"(?i:option|choice|letter)"
    rules = (
        rf"(?i:\banswer\s+is\b){_BETWEEN}(?:{naming}\b{_BETWEEN})?{lone}",
        rf"(?<![^\W\d_])(?P<label>[^\W\d_]+)[ \t*_]*:{_OPEN}{lone}(?!{used_as_word})",
        rf"\A[\s*_#>\"'“]*[(\[]?{lone}[*_]*[.)\]]",
        rf"^[#>]*{_OPEN}{lone}{_CLOSE}[.:,!]*{_CLOSE}[ \t\r]*$",
    )
    return tuple(re.compile(rule, re.MULTILINE) for rule in rules)


def _value(match: re.Match[str]) -> float:
    digits = match["digits"].replace(",", "") + (match["exponent"] or "")
    return -float(digits) if match["sign"] or match["sign_after"] else float(digits)
