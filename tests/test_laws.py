# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: N802 - the laws are called L1 to L16 wherever they are written down
"""The laws of token-level verification, with exact fractions on both sides."""

import itertools
import math
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specverify.inputs import WITNESSES
from specverify.inputs.strategies import (
    cases,
    distribution_pairs,
    distributions,
    model_pairs,
)
from specverify.laws import bounds, chain, steps
from specverify.laws.distributions import (
    accept_probability,
    acceptance,
    coupling,
    emitted_law,
    excess,
    law_distance,
    overlap,
    residual,
    token_accepted_law,
    total_variation,
)

REPEATABLE = settings(max_examples=60, derandomize=True, deadline=None, database=None)
VOCAB = 4
pairs = distribution_pairs(VOCAB)
rows = distributions(VOCAB)
shares = st.integers(0, 6).map(lambda sixths: Fraction(sixths, 6))
accept_rules = st.lists(shares, min_size=VOCAB, max_size=VOCAB)
small_cases = cases(max_vocab=3, max_k=3, max_cells=27)

W = WITNESSES["W"]
P, Q = W.target(()), W.draft(())


def best_rule(p, q):
    """Acceptance ``min(1, p/q)`` of every token."""
    return [accept_probability(a, b) for a, b in zip(p, q, strict=True)]


def accepted_mass(q, accept):
    return sum(mass * a for mass, a in zip(q, accept, strict=True))


def one_token_law(p, q):
    """Law of (emitted token, accepted), by enumerating the algorithm with k = 1."""
    law = dict.fromkeys(token_accepted_law(p, q), Fraction(0))
    steps = chain.emissions(lambda prefix: p, lambda prefix: q, 1)
    for tokens, accepted, mass in steps:
        law[tokens[0], accepted == 1] += mass
    return law


# --- one draft, one token -------------------------------------------------------------


@REPEATABLE
@given(p=rows, q=rows)
def test_L1_overlap_and_excess_conserve_the_mass(p, q):
    assert sum(overlap(p, q)) + sum(excess(p, q)) == 1


@REPEATABLE
@given(p=rows, q=rows)
def test_L1_excess_of_either_side_is_the_total_variation(p, q):
    distance = total_variation(p, q)

    assert sum(excess(p, q)) == sum(excess(q, p)) == distance == 1 - acceptance(p, q)


@REPEATABLE
@given(p=rows, q=rows)
def test_L2_the_emitted_token_follows_the_target(p, q):
    law = token_accepted_law(p, q)

    assert tuple(law[x, True] + law[x, False] for x in range(VOCAB)) == p


@REPEATABLE
@given(p=rows, q=rows)
def test_L2_the_best_rule_and_the_residual_emit_the_target(p, q):
    assert tuple(emitted_law(q, best_rule(p, q), residual(p, q))) == p


@REPEATABLE
@given(p=rows, q=rows)
def test_L3_the_enumerated_step_has_the_joint_law_of_token_and_acceptance(p, q):
    assert one_token_law(p, q) == token_accepted_law(p, q)


def test_L3_tells_the_match_rule_apart_which_L2_does_not():
    """That rule emits y from p and calls it accepted where it equals the draft."""
    match = {}
    for x in range(VOCAB):
        match[x, True], match[x, False] = P[x] * Q[x], P[x] * (1 - Q[x])

    assert tuple(match[x, True] + match[x, False] for x in range(VOCAB)) == P
    assert match != token_accepted_law(P, Q)


@REPEATABLE
@given(p=rows, q=rows)
def test_L4_the_coupling_has_the_draft_and_the_target_as_marginals(p, q):
    law = coupling(p, q)
    every = range(VOCAB)

    assert tuple(sum(law.get((x, y), 0) for y in every) for x in every) == q
    assert tuple(sum(law.get((x, y), 0) for x in every) for y in every) == p


