# SPDX-License-Identifier: Apache-2.0
"""Two samplers and one law that nobody knows."""

import math
from itertools import product

import numpy as np
import pytest
from scipy import stats

from specverify.statistics.planning import plan_samples
from specverify.statistics.two_sample import (
    NOISE,
    log_two_sample,
    min_samples_two_sample,
)

CERTAIN = 1e-9  # How often a test of the tests may fail by chance.
LIMIT = math.log(1e9)
LAWS = [np.array([0.5, 0.5]), np.array([0.05, 0.95]), np.array([0.2, 0.3, 0.5])]


def mean(first, second, pairs, order=None, **options):
    """Exact mean of the e-value of so many pairs, over all sequences."""
    cells = len(first)
    total = 0.0
    for outcomes in product(range(cells), repeat=2 * pairs):
        a, b = np.array(outcomes[:pairs]), np.array(outcomes[pairs:])
        chance = first[a].prod() * second[b].prod()
        if order is not None:
            a, b = a[order], b[order]
        total += chance * math.exp(log_two_sample(a, b, cells=cells, **options))
    return total


def arms(first, second, n, seed=0):
    rng = np.random.default_rng(seed)
    return (rng.choice(len(law), n, p=law) for law in (first, second))


def ripple(cells, tv):
    return (1 + 2 * tv * np.where(np.arange(cells) % 2, -1, 1)) / cells


# --- the mean is at most 1 ------------------------------------------------------------


@pytest.mark.parametrize("block", [1, 2, 16])
@pytest.mark.parametrize("law", LAWS[:2], ids=["even", "uneven"])
def test_equal_arms_have_mean_at_most_one(law, block):
    assert mean(law, law, 4, block=block) <= 1 + 1e-9


def test_equal_arms_of_three_cells_have_mean_at_most_one():
    assert mean(LAWS[2], LAWS[2], 3, block=1) <= 1 + 1e-9


@pytest.mark.parametrize("order", [[3, 2, 1, 0], [1, 3, 0, 2]])
def test_equal_arms_have_mean_at_most_one_in_any_order_of_the_pairs(order):
    assert mean(LAWS[1], LAWS[1], 4, order=order, block=1) <= 1 + 1e-9


def test_unequal_arms_have_a_mean_above_one():
    """So the claims about the mean can fail."""
    assert mean(np.array([0.05, 0.95]), np.array([0.95, 0.05]), 4, block=1) > 1.05


# --- differences ----------------------------------------------------------------------


@pytest.mark.parametrize("cells", [2, 4, 16])
def test_a_difference_is_seen_by_the_planned_number_of_requests(cells):
    n = min_samples_two_sample(tv=0.1, cells=cells, error_rate=1e-9, power=0.99)
    law, other = ripple(cells, 0.0), ripple(cells, 0.1)
    found = [log_two_sample(*arms(law, other, n, i), cells=cells) for i in range(20)]

    missed = sum(value < LIMIT for value in found)
    assert missed <= stats.binom.isf(CERTAIN, 20, 0.01)


@pytest.mark.parametrize("cells", [2, 4, 16])
def test_equal_arms_are_not_told_apart(cells):
    law = ripple(cells, 0.0)
    found = [log_two_sample(*arms(law, law, 5000, i), cells=cells) for i in range(20)]

    alarms = sum(value >= math.log(20) for value in found)
    assert alarms <= stats.binom.isf(CERTAIN, 20, 0.05)


def test_requests_are_a_multiple_of_what_a_known_law_takes():
    known = plan_samples(cells=4, level=1e-9, power=0.99, tv=0.1).n_max
    found = min_samples_two_sample(tv=0.1, cells=4, error_rate=1e-9, power=0.99)

    assert found == math.ceil(NOISE * known)


# --- how outcomes are read ------------------------------------------------------------


def test_both_arms_count_alike():
    first, second = arms(LAWS[2], LAWS[2][::-1], 400)
    found = log_two_sample(first, second, cells=3)

    assert found == pytest.approx(log_two_sample(second, first, cells=3), rel=1e-9)


def test_the_numbers_of_the_cells_mean_nothing():
    first, second = arms(LAWS[2], LAWS[2][::-1], 400)
    found = log_two_sample(2 - first, 2 - second, cells=3)

    assert found == pytest.approx(log_two_sample(first, second, cells=3), rel=1e-9)


def test_the_longer_sequence_is_cut():
    found = log_two_sample([0, 1] * 40, [1, 1, 0] * 10, cells=2)

    assert found == log_two_sample([0, 1] * 15, [1, 1, 0] * 10, cells=2)


def test_outcomes_count_only_after_they_were_predicted():
    """The first block is bet on before anything is known, so it wins nothing."""
    assert log_two_sample([0] * 16, [1] * 16, cells=2) == pytest.approx(0)


def test_the_next_outcomes_are_bet_on():
    """So the claim about the first block can fail."""
    assert log_two_sample([0] * 64, [1] * 64, cells=2) > 1


@pytest.mark.parametrize(("first", "second"), [([], []), ([], [0, 1]), ([1, 1], [])])
def test_no_pairs_are_no_evidence(first, second):
    assert log_two_sample(first, second, cells=2) == 0


def test_a_single_cell_tells_nothing():
    assert log_two_sample([0] * 40, [0] * 40, cells=1) == pytest.approx(0)


# --- errors ---------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [-1, 3, 1.5, math.nan])
@pytest.mark.parametrize("arm", ["first", "second"])
def test_an_outcome_outside_of_the_cells_is_named(arm, bad):
    outcomes = {"first": [0, 1], "second": [2, 1], arm: [0, bad]}

    with pytest.raises(ValueError, match=rf"{arm} holds {bad:g}; .* from 0 to 2"):
        log_two_sample(**outcomes, cells=3)


def test_outcomes_of_another_shape_are_named():
    with pytest.raises(ValueError, match=r"second has shape \(1, 2\)"):
        log_two_sample([0, 1], [[0, 1]], cells=2)


@pytest.mark.parametrize(
    ("name", "said"), [("error_rate", "level"), ("power", "power")]
)
def test_a_rate_outside_of_zero_to_one_is_named(name, said):
    rates = {"error_rate": 0.01, "power": 0.9, name: 1.5}

    with pytest.raises(ValueError, match=rf"{said} is 1\.5; .*\(0, 1\)"):
        min_samples_two_sample(tv=0.1, cells=4, **rates)
