"""What a search asks and gets: queries, evaluations, scores, results, and their pooling.

An evaluation keeps what was measured per prompt, so that half-measured sets can be completed and
figures are pooled once, at the end. Nothing here measures anything.

May import: the standard library and tss_bench.types (layer L1 of the design).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from tss_bench.types import SkipSet

Want = Literal["accept", "metric", "cost", "loss"]
WANTS: tuple[Want, ...] = ("accept", "metric", "cost", "loss")
PER_PROMPT: tuple[Want, ...] = ("accept", "metric", "loss")

AcceptPair = tuple[int, int]
"""Emitted ids of all verification steps of one prompt, and the number of those steps."""

LossPair = tuple[float, int]
"""Summed cross-entropy (nats) over the tokens of one prompt, and the number of those tokens."""


class BudgetExhausted(Exception):
    """Thrown into a strategy at a query that the budget does not reach; nothing of it was done."""


@dataclass(frozen=True)
class Query:
    """A batch a strategy asks for: these sets, these fields, on these calibration prompts.

    `prompts` is "all" or indices 0 … num_prompts-1. `planned` tells the progress bar how many
    sets the strategy expects to have asked for at its end, as far as it knows now.
    """

    skip_sets: tuple[SkipSet, ...]
    want: frozenset[Want]
    prompts: Literal["all"] | tuple[int, ...]
    planned: int | None

    def __init__(
        self,
        skip_sets: Iterable[SkipSet],
        want: Iterable[Want] = ("accept", "metric"),
        prompts: Literal["all"] | Iterable[int] = "all",
        planned: int | None = None,
    ) -> None:
        wanted = frozenset(want)
        if not wanted or not wanted <= set(WANTS):
            raise ValueError(
                f"a query may want {', '.join(WANTS)}, not {sorted(want) or 'nothing'}"
            )
        chosen = "all" if prompts == "all" else tuple(sorted(set(prompts)))
        object.__setattr__(self, "skip_sets", tuple(skip_sets))
        object.__setattr__(self, "want", wanted)
        object.__setattr__(self, "prompts", chosen)
        object.__setattr__(self, "planned", planned)


@dataclass(frozen=True)
class Evaluation:
    """What is known of one skip set; a field that was not asked for is None.

    `accept`, `metric` and `loss` hold one value for each of `prompts`, in that order: `accept` the
    pair (emitted, steps), `metric` a value in 0 … 1 or None for a row without reference, `loss`
    the pair (nats, tokens). `cost` is one number for the set (C in the definitions).
    Raises ValueError where the lengths differ.
    """

    skip: SkipSet
    prompts: tuple[int, ...] = ()
    accept: tuple[AcceptPair, ...] | None = None
    metric: tuple[float | None, ...] | None = None
    cost: float | None = None
    loss: tuple[LossPair, ...] | None = None

    def __post_init__(self) -> None:
        for name in PER_PROMPT:
            values = getattr(self, name)
            if values is not None and len(values) != len(self.prompts):
                raise ValueError(
                    f"{len(values)} values of {name} for {len(self.prompts)} prompts of {self.skip}"
                )

    def score(self) -> Score:
        """The pooled figures over the prompts held."""
        return Score(
            self.skip,
            accept=None if self.accept is None else pooled_accept(self.accept),
            metric=None if self.metric is None else mean_metric(self.metric),
            cost=self.cost,
            loss=None if self.loss is None else pooled_loss(self.loss),
        )


@dataclass(frozen=True)
class Score:
    """A(S), M(S), C(S) and mean token loss of one set; None where not measured or not defined."""

    skip: SkipSet
    accept: float | None = None
    metric: float | None = None
    cost: float | None = None
    loss: float | None = None

    @property
    def speed(self) -> float | None:
        """A / C, what stands for tokens/s in every rule (up to a constant factor)."""
        if self.accept is None or not self.cost:
            return None
        return self.accept / self.cost


def pooled_accept(pairs: Iterable[AcceptPair]) -> float | None:
    """sum(emitted) / sum(steps); None where no prompt took a step."""
    listed = tuple(pairs)
    steps = sum(below for _, below in listed)
    return sum(above for above, _ in listed) / steps if steps else None


def mean_metric(values: Iterable[float | None]) -> float | None:
    """Mean over the rows that have a reference; None where none has."""
    scored = [value for value in values if value is not None]
    return math.fsum(scored) / len(scored) if scored else None


def pooled_loss(pairs: Iterable[LossPair]) -> float | None:
    """Mean cross-entropy of a token, in nats; None where there is no token."""
    listed = tuple(pairs)
    tokens = sum(below for _, below in listed)
    return math.fsum(above for above, _ in listed) / tokens if tokens else None


@dataclass(frozen=True)
class TraceEntry:
    """One answer given to the strategy: in which batch, over how many prompts, what came out."""

    batch: int
    prompts: int
    score: Score


@dataclass(frozen=True)
class Counts:
    """What a search asked for, and how much of it had to be computed in this run.

    `evaluations`: distinct skip sets, the dense one included. `prompt_evaluations`: distinct
    (set, prompt) pairs decoded, and pairs whose loss was taken. The `fresh` ones were not in the
    ledger. `timings`: measured costs.
    """

    evaluations: int = 0
    prompt_evaluations: int = 0
    fresh_evaluations: int = 0
    fresh_prompt_evaluations: int = 0
    timings: int = 0


@dataclass(frozen=True)
class Spent:
    """The seconds of a search, as `search.seconds` defines them, and where they were taken."""

    seconds: float
    machines: tuple[str, ...] = ()


@dataclass(frozen=True)
class SearchResult:
    """What a strategy returns: its choice, and why.

    `best` is the chosen set, the dense one where nothing was feasible; `reason` says why.
    `stopped` says which budget ended the search early. The driver fills in what a strategy leaves
    open: missing figures of `best`, `dense`, `trace`, `counts`, `spent`, `strategy` and `options`.
    `spent`, None where it is not known, is no part of what was found: results that differ in
    nothing else are equal.
    """

    best: Score
    pareto: tuple[Score, ...] = ()
    reason: str = ""
    stopped: str | None = None
    dense: Score | None = None
    trace: tuple[TraceEntry, ...] = ()
    counts: Counts = Counts()
    spent: Spent | None = field(default=None, compare=False)
    strategy: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def kept_dense(self) -> bool:
        return not self.best.skip


Search = Generator[Query, list[Evaluation], SearchResult]
"""What a strategy function returns when it is called: a generator that has not started."""

StrategyFunction = Callable[..., Search]
"""`strategy(space, rules, *, option=default)`."""
