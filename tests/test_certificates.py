# SPDX-License-Identifier: Apache-2.0
"""Upper bounds on the total variation between a sampler and a law."""

from itertools import pairwise

import numpy as np
import pytest
from scipy import stats

from specverify.statistics.certificates import tv_upper, tv_upper_exact

CERTAIN = 1e-9  # How often a test of the tests may fail by chance.
REPEATS = 400
BOUNDS = [tv_upper, tv_upper_exact]
both = pytest.mark.parametrize("bound", BOUNDS, ids=lambda bound: bound.__name__)


def even(vocab):
    return np.full(vocab, 1 / vocab)


def ripple(law, tv):
    """Every other cell raised, the rest lowered."""
    return law + 2 * tv / len(law) * np.where(np.arange(len(law)) % 2, -1, 1)


def misses(bound, law, sampler, n, confidence):
    """How many samples have a bound below the true total variation."""
    true = np.abs(law - sampler).sum() / 2
    counts = np.random.default_rng(7).multinomial(n, sampler, size=REPEATS)
    return sum(
        bound(vector, law, confidence=confidence) < true - 1e-12 for vector in counts
    )


# --- coverage -------------------------------------------------------------------------


@pytest.mark.parametrize(("vocab", "n"), [(2, 2000), (32, 2000), (1000, 500)])
@pytest.mark.parametrize("tv", [0.0, 0.05])
def test_the_asymptotic_bound_holds_its_confidence(vocab, n, tv):
    found = misses(tv_upper, even(vocab), ripple(even(vocab), tv), n, 0.9)

    assert found <= stats.binom.isf(CERTAIN, REPEATS, 0.1)


@pytest.mark.parametrize(("vocab", "n"), [(2, 5), (2, 500), (32, 50), (32, 2000)])
@pytest.mark.parametrize("tv", [0.0, 0.05, 0.4])
def test_the_exact_bound_holds_its_confidence_at_every_size(vocab, n, tv):
    found = misses(tv_upper_exact, even(vocab), ripple(even(vocab), tv), n, 0.9)

    assert found <= stats.binom.isf(CERTAIN, REPEATS, 0.1)


@pytest.mark.parametrize("n", [20, 200, 2000])
def test_counts_that_fit_by_chance_are_covered(n):
    """Both of two cells are hit equally often far more often than 1 time in 100."""
    found = misses(tv_upper, even(2), ripple(even(2), 1e-3), n, 0.99)

    assert found <= stats.binom.isf(CERTAIN, REPEATS, 0.01)


@both
@pytest.mark.parametrize("vocab", [2, 4, 32])
def test_a_perfect_fit_does_not_certify_a_bias_of_zero(bound, vocab):
    n = 3200

    assert bound(n * even(vocab), even(vocab)) > 1 / np.sqrt(n)


def test_the_observed_distance_is_no_bound():
    """So the claims about coverage can fail."""

    def observed(counts, law, *, confidence):
        return np.abs(counts / counts.sum() - law).sum() / 2

    found = misses(observed, even(2), ripple(even(2), 0.05), 2000, 0.9)
    assert found > stats.binom.isf(CERTAIN, REPEATS, 0.1)


@both
@pytest.mark.parametrize("share", [0.05, 0.5])
@pytest.mark.parametrize("cells", [1, 2, 20])
def test_mass_on_impossible_cells_is_covered(bound, cells, share):
    law = np.append(even(cells), 0)
    found = misses(bound, law, np.append(even(cells) * (1 - share), share), 200, 0.9)

    assert found <= stats.binom.isf(CERTAIN, REPEATS, 0.1)


def test_the_exact_bound_is_not_below_the_observed_distance():
    """It is at least what the intervals' centres say."""
    counts = np.array([40, 30, 30])

    assert tv_upper_exact(counts, [0.2, 0.4, 0.4]) > 0.2


def test_the_bound_of_one_possible_outcome_is_the_one_of_clopper_and_pearson():
    found = tv_upper([70, 30], [1.0, 0.0], confidence=0.95)

    assert stats.binom.cdf(30, 100, found) == pytest.approx(0.05, rel=1e-6)


# --- size -----------------------------------------------------------------------------


@both
@pytest.mark.parametrize("vocab", [2, 32])
def test_the_bound_of_a_right_sampler_shrinks_with_the_draws(bound, vocab):
    found = [bound(n * even(vocab), even(vocab)) for n in (320, 3200, 32000, 320000)]

    assert all(many < few for few, many in pairwise(found))
    assert found[-1] < 0.04


@both
def test_the_bound_of_a_wrong_sampler_does_not_shrink_below_its_bias(bound):
    """So the claim about a right one can fail."""
    assert bound(10**6 * ripple(even(4), 0.1), even(4)) > 0.1


@both
def test_more_confidence_gives_a_larger_bound(bound):
    counts = [30, 40, 30]

    assert bound(counts, even(3), confidence=0.999) > bound(counts, even(3))


def test_the_asymptotic_bound_does_not_pay_for_each_cell():
    counts = np.random.default_rng(8).multinomial(10_000, even(1000))

    assert tv_upper(counts, even(1000)) < tv_upper_exact(counts, even(1000)) / 3


def test_the_bound_for_32_cells_is_the_one_of_the_study():
    """Certified at 99 % where the statistic is at its mean: about 2.9 / sqrt(n)."""
    rng = np.random.default_rng(9)
    counts = rng.multinomial(10_000, even(32), size=50)

    assert 0.015 < np.median([tv_upper(c, even(32)) for c in counts]) < 0.04


# --- limits and errors ----------------------------------------------------------------


@both
@pytest.mark.parametrize(
    ("counts", "law"),
    [
        ([0, 0], [0.5, 0.5]),
        ([0, 0], [1, 0]),
        ([0, 0, 5], [0.5, 0.5, 0]),
        ([0, 5], [1, 0]),
    ],
)
def test_nothing_is_certified_without_a_possible_outcome(bound, counts, law):
    assert bound(counts, law) == 1


@both
def test_one_draw_certifies_little(bound):
    assert 0.4 < bound([1, 0, 0], even(3)) <= 1


@both
@pytest.mark.parametrize("confidence", [0, 1, -0.1, 99])
def test_a_confidence_outside_of_zero_to_one_is_named(bound, confidence):
    with pytest.raises(ValueError, match=rf"confidence is {confidence}; .*\(0, 1\)"):
        bound([5, 5], [0.5, 0.5], confidence=confidence)


@both
@pytest.mark.parametrize(
    ("counts", "found"), [([1, 2, 3], "shape"), ([-1, 2], "-1"), ([1, 0.5], "0.5")]
)
def test_counts_that_are_none_are_named(bound, counts, found):
    with pytest.raises(ValueError, match=f"counts h.*{found}"):
        bound(counts, [0.5, 0.5])


@both
def test_a_law_that_does_not_sum_to_one_is_named(bound):
    with pytest.raises(ValueError, match=r"probs has .* sum 0\.9"):
        bound([5, 5], [0.5, 0.4])
