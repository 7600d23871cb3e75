"""Figures as text, the same in every table: `-` is what is not there.

May import: the standard library (layer L2 of the design).
"""

from __future__ import annotations

import html
import math
import re
from collections.abc import Sequence

NOTHING = "-"


def number(value: float | None, digits: int = 2) -> str:
    """`2.05`; a value that is not finite counts as not there."""
    if value is None or not math.isfinite(value):
        return NOTHING
    return _fixed(value, digits)


def _fixed(value: float, digits: int) -> str:
    """With so many digits, never `-0.0`."""
    return f"{round(value, digits) + 0.0:.{digits}f}"


def whole(value: float | None) -> str:
    return NOTHING if value is None else str(int(value))


def figure(
    value: float | None, low: float | None = None, high: float | None = None, digits: int = 2
) -> str:
    """`2.05 [1.90, 2.21]`, without the interval where there is none."""
    if low is None or high is None or value is None:
        return number(value, digits)
    return f"{_fixed(value, digits)} [{_fixed(low, digits)}, {_fixed(high, digits)}]"


def p_value(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.2g}"


def share(value: float | None, digits: int = 1) -> str:
    """0.125 -> `12.5 %`."""
    return NOTHING if value is None else f"{_fixed(100 * value, digits)} %"


def signed_share(value: float | None) -> str:
    """0.125 -> `+12.5 %`."""
    return NOTHING if value is None else f"{round(100 * value, 1) + 0.0:+.1f} %"


def layers(skip: Sequence[int] | None) -> str:
    """`{3,25}`; `{}` for the dense target."""
    return NOTHING if skip is None else "{" + ",".join(map(str, skip)) + "}"


def name(value: str | None) -> str:
    return value or NOTHING


def markdown_cell(text: str) -> str:
    """Any text as one cell of a table: no markup in it is read as such."""
    flat = " ".join(text.split())
    plain = html.escape(flat, quote=False).replace("\\", "\\\\")
    return re.sub(r"([|`*]|\](?=[(\[:])|(?<!\w)_|_(?!\w))", r"\\\1", plain)


def fenced(text: str) -> str:
    """Any text as a block of code that nothing in it can close."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{text}\n{fence}"


def slug(text: str) -> str:
    """A part of a file name: lower case letters, digits and dashes."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "x"