@REPEATABLE
@given(p=rows, q=rows)
def test_L4_the_diagonal_of_the_coupling_is_the_overlap(p, q):
    law = coupling(p, q)

    assert [law[x, x] for x in range(VOCAB)] == overlap(p, q)


@REPEATABLE
@given(pair=pairs)
def test_L4_given_a_rejection_the_token_does_not_depend_on_the_draft(pair):
    """Off the diagonal the coupling has rank one: all 2 x 2 minors vanish."""
    p, q = pair
    law = coupling(p, q)
    lost = [x for x in range(VOCAB) if q[x] > p[x]]
    gained = [y for y in range(VOCAB) if p[y] > q[y]]

    for x, z in itertools.combinations(lost, 2):
        for y, w in itertools.combinations(gained, 2):
            assert law[x, y] * law[z, w] == law[x, w] * law[z, y]


@REPEATABLE
@given(pair=pairs, accept=accept_rules, recovered=rows)
def test_L5_acceptance_above_alpha_costs_total_variation(pair, accept, recovered):
    p, q = pair
    bias = total_variation(emitted_law(q, accept, recovered), p)

    assert accepted_mass(q, accept) <= acceptance(p, q) + bias


@REPEATABLE
@given(pair=pairs, extra=accept_rules)
def test_L5_the_residual_pays_for_extra_acceptance_exactly_once(pair, extra):
    p, q = pair
    eager = [max(a, b) for a, b in zip(best_rule(p, q), extra, strict=True)]
    bias = total_variation(emitted_law(q, eager, residual(p, q)), p)

    assert accepted_mass(q, eager) == acceptance(p, q) + bias


def unique_residual(p, q, accept):
    """The one law of recovered tokens that keeps `accept` lossless (L6)."""
    lost = 1 - accepted_mass(q, accept)
    rest = zip(p, q, accept, strict=True)
    return [(a - b * keep) / lost for a, b, keep in rest]


def thrifty(p, q, scale):
    """An acceptance below the best one, token by token."""
    return [a * s for a, s in zip(best_rule(p, q), scale, strict=True)]


@REPEATABLE
@given(pair=pairs, scale=accept_rules)
def test_L6_every_smaller_acceptance_has_a_lossless_residual(pair, scale):
    p, q = pair
    accept = thrifty(p, q, scale)
    recovered = unique_residual(p, q, accept)

    assert min(recovered) >= 0
    assert tuple(emitted_law(q, accept, recovered)) == p


@REPEATABLE
@given(pair=pairs, scale=accept_rules, other=rows)
def test_L6_no_other_residual_is_lossless(pair, scale, other):
    p, q = pair
    accept = thrifty(p, q, scale)
    same = list(other) == unique_residual(p, q, accept)

    assert (tuple(emitted_law(q, accept, other)) == p) == same


@REPEATABLE
@given(pair=pairs)
def test_L6_the_best_rule_has_the_normalised_excess_as_residual(pair):
    p, q = pair

    assert residual(p, q) == unique_residual(p, q, best_rule(p, q))


@REPEATABLE
@given(pair=pairs, recovered=rows)
def test_L6_a_larger_acceptance_is_lossy_whatever_the_residual(pair, recovered):
    """Accepted always, a token with p < q is emitted too often already."""
    p, q = pair
    token = next(x for x in range(VOCAB) if p[x] < q[x])
    accept = best_rule(p, q)
    accept[token] = 1

    assert emitted_law(q, accept, recovered)[token] > p[token]


@REPEATABLE
@given(pair=pairs, scale=accept_rules, recovered=rows)
def test_L7_bias_is_the_rejected_mass_times_the_error_of_the_residual(
    pair, scale, recovered
):
    p, q = pair
    accept = thrifty(p, q, scale)
    lost = 1 - accepted_mass(q, accept)
    error = total_variation(recovered, unique_residual(p, q, accept))

    assert total_variation(emitted_law(q, accept, recovered), p) == lost * error


