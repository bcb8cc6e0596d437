# SPDX-License-Identifier: Apache-2.0
"""Decide whether counts follow a law, looking as the draws come in.

Guarantee of `SequentialTest` at (level, power, tv):

* a sampler that follows the law is rejected with probability at most `level`, exactly,
  however often one looks (Ville's inequality on the portfolio's e-value);
* a sampler at total variation `tv` or more from it is accepted with probability at most
  ``1 - power``, asymptotically: half of the error is for the early acceptance, half for
  stopping at `n_max`.

A right sampler usually stops at a quarter to a third of `n_max`, a grossly wrong one
after a few dozen draws.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from specverify.statistics import planning
from specverify.statistics.evalues import EValue, Portfolio, checked_law
from specverify.statistics.impossible import samples_to_see
from specverify.statistics.tolerance import TolerantPortfolio

FloatArray = NDArray[np.float64]
Outcome = Literal["reject", "accept", "continue"]

#: Up to here counts are too coarse for a continuous law to describe small statistics.
_FEW_CELLS: Final = 8


@dataclass(frozen=True, slots=True)
class Decision:
    """State of a sequential test after some draws.

    Attributes
    ----------
    outcome
        "reject" and "accept" are final; "continue" asks for more draws.
    evidence
        The e-value.
    samples
        Draws so far.
    """

    outcome: Outcome
    evidence: EValue
    samples: int


class SequentialTest:
    """Tests counts against a law at a stated level, power and resolution.

    Parameters
    ----------
    probs
        The law, float64 [cells].
    level, power, tv
        Both error rates and the total variation that must be seen.
    draft, alternatives
        See `Portfolio`.
    tolerance
        Total variation that is granted to rounding; the sampler is rejected only where
        it exceeds that. There is then no guarantee that every direction of a bias of
        `tv` is seen by `n_max`, so such a test can end undecided ("continue").
    """

    def __init__(
        self,
        probs: ArrayLike,
        *,
        level: float,
        power: float,
        tv: float,
        draft: ArrayLike | None = None,
        alternatives: Mapping[str, ArrayLike] | None = None,
        tolerance: float = 0.0,
    ) -> None:
        self.law = checked_law("probs", probs)
        planning.check_rates(level=level, power=power, tv=tv)
        self.level, self.power, self.tv = level, power, tv
        self.tolerance = tolerance
        self.portfolio: Portfolio | TolerantPortfolio = (
            TolerantPortfolio(self.law, tolerance=tolerance, draft=draft)
            if tolerance
            else Portfolio(
                self.law, draft=draft, alternatives=alternatives, smallest_tv=tv
            )
        )
        self._df = int(np.count_nonzero(self.law)) - 1
        if self._df:
            plan = planning.plan_samples(
                cells=self._df + 1, level=level, power=power, tv=tv
            )
            self.n_max = plan.n_max
        else:  # one outcome is possible: any other is a proof
            self.n_max = samples_to_see(tv, power=power)

    @property
    def cells(self) -> int:
        """Number of possible outcomes."""
        return self._df + 1

    def looks(self) -> list[int]:
        """Sample sizes at which to look, growing geometrically up to `n_max`."""
        return planning.looks(self.n_max)

    def decide(self, counts: ArrayLike) -> Decision:
        """Judge whole-number counts over the cells, all draws so far together."""
        seen = np.asarray(counts, dtype=np.float64)
        evidence = self.portfolio.evaluate(seen)
        n = int(seen.sum())
        if evidence.log_e >= math.log(1 / self.level):
            return Decision("reject", evidence, n)
        excluded = self._df > 0 and n > 0 and self._excluded(seen, n)
        accepted = excluded or (n >= self.n_max and not self.tolerance)
        return Decision("accept" if accepted else "continue", evidence, n)

    def _excluded(self, seen: FloatArray, n: int) -> bool:
        """Whether a bias of `tv` would by now have shown as a larger statistic."""
        if seen[self.law == 0].any():  # granted by a tolerance, unseen by the statistic
            return False
        limit = planning.acceptance_limit(
            n, self._df, self.power, self.tv, len(self.looks())
        )
        return deviation(seen, self.law) <= limit


def deviation(counts: ArrayLike, probs: ArrayLike) -> float:
    """The larger of Pearson's and the unbiased chi-square statistic.

    Each errs towards acceptance where the other does not: Pearson's where a biased
    sampler leaves out rare cells, the unbiased one on few cells, where its noise can
    make it negative. On few cells Pearson's is taken half a count further out: counts
    hit their expectation exactly far more often than the limit law can.
    """
    seen, p = np.asarray(counts, np.float64), np.asarray(probs, np.float64)
    expected = seen[p > 0].sum() * p[p > 0]
    half = 0.5 if len(expected) <= _FEW_CELLS else 0.0
    distance = np.abs(seen[p > 0] - expected) + half
    pearson = float((distance**2 / expected).sum())
    return max(pearson, unbiased_chi_square(seen, p))


def unbiased_chi_square(counts: ArrayLike, probs: ArrayLike) -> float:
    """``cells + sum ((N - n p)^2 - N) / (n p)``: mean ``df + n chi2`` under every law.

    Pearson's statistic has a smaller mean than that where a biased sampler leaves out
    rare cells, and would accept it.
    """
    seen, p = np.asarray(counts, np.float64), np.asarray(probs, np.float64)
    seen, p = seen[p > 0], p[p > 0]
    expected = seen.sum() * p
    return float(len(p) + (((seen - expected) ** 2 - seen) / expected).sum())
