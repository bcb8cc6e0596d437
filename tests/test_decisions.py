# SPDX-License-Identifier: Apache-2.0
"""Sequential decisions: what they reject, what they accept and after how many draws."""

import math

import numpy as np
import pytest
from scipy import stats

from specverify.statistics.decisions import (
    SequentialTest,
    deviation,
    unbiased_chi_square,
)

CERTAIN = 1e-9  # How often a test of the tests may fail by chance.
RATES = {"level": 1e-9, "power": 0.99, "tv": 0.05}
REPEATS = 250


def even(vocab):
    return np.full(vocab, 1 / vocab)


def ripple(law, tv):
    """Every other cell raised, the rest lowered: the worst direction of a bias."""
    signs = np.where(np.arange(len(law)) % 2, -1, 1)
    return law + 2 * tv / len(law) * signs


def one_cell(law, tv):
    """One cell raised by the whole bias."""
    biased = law * (1 - tv / (1 - law[0]))
    biased[0] = law[0] + tv
    return biased


def without_tail(law, tv):
    """The last cells left out, as many as hold at least the bias."""
    behind = law[::-1].cumsum()[::-1]
    cut = int(np.flatnonzero(behind >= tv)[-1])
    biased = np.where(np.arange(len(law)) < cut, law, 0)
    return biased / biased.sum()


def run(test, sampler, rng):
    """Draw from look to look until the decision is final."""
    seen = np.zeros(len(sampler))
    for before, look in zip([0, *test.looks()], test.looks(), strict=False):
        seen += rng.multinomial(look - before, sampler)
        decision = test.decide(seen)
        if decision.outcome != "continue":
            break
    return decision


def runs(law, sampler, repeats=REPEATS, **changed):
    test, rng = SequentialTest(law, **{**RATES, **changed}), np.random.default_rng(4)
    return [run(test, sampler, rng) for _ in range(repeats)]


def count(decisions, outcome):
    return sum(decision.outcome == outcome for decision in decisions)


# --- a right sampler ------------------------------------------------------------------


@pytest.mark.parametrize("vocab", [2, 4, 32])
def test_a_right_sampler_is_accepted(vocab):
    assert count(runs(even(vocab), even(vocab), 100), "accept") == 100


def test_a_right_sampler_is_accepted_after_four_tenths_of_the_draws_on_average():
    n_max = SequentialTest(even(32), **RATES).n_max
    taken = [decision.samples for decision in runs(even(32), even(32), 100)]

    assert np.mean(taken) < 0.4 * n_max


def test_half_of_the_bias_takes_more_than_four_tenths_of_them():
    """So the claim about the average can fail."""
    n_max = SequentialTest(even(32), **RATES).n_max
    decisions = runs(even(32), ripple(even(32), 0.025), 100)

    assert np.mean([decision.samples for decision in decisions]) > 0.4 * n_max


def test_a_right_sampler_is_rejected_no_more_often_than_the_level_says():
    decisions = runs(even(4), even(4), level=0.05)

    assert count(decisions, "reject") <= stats.binom.isf(CERTAIN, REPEATS, 0.05)


def test_a_wrong_sampler_is_rejected_more_often_than_the_level_says():
    """So the claim about a right sampler can fail."""
    decisions = runs(even(4), ripple(even(4), 0.05), level=0.05)

    assert count(decisions, "reject") > stats.binom.isf(CERTAIN, REPEATS, 0.05)


# --- a wrong sampler ------------------------------------------------------------------


@pytest.mark.parametrize("vocab", [2, 4, 32])
def test_the_bias_is_missed_no_more_often_than_twice_the_stated_error(vocab):
    """Twice: the plan is an approximation."""
    decisions = runs(even(vocab), ripple(even(vocab), 0.05))
    missed = REPEATS - count(decisions, "reject")

    assert missed <= stats.binom.isf(CERTAIN, REPEATS, 0.02)


@pytest.mark.parametrize("vocab", [2, 4, 32])
def test_half_of_the_bias_is_missed_more_often(vocab):
    """So the claim about the whole bias can fail."""
    decisions = runs(even(vocab), ripple(even(vocab), 0.025))
    missed = REPEATS - count(decisions, "reject")

    assert missed > stats.binom.isf(CERTAIN, REPEATS, 0.02)


