# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: N802 - the laws are called L1 to L27 wherever they are written down
"""The laws of sampling the target and comparing, with exact fractions on both sides."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specverify.inputs import WITNESSES
from specverify.inputs.strategies import cases, distributions, model_pairs
from specverify.laws import chain, matching, steps
from specverify.laws.distributions import law_distance, residual

REPEATABLE = settings(max_examples=60, derandomize=True, deadline=None, database=None)
small_cases = cases(max_vocab=4, max_k=3, max_cells=64)
W = WITNESSES["W"]


def joint_law(emissions, *step):
    law = {}
    for tokens, accepted, mass in emissions(*step):
        law[tokens, accepted] = law.get((tokens, accepted), 0) + mass
    return law


def one_hot(token, vocab):
    return [Fraction(x == token) for x in range(vocab)]


#: A draft taken as given: accepted with p(x), else drawn from p without x.
GIVEN = chain.Rule(
    accept=lambda p, q, token: p[token],
    recovered=lambda p, q, token: residual(p, one_hot(token, len(p))),
)


@REPEATABLE
@given(case=small_cases)
def test_L13_one_step_completed_by_the_target_is_the_target(case):
    law = steps.output_law(matching.emissions, case.target, case.draft, case.k)
    completed = steps.completed_law(law, case.target, case.k + 1)

    assert completed == steps.autoregressive_law(case.target, case.k + 1)


@REPEATABLE
@given(pair=model_pairs(2, memory=2), k=st.integers(0, 3), length=st.integers(0, 4))
def test_L16_a_loop_of_steps_emits_the_target(pair, k, length):
    loop = steps.composed_law(matching.emissions, *pair, k, length)

    assert loop == steps.autoregressive_law(pair[0], length)


@REPEATABLE
@given(p=distributions(4), q=distributions(4))
def test_a_draft_is_accepted_when_two_draws_agree(p, q):
    step = lambda prefix: p, lambda prefix: q, 1
    mean = steps.expected_accepted(matching.emissions, *step)

    assert mean == sum(a * b for a, b in zip(p, q, strict=True))


@REPEATABLE
@given(case=small_cases)
def test_matching_is_rejection_of_a_draft_taken_as_given(case):
    """Tokens and acceptance together have the same law."""

    def rejection(target, draft, k):
        return chain.emissions(target, draft, k, rule=GIVEN)

    step = case.target, case.draft, case.k
    assert joint_law(matching.emissions, *step) == joint_law(rejection, *step)


def test_drawing_anew_after_a_mismatch_is_lossy():
    """Size on W as in the reference."""
    fresh = chain.Rule(lambda p, q, token: p[token], lambda p, q, token: p)
    law = {(x,): Fraction(0) for x in range(4)}
    for tokens, _, mass in chain.emissions(W.target, W.draft, 1, rule=fresh):
        law[tokens[:1]] += mass

    bias = law_distance(law, steps.autoregressive_law(W.target, 1))
    assert round(float(bias), 3) == 0.063


# --- temperature 0 --------------------------------------------------------------------


@REPEATABLE
@given(case=small_cases)
def test_L27_the_greedy_step_is_the_token_rule_for_the_greedy_target(case):
    greedy = matching.greedy(case.target)
    law = joint_law(matching.greedy_emissions, case.target, case.draft, case.k)

    assert law == joint_law(chain.emissions, greedy, case.draft, case.k)


@REPEATABLE
@given(case=small_cases)
def test_L27_every_outcome_is_the_greedy_text_up_to_the_first_other_draft(case):
    text = ()
    for _ in range(case.k + 1):
        row = case.target(text)
        text = (*text, row.index(max(row)))
    expected = {}
    for path, mass in steps.autoregressive_law(case.draft, case.k).items():
        equal = [a == b for a, b in zip(path, text, strict=False)]
        accepted = [*equal, False].index(False)
        outcome = text[: accepted + 1], accepted
        expected[outcome] = expected.get(outcome, 0) + mass

    step = case.target, case.draft, case.k
    assert joint_law(matching.greedy_emissions, *step) == expected


@pytest.mark.parametrize("number", [Fraction, float])
def test_of_equally_likely_tokens_the_lowest_is_taken(number):
    row = matching.greedy(lambda prefix: [number(1) / 4, number(3) / 8, number(3) / 8])

    assert row(()) == [0, 1, 0]
    assert {type(mass) for mass in row(())} == {number}


def test_a_negative_draft_length_is_refused_with_found_and_allowed():
    with pytest.raises(ValueError, match=r"^k is -1; allowed is 0 or more$"):
        list(matching.emissions(W.target, W.draft, -1))
