"""Bootstrap intervals and paired tests: by enumeration, by scipy, by normal theory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from tss_bench.scoring.statistics import (
    difference_interval,
    mean_interval,
    mean_ratio_interval,
    paired_p_value,
    paired_ratio_p_value,
    ratio_interval,
    wilson_interval,
)


def test_mean_interval_is_the_percentile_interval_of_scipy() -> None:
    values = np.random.default_rng(3).gamma(2.0, size=64)
    expected = stats.bootstrap(
        (values,), np.mean, n_resamples=20000, method="percentile", rng=np.random.default_rng(8)
    ).confidence_interval
    interval = mean_interval(values.tolist())
    assert interval == pytest.approx((expected.low, expected.high), abs=0.02)


def test_mean_interval_agrees_with_normal_theory() -> None:
    values = [0.0] * 200 + [1.0] * 200
    half = 1.96 * 0.5 / 20
    assert mean_interval(values) == pytest.approx((0.5 - half, 0.5 + half), abs=0.005)


def test_confidence_sets_the_width() -> None:
    values = [0.0] * 200 + [1.0] * 200
    half = 1.645 * 0.5 / 20
    interval = mean_interval(values, confidence=0.9)
    assert interval == pytest.approx((0.5 - half, 0.5 + half), abs=0.005)


def test_intervals_cover_the_truth() -> None:
    samples = np.random.default_rng(11).normal(size=(200, 40))
    intervals = [mean_interval(row.tolist(), resamples=500) for row in samples]
    covered = sum(1 for interval in intervals if interval and interval[0] <= 0 <= interval[1])
    assert 0.88 * 200 <= covered <= 0.99 * 200


def test_ratio_interval_by_enumeration() -> None:
    # Two rows: the resamples are 10/2, 90/45 and twice 100/47.
    assert ratio_interval([(10, 2), (90, 45)]) == pytest.approx((2.0, 5.0))


def test_ratio_interval_weighs_rows_by_their_denominator() -> None:
    # 400 rows of 1/1 and 400 of 9/3: delta method around 10/4.
    above = np.array([1.0] * 400 + [9.0] * 400)
    below = np.array([1.0] * 400 + [3.0] * 400)
    residual = above - 2.5 * below
    half = 1.96 * residual.std() / 2.0 / np.sqrt(800)
    interval = ratio_interval(list(zip(above, below, strict=True)))
    assert interval == pytest.approx((2.5 - half, 2.5 + half), abs=0.006)


def test_ratio_interval_of_constant_ratios_is_a_point() -> None:
    assert ratio_interval([(4, 4), (7, 7), (1, 1)]) == (1.0, 1.0)


def test_requests_without_a_step_leave_the_ratio_interval_unchanged() -> None:
    pairs = [(10.0, 2.0), (90.0, 45.0), (7.0, 3.0)]
    assert ratio_interval([(0, 0), *pairs, (0, 0)]) == ratio_interval(pairs)


def test_ratio_interval_drops_resamples_without_denominator() -> None:
    interval = ratio_interval([(1, 0), (4, 2)])
    assert interval == pytest.approx((2.0, 2.5))


@pytest.mark.parametrize("values", [[], [0.3]])
def test_fewer_than_two_rows_have_no_interval(values: list[float]) -> None:
    assert mean_interval(values) is None
    assert ratio_interval([(value, 1.0) for value in values]) is None


def test_no_denominator_has_no_interval() -> None:
    assert ratio_interval([(0, 0), (0, 0)]) is None
    assert ratio_interval([(1, 0), (2, 0)]) is None


def test_equal_values_have_a_point_interval() -> None:
    assert mean_interval([0.1] * 7) == (0.1, 0.1)


@pytest.mark.parametrize(("hits", "rows"), [(0, 12), (12, 12), (1, 1), (7, 16), (50, 64)])
def test_wilson_interval_is_scipy_s(hits: int, rows: int) -> None:
    found = wilson_interval(hits, rows)
    expected = stats.binomtest(hits, rows).proportion_ci(method="wilson")
    assert found == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_wilson_interval_of_nothing_and_of_nonsense() -> None:
    assert wilson_interval(0, 0) is None
    with pytest.raises(ValueError, match="hits must be 0 to 3, got 4"):
        wilson_interval(4, 3)


def test_p_value_by_enumeration() -> None:
    # d = 0.3; d* = k/10, k ~ Bin(10, 0.3); |d* - 0.3| >= 0.3 for k = 0 and k >= 6.
    first = [0.0] * 10
    second = [1.0] * 3 + [0.0] * 7
    binomial = stats.binom(10, 0.3)
    expected = binomial.pmf(0) + binomial.sf(5)
    assert expected == pytest.approx(0.0756, abs=0.0001)
    assert paired_p_value(first, second) == pytest.approx(expected, abs=0.01)
    assert paired_p_value(second, first) == pytest.approx(expected, abs=0.01)


@pytest.mark.parametrize("unit", [0.1, 0.3, 0.7])
def test_p_value_counts_ties_in_any_unit(unit: float) -> None:
    first = [0.0] * 10
    whole = paired_p_value(first, [1.0] * 3 + [0.0] * 7)
    assert paired_p_value(first, [unit] * 3 + [0.0] * 7) == whole


def test_p_value_of_a_plain_difference_is_small_and_of_noise_is_not() -> None:
    generator = np.random.default_rng(5)
    first = generator.normal(size=64)
    noise = generator.normal(size=64) * 0.1
    assert paired_p_value(first.tolist(), (first + 0.2 + noise).tolist()) == pytest.approx(1e-4)
    centred = noise - noise.mean() + 0.001
    p_value = paired_p_value(first.tolist(), (first + centred).tolist())
    assert p_value is not None
    assert p_value > 0.5


def test_p_value_agrees_with_the_paired_t_test() -> None:
    generator = np.random.default_rng(6)
    first = generator.normal(size=100)
    second = first + generator.normal(loc=0.15, size=100)
    expected = stats.ttest_rel(second, first).pvalue
    assert paired_p_value(first.tolist(), second.tolist()) == pytest.approx(expected, abs=0.03)


def test_p_value_rarely_rejects_where_nothing_differs() -> None:
    differences = np.random.default_rng(12).normal(size=(200, 40))
    zeros = [0.0] * 40
    small = sum(
        1
        for row in differences
        if (p_value := paired_p_value(zeros, row.tolist(), resamples=500)) is not None
        and p_value < 0.05
    )
    assert small <= 0.11 * 200


def test_p_value_of_degenerate_samples() -> None:
    assert paired_p_value([], []) is None
    assert paired_p_value([0.1], [0.9]) == 1.0
    assert paired_p_value([0.1, 0.2, 0.3], [0.1, 0.2, 0.3]) == 1.0
    assert paired_p_value([0.0, 0.0, 0.0], [1.0, 1.0, 1.0]) == 0.25
    assert paired_p_value([0.0] * 40, [1.0] * 40) == pytest.approx(1e-4)


def test_ratio_p_value_with_unit_denominators_is_the_p_value_of_the_mean() -> None:
    first = [0.0] * 10
    second = [1.0] * 3 + [0.0] * 7
    p_value = paired_ratio_p_value([(v, 1.0) for v in first], [(v, 1.0) for v in second])
    assert p_value == paired_p_value(first, second)


def test_ratio_p_value_pools_over_rows() -> None:
    # Row by row the second side wins 39 of 40, pooled both have the ratio 2.
    first = [(2.0, 1.0)] * 39 + [(202.0, 101.0)]
    second = [(3.0, 1.0)] * 39 + [(163.0, 101.0)]
    p_value = paired_ratio_p_value(first, second)
    assert p_value == 1.0


def test_ratio_p_value_of_degenerate_samples() -> None:
    pairs = [(10.0, 2.0), (90.0, 45.0), (7.0, 3.0)]
    assert paired_ratio_p_value([], []) is None
    assert paired_ratio_p_value([(0, 0)] * 3, pairs) is None
    assert paired_ratio_p_value(pairs, [(0, 0)] * 3) is None
    assert paired_ratio_p_value(pairs[:1], [(1.0, 1.0)]) == 1.0
    assert paired_ratio_p_value([*pairs[:1], (0, 0)], [(1.0, 1.0), (0, 0)]) == 1.0
    assert paired_ratio_p_value(pairs, pairs) == 1.0


@pytest.mark.parametrize("relative", [True, False])
def test_difference_interval_is_the_paired_percentile_interval_of_scipy(relative: bool) -> None:
    generator = np.random.default_rng(5)
    table = generator.integers(1, 9, size=(4, 64)).astype(float)

    def change(a1: Any, b1: Any, a2: Any, b2: Any, axis: int) -> Any:
        before, after = a1.sum(axis) / b1.sum(axis), a2.sum(axis) / b2.sum(axis)
        return after / before - 1 if relative else after - before

    expected = stats.bootstrap(
        tuple(table), change, paired=True, method="percentile", n_resamples=20000, rng=generator
    ).confidence_interval
    first, second = (list(zip(*half, strict=True)) for half in (table[:2], table[2:]))
    interval = difference_interval(first, second, relative=relative)
    assert interval == pytest.approx((expected.low, expected.high), abs=0.015)


def test_results_depend_on_the_seed_alone() -> None:
    values = np.random.default_rng(1).random(20).tolist()
    pairs = [(value, 1.0 + value) for value in values]
    other = [(value + 0.1, 1.0) for value in values]
    assert mean_interval(values) == mean_interval(values)
    assert mean_interval(values) != mean_interval(values, seed=1)
    assert ratio_interval(pairs) == ratio_interval(pairs)
    assert paired_ratio_p_value(pairs, other) == paired_ratio_p_value(pairs, other)


def test_bad_input_is_named() -> None:
    with pytest.raises(ValueError, match="row 1 is nan"):
        mean_interval([0.1, float("nan")])
    with pytest.raises(ValueError, match=r"row 0 is .*inf"):
        ratio_interval([(float("inf"), 1.0), (1.0, 1.0)])
    with pytest.raises(ValueError, match=r"row 1 .* denominator must be 0 or more"):
        ratio_interval([(1.0, 1.0), (1.0, -1.0)])
    with pytest.raises(ValueError, match="got 2 and 1"):
        paired_p_value([0.1, 0.2], [0.1])
    with pytest.raises(ValueError, match="got 1 and 2"):
        paired_ratio_p_value([(1, 1)], [(1, 1), (2, 1)])


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0.5, 100)), min_size=2, max_size=12))
def test_intervals_stay_inside_the_data(pairs: list[tuple[float, float]]) -> None:
    values = [above for above, _ in pairs]
    rows = [above / below for above, below in pairs]
    mean = mean_interval(values, resamples=99)
    pooled = ratio_interval(pairs, resamples=99)
    assert mean is not None
    assert pooled is not None
    for (low, high), data in ((mean, values), (pooled, rows)):
        slack = 1e-9 * (1 + max(data))
        assert min(data) - slack <= low <= high <= max(data) + slack


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=2, max_size=12))
def test_p_value_is_a_probability_and_symmetric(rows: list[tuple[float, float]]) -> None:
    first, second = [a for a, _ in rows], [b for _, b in rows]
    p_value = paired_p_value(first, second, resamples=99)
    assert p_value is not None
    assert 0 < p_value <= 1
    assert p_value == paired_p_value(second, first, resamples=99)


def test_a_mean_over_one_group_is_its_ratio() -> None:
    pairs = [(3.0, 1.0), (1.0, 2.0), (0.0, 0.0), (5.0, 1.5)]
    assert mean_ratio_interval([pairs]) == ratio_interval(pairs)


def test_groups_are_drawn_independently() -> None:
    # Equal draws would give the mean 1/2 every time; a quarter of the independent ones are
    # 0 and a half, so that 0 and 1 are each a sixteenth.
    groups = [[(0.0, 1.0), (1.0, 1.0)], [(1.0, 1.0), (0.0, 1.0)]]
    assert mean_ratio_interval(groups) == (0.0, 1.0)


def test_a_speed_up_draws_the_same_rows_of_both_sides() -> None:
    slow = [(10.0, 10.0), (10.0, 2.0), (30.0, 4.0)]
    fast = [(10.0, 5.0), (10.0, 1.0), (30.0, 2.0)]
    assert mean_ratio_interval([fast], [slow]) == pytest.approx((2.0, 2.0))
    # Rows of speed-up 1 and 3 with equal weights: a quarter of the draws each is all one row.
    unequal = [(1.0, 1.0), (3.0, 1.0)]
    plain = [(1.0, 1.0), (1.0, 1.0)]
    assert mean_ratio_interval([unequal], [plain]) == pytest.approx((1.0, 3.0))


def test_a_mean_needs_two_rows_in_every_group() -> None:
    rows = [(1.0, 1.0), (2.0, 1.0)]
    assert mean_ratio_interval([rows, rows[:1]]) is None
    assert mean_ratio_interval([rows, [(0.0, 0.0), (1.0, 1.0)]]) is None
    assert mean_ratio_interval([rows], [[(1.0, 0.0), (1.0, 0.0)]]) is None
    with pytest.raises(ValueError, match="the same rows on both sides, got 2 and 1"):
        mean_ratio_interval([rows], [rows[:1]])
