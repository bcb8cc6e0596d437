# SPDX-License-Identifier: Apache-2.0
"""Assertions about categorical samplers, with both errors stated.

Each claim comes as three functions, to be used together in a test that one writes once
and never touches again:

``min_samples_*``
    how many draws make the assertion worth anything: decide on the bias that must not
    slip through and draw this many;
``assert_*``
    raises `AssertionError` if the draws contradict the claim;
``min_detectable_*``
    what bias a given number of draws would have shown: a design check, to be asserted
    beside the test so that nobody can make it blind by drawing less.

Guarantee, for each ``assert_*`` at error rate a:

(a) if the claim holds, the assertion fails with probability at most a;
(b) if the sampler is off by ``min_detectable_*(samples=n, ...)`` or more in total
    variation, an assertion on n draws passes with probability at most ``1 - power``
    (asymptotically, worst direction). `assert_follows_law` is to be given that bias, or
    the one that the draws were planned for, as its `tv`.

The claim (a) is exact and holds for every n: the decision is an e-value, see `evalues`.
So a sample may also be enlarged until the matter is clear, and tested again.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from specverify.statistics import planning, two_sample
from specverify.statistics.certificates import tv_upper
from specverify.statistics.evalues import Portfolio, checked_law

DEFAULT_ERROR_RATE = 1e-9
DEFAULT_POWER = 0.99
DEFAULT_TV = 0.01


def assert_follows_law(
    counts: ArrayLike,
    probs: ArrayLike,
    *,
    error_rate: float = DEFAULT_ERROR_RATE,
    tv: float = DEFAULT_TV,
    draft: ArrayLike | None = None,
) -> None:
    """Assert that counts come from independent draws of a known categorical law.

    Parameters
    ----------
    counts
        Whole numbers [cells].
    probs
        The law [cells], sums to 1.
    error_rate
        Probability of failing although the law holds.
    tv
        Smallest bias that must be seen, as given to `min_samples_follows_law`; larger
        ones are looked for too. To enlarge a sample and test again, leave it as it was.
    draft
        A second law that a wrong sampler may lean to; the test then also looks along
        the ratio of the two.

    Raises
    ------
    AssertionError
        The draws contradict the law; the message says how strongly and where.
    ValueError
        Bad arguments.

    Examples
    --------
    >>> assert_follows_law([5021, 2489, 2490], [0.5, 0.25, 0.25])
    >>> assert_follows_law([5500, 2250, 2250], [0.5, 0.25, 0.25])
    Traceback (most recent call last):
    ...
    AssertionError: the draws do not follow the law: ...
    """
    _check_rate("error_rate", error_rate)
    law = checked_law("probs", probs)
    evidence = Portfolio(law, draft=draft, smallest_tv=tv).evaluate(counts)
    if evidence.log_e < math.log(1 / error_rate):
        return
    seen = np.asarray(counts, np.float64)
    n = seen.sum()
    with np.errstate(divide="ignore", invalid="ignore"):
        score = np.abs(seen - n * law) / np.sqrt(n * law)
    worst = int(
        np.argmax(np.where((law == 0) & (seen > 0), np.inf, np.nan_to_num(score)))
    )
    strength = (
        f"cell {evidence.impossible[0]} has probability 0 and was seen"
        if evidence.impossible
        else f"e-value 1e{evidence.log_e / math.log(10):.1f} ({evidence.strongest}), "
        f"limit {1 / error_rate:.0e}"
    )
    msg = (
        f"the draws do not follow the law: {strength}; cell {worst} was seen "
        f"{seen[worst]:.0f} times in {n:.0f}, expected {n * law[worst]:.1f}; total "
        f"variation at most {tv_upper(seen, law):.3g} (confidence 0.99)"
    )
    raise AssertionError(msg)


def min_samples_follows_law(
    *,
    tv: float,
    cells: int,
    error_rate: float = DEFAULT_ERROR_RATE,
    power: float = DEFAULT_POWER,
) -> int:
    """Draws after which `assert_follows_law` sees a bias of `tv` with `power`."""
    plan = planning.plan_samples(cells=cells, level=error_rate, power=power, tv=tv)
    return plan.n_max


def min_detectable_follows_law(
    *,
    samples: int,
    cells: int,
    error_rate: float = DEFAULT_ERROR_RATE,
    power: float = DEFAULT_POWER,
) -> float:
    """Smallest total variation that `assert_follows_law` sees on `samples` draws."""
    if samples < 0:
        msg = f"samples is {samples}; allowed is 0 or more"
        raise ValueError(msg)
    return planning.min_detectable_tv(
        samples=samples, cells=cells, level=error_rate, power=power
    )


def assert_same_law(
    first: ArrayLike,
    second: ArrayLike,
    *,
    cells: int,
    error_rate: float = DEFAULT_ERROR_RATE,
) -> None:
    """Assert that two sequences of outcomes come from one law, known to nobody.

    Parameters
    ----------
    first, second
        Outcome of each request in order, integers in ``range(cells)``. The request is
        the unit: its tokens depend on each other, so they make one outcome together.
    cells
        Number of possible outcomes.
    error_rate
        Probability of failing although the laws agree.

    Raises
    ------
    AssertionError
        The laws differ.
    ValueError
        Bad arguments.
    """
    _check_rate("error_rate", error_rate)
    log_e = two_sample.log_two_sample(first, second, cells=cells)
    if log_e >= math.log(1 / error_rate):
        pairs = min(len(np.asarray(first)), len(np.asarray(second)))
        msg = (
            f"the two samples follow different laws: e-value 1e{log_e / math.log(10):.1f}, "
            f"limit {1 / error_rate:.0e}, {pairs} pairs of requests"
        )
        raise AssertionError(msg)


def min_samples_same_law(
    *,
    tv: float,
    cells: int,
    error_rate: float = DEFAULT_ERROR_RATE,
    power: float = DEFAULT_POWER,
) -> int:
    """Requests an arm after which `assert_same_law` sees a difference of `tv`."""
    return two_sample.min_samples_two_sample(
        tv=tv, cells=cells, error_rate=error_rate, power=power
    )


def min_detectable_same_law(
    *,
    samples: int,
    cells: int,
    error_rate: float = DEFAULT_ERROR_RATE,
    power: float = DEFAULT_POWER,
) -> float:
    """Smallest difference that `assert_same_law` sees on `samples` requests an arm."""
    if samples < 0:
        msg = f"samples is {samples}; allowed is 0 or more"
        raise ValueError(msg)
    share = int(samples / two_sample.NOISE)
    return min_detectable_follows_law(
        samples=share, cells=cells, error_rate=error_rate, power=power
    )


def _check_rate(name: str, value: float) -> None:
    if not 0 < value < 1:
        msg = f"{name} is {value}; allowed is the open interval (0, 1)"
        raise ValueError(msg)
