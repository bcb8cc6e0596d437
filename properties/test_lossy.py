# SPDX-License-Identifier: Apache-2.0
"""What a rule pays that accepts more than it may, and that the lossy rules do pay it.

The price is the same for every rule there can be: acceptance beyond the overlap of the
two laws costs as much total variation, or more. So a count of accepted drafts alone can
prove a verifier lossy, and no engine can be both faster than the bound and exact.
"""

from fractions import Fraction

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from injected import law_of_code, repeatable, same_law
from offers import chain_offers, stated_law, token_parts

from specverify.core import lossy as code
from specverify.core import verify_chain
from specverify.inputs import WITNESSES
from specverify.inputs.strategies import cases, distribution_pairs, distributions
from specverify.laws import bounds, chain, lossy, steps
from specverify.laws.chain import TOKEN, Rule
from specverify.laws.distributions import (
    accept_probability,
    acceptance,
    emitted_law,
    excess,
    law_distance,
    overlap,
    residual,
    total_variation,
)

CODE = {
    "lenient": code.verify_lenient,
    "typical": code.verify_typical,
    "threshold": code.verify_threshold,
    "top-k": code.verify_top_k_accepted,
    "entropy": code.verify_entropy_scaled,
    "synthetic": code.verify_synthetic,
}
every_rule = pytest.mark.parametrize("name", lossy.RULES)
FROM_RESIDUAL = ["lenient", "entropy", "synthetic"]
FROM_TARGET = ["typical", "top-k"]

pairs = distribution_pairs(4)
small_cases = cases(max_vocab=3, max_k=2, max_cells=27)
shares = st.integers(0, 6).map(lambda sixths: Fraction(sixths, 6))
four_shares = st.lists(shares, min_size=4, max_size=4)

W = WITNESSES["W"].target(()), WITNESSES["W"].draft(())


def accepted_mass(q, accept):
    return sum(mass * a for mass, a in zip(q, accept, strict=True))


def best_accept(p, q):
    """``min(1, p/q)``, and 1 where it does not matter."""
    return [accept_probability(a, b) if b else 1 for a, b in zip(p, q, strict=True)]


# --- the price, for any rule ----------------------------------------------------------


def at_least_best(p, q, more):
    """Acceptance of ``min(1, p/q)`` or more everywhere."""
    return [a + (1 - a) * m for a, m in zip(best_accept(p, q), more, strict=True)]


@repeatable(max_examples=150)
@given(pair=pairs, accept=four_shares, recovered=distributions(4), data=st.data())
def test_acceptance_beyond_the_overlap_costs_total_variation(
    pair, accept, recovered, data
):
    """L5: for any acceptance and any law of the recovered token, the best included."""
    p, q = pair
    accept = data.draw(st.sampled_from([accept, at_least_best(p, q, accept)]))
    recovered = data.draw(st.sampled_from([recovered, residual(p, q)]))
    out = emitted_law(q, accept, recovered)

    assert accepted_mass(q, accept) <= acceptance(p, q) + total_variation(out, p)


@repeatable(max_examples=100)
@given(pair=pairs, more=four_shares)
def test_the_residual_pays_for_more_acceptance_exactly_once(pair, more):
    """L5 with equality: at least ``min(1, p/q)`` everywhere, the rest from (p - q)+."""
    p, q = pair
    accept = at_least_best(p, q, more)
    out = emitted_law(q, accept, residual(p, q))

    assert accepted_mass(q, accept) - acceptance(p, q) == total_variation(out, p)


def test_another_residual_or_less_acceptance_anywhere_pays_more():
    """Both conditions of the equality are needed."""
    p, q = W
    for accept, recovered in [
        (best_accept(p, q), p),
        ([1, 1, 0, 1], residual(p, q)),
    ]:
        out = emitted_law(q, accept, recovered)
        price = accepted_mass(q, accept) - acceptance(p, q)
        assert total_variation(out, p) > price


