"""Synthetic response surfaces: what a target would answer, from a seed and without a model.

May import: the standard library and tss_bench.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from tss_bench.search import Evaluation, Job, Limits, SearchSpace
from tss_bench.types import SkipSet

MAX_ACCEPT = 6
MAX_EMITTED = 95
LIMITS = Limits(MAX_ACCEPT, MAX_EMITTED)


@dataclass(frozen=True)
class Surface:
    """Evaluations of every (skip set, prompt), a pure function of the seed.

    `wild` ones have unrelated values for every set and coarse ones, so that ties and surprises
    are common. The others are made like a real target: prompts differ in length and difficulty,
    layers do harm (some a little good) that adds up and differs between prompts.
    """

    seed: int
    num_layers: int
    num_prompts: int
    wild: bool = False
    unscored: frozenset[int] = frozenset()
    accuracy: bool = False

    def space(self, **settings: object) -> SearchSpace:
        given: dict[str, object] = {"limits": LIMITS, **settings}
        return SearchSpace(self.num_layers, self.num_prompts, **given)  # type: ignore[arg-type]

    def accept(self, skip: SkipSet, prompt: int) -> tuple[int, int]:
        if self.wild:
            source = self._source("accept", *skip, -1, prompt)
            steps = source.choice([0, 1, 2, 5, 20])
            return (min(MAX_EMITTED, steps * source.randint(1, MAX_ACCEPT)), steps)
        base = self._source("prompt", prompt)
        emitted, ratio = base.choice([20, 40, 60, 95, 95, 95]), base.uniform(1.6, 3.2)
        harm = sum(self._harm("accept", layer, prompt) for layer in skip)
        ratio = min(float(MAX_ACCEPT), max(1.0, ratio * math.exp(-harm)))
        return emitted, math.ceil(emitted / ratio)

    def metric(self, skip: SkipSet, prompt: int) -> float | None:
        if prompt in self.unscored:
            return None
        if self.wild:
            return self._source("metric", *skip, -1, prompt).choice([0.0, 0.25, 0.5, 1.0])
        base = self._source("quality", prompt).betavariate(2, 3)
        harm = sum(self._harm("metric", layer, prompt) for layer in skip)
        value = min(1.0, max(0.0, base * math.exp(-harm)))
        return float(value > 0.35) if self.accuracy else value

    def loss(self, skip: SkipSet, prompt: int) -> tuple[float, int]:
        tokens = 10 + self._source("tokens", prompt).randrange(20)
        harm = sum(self._harm("loss", layer, prompt) for layer in skip)
        return tokens * (2.0 + harm), tokens

    def _harm(self, kind: str, layer: int, prompt: int) -> float:
        """What skipping a layer does to a prompt: a few layers hurt much, a few help."""
        size = self._source(kind, layer).choice([-0.05, 0.0, 0.02, 0.05, 0.1, 0.2, 0.4, 0.8])
        return size + self._source(kind, layer, prompt).gauss(0, 0.05 + abs(size) / 3)

    def _source(self, kind: str, *numbers: int) -> random.Random:
        return random.Random(f"{self.seed}:{kind}:{numbers}")

    def evaluate(self, job: Job) -> Evaluation:
        want, skip, prompts = job.want, job.skip, job.prompts
        return Evaluation(
            skip,
            prompts,
            accept=tuple(self.accept(skip, i) for i in prompts) if "accept" in want else None,
            metric=tuple(self.metric(skip, i) for i in prompts) if "metric" in want else None,
            loss=tuple(self.loss(skip, i) for i in prompts) if "loss" in want else None,
            cost=10.0 - len(skip) if "cost" in want else None,
        )

    def full(self, skip: SkipSet) -> Evaluation:
        everything = frozenset(("accept", "metric", "loss"))
        return self.evaluate(Job(skip, everything, tuple(range(self.num_prompts))))


@dataclass
class Recorder:
    """An executor that counts what it was asked for, and dies at the `dies_at`-th evaluation."""

    surface: Surface
    dies_at: int | None = None
    done: Counter[tuple[SkipSet, int, str]] = field(default_factory=Counter)
    jobs: list[Job] = field(default_factory=list)

    def __call__(self, jobs: Sequence[Job]) -> Iterator[Evaluation]:
        for job in jobs:
            if self.dies_at is not None and len(self.jobs) >= self.dies_at:
                raise Killed
            self.jobs.append(job)
            self.done.update((job.skip, i, want) for i in job.prompts for want in job.want)
            yield self.surface.evaluate(job)

    @property
    def sets(self) -> set[SkipSet]:
        return {skip for skip, _, _ in self.done}

    @property
    def decoded(self) -> set[tuple[SkipSet, int]]:
        return {(skip, prompt) for skip, prompt, want in self.done if want != "loss"}


class Killed(Exception):
    """The executor was killed."""


def nothing(jobs: Iterable[Job]) -> Iterator[Evaluation]:
    """An executor that must not be asked."""
    raise AssertionError(f"asked for {list(jobs)}")
