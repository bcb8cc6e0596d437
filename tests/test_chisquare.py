# SPDX-License-Identifier: Apache-2.0
"""Chi-square decisions: the statistic, both error rates, and their planning."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from specverify.statistics.chisquare import (
    goodness_of_fit,
    log_tail,
    min_detectable_tv,
    min_expected,
    min_samples,
    pool,
    power,
    two_sample,
)
from specverify.statistics.impossible import samples_to_see, smallest_seen

REPEATABLE = settings(max_examples=200, derandomize=True, deadline=None, database=None)
CERTAIN = 1e-9  # How often a test of the tests may fail by chance.
LAW = [0.1, 0.2, 0.3, 0.4]
BIASED = [0.12, 0.19, 0.3, 0.39]
levels = st.floats(-12, -1).map(lambda exponent: 10**exponent)


# --- the statistic --------------------------------------------------------------------


@REPEATABLE
@given(counts=st.lists(st.integers(0, 400), min_size=4, max_size=4).filter(any))
def test_without_pooling_the_statistic_is_the_one_of_scipy(counts):
    counts = [count + 200 for count in counts]
    result = goodness_of_fit(counts, LAW, level=0.01)
    reference = stats.chisquare(counts, np.array(LAW) * sum(counts))

    assert result.statistic == pytest.approx(reference.statistic, rel=1e-12)
    assert result.p_value == pytest.approx(reference.pvalue, rel=1e-9)


def test_the_g_statistic_is_the_one_of_scipy():
    counts = [120, 180, 330, 370]
    reference = stats.power_divergence(counts, [100, 200, 300, 400], lambda_=0)

    result = goodness_of_fit(counts, LAW, level=0.01)
    assert result.g_statistic == pytest.approx(reference.statistic, rel=1e-12)


def test_log10_p_is_the_logarithm_of_the_p_value():
    result = goodness_of_fit([120, 180, 330, 370], LAW, level=0.01)

    assert result.log10_p == pytest.approx(math.log10(result.p_value), rel=1e-12)


def test_log10_p_goes_on_where_the_p_value_underflows():
    result = goodness_of_fit([10**6, 0, 0, 0], LAW, level=0.01)

    assert result.p_value == 0
    assert -1e7 < result.log10_p < -1e6


def test_counts_as_the_law_wants_them_give_p_value_one():
    result = goodness_of_fit([10, 20, 30, 40], LAW, level=0.01)

    assert (result.statistic, result.df, result.p_value) == (0, 3, 1)


def test_samples_and_observed_distance_are_reported():
    result = goodness_of_fit([20, 20, 20, 40], LAW, level=0.01)

    assert result.samples == 100
    assert result.tv_estimate == pytest.approx(0.1, rel=1e-12)


# --- pooling --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("level", "least"),
    [(0.05, 5), (1e-3, 15), (1e-5, 15), (1e-6, 30), (1e-8, 30), (1e-9, 100)],
)
def test_smaller_levels_ask_for_larger_expected_counts(level, least):
    assert min_expected(level) == least


@pytest.mark.parametrize(
    ("expected", "groups"),
    [
        ([5, 6, 7], [0, 1, 2]),
        ([5, 2, 7, 3], [0, 2, 1, 2]),
        ([5, 2, 7, 2], [1, 1, 0, 1]),
        ([1, 1, 1], [0, 0, 0]),
        ([1], [0]),
        ([7], [0]),
    ],
    ids=["none rare", "rare ones suffice", "smallest joins", "all rare", "1", "7"],
)
def test_rare_cells_share_a_group_with_the_smallest_other_if_need_be(expected, groups):
    assert pool(expected, 5).tolist() == groups


positive = st.lists(st.floats(0.01, 50), min_size=1, max_size=12)


@REPEATABLE
@given(expected=positive)
def test_every_group_expects_enough_unless_there_is_only_one(expected):
    groups = pool(expected, 5)
    sums = np.bincount(groups, weights=expected)

    assert len(sums) == 1 or sums.min() >= 5


@REPEATABLE
@given(expected=positive)
def test_cells_that_expect_enough_stay_alone_but_for_one(expected):
    groups = pool(expected, 5)
    shared = np.bincount(groups)[groups] > 1
    enough = np.array(expected) >= 5

    assert np.count_nonzero(shared & enough) <= 1


@REPEATABLE
@given(data=st.data(), total=st.integers(100, 300))
def test_what_is_pooled_depends_on_the_number_of_draws_alone(data, total):
    """Two outcomes of one experiment are always judged on the same cells."""
    law = [0.5, 0.3, 0.15, 0.03, 0.02]
    cuts = st.lists(st.integers(0, total), min_size=4, max_size=4).map(sorted)
    first, second = (np.diff([0, *data.draw(cuts), total]).tolist() for _ in range(2))

    dfs = {goodness_of_fit(c, law, level=0.01).df for c in (first, second)}
    assert len(dfs) == 1


def test_the_statistic_of_pooled_cells_is_that_of_their_sums():
    rare = goodness_of_fit([60, 36, 3, 1], [0.6, 0.36, 0.02, 0.02], level=0.05)
    whole = goodness_of_fit([60, 40], [0.6, 0.4], level=0.05)

    assert rare.df == 1
    assert rare.statistic == pytest.approx(whole.statistic, abs=1e-12)


def test_a_single_cell_left_rejects_nothing():
    result = goodness_of_fit([0, 4], [0.5, 0.5], level=0.05)

    assert (result.df, result.p_value, result.log10_p) == (0, 1, 0)


def test_no_draws_reject_nothing():
    assert goodness_of_fit([0, 0], [0.5, 0.5], level=0.05).p_value == 1


# --- impossible cells -----------------------------------------------------------------


@pytest.mark.parametrize("fitted", [0, 1])
def test_one_count_in_an_impossible_cell_is_a_proof(fitted):
    counts, law = [50, 50, 1, 0], [0.5, 0.5, 0, 0]
    result = goodness_of_fit(counts, law, level=0.01, fitted=fitted)

    assert (result.p_value, result.impossible) == (0, (2,))


def test_impossible_cells_without_counts_change_nothing():
    padded = goodness_of_fit([120, 180, 330, 370, 0], [*LAW, 0], level=0.01)

    assert padded == goodness_of_fit([120, 180, 330, 370], LAW, level=0.01)


def test_counts_in_impossible_cells_only_are_a_proof():
    assert goodness_of_fit([0, 0, 7], [0.5, 0.5, 0], level=0.01).p_value == 0


def test_each_fitted_parameter_costs_a_degree_of_freedom():
    counts = [120, 180, 330, 370]
    result = goodness_of_fit(counts, LAW, level=0.01, fitted=1)

    assert result.df == 2
    assert result.p_value == pytest.approx(stats.chi2.sf(result.statistic, 2))


def test_no_degree_of_freedom_is_given_back_where_cells_were_pooled():
    counts, law = [60, 36, 3, 1], [0.6, 0.36, 0.02, 0.02]
    plain = goodness_of_fit(counts, law, level=0.05)

    assert goodness_of_fit(counts, law, level=0.05, fitted=1) == plain


# --- the decision, measured -----------------------------------------------------------


def rejections(law, truth, *, samples, runs, level):
    """How many of `runs` samples from `truth` are refused as samples of `law`."""
    counts = np.random.default_rng(0).multinomial(samples, truth, size=runs)
    p_values = [goodness_of_fit(row, law, level=level).p_value for row in counts]
    return sum(p < level for p in p_values)


def most(runs, rate):
    """More successes than this come about with probability `CERTAIN` at most."""
    return stats.binom.isf(CERTAIN, runs, rate)


def fewest(runs, rate):
    """Fewer successes than this come about with probability `CERTAIN` at most."""
    return stats.binom.ppf(CERTAIN, runs, rate)


RARE = [0.5, 0.3, 0.14, 0.03, 0.02, 0.01]


@pytest.mark.parametrize("law", [LAW, RARE], ids=["plain", "pooled"])
@pytest.mark.parametrize(("level", "runs"), [(1e-3, 4000), (0.05, 1000)])
def test_a_correct_law_is_refused_no_more_often_than_the_level(law, level, runs):
    refused = rejections(law, law, samples=400, runs=runs, level=level)

    assert refused <= most(runs, level)


def test_a_rule_without_pooling_would_be_refused_too_often():
    """So the measurement can fail: two cells here expect a single count each."""
    law = np.array([0.996, 0.002, 0.002])
    counts = np.random.default_rng(0).multinomial(500, law, size=4000)
    p_values = stats.chisquare(counts, 500 * law, axis=1).pvalue

    assert np.count_nonzero(p_values < 1e-3) > most(4000, 1e-3)


def test_a_biased_law_is_refused():
    result = goodness_of_fit([1200, 1900, 3000, 3900], LAW, level=1e-9)

    assert result.p_value < 1e-9


def halves(tv, cells=8):
    """A uniform law and one at distance `tv`, the direction in which chi2 = 4 TV^2."""
    law = np.full(cells, 1 / cells)
    sign = np.where(np.arange(cells) % 2, 1, -1)
    return law, law * (1 + 2 * tv * sign)


@pytest.mark.parametrize("samples", [1500, 3000, 5000])
def test_a_bias_is_seen_as_often_as_the_power_formula_says(samples):
    law, biased = halves(0.03)
    seen = rejections(law, biased, samples=samples, runs=1500, level=1e-3)
    stated = power(samples=samples, cells=8, tv=0.03, level=1e-3)

    assert fewest(1500, stated) <= seen <= most(1500, stated)


def test_in_other_directions_a_bias_is_seen_more_often_than_stated():
    """All of the bias moves from one cell to another."""
    law, biased = np.full(8, 1 / 8), np.full(8, 1 / 8)
    biased[0], biased[1] = 1 / 8 + 0.03, 1 / 8 - 0.03
    seen = rejections(law, biased, samples=1500, runs=1500, level=1e-3)
    stated = power(samples=1500, cells=8, tv=0.03, level=1e-3)

    assert seen > most(1500, stated)


# --- planning -------------------------------------------------------------------------


tvs = st.floats(0.005, 0.5)
cell_numbers = st.integers(2, 200)


@REPEATABLE
@given(tv=tvs, cells=cell_numbers, level=levels)
def test_the_planned_samples_detect_the_planned_bias(tv, cells, level):
    """One draw fewer does not."""
    samples = min_samples(tv=tv, cells=cells, level=level, power=0.99)
    plan = {"cells": cells, "level": level, "power": 0.99}

    assert min_detectable_tv(samples=samples, **plan) <= tv * (1 + 1e-9)
    fewer = min_detectable_tv(samples=samples - 1, **plan)
    assert fewer > tv * (1 - 1e-9)


@REPEATABLE
@given(samples=st.integers(1000, 10**6), cells=cell_numbers, level=levels)
def test_at_the_detectable_bias_the_power_is_the_stated_one(samples, cells, level):
    tv = min_detectable_tv(samples=samples, cells=cells, level=level, power=0.9)

    reached = power(samples=samples, cells=cells, tv=tv, level=level)
    assert tv == 1 or reached == pytest.approx(0.9, abs=1e-6)


def test_no_draws_detect_nothing():
    assert min_detectable_tv(samples=0, cells=4, level=1e-9, power=0.99) == 1


def test_one_cell_shows_no_bias():
    """Whatever the draws."""
    plan = {"cells": 1, "level": 1e-9}

    assert min_detectable_tv(samples=10**9, power=0.99, **plan) == 1
    assert power(samples=10**9, tv=0.5, **plan) == 0


# --- the tail -------------------------------------------------------------------------


def exact_log_tail(statistic, df):
    """The tail for even df: ``exp(-x) sum_{j < df/2} x^j / j!``, by logarithms."""
    x = statistic / 2
    terms = [j * math.log(x) - x - math.lgamma(j + 1) for j in range(df // 2)]
    largest = max(terms)
    return largest + math.log(math.fsum(math.exp(t - largest) for t in terms))


@pytest.mark.parametrize("df", [1, 2, 7, 100, 1000])
@pytest.mark.parametrize("quotient", [0.5, 1, 2])
def test_the_log_tail_is_the_one_of_scipy_where_that_is_finite(df, quotient):
    reference = stats.chi2.logsf(df * quotient, df)

    assert log_tail(df * quotient, df) == pytest.approx(reference, rel=1e-12)


def underflow(df):
    """A statistic of which the tail has just become zero in float64."""
    return next(x for x in range(1400, 10**6, 20) if stats.chi2.sf(x, df) == 0)


@pytest.mark.parametrize("df", [2, 4, 8, 20, 100, 1000, 10_000])
@pytest.mark.parametrize("further", [1, 2, 10, 1000])
def test_the_log_tail_is_within_a_thousandth_where_scipy_underflows(df, further):
    statistic = further * underflow(df)

    expected = exact_log_tail(statistic, df)
    assert log_tail(statistic, df) == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("df", [1, 2, 5, 40, 400])
def test_the_log_tail_falls_without_a_jump_where_scipy_underflows(df):
    """Steps of 1 in the statistic cost about 1/2, on both sides of the change."""
    start = int(stats.chi2.isf(1e-300, df))
    tail = [log_tail(start + i, df) for i in range(300)]
    steps = -np.diff(tail)

    assert not np.isfinite(stats.chi2.logsf(start + 299, df))
    assert 0.2 < steps.min() <= steps.max() < 0.8


# --- two samples ----------------------------------------------------------------------


def test_the_statistic_of_two_samples_is_that_of_their_contingency_table():
    first, second = [120, 180, 330, 370], [60, 110, 140, 190]
    result = two_sample(first, second, level=0.01)
    reference = stats.chi2_contingency([first, second], correction=False)

    assert result.df == reference.dof == 3
    assert result.statistic == pytest.approx(reference.statistic, rel=1e-12)
    assert result.p_value == pytest.approx(reference.pvalue, rel=1e-9)


def two_sample_rejections(first, second, runs, level):
    rng = np.random.default_rng(0)
    a, b = rng.multinomial(800, first, runs), rng.multinomial(500, second, runs)
    pairs = zip(a, b, strict=True)
    return sum(two_sample(x, y, level=level).p_value < level for x, y in pairs)


@pytest.mark.parametrize("law", [LAW, RARE], ids=["plain", "pooled"])
def test_two_samples_of_one_law_are_told_apart_no_more_often_than_the_level(law):
    assert two_sample_rejections(law, law, 2000, 0.01) <= most(2000, 0.01)


def test_two_samples_of_different_laws_are_told_apart_more_often():
    assert two_sample_rejections(LAW, BIASED[::-1], 50, 0.01) == 50


def test_cells_that_neither_sample_shows_do_not_count():
    first, second = [120, 0, 180], [60, 0, 110]
    bare = two_sample([120, 180], [60, 110], level=0.01)

    assert two_sample(first, second, level=0.01) == bare


def test_two_samples_of_one_cell_are_alike():
    assert two_sample([9], [7], level=0.01).p_value == 1


# --- impossible events ----------------------------------------------------------------


@REPEATABLE
@given(mass=st.floats(1e-6, 0.999), power=st.floats(0.01, 0.999999))
def test_as_many_draws_as_planned_see_an_impossible_event(mass, power):
    """One draw fewer sees it too rarely."""
    samples = samples_to_see(mass, power=power)

    assert (1 - mass) ** samples <= (1 - power) * (1 + 1e-9)
    assert (1 - mass) ** (samples - 1) >= (1 - power) * (1 - 1e-9)


@REPEATABLE
@given(samples=st.integers(1, 10**6))
def test_the_smallest_mass_seen_needs_just_these_draws(samples):
    mass = smallest_seen(samples, power=0.99)

    assert (1 - mass) ** samples == pytest.approx(0.01, rel=1e-6)


def test_one_draw_sees_what_always_happens():
    assert samples_to_see(1.0, power=0.99) == 1


def test_without_draws_no_impossible_event_is_seen():
    assert smallest_seen(0, power=0.99) == 1


# --- errors ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "pattern"),
    [
        ({"level": 0}, r"^level is 0; .* \(0, 1\)"),
        ({"level": 1.0}, r"^level is 1.0; .* \(0, 1\)"),
        (
            {"counts": [1, 2, 3]},
            r"^counts has shape \(3,\), probs \(4,\); .* \[cells\]",
        ),
        ({"counts": [[1, 2], [3, 4]]}, r"^counts has shape \(2, 2\), .* \[cells\]"),
        ({"counts": [1, 2, -3, 4]}, "^counts holds -3; .* whole numbers from 0"),
        ({"counts": [1, 2, 0.5, 4]}, "^counts holds 0.5; .* whole numbers from 0"),
        ({"counts": [1, 2, math.nan, 4]}, "^counts holds nan; .* whole numbers"),
        ({"probs": [0.1, 0.2, 0.3, 0.5]}, "^probs has .* sum 1.1; .* sum to 1 within"),
        ({"probs": [-0.1, 0.4, 0.3, 0.4]}, "^probs has minimum -0.1 .* non-negative"),
        ({"probs": [math.nan, 0.4, 0.3, 0.3]}, "^probs has minimum nan .* non-neg"),
        ({"counts": [], "probs": []}, "^(counts|probs) "),
    ],
    ids=str,
)
def test_a_bad_argument_is_refused_by_name_with_found_and_allowed(change, pattern):
    arguments = {"counts": [1, 2, 3, 4], "probs": LAW, "level": 0.01, **change}
    with pytest.raises(ValueError, match=pattern):
        goodness_of_fit(**arguments)


@pytest.mark.parametrize(
    ("change", "pattern"),
    [
        (
            {"second": [1, 2, 3]},
            r"^first has shape \(2,\) and 3 .*, second \(3,\) and 6",
        ),
        (
            {"second": [0, 0]},
            r"second \(2,\) and 0; both need counts over the same cel",
        ),
        ({"first": [0, 0]}, r"^first has shape \(2,\) and 0 counts"),
        ({"first": [-1, 5]}, "^first holds -1; .* whole numbers from 0"),
        ({"second": [0.5, 5]}, "^second holds 0.5; .* whole numbers from 0"),
        ({"level": 7}, r"^level is 7; .* \(0, 1\)"),
    ],
    ids=str,
)
def test_bad_samples_are_refused_by_name_with_found_and_allowed(change, pattern):
    arguments = {"first": [1, 2], "second": [3, 4], "level": 0.01, **change}
    with pytest.raises(ValueError, match=pattern):
        two_sample(**arguments)


@pytest.mark.parametrize("name", ["tv", "level", "power"])
@pytest.mark.parametrize("value", [0, 1, -0.5])
def test_a_rate_outside_its_interval_is_refused_by_name(name, value):
    plan = {"tv": 0.1, "level": 0.01, "power": 0.9, name: value}
    with pytest.raises(ValueError, match=rf"^{name} is {value}; .* \(0, 1\)"):
        min_samples(cells=4, **plan)
