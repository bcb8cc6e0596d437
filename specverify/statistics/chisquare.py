# SPDX-License-Identifier: Apache-2.0
"""Chi-square tests through SciPy, used where they are valid.

Pearson's statistic follows its limit law far in the tail only when every cell expects
many counts: with one count expected, a nominal 1e-9 is off by a factor of hundreds. So
cells are pooled, by what they expect and never by what was seen, until each expects
`min_expected` counts. Cells of probability zero stay apart: a single count there is a
proof, not a statistic.

Guarantee. `goodness_of_fit` at level a rejects a correct law with probability at most a,
up to the error of the chi-square limit (measured: below 5 % of a at the pooling used
here). `min_detectable_tv` states the bias that is seen with the stated power; it uses
``chi2 >= 4 TV^2`` and so holds for every direction of the bias on the pooled cells.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import optimize, special, stats

from specverify.statistics.partitions import totals

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class ChiSquare:
    """Outcome of a chi-square test.

    Attributes
    ----------
    statistic, df
        Pearson's statistic over the pooled cells and its degrees of freedom; df is 0
        where pooling leaves a single cell, and then nothing can be rejected.
    p_value, log10_p
        Tail probability, and its base-10 logarithm which does not underflow.
    g_statistic
        The likelihood-ratio statistic on the same cells, for comparison.
    samples
        Number of draws.
    impossible
        Cells of probability zero that were seen. Any makes the p-value zero.
    tv_estimate
        Total variation of the observed frequencies (biased upwards by noise).
    """

    statistic: float
    df: int
    p_value: float
    log10_p: float
    g_statistic: float
    samples: int
    impossible: tuple[int, ...]
    tv_estimate: float


def min_expected(level: float) -> float:
    """Smallest expected count that a cell must have for a test at `level`.

    Cochran's five is a rule for levels near 0.05. Further out the limit law needs more.
    """
    if level > 1e-3:
        return 5.0
    if level > 1e-6:
        return 15.0
    return 30.0 if level > 1e-9 else 100.0


def pool(expected: ArrayLike, least: float) -> IntArray:
    """Group cells so that every group expects at least `least` counts.

    Parameters
    ----------
    expected
        Expected counts, all positive. Shape [cells].
    least
        Smallest expected count of a group.

    Returns
    -------
    ndarray
        Group of each cell, int64 [cells], numbered from 0. Cells that expect enough stay
        alone; the rest share one group, with the smallest of the others if need be.
    """
    values = np.asarray(expected, dtype=np.float64)
    rare = values < least
    order = np.argsort(np.where(rare, np.inf, values), kind="stable")
    for cell in order[: np.count_nonzero(~rare)]:
        if not rare.any() or values[rare].sum() >= least:
            break
        rare[cell] = True
    groups = np.empty(len(values), np.int64)
    groups[~rare] = np.arange(np.count_nonzero(~rare))
    groups[rare] = np.count_nonzero(~rare)
    return groups


def goodness_of_fit(
    counts: ArrayLike, probs: ArrayLike, *, level: float, fitted: int = 0
) -> ChiSquare:
    """Test counts against a known law.

    Parameters
    ----------
    counts
        How often each cell was seen, whole numbers [cells].
    probs
        The law, sums to 1, [cells]. Cells of probability zero are judged apart.
    level
        False-alarm rate at which the result will be used; it sets the pooling.
    fitted
        Parameters of the law that were estimated from these counts; each costs one
        degree of freedom. Where cells had to be pooled none is given back, which errs
        on the side of acceptance.

    Returns
    -------
    ChiSquare
        Reject where ``p_value < level``.

    Raises
    ------
    ValueError
        Level outside (0, 1), lengths that differ, negative counts, probabilities that do
        not sum to 1.
    """
    seen, law = _checked(counts, probs, level)
    n = int(seen.sum())
    possible = law > 0
    impossible = tuple(int(i) for i in np.flatnonzero(~possible & (seen > 0)))
    tv = float(np.abs(seen / n - law).sum() / 2) if n else 0.0
    expected = law[possible] * int(seen[possible].sum())
    if not expected.size or expected.sum() == 0:
        return _result(np.zeros(1), np.zeros(1), n, impossible, tv)
    groups = pool(expected, min_expected(level))
    observed = totals(groups, seen[possible])
    result = _result(observed, totals(groups, expected), n, impossible, tv)
    whole = len(observed) == len(expected)
    return _with_df(result, result.df - fitted) if fitted and whole else result


def two_sample(first: ArrayLike, second: ArrayLike, *, level: float) -> ChiSquare:
    """Test whether two samples follow one law, known to neither.

    Parameters
    ----------
    first, second
        Counts over the same cells.
    level
        False-alarm rate at which the result will be used.

    Returns
    -------
    ChiSquare
        Of the 2 x cells table, pooled by its expected counts.
    """
    _check_rate("level", level)
    a, b = np.asarray(first, np.float64), np.asarray(second, np.float64)
    if a.shape != b.shape or not a.sum() or not b.sum():
        msg = (
            f"first has shape {a.shape} and {a.sum():g} counts, second {b.shape} and "
            f"{b.sum():g}; both need counts over the same cells"
        )
        raise ValueError(msg)
    _check_counts("first", a)
    _check_counts("second", b)
    seen = a + b > 0
    a, b = a[seen], b[seen]
    share = min(a.sum(), b.sum()) / (a.sum() + b.sum())
    groups = pool((a + b) * share, min_expected(level))
    table = np.stack([totals(groups, a), totals(groups, b)])
    margins = table.sum(axis=1, keepdims=True) * table.sum(axis=0) / table.sum()
    tv = float(np.abs(a / a.sum() - b / b.sum()).sum() / 2)
    result = _result(table.ravel(), margins.ravel(), int(table.sum()), (), tv)
    return _with_df(result, table.shape[1] - 1)


def power(*, samples: int, cells: int, tv: float, level: float) -> float:
    """Probability that `goodness_of_fit` rejects a law at total variation `tv`.

    Smallest over all directions of the bias, by the non-central chi-square law.
    """
    if cells < 2:
        return 0.0
    limit = stats.chi2.isf(level, cells - 1)
    return float(stats.ncx2.sf(limit, cells - 1, 4 * samples * tv**2))


def min_detectable_tv(*, samples: int, cells: int, level: float, power: float) -> float:
    """Smallest total variation that is seen with probability `power`.

    Returns 1.0 where no bias whatever is seen so surely.
    """
    if samples <= 0 or cells < 2:
        return 1.0
    return min(1.0, math.sqrt(_noncentrality(cells - 1, level, power) / (4 * samples)))


def min_samples(*, tv: float, cells: int, level: float, power: float) -> int:
    """Draws after which a total variation of `tv` is seen with probability `power`."""
    _check_rate("tv", tv)
    if cells < 2:
        return 1
    return math.ceil(_noncentrality(cells - 1, level, power) / (4 * tv**2))


def log_tail(statistic: float, df: int) -> float:
    """Natural logarithm of the chi-square tail, finite also where the tail underflows.

    There the first terms of the asymptotic series of the incomplete gamma function are
    used: relative error of the logarithm below 1e-3 from a statistic of 1400 on.
    """
    exact = float(stats.chi2.logsf(statistic, df))
    if math.isfinite(exact):
        return exact
    a, x = df / 2, statistic / 2
    return float(
        (a - 1) * math.log(x) - x - special.gammaln(a) - math.log1p(-(a - 1) / x)
    )


def _noncentrality(df: int, level: float, power: float) -> float:
    """Noncentrality at which a chi-square test of `level` has `power`."""
    _check_rate("level", level)
    _check_rate("power", power)
    limit = stats.chi2.isf(level, df)
    high = 4 * limit + 100  # mean df + high lies far beyond the limit
    return float(
        optimize.brentq(lambda nc: stats.ncx2.sf(limit, df, nc) - power, 1e-9, high)
    )


def _result(
    observed: FloatArray,
    expected: FloatArray,
    samples: int,
    impossible: tuple[int, ...],
    tv: float,
) -> ChiSquare:
    df = len(observed) - 1
    if df < 1:
        log_p, statistic, g = 0.0, 0.0, 0.0
    else:
        total = observed.sum()
        scaled = expected * (total / expected.sum())  # float noise only
        statistic = float(stats.power_divergence(observed, scaled).statistic)
        g = float(stats.power_divergence(observed, scaled, lambda_=0).statistic)
        log_p = log_tail(statistic, df)
    p_value = 0.0 if impossible else math.exp(log_p)
    log10_p = log_p / math.log(10)
    return ChiSquare(statistic, df, p_value, log10_p, g, samples, impossible, tv)


def _with_df(result: ChiSquare, df: int) -> ChiSquare:
    log_p = log_tail(result.statistic, df) if df > 0 else 0.0
    p_value = 0.0 if result.impossible else math.exp(log_p)
    return replace(result, df=df, p_value=p_value, log10_p=log_p / math.log(10))


def _checked(
    counts: ArrayLike, probs: ArrayLike, level: float
) -> tuple[FloatArray, FloatArray]:
    _check_rate("level", level)
    seen, law = np.asarray(counts, np.float64), np.asarray(probs, np.float64)
    if seen.shape != law.shape or seen.ndim != 1 or not seen.size:
        msg = (
            f"counts has shape {seen.shape}, probs {law.shape}; both must be [cells], "
            "one cell or more"
        )
        raise ValueError(msg)
    _check_counts("counts", seen)
    if (law < 0).any() or not math.isclose(law.sum(), 1, abs_tol=1e-6):
        msg = (
            f"probs has minimum {law.min():g} and sum {law.sum():.9g}; allowed are "
            "non-negative entries that sum to 1 within 1e-6"
        )
        raise ValueError(msg)
    return seen, law


def _check_counts(name: str, counts: FloatArray) -> None:
    bad = ~((counts >= 0) & (counts == np.floor(counts)))
    if bad.any():
        msg = f"{name} holds {counts[bad][0]:g}; allowed are whole numbers from 0"
        raise ValueError(msg)


def _check_rate(name: str, value: float) -> None:
    if not 0 < value < 1:
        msg = f"{name} is {value}; allowed is the open interval (0, 1)"
        raise ValueError(msg)
