"""Milliseconds a verification step, from answers of chosen times.

May import: pytest, model_adapters, tss_bench.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from model_adapters.answering import Job
from tss_bench.domains import SkipChoice
from tss_bench.search import Evaluation
from tss_bench.types import GeneratedText, GenerationStats, SkipSet
from tss_bench.verify_timing import GROUP, ROWS, VerifyTimer

LAYERS = 20
DENSE = SkipSet.dense(LAYERS)
Turn = tuple[int, float]
"""Steps of a turn, and the seconds that they take."""

DENSE_TURNS: tuple[tuple[Turn, ...], ...] = (
    ((0, 0.0),),
    ((1, 0.012), (1, 0.008)),
    ((3, 0.040),),
    ((0, 0.0),),
    ((1, 0.010),),
    ((4, 0.030),),
    ((9, 9.0),),
)
"""Rows 1, 2, 4 and 5 are the first that take steps: 0.1 s in 10 steps, 10 ms a step."""

SPARSE_TURNS: tuple[tuple[Turn, ...], ...] = (
    ((9, 9.0),),
    ((2, 0.010), (2, 0.010)),
    ((0, 0.0),),
    ((9, 9.0),),
    ((1, 0.005),),
    ((5, 0.025),),
    ((9, 9.0),),
)
"""0.05 s in 10 steps on those rows, none of them in row 2: 5 ms a step."""


def layer(*layers: int) -> SkipSet:
    return SkipSet.of(layers, LAYERS)


def stats(steps: int, seconds: float) -> GenerationStats:
    return GenerationStats(
        prompt_tokens=5,
        new_tokens=1 + steps,
        verify_steps=steps,
        drafted=0,
        accepted=0,
        accept_lengths=(1,) * steps,
        prefill_s=7.0,
        draft_s=7.0,
        verify_s=seconds,
        wall_s=14.0 + seconds,
        stop="length",
    )


class Machine:
    """An adapter whose answers take the seconds of a table times `pace`.

    `pace` has one factor a run that has begun; the first is that of before any. Skip sets without
    a table of their own take `SPARSE_TURNS`.
    """

    def __init__(
        self, *pace: float, turns: Mapping[SkipSet, Sequence[Sequence[Turn]]] | None = None
    ) -> None:
        self.info = SimpleNamespace(num_layers=LAYERS)
        self.calls: list[tuple[int, SkipSet, int]] = []
        self._pace, self._runs = pace, 0
        self._turns = {DENSE: DENSE_TURNS, **(turns or {})}

    def begin_run(self, jobs: Sequence[Job]) -> None:
        self._runs += 1

    def answer(self, job: Job) -> GeneratedText:
        skip, row = job.choice.skip, job.seed
        self.calls.append((self._runs, skip, row))
        pace = self._pace[self._runs]
        turns = self._turns.get(skip, SPARSE_TURNS)[row]
        return GeneratedText("x", tuple(stats(steps, pace * seconds) for steps, seconds in turns))


def timer(machine: Machine) -> VerifyTimer:
    choice = SkipChoice("specbench_qa", "qa", DENSE, "where a search begins")
    nothing = cast(Any, None)
    jobs = [Job(nothing, nothing, choice, "Who?", row) for row in range(len(DENSE_TURNS))]
    return VerifyTimer(cast(Any, machine), jobs)


def figures(evaluations: Sequence[Evaluation]) -> list[tuple[SkipSet, float | None]]:
    assert all(one == Evaluation(one.skip, cost=one.cost) for one in evaluations)
    return [(one.skip, one.cost) for one in evaluations]


def test_a_cost_is_pooled_over_the_first_rows_that_take_steps() -> None:
    machine = Machine(1000.0, 1.0)
    found = figures([*timer(machine)([DENSE, layer(1)])])
    assert found == [(DENSE, pytest.approx(10.0)), (layer(1), pytest.approx(5.0))]
    # Before the clock counts: dense until four rows took steps, then one warm-up each.
    assert [call[1:] for call in machine.calls if call[0] == 0] == [
        *((DENSE, row) for row in range(6)),
        (DENSE, 1),
        (layer(1), 1),
    ]
    timed = [call[1:] for call in machine.calls if call[0] == 1]
    assert [row for _, row in timed] == [1, 1, 2, 2, 4, 4, 5, 5]
    assert [skip for skip, _ in timed[:4]] == [DENSE, layer(1), layer(1), DENSE]
    assert len({row for _, row in timed}) == ROWS


def test_a_machine_that_slows_down_between_groups_changes_no_cost() -> None:
    machine = Machine(1000.0, 1.0, 3.0, 0.5)
    timing = timer(machine)
    sets = [layer(i) for i in range(GROUP + 1)]
    found = figures([*timing([DENSE, *sets])])
    assert found == [(DENSE, pytest.approx(10.0)), *((skip, pytest.approx(5.0)) for skip in sets)]
    # Seven sets are three and four, the dense one in both.
    assert {skip for run, skip, _ in machine.calls if run == 2} == {DENSE, *sets[3:]}
    # A later call, twice as fast as the first, has the same reference.
    later = figures([*timing([DENSE, layer(9), layer(9)])])
    assert later == [(DENSE, pytest.approx(10.0)), (layer(9), pytest.approx(5.0))]


def test_a_set_that_is_really_slower_keeps_its_ratio_to_dense() -> None:
    slow = tuple(tuple((steps, 1.5 * s) for steps, s in turns) for turns in DENSE_TURNS)
    timing = timer(Machine(1.0, 1.0, 4.0, turns={layer(2): slow}))
    assert figures([*timing([DENSE])]) == [(DENSE, pytest.approx(10.0))]
    assert figures([*timing([layer(2)])]) == [(layer(2), pytest.approx(15.0))]


def test_a_group_is_given_as_soon_as_it_is_timed() -> None:
    machine = Machine(1.0, *[1.0] * 3)
    found = timer(machine)([layer(i) for i in range(2 * GROUP + 1)])
    first = [next(found) for _ in range(4)]
    assert [one.skip for one in first] == [layer(i) for i in range(4)]
    assert max(run for run, _, _ in machine.calls) == 1
    assert len([*found]) == 2 * GROUP + 1 - 4
    assert max(run for run, _, _ in machine.calls) == 3


def test_no_sets_take_no_answers() -> None:
    machine = Machine(1.0)
    assert [*timer(machine)([])] == []
    assert machine.calls == []


def test_what_takes_no_step_is_refused_by_name() -> None:
    never = tuple(((0, 0.0),) for _ in DENSE_TURNS)
    with pytest.raises(ValueError, match=r"skip set \{3\} takes no verification step on the 4"):
        list(timer(Machine(1.0, 1.0, turns={layer(3): never}))([layer(3)]))
    with pytest.raises(ValueError, match="no calibration row takes a verification step"):
        list(timer(Machine(1.0, turns={DENSE: never}))([layer(3)]))