def test_a_bias_in_one_cell_of_32_is_found_in_less_than_1500_draws():
    decisions = runs(even(32), one_cell(even(32), 0.05), 100)

    assert count(decisions, "reject") == 100
    assert np.median([decision.samples for decision in decisions]) < 1500


def test_a_bias_spread_over_32_cells_takes_more_than_1500_draws():
    """So the claim about one cell can fail."""
    decisions = runs(even(32), ripple(even(32), 0.05), 100)

    assert np.median([decision.samples for decision in decisions]) > 1500


@pytest.mark.parametrize("tv", [0.05, 0.1])
@pytest.mark.parametrize("steepness", [0.0, 1.0])
def test_a_dropped_tail_of_300_cells_is_not_accepted(tv, steepness):
    """Pearson's statistic alone would: it is small where rare cells are missing."""
    law = 1 / np.arange(1, 301) ** steepness
    law /= law.sum()

    decisions = runs(law, without_tail(law, tv), 60)
    assert count(decisions, "accept") == 0


def test_pearsons_statistic_is_the_smaller_one_where_rare_cells_are_missing():
    law = np.append(np.full(300, 0.05 / 300), 0.95)
    counts = np.append(np.zeros(300), 100)

    pearson = ((counts - 100 * law) ** 2 / (100 * law)).sum()
    assert pearson < 10 < deviation(counts, law)
    assert deviation(counts, law) == unbiased_chi_square(counts, law)


def test_a_tenth_of_the_draws_rejects_a_bias_of_a_third():
    n_max = SequentialTest(even(4), **RATES).n_max
    decisions = runs(even(4), ripple(even(4), 1 / 3), 60)

    assert count(decisions, "reject") == 60
    assert max(decision.samples for decision in decisions) < n_max / 10


def test_a_count_in_an_impossible_cell_rejects_at_once():
    test = SequentialTest([0.5, 0.5, 0], **RATES)

    decision = test.decide([5, 5, 1])
    assert (decision.outcome, decision.samples) == ("reject", 11)
    assert decision.evidence.impossible == (2,)


# --- looks ----------------------------------------------------------------------------


@pytest.mark.parametrize("tv", [0.01, 0.05, 0.5, 0.9])
@pytest.mark.parametrize("vocab", [2, 32])
def test_looks_grow_and_end_at_the_largest_number_of_draws(vocab, tv):
    test = SequentialTest(even(vocab), **{**RATES, "tv": tv})
    looks = test.looks()

    assert looks[-1] == test.n_max
    assert (np.diff(looks) > 0).all()


def test_there_are_about_a_dozen_looks():
    assert 10 <= len(SequentialTest(even(32), **RATES).looks()) <= 15


@pytest.mark.parametrize("sampler", [even(4), ripple(even(4), 0.04)], ids=["0", ".04"])
def test_a_decision_is_final_at_the_last_look(sampler):
    test = SequentialTest(even(4), **RATES)
    counts = np.random.default_rng(5).multinomial(test.n_max, sampler)

    assert test.decide(counts).outcome != "continue"


def test_no_draws_decide_nothing():
    assert SequentialTest(even(4), **RATES).decide([0] * 4).outcome == "continue"


def test_a_decision_does_not_depend_on_how_the_counts_arrived():
    """A test that has looked all along decides as a fresh one that has not."""
    watched, rng = SequentialTest(even(8), **RATES), np.random.default_rng(6)
    seen = np.zeros(8)
    for size in (1, 70, 5, 900, 3000):
        seen += rng.multinomial(size, even(8))
        assert watched.decide(seen) == SequentialTest(even(8), **RATES).decide(seen)


def test_a_decision_does_not_depend_on_the_type_of_the_counts():
    test, counts = SequentialTest(even(3), **RATES), [400, 380, 420]

    assert test.decide(counts) == test.decide(np.array(counts, dtype=np.int32))


def test_a_decision_does_not_change_the_counts():
    counts = np.array([400.0, 380.0, 420.0])
    SequentialTest(even(3), **RATES).decide(counts)

    assert counts.tolist() == [400, 380, 420]


# --- one possible outcome -------------------------------------------------------------


