"""What every strategy owes, those of other packages too.

May import: pytest and tss_bench.
"""

from __future__ import annotations

import inspect
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.search.surface import Killed, Recorder, Surface
from tss_bench.search import (
    Budget,
    Evaluation,
    Fingerprint,
    Job,
    Ledger,
    Query,
    Rules,
    SearchResult,
    SearchSpace,
    all_strategies,
    get,
    run_search,
)
from tss_bench.search.registry import BUILT_IN
from tss_bench.types import SkipSet

NAMES = [*BUILT_IN, "last_layers"]
SURFACES = [
    Surface(seed, num_layers=7, num_prompts=5, wild=wild, accuracy=accuracy)
    for seed, wild, accuracy in [(1, False, False), (2, False, True), (3, True, False)]
]
FINGERPRINT = Fingerprint("model", "drafter", "data", "strict", "verify", "1")

pytestmark = pytest.mark.usefixtures("plugin")
each_strategy = pytest.mark.parametrize("name", NAMES)
each_surface = pytest.mark.parametrize("surface", SURFACES, ids=lambda one: f"seed{one.seed}")


def space_of(surface: Surface, **settings: Any) -> SearchSpace:
    return surface.space(**{"depth": 3, "early": 1, "budget": Budget(10**6), **settings})


def search(name: str, executor: Any, space: SearchSpace, **settings: Any) -> SearchResult:
    return run_search(get(name), space, Rules(eps=0.2), executor, **settings)


def test_the_suite_covers_every_registered_strategy() -> None:
    assert sorted(NAMES) == sorted(strategy.name for strategy in all_strategies())


@each_strategy
def test_a_strategy_is_documented(name: str) -> None:
    strategy = get(name)
    assert strategy.summary.endswith(".")
    for option in strategy.options:
        assert option.kind
        # The source is read and not only the doc, which need not name an obvious option.
        assert option.name in inspect.getsource(strategy.function)


@each_surface
@each_strategy
def test_nothing_is_evaluated_twice(name: str, surface: Surface) -> None:
    recorder = Recorder(surface)
    result = search(name, recorder, space_of(surface))
    assert max(recorder.done.values()) == 1
    assert result.counts.evaluations == len(recorder.sets)
    losses = sum(want == "loss" for _, _, want in recorder.done)
    assert result.counts.prompt_evaluations == len(recorder.decoded) + losses


@each_surface
@each_strategy
def test_the_result_is_whole_and_its_figures_are_the_true_ones(name: str, surface: Surface) -> None:
    space = space_of(surface)
    result = search(name, Recorder(surface), space)
    assert (result.strategy, result.stopped) == (name, None)
    assert result.reason
    for score in (result.best, result.dense, *result.pareto):
        assert score is not None
        true = surface.full(score.skip).score()
        assert (score.accept, score.metric) == (true.accept, true.metric)
        assert score.cost == space.layer_cost(score.skip)
    assert result.best.skip.layers <= set(space.candidates)
    assert len(result.best.skip) <= space.depth
    assert {entry.score.skip for entry in result.trace} >= {result.best.skip}
    if result.kept_dense:
        assert result.reason.startswith("dense kept")


@each_strategy
def test_the_result_is_the_same_each_time(name: str) -> None:
    surface = SURFACES[0]
    first, second = (search(name, Recorder(surface), space_of(surface)) for _ in range(2))
    assert first == second


@each_surface
@each_strategy
@pytest.mark.parametrize("kind", ["evaluations", "prompt_evaluations"])
def test_no_budget_is_exceeded(name: str, surface: Surface, kind: str) -> None:
    whole = search(name, Recorder(surface), space_of(surface)).counts
    for limit in range(1, getattr(whole, kind) + 1, 4):
        recorder = Recorder(surface)
        try:
            result = search(name, recorder, space_of(surface, budget=Budget(**{kind: limit})))
        except ValueError as error:
            assert "the budget is below the first step" in str(error)  # noqa: PT017
            assert not recorder.jobs
            continue
        assert getattr(result.counts, kind) <= limit
        assert len(recorder.sets) <= (limit if kind == "evaluations" else whole.evaluations)
        if kind == "prompt_evaluations":
            assert sum(len(job.prompts) for job in recorder.jobs if "loss" in job.want) <= limit
            assert len(recorder.decoded) <= limit


@each_strategy
def test_a_search_killed_at_any_point_and_resumed_is_like_an_uninterrupted_one(
    name: str, tmp_path: Path
) -> None:
    surface = SURFACES[0]
    space = space_of(surface)
    whole = Recorder(surface)
    expected = search(name, whole, space)
    for point in range(0, len(whole.jobs), 3):
        path = tmp_path / f"{point}.jsonl"
        first, second = Recorder(surface, dies_at=point), Recorder(surface)
        with pytest.raises(Killed), Ledger(path, FINGERPRINT, surface.num_layers) as ledger:
            search(name, first, space, ledger=ledger)
        with Ledger(path, FINGERPRINT, surface.num_layers) as ledger:
            resumed = search(name, second, space, ledger=ledger)
            held = (len(ledger.table.sets()), ledger.table.pairs())
        assert first.done + second.done == whole.done
        assert (resumed.best, resumed.pareto, resumed.trace) == (
            expected.best,
            expected.pareto,
            expected.trace,
        )
        counts = resumed.counts
        assert (counts.evaluations, counts.prompt_evaluations) == held
        assert counts.evaluations == expected.counts.evaluations


@each_strategy
def test_the_count_told_is_the_count_in_the_ledger(name: str, tmp_path: Path) -> None:
    surface = SURFACES[0]
    path = tmp_path / "ledger.jsonl"
    with Ledger(path, FINGERPRINT, surface.num_layers) as ledger:
        result = search(name, Recorder(surface), space_of(surface), ledger=ledger)
    records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    sets = {tuple(record["skip"]) for record in records if "skip" in record}
    assert len(sets) == result.counts.evaluations


@each_strategy
def test_progress_never_runs_backwards_and_ends_at_the_counts(name: str) -> None:
    surface = SURFACES[0]
    seen: list[Any] = []
    result = search(name, Recorder(surface), space_of(surface), progress=seen.append)
    assert seen[0].done == 0
    for figure in ("done", "prompts_done"):
        values = [getattr(one, figure) for one in seen]
        assert values == sorted(values)
    assert seen[-1].done == result.counts.evaluations


@each_strategy
def test_a_strategy_asks_for_what_it_declares_and_only_within_the_space(name: str) -> None:
    """Drive the generator by hand: queries are the only thing that leaves it."""
    surface = SURFACES[0]
    space = space_of(surface, pool=frozenset({1, 3, 4, 6}))
    generator = get(name).function(space, Rules())
    answers: list[Evaluation] | None = None
    while True:
        try:
            query = next(generator) if answers is None else generator.send(answers)
        except StopIteration as stop:
            result = stop.value
            break
        assert isinstance(query, Query)
        for skip in query.skip_sets:
            assert skip.layers <= {1, 3, 4, 6}
        answers = [_answer(surface, space, skip, query) for skip in query.skip_sets]
    assert isinstance(result, SearchResult)


def _answer(surface: Surface, space: SearchSpace, skip: SkipSet, query: Query) -> Evaluation:
    prompts = tuple(range(space.num_prompts)) if query.prompts == "all" else query.prompts
    answer = surface.evaluate(Job(skip, query.want, prompts))
    return replace(answer, cost=space.layer_cost(skip)) if "cost" in query.want else answer
