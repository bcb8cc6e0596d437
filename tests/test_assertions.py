# SPDX-License-Identifier: Apache-2.0
"""Assertions about samplers: three functions a claim, and what they promise."""

import doctest
import math

import numpy as np
import pytest
from scipy import stats

from specverify.statistics import assertions
from specverify.statistics.assertions import (
    assert_follows_law,
    assert_same_law,
    min_detectable_follows_law,
    min_detectable_same_law,
    min_samples_follows_law,
    min_samples_same_law,
)

CERTAIN = 1e-9  # How often a test of the tests may fail by chance.
LAW = [0.5, 0.25, 0.25]
TRIPLES = [
    (min_samples_follows_law, min_detectable_follows_law),
    (min_samples_same_law, min_detectable_same_law),
]
both = pytest.mark.parametrize(("needed", "seen"), TRIPLES, ids=["follows", "same"])


def ripple(cells, tv):
    return (1 + 2 * tv * np.where(np.arange(cells) % 2, -1, 1)) / cells


def fails(claim, *args, **options):
    """Whether an assertion fails."""
    try:
        claim(*args, **options)
    except AssertionError:
        return True
    return False


def test_the_examples_in_the_documentation_are_right():
    found = doctest.testmod(assertions, optionflags=doctest.ELLIPSIS)

    assert found.attempted >= 2
    assert found.failed == 0


# --- a known law ----------------------------------------------------------------------


def test_draws_from_the_law_pass():
    assert_follows_law(np.random.default_rng(0).multinomial(10**6, LAW), LAW)


def test_draws_from_another_law_fail():
    assert fails(assert_follows_law, [5500, 2250, 2250], LAW)


def test_no_draws_pass():
    assert_follows_law([0, 0, 0], LAW)


def test_the_law_fails_no_more_often_than_the_error_rate_says():
    counts = np.random.default_rng(1).multinomial(200, LAW, size=300)
    found = sum(fails(assert_follows_law, c, LAW, error_rate=0.05) for c in counts)

    assert found <= stats.binom.isf(CERTAIN, 300, 0.05)


@pytest.mark.parametrize(
    ("cells", "tv"), [(2, 0.05), (32, 0.05), (32, 0.2), (32, 0.002), (300, 0.002)]
)
def test_the_planned_draws_miss_the_bias_no_more_often_than_stated(cells, tv):
    """Twice as often: the plan is an approximation."""
    n = min_samples_follows_law(tv=tv, cells=cells)
    counts = np.random.default_rng(2).multinomial(n, ripple(cells, tv), size=60)
    law = ripple(cells, 0.0)

    missed = sum(not fails(assert_follows_law, c, law, tv=tv) for c in counts)
    assert missed <= stats.binom.isf(CERTAIN, 60, 0.02)


@pytest.mark.parametrize("cells", [2, 32])
def test_a_quarter_of_the_planned_draws_misses_it_more_often(cells):
    """So the claim about the planned draws can fail."""
    n = min_samples_follows_law(tv=0.05, cells=cells) // 4
    counts = np.random.default_rng(2).multinomial(n, ripple(cells, 0.05), size=60)
    law = ripple(cells, 0.0)

    missed = sum(not fails(assert_follows_law, c, law, tv=0.05) for c in counts)
    assert missed > stats.binom.isf(CERTAIN, 60, 0.02)


def test_the_message_says_how_strongly_and_where_the_draws_deviate():
    with pytest.raises(
        AssertionError,
        match=r"e-value 1e\d+\.\d \(\w+\), limit 1e\+09; "
        r"cell 0 was seen 5500 times in 10000, expected 5000\.0; "
        r"total variation at most 0\.0\d+ \(confidence 0\.99\)",
    ):
        assert_follows_law([5500, 2250, 2250], LAW)


@pytest.mark.parametrize("counts", [[5, 5, 1], [0, 0, 1], [10**6, 10**6, 2]])
def test_the_message_names_an_impossible_cell(counts):
    with pytest.raises(
        AssertionError, match=r"cell 2 has probability 0 and was seen; cell 2 was seen"
    ):
        assert_follows_law(counts, [0.5, 0.5, 0.0])


