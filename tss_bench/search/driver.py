"""Runs one strategy: asks an executor for what the strategy wants and nobody knows yet.

May import: the standard library, tss_bench.types and tss_bench.search (layer L1 of the design).
"""

from __future__ import annotations

import math
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from tss_bench.search.ledger import Ledger
from tss_bench.search.meter import Meter
from tss_bench.search.registry import Strategy
from tss_bench.search.rules import COST_UNITS, Rules, choose, explain
from tss_bench.search.seconds import Taken, Value
from tss_bench.search.space import SearchSpace
from tss_bench.search.table import EvaluationTable, Job
from tss_bench.search.types import (
    PER_PROMPT,
    BudgetExhausted,
    Evaluation,
    Query,
    Score,
    Search,
    SearchResult,
    Spent,
    StrategyFunction,
    TraceEntry,
    Want,
)
from tss_bench.types import SkipSet

Executor = Callable[[Sequence[Job]], Iterable[Evaluation]]
"""Does the jobs of one batch and gives each evaluation back as soon as it is there.

Obligations: every job is answered, in any order, in one piece or several; a value depends on
skip set, prompt and field alone. Fields that came along unasked may be given too and are kept.
Jobs that want a cost come in one batch with the dense set, to be timed interleaved. An exception
ends the search; what was given before it is in the ledger.
"""


@dataclass(frozen=True)
class Progress:
    """Where a search stands. `done` and `planned` are skip sets; `planned` is None if unknown.

    `best` is the best set by lowest layer cost among the feasible ones measured in full.
    """

    done: int
    planned: int | None
    prompts_done: int
    best: Score | None


def serial(evaluate: Callable[[Job], Evaluation]) -> Executor:
    """The executor that does one job after the other with a plain function."""
    return lambda jobs: map(evaluate, jobs)


def clocked(
    executor: Executor, jobs: Sequence[Job], clock: Callable[[], float]
) -> Iterator[tuple[Evaluation, float]]:
    """Each evaluation with the seconds that the executor was waited for, to the microsecond."""
    start = clock()
    for evaluation in executor(jobs) if jobs else ():
        yield evaluation, round(clock() - start, 6)
        start = clock()


def run_search(
    strategy: Strategy | StrategyFunction,
    space: SearchSpace,
    rules: Rules,
    executor: Executor,
    *,
    options: Mapping[str, Any] | None = None,
    ledger: Ledger | None = None,
    progress: Callable[[Progress], None] | None = None,
    clock: Callable[[], float] = time.perf_counter,
    machine: str = "",
) -> SearchResult:
    """Run a strategy to its end; its result has figures, trace, counts and seconds filled in.

    With a ledger, what it holds is answered from it and all new evaluations go into it, so that
    an interrupted search, started again, goes on where it was. The figures of `best` and `dense`
    that the strategy never asked for are measured at the end, as far as the budget reaches.
    `clock` tells seconds, `machine` names where the executor works.
    Raises ValueError: a budget below the strategy's first step, options the strategy refuses, an
    evaluation that breaks a limit of the space, a job left without an answer.
    """
    chosen = dict(options or {})
    if isinstance(strategy, Strategy):
        name, function = strategy.name, strategy.function
    else:
        name, function = strategy.__name__, strategy
    run = _Run(space, rules, executor, ledger, progress, (clock, machine))
    run.note(name, chosen)
    result = run.follow(function(space, rules, **chosen))
    best = run.completed(result.best)
    dense = run.completed(result.dense or Score(space.dense))
    return replace(
        result,
        best=best,
        dense=dense,
        trace=tuple(run.trace),
        counts=run.meter.counts,
        spent=run.spent(),
        stopped=result.stopped or run.stopped,
        strategy=name,
        options=chosen,
    )


