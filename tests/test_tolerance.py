# SPDX-License-Identifier: Apache-2.0
"""A law known up to a tolerance: what rounding is granted, and what is not."""

import math
from itertools import product

import numpy as np
import pytest
import torch
from scipy import stats

from specverify.statistics.evalues import Portfolio
from specverify.statistics.tolerance import TolerantPortfolio

LIMIT = math.log(1e9)
LAWS = [
    np.array([0.5, 0.5]),
    np.array([0.1, 0.9]),
    np.array([0.2, 0.3, 0.5]),
    np.array([0.3, 0.7, 0.0]),
]
every_law = pytest.mark.parametrize("law", LAWS, ids=lambda law: f"{law.tolist()}")


def laws_on_a_grid(cells, steps=40):
    """All laws whose entries are multiples of 1/steps."""
    heads = product(range(steps + 1), repeat=cells - 1)
    return [
        np.array([*head, steps - sum(head)]) / steps
        for head in heads
        if sum(head) <= steps
    ]


def total_variation(first, second):
    return np.abs(first - second).sum() / 2


def means(portfolio, laws, n):
    """Exact means of the e-value of n draws under each law."""
    cells = len(laws[0])
    counts = np.array([c for c in product(range(n + 1), repeat=cells) if sum(c) == n])
    e = np.exp([portfolio.evaluate(vector).log_e for vector in counts])
    return np.array([stats.multinomial.pmf(counts, n, law) @ e for law in laws])


def sampled(law, n, seed=0):
    return np.random.default_rng(seed).multinomial(n, law / law.sum())


# --- the mean is at most 1 ------------------------------------------------------------


@pytest.mark.parametrize("tolerance", [0.025, 0.1, 0.3])
@pytest.mark.parametrize("n", [1, 4, 8])
@every_law
def test_every_law_within_the_tolerance_has_mean_at_most_one(law, n, tolerance):
    portfolio = TolerantPortfolio(law, tolerance=tolerance, draft=law[::-1].copy())
    within = [
        other
        for other in laws_on_a_grid(len(law))
        if total_variation(law, other) <= tolerance + 1e-12
    ]

    assert len(within) > 1
    assert means(portfolio, within, n).max() <= 1 + 1e-9


@every_law
def test_some_law_beyond_the_tolerance_has_a_mean_above_one(law):
    """So the claim about laws within it can fail."""
    portfolio = TolerantPortfolio(law, tolerance=0.025)

    assert means(portfolio, laws_on_a_grid(len(law)), 8).max() > 1.05


# --- rounding -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def rounded():
    """A law, and the same computed in half precision."""
    logits = torch.randn(64, generator=torch.Generator().manual_seed(0)) * 2
    exact, coarse = (
        logits.to(dtype).softmax(-1).double().numpy()
        for dtype in (torch.float64, torch.bfloat16)
    )
    return exact, coarse / coarse.sum()


def test_rounding_is_granted(rounded):
    exact, coarse = rounded
    portfolio = TolerantPortfolio(exact, tolerance=0.01)

    assert total_variation(exact, coarse) < 0.01
    assert portfolio.evaluate(sampled(coarse, 10**8)).log_e < 0


def test_rounding_is_rejected_without_a_tolerance(rounded):
    """So the claim about what is granted can fail."""
    exact, coarse = rounded

    assert Portfolio(exact).evaluate(sampled(coarse, 10**8)).log_e > LIMIT


@pytest.mark.parametrize("cell", [0, 5, 63])
def test_a_cell_too_frequent_by_more_is_rejected(rounded, cell):
    exact, coarse = rounded
    biased = 0.95 * coarse + 0.05 * np.eye(64)[cell]

    portfolio = TolerantPortfolio(exact, tolerance=0.01)
    assert portfolio.evaluate(sampled(biased, 20_000)).log_e > LIMIT


def test_a_leading_cell_too_rare_by_more_is_rejected(rounded):
    exact, coarse = rounded
    biased = coarse.copy()
    biased[coarse.argmax()] /= 2

    portfolio = TolerantPortfolio(exact, tolerance=0.01)
    assert portfolio.evaluate(sampled(biased, 20_000)).log_e > LIMIT


