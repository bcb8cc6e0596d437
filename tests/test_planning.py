# SPDX-License-Identifier: Apache-2.0
"""How many draws a decision takes, and what a number of draws would have shown."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specverify.statistics.planning import (
    acceptance_limit,
    detection,
    min_detectable_tv,
    plan_samples,
    rejection_limit,
)

REPEATABLE = settings(max_examples=60, derandomize=True, deadline=None, database=None)
#: Draws times squared bias at level 1e-9 and power 0.99, from the study of the method.
CONSTANTS = {2: 23.0, 4: 24.9, 16: 31.5, 32: 37.2, 128: 56.9, 1000: 127.5}
RATES = {"level": 1e-9, "power": 0.99}

cells = st.integers(2, 2000)
biases = st.floats(0.003, 0.3)
levels = st.floats(-15, -2).map(lambda exponent: 10**exponent)
powers = st.floats(0.5, 0.999)


def draws(**changed):
    return plan_samples(**{"cells": 32, "tv": 0.05, **RATES, **changed}).n_max


# --- the constants --------------------------------------------------------------------


@pytest.mark.parametrize("tv", [0.01, 0.05])
@pytest.mark.parametrize(("vocab", "constant"), CONSTANTS.items())
def test_draws_times_squared_bias_are_the_constants_of_the_study(vocab, constant, tv):
    assert draws(cells=vocab, tv=tv) * tv**2 == pytest.approx(constant, rel=0.04)


def test_the_constants_are_told_apart_from_each_other():
    """So the claim about them can fail."""
    assert draws(cells=4) * 0.05**2 != pytest.approx(CONSTANTS[2], rel=0.04)


#: Measured on the worst laws, mean of 300 decisions: reports/instrument/README.md.
MEASURED = [(2, 2082, 6031), (4, 2653, 6633), (32, 5129, 10640), (1000, 20727, 40815)]


@pytest.mark.parametrize(("vocab", "right", "wrong"), MEASURED)
def test_mean_numbers_of_draws_are_near_those_measured(vocab, right, wrong):
    plan = plan_samples(cells=vocab, tv=0.05, **RATES)

    assert plan.expected_right == pytest.approx(right, rel=0.1)
    assert plan.expected_wrong == pytest.approx(wrong, rel=0.1)


# --- draws and biases are inverse -----------------------------------------------------


@REPEATABLE
@given(vocab=cells, tv=biases, level=levels, power=powers)
def test_the_planned_draws_see_the_bias(vocab, tv, level, power):
    plan = plan_samples(cells=vocab, level=level, power=power, tv=tv)
    found = min_detectable_tv(samples=plan.n_max, cells=vocab, level=level, power=power)

    assert found <= tv * (1 + 1e-4)


@REPEATABLE
@given(vocab=cells, tv=biases, level=levels, power=powers)
def test_fewer_than_the_planned_draws_do_not(vocab, tv, level, power):
    """One in a hundred less: the planner itself is exact to one in a thousand."""
    plan = plan_samples(cells=vocab, level=level, power=power, tv=tv)
    fewer = min(int(plan.n_max * 0.99), plan.n_max - 2)
    found = min_detectable_tv(samples=fewer, cells=vocab, level=level, power=power)

    assert found > tv


# --- monotone -------------------------------------------------------------------------


@REPEATABLE
@given(vocab=cells, tv=biases)
def test_a_smaller_bias_takes_more_draws(vocab, tv):
    assert draws(cells=vocab, tv=tv / 1.1) > draws(cells=vocab, tv=tv)


@REPEATABLE
@given(vocab=cells, level=levels)
def test_a_stricter_level_takes_more_draws(vocab, level):
    assert draws(cells=vocab, level=level / 10) > draws(cells=vocab, level=level)


@REPEATABLE
@given(vocab=cells, tv=biases)
def test_more_cells_take_more_draws(vocab, tv):
    more = vocab + max(2, vocab // 4)

    assert draws(cells=more, tv=tv) >= draws(cells=vocab, tv=tv)


@REPEATABLE
@given(vocab=cells, power=powers)
def test_more_power_takes_more_draws(vocab, power):
    assert draws(cells=vocab, power=1 - (1 - power) / 2) > draws(
        cells=vocab, power=power
    )


@REPEATABLE
@given(vocab=cells, samples=st.integers(500, 10**7))
def test_more_draws_see_smaller_biases(vocab, samples):
    few = min_detectable_tv(samples=samples, cells=vocab, **RATES)
    many = min_detectable_tv(samples=2 * samples, cells=vocab, **RATES)

    assert many < few


@REPEATABLE
@given(vocab=cells, tv=biases, level=levels, power=powers)
def test_neither_mean_exceeds_the_largest_number_of_draws(vocab, tv, level, power):
    plan = plan_samples(cells=vocab, level=level, power=power, tv=tv)

    assert 0 < plan.expected_right <= plan.n_max
    assert 0 < plan.expected_wrong <= plan.n_max


# --- the approximation beneath --------------------------------------------------------


def test_detection_is_certain_far_beyond_the_plan_and_rare_far_before():
    n = draws()

    assert detection(4 * n, 31, 1e-9, 0.05) > 1 - 1e-9
    assert detection(n / 8, 31, 1e-9, 0.05) < 1e-3


def test_the_rejection_limit_is_beyond_the_quantile_of_its_level():
    """An e-value is never more than the best test of one sample size."""
    from scipy import stats

    assert rejection_limit(draws(), 31, 1e-9, 0.05) > stats.chi2.isf(1e-9, 31)


def test_the_acceptance_limit_spends_half_of_the_error_over_its_looks():
    from scipy import stats

    limit = acceptance_limit(9000, 31, 0.99, 0.05, looks=10)
    error = stats.ncx2.cdf(limit, 31, 4 * 9000 * 0.05**2)
    assert error == pytest.approx(0.01 / 2 / 10, rel=1e-6)


# --- limits and errors ----------------------------------------------------------------


@pytest.mark.parametrize("samples", [0, -3, 1])
def test_too_few_draws_see_nothing(samples):
    assert min_detectable_tv(samples=samples, cells=32, **RATES) == 1


def test_one_cell_cannot_be_biased():
    assert min_detectable_tv(samples=10**6, cells=1, **RATES) == 1


def test_more_draws_than_anyone_has_are_no_error():
    assert 0 < min_detectable_tv(samples=10**17, cells=2, **RATES) <= 1e-6


@pytest.mark.parametrize("rate", [0, 1, -0.5, 1.5, np.nan])
@pytest.mark.parametrize("name", ["level", "power", "tv"])
def test_a_rate_outside_of_zero_to_one_is_named(name, rate):
    with pytest.raises(ValueError, match=rf"{name} is {rate}; .*\(0, 1\)"):
        draws(**{name: rate})


def test_fewer_than_two_cells_are_named():
    with pytest.raises(ValueError, match="cells is 1; a decision needs 2 or more"):
        draws(cells=1)


def test_a_bias_that_nobody_can_pay_for_is_an_error():
    with pytest.raises(ValueError, match=r"more than 1e\+12 draws"):
        draws(tv=1e-7)
