"""The search space: which layers may be skipped, how many at once, at what expense.

May import: the standard library, tss_bench.types and tss_bench.search (layer L1 of the design).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import combinations

from tss_bench.search.types import AcceptPair, Evaluation
from tss_bench.types import SkipSet

FREE_DEPTH = 2
"""Deepest exhaustive search that may run without a budget."""


@dataclass(frozen=True)
class Limits:
    """What is known of any prompt before it is decoded; None where nothing is.

    `max_accept`: most ids one verification step can emit (depth of the deepest draft tree + 1).
    `max_emitted`: most ids the steps of one prompt can emit (`max_gen_toks`, less the id that the
    prefill gives, over all turns). Metrics always lie in 0 … 1. The driver refuses an evaluation
    that breaks a limit, since `tss_race` builds its bounds on them.
    """

    max_accept: int | None = None
    max_emitted: int | None = None

    def __post_init__(self) -> None:
        for name in ("max_accept", "max_emitted"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}; leave it out if unknown")

    def allows(self, pair: AcceptPair) -> bool:
        """True if a prompt can have given this (emitted, steps); a step emits at least one id."""
        emitted, steps = pair
        most = emitted if self.max_accept is None else self.max_accept * steps
        return 0 <= steps <= emitted <= min(most, self.max_emitted or emitted) and (
            steps > 0 or emitted == 0
        )


@dataclass(frozen=True)
class Budget:
    """Most skip sets, and most (set, prompt) pairs, that a search may ask for; None: no limit.

    What the ledger already holds counts too, so that a resumed search ends where an uninterrupted
    one would.
    """

    evaluations: int | None = None
    prompt_evaluations: int | None = None

    def __post_init__(self) -> None:
        for name in ("evaluations", "prompt_evaluations"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"the budget of {name} must be at least 1, got {value}")


@dataclass(frozen=True)
class SearchSpace:
    """Skip sets of at most `depth` of the candidate layers of a `num_layers` deep target.

    Candidates are the layers `early` … num_layers - late - 1, or those of them in `pool`.
    `num_prompts` is the size of the calibration split, whose prompts are numbered from 0.
    Raises ValueError for barriers, a pool or a depth that leave nothing to search.
    """

    num_layers: int
    num_prompts: int
    early: int = 0
    late: int = 0
    depth: int = 2
    pool: frozenset[int] | None = None
    limits: Limits = field(default_factory=Limits)
    budget: Budget = field(default_factory=Budget)

    def __post_init__(self) -> None:
        if self.num_prompts < 1:
            raise ValueError(f"a search needs calibration prompts, got {self.num_prompts}")
        if self.early < 0 or self.late < 0 or self.early + self.late >= self.num_layers:
            raise ValueError(
                f"barriers early={self.early} and late={self.late} leave no layer of "
                f"{self.num_layers}; both are at least 0 and together below {self.num_layers}"
            )
        if self.pool is not None:
            object.__setattr__(self, "pool", frozenset(self.pool))
            outside = sorted(set(self.pool) - set(range(self.early, self.num_layers - self.late)))
            if outside or not self.pool:
                raise ValueError(
                    f"the pool must name layers from {self.early} to "
                    f"{self.num_layers - self.late - 1}, got {outside or 'none'}"
                )
        if not 1 <= self.depth <= len(self.candidates):
            raise ValueError(
                f"depth must lie between 1 and the {len(self.candidates)} candidate layers, "
                f"got {self.depth}"
            )

    @property
    def candidates(self) -> tuple[int, ...]:
        """Layers that may be skipped, in order."""
        inside = range(self.early, self.num_layers - self.late)
        return tuple(i for i in inside if self.pool is None or i in self.pool)

    @property
    def dense(self) -> SkipSet:
        return SkipSet.dense(self.num_layers)

    def skip(self, layers: Iterable[int]) -> SkipSet:
        return SkipSet.of(layers, self.num_layers)

    def singles(self) -> tuple[SkipSet, ...]:
        """Every set of one candidate layer, in order."""
        return tuple(self.subsets(self.candidates, 1))

    def subsets(self, layers: Iterable[int], size: int) -> Iterator[SkipSet]:
        """Every set of `size` of these layers, in lexicographic order."""
        return (self.skip(chosen) for chosen in combinations(sorted(layers), size))

    def count(self, pool_size: int | None = None) -> int:
        """Sets that an exhaustive search evaluates: dense, singles, 2 … depth of the pool.

        Without `pool_size` every candidate counts, which is the most there can be.
        """
        singles = len(self.candidates)
        size = singles if pool_size is None else pool_size
        return 1 + singles + sum(math.comb(size, k) for k in range(2, self.depth + 1))

    def require_budget(self, strategy: str) -> None:
        """Raises ValueError for an exhaustive search deeper than two without a budget."""
        if self.depth > FREE_DEPTH and self.budget == Budget():
            raise ValueError(
                f"{strategy} to depth {self.depth} may evaluate {self.count()} skip sets on "
                f"{self.num_prompts} prompts; set a budget of evaluations, or a depth of "
                f"{FREE_DEPTH} or less"
            )

    def layer_cost(self, skip: SkipSet) -> float:
        """The deterministic cost `layers`: active / L."""
        return len(skip.active) / self.num_layers

    def check(self, evaluation: Evaluation) -> None:
        """Raises ValueError for an evaluation that cannot be one of this space."""
        skip = evaluation.skip
        if skip.num_layers != self.num_layers:
            raise ValueError(
                f"{skip} is of {skip.num_layers} layers, the space of {self.num_layers}"
            )
        outside = [i for i in evaluation.prompts if not 0 <= i < self.num_prompts]
        if outside:
            raise ValueError(f"prompts {outside} of {skip} are none of the {self.num_prompts}")
        for prompt, pair in zip(evaluation.prompts, evaluation.accept or (), strict=False):
            if not self.limits.allows(pair):
                raise ValueError(
                    f"(emitted, steps) of {skip} on prompt {prompt} is {pair}, which {self.limits} "
                    f"rules out; correct the limits or the evaluator"
                )
        for prompt, value in zip(evaluation.prompts, evaluation.metric or (), strict=False):
            if value is not None and not 0 <= value <= 1:
                raise ValueError(
                    f"the metric of {skip} on prompt {prompt} must lie in 0 … 1, got {value}"
                )