@repeatable(max_examples=100)
@given(pair=pairs, accept=four_shares, other=distributions(4))
def test_a_thrifty_acceptance_has_one_lossless_residual(pair, accept, other):
    """L6 and L7: where ``q a <= p``, the bias is the rejected mass times its distance."""
    p, q = pair
    accept = [a * b for a, b in zip(accept, best_accept(p, q), strict=True)]
    lost = 1 - accepted_mass(q, accept)
    assume(lost)
    kept = [mass * a for mass, a in zip(q, accept, strict=True)]
    due = [(mass - k) / lost for mass, k in zip(p, kept, strict=True)]

    assert tuple(emitted_law(q, accept, due)) == p
    out = emitted_law(q, accept, other)
    assert total_variation(out, p) == lost * total_variation(other, due)


@repeatable(max_examples=100)
@given(pair=pairs, accept=four_shares)
def test_a_token_accepted_too_often_is_lossy_whatever_is_recovered(pair, accept):
    """L6: where ``q a`` alone exceeds p, even the best law of the rest is too late."""
    p, q = pair
    kept = [mass * a for mass, a in zip(q, accept, strict=True)]
    assume(any(excess(kept, p)))

    assert tuple(emitted_law(q, accept, residual(p, kept))) != p


@repeatable(max_examples=60)
@given(case=small_cases, more=st.integers(0, 6))
def test_a_step_that_accepts_beyond_the_bound_is_lossy(case, more):
    """L11: for whole steps. The rule goes from the lossless one to one that takes all."""

    def accept(p, q, token):
        least = accept_probability(p[token], q[token])
        return least + (1 - least) * Fraction(more, 6)

    rule = Rule(accept, lambda p, q, _token: residual(p, q))
    step = rule_emissions(rule), case.target, case.draft, case.k
    bound = bounds.expected_accepted_bound(case.target, case.draft, case.k)
    assume(steps.expected_accepted(*step) > bound)

    law = steps.completed_law(steps.output_law(*step), case.target, case.k + 1)
    assert law != steps.autoregressive_law(case.target, case.k + 1)


def rule_emissions(rule):
    return lambda target, draft, k: chain.emissions(target, draft, k, rule=rule)


# --- the lossy rules ------------------------------------------------------------------


@every_rule
@repeatable(max_examples=40)
@given(pair=pairs)
def test_a_rule_emits_what_its_parts_say(name, pair):
    """L7, with a law of the recovered token that may depend on the draft."""
    p, q = pair
    rule = lossy.RULES[name]
    law = [Fraction(0)] * 4
    for token, drafted in enumerate(q):
        if drafted:
            one_hot = [int(x == token) for x in range(4)]
            accept = [rule.accept(p, q, token)] * 4
            out = emitted_law(one_hot, accept, rule.recovered(p, q, token))
            law = [mass + drafted * m for mass, m in zip(law, out, strict=True)]

    assert lossy.output(p, q, rule) == pytest.approx(law, rel=0, abs=1e-12)


@every_rule
@repeatable(max_examples=60)
@given(pair=pairs)
def test_a_rule_pays_at_least_what_it_accepts_beyond_the_overlap(name, pair):
    """L5."""
    p, q = pair
    rule = lossy.RULES[name]
    price = float(lossy.acceptance_rate(p, q, rule) - acceptance(p, q))

    assert float(lossy.bias(p, q, rule)) >= price - 1e-12


@every_rule
def test_at_its_default_a_rule_is_never_lossless_on_the_witness(name):
    assert lossy.bias(*W, lossy.RULES[name]) > Fraction(1, 50)


def test_the_lossless_rule_is_on_the_witness_and_accepts_the_overlap():
    """The control of the above."""
    assert lossy.bias(*W, TOKEN) == 0
    assert lossy.acceptance_rate(*W, TOKEN) == acceptance(*W)


