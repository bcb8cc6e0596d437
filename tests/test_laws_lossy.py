# SPDX-License-Identifier: Apache-2.0
"""What rules that are lossy by design emit, in exact fractions where they are rational."""

import math
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specverify.inputs import WITNESSES
from specverify.inputs.strategies import distribution_pairs, distributions
from specverify.laws import chain, lossy
from specverify.laws.chain import TOKEN, Rule
from specverify.laws.distributions import (
    accept_probability,
    acceptance,
    overlap,
    residual,
    total_variation,
)
from specverify.laws.lossy import RULES, acceptance_rate, bias, output
from specverify.laws.steps import accepted_law

REPEATABLE = settings(max_examples=60, derandomize=True, deadline=None, database=None)
VOCAB = 4
pairs = distribution_pairs(VOCAB)
rows = distributions(VOCAB)
shares = st.integers(1, 12).map(lambda twelfths: Fraction(twelfths, 12))

W = WITNESSES["W"]
P, Q = W.target(()), W.draft(())
every_rule = pytest.mark.parametrize("name", RULES)


def near(value):
    return pytest.approx(value, abs=1e-12, rel=0)


def one_hot(token):
    return [Fraction(x == token) for x in range(VOCAB)]


def accepted_set(rule, p, q):
    return {token for token in range(VOCAB) if rule.accept(p, q, token)}


# --- the law of one token -------------------------------------------------------------


@every_rule
@REPEATABLE
@given(pair=pairs)
def test_the_output_is_what_enumerating_one_step_gives(name, pair):
    """L7 against the algorithm itself."""
    p, q = pair
    law = [0] * VOCAB
    steps = chain.emissions(lambda prefix: p, lambda prefix: q, 1, rule=RULES[name])
    for tokens, _, mass in steps:
        law[tokens[0]] += mass

    assert output(p, q, RULES[name]) == near([float(mass) for mass in law])


@every_rule
@REPEATABLE
@given(pair=pairs)
def test_the_acceptance_rate_is_what_enumerating_one_step_gives(name, pair):
    p, q = pair
    steps = chain.emissions(lambda prefix: p, lambda prefix: q, 1, rule=RULES[name])
    accepted = sum(mass for _, count, mass in steps if count)

    assert acceptance_rate(p, q, RULES[name]) == near(float(accepted))


@every_rule
@REPEATABLE
@given(pair=pairs)
def test_floats_give_the_law_of_fractions(name, pair):
    """Save where a limit is met exactly: no rule here has one among these weights."""
    p, q = pair
    in_floats = output([float(x) for x in p], [float(x) for x in q], RULES[name])

    assert in_floats == near([float(x) for x in output(p, q, RULES[name])])


@REPEATABLE
@given(pair=pairs)
def test_the_lossless_rule_has_no_bias(pair):
    assert bias(*pair, TOKEN) == 0
    assert acceptance_rate(*pair, TOKEN) == acceptance(*pair)


@every_rule
def test_every_default_is_lossy_on_the_witness(name):
    assert bias(P, Q, RULES[name]) > 0.05


@pytest.mark.parametrize("name", [name for name in RULES if name != "synthetic"])
@REPEATABLE
@given(pair=pairs)
def test_a_token_that_the_target_excludes_is_not_emitted(name, pair):
    p, q = pair
    law = output(p, q, RULES[name])

    assert all(law[x] == 0 for x in range(VOCAB) if p[x] == 0)


def test_preset_rates_emit_tokens_that_the_target_excludes():
    case = WITNESSES["C5"]
    p, q = case.target(()), case.draft(())

    assert output(p, q, RULES["synthetic"])[3] == Fraction(7, 40)


# --- sizes known from elsewhere -------------------------------------------------------


def other_lenient(lenience):
    """The rule of the same name that recovers from (p - l q)+."""
    return Rule(
        lossy.lenient(lenience).accept,
        lambda p, q, _: residual([mass / lenience for mass in p], q),
    )


