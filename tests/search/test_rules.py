"""Floors, pool, feasibility, Pareto set and final choices, by hand calculation.

May import: pytest, hypothesis and tss_bench.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tss_bench.search import Rules, Score, choose, min_cost, pareto_front, triple_win
from tss_bench.search.rules import dominates, explain
from tss_bench.types import SkipSet

LAYERS = 10
DENSE = Score(SkipSet.dense(LAYERS), accept=2.0, metric=0.4, cost=1.0)


def score(*layers: int, accept: float | None, metric: float | None, cost: float = 0.9) -> Score:
    return Score(SkipSet.of(layers, LAYERS), accept, metric, cost)


def test_relative_floors_are_shares_of_the_dense_value() -> None:
    assert Rules().floor(2.0, 0.05) == pytest.approx(1.9)
    assert Rules(eps=-0.1).floor(2.0, -0.1) == pytest.approx(2.2)


def test_absolute_floors_and_a_dense_value_of_zero_are_differences() -> None:
    assert Rules(tolerance="absolute").floor(2.0, 0.05) == pytest.approx(1.95)
    assert Rules().floor(0.0, 0.05) == -0.05


@pytest.mark.parametrize("value", [1.5, -1.5, float("nan")])
def test_tolerances_out_of_range_are_refused(value: float) -> None:
    with pytest.raises(ValueError, match="tau must lie between -1 and 1"):
        Rules(tau=value)


@pytest.mark.parametrize(
    ("accept", "metric", "pool", "feasible"),
    [
        (1.9, 0.38, True, True),  # on both floors
        (1.89, 0.38, True, False),
        (1.9, 0.37, True, False),
        (1.89, 0.37, False, False),
        (None, 0.4, True, False),
        (None, 0.1, False, False),
    ],
)
def test_the_pool_takes_either_and_feasibility_both(
    accept: float | None, metric: float, pool: bool, feasible: bool
) -> None:
    tried = score(3, accept=accept, metric=metric)
    assert Rules().in_pool(DENSE, tried) is pool
    assert Rules().feasible(DENSE, tried) is feasible


def test_a_value_on_the_floor_passes_in_spite_of_rounding() -> None:
    dense = Score(SkipSet.dense(LAYERS), accept=3.0, metric=0.7)
    # 0.9 * 0.7 is 0.63 only up to rounding.
    assert Rules(eps=0.1).feasible(dense, score(1, accept=2.7, metric=0.63))


def test_tau_and_eps_are_separate() -> None:
    rules = Rules(eps=0.5, tau=0.0)
    tried = score(3, accept=1.5, metric=0.3)
    assert rules.feasible(DENSE, tried)
    assert not rules.in_pool(DENSE, tried)


def test_without_metric_acceptance_alone_decides() -> None:
    rules = Rules(use_metric=False)
    assert rules.feasible(DENSE, score(3, accept=1.9, metric=None))
    assert not rules.in_pool(DENSE, score(3, accept=1.8, metric=0.9))


def test_a_dense_target_without_figures_is_refused() -> None:
    with pytest.raises(ValueError, match="no calibration prompt takes a verification step"):
        Rules().check_dense(Score(DENSE.skip, None, 0.5))
    with pytest.raises(ValueError, match="no calibration row has a reference"):
        Rules().check_dense(Score(DENSE.skip, 2.0, None))
    Rules(use_metric=False).check_dense(Score(DENSE.skip, 2.0, None))


def test_min_cost_breaks_ties_by_accept_then_metric_then_layers() -> None:
    cheap = score(8, 9, accept=1.0, metric=0.1, cost=0.8)
    first = score(1, accept=2.0, metric=0.5)
    assert min_cost([first, cheap]) == cheap
    assert min_cost([first, score(0, accept=1.9, metric=0.9)]) == first
    assert min_cost([first, score(2, accept=2.0, metric=0.6)]).skip == SkipSet.of([2], LAYERS)  # type: ignore[union-attr]
    # {1} comes before {1,2} and {2}, as tuples do.
    assert min_cost([score(2, accept=2.0, metric=0.5), first]) == first
    assert min_cost([score(1, 2, accept=2.0, metric=0.5), first]) == first
    assert min_cost([]) is None


def test_a_set_that_was_timed_no_faster_than_dense_is_not_chosen() -> None:
    timed = Score(DENSE.skip, accept=2.0, metric=0.4, cost=26.4)
    slow, even = (score(n, accept=2.1, metric=0.5, cost=c) for n, c in ((1, 27.5), (2, 26.4)))
    assert choose("min_cost", Rules(), timed, [slow, even]) is None
    assert "none is faster" in explain("min_cost", Rules(), timed, [slow, even])
    fast = score(3, accept=1.95, metric=0.4, cost=26.3)
    assert choose("min_cost", Rules(), timed, [slow, fast, even]) == fast


def test_the_pareto_set_drops_what_is_nowhere_better() -> None:
    good = score(1, accept=2.0, metric=0.5)
    worse = score(2, accept=2.0, metric=0.4)
    cheaper = score(3, 4, accept=1.9, metric=0.4, cost=0.8)
    assert pareto_front([good, worse, cheaper]) == (cheaper, good)


SCORES = st.lists(
    st.builds(
        lambda layers, accept, metric, cost: Score(
            SkipSet.of(layers, LAYERS), accept / 4, metric / 4, cost / 4
        ),
        st.sets(st.integers(0, LAYERS - 1), min_size=1),
        st.integers(4, 12),
        st.integers(0, 4),
        st.integers(1, 4),
    ),
    max_size=12,
    unique_by=lambda score: score.skip,
)


@given(SCORES)
@settings(deadline=None)
def test_the_pareto_set_is_what_nothing_dominates_and_holds_the_choice(
    scores: list[Score],
) -> None:
    front = pareto_front(scores)
    assert set(front) == {
        one for one in scores if not any(dominates(other, one) for other in scores)
    }
    if scores:
        assert min_cost(scores) in front


@given(SCORES, st.randoms())
@settings(deadline=None)
def test_the_choice_does_not_depend_on_the_order(scores: list[Score], source: object) -> None:
    shuffled = list(scores)
    source.shuffle(shuffled)  # type: ignore[attr-defined]
    for choice in ("min_cost", "triple_win"):
        found = choose(choice, Rules(), DENSE, scores)  # type: ignore[arg-type]
        assert choose(choice, Rules(), DENSE, shuffled) == found  # type: ignore[arg-type]


def test_triple_win_needs_accept_metric_and_speed() -> None:
    rules = Rules()
    wins = score(1, accept=2.0, metric=0.38, cost=1.0)
    assert triple_win(rules, DENSE, [wins]) == wins
    assert triple_win(rules, DENSE, [score(1, accept=1.99, metric=0.4)]) is None
    assert triple_win(rules, DENSE, [score(1, accept=2.0, metric=0.37)]) is None
    assert triple_win(rules, DENSE, [score(1, accept=2.0, metric=0.4, cost=1.1)]) is None
    assert triple_win(rules, DENSE, [DENSE]) is None


def test_triple_win_ranks_large_sets_by_accept_then_size_then_speed() -> None:
    single = score(5, accept=4.0, metric=0.4)
    three = score(1, 2, 3, accept=2.5, metric=0.4, cost=0.7)
    four = score(1, 2, 3, 4, accept=2.4, metric=0.4, cost=0.6)
    # A set of three won, so that smaller ones are out; among the others A decides.
    assert triple_win(Rules(), DENSE, [single, three, four]) == three
    # Two is the largest: then all of two count.
    pair = score(1, 2, accept=2.1, metric=0.4, cost=0.8)
    assert triple_win(Rules(), DENSE, [single, pair]) == pair
    same = score(1, 2, 3, 4, accept=2.5, metric=0.4, cost=0.7)
    assert triple_win(Rules(), DENSE, [three, same]) == same
    faster = score(7, 8, 9, accept=2.5, metric=0.4, cost=0.65)
    assert triple_win(Rules(), DENSE, [three, faster]) == faster


def test_the_reason_counts_what_each_floor_lets_pass() -> None:
    tried = [score(1, accept=1.95, metric=0.1), score(2, accept=1.0, metric=0.4)]
    assert explain("min_cost", Rules(), DENSE, tried) == (
        "dense kept: of 2 sets none is feasible; A >= 1.9 holds for 1, M >= 0.38 holds for 1"
    )
    assert "A >= 2 holds for 0" in explain("triple_win", Rules(), DENSE, tried)
    assert "no set to try" in explain("min_cost", Rules(), DENSE, [])
    slow = score(1, accept=2.0, metric=0.4, cost=1.1)
    assert "1 of 1 sets keep A and M, but none is faster" in explain(
        "triple_win", Rules(), DENSE, [slow]
    )
