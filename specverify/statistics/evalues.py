# SPDX-License-Identifier: Apache-2.0
"""E-values: evidence against a known law that may be looked at as often as one likes.

An e-value of a sample is a likelihood ratio of some alternative, or an average of many,
to the law under test. Under the law its mean is at most 1 at every sample size, so

    P(E exceeds 1/a at any time) <= a        (Ville 1939),

exactly, for every n, every sparsity and every stopping rule: no pooling, no asymptotics
at levels of 1e-9. What remains is to choose alternatives that grow fast on real defects.
`Portfolio` averages five kinds:

``spread``
    Dirichlet mixtures around p over all cells, on a grid of concentrations: deviations
    of any shape, the guarantee of the planner.
``cells``
    One cell too frequent, too rare or missing.
``ratio``, ``rank``, ``blocks``
    Dirichlet mixtures on few bins: of q/p (every accept or residual bug moves these), of
    the tail mass of p (filters, temperature), of token ids (kernel tiles).
``known``
    Likelihood ratios of given alternative laws, mixed into p at several rates.

Everything is in natural logarithms. Cells of probability zero do not enter: a count there
is a proof by itself, see `impossible`.

References
----------
Robbins: Statistical methods related to the law of the iterated logarithm, 1970. Lindon,
Malek: Anytime-valid inference for multinomial count data, 2022. Ramdas, Grünwald, Vovk,
Shafer: Game-theoretic statistics and safe anytime-valid inference, 2023.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import gammaln, xlogy

from specverify.statistics.partitions import id_tiles, rank_bins, ratio_bins, totals

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

#: Largest total variation that the grid of concentrations looks for.
_LARGEST_TV: Final = 0.25
#: Concentrations of the single-cell mixtures, as numbers of prior draws.
_CELL_CONCENTRATIONS: Final = (8.0, 64.0, 512.0, 4096.0, 32768.0)
#: Rates at which an alternative is mixed into p.
_MIXING_RATES: Final = tuple(2.0**-j for j in range(11))


@dataclass(frozen=True, slots=True)
class EValue:
    """Evidence against a law at one sample size.

    Attributes
    ----------
    log_e
        Natural logarithm of the combined e-value; infinite after an impossible outcome.
    parts
        The same for each kind of alternative, before averaging.
    impossible
        Cells of probability zero that were seen.
    """

    log_e: float
    parts: Mapping[str, float]
    impossible: tuple[int, ...] = ()

    @property
    def strongest(self) -> str:
        """The kind of alternative that fits best."""
        return max(self.parts, key=lambda name: self.parts[name])


class Portfolio:
    """E-values for one law.

    Parameters
    ----------
    probs
        The law, sums to 1, float64 [cells].
    draft
        The drafts' law on the same cells, for the bins of q/p and as an alternative.
    alternatives
        Further laws on the same cells, by name.
    smallest_tv
        Bias at which the mixtures are tuned; larger ones are covered by the grid.

    Raises
    ------
    ValueError
        Laws that do not sum to 1, of different lengths, or a rate outside (0, 1).
    """

    def __init__(
        self,
        probs: ArrayLike,
        *,
        draft: ArrayLike | None = None,
        alternatives: Mapping[str, ArrayLike] | None = None,
        smallest_tv: float = 0.01,
    ) -> None:
        law = checked_law("probs", probs)
        if not 0 < smallest_tv < 1:
            msg = f"smallest_tv is {smallest_tv}; allowed is the open interval (0, 1)"
            raise ValueError(msg)
        self._possible = law > 0
        self._tv = smallest_tv
        p = law[self._possible]
        self._parts: dict[str, Callable[[FloatArray], float]] = {}
        if len(p) > 1:
            self._parts["spread"] = self._spread(p, None)
            self._parts["cells"] = lambda counts: log_cells(counts, p)
            self._add_bins("rank", p, rank_bins(p))
            self._add_bins("blocks", p, id_tiles(law)[self._possible])
        others = {
            name: self._other(name, r, law) for name, r in (alternatives or {}).items()
        }
        if draft is not None:
            q = self._other("draft", draft, law)
            others["draft"] = q
            self._add_bins("ratio", p, ratio_bins(p, q))
        if others and len(p) > 1:
            self._parts["known"] = lambda counts: log_mixed(counts, p, others)

    @property
    def size(self) -> int:
        """Number of kinds of alternatives that are averaged."""
        return len(self._parts)

    def evaluate(self, counts: ArrayLike) -> EValue:
        """E-value of whole-number counts over the cells, [cells]."""
        seen = checked_counts(counts, len(self._possible))
        impossible = np.flatnonzero(~self._possible & (seen > 0))
        possible = seen[self._possible]
        parts = {name: part(possible) for name, part in self._parts.items()}
        if len(impossible):
            return EValue(float("inf"), parts, tuple(int(i) for i in impossible))
        combined = log_mean(list(parts.values())) if parts else 0.0
        return EValue(combined, parts)

    def _add_bins(self, name: str, p: FloatArray, bins: IntArray) -> None:
        """Add a mixture over bins, unless they are no coarser than the cells."""
        if 1 < bins.max() + 1 < len(p):
            self._parts[name] = self._spread(p, bins)

    def _spread(
        self, p: FloatArray, bins: IntArray | None
    ) -> Callable[[FloatArray], float]:
        binned = p if bins is None else totals(bins, p)
        grid = concentrations(len(binned) - 1, self._tv)

        def part(counts: FloatArray) -> float:
            seen = counts if bins is None else totals(bins, counts)
            return log_dirichlet(seen, binned, grid)

        return part

    def _other(self, name: str, probs: ArrayLike, law: FloatArray) -> FloatArray:
        other = checked_law(name, probs)
        if other.shape != law.shape:
            msg = f"{name} has {len(other)} cells, the law has {len(law)}"
            raise ValueError(msg)
        return other[self._possible]


def concentrations(df: int, smallest_tv: float) -> FloatArray:
    """Grid of Dirichlet concentrations ``df / (4 e^2)`` for e from `smallest_tv` up.

    A prior of concentration c has mean chi-square divergence ``df / (c + 1)`` from p, so
    each entry looks for one size of bias. The first one, which the planner relies on,
    carries half of the weight; see `log_dirichlet`.
    """
    steps = max(1, int(np.ceil(np.log2(_LARGEST_TV / smallest_tv))) + 1)
    sizes = np.minimum(
        smallest_tv * 2.0 ** np.arange(steps), max(_LARGEST_TV, smallest_tv)
    )
    grid: FloatArray = df / (4 * np.unique(sizes) ** 2)
    return grid


def log_dirichlet(counts: FloatArray, p: FloatArray, grid: FloatArray) -> float:
    """Dirichlet mixtures around p, averaged over the grid of concentrations.

    Half of the weight is on the first concentration, the rest evenly on the others.
    """
    n, seen = counts.sum(), counts > 0
    prior = grid[:, None] * p[seen]  # [grid, seen cells]
    terms = gammaln(prior + counts[seen]) - gammaln(prior)
    logs: FloatArray = (
        gammaln(grid)
        - gammaln(grid + n)
        + terms.sum(axis=1)
        - xlogy(counts[seen], p[seen]).sum()
    )
    weights = np.full(len(grid), 0.5 / max(len(grid) - 1, 1))
    weights[0] = 0.5 if len(grid) > 1 else 1.0
    return float(np.logaddexp.reduce(logs + np.log(weights)))


def log_cells(counts: FloatArray, p: FloatArray) -> float:
    """Single-cell mixtures: each cell against the rest, averaged over cells."""
    n, inside = counts.sum(), (p > 0) & (p < 1)
    hits, mass = counts[inside], p[inside]
    logs = []
    for c in _CELL_CONCENTRATIONS:
        a, b = c * mass, c * (1 - mass)
        beta = gammaln(a + hits) - gammaln(a) + gammaln(b + n - hits) - gammaln(b)
        null = xlogy(hits, mass) + (n - hits) * np.log1p(-mass)
        logs.append(beta + gammaln(c) - gammaln(c + n) - null)
    return log_mean(np.concatenate(logs))


def log_mixed(
    counts: FloatArray, p: FloatArray, others: Mapping[str, FloatArray]
) -> float:
    """Likelihood ratios of ``(1 - m) p + m r`` to p, averaged over laws r and rates m."""
    seen = counts > 0
    logs = []
    for other in others.values():
        with np.errstate(over="ignore"):  # the smaller of two e-values is one
            ratio = np.minimum(other[seen] / p[seen], np.finfo(np.float64).max)
        for rate in _MIXING_RATES:
            with np.errstate(divide="ignore"):  # at rate 1 a seen cell may have r = 0
                logs.append(float(counts[seen] @ np.log1p(rate * (ratio - 1))))
    return log_mean(logs)


def log_mean(logs: ArrayLike) -> float:
    """Logarithm of the average of e-values given as logarithms."""
    values = np.asarray(logs, dtype=np.float64)
    return float(np.logaddexp.reduce(values) - np.log(len(values)))


def checked_counts(counts: ArrayLike, cells: int) -> FloatArray:
    """Counts as float64; raises `ValueError` unless whole, from 0, one for each cell."""
    seen = np.asarray(counts, dtype=np.float64)
    if seen.shape != (cells,):
        msg = f"counts has shape {seen.shape}; the law has {cells} cells"
        raise ValueError(msg)
    bad = ~np.isfinite(seen) | (seen < 0) | (seen != np.floor(seen))
    if bad.any():
        msg = f"counts holds {seen[bad][0]:g}; allowed are whole numbers from 0"
        raise ValueError(msg)
    return seen


def checked_law(name: str, probs: ArrayLike) -> FloatArray:
    """A law as float64, renormalised; raises `ValueError` unless it is one."""
    law = np.asarray(probs, dtype=np.float64)
    if law.ndim != 1 or not len(law):
        msg = f"{name} has shape {law.shape}; it must be [cells]"
        raise ValueError(msg)
    total = law.sum()
    if not (law >= 0).all() or abs(total - 1) > 1e-6:
        msg = (
            f"{name} has minimum {law.min():g} and sum {total:.9g}; allowed are "
            "non-negative entries that sum to 1 within 1e-6"
        )
        raise ValueError(msg)
    normal: FloatArray = law / total
    return normal
