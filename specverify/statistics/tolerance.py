# SPDX-License-Identifier: Apache-2.0
"""A law that is known up to a tolerance: subjects that compute in half precision.

Probabilities rounded to bfloat16 are off by a few thousandths, and with enough draws
every exact test finds that out, rightly and uselessly. Here the hypothesis is that the
sampler's law lies within total variation t of p. Then every set A of cells has
``r(A) <= p(A) + t = b``, and for each h in (0, 1) the product over draws of
``1 + h (1[x in A] / b - 1)`` has mean at most 1: an e-value for the whole tolerant
hypothesis. `TolerantPortfolio` averages over sets (cells and their complements, and
cumulative bins of q/p and of rank, from both ends) and over h.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from specverify.statistics.evalues import EValue, checked_counts, checked_law, log_mean
from specverify.statistics.partitions import rank_bins, ratio_bins

FloatArray = NDArray[np.float64]

#: Stakes h: the share of the wealth that is bet on a set.
_STAKES: Final = tuple(2.0**-j for j in range(1, 9))


class TolerantPortfolio:
    """E-values for "within total variation `tolerance` of `probs`".

    Parameters
    ----------
    probs
        The law, sums to 1, float64 [cells].
    tolerance
        Total variation allowed, in (0, 1).
    draft
        The drafts' law on the same cells, for cumulative bins of q/p.
    """

    def __init__(
        self, probs: ArrayLike, *, tolerance: float, draft: ArrayLike | None = None
    ) -> None:
        if not 0 < tolerance < 1:
            msg = f"tolerance is {tolerance}; allowed is the open interval (0, 1)"
            raise ValueError(msg)
        law = checked_law("probs", probs)
        self._cells = len(law)
        sets = [_cumulative(rank_bins(law))]
        if draft is not None:
            q = checked_law("draft", draft)
            if q.shape != law.shape:
                msg = f"draft has {len(q)} cells, the law has {len(law)}"
                raise ValueError(msg)
            sets.append(_cumulative(ratio_bins(law, q)))
        self._sets = np.concatenate(sets)  # [sets, cells], besides the single cells
        bounds = self._inside(law, 1.0) + tolerance
        self._used = bounds < 1
        self._bounds = bounds[self._used]
        self.size = len(self._bounds)

    def evaluate(self, counts: ArrayLike) -> EValue:
        """E-value of whole-number counts over the cells, [cells]."""
        seen = checked_counts(counts, self._cells)
        n = seen.sum()
        inside = self._inside(seen, n)[self._used]
        logs = [
            inside * np.log1p(h * (1 / self._bounds - 1)) + (n - inside) * np.log1p(-h)
            for h in _STAKES
        ]
        total = np.concatenate(logs)
        log_e = log_mean(total) if len(total) else 0.0
        return EValue(log_e, {"sets": log_e})

    def _inside(self, weights: FloatArray, total: float) -> FloatArray:
        """Weight in each set: single cells, their complements, cumulative bins."""
        return np.concatenate([weights, total - weights, self._sets @ weights])


def _cumulative(bins: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Sets of all cells up to a bin, and of all behind it."""
    upto = np.arange(bins.max())[:, None] >= bins
    return np.concatenate([upto, ~upto])
