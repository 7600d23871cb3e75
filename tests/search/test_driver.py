"""The driver: what reaches the executor, what the strategy sees, what stops a search.

May import: pytest and tss_bench.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.search.surface import Recorder, Surface
from tss_bench.search import (
    Budget,
    BudgetExhausted,
    Evaluation,
    Job,
    Progress,
    Query,
    Rules,
    Score,
    Search,
    SearchResult,
    SearchSpace,
    run_search,
    serial,
)
from tss_bench.types import SkipSet

SURFACE = Surface(5, num_layers=6, num_prompts=4)
SPACE = SURFACE.space()
DENSE, ONE, TWO = SPACE.dense, SPACE.skip([1]), SPACE.skip([2])


def asking(*queries: Query) -> tuple[Any, list[list[Evaluation]]]:
    """A strategy that asks these queries and keeps dense, and the list its answers go to."""
    answers: list[list[Evaluation]] = []

    def strategy(space: SearchSpace, rules: Rules) -> Search:
        for query in queries:
            answers.append((yield query))
        return SearchResult(Score(space.dense), reason="test")

    return strategy, answers


def run(strategy: Any, executor: Any, space: SearchSpace = SPACE, **settings: Any) -> SearchResult:
    return run_search(strategy, space, settings.pop("rules", Rules()), executor, **settings)


def test_answers_come_in_the_order_of_the_query_with_its_fields_only() -> None:
    strategy, answers = asking(Query([TWO, ONE, TWO], {"accept"}, prompts=[3, 1]))
    recorder = Recorder(SURFACE)
    run(strategy, lambda jobs: reversed([*recorder(jobs)]))
    assert [one.skip for one in answers[0]] == [TWO, ONE, TWO]
    assert answers[0][1] == Evaluation(
        ONE, (1, 3), accept=(SURFACE.accept(ONE, 1), SURFACE.accept(ONE, 3))
    )


def test_only_what_is_missing_reaches_the_executor() -> None:
    strategy, answers = asking(
        Query([ONE], {"accept"}, prompts=[0, 1]), Query([ONE, TWO], {"accept", "metric"})
    )
    recorder = Recorder(SURFACE)
    run(strategy, recorder)
    both = frozenset({"accept", "metric"})
    assert recorder.jobs[:4] == [
        Job(ONE, frozenset({"accept"}), (0, 1)),
        Job(ONE, frozenset({"metric"}), (0, 1)),
        Job(ONE, both, (2, 3)),
        Job(TWO, both, (0, 1, 2, 3)),
    ]
    full = SURFACE.full(ONE)
    assert answers[1][0] == Evaluation(ONE, full.prompts, full.accept, full.metric)


def test_fields_that_came_along_are_kept_and_not_shown() -> None:
    def generous(job: Job) -> Evaluation:
        jobs.append(job)
        return SURFACE.evaluate(replace(job, want=frozenset({"accept", "metric"})))

    jobs: list[Job] = []
    strategy, answers = asking(Query([ONE], {"accept"}), Query([ONE], {"metric"}))
    run(strategy, serial(generous))
    assert [job.skip for job in jobs] == [ONE, DENSE]
    assert answers[0][0].metric is None
    assert answers[1][0].metric == SURFACE.full(ONE).metric


def test_an_answer_may_come_in_pieces() -> None:
    def pieces(jobs: Sequence[Job]) -> Iterator[Evaluation]:
        for job in jobs:
            for prompt in reversed(job.prompts):
                yield SURFACE.evaluate(replace(job, prompts=(prompt,)))

    strategy, answers = asking(Query([ONE], {"metric"}))
    run(strategy, pieces)
    assert answers[0][0].metric == SURFACE.full(ONE).metric


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ([], r"gave no accept of \{1\} for prompts \[0, 2\]"),
        ([Evaluation(ONE, (0,), accept=((2, 1),))], r"gave no accept of \{1\} for prompts \[2\]"),
        ([Evaluation(ONE, (0, 2), accept=((7, 1), (2, 1)))], "rules out"),
        ([Evaluation(SkipSet.of([1], 9))], "is of 9 layers"),
    ],
)
def test_a_wrong_answer_is_refused(answer: list[Evaluation], message: str) -> None:
    strategy, _ = asking(Query([ONE], {"accept"}, prompts=[0, 2]))
    with pytest.raises(ValueError, match=message):
        run(strategy, lambda jobs: answer)


def test_a_row_has_a_reference_for_every_set_or_for_none() -> None:
    strategy, _ = asking(Query([ONE, TWO], {"metric"}, prompts=[1]))
    values = {ONE: 0.5, TWO: None, DENSE: 0.5}
    with pytest.raises(ValueError, match="prompt 1 has a metric for one set and none for another"):
        run(strategy, serial(lambda job: Evaluation(job.skip, (1,), metric=(values[job.skip],))))


def test_a_prompt_that_does_not_exist_is_refused() -> None:
    strategy, _ = asking(Query([ONE], prompts=[4]))
    with pytest.raises(ValueError, match="numbered 0 to 3"):
        run(strategy, Recorder(SURFACE))


def test_figures_of_best_and_dense_are_completed() -> None:
    strategy, _ = asking(Query([DENSE], {"loss"}))
    result = run(strategy, Recorder(SURFACE))
    full = SURFACE.full(DENSE).score()
    assert (result.best.accept, result.best.metric, result.best.cost) == (
        full.accept,
        full.metric,
        1.0,
    )
    # 4 losses and 4 decodings of one set
    assert (result.counts.evaluations, result.counts.prompt_evaluations) == (1, 8)
    tight = replace(SPACE, budget=Budget(prompt_evaluations=6))
    assert run(strategy, Recorder(SURFACE), tight).best.accept is None


def test_layer_costs_need_no_executor_and_measured_ones_are_taken_once() -> None:
    query = Query([ONE, TWO], {"cost"})
    strategy, answers = asking(Query([DENSE]), query, query, Query([ONE], {"cost"}))
    recorder = Recorder(SURFACE)
    run(strategy, recorder)
    assert [one.cost for one in answers[1]] == [5 / 6, 5 / 6]
    assert all("cost" not in job.want for job in recorder.jobs)

    recorder = Recorder(SURFACE)
    result = run(strategy, recorder, rules=Rules(cost="measured"))
    timed = [job.skip for job in recorder.jobs if "cost" in job.want]
    # The dense set is timed beside the others, and known when the result is completed.
    assert timed == [DENSE, ONE, TWO]
    assert answers[-1][0].cost == 9.0
    assert result.best.cost == 10.0
    assert result.counts.timings == 3


def test_a_cost_that_is_no_time_is_refused() -> None:
    strategy, _ = asking(Query([ONE], {"cost"}))
    with pytest.raises(ValueError, match=r"the cost of \{\} must be positive, got 0"):
        run(
            strategy, serial(lambda job: Evaluation(job.skip, cost=0)), rules=Rules(cost="measured")
        )
    with pytest.raises(ValueError, match=r"gave no cost of \{1\}"):
        run(strategy, lambda jobs: [], rules=Rules(cost="measured"))


def test_a_query_above_the_budget_is_thrown_back_with_nothing_done() -> None:
    caught: list[str] = []

    def strategy(space: SearchSpace, rules: Rules) -> Search:
        yield Query([DENSE])
        try:
            yield Query([ONE, TWO])
        except BudgetExhausted as error:
            caught.append(str(error))
        (last,) = yield Query([ONE])
        return SearchResult(last.score(), reason="test")

    recorder = Recorder(SURFACE)
    result = run(strategy, recorder, replace(SPACE, budget=Budget(evaluations=2)))
    assert caught == ["the next step takes 2 evaluations, 1 of 2 are left"]
    assert result.stopped == caught[0]
    assert recorder.sets == {DENSE, ONE}


def test_a_strategy_that_ignores_the_budget_gets_the_best_feasible_set() -> None:
    def strategy(space: SearchSpace, rules: Rules) -> Search:
        yield Query([space.dense, *space.singles()])
        yield Query(space.subsets(space.candidates, 2))
        raise AssertionError("not reached")

    space = replace(SPACE, budget=Budget(evaluations=8))
    result = run(strategy, Recorder(SURFACE), space, rules=Rules(eps=0.9))
    scores = [SURFACE.full(skip).score() for skip in SPACE.singles()]
    assert result.best.accept == max(score.accept or 0 for score in scores)
    assert result.stopped == "the next step takes 15 evaluations, 1 of 8 are left"
    kept = run(strategy, Recorder(SURFACE), space, rules=Rules(eps=-1.0))
    assert kept.kept_dense
    assert "of 6 sets none is feasible" in kept.reason


def test_a_budget_below_the_first_step_is_one_clear_error() -> None:
    strategy, _ = asking(Query([DENSE, ONE]))
    with pytest.raises(ValueError, match=r"below the first step .* 2 evaluations, 1 of 1 are left"):
        run(strategy, Recorder(SURFACE), replace(SPACE, budget=Budget(evaluations=1)))


def test_progress_tells_the_plan_before_anything_is_done() -> None:
    seen: list[Progress] = []
    strategy, _ = asking(Query([DENSE, ONE], planned=7))
    run(strategy, Recorder(SURFACE), progress=seen.append, rules=Rules(eps=0.9))
    assert seen[0] == Progress(0, 7, 0, None)
    assert [one.done for one in seen] == [0, 1, 2]
    assert seen[1].best is not None
    assert seen[1].best.skip == DENSE
    assert seen[-1].best is not None
    assert seen[-1].best.skip == ONE


def test_the_trace_has_each_answer_once() -> None:
    strategy, _ = asking(Query([DENSE, ONE, ONE], {"metric"}), Query([ONE], {"accept"}, [2]))
    trace = run(strategy, Recorder(SURFACE)).trace
    assert [(entry.batch, entry.prompts, entry.score.skip) for entry in trace] == [
        (0, 4, DENSE),
        (0, 4, ONE),
        (1, 1, ONE),
    ]
    above, below = SURFACE.accept(ONE, 2)
    assert trace[2].score == Score(ONE, accept=above / below)


def test_what_is_no_result_is_refused() -> None:
    def strategy(space: SearchSpace, rules: Rules) -> Any:
        yield Query([DENSE])
        return DENSE

    with pytest.raises(TypeError, match="must return a SearchResult, got SkipSet"):
        run(strategy, Recorder(SURFACE))
