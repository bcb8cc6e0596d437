# SPDX-License-Identifier: Apache-2.0
"""E-values against a known law: a mean of at most 1 whatever the sample size."""

import math
from itertools import combinations

import numpy as np
import pytest
from scipy import stats

from specverify.statistics.evalues import (
    EValue,
    Portfolio,
    checked_law,
    concentrations,
    log_cells,
    log_dirichlet,
    log_mean,
    log_mixed,
)

CERTAIN = 1e-9  # How often a test of the tests may fail by chance.
ROUNDING = 1 + 1e-9
LAWS = [
    np.array([0.5, 0.5]),
    np.array([0.9, 0.1]),
    np.array([0.2, 0.3, 0.5]),
    np.array([0.01, 0.04, 0.95]),
    np.array([0.1, 0.2, 0.3, 0.4]),
    np.array([1e-6, 0.3, 0.3, 0.4 - 1e-6]),
]
SIZES = [1, 2, 5, 9]
every_law = pytest.mark.parametrize("law", LAWS, ids=lambda law: f"{law.tolist()}")
every_size = pytest.mark.parametrize("n", SIZES)


def all_counts(cells, n):
    """Every count vector of n draws, [vectors, cells]."""
    bars = np.array(list(combinations(range(n + cells - 1), cells - 1)))
    edges = np.pad(
        bars, ((0, 0), (1, 1)), constant_values=((0, 0), (-1, n + cells - 1))
    )
    return (np.diff(edges) - 1).astype(float)


def mean(log_e, law, n):
    """Exact mean of an e-value of n draws under a law."""
    counts = all_counts(len(law), n)
    chances = stats.multinomial.pmf(counts, n, law / law.sum())
    return float(sum(chances * np.exp([log_e(vector) for vector in counts])))


def reversed_law(law):
    return law[::-1].copy()


def flawed(counts, law):
    """The largest likelihood ratio instead of an average: no e-value."""
    n = counts.sum()
    seen = counts > 0
    return float(counts[seen] @ np.log(counts[seen] / n / law[seen]))


# --- the mean is at most 1 ------------------------------------------------------------


@pytest.mark.parametrize(("cells", "n"), [(2, 9), (3, 5), (4, 7)])
def test_the_enumeration_meets_every_count_vector_once(cells, n):
    counts = all_counts(cells, n)

    assert len(np.unique(counts, axis=0)) == math.comb(n + cells - 1, cells - 1)
    assert set(counts.sum(axis=1)) == {n}
    assert counts.min() == 0


@every_size
@every_law
@pytest.mark.parametrize("tv", [0.001, 0.01, 0.3])
def test_dirichlet_mixtures_have_mean_one(law, n, tv):
    grid = concentrations(len(law) - 1, tv)

    found = mean(lambda counts: log_dirichlet(counts, law, grid), law, n)
    assert found == pytest.approx(1, rel=1e-6)


@every_size
@every_law
def test_single_cell_mixtures_have_mean_one(law, n):
    found = mean(lambda counts: log_cells(counts, law), law, n)

    assert found == pytest.approx(1, rel=1e-9)


@every_size
@every_law
def test_mixed_in_laws_have_mean_one(law, n):
    others = {"reversed": reversed_law(law), "even": np.full(len(law), 1 / len(law))}

    found = mean(lambda counts: log_mixed(counts, law, others), law, n)
    assert found == pytest.approx(1, rel=1e-9)


@every_size
@every_law
@pytest.mark.parametrize("tv", [0.002, 0.05])
def test_the_whole_portfolio_has_mean_at_most_one(law, n, tv):
    portfolio = Portfolio(
        law,
        draft=reversed_law(law),
        alternatives={"even": np.full(len(law), 1 / len(law))},
        smallest_tv=tv,
    )

    found = mean(lambda counts: portfolio.evaluate(counts).log_e, law, n)
    assert 0.5 < found <= 1 + 1e-6


def test_a_portfolio_with_all_its_parts_has_mean_at_most_one():
    """Bins join only where they are coarser than the cells."""
    law = np.array([0.46, 0.46, 0.02, 0.02, 0.02, 0.02])
    portfolio = Portfolio(law, draft=law[[2, 0, 4, 3, 1, 5]])

    assert set(portfolio.evaluate(np.zeros(6)).parts) == {
        *("spread", "cells", "rank", "blocks", "ratio", "known")
    }
    assert mean(lambda c: portfolio.evaluate(c).log_e, law, 5) <= 1 + 1e-6


@every_law
def test_a_draft_that_excludes_cells_leaves_the_mean_at_most_one(law):
    point = np.eye(len(law))[0]
    portfolio = Portfolio(law, draft=point)

    assert mean(lambda c: portfolio.evaluate(c).log_e, law, 6) <= 1 + 1e-6