def squared(q):
    weights = [x * x for x in q]
    return [w / sum(weights) for w in weights]


def top_two(q):
    weights = [x if x in sorted(q)[-2:] else 0 for x in q]
    return [Fraction(w) / sum(weights) for w in weights]


def argmax(q):
    return [Fraction(x == max(q)) for x in q]


@pytest.mark.parametrize(
    ("drawn_from", "bias"), [(squared, 0.128), (top_two, 0.102), (argmax, 0.198)]
)
def test_L8_a_draft_drawn_from_another_law_than_declared_biases(drawn_from, bias):
    """It is verified against q all the same; sizes are those of the reference."""
    law = emitted_law(drawn_from(Q), best_rule(P, Q), residual(P, Q))

    assert round(float(total_variation(law, P)), 3) == bias


@REPEATABLE
@given(pair=pairs, other=rows)
def test_L8_the_bias_of_a_wrong_draft_law_is_at_most_its_distance(pair, other):
    """What goes in wrong by d comes out wrong by d at most; by 0 where it is right."""
    p, q = pair
    law = emitted_law(other, best_rule(p, q), residual(p, q))

    assert total_variation(law, p) <= total_variation(other, q)


@REPEATABLE
@given(p=rows)
def test_L9_equal_laws_accept_always(p):
    assert acceptance(p, p) == 1
    assert all(accept_probability(x, x) == 1 for x in p if x)


@REPEATABLE
@given(pair=pairs)
def test_L9_disjoint_supports_accept_never_and_recover_the_target(pair):
    """The excesses of p over q and of q over p share no token."""
    p, q = pair
    far, near = residual(p, q), residual(q, p)

    assert acceptance(far, near) == 0
    assert residual(far, near) == far


@REPEATABLE
@given(p=rows, q=rows)
def test_L9_what_the_target_excludes_is_neither_accepted_nor_recovered(p, q):
    law = token_accepted_law(p, q)

    excluded = [x for x in range(VOCAB) if p[x] == 0]
    assert all(law[x, True] == law[x, False] == 0 for x in excluded)


@REPEATABLE
@given(p=rows, token=st.integers(0, VOCAB - 1))
def test_L9_a_one_hot_draft_is_accepted_as_often_as_the_target_draws_it(p, token):
    one_hot = [int(x == token) for x in range(VOCAB)]

    assert acceptance(p, one_hot) == p[token]


@REPEATABLE
@given(p=rows, token=st.integers(0, VOCAB - 1))
def test_L9_behind_a_one_hot_draft_the_residual_is_the_rest_of_the_target(p, token):
    one_hot = [int(x == token) for x in range(VOCAB)]
    rest = [0 if x == token else mass for x, mass in enumerate(p)]

    recovered = residual(p, one_hot)
    assert recovered == ([x / sum(rest) for x in rest] if any(rest) else list(p))


@REPEATABLE
@given(q=rows, token=st.integers(0, VOCAB - 1))
def test_L9_a_one_hot_target_is_emitted_whatever_the_draft(q, token):
    one_hot = [Fraction(x == token) for x in range(VOCAB)]

    assert emitted_law(q, best_rule(one_hot, q), residual(one_hot, q)) == one_hot


@REPEATABLE
@given(case=small_cases, data=st.data())
def test_L10_renaming_tokens_renames_the_output(case, data):
    order = tuple(data.draw(st.permutations(range(case.vocab))))
    renamed = case.permuted(order)
    law = steps.output_law(chain.emissions, case.target, case.draft, case.k)

    expected = {tuple(order[t] for t in tokens): mass for tokens, mass in law.items()}
    assert (
        steps.output_law(chain.emissions, renamed.target, renamed.draft, case.k)
        == expected
    )


@REPEATABLE
@given(case=small_cases, extra=st.integers(1, 3))
def test_L10_tokens_that_neither_model_emits_change_nothing(case, extra):
    padded = case.padded(extra)
    law = steps.output_law(chain.emissions, case.target, case.draft, case.k)

    assert steps.output_law(chain.emissions, padded.target, padded.draft, case.k) == law


