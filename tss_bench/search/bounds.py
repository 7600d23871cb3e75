"""Between which values a sum over all prompts lies when some of its terms are known.

Three bounds, from certain to likely:

- `exact`: each unseen term lies in its given range. No assumption; the true sum is always inside.
- `hoeffding`: Hoeffding's inequality for sampling without replacement (Serfling 1974). It holds
  with probability 1 - delta on each side if the seen prompts are a random sample of all.
- `student`: a one-sided t interval with finite-population correction on the seen terms. It also
  takes them to be about normal, which nothing guarantees: good in practice, no proof.

The last two are cut to the exact one.

May import: the standard library (layer L1 of the design).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal

Bound = Literal["exact", "hoeffding", "student"]
Range = tuple[float, float]

FEWEST = 3
"""Seen terms below which the t interval says nothing."""


def bounds_of_sum(
    seen: Sequence[float],
    unseen: Sequence[Range],
    bound: Bound = "exact",
    delta: float = 0.01,
    sizes: Sequence[float] | None = None,
) -> Range:
    """Lowest and highest value of the sum of all terms; may be infinite.

    `sizes`, for `student` only, are positive known numbers, one a term, the seen ones first, with
    which the terms grow: a ratio estimator then does not take long prompts for noise.
    """
    total = math.fsum(seen)
    low = total + sum(term[0] for term in unseen)
    high = total + sum(term[1] for term in unseen)
    likely = None
    if bound == "hoeffding" and unseen and seen:
        likely = _hoeffding(seen, unseen, delta)
    elif bound == "student" and unseen and len(seen) >= FEWEST:
        likely = _student(seen, sizes or [1.0] * (len(seen) + len(unseen)), delta)
    if likely is None:
        return low, high
    return max(low, min(high, likely[0])), min(high, max(low, likely[1]))


def _hoeffding(seen: Sequence[float], unseen: Sequence[Range], delta: float) -> Range:
    count, total = len(seen), len(seen) + len(unseen)
    width = max(*(high for _, high in unseen), *seen) - min(*(low for low, _ in unseen), *seen)
    left = min(1 - (count - 1) / total, (1 - count / total) * (1 + 1 / count))
    half = total * width * math.sqrt(left * -math.log(delta) / (2 * count))
    middle = math.fsum(seen) / count * total
    return middle - half, middle + half


def _student(seen: Sequence[float], sizes: Sequence[float], delta: float) -> Range | None:
    """None where the seen terms are all alike, which does not show that the others are too."""
    count, total = len(seen), len(sizes)
    known = math.fsum(sizes[:count])
    share = math.fsum(seen) / known
    rest = [term - share * size for term, size in zip(seen, sizes, strict=False)]
    spread = math.sqrt(math.fsum(value * value for value in rest) / (count - 1))
    if spread < 1e-12:
        return None
    whole = math.fsum(sizes)
    error = spread * math.sqrt((1 - count / total) / count) * whole * count / known
    half = t_quantile(1 - delta, count - 1) * error
    return share * whole - half, share * whole + half


@lru_cache(maxsize=1024)
def t_quantile(probability: float, freedom: int) -> float:
    """Quantile of Student's t, by bisection on its distribution; probability in 0.5 … 1."""
    low, high = 0.0, math.pi / 2
    for _ in range(60):
        middle = (low + high) / 2
        if _t_distribution(middle, freedom) < probability:
            low = middle
        else:
            high = middle
    return math.tan(low) * math.sqrt(freedom)


def _t_distribution(angle: float, freedom: int) -> float:
    """P(T <= tan(angle) * sqrt(freedom)); Abramowitz and Stegun 26.7.3 and 26.7.4."""
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = freedom % 2
    term = cosine if odd else 1.0
    series = 0.0 if freedom == 1 else term
    for k in range(2 + odd, freedom - 1, 2):
        term *= cosine * cosine * (k - 1) / k
        series += term
    inside = 2 / math.pi * (angle + sine * series) if odd else sine * series
    return 0.5 + inside / 2


def accept_term_range(ratio: float, max_accept: int | None, max_emitted: int | None) -> Range:
    """Range of emitted - ratio * steps for a prompt of which only the limits are known.

    A step emits 1 … max_accept ids and a prompt at most max_emitted, or takes no step at all.
    Highest: full steps, the last one cut by the limit; lowest: one id in every step.
    """
    if max_emitted is None:
        return (
            0.0 if ratio <= 1 else -math.inf,
            0.0 if max_accept and max_accept <= ratio else math.inf,
        )
    accept = min(max_accept or max_emitted, max_emitted)
    full = max_emitted // accept
    highest = max(
        0.0, full * (accept - ratio), max_emitted - ratio * math.ceil(max_emitted / accept)
    )
    return min(0.0, max_emitted * (1 - ratio)), highest