@every_law
def test_a_draft_with_mass_on_impossible_cells_leaves_the_mean_at_most_one(law):
    portfolio = Portfolio(np.append(law, 0), draft=np.append(law / 2, 0.5))

    found = mean(lambda c: portfolio.evaluate(np.append(c, 0)).log_e, law, 6)
    assert found <= ROUNDING


@every_law
def test_the_mean_exceeds_one_under_another_law(law):
    """So the claims about the mean can fail."""
    portfolio = Portfolio(law)
    other = np.roll(law, 1) if len(set(law)) > 1 else np.array([0.9, 0.1])

    assert mean(lambda counts: portfolio.evaluate(counts).log_e, other, 9) > ROUNDING


@every_law
def test_the_mean_of_a_maximised_likelihood_ratio_exceeds_one(law):
    """So the claims about the mean can fail through a wrong e-value, too."""
    assert mean(lambda counts: flawed(counts, law), law, 9) > 1.5


# --- it may be watched ----------------------------------------------------------------

SEQUENCES = 250
WATCHED = np.unique(np.geomspace(1, 2000, 25).astype(int))


def alarms(portfolio, law, level=0.05):
    """Sequences whose e-value reaches 1/level at some look."""
    rng = np.random.default_rng(1)
    seen = np.zeros((SEQUENCES, len(law)))
    crossed = np.zeros(SEQUENCES, dtype=bool)
    for before, now in zip([0, *WATCHED], WATCHED, strict=False):
        seen += rng.multinomial(now - before, law, size=SEQUENCES)
        logs = [portfolio.evaluate(counts).log_e for counts in seen]
        crossed |= np.array(logs) >= math.log(1 / level)
    return int(crossed.sum())


def test_the_law_itself_reaches_twenty_in_at_most_a_twentieth_of_the_sequences():
    law = LAWS[4]
    portfolio = Portfolio(law, draft=reversed_law(law), smallest_tv=0.05)

    assert alarms(portfolio, law) <= stats.binom.isf(CERTAIN, SEQUENCES, 0.05)


def test_another_law_reaches_twenty_in_more_of_them():
    """So the claim about the law itself can fail."""
    portfolio = Portfolio(LAWS[4], smallest_tv=0.05)

    found = alarms(portfolio, np.array([0.15, 0.2, 0.3, 0.35]))
    assert found > stats.binom.isf(CERTAIN, SEQUENCES, 0.05)


# --- the parts ------------------------------------------------------------------------


@pytest.mark.parametrize("c", [3.0, 700.0])
@every_law
def test_one_concentration_gives_the_dirichlet_multinomial_of_scipy(law, c):
    counts = np.random.default_rng(2).multinomial(60, law[::-1]).astype(float)
    reference = stats.dirichlet_multinomial.logpmf(counts.astype(int), c * law, 60)
    null = stats.multinomial.logpmf(counts, 60, law)

    found = log_dirichlet(counts, law, np.array([c]))
    assert found == pytest.approx(reference - null, rel=1e-9)


def test_a_grid_gives_half_of_the_weight_to_its_first_concentration():
    law, grid, counts = LAWS[4], np.array([900.0, 30.0, 4.0]), np.array([9.0, 1, 7, 3])
    single = [math.exp(log_dirichlet(counts, law, grid[[i]])) for i in range(3)]

    found = math.exp(log_dirichlet(counts, law, grid))
    assert found == pytest.approx(np.dot([0.5, 0.25, 0.25], single), rel=1e-9)


def test_a_concentration_is_the_degrees_of_freedom_over_four_squared_biases():
    grid = concentrations(31, 0.05)

    assert grid.max() == pytest.approx(31 / 4 / 0.05**2)
    assert grid.min() == pytest.approx(31 / 4 / 0.25**2)


def test_the_bias_that_is_asked_for_comes_first_of_the_grid():
    """The planner relies on the half of the weight that it carries there."""
    grid = concentrations(31, 0.05)
    counts, law = np.full(32, 10.0), np.full(32, 1 / 32)
    alone = log_dirichlet(counts, law, np.array([31 / 4 / 0.05**2]))

    assert log_dirichlet(counts, law, grid) >= alone + math.log(0.5)


def test_no_draws_are_no_evidence():
    assert Portfolio(LAWS[4], draft=LAWS[4]).evaluate([0] * 4).log_e == pytest.approx(0)


def test_the_combined_e_value_is_the_average_of_the_parts():
    evidence = Portfolio(LAWS[4], draft=LAWS[4][::-1]).evaluate([9, 1, 7, 3])

    assert evidence.log_e == pytest.approx(log_mean(list(evidence.parts.values())))


def test_log_mean_is_the_logarithm_of_the_average():
    assert log_mean([0, math.log(3), -math.inf]) == pytest.approx(math.log(4 / 3))


def test_the_kind_of_alternative_that_fits_best_is_named():
    assert EValue(1.0, {"spread": 0.5, "cells": 2.0}).strongest == "cells"


