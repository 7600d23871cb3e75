"""What is known of half-measured skip sets: who can still be feasible, who can still be best.

Every question is turned into the sign of a sum over the calibration prompts, so that a ratio of
sums needs no approximation: A(S) >= r is the same as sum(emitted - r * steps) >= 0, and
M(S) >= m the same as sum(metric - m) >= 0 over the rows with a reference. The terms are taken as
differences to the same prompts of a set that is known in full (the dense one, or the best so
far), whose sum is added again: that changes no exact bound and narrows the others.

May import: the standard library, tss_bench.types and tss_bench.search (layer L1 of the design).
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterable, Mapping, Sequence

from tss_bench.search.asking import BOTH
from tss_bench.search.bounds import Bound, accept_term_range, bounds_of_sum
from tss_bench.search.rules import Rules
from tss_bench.search.space import SearchSpace
from tss_bench.search.types import AcceptPair, Evaluation, Query, Score
from tss_bench.types import SkipSet

Verdict = bool | None
"""True or False once it is settled, None while it is open.

True is certain under every bound: a layer that a guess lets into the pool brings a pair with each
other one, and an error costs more than the look it saves. Only False may rest on a likely bound.
"""

SLACK = 1e-7
"""Share of the summed magnitudes by which a sum must miss 0; above every rounding in the rules."""


class Race:
    """The prompts seen of each set, and the verdicts that follow. `dense` is known in full.

    Every set sees the prompts in the same `order`, so that what was seen is a number.
    """

    def __init__(
        self,
        space: SearchSpace,
        rules: Rules,
        dense: Evaluation,
        order: Sequence[int],
        bound: Bound,
        delta: float,
    ) -> None:
        self.dense = dense.score()
        self._space, self._rules, self._order = space, rules, tuple(order)
        self._bound, self._delta = bound, delta
        self._accept: dict[SkipSet, dict[int, AcceptPair]] = {}
        self._metric: dict[SkipSet, dict[int, float | None]] = {}
        self._verdicts: dict[tuple[object, ...], Verdict] = {}
        self._add(dense)
        first = self._metric[dense.skip]
        # One more than the steps, so that a prompt without any weighs something.
        self._lengths = {i: 1.0 + pair[1] for i, pair in self._accept[dense.skip].items()}
        self._scored = tuple(prompt for prompt in order if first[prompt] is not None)

    def seen(self, skip: SkipSet) -> int:
        """How many prompts of the order are known of this set."""
        return len(self._accept.get(skip, ()))

    def complete(self, skip: SkipSet) -> bool:
        return self.seen(skip) == len(self._order)

    def score(self, skip: SkipSet) -> Score:
        """Pooled figures over the prompts seen."""
        accept, metric = self._accept[skip], self._metric[skip]
        prompts = tuple(sorted(accept))
        return Evaluation(
            skip,
            prompts,
            accept=tuple(accept[prompt] for prompt in prompts),
            metric=tuple(metric[prompt] for prompt in prompts),
        ).score()

    def advance(
        self, sets: Iterable[SkipSet], count: int, planned: int | None = None
    ) -> Generator[Query, list[Evaluation], None]:
        """Measure the next `count` prompts of every set. Lets BudgetExhausted pass."""
        groups: dict[int, list[SkipSet]] = {}
        for skip in sets:
            groups.setdefault(self.seen(skip), []).append(skip)
        for seen, group in sorted(groups.items()):
            if prompts := self._order[seen : seen + count]:
                for evaluation in (yield Query(group, BOTH, prompts, planned)):
                    self._add(evaluation)

    def in_pool(self, skip: SkipSet) -> Verdict:
        """`Rules.in_pool` of a single layer."""
        accept, metric = self._passes(skip, self._rules.tau)
        if not self._rules.use_metric or accept:
            return accept
        return metric if metric or accept is False else None

    def feasible(self, skip: SkipSet) -> Verdict:
        """`Rules.feasible`."""
        accept, metric = self._passes(skip, self._rules.eps)
        if not self._rules.use_metric or accept is False:
            return accept
        return metric if metric is False or accept else None

    def beaten(self, skip: SkipSet, best: Score | None) -> bool:
        """True if the accept length is settled to be below that of a set known in full."""
        if best is None or best.accept is None:
            return False
        return self._accept_verdict(skip, best.accept, best.skip) is False

    def outlook(self, skip: SkipSet) -> tuple[bool, float]:
        """A guess from the prompts seen: feasible or not, and A. Nothing is settled by it.

        A set that was not seen is guessed from its single layers, as if their effects multiplied.
        """
        parts = [skip] if self.seen(skip) else [self._space.skip([layer]) for layer in skip]
        accept, metric = self.dense.accept or 0.0, self.dense.metric or 0.0
        for part in parts:
            change = self._changes(part)
            accept *= change[0]
            metric += change[1]
        guess = Score(skip, accept, metric)
        return self._rules.feasible(self.dense, guess), accept

    def _add(self, evaluation: Evaluation) -> None:
        for prompt, pair, value in zip(
            evaluation.prompts, evaluation.accept or (), evaluation.metric or (), strict=True
        ):
            self._accept.setdefault(evaluation.skip, {})[prompt] = pair
            self._metric.setdefault(evaluation.skip, {})[prompt] = value

    def _changes(self, skip: SkipSet) -> tuple[float, float]:
        """A as a share of the dense A, and M less the dense M, both on the prompts seen."""
        prompts = tuple(self._accept.get(skip, ()))
        if not prompts:
            return 1.0, 0.0
        own = self.score(skip)
        accept, metric = self._accept[self.dense.skip], self._metric[self.dense.skip]
        same = Evaluation(
            self.dense.skip,
            prompts,
            accept=tuple(accept[prompt] for prompt in prompts),
            metric=tuple(metric[prompt] for prompt in prompts),
        ).score()
        share = own.accept / same.accept if own.accept and same.accept else 1.0
        return share, (own.metric or 0.0) - (same.metric or 0.0)

    def _passes(self, skip: SkipSet, tolerance: float) -> tuple[Verdict, Verdict]:
        """`Rules.passes` of a set that may be known in part."""
        if self.complete(skip):
            return self._rules.passes(self.dense, self.score(skip), tolerance)
        floor = self._rules.floor(self.dense.accept or 0.0, tolerance)
        accept = self._accept_verdict(skip, floor, self.dense.skip)
        if not self._rules.use_metric:
            return accept, None
        floor = self._rules.floor(self.dense.metric or 0.0, tolerance)
        return accept, self._metric_verdict(skip, floor)

    def _accept_verdict(self, skip: SkipSet, ratio: float, reference: SkipSet) -> Verdict:
        """Whether A >= ratio is settled; `reference` is known in full."""
        key = (skip, self.seen(skip), ratio, reference)
        if key not in self._verdicts:
            known = self._accept.get(skip, {})
            limits = self._space.limits
            span = accept_term_range(ratio, limits.max_accept, limits.max_emitted)
            own = {prompt: pair[0] - ratio * pair[1] for prompt, pair in known.items()}
            other = {
                prompt: pair[0] - ratio * pair[1]
                for prompt, pair in self._accept[reference].items()
            }
            scale = sum(above + ratio * below for above, below in known.values())
            self._verdicts[key] = self._sign(
                own, other, span, self._order, 0.0, scale, self._lengths
            )
        return self._verdicts[key]

    def _metric_verdict(self, skip: SkipSet, floor: float) -> Verdict:
        """Whether M >= floor is settled."""
        key = (skip, self.seen(skip), floor)
        if key not in self._verdicts:
            own = {i: value for i, value in self._metric.get(skip, {}).items() if value is not None}
            other = {i: self._metric[self.dense.skip][i] or 0.0 for i in self._scored}
            target = floor * len(self._scored)
            self._verdicts[key] = self._sign(
                own, other, (0.0, 1.0), self._scored, target, target, dict.fromkeys(other, 1.0)
            )
        return self._verdicts[key]

    def _sign(
        self,
        own: dict[int, float],
        other: dict[int, float],
        span: tuple[float, float],
        prompts: Sequence[int],
        target: float,
        scale: float,
        lengths: Mapping[int, float],
    ) -> Verdict:
        """Whether the sum of all own terms is settled to be above, or below, the target.

        `own` holds the terms seen, `other` those of the reference on every prompt, `span` the
        range of a term that was not seen, `scale` how large the figures behind the terms are,
        `lengths` numbers with which the terms grow.
        """
        seen = [own[prompt] - other[prompt] for prompt in prompts if prompt in own]
        left = [prompt for prompt in prompts if prompt not in own]
        unseen = [(span[0] - other[prompt], span[1] - other[prompt]) for prompt in left]
        order = [prompt for prompt in prompts if prompt in own] + left
        sizes = [lengths[prompt] for prompt in order]
        low, _ = bounds_of_sum(seen, unseen)
        _, high = bounds_of_sum(seen, unseen, self._bound, self._delta, sizes)
        known = math.fsum(other[prompt] for prompt in prompts) - target
        slack = SLACK * (1 + abs(scale) + sum(map(abs, other.values())))
        if low + known > slack:
            return True
        return False if high + known < -slack else None