TABLE = {
    "lenience 1/2": (RULES["lenient"], 0.125, 0.594),
    "accept if among the top 2": (RULES["top-k"], 0.126, 0.219),
    "always accept": (lossy.synthetic(1), 0.531, 1),
    "lenience 1/2, (p - q/2)+": (other_lenient(Fraction(1, 2)), 0.140, 0.594),
    "constant threshold p/q >= 1/2": (
        Rule(lambda p, q, x: int(2 * p[x] >= q[x]), lambda p, q, _: residual(p, q)),
        0.125,
        0.344,
    ),
    "resample from p": (Rule(TOKEN.accept, lambda p, q, _: p), 0.130, 0.469),
}


@pytest.mark.parametrize("name", TABLE)
def test_biases_and_acceptances_on_the_witness_are_those_of_the_reference(name):
    rule, tv, accepted = TABLE[name]

    assert round(float(bias(P, Q, rule)), 3) == tv
    assert round(float(acceptance_rate(P, Q, rule)), 3) == accepted


@pytest.mark.parametrize(
    ("single", "acc", "expected"),
    [
        (1, Fraction(1, 2), ("4/5", "1/10", "1/15", "1/30")),
        (Fraction(3, 10), Fraction(9, 10), ("1", "0", "0", "0")),
        (Fraction(2, 5), 1, ("1", "0", "0", "0")),
        (1, 1, ("2/5", "3/10", "1/5", "1/10")),
    ],
)
def test_a_thresholded_draft_takes_its_gain_from_the_others(single, acc, expected):
    """One child of p = (.4, .3, .2, .1): token 0."""
    p = [Fraction(4, 10), Fraction(3, 10), Fraction(2, 10), Fraction(1, 10)]
    law = output(p, one_hot(0), lossy.thresholded(single, acc))

    assert law == [Fraction(x) for x in expected]


# --- closed forms ---------------------------------------------------------------------


@REPEATABLE
@given(pair=pairs, lenience=shares)
def test_lenience_costs_what_it_accepts_beyond_alpha(pair, lenience):
    """L5 with equality."""
    p, q = pair
    rule = lossy.lenient(lenience)
    scaled = sum(overlap([mass / lenience for mass in p], q))

    assert acceptance_rate(p, q, rule) == scaled
    assert bias(p, q, rule) == scaled - acceptance(p, q)


@pytest.mark.parametrize("variant", [lossy.lenient, other_lenient])
@REPEATABLE
@given(pair=pairs, lenience=shares)
def test_lenience_emits_no_token_more_often_than_p_over_l(variant, pair, lenience):
    p, q = pair
    law = output(p, q, variant(lenience))

    assert all(mass <= a / lenience for mass, a in zip(law, p, strict=True))


@REPEATABLE
@given(pair=pairs, lenience=shares)
def test_the_other_residual_of_lenience_costs_no_less(pair, lenience):
    """More on the witness, see the table above."""
    p, q = pair

    assert bias(p, q, other_lenient(lenience)) >= bias(p, q, lossy.lenient(lenience))


@REPEATABLE
@given(pair=pairs)
def test_entropy_scaling_is_lenience_by_the_entropy(pair):
    p, q = pair
    lenience = min(math.exp(-0.4 * lossy.entropy(p)), 0.95)

    law = output(p, q, lossy.lenient(lenience))
    assert output(p, q, RULES["entropy"]) == near(law)


@REPEATABLE
@given(pair=pairs)
def test_entropy_scaling_costs_what_it_accepts_beyond_alpha(pair):
    p, q = pair
    rule = RULES["entropy"]

    extra = acceptance_rate(p, q, rule) - acceptance(p, q)
    assert bias(p, q, rule) == near(float(extra))


DETERMINISTIC = {
    "typical": lossy.typical(),
    "typical, strict": lossy.typical(Fraction(1, 4), 1),
    "top 1": lossy.top_k_accepted(1),
    "top 2": lossy.top_k_accepted(2),
}


@pytest.mark.parametrize("name", DETERMINISTIC)
@REPEATABLE
@given(pair=pairs)
def test_a_set_of_accepted_tokens_costs_its_mass_times_a_distance(name, pair):
    p, q = pair
    rule = DETERMINISTIC[name]
    mass = sum(q[x] for x in accepted_set(rule, p, q))
    given_set = [q[x] * rule.accept(p, q, x) / (mass or 1) for x in range(VOCAB)]

    assert acceptance_rate(p, q, rule) == mass
    assert bias(p, q, rule) == (mass and mass * total_variation(given_set, p))


