"""The search space: barriers, counts, budgets, limits.

May import: pytest and tss_bench.
"""

from __future__ import annotations

from typing import Any

import pytest

from tss_bench.search import Budget, Evaluation, Limits, SearchSpace
from tss_bench.types import SkipSet


def test_barriers_and_pool_bound_the_candidates() -> None:
    assert SearchSpace(6, 1, early=2, late=1).candidates == (2, 3, 4)
    assert SearchSpace(6, 1, early=2, pool=frozenset({2, 5})).candidates == (2, 5)


def test_subsets_come_in_lexicographic_order() -> None:
    space = SearchSpace(5, 1)
    assert [str(skip) for skip in space.subsets([4, 0, 2], 2)] == ["{0,2}", "{0,4}", "{2,4}"]
    assert [str(skip) for skip in space.singles()] == ["{0}", "{1}", "{2}", "{3}", "{4}"]


def test_the_count_is_dense_singles_and_subsets_of_the_pool() -> None:
    # 1 + 30 + C(30,2) = 466; with a pool of 4 at depth 3: 1 + 30 + 6 + 4.
    assert SearchSpace(30, 16).count() == 466
    assert SearchSpace(30, 16, depth=3).count(pool_size=4) == 41


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_prompts": 0}, "needs calibration prompts"),
        ({"early": 3, "late": 2}, "leave no layer of 5"),
        ({"early": -1}, "both are at least 0"),
        ({"pool": frozenset({7})}, r"the pool must name layers from 0 to 4, got \[7\]"),
        ({"pool": frozenset()}, "got none"),
        ({"depth": 0}, "between 1 and the 5 candidate layers, got 0"),
        ({"depth": 3, "early": 3}, "between 1 and the 2 candidate layers, got 3"),
    ],
)
def test_a_space_with_nothing_to_search_is_refused(settings: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SearchSpace(**{"num_layers": 5, "num_prompts": 1, **settings})


def test_budgets_and_limits_below_one_are_refused() -> None:
    with pytest.raises(ValueError, match="the budget of prompt_evaluations must be at least 1"):
        Budget(prompt_evaluations=0)
    with pytest.raises(ValueError, match="max_accept must be at least 1"):
        Limits(max_accept=0)


def test_a_budget_is_mandatory_above_depth_two() -> None:
    SearchSpace(30, 16).require_budget("tss_bfs")
    SearchSpace(30, 16, depth=3, budget=Budget(evaluations=99)).require_budget("tss_bfs")
    # 466 + C(30,3) = 466 + 4060
    with pytest.raises(ValueError, match="tss_bfs to depth 3 may evaluate 4526 skip sets on 16"):
        SearchSpace(30, 16, depth=3).require_budget("tss_bfs")


def test_layer_cost_is_the_share_of_active_layers() -> None:
    assert SearchSpace(8, 1).layer_cost(SkipSet.of([1, 2], 8)) == 0.75


@pytest.mark.parametrize(
    ("pair", "allowed"),
    [
        ((0, 0), True),
        ((3, 1), True),
        ((4, 1), False),  # more than max_accept ids in a step
        ((1, 2), False),  # a step without an id
        ((1, 0), False),  # an id without a step
        ((10, 4), True),
        ((11, 4), False),  # more than max_emitted
    ],
)
def test_limits_know_which_pairs_can_be(pair: tuple[int, int], allowed: bool) -> None:
    assert Limits(max_accept=3, max_emitted=10).allows(pair) is allowed


def test_without_limits_only_impossible_pairs_are_refused() -> None:
    assert Limits().allows((1000, 1))
    assert not Limits().allows((1, 2))


@pytest.mark.parametrize(
    ("evaluation", "message"),
    [
        (Evaluation(SkipSet.dense(5)), "is of 5 layers, the space of 4"),
        (Evaluation(SkipSet.dense(4), (2,), metric=(0.5,)), r"prompts \[2\] of {} are none of"),
        (Evaluation(SkipSet.dense(4), (1,), metric=(23.0,)), "on prompt 1 must lie in 0 … 1"),
        (Evaluation(SkipSet.dense(4), (1,), accept=((9, 1),)), r"on prompt 1 is \(9, 1\)"),
    ],
)
def test_an_evaluation_of_another_space_is_refused(evaluation: Evaluation, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SearchSpace(4, 2, limits=Limits(max_accept=3)).check(evaluation)
