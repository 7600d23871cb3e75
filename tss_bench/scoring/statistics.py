"""Bootstrap intervals and paired bootstrap tests over rows (one row = one request).

Two kinds of figure are known: the mean of one value a row (a metric) and the pooled ratio
of one (numerator, denominator) pair a row (`tss_bench.scoring.pooled`). A share of rows (0 or 1
each) has Wilson's interval instead, which does not shrink to nothing at 0 and 1. Intervals are
percentile intervals in the unit of the figure: unlike BCa they exist for every sample and
never leave the range of the data. The same arguments give the same result.
The tests compare with scipy.stats.bootstrap, which has no answer for the degenerate samples
defined here.

May import: the standard library and numpy (layer L1 of the design).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Interval = tuple[float, float]
Pairs = Sequence[tuple[float, float]]

RESAMPLES = 9999
CONFIDENCE = 0.95

_DRAWS_AT_ONCE = 2_000_000
_TIE = 1 - 1e-9


def mean_interval(
    values: Sequence[float],
    *,
    seed: int = 0,
    resamples: int = RESAMPLES,
    confidence: float = CONFIDENCE,
) -> Interval | None:
    """(low, high) of the mean of `values`, rows resampled.

    None for fewer than two rows: one row says nothing about its spread. Equal values v give
    (v, v). Raises ValueError for a value that is not finite.
    """
    array = _finite(values, width=1)[:, 0]
    if len(array) < 2:
        return None
    if np.ptp(array) == 0:
        return float(array[0]), float(array[0])
    return _percentiles(_distribution((array,), np.mean, seed, resamples), confidence)


def ratio_interval(
    pairs: Pairs, *, seed: int = 0, resamples: int = RESAMPLES, confidence: float = CONFIDENCE
) -> Interval | None:
    """(low, high) of sum(numerators) / sum(denominators), rows resampled.

    Rows (0, 0) add nothing to the ratio and are left out first. None for fewer than two
    remaining rows or a total denominator of 0; a resample whose denominator is 0 is dropped.
    Raises ValueError for a value that is not finite and for a negative denominator.
    """
    table = _pair_table(pairs)
    table = table[(table != 0).any(axis=1)]
    if len(table) < 2 or table[:, 1].sum() == 0:
        return None
    return _percentiles(_distribution(tuple(table.T), _ratio, seed, resamples), confidence)


def wilson_interval(hits: int, rows: int, *, confidence: float = CONFIDENCE) -> Interval | None:
    """(low, high) of the share hits / rows (Wilson 1927), None for no row.

    Raises ValueError for more hits than rows.
    """
    if not 0 <= hits <= rows:
        raise ValueError(f"hits must be 0 to {rows}, got {hits}")
    if rows == 0:
        return None
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    share, weight = hits / rows, z * z / rows
    middle = (share + weight / 2) / (1 + weight)
    half = z * math.sqrt(share * (1 - share) / rows + weight / rows / 4) / (1 + weight)
    return max(0.0, middle - half), min(1.0, middle + half)


def mean_ratio_interval(
    groups: Sequence[Pairs],
    base: Sequence[Pairs] | None = None,
    *,
    seed: int = 0,
    resamples: int = RESAMPLES,
    confidence: float = CONFIDENCE,
) -> Interval | None:
    """(low, high) of the mean over groups of each group's pooled ratio; groups are tasks.

    With `base` each ratio is divided by that of the base on the same rows: a mean speed-up. Rows
    are resampled within each group. None where a group has fewer than two rows that are not all
    zero or a total denominator of 0. Raises ValueError for different lengths and as
    `ratio_interval` does.
    """
    means = np.zeros(resamples)
    for place, pairs in enumerate(groups):
        table = _pair_table(pairs)
        if base is not None:
            _same_length(pairs, base[place])
            table = np.hstack([table, _pair_table(base[place])])
        table = table[(table != 0).any(axis=1)]
        if len(table) < 2 or (table[:, 1::2].sum(axis=0) == 0).any():
            return None
        statistic = _ratio if base is None else _speed_up
        # Each group draws by itself: equal draws would add up its errors.
        means += _distribution(tuple(table.T), statistic, seed + place, resamples) / len(groups)
    return _percentiles(means, confidence)


def paired_p_value(
    first: Sequence[float], second: Sequence[float], *, seed: int = 0, resamples: int = RESAMPLES
) -> float | None:
    """Two-sided paired bootstrap p-value of mean(second) - mean(first).

    Row i of both is the same item; differences are resampled and centred on the observed
    one (Koehn 2004; sacrebleu's `paired-bs`): p = (1 + #{|d* - d| >= |d|}) / (1 + resamples).
    Never below 2 ** (1 - rows), the least a sign test of that many rows can give, so that
    a few equal differences are no proof; one row gives 1.0, as do equal samples; no row
    gives None. Raises ValueError for different lengths and values that are not finite.
    """
    _same_length(first, second)
    difference = (_finite(second, width=1) - _finite(first, width=1))[:, 0]
    if len(difference) < 2:
        return 1.0 if len(difference) else None
    distribution = _distribution((difference,), np.mean, seed, resamples)
    return _two_sided(distribution, float(np.mean(difference)), len(difference))


def paired_ratio_p_value(
    first: Pairs, second: Pairs, *, seed: int = 0, resamples: int = RESAMPLES
) -> float | None:
    """Two-sided paired bootstrap p-value of the difference of two pooled ratios.

    Definition and floor as in `paired_p_value`; each resample draws the same rows on both
    sides. Rows that are (0, 0) on both sides are left out first. None where a side's total
    denominator is 0. Raises ValueError as `paired_p_value` and `ratio_interval` do.
    """
    _same_length(first, second)
    table = np.hstack([_pair_table(first), _pair_table(second)])
    table = table[(table != 0).any(axis=1)]
    if table[:, 1].sum() == 0 or table[:, 3].sum() == 0:
        return None
    if len(table) < 2:
        return 1.0
    columns = tuple(table.T)
    distribution = _distribution(columns, _ratio_difference, seed, resamples)
    return _two_sided(distribution, float(_ratio_difference(*columns)), len(table))


def difference_interval(
    first: Pairs, second: Pairs, *, relative: bool, seed: int = 0, resamples: int = RESAMPLES
) -> Interval | None:
    """(low, high) of ratio(second) / ratio(first) - 1, or of their difference.

    Each resample draws the same rows on both sides; one in which a denominator is zero is
    dropped. Rows that are (0, 0) on both sides are left out first. None for fewer than two rows.
    """
    table = np.hstack([np.asarray(first, np.float64), np.asarray(second, np.float64)])
    table = table[(table != 0).any(axis=1)]
    rows = len(table)
    if rows < 2:
        return None
    drawn = np.random.default_rng(seed).multinomial(rows, np.full(rows, 1 / rows), resamples)
    above_1, below_1, above_2, below_2 = (drawn @ table).T
    with np.errstate(divide="ignore", invalid="ignore"):
        before, after = above_1 / below_1, above_2 / below_2
        values = after / before - 1 if relative else after - before
    values = values[np.isfinite(values)]
    if not len(values):
        return None
    low, high = np.quantile(values, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(low), float(high)


def _distribution(
    columns: tuple[Array, ...], statistic: Callable[..., Any], seed: int, resamples: int
) -> Array:
    """`statistic` of each resample of the rows [resamples]; all columns share the rows drawn."""
    generator = np.random.default_rng(seed)
    rows = len(columns[0])
    at_once = max(1, _DRAWS_AT_ONCE // rows)
    parts = []
    for start in range(0, resamples, at_once):
        drawn = generator.integers(rows, size=(min(at_once, resamples - start), rows))
        parts.append(statistic(*(column[drawn] for column in columns), axis=-1))
    return np.concatenate(parts)


def _ratio(above: Array, below: Array, axis: int = -1) -> Array:
    """Pooled ratio along `axis`; NaN where the denominator is 0."""
    total = np.asarray(below.sum(axis=axis))
    ratios = np.full(total.shape, np.nan)
    np.divide(above.sum(axis=axis), total, out=ratios, where=total > 0)
    return ratios


def _speed_up(
    above: Array, below: Array, base_above: Array, base_below: Array, axis: int = -1
) -> Array:
    """Quotient of two pooled ratios; NaN where there is none."""
    base = _ratio(base_above, base_below, axis)
    quotients = np.full(base.shape, np.nan)
    np.divide(_ratio(above, below, axis), base, out=quotients, where=base > 0)
    return quotients


def _ratio_difference(
    above_1: Array, below_1: Array, above_2: Array, below_2: Array, axis: int = -1
) -> Array:
    return _ratio(above_2, below_2, axis) - _ratio(above_1, below_1, axis)


def _percentiles(distribution: Array, confidence: float) -> Interval:
    tail = (1 - confidence) / 2
    low, high = np.nanquantile(distribution, [tail, 1 - tail])
    return float(low), float(high)


def _two_sided(distribution: Array, observed: float, rows: int) -> float:
    known = distribution[~np.isnan(distribution)]
    extreme = np.count_nonzero(np.abs(known - observed) >= abs(observed) * _TIE)
    return float(max((1 + extreme) / (1 + len(known)), 2.0 ** (1 - rows)))


def _same_length(first: Sequence[Any], second: Sequence[Any]) -> None:
    if len(first) != len(second):
        raise ValueError(
            f"a paired test needs the same rows on both sides, got {len(first)} and {len(second)}"
        )


def _finite(values: Sequence[Any], width: int) -> Array:
    """`values` as float64 [rows, width]; names the first row that is not finite."""
    table = np.asarray(values, dtype=np.float64).reshape(len(values), width)
    bad = np.flatnonzero(~np.isfinite(table).all(axis=1))
    if bad.size:
        raise ValueError(
            f"row {bad[0]} is {values[bad[0]]!r}; statistics need finite numbers: leave rows "
            "without a value out"
        )
    return table


def _pair_table(pairs: Pairs) -> Array:
    table = _finite(pairs, width=2)
    negative = np.flatnonzero(table[:, 1] < 0)
    if negative.size:
        raise ValueError(
            f"row {negative[0]} is {pairs[negative[0]]!r}; a denominator must be 0 or more"
        )
    return table