@REPEATABLE
@given(pair=pairs)
def test_L10_merging_tokens_never_lowers_the_acceptance(pair):
    merged = [[row[0] + row[1], *row[2:]] for row in pair]

    assert acceptance(*merged) >= acceptance(*pair)


@REPEATABLE
@given(pair=pairs, share=shares)
def test_L10_mixing_the_target_into_the_draft_accepts_as_much_more(pair, share):
    p, q = pair
    mixed = [share * a + (1 - share) * b for a, b in zip(p, q, strict=True)]

    assert acceptance(p, mixed) >= share + (1 - share) * acceptance(p, q)


# --- blocks and loops -----------------------------------------------------------------


def tail_law(case, length):
    """P(at least `length` drafts accepted and the first tokens x), by enumeration."""
    law = {}
    for tokens, accepted, mass in chain.emissions(case.target, case.draft, case.k):
        if accepted >= length:
            law[tokens[:length]] = law.get(tokens[:length], 0) + mass
    return law


@REPEATABLE
@given(case=small_cases)
def test_L11_no_prefix_is_accepted_beyond_either_joint_law(case):
    for length in range(1, case.k + 1):
        p = steps.autoregressive_law(case.target, length)
        q = steps.autoregressive_law(case.draft, length)
        tail = tail_law(case, length).items()
        assert all(mass <= min(p[x], q[x]) for x, mass in tail)


@REPEATABLE
@given(case=small_cases)
def test_L11_the_acceptance_bound_is_one_minus_the_distance_of_joint_laws(case):
    p = steps.autoregressive_law(case.target, case.k)
    q = steps.autoregressive_law(case.draft, case.k)
    bound = bounds.acceptance_bound(case.target, case.draft, case.k)

    assert bound == 1 - law_distance(p, q)


@REPEATABLE
@given(case=small_cases)
def test_L11_expected_acceptance_stays_below_the_sum_of_bounds(case):
    step = case.target, case.draft, case.k
    mean = steps.expected_accepted(chain.emissions, *step)

    assert mean <= bounds.expected_accepted_bound(*step)


def test_L11_accepting_every_draft_breaks_the_bound():
    """So the bound can be broken: q itself lies above min(P, Q)."""
    drafted = steps.autoregressive_law(W.draft, 1)

    assert sum(drafted.values()) > bounds.acceptance_bound(W.target, W.draft, 1)


def overlap_product(case, path):
    """``min(p, q)`` multiplied along a path."""
    return math.prod(
        min(case.target(path[:i])[x], case.draft(path[:i])[x])
        for i, x in enumerate(path)
    )


@REPEATABLE
@given(case=small_cases)
def test_L12_the_tail_of_the_accepted_length_is_a_product_of_overlaps(case):
    for length in range(case.k + 1):
        paths = itertools.product(range(case.vocab), repeat=length)
        expected = {path: overlap_product(case, path) for path in paths}
        tail = tail_law(case, length)
        assert all(tail.get(path, 0) == mass for path, mass in expected.items())


@REPEATABLE
@given(case=small_cases)
def test_L12_expected_acceptance_sums_all_products_of_overlaps(case):
    expected = sum(
        overlap_product(case, path)
        for length in range(1, case.k + 1)
        for path in itertools.product(range(case.vocab), repeat=length)
    )

    assert (
        steps.expected_accepted(chain.emissions, case.target, case.draft, case.k)
        == expected
    )


@REPEATABLE
@given(pair=distribution_pairs(3), k=st.integers(0, 4))
def test_L12_without_memory_the_accepted_length_is_a_cut_geometric_law(pair, k):
    p, q = pair
    alpha = acceptance(p, q)
    law = steps.accepted_law(chain.emissions, lambda prefix: p, lambda prefix: q, k)

    assert law == [*(alpha**i * (1 - alpha) for i in range(k)), alpha**k]


