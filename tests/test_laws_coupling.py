# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: N802 - the laws are called L1 to L16 wherever they are written down
"""The laws of drafts and outputs with shared randomness, exactly and by sampling."""

import itertools
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specverify.inputs import WITNESSES
from specverify.inputs.strategies import cases, distributions, model_pairs
from specverify.laws import coupling, steps
from specverify.laws.distributions import acceptance, total_variation
from specverify.laws.distributions import coupling as maximal
from specverify.statistics.chisquare import goodness_of_fit

REPEATABLE = settings(max_examples=60, derandomize=True, deadline=None, database=None)
small_cases = cases(max_vocab=3, max_k=2, max_cells=27)
vocabularies = st.integers(2, 4)
pairs = vocabularies.flatmap(lambda v: st.tuples(distributions(v), distributions(v)))

W = WITNESSES["W"]
P, Q = W.target(()), W.draft(())


@REPEATABLE
@given(pair=pairs)
def test_the_margins_are_the_draft_and_the_target(pair):
    p, q = pair
    law = coupling.coupling_law(p, q)
    every = range(len(p))

    assert tuple(sum(law.get((x, y), 0) for y in every) for x in every) == q
    assert tuple(sum(law.get((x, y), 0) for x in every) for y in every) == p


@REPEATABLE
@given(pair=pairs)
def test_the_diagonal_is_the_probability_of_a_match(pair):
    law = coupling.coupling_law(*pair)
    diagonal = sum(law.get((x, x), 0) for x in range(len(pair[0])))

    assert diagonal == coupling.match_probability(*pair)


@REPEATABLE
@given(pair=pairs)
def test_draft_and_output_change_places_with_their_laws(pair):
    p, q = pair
    law = coupling.coupling_law(p, q)

    assert coupling.coupling_law(q, p) == {(y, x): law[x, y] for x, y in law}


@REPEATABLE
@given(pair=pairs)
def test_a_match_is_no_likelier_than_acceptance_and_not_much_less(pair):
    distance = total_variation(*pair)
    match = coupling.match_probability(*pair)

    assert (1 - distance) / (1 + distance) <= match <= acceptance(*pair)


@REPEATABLE
@given(p=distributions(4))
def test_equal_laws_always_match(p):
    assert coupling.match_probability(p, p) == 1


def test_laws_without_a_common_token_never_match():
    half = Fraction(1, 2)
    p, q = (half, half, 0, 0), (0, 0, half, half)

    law = coupling.coupling_law(p, q)
    assert set(law) == {(2, 0), (2, 1), (3, 0), (3, 1)}
    assert coupling.match_probability(p, q) == 0


# --- against sampled variables --------------------------------------------------------

DRAWS, LEVEL = 100_000, 1e-9


def sampled(p, q):
    """Counts of (draft, output) under shared exponential variables."""
    rng = np.random.default_rng(20240815)
    noise = rng.exponential(size=(DRAWS, len(p)))
    with np.errstate(divide="ignore"):
        drafts, outputs = (
            (noise / np.array(row, float)).argmin(axis=1) for row in (q, p)
        )
    return np.bincount(drafts * len(p) + outputs, minlength=len(p) ** 2)


def fit(law, counts, vocab):
    cells = itertools.product(range(vocab), repeat=2)
    probs = np.array([float(law.get(cell, 0)) for cell in cells])
    return goodness_of_fit(counts, probs, level=LEVEL).p_value


@pytest.mark.parametrize("name", ["W", "W2", "C5", "Z2", "J2", "D1"])
def test_sampled_variables_follow_the_law(name):
    """The margins leave open what is off the diagonal, so it is measured."""
    p, q = WITNESSES[name].target(()), WITNESSES[name].draft(())

    assert fit(coupling.coupling_law(p, q), sampled(p, q), len(p)) >= LEVEL


def test_sampled_variables_refuse_another_coupling_of_the_same_laws():
    assert fit(maximal(P, Q), sampled(P, Q), len(P)) < LEVEL


# --- a step ---------------------------------------------------------------------------


@REPEATABLE
@given(case=small_cases)
def test_L13_one_step_completed_by_the_target_is_the_target(case):
    law = steps.output_law(coupling.emissions, case.target, case.draft, case.k)
    completed = steps.completed_law(law, case.target, case.k + 1)

    assert completed == steps.autoregressive_law(case.target, case.k + 1)


@REPEATABLE
@given(pair=model_pairs(2, memory=2), k=st.integers(0, 3), length=st.integers(0, 4))
def test_L16_a_loop_of_steps_emits_the_target(pair, k, length):
    loop = steps.composed_law(coupling.emissions, *pair, k, length)

    assert loop == steps.autoregressive_law(pair[0], length)


@REPEATABLE
@given(pair=pairs)
def test_one_draft_is_accepted_with_the_probability_of_a_match(pair):
    p, q = pair
    step = lambda prefix: p, lambda prefix: q, 1
    mean = steps.expected_accepted(coupling.emissions, *step)

    assert mean == coupling.match_probability(p, q)


def test_floats_give_the_same_law():
    exact = coupling.coupling_law(P, Q)
    rounded = coupling.coupling_law([float(x) for x in P], [float(x) for x in Q])

    assert rounded == pytest.approx({x: float(m) for x, m in exact.items()}, abs=1e-14)
    assert {type(mass) for mass in rounded.values()} == {float}


def test_a_negative_draft_length_is_refused_with_found_and_allowed():
    with pytest.raises(ValueError, match=r"^k is -1; allowed is 0 or more$"):
        list(coupling.emissions(W.target, W.draft, -1))
