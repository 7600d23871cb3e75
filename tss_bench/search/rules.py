"""When a skip set is good enough, and which of the good ones is chosen: pure functions.

Traversal is the strategies' business. Ties are broken to the last, so that equal evaluations
always give the equal choice.

May import: the standard library and tss_bench.search (layer L1 of the design).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from tss_bench.search.types import Score

Choice = Literal["min_cost", "triple_win"]
Cost = Literal["layers", "measured"]
Tolerance = Literal["relative", "absolute"]

COST_UNITS: dict[Cost, str] = {"layers": "active / L", "measured": "ms a verification step"}

CLOSE = 1e-9
"""Relative difference below which two figures count as equal at a floor."""


@dataclass(frozen=True)
class Rules:
    """Tolerances and costs of a search.

    `eps` is how much of the dense accept length and metric a set may lose, `tau` how much a
    single layer may lose to enter the pool; both may be negative (a set must then gain).
    `tolerance` says whether they are shares of the dense value or plain differences; a dense
    value of 0 makes them differences. `cost`: `layers` (active / L) or `measured` (milliseconds
    a verification step, asked for feasible sets only). With `use_metric` off, sets are chosen on
    acceptance alone. Raises ValueError for tolerances outside -1 … 1.
    """

    eps: float = 0.05
    tau: float = 0.05
    tolerance: Tolerance = "relative"
    cost: Cost = "layers"
    use_metric: bool = True

    def __post_init__(self) -> None:
        for name in ("eps", "tau"):
            value = getattr(self, name)
            if not (math.isfinite(value) and -1 <= value <= 1):
                raise ValueError(f"{name} must lie between -1 and 1, got {value}")

    def floor(self, dense: float, tolerance: float) -> float:
        """The lowest value that is still good, for one dense value and tolerance."""
        if self.tolerance == "absolute" or dense == 0:
            return dense - tolerance
        return dense * (1 - tolerance)

    def check_dense(self, dense: Score) -> None:
        """Raises ValueError where the dense target gives nothing to compare with."""
        if dense.accept is None:
            raise ValueError(
                "no calibration prompt takes a verification step: there is no accept length to "
                "search for; raise max_gen_toks or take another task"
            )
        if self.use_metric and dense.metric is None:
            raise ValueError(
                "no calibration row has a reference, so there is no metric to keep; search on "
                "acceptance alone (use_metric off), or take a task that is scored"
            )

    def in_pool(self, dense: Score, single: Score) -> bool:
        """True if a single layer passes the tau floor on A **or** on M."""
        accept, metric = self.passes(dense, single, self.tau)
        return accept or (self.use_metric and metric)

    def feasible(self, dense: Score, score: Score) -> bool:
        """True if a set passes the eps floors on A **and** M."""
        accept, metric = self.passes(dense, score, self.eps)
        return accept and (metric or not self.use_metric)

    def keeps_metric(self, dense: Score, score: Score) -> bool:
        """True if a set passes the eps floor on M, whatever its A."""
        return self.passes(dense, score, self.eps)[1]

    def passes(self, dense: Score, score: Score, tolerance: float) -> tuple[bool, bool]:
        """Whether a set passes the floor on A, and the one on M, at this tolerance."""
        pairs = ((dense.accept, score.accept), (dense.metric, score.metric))
        first, second = (
            reference is not None and at_least(value, self.floor(reference, tolerance))
            for reference, value in pairs
        )
        return first, second


def at_least(value: float | None, floor: float) -> bool:
    """value >= floor, up to rounding; False for a value that is not defined."""
    if value is None:
        return False
    return value >= floor or math.isclose(value, floor, rel_tol=CLOSE, abs_tol=1e-12)


def dominates(first: Score, second: Score) -> bool:
    """True if `first` is nowhere worse than `second` in A, M and cost, and somewhere better."""
    one, other = _objectives(first), _objectives(second)
    return one != other and all(a >= b for a, b in zip(one, other, strict=True))


def pareto_front(scores: Iterable[Score]) -> tuple[Score, ...]:
    """The sets that no other one dominates in (A, M, -cost), cheapest first.

    The `min_cost` choice is always among them. Sets of equal figures are all kept.
    """
    listed = sorted(set(scores), key=min_cost_key)
    return tuple(score for score in listed if not any(dominates(other, score) for other in listed))


def _objectives(score: Score) -> tuple[float, float, float]:
    return (_high(score.accept), _high(score.metric), -_low(score.cost))


def min_cost_key(score: Score) -> tuple[float, float, float, tuple[int, ...]]:
    """Smallest first: lowest cost, higher A, higher M, lexicographically smaller layers."""
    return (_low(score.cost), -_high(score.accept), -_high(score.metric), tuple(score.skip))


def min_cost(scores: Iterable[Score]) -> Score | None:
    """The final choice of Algorithm 1; None of nothing."""
    return min(scores, key=min_cost_key, default=None)


def triple_win(
    rules: Rules, dense: Score, scores: Iterable[Score], min_size: int = 3
) -> Score | None:
    """The final choice of the paper's practice: A, M and tokens/s all at least the dense ones.

    The metric may drop by `eps`; tokens/s is A / cost. Of the winners only those with
    |S| >= min(min_size, largest winner) count; ranked by A, then |S|, then tokens/s, then the
    lexicographically smaller layers. None where nothing wins.
    """
    winners = [
        score
        for score in scores
        if qualifies("triple_win", rules, dense, score)
        and at_least(score.speed, _high(dense.speed))
    ]
    size = min(min_size, max((len(score.skip) for score in winners), default=0))
    large = [score for score in winners if len(score.skip) >= size]
    return min(large, key=_triple_win_key, default=None)


def _triple_win_key(score: Score) -> tuple[float, int, float, tuple[int, ...]]:
    return (-_high(score.accept), -len(score.skip), -_high(score.speed), tuple(score.skip))


def qualifies(choice: Choice, rules: Rules, dense: Score, score: Score) -> bool:
    """True if a set has the A and M that a rule asks for; its cost is not looked at."""
    if not score.skip:
        return False
    if choice == "min_cost":
        return rules.feasible(dense, score)
    return at_least(score.accept, _high(dense.accept)) and (
        not rules.use_metric or rules.keeps_metric(dense, score)
    )


def choose(choice: Choice, rules: Rules, dense: Score, scores: Iterable[Score]) -> Score | None:
    """The final choice by the name of its rule; None where no set qualifies, or none is cheaper."""
    good = [score for score in scores if qualifies(choice, rules, dense, score)]
    if choice == "triple_win":
        return triple_win(rules, dense, good)
    best = min_cost(good)
    # A timed set may turn out to be no cheaper than dense, which is feasible, too.
    return best if best is None or _low(best.cost) < _low(dense.cost) else None


def explain(choice: Choice, rules: Rules, dense: Score, scores: Sequence[Score]) -> str:
    """Why none of these sets was chosen, in one line."""
    if not scores:
        return "dense kept: no layer passes a floor alone, so there was no set to try"
    good = sum(qualifies(choice, rules, dense, score) for score in scores)
    if good:
        return f"dense kept: {good} of {len(scores)} sets keep A and M, but none is faster"
    floors = [("A", dense.accept, choice == "triple_win", [score.accept for score in scores])]
    if rules.use_metric:
        floors.append(("M", dense.metric, False, [score.metric for score in scores]))
    found = []
    for name, reference, exact, values in floors:
        floor = (reference or 0) if exact else rules.floor(reference or 0, rules.eps)
        passed = sum(at_least(value, floor) for value in values)
        found.append(f"{name} >= {floor:.4g} holds for {passed}")
    return f"dense kept: of {len(scores)} sets none is feasible; {', '.join(found)}"


def _high(value: float | None) -> float:
    return -math.inf if value is None else value


def _low(value: float | None) -> float:
    return math.inf if value is None else value
