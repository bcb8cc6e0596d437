# SPDX-License-Identifier: Apache-2.0
"""What a table of counts says, cell by cell.

Residuals, the choice of cells that a chart has room for, and exact intervals. Nothing
here decides: the verdict was reached before, from all cells together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final

from scipy import special

from specverify.evidence.records import Table

#: Cells that a chart shows at most; the others are pooled into one.
MAX_BARS: Final = 40
#: Simultaneous coverage of all intervals of one chart.
COVERAGE: Final = 0.99
_DEGENERATE: Final = 1e-9
_MAX_FORCED: Final = 8


@dataclass(frozen=True, slots=True)
class Cell:
    """One outcome: its observed and expected count and their standardised difference.

    Attributes
    ----------
    residual
        Pearson residual divided by its standard deviation, infinite for an outcome that
        the law excludes.
    """

    label: str
    observed: int
    expected: float
    residual: float


@dataclass(frozen=True, slots=True)
class Rate:
    """Acceptance at one draft position, measured and predicted.

    Attributes
    ----------
    low, high
        Clopper-Pearson interval; the intervals of one table cover together with
        probability `COVERAGE`.
    """

    label: str
    accepted: int
    trials: int
    measured: float
    predicted: float
    low: float
    high: float

    @property
    def off(self) -> bool:
        """Whether the prediction lies outside the interval."""
        return not self.low <= self.predicted <= self.high


def residual(observed: int, expected: float, total: float) -> float:
    """Difference of a count from its law in standard deviations of that count.

    Parameters
    ----------
    observed, expected
        The count and its expectation.
    total
        Sum of the expectations of all cells.

    Notes
    -----
    This is the Pearson residual divided by ``sqrt(1 - expected / total)`` (Haberman
    1973), so that one normal band serves every cell, that of a nearly certain outcome
    included.
    """
    variance = expected * (1 - expected / total) if total > 0 else 0.0
    if variance <= _DEGENERATE * max(expected, 1.0) and abs(observed - expected) > 0.5:
        return math.copysign(math.inf, observed - expected)
    if variance <= 0:
        return 0.0
    return (observed - expected) / math.sqrt(variance)


def law_cells(table: Table) -> tuple[Cell, ...]:
    """Pair the cells of a table of kind ``"law"`` with their residuals."""
    total = math.fsum(table.expected)
    rows = zip(table.labels, table.observed, table.expected, strict=True)
    return tuple(Cell(name, o, e, residual(o, e, total)) for name, o, e in rows)


def chosen(cells: Sequence[Cell], threshold: float) -> tuple[tuple[Cell, ...], int]:
    """Pick the cells that a chart shows, in their order, and pool the others.

    The cells with the largest expectation are shown, and always the few worst ones
    beyond `threshold`: pooling must not hide what a reader came to see.

    Returns
    -------
    cells
        At most `MAX_BARS` of them; the last one stands for the pooled ones, if any.
    pooled
        How many cells the last one stands for.
    """
    if len(cells) <= MAX_BARS:
        return tuple(cells), 0
    bad = [i for i, c in enumerate(cells) if abs(c.residual) > threshold]
    forced = sorted(bad, key=lambda i: -abs(cells[i].residual))[:_MAX_FORCED]
    large = sorted(range(len(cells)), key=lambda i: (-cells[i].expected, i))
    kept = set(forced)
    for i in large:
        if len(kept) == MAX_BARS - 1:
            break
        kept.add(i)
    rest = [c for i, c in enumerate(cells) if i not in kept]
    shown = tuple(c for i, c in enumerate(cells) if i in kept)
    return (*shown, _pool(rest, math.fsum(c.expected for c in cells))), len(rest)


def ranked(cells: Sequence[Cell], at_most: int) -> tuple[Cell, ...]:
    """All cells in their order or, if too many, the largest residuals first."""
    if len(cells) <= at_most:
        return tuple(cells)
    return tuple(sorted(cells, key=lambda c: -abs(c.residual))[:at_most])


def threshold(limit: float | None, cells: int) -> float:
    """Residual beyond which one cell alone has a p-value below `limit`.

    Corrected for the number of cells; infinite if the check has no limit.
    """
    if limit is None or not 0 < limit < 1 or cells == 0:
        return math.inf
    return -NormalDist().inv_cdf(max(limit / (2 * cells), 1e-300))


def rates(table: Table) -> tuple[Rate, ...]:
    """Turn a table of kind ``"position"`` into rates; untried positions drop out.

    References
    ----------
    C. J. Clopper and E. S. Pearson, Biometrika 26 (1934), 404-413.
    """
    error = (1 - COVERAGE) / max(1, sum(n > 0 for n in table.trials))
    rows = zip(table.labels, table.observed, table.expected, table.trials, strict=True)
    return tuple(
        Rate(name, x, n, x / n, e / n, *clopper_pearson(x, n, error))
        for name, x, e, n in rows
        if n > 0
    )


def clopper_pearson(successes: int, trials: int, error: float) -> tuple[float, float]:
    """Bound a proportion exactly; the interval misses it with at most `error`."""
    tail, failures = error / 2, trials - successes
    low, high = 0.0, 1.0
    if successes > 0:
        low = float(special.betaincinv(successes, failures + 1, tail))
    if failures > 0:
        high = float(special.betainccinv(successes + 1, failures, tail))
    return low, high


def _pool(cells: Sequence[Cell], total: float) -> Cell:
    observed = sum(c.observed for c in cells)
    expected = math.fsum(c.expected for c in cells)
    name = f"+{len(cells)} more"
    return Cell(name, observed, expected, residual(observed, expected, total))