def test_typical_acceptance_compares_strictly_and_in_floats():
    """.3 is the limit here: 1.4 exp(-H) is larger."""
    p = [Fraction(7, 10), Fraction(3, 10), Fraction(0), Fraction(0)]
    rule = lossy.typical(Fraction(3, 10), 1)

    assert accepted_set(rule, p, p) == {0}


@REPEATABLE
@given(pair=pairs, single=shares, acc=shares)
def test_a_threshold_costs_at_most_what_it_accepts_beyond_p(pair, single, acc):
    p, q = pair
    rule = lossy.thresholded(single, acc)
    matched = sum(a * b for a, b in zip(p, q, strict=True))

    assert bias(p, q, rule) <= acceptance_rate(p, q, rule) - matched


@REPEATABLE
@given(p=rows, token=st.integers(0, VOCAB - 1), single=shares, acc=shares)
def test_a_threshold_costs_a_one_hot_draft_exactly_that(p, token, single, acc):
    q, rule = one_hot(token), lossy.thresholded(single, acc)

    assert bias(p, q, rule) == acceptance_rate(p, q, rule) - p[token]


@REPEATABLE
@given(pair=pairs, rate=shares)
def test_preset_rates_mix_the_draft_and_the_residual(pair, rate):
    p, q = pair
    parts = zip(q, residual(p, q), strict=True)

    mixed = [rate * a + (1 - rate) * b for a, b in parts]
    assert output(p, q, lossy.synthetic(rate)) == mixed


@REPEATABLE
@given(pair=pairs, k=st.integers(0, 3), rate=shares)
def test_preset_rates_set_the_law_of_the_accepted_length(pair, k, rate):
    p, q = pair

    def emissions(target, draft, k):
        return chain.emissions(target, draft, k, rule=lossy.synthetic(rate))

    law = accepted_law(emissions, lambda prefix: p, lambda prefix: q, k)
    assert law == [*(rate**i * (1 - rate) for i in range(k)), rate**k]


@every_rule
@REPEATABLE
@given(pair=pairs)
def test_acceptance_above_alpha_costs_total_variation(name, pair):
    """L5, for every rule."""
    p, q = pair
    rule = RULES[name]

    above = acceptance_rate(p, q, rule) - acceptance(p, q)
    assert bias(p, q, rule) >= above - 1e-12


LOSSLESS = {
    "lenient": lossy.lenient(1),
    "threshold": lossy.thresholded(1, 1),
    "entropy": lossy.entropy_scaled(0, 1),
}


@pytest.mark.parametrize("name", LOSSLESS)
@REPEATABLE
@given(pair=pairs)
def test_settings_that_switch_a_rule_off_leave_no_bias(name, pair):
    assert bias(*pair, LOSSLESS[name]) == near(0)


@REPEATABLE
@given(pair=pairs)
def test_lenience_one_is_the_lossless_rule_token_by_token(pair):
    p, q = pair
    best = [accept_probability(a, b) for a, b in zip(p, q, strict=True)]

    assert [lossy.lenient(1).accept(p, q, x) for x in range(VOCAB)] == best


# --- errors ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "setting", "value", "allowed"),
    [
        (lossy.lenient, "lenience", 0, r"\(0, 1\]"),
        (lossy.lenient, "lenience", 1.5, r"\(0, 1\]"),
        (lossy.entropy_scaled, "factor", -1, "finite numbers of 0 or more"),
        (lossy.entropy_scaled, "factor", math.inf, "finite numbers of 0 or more"),
        (lossy.entropy_scaled, "cap", 0, r"\(0, 1\]"),
        (lossy.typical, "threshold", -0.5, r"\[0, 1\]"),
        (lossy.typical, "entropy_factor", math.nan, "finite numbers of 0 or more"),
        (lossy.top_k_accepted, "top", 0, "whole numbers of 1 or more"),
        (lossy.thresholded, "threshold_single", 0, r"\(0, 1\]"),
        (lossy.thresholded, "threshold_acc", 2, r"\(0, 1\]"),
        (lossy.synthetic, "rate", math.nan, r"\[0, 1\]"),
    ],
)
def test_a_setting_out_of_range_is_refused_by_name(rule, setting, value, allowed):
    with pytest.raises(
        ValueError, match=f"^{setting} is {value}; allowed .* {allowed}$"
    ):
        rule(**{setting: value})
