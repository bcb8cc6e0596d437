# SPDX-License-Identifier: Apache-2.0
"""How many draws a decision takes, before any is made.

The planner describes the sequential test of `decisions`: reject when the portfolio's
e-value reaches 1/level, accept when the unbiased chi-square statistic has become too
small for a bias of the stated size, stop at `n_max`. In Gaussian approximation the
Dirichlet part of concentration c rejects where Pearson's statistic exceeds

    T(n) = (1 + c/n) (2 L + df ln(1 + n/c)),      L = ln(1/level) + ln(1/weight),

and a bias of total variation e, in whatever direction, makes it non-central chi-square
with noncentrality of at least ``4 n e^2``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from scipy import optimize, stats

#: Kinds of alternatives that share the portfolio, and the weight of the planner's one.
_PARTS: Final = 4
_WEIGHT: Final = 0.5 / _PARTS
_LARGEST: Final = 10**12
#: First look, as a fraction of n_max, and the factor from look to look.
_FIRST_LOOK: Final = 1 / 64
_LOOK_FACTOR: Final = 1.5
_SMALLEST_TV: Final = 1e-7


@dataclass(frozen=True, slots=True)
class SamplePlan:
    """What a decision costs.

    Attributes
    ----------
    n_max
        Draws after which a bias of the stated size has been seen with the stated power.
    expected_right
        Mean number of draws on a right implementation.
    expected_wrong
        Mean number of draws at a bias of exactly the stated size in the worst direction;
        larger biases take fewer.
    """

    n_max: int
    expected_right: int
    expected_wrong: int


@lru_cache(maxsize=4096)
def plan_samples(*, cells: int, level: float, power: float, tv: float) -> SamplePlan:
    """Plan the draws for one decision.

    Parameters
    ----------
    cells
        Outcomes with positive probability, at least 2.
    level
        False-alarm rate of the decision.
    power
        Probability of seeing a bias of `tv`.
    tv
        Total variation that must be seen.

    Raises
    ------
    ValueError
        Fewer than 2 cells, or a rate outside (0, 1).
    """
    _check(cells, level, power, tv)
    df = cells - 1
    n_max = _first(lambda n: detection(n, df, level, tv) >= _kept(power))
    sizes = looks(n_max)
    right = _mean_stop(
        sizes,
        lambda n: stats.chi2.cdf(acceptance_limit(n, df, power, tv, len(sizes)), df),
    )
    wrong = _mean_stop(sizes, lambda n: detection(n, df, level, tv))
    return SamplePlan(n_max, right, wrong)


def looks(n_max: int) -> list[int]:
    """Sample sizes at which a decision looks, growing geometrically up to `n_max`."""
    sizes, size = {n_max}, n_max * _FIRST_LOOK
    while size < n_max:
        sizes.add(math.ceil(size))
        size *= _LOOK_FACTOR
    return sorted(sizes)


def _mean_stop(sizes: list[int], stopped: Callable[[int], float]) -> int:
    """Mean size of the look at which a decision falls, given its chance by each look."""
    mean, before, going = 0.0, 0, 1.0
    for size in sizes:
        mean += going * (size - before)
        before, going = size, 1 - stopped(size)
    return math.ceil(mean)


@lru_cache(maxsize=4096)
def min_detectable_tv(*, samples: int, cells: int, level: float, power: float) -> float:
    """Smallest total variation that `samples` draws see with `power`; 1.0 if none."""
    if samples <= 0 or cells < 2:
        return 1.0
    _check(cells, level, power, 0.5)
    df, goal = cells - 1, _kept(power)

    def short(tv: float) -> float:
        return detection(samples, df, level, tv) - goal

    if short(1 - 1e-9) < 0:
        return 1.0
    if short(_SMALLEST_TV) >= 0:
        return _SMALLEST_TV
    return float(optimize.brentq(short, _SMALLEST_TV, 1 - 1e-9, xtol=1e-7))


def detection(n: float, df: int, level: float, tv: float) -> float:
    """Probability that n draws reject a bias of `tv` in the worst direction."""
    limit = rejection_limit(n, df, level, tv)
    return float(stats.ncx2.sf(limit, df, 4 * n * tv**2))


def rejection_limit(n: float, df: int, level: float, tv: float) -> float:
    """Pearson statistic at which the e-value of n draws reaches ``1 / level``."""
    c = df / (4 * tv**2)
    odds = math.log(1 / level) + math.log(1 / _WEIGHT)
    return (1 + c / n) * (2 * odds + df * math.log1p(n / c))


def acceptance_limit(
    n: float, df: int, power: float, tv: float, looks: int = 12
) -> float:
    """Unbiased chi-square statistic below which n draws exclude a bias of `tv`.

    A bias of `tv` stays below it with probability ``(1 - power) / 2`` over all looks.
    """
    return float(stats.ncx2.ppf((1 - power) / 2 / looks, df, 4 * n * tv**2))


def _kept(power: float) -> float:
    """Power at n_max, so that early acceptance may spend the other half of the error."""
    return 1 - (1 - power) / 2


def _first(condition: Callable[[int], bool]) -> int:
    """Smallest n at which a condition that stays true becomes true."""
    high = 16
    while not condition(high):
        high *= 2
        if high > _LARGEST:
            msg = f"more than {_LARGEST:.0e} draws would be needed"
            raise ValueError(msg)
    low = high // 2
    while high - low > max(1, low // 1000):
        middle = (low + high) // 2
        low, high = (low, middle) if condition(middle) else (middle, high)
    return high


def _check(cells: int, level: float, power: float, tv: float) -> None:
    if cells < 2:
        msg = f"cells is {cells}; a decision needs 2 or more"
        raise ValueError(msg)
    check_rates(level=level, power=power, tv=tv)


def check_rates(**rates: float) -> None:
    """Raise `ValueError` unless each of the named rates lies inside (0, 1)."""
    for name, value in rates.items():
        if not 0 < value < 1:
            msg = f"{name} is {value}; allowed is the open interval (0, 1)"
            raise ValueError(msg)
