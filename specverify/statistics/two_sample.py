# SPDX-License-Identifier: Apache-2.0
"""Do two samplers follow one law that nobody knows? Decoders with and without drafts.

The unit is the request, not the token: tokens of one request depend on each other, so a
test that counts tokens as if they were independent rejects right engines. Outcomes here
are whatever one request contributes, for example its first tokens, numbered as cells.

Guarantee. The outcomes of both arms are compared in disjoint pairs, in order. Before each
pair the arms' laws are predicted from the pairs before, as r and s, with their average
m = (r + s)/2; the pair (x, y) multiplies the e-value by ``r(x) s(y) / (m(x) m(y))``. Since
``r/m + s/m = 2``, the mean of the factor under any common law is at most 1 (the product
of two numbers of sum 2), so the e-value may be watched forever (Turner, Ly, Grünwald
2024).
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from specverify.statistics.planning import plan_samples

IntArray = NDArray[np.int64]

#: Requests an arm, as a multiple of what a known law would take: both arms are noisy, and
#: their laws have to be learnt before they can be bet on. Measured; see the study.
NOISE: Final = 2.5


def log_two_sample(
    first: ArrayLike,
    second: ArrayLike,
    *,
    cells: int,
    block: int = 16,
) -> float:
    """Natural logarithm of the e-value of two sequences of outcomes.

    Parameters
    ----------
    first, second
        Cell of each request, in the order in which they were made; the longer sequence
        is cut.
    cells
        Number of cells; every outcome lies in ``range(cells)``.
    block
        Pairs between two updates of the predictions.

    Raises
    ------
    ValueError
        An outcome outside the range.
    """
    a, b = _checked("first", first, cells), _checked("second", second, cells)
    pairs = min(len(a), len(b))
    seen = np.zeros((2, cells))
    total = 0.0
    for start in range(0, pairs, block):
        x, y = (
            a[start : min(start + block, pairs)],
            b[start : min(start + block, pairs)],
        )
        r, s = _predicted(seen)
        middle = (r + s) / 2
        total += float(np.log(r[x] / middle[x]).sum() + np.log(s[y] / middle[y]).sum())
        seen += np.stack(
            [np.bincount(x, minlength=cells), np.bincount(y, minlength=cells)]
        )
    return total


def min_samples_two_sample(
    *, tv: float, cells: int, error_rate: float, power: float
) -> int:
    """Requests an arm after which a difference of `tv` is seen; see `NOISE`."""
    plan = plan_samples(cells=cells, level=error_rate, power=power, tv=tv)
    return math.ceil(NOISE * plan.n_max)


def _predicted(seen: NDArray[np.float64]) -> NDArray[np.float64]:
    """Laws of both arms from their counts, each drawn towards the pooled law.

    The arms start out equal and part only as far as the counts insist; predicting too
    large a difference loses evidence on equal arms.
    """
    n = seen.sum(axis=1, keepdims=True)
    pooled = (seen.sum(axis=0) + 0.5) / (seen.sum() + 0.5 * seen.shape[1])
    weight = _shrinkage(seen, pooled)
    laws: NDArray[np.float64] = (seen + weight * pooled) / (n + weight)
    return laws


def _shrinkage(seen: NDArray[np.float64], pooled: NDArray[np.float64]) -> float:
    """Prior weight of the pooled law: large while the arms look alike."""
    n = float(seen.sum(axis=1).min())
    if n == 0:
        return 1.0
    df = seen.shape[1] - 1
    share = seen.sum(axis=1, keepdims=True)
    statistic = float(((seen - share * pooled) ** 2 / (share * pooled)).sum())
    signal = max(statistic - df, 0.25 * math.sqrt(2 * df) + 1e-9)
    return float(max(1.0, n * df / signal))


def _checked(name: str, outcomes: ArrayLike, cells: int) -> IntArray:
    values = np.asarray(outcomes)
    if values.ndim != 1:
        msg = f"{name} has shape {values.shape}; it must be [requests]"
        raise ValueError(msg)
    bad = ~((values >= 0) & (values < cells) & (values == np.floor(values)))
    if bad.any():
        msg = (
            f"{name} holds {values[bad][0]:g}; allowed are whole numbers from 0 to "
            f"{cells - 1}"
        )
        raise ValueError(msg)
    return values.astype(np.int64)