class _Run:
    """One run: what was asked, counted and timed in it."""

    def __init__(
        self,
        space: SearchSpace,
        rules: Rules,
        executor: Executor,
        ledger: Ledger | None,
        progress: Callable[[Progress], None] | None,
        timing: tuple[Callable[[], float], str],
    ) -> None:
        self.trace: list[TraceEntry] = []
        self.stopped: str | None = None
        self.meter = Meter(space.budget)
        self._space, self._rules = space, rules
        self._executor, self._ledger, self._progress = executor, ledger, progress
        self._clock, self._machine = timing
        self._table = ledger.table if ledger else EvaluationTable()
        self._asked: set[Value] = set()
        self._timing_seconds = 0.0
        self._id = uuid.uuid4().hex
        self._all = tuple(range(space.num_prompts))
        self._costs: dict[SkipSet, float] = {}
        self._scored: dict[int, bool] = {}
        self._planned: int | None = None
        self._batch = 0
        self._prompts_done = 0
        self._told: Progress | None = None
        self._full: dict[SkipSet, Score] = {}
        self._best: Score | None = None

    def note(self, name: str, options: Mapping[str, Any]) -> None:
        """Write down in the ledger which run begins."""
        if self._ledger is not None:
            self._ledger.note(
                {
                    "run": self._id,
                    "strategy": name,
                    "options": {key: str(value) for key, value in options.items()},
                    "rules": asdict(self._rules),
                    "depth": self._space.depth,
                    "candidates": list(self._space.candidates),
                    "cost": COST_UNITS[self._rules.cost],
                    "speed": "accept / cost stands for tokens per second",
                    "machine": self._machine,
                }
            )

    def follow(self, search: Search) -> SearchResult:
        """Drive the generator; a strategy that lets BudgetExhausted pass ends at the rules."""
        try:
            query = next(search)
            while True:
                try:
                    answers = self.answer(query)
                except BudgetExhausted as error:
                    self.stopped = str(error)
                    query = search.throw(error)
                else:
                    self._remember(answers)
                    query = search.send(answers)
        except StopIteration as stop:
            if not isinstance(stop.value, SearchResult):
                raise TypeError(
                    f"a strategy must return a SearchResult, got {type(stop.value).__name__}"
                ) from None
            return stop.value
        except BudgetExhausted:
            return self._fallback()
        finally:
            search.close()

    def answer(self, query: Query) -> list[Evaluation]:
        """Evaluations in the order of the query's sets. Raises BudgetExhausted before any work."""
        prompts = self._all if query.prompts == "all" else query.prompts
        if any(not 0 <= prompt < len(self._all) for prompt in prompts):
            raise ValueError(f"the prompts are numbered 0 to {len(self._all) - 1}, got {prompts}")
        self._planned = query.planned or self._planned
        wanted = query.want - {"cost"}
        sets = tuple(dict.fromkeys(query.skip_sets))
        new = self.meter.charge(sets, wanted, prompts)
        for skip in sets:
            self._notice(skip)
        self._do([job for skip in sets for job in self._table.missing(skip, wanted, prompts)], new)
        fields = [name for name in PER_PROMPT if name in wanted]
        self._asked.update((skip, name, one) for skip in sets for name in fields for one in prompts)
        if "cost" in query.want:
            self._time(sets)
        answers = {skip: self._table.get(skip, wanted, prompts) for skip in sets}
        if "cost" in query.want:
            answers = {skip: replace(one, cost=self._costs[skip]) for skip, one in answers.items()}
        return [answers[skip] for skip in query.skip_sets]

    def completed(self, score: Score) -> Score:
        """The score with every figure that the budget lets us have."""
        want: list[Want] = ["accept", "metric", "cost"]
        if score.loss is not None:
            want.append("loss")
        try:
            (evaluation,) = self.answer(Query([score.skip], want))
        except BudgetExhausted:
            return score
        return evaluation.score()

    def spent(self) -> Spent | None:
        """What everything took that was asked for; None where an old ledger does not say."""
        answers = self._table.seconds.of(self._asked)
        if answers is None or not self._timing_seconds:
            return answers
        machines = {*answers.machines, self._machine} - {""}
        return Spent(answers.seconds + self._timing_seconds, tuple(sorted(machines)))

    def _remember(self, answers: Sequence[Evaluation]) -> None:
        self.trace += [
            TraceEntry(self._batch, len(one.prompts), one.score()) for one in dict.fromkeys(answers)
        ]
        self._batch += 1

    def _do(self, jobs: Sequence[Job], new: frozenset[SkipSet]) -> None:
        """Have the executor do these jobs; every answer goes into the table as it comes."""
        waiting = Counter({job.skip: 0 for job in jobs})
        for job in jobs:
            waiting[job.skip] += len(job.prompts)
        self._report(waiting, new)
        batch = self._table.seconds.next_batch()
        for evaluation, seconds in clocked(self._executor, jobs, self._clock):
            self._space.check(evaluation)
            self._keep(evaluation, Taken(seconds, batch, self._machine))
            self._notice(evaluation.skip)
            waiting[evaluation.skip] -= len(evaluation.prompts)
            self._report(+waiting, new)
        for job in jobs:
            if left := self._table.missing(job.skip, job.want, job.prompts):
                raise ValueError(
                    f"the executor gave no {', '.join(sorted(left[0].want))} of {job.skip} for "
                    f"prompts {list(left[0].prompts)}"
                )
        self.meter.did(jobs)

    def _time(self, sets: Sequence[SkipSet]) -> None:
        """Costs of these sets: computed, or measured once in this run and never read back."""
        if self._rules.cost == "layers":
            self._costs.update({skip: self._space.layer_cost(skip) for skip in sets})
            return
        new = [skip for skip in sets if skip not in self._costs]
        timed = dict.fromkeys([self._space.dense, *new]) if new else ()
        jobs = [Job(skip, frozenset({"cost"}), ()) for skip in timed]
        for evaluation, seconds in clocked(self._executor, jobs, self._clock):
            self._timing_seconds += seconds
            cost = evaluation.cost
            if cost is None or not 0 < cost < math.inf:
                raise ValueError(f"the cost of {evaluation.skip} must be positive, got {cost}")
            self._keep(evaluation)
        for skip in new:
            if skip not in self._costs:
                raise ValueError(f"the executor gave no cost of {skip}")
        self.meter.did(jobs)

    def _keep(self, evaluation: Evaluation, taken: Taken | None = None) -> None:
        for prompt, value in zip(evaluation.prompts, evaluation.metric or (), strict=False):
            if self._scored.setdefault(prompt, value is not None) != (value is not None):
                raise ValueError(
                    f"prompt {prompt} has a metric for one set and none for another, one of them "
                    f"{evaluation.skip}; a row without a reference has none for every set"
                )
        if self._ledger is not None:
            self._ledger.append(evaluation, self._id, taken)
        else:
            self._table.add(evaluation, taken)
        if evaluation.cost is not None:
            self._costs.setdefault(evaluation.skip, evaluation.cost)

    def _notice(self, skip: SkipSet) -> None:
        """Renew the best set so far once a set is known on all prompts."""
        if skip in self._full:
            return
        score = self._table.known(skip, self._all).score()
        if score.accept is None or (self._rules.use_metric and score.metric is None):
            return
        self._full[skip] = replace(score, cost=self._space.layer_cost(skip))
        dense = self._full.get(self._space.dense)
        if dense is not None:
            self._best = choose("min_cost", self._rules, dense, self._full.values()) or dense

    def _report(self, waiting: Counter[SkipSet], new: frozenset[SkipSet]) -> None:
        if self._progress is None:
            return
        counts = self.meter.counts
        # A prompt may be decoded once more for another field, which is no step back.
        self._prompts_done = max(self._prompts_done, counts.prompt_evaluations - waiting.total())
        now = Progress(
            done=counts.evaluations - len(waiting.keys() & new),
            planned=self._planned,
            prompts_done=self._prompts_done,
            best=self._best,
        )
        if now != self._told:
            self._told = now
            self._progress(now)

    def _fallback(self) -> SearchResult:
        """The lowest cost among the feasible sets measured in full before the budget ended."""
        dense = self._full.get(self._space.dense, Score(self._space.dense))
        reason = "the best feasible set of those that the budget allowed"
        if self._best is None or not self._best.skip:
            reason = explain("min_cost", self._rules, dense, [*self._full.values()][1:])
        return SearchResult(self._best or dense, reason=reason, dense=dense)