def test_L12_the_average_acceptance_does_not_give_the_length_where_contexts_differ():
    """On P2 a draft is accepted with 0.7, or with 0.8 and 0.6 by what came before."""
    case = WITNESSES["P2"]
    law = steps.accepted_law(chain.emissions, case.target, case.draft, 2)

    assert law[2] == Fraction(48, 100) != Fraction(7, 10) ** 2


@REPEATABLE
@given(case=small_cases, cut=st.integers(0, 1))
def test_L13_one_step_completed_by_the_target_is_the_target(case, cut):
    """Joint law of k + 1 tokens, or of one fewer."""
    length = case.k + 1 - cut
    emitted = steps.output_law(chain.emissions, case.target, case.draft, case.k)
    completed = steps.completed_law(emitted, case.target, length)

    assert completed == steps.autoregressive_law(case.target, length)


def test_L13_a_bonus_token_from_the_row_before_is_seen_in_the_joint_law():
    """On J1, where the rows differ; its first token alone still follows the target."""
    case = WITNESSES["J1"]
    law = {}
    for tokens, accepted, mass in chain.emissions(case.target, case.draft, 2):
        if accepted < 2:
            law[tokens] = law.get(tokens, 0) + mass
    for path in itertools.product(range(3), repeat=2):
        for bonus, mass in enumerate(case.target(path[:1])):
            law[(*path, bonus)] = overlap_product(case, path) * mass

    def agrees(length):
        completed = steps.completed_law(law, case.target, length)
        return completed == steps.autoregressive_law(case.target, length)

    assert [agrees(1), agrees(2), agrees(3)] == [True, True, False]


@REPEATABLE
@given(pair=model_pairs(2, memory=2), k=st.integers(0, 3), length=st.integers(0, 4))
def test_L16_a_loop_of_steps_emits_the_target(pair, k, length):
    target, draft = pair
    loop = steps.composed_law(chain.emissions, target, draft, k, length)

    assert loop == steps.autoregressive_law(target, length)


def test_L16_a_loop_that_forgets_the_past_between_steps_does_not(monkeypatch):
    monkeypatch.setattr(steps, "_after", lambda model, prefix: model)
    case = WITNESSES["P2"]
    loop = steps.composed_law(chain.emissions, case.target, case.draft, 1, 3)

    assert loop != steps.autoregressive_law(case.target, 3)


# --- conventions ----------------------------------------------------------------------


@REPEATABLE
@given(case=small_cases)
def test_outcomes_have_positive_mass_and_sum_to_one(case):
    masses = [m for *_, m in chain.emissions(case.target, case.draft, case.k)]

    assert min(masses) > 0
    assert sum(masses) == 1


@REPEATABLE
@given(case=small_cases)
def test_a_step_emits_one_token_more_than_it_accepts(case):
    steps = chain.emissions(case.target, case.draft, case.k)

    assert all(len(tokens) == accepted + 1 for tokens, accepted, _ in steps)


@REPEATABLE
@given(case=small_cases)
def test_fractions_stay_fractions(case):
    law = steps.output_law(chain.emissions, case.target, case.draft, case.k)

    assert {type(mass) for mass in law.values()} == {Fraction}


def test_floats_stay_floats():
    p, q = [[float(x) for x in row] for row in (P, Q)]
    law = steps.output_law(chain.emissions, lambda prefix: p, lambda prefix: q, 1)

    assert {type(mass) for mass in law.values()} == {float}


def test_a_negative_draft_length_is_refused_with_found_and_allowed():
    with pytest.raises(ValueError, match=r"^k is -1; allowed is 0 or more$"):
        steps.output_law(chain.emissions, W.target, W.draft, -1)


def test_rows_of_different_length_are_refused():
    with pytest.raises(ValueError, match="zip"):
        overlap(P, Q[:3])