def test_one_possible_outcome_takes_as_many_draws_as_another_needs_to_show():
    test = SequentialTest([1.0, 0.0], **RATES)

    assert test.cells == 1
    assert 0.95**test.n_max <= 0.01 < 0.95 ** (test.n_max - 1)


def test_one_possible_outcome_is_accepted_at_the_last_look_only():
    test = SequentialTest([1.0, 0.0], **RATES)

    assert test.decide([test.n_max - 1, 0]).outcome == "continue"
    assert test.decide([test.n_max, 0]).outcome == "accept"


# --- tolerance ------------------------------------------------------------------------


def test_a_bias_within_the_tolerance_is_not_rejected():
    decisions = runs(even(4), ripple(even(4), 0.01), 60, tolerance=0.01)

    assert count(decisions, "reject") == 0


def test_the_same_bias_is_rejected_without_a_tolerance():
    """So the claim about the tolerance can fail."""
    decisions = runs(even(4), ripple(even(4), 0.01), 60, tv=0.01)

    assert count(decisions, "reject") >= 50


def test_a_bias_far_beyond_the_tolerance_is_rejected():
    decisions = runs(even(4), ripple(even(4), 0.2), 60, tolerance=0.01)

    assert count(decisions, "reject") == 60


def test_mass_on_impossible_cells_is_not_accepted_through_a_tolerance():
    """A bias of `tv` there leaves the statistic of the other cells as it was."""
    test = SequentialTest([0.5, 0.5, 0], **{**RATES, "tv": 0.1}, tolerance=0.08)

    assert test.decide([475, 475, 50]).outcome != "accept"


def test_a_tolerant_test_ends_undecided_between_tolerance_and_bias():
    test = SequentialTest(even(4), **RATES, tolerance=0.03)
    counts = np.round(test.n_max * ripple(even(4), 0.04))

    assert test.decide(counts).outcome == "continue"


# --- statistics and errors ------------------------------------------------------------


def test_the_unbiased_statistic_has_its_mean_under_every_law():
    """The mean is ``df + n chi2``, up to ``chi2``; here by its exact formula."""
    law, other, n = np.array([0.2, 0.3, 0.5]), np.array([0.4, 0.4, 0.2]), 6
    draws = np.stack(np.meshgrid(*[range(n + 1)] * 2), -1).reshape(-1, 2)
    draws = draws[draws.sum(1) <= n]
    counts = np.c_[draws, n - draws.sum(1)]
    chances = stats.multinomial.pmf(counts, n, other)
    found = chances @ [unbiased_chi_square(vector, law) for vector in counts]

    distance = ((other - law) ** 2 / law).sum()
    assert found == pytest.approx(2 + (n - 1) * distance, rel=1e-9)


def test_on_few_cells_the_statistic_counts_half_a_draw_more():
    assert deviation([5, 5], even(2)) == pytest.approx(2 * 0.5**2 / 5)


@pytest.mark.parametrize("rate", [0, 1, -0.5, 1.5])
@pytest.mark.parametrize("name", ["level", "power", "tv"])
@pytest.mark.parametrize("law", [[0.5, 0.5], [1.0, 0.0]], ids=["two", "one"])
def test_a_rate_outside_of_zero_to_one_is_named(law, name, rate):
    with pytest.raises(ValueError, match=rf"{name} is {rate}; .*\(0, 1\)"):
        SequentialTest(law, **{**RATES, name: rate})


@pytest.mark.parametrize("tolerance", [-0.1, 1])
def test_a_tolerance_outside_of_zero_to_one_is_named(tolerance):
    with pytest.raises(ValueError, match=rf"tolerance is {tolerance}; .*\(0, 1\)"):
        SequentialTest(even(2), **RATES, tolerance=tolerance)


@pytest.mark.parametrize("tolerance", [0.0, 0.01])
@pytest.mark.parametrize("counts", [[1, 2], [1, 2, -1], [1, 2, 0.5]])
def test_counts_that_are_none_are_an_error(counts, tolerance):
    with pytest.raises(ValueError, match="counts h"):
        SequentialTest(even(3), **RATES, tolerance=tolerance).decide(counts)


def test_the_evidence_of_a_rejection_has_reached_its_limit():
    decision = SequentialTest(even(2), **RATES).decide([900, 100])

    assert decision.outcome == "reject"
    assert decision.evidence.log_e >= math.log(1e9)