@repeatable(max_examples=60)
@given(pair=pairs, lenience=st.integers(1, 12))
def test_lenience_costs_exactly_what_it_accepts_beyond_the_overlap(pair, lenience):
    """L5 with equality, for every lenience; at 1 both are nothing."""
    p, q = pair
    share = Fraction(lenience, 12)
    rule = lossy.lenient(share)
    gained = sum(overlap(q, [mass / share for mass in p])) - acceptance(p, q)

    assert lossy.bias(p, q, rule) == gained
    assert lossy.acceptance_rate(p, q, rule) == acceptance(p, q) + gained


@repeatable(max_examples=60)
@given(pair=pairs, lenience=st.integers(1, 12))
def test_lenience_emits_no_token_more_often_than_it_allows(pair, lenience):
    """At most p / l."""
    p, q = pair
    share = Fraction(lenience, 12)
    out = lossy.output(p, q, lossy.lenient(share))

    assert all(o <= mass / share for o, mass in zip(out, p, strict=True))


@pytest.mark.parametrize("name", FROM_TARGET)
@repeatable(max_examples=60)
@given(pair=pairs)
def test_a_set_of_accepted_tokens_costs_its_mass_times_a_distance(name, pair):
    """``TV = q(A) TV(q given A, p)``."""
    p, q = pair
    accept = [lossy.RULES[name].accept(p, q, token) for token in range(4)]
    mass = accepted_mass(q, accept)
    assume(mass)
    given_set = [m * a / mass for m, a in zip(q, accept, strict=True)]

    assert lossy.bias(p, q, lossy.RULES[name]) == mass * total_variation(given_set, p)


@repeatable(max_examples=60)
@given(p=distributions(4), token=st.integers(0, 3))
def test_thresholds_cost_a_one_hot_draft_what_they_add_to_its_acceptance(p, token):
    q, rule = [int(x == token) for x in range(4)], lossy.RULES["threshold"]
    added = rule.accept(p, q, token) - p[token]

    assert lossy.bias(p, q, rule) == (added if p[token] < 1 else 0)


@repeatable(max_examples=40)
@given(pair=pairs)
def test_settings_that_switch_a_rule_off_make_it_lossless(pair):
    assert lossy.bias(*pair, lossy.lenient(1)) == 0
    assert lossy.bias(*pair, lossy.thresholded(1, 1)) == 0
    assert lossy.bias(*pair, lossy.entropy_scaled(0, 1)) < 1e-15  # in floats


@every_rule
@repeatable(max_examples=30)
@given(case=small_cases)
def test_a_step_is_biased_at_least_as_much_as_its_first_token(name, case):
    """L13: the joint law can only show more."""
    rule = lossy.RULES[name]
    step = rule_emissions(rule), case.target, case.draft, case.k
    law = steps.completed_law(steps.output_law(*step), case.target, case.k + 1)
    due = steps.autoregressive_law(case.target, case.k + 1)
    first = lossy.bias(case.target(()), case.draft(()), rule)

    assert float(law_distance(law, due)) >= float(first) - 1e-12


# --- the code -------------------------------------------------------------------------


def laws_of(verify, case, rule):
    """Law of the code on the drafts of a case, and that of the rule."""
    found = law_of_code(verify, chain_offers(case, token_parts(case, rule)))
    stated = stated_law(case, rule_emissions(rule)).items()
    return found, {outcome: float(mass) for outcome, mass in stated}


@every_rule
@repeatable(max_examples=30)
@given(case=small_cases)
def test_the_code_has_exactly_the_stated_law(name, case):
    """L7 along every path; so its bias is the stated one."""
    assert same_law(*laws_of(CODE[name], case, lossy.RULES[name]))


@every_rule
def test_the_lossless_code_has_another_law(name):
    assert not same_law(*laws_of(verify_chain, WITNESSES["J1"], lossy.RULES[name]))