def test_a_stricter_error_rate_lets_more_pass():
    counts = [5230, 2385, 2385]

    assert fails(assert_follows_law, counts, LAW, error_rate=0.01)
    assert not fails(assert_follows_law, counts, LAW, error_rate=1e-9)


def test_a_draft_lets_its_leak_be_seen_earlier():
    rng = np.random.default_rng(3)
    law, draft = np.full(200, 1 / 200), rng.dirichlet(np.ones(200))
    counts = rng.multinomial(4000, 0.85 * law + 0.15 * draft)

    assert fails(assert_follows_law, counts, law, draft=draft)
    assert not fails(assert_follows_law, counts, law)


# --- two samples ----------------------------------------------------------------------


def outcomes(law, n, seed):
    return np.random.default_rng(seed).choice(len(law), n, p=law)


def test_equal_samplers_pass():
    first, second = (outcomes(ripple(4, 0.0), 6000, seed) for seed in (4, 5))

    assert_same_law(first, second, cells=4)


def test_unequal_samplers_fail_on_the_planned_requests():
    n = min_samples_same_law(tv=0.1, cells=4)
    first, second = outcomes(ripple(4, 0.0), n, 4), outcomes(ripple(4, 0.1), n, 5)

    assert fails(assert_same_law, first, second, cells=4)


def test_the_message_says_how_strongly_the_samples_differ():
    with pytest.raises(
        AssertionError,
        match=r"different laws: e-value 1e\d+\.\d, limit 1e\+09, 400 pairs of requests",
    ):
        assert_same_law([0] * 400, [1] * 500, cells=2)


# --- planning -------------------------------------------------------------------------


@both
@pytest.mark.parametrize("cells", [2, 32, 300])
def test_the_draws_for_a_bias_see_that_bias(needed, seen, cells):
    samples = needed(tv=0.05, cells=cells)

    assert seen(samples=samples, cells=cells) == pytest.approx(0.05, rel=0.01)


@both
def test_a_smaller_bias_takes_more_draws(needed, seen):
    assert needed(tv=0.02, cells=8) > 5 * needed(tv=0.05, cells=8)


@both
def test_no_draws_see_nothing(needed, seen):
    assert seen(samples=0, cells=8) == 1


@both
def test_rates_are_passed_on_to_the_plan(needed, seen):
    rates = {"error_rate": 1e-3, "power": 0.8}

    assert needed(tv=0.05, cells=8, **rates) < needed(tv=0.05, cells=8) / 2
    assert seen(samples=5000, cells=8, **rates) < seen(samples=5000, cells=8) / 1.4


def test_a_law_that_nobody_knows_takes_more_draws():
    assert min_samples_same_law(tv=0.05, cells=8) > 2 * min_samples_follows_law(
        tv=0.05, cells=8
    )


# --- errors ---------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [0, 1, -0.5, 2, math.nan])
def test_an_error_rate_outside_of_zero_to_one_is_named(rate):
    said = rf"error_rate is {rate}; .*\(0, 1\)"

    with pytest.raises(ValueError, match=said):
        assert_follows_law([5, 5], [0.5, 0.5], error_rate=rate)
    with pytest.raises(ValueError, match=said):
        assert_same_law([0], [0], cells=2, error_rate=rate)


@both
def test_a_negative_number_of_draws_is_named(needed, seen):
    with pytest.raises(ValueError, match="samples is -5; allowed is 0 or more"):
        seen(samples=-5, cells=2)


@pytest.mark.parametrize("counts", [[5], [5, -1], [5, 0.5]])
def test_counts_that_are_none_are_an_error(counts):
    with pytest.raises(ValueError, match="counts h"):
        assert_follows_law(counts, [0.5, 0.5])


def test_a_law_that_does_not_sum_to_one_is_an_error():
    with pytest.raises(ValueError, match=r"probs has .* sum 0\.9"):
        assert_follows_law([5, 5], [0.5, 0.4])


def test_an_outcome_outside_of_the_cells_is_an_error():
    with pytest.raises(ValueError, match="second holds 2"):
        assert_same_law([0, 1], [0, 2], cells=2)