def test_a_missing_rare_cell_is_found_by_the_single_cells():
    law = np.append(np.full(200, 0.97 / 200), 0.03)
    counts = np.append(np.full(200, 15.0), 0)

    assert Portfolio(law).evaluate(counts).strongest == "cells"


def test_a_leak_of_the_draft_is_found_by_the_known_laws():
    law, draft = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.3, 0.5])

    evidence = Portfolio(law, draft=draft).evaluate([4850, 3000, 2150])
    assert evidence.strongest == "known"


def test_one_law_of_a_single_cell_has_no_alternatives():
    portfolio = Portfolio([1.0, 0.0])

    assert portfolio.size == 0
    assert portfolio.evaluate([9, 0]).log_e == 0


# --- large vocabularies and samples ---------------------------------------------------


@pytest.fixture(scope="module")
def large():
    """A law as a language model has it, over 128,000 tokens."""
    weights = 1 / np.arange(1, 128_001) ** 1.2
    return weights / weights.sum()


def test_a_large_vocabulary_and_sample_give_a_finite_e_value(large):
    counts = np.random.default_rng(3).multinomial(10**7, large)
    evidence = Portfolio(large, draft=np.roll(large, 1)).evaluate(counts)

    assert all(math.isfinite(value) for value in evidence.parts.values())
    assert evidence.log_e < math.log(1 / CERTAIN)


def test_a_bias_over_a_large_vocabulary_is_found(large):
    """So the claim about the large e-value can fail."""
    biased = np.where(np.arange(len(large)) % 2, 1.1, 0.9) * large
    counts = np.random.default_rng(3).multinomial(10**7, biased / biased.sum())

    assert Portfolio(large).evaluate(counts).log_e > math.log(1 / CERTAIN)


def test_masses_as_small_as_float64_has_them_are_no_error():
    evidence = Portfolio([1.0, 1e-310], draft=[0.5, 0.5]).evaluate([1000, 1])

    assert math.log(1 / CERTAIN) < evidence.log_e < math.inf


# --- impossible cells -----------------------------------------------------------------


def test_a_count_in_an_impossible_cell_is_certain():
    evidence = Portfolio([0.5, 0.0, 0.5, 0.0]).evaluate([5, 1, 5, 2])

    assert evidence.log_e == math.inf
    assert evidence.impossible == (1, 3)


def test_an_empty_impossible_cell_changes_nothing():
    law, counts = [0.1, 0.2, 0.7], [30, 20, 50]
    evidence = Portfolio([*law, 0.0]).evaluate([*counts, 0])

    assert evidence.impossible == ()
    assert evidence.log_e == pytest.approx(Portfolio(law).evaluate(counts).log_e)


# --- errors ---------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [0, 1, -0.1, 2])
def test_a_bias_outside_of_zero_to_one_is_named(rate):
    with pytest.raises(ValueError, match=rf"smallest_tv is {rate}; .*\(0, 1\)"):
        Portfolio([0.5, 0.5], smallest_tv=rate)


@pytest.mark.parametrize(
    ("law", "found"),
    [
        ([0.5, 0.4], r"sum 0\.9;"),
        ([1.5, -0.5], r"minimum -0\.5"),
        ([math.nan, 1], "nan"),
    ],
)
def test_what_is_no_law_is_named_with_what_it_holds(law, found):
    with pytest.raises(ValueError, match=rf"probs has .*{found}.* sum to 1"):
        Portfolio(law)


@pytest.mark.parametrize("law", [[], [[0.5, 0.5]], 1.0])
def test_the_shape_of_what_is_no_law_is_named(law):
    with pytest.raises(ValueError, match=r"probs has shape \(.*\[cells\]"):
        Portfolio(law)


def test_a_law_that_rounding_left_short_is_made_to_sum_to_one():
    assert checked_law("probs", [0.5, 0.5 - 1e-7]).sum() == pytest.approx(1, abs=1e-15)


@pytest.mark.parametrize("bad", [-1, 2.5, math.inf, math.nan])
def test_a_count_that_is_no_whole_number_from_zero_is_named(bad):
    with pytest.raises(ValueError, match=rf"holds {bad:g}; allowed are whole numbers"):
        Portfolio([0.5, 0.5]).evaluate([1, bad])


def test_counts_of_another_length_are_named():
    with pytest.raises(ValueError, match=r"shape \(3,\); the law has 2 cells"):
        Portfolio([0.5, 0.5]).evaluate([1, 2, 3])


def test_a_draft_of_another_length_is_named():
    with pytest.raises(ValueError, match="draft has 3 cells, the law has 2"):
        Portfolio([0.5, 0.5], draft=[0.2, 0.3, 0.5])


def test_an_alternative_that_is_no_law_is_called_by_its_name():
    with pytest.raises(ValueError, match=r"cold has .* sum 1\.1"):
        Portfolio([0.5, 0.5], alternatives={"cold": [0.6, 0.5]})
