"""Bounds of a sum of which some terms are known.

May import: pytest, hypothesis, scipy and tss_bench.
"""

from __future__ import annotations

import itertools
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from tss_bench.search.bounds import accept_term_range, bounds_of_sum, t_quantile


def test_the_exact_bound_adds_the_ranges_to_what_is_known() -> None:
    assert bounds_of_sum([1.0, -2.0], [(-1.0, 3.0), (0.0, 0.5)]) == (-2.0, 2.5)
    assert bounds_of_sum([1.0, 2.0], []) == (3.0, 3.0)
    assert bounds_of_sum([], [(-math.inf, 1.0)]) == (-math.inf, 1.0)


@pytest.mark.parametrize("bound", ["hoeffding", "student"])
def test_a_likely_bound_is_inside_the_exact_one(bound: str) -> None:
    seen, unseen = [0.1, 0.2, 0.15, 0.2], [(0.0, 1.0)] * 12
    low, high = bounds_of_sum(seen, unseen, bound, 0.05)  # type: ignore[arg-type]
    least, most = bounds_of_sum(seen, unseen)
    assert least <= low <= high <= most


def test_equal_terms_settle_nothing_for_the_t_interval() -> None:
    unseen = [(0.0, 1.0)] * 4
    assert bounds_of_sum([0.5] * 6, unseen, "student") == bounds_of_sum([0.5] * 6, unseen)
    assert bounds_of_sum([0.1, 0.9], unseen, "student") == bounds_of_sum([0.1, 0.9], unseen)


def test_the_t_interval_is_the_one_of_the_textbook() -> None:
    seen, unseen = [1.0, 2.0, 3.0, 2.0], [(0.0, 9.0)] * 4
    low, high = bounds_of_sum(seen, unseen, "student", 0.05)
    # mean 2, s = sqrt(2/3), standard error s/2 * sqrt(1 - 4/8), 8 terms in all
    half = 8 * stats.t.ppf(0.95, 3) * math.sqrt(2 / 3) / 2 * math.sqrt(0.5)
    assert (low, high) == (pytest.approx(16 - half), pytest.approx(16 + half))


def test_the_t_interval_follows_known_sizes() -> None:
    # Terms that are exactly proportional to their sizes leave no doubt but rounding.
    sizes = [1.0, 2.0, 5.0, 3.0, 4.0]
    assert bounds_of_sum([2.0, 4.0, 10.1], [(0.0, 99.0)] * 2, "student", 0.05, sizes) == (
        pytest.approx(30, abs=0.5),
        pytest.approx(30, abs=0.9),
    )


def test_hoeffding_holds_in_nearly_every_sample() -> None:
    source = random.Random(1)
    terms = [float(i % 3 == 0) for i in range(200)]
    missed = 0
    for _ in range(200):
        source.shuffle(terms)
        low, high = bounds_of_sum(terms[:100], [(0.0, 1.0)] * 100, "hoeffding", 0.05)
        assert high - low < 100
        missed += not low <= sum(terms) <= high
    assert missed <= 20


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 5, 10, 31])
def test_t_quantiles_are_those_of_scipy(freedom: int) -> None:
    for probability in (0.6, 0.9, 0.95, 0.99, 0.999):
        expected = stats.t.ppf(probability, freedom)
        assert t_quantile(probability, freedom) == pytest.approx(expected, rel=1e-9)


@given(st.integers(1, 7), st.integers(1, 12), st.floats(0.5, 8))
def test_the_accept_range_is_the_one_of_all_pairs_there_can_be(
    max_accept: int, max_emitted: int, ratio: float
) -> None:
    terms = [0.0] + [
        emitted - ratio * steps
        for steps, emitted in itertools.product(range(1, max_emitted + 1), repeat=2)
        if steps <= emitted <= max_accept * steps
    ]
    low, high = accept_term_range(ratio, max_accept, max_emitted)
    assert low == pytest.approx(min(terms))
    assert high == pytest.approx(max(terms))


def test_without_limits_the_accept_range_is_open() -> None:
    assert accept_term_range(2.0, None, None) == (-math.inf, math.inf)
    assert accept_term_range(2.0, 2, None) == (-math.inf, 0.0)
    # One step of ten ids is the best there can be.
    assert accept_term_range(2.0, None, 10) == (-10.0, 8.0)
