# SPDX-License-Identifier: Apache-2.0
"""Upper bounds on the total variation between a sampler and a law.

Acceptance says that no bias of a stated size was seen; a certificate turns it round: at
this confidence the bias is no larger than that. `tv_upper` inverts the chi-square test
and so pays for the square root of the number of cells only; it is asymptotic, and
measured to hold its confidence down to a tenth of a count expected in a cell.
`tv_upper_exact` holds for every sample size and pays for each cell.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike
from scipy import optimize, stats

from specverify.statistics.decisions import unbiased_chi_square
from specverify.statistics.evalues import checked_counts, checked_law


def tv_upper(counts: ArrayLike, probs: ArrayLike, *, confidence: float = 0.99) -> float:
    """Upper confidence bound on TV(sampler, law), asymptotic.

    Parameters
    ----------
    counts
        Whole numbers [cells].
    probs
        The law [cells].
    confidence
        Probability that the bound holds.

    Returns
    -------
    float
        At most 1; the observed share of impossible cells is added.
    """
    _check_confidence(confidence)
    law = checked_law("probs", probs)
    seen = checked_counts(counts, len(law))
    n, possible = seen.sum(), law > 0
    outside = float(seen[~possible].sum())
    df = int(possible.sum()) - 1
    if outside == n:
        return 1.0
    if df == 0:  # the total variation is the mass outside: Clopper-Pearson
        return float(stats.beta.isf(1 - confidence, outside + 1, n - outside))
    impossible = float(outside / n)
    # A better fit than the mean one is luck, or coarse counts; it certifies no more.
    statistic = max(unbiased_chi_square(seen, law), df)
    largest = _largest_noncentrality(statistic, df, 1 - confidence)
    return min(1.0, impossible + math.sqrt(largest / n) / 2)


def tv_upper_exact(
    counts: ArrayLike, probs: ArrayLike, *, confidence: float = 0.99
) -> float:
    """Upper confidence bound on TV(sampler, law) for every sample size.

    Simultaneous Clopper-Pearson intervals for all cells: each total variation is a sum of
    positive parts, so both sums of extreme deviations bound it.
    """
    _check_confidence(confidence)
    law = checked_law("probs", probs)
    seen = checked_counts(counts, len(law))
    n, error = seen.sum(), (1 - confidence) / len(law) / 2
    if n == 0:
        return 1.0
    high = np.where(
        seen < n, stats.beta.isf(error, seen + 1, np.maximum(n - seen, 1e-9)), 1
    )
    low = np.where(
        seen > 0, stats.beta.ppf(error, np.maximum(seen, 1e-9), n - seen + 1), 0
    )
    above = np.maximum(high - law, 0).sum()
    below = np.maximum(law - low, 0).sum()
    return float(min(1.0, above, below))


def _largest_noncentrality(statistic: float, df: int, error: float) -> float:
    """Largest noncentrality that still gives so small a statistic."""

    def chance(noncentrality: float) -> float:
        return float(stats.ncx2.cdf(statistic, df, noncentrality)) - error

    if chance(1e-9) <= 0:
        return 0.0
    high = 4 * (statistic + df + 100)
    return float(optimize.brentq(chance, 1e-9, high))


def _check_confidence(confidence: float) -> None:
    if not 0 < confidence < 1:
        msg = f"confidence is {confidence}; allowed is the open interval (0, 1)"
        raise ValueError(msg)