def test_a_dropped_tail_is_rejected_by_its_rank():
    """No cell of it is conspicuous alone."""
    law = np.append(np.full(10, 0.09), np.full(500, 0.1 / 500))
    counts = np.append(sampled(law[:10], 20_000), np.zeros(500))

    assert TolerantPortfolio(law, tolerance=0.01).evaluate(counts).log_e > LIMIT


def test_a_leak_of_the_draft_is_rejected_by_the_ratio():
    rng = np.random.default_rng(1)
    law, draft = np.full(400, 1 / 400), rng.dirichlet(np.ones(400))
    counts = sampled(0.85 * law + 0.15 * draft, 20_000)

    portfolio = TolerantPortfolio(law, tolerance=0.01, draft=draft)
    assert portfolio.evaluate(counts).log_e > LIMIT


def test_the_draft_makes_the_difference_there():
    """So the claim about the ratio can fail."""
    rng = np.random.default_rng(1)
    law, draft = np.full(400, 1 / 400), rng.dirichlet(np.ones(400))
    counts = sampled(0.85 * law + 0.15 * draft, 20_000)

    assert TolerantPortfolio(law, tolerance=0.01).evaluate(counts).log_e < LIMIT


def test_more_tolerance_leaves_less_evidence():
    found = [
        TolerantPortfolio(LAWS[2], tolerance=t).evaluate([400, 300, 300]).log_e
        for t in (0.01, 0.05, 0.15)
    ]

    assert found == sorted(found, reverse=True)


# --- limits and errors ----------------------------------------------------------------


@every_law
def test_no_draws_are_no_evidence(law):
    found = TolerantPortfolio(law, tolerance=0.05).evaluate(np.zeros(len(law))).log_e

    assert found == pytest.approx(0)


def test_a_tolerance_that_grants_everything_finds_nothing():
    portfolio = TolerantPortfolio([0.5, 0.5], tolerance=0.6)

    assert portfolio.size == 0
    assert portfolio.evaluate([1000, 0]).log_e == 0


def test_a_large_vocabulary_takes_memory_in_proportion_to_it():
    """Its cells as a table of sets would take 32 MB, and 4 GB at 32,000 of them."""
    law = np.full(4000, 1 / 4000)
    portfolio = TolerantPortfolio(law, tolerance=0.01)

    assert portfolio.evaluate(sampled(law, 10**5)).log_e < 0
    assert sum(np.asarray(x).nbytes for x in vars(portfolio).values()) < 2**20


@pytest.mark.parametrize("tolerance", [0, 1, -0.1, 2])
def test_a_tolerance_outside_of_zero_to_one_is_named(tolerance):
    with pytest.raises(ValueError, match=rf"tolerance is {tolerance}; .*\(0, 1\)"):
        TolerantPortfolio([0.5, 0.5], tolerance=tolerance)


@pytest.mark.parametrize("bad", [-1, 2.5, math.inf])
def test_a_count_that_is_no_whole_number_from_zero_is_named(bad):
    portfolio = TolerantPortfolio([0.5, 0.5], tolerance=0.01)

    with pytest.raises(ValueError, match=rf"holds {bad:g}; allowed are whole numbers"):
        portfolio.evaluate([1, bad])


def test_counts_of_another_length_are_named():
    portfolio = TolerantPortfolio([0.5, 0.5], tolerance=0.01)

    with pytest.raises(ValueError, match=r"shape \(3,\); the law has 2 cells"):
        portfolio.evaluate([1, 2, 3])


def test_a_draft_of_another_length_is_named():
    with pytest.raises(ValueError, match="draft has 3 cells, the law has 2"):
        TolerantPortfolio([0.5, 0.5], tolerance=0.01, draft=[0.2, 0.3, 0.5])


def test_a_law_that_does_not_sum_to_one_is_named():
    with pytest.raises(ValueError, match=r"probs has .* sum 0\.9"):
        TolerantPortfolio([0.5, 0.4], tolerance=0.01)
