# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: N802 - the laws are called L3 to L26 wherever they are written down
"""The laws of several drafts at one position, with exact fractions on both sides."""

import itertools
import math
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specverify.inputs import WITNESSES
from specverify.inputs.strategies import distributions
from specverify.laws import multidraft
from specverify.laws.distributions import (
    acceptance,
    excess,
    overlap,
    residual,
    token_accepted_law,
    total_variation,
)
from specverify.laws.multidraft import RULES
from specverify.laws.proposals import NO_TOKEN, draft_law, most_likely, removed
from specverify.laws.ranks import ranked, selected_law

REPEATABLE = settings(max_examples=60, derandomize=True, deadline=None, database=None)
vocabularies = st.integers(3, 4)
pairs = vocabularies.flatmap(lambda v: st.tuples(distributions(v), distributions(v)))
counts = st.integers(1, 3)
shares = st.integers(0, 6).map(lambda sixths: Fraction(sixths, 6))
DRAFTS = ["iid", "without_replacement", "deterministic", "greedy", "hub"]

W = WITNESSES["W"]
P, Q = W.target(()), W.draft(())


def slots_of(drafts, n):
    """SpecHub has two drafts, whatever the number drawn."""
    return 2 if drafts == "hub" else n


def bias(rule, drafts, n=2, p=P, q=Q):
    return total_variation(multidraft.output_law(rule, p, q, n, drafts), p)


def law_of(rule, p, q, drawn):
    """Law of the emitted token when the drafts follow the law `drawn`."""
    law = [Fraction(0)] * len(p)
    for slots, mass in drawn.items():
        for token, _, share in rule(p, q, slots):
            law[token] += mass * share
    return tuple(law)


# --- drafts ---------------------------------------------------------------------------


@REPEATABLE
@given(pair=pairs, n=counts, drafts=st.sampled_from(DRAFTS))
def test_drafts_have_a_law_of_positive_masses_and_tokens(pair, n, drafts):
    q = pair[1]
    n = slots_of(drafts, n)
    law = draft_law(q, n, drafts)

    assert sum(law.values()) == 1
    assert min(law.values()) > 0
    assert all(len(slots) == n for slots in law)
    assert all(q[x] for slots in law for x in slots if x != NO_TOKEN)


@REPEATABLE
@given(pair=pairs, n=counts, drafts=st.sampled_from(["iid", "without_replacement"]))
def test_the_first_draft_follows_the_draft_law(pair, n, drafts):
    q = pair[1]
    first = [Fraction(0)] * len(q)
    for slots, mass in draft_law(q, n, drafts).items():
        first[slots[0]] += mass

    assert tuple(first) == q


@REPEATABLE
@given(pair=pairs, n=counts, drafts=st.sampled_from(DRAFTS[1:]))
def test_drafts_that_are_not_independent_hold_every_token_once(pair, n, drafts):
    """As many of them as q has; -1 stands behind, or before the last of "greedy"."""
    q = pair[1]
    n = slots_of(drafts, n)
    size = min(n, sum(mass > 0 for mass in q))

    for slots in draft_law(q, n, drafts):
        held = [x for x in slots if x != NO_TOKEN]
        assert len(held) == len(set(held)) == size


def test_successive_drafts_are_renormalised():
    law = draft_law((Fraction(1, 2), Fraction(1, 3), Fraction(1, 6)), 2, DRAFTS[1])

    assert law[0, 1] == Fraction(1, 2) * Fraction(2, 3)
    assert law[2, 0] == Fraction(1, 6) * Fraction(3, 5)


@pytest.mark.parametrize(
    ("q", "n", "slots"),
    [
        ((1, 3, 3, 1), 2, (1, 2)),
        ((3, 3, 3, 0), 2, (0, 1)),
        ((0, 5, 3, 0), 3, (1, 2, -1)),
    ],
)
def test_deterministic_drafts_are_the_most_likely_tokens_the_lowest_on_ties(
    q, n, slots
):
    row = [Fraction(weight, sum(q)) for weight in q]

    assert draft_law(row, n, "deterministic") == {slots: 1}


def test_greedy_drafts_end_with_one_drawn_from_the_rest():
    law = draft_law([Fraction(x, 10) for x in (1, 5, 2, 2)], 2, "greedy")

    assert law == {
        (1, 0): Fraction(1, 5),
        (1, 2): Fraction(2, 5),
        (1, 3): Fraction(2, 5),
    }


def test_pairs_of_a_hub_have_the_draft_law_first():
    law = draft_law([Fraction(x, 10) for x in (2, 5, 3)], 2, "hub")

    assert law == {
        (0, 1): Fraction(2, 10),
        (1, 0): Fraction(5, 10) * Fraction(2, 5),
        (1, 2): Fraction(5, 10) * Fraction(3, 5),
        (2, 1): Fraction(3, 10),
    }


@pytest.mark.parametrize("drafts", ["greedy", "hub"])
def test_a_single_possible_token_leaves_the_other_slot_empty(drafts):
    assert draft_law([0, Fraction(1), 0], 2, drafts) == {(1, -1): 1}


@pytest.mark.parametrize(
    ("n", "drafts", "message"),
    [
        (0, "iid", r"^n is 0; allowed is 1 or more$"),
        (3, "hub", r"^n is 3; allowed is 2 for hub$"),
        (2, "top", r"^drafts is 'top'; allowed are deterministic, greedy, hub, iid, "),
    ],
)
def test_other_drafts_are_refused_with_found_and_allowed(n, drafts, message):
    with pytest.raises(ValueError, match=message):
        draft_law(Q, n, drafts)


# --- every rule -----------------------------------------------------------------------


@pytest.mark.parametrize("name", RULES)
@REPEATABLE
@given(pair=pairs, n=counts)
def test_the_emitted_token_follows_the_target(name, pair, n):
    p, q = pair
    rule, drafts = RULES[name]
    law = multidraft.output_law(rule, p, q, slots_of(drafts, n), drafts)

    assert tuple(law) == p


@pytest.mark.parametrize("name", RULES)
@REPEATABLE
@given(pair=pairs, n=counts)
def test_L22_the_accepted_token_is_the_draft_in_its_slot(name, pair, n):
    p, q = pair
    rule, drafts = RULES[name]
    for slots in draft_law(q, slots_of(drafts, n), drafts):
        outcomes = list(rule(p, q, slots))
        accepted = [(token, slot) for token, slot, _ in outcomes if slot != NO_TOKEN]
        assert all(slots[slot] == token for token, slot in accepted)
        assert min(mass for *_, mass in outcomes) > 0
        assert sum(mass for *_, mass in outcomes) == 1


ONE_DRAFT = ["with_replacement", "without_replacement", "kseq", "selection"]


@pytest.mark.parametrize("name", [*ONE_DRAFT, "greedy_draft"])
@REPEATABLE
@given(pair=pairs)
def test_L3_one_draft_is_verified_as_by_the_token_rule(name, pair):
    rule, drafts = RULES[name]
    law = multidraft.joint_law(rule, *pair, 1, drafts)

    expected = token_accepted_law(*pair)
    assert all(
        law.get((token, 0 if accepted else NO_TOKEN), 0) == mass
        for (token, accepted), mass in expected.items()
    )


@pytest.mark.parametrize("name", RULES)
def test_floats_give_the_same_law(name):
    rule, drafts = RULES[name]
    p, q = ([float(mass) for mass in row] for row in (P, Q))
    exact = multidraft.joint_law(rule, P, Q, 2, drafts)
    rounded = multidraft.joint_law(rule, p, q, 2, drafts)

    assert rounded == pytest.approx({x: float(m) for x, m in exact.items()}, abs=1e-12)
    assert {type(mass) for mass in exact.values()} == {Fraction}
    assert {type(mass) for mass in rounded.values()} == {float}


# --- one draft after the other --------------------------------------------------------


@REPEATABLE
@given(pair=pairs, n=counts)
def test_independent_drafts_are_rejected_round_by_round(pair, n):
    p, q = pair
    rejected = Fraction(1)
    for _ in range(n):
        rejected *= 1 - acceptance(p, q)
        p = residual(p, q)

    got = multidraft.acceptance(multidraft.with_replacement, *pair, n, "iid")
    assert got == 1 - rejected


@REPEATABLE
@given(pair=pairs)
def test_L24_as_many_successive_drafts_as_tokens_are_always_accepted(pair):
    p, q = pair
    q = tuple((mass + 1) / (1 + len(q)) for mass in q)  # of full support
    rule, drafts = RULES["without_replacement"]

    assert multidraft.acceptance(rule, p, q, len(q), drafts) == 1


def distinct(slots):
    """Keep the first of equal drafts."""
    kept = tuple(dict.fromkeys(slots))
    return kept + (NO_TOKEN,) * (len(slots) - len(kept))


def distinct_law(q, n):
    law = {}
    for slots, mass in draft_law(q, n, "iid").items():
        law[distinct(slots)] = law.get(distinct(slots), 0) + mass
    return law


@REPEATABLE
@given(pair=pairs, n=counts)
def test_L26_independent_drafts_without_duplicates_are_verified_as_successive(pair, n):
    p, q = pair

    assert law_of(multidraft.without_replacement, p, q, distinct_law(q, n)) == p


def test_L26_verified_as_independent_they_are_lossy():
    assert law_of(multidraft.with_replacement, P, Q, distinct_law(Q, 2)) != P


def test_successive_drafts_verified_as_independent_are_lossy():
    assert bias(multidraft.with_replacement, "without_replacement") > 0


def test_independent_drafts_verified_as_successive_are_lossy():
    """A draft that comes twice is tested against a law in which it has no mass."""
    assert bias(multidraft.without_replacement, "iid") > 0


# --- K-SEQ ----------------------------------------------------------------------------


@REPEATABLE
@given(pair=pairs, n=counts)
def test_rho_is_the_root_from_above(pair, n):
    p, q = pair
    rho = multidraft.kseq_rho(p, q, n)

    def surplus(rho):
        once = sum(overlap([mass / rho for mass in p], q))
        return 1 - (1 - once) ** n - rho * once

    assert 1 <= rho <= n
    assert surplus(rho) <= 0
    assert rho == 1 or surplus(rho - Fraction(1, 2**39)) > 0


@REPEATABLE
@given(pair=pairs, n=counts)
def test_every_draft_is_accepted_alike_and_independently(pair, n):
    p, q = pair
    rho = multidraft.kseq_rho(p, q, n)
    once = sum(overlap([mass / rho for mass in p], q))

    got = multidraft.acceptance(multidraft.kseq, p, q, n, "iid")
    assert got == 1 - (1 - once) ** n


def test_kseq_with_the_test_of_one_draft_is_lossy():
    def eager(p, q, slots):
        return multidraft.kseq(p, q, slots, rho=1)

    assert bias(eager, "iid") > 0


# --- several drafts at once -----------------------------------------------------------


@REPEATABLE
@given(pair=pairs, n=counts)
def test_greedy_drafts_accept_the_fixed_ones_and_the_overlap_with_the_rest(pair, n):
    p, q = pair
    top = most_likely(q, n - 1)
    rest = overlap(p, removed(q, top))
    fixed = sum(p[x] for x in top if x != NO_TOKEN)

    got = multidraft.acceptance(multidraft.greedy_draft, p, q, n, "greedy")
    assert got == fixed + sum(rest)


def test_a_hub_verified_as_independent_drafts_is_lossy():
    assert bias(multidraft.with_replacement, "hub") > 0


@REPEATABLE
@given(pair=pairs, n=counts, drafts=st.sampled_from(DRAFTS))
def test_the_target_alone_is_lossless_for_any_drafts(pair, n, drafts):
    p, q = pair
    n = slots_of(drafts, n)
    law = multidraft.output_law(multidraft.target_only, p, q, n, drafts)

    assert tuple(law) == p


@REPEATABLE
@given(pair=pairs, n=counts)
def test_a_draw_from_the_target_is_among_independent_drafts(pair, n):
    expected = sum(a * (1 - (1 - b) ** n) for a, b in zip(*pair, strict=True))

    assert multidraft.acceptance(multidraft.target_only, *pair, n, "iid") == expected


@REPEATABLE
@given(pair=pairs, n=counts)
def test_L25_deterministic_drafts_are_accepted_as_often_as_the_target_draws_them(
    pair, n
):
    p, q = pair
    drafted = sum(p[x] for x in most_likely(q, n) if x != NO_TOKEN)

    got = multidraft.acceptance(multidraft.target_only, p, q, n, "deterministic")
    assert got == drafted


@REPEATABLE
@given(pair=pairs, n=counts)
def test_L25_the_order_of_deterministic_drafts_does_not_matter(pair, n):
    p, q = pair
    laws = [
        {(x, slot != NO_TOKEN): m for x, slot, m in multidraft.target_only(p, q, order)}
        for order in itertools.permutations(most_likely(q, n))
    ]

    assert all(law == laws[0] for law in laws)


# --- select, then verify --------------------------------------------------------------


@REPEATABLE
@given(pair=pairs, n=counts)
def test_the_selected_draft_has_the_stated_law(pair, n):
    p, q = pair
    order = ranked(p, q)
    law = [Fraction(0)] * len(q)
    for slots, mass in draft_law(q, n, "iid").items():
        law[max(slots, key=order.index)] += mass

    assert selected_law(p, q, n) == law


def test_the_largest_ratio_is_selected_and_on_ties_the_lowest_id():
    p, q = ([Fraction(x, 8) for x in row] for row in ((1, 1, 4, 2), (3, 3, 2, 0)))

    assert ranked(p, q) == [1, 0, 2]


@REPEATABLE
@given(pair=pairs, table=st.lists(shares, min_size=16, max_size=16))
def test_any_selection_of_one_of_two_drafts_is_lossless(pair, table):
    p, q = pair

    def rule(p, q, slots):
        return multidraft.weighted_selection(
            p, q, slots, first=lambda x, y: table[4 * x + y]
        )

    assert tuple(multidraft.output_law(rule, p, q, 2, "iid")) == p


def test_a_selected_draft_verified_as_an_unselected_one_is_lossy():
    def unaware(p, q, slots):
        best = max(slots, key=ranked(p, q).index)
        return multidraft.with_replacement(p, q, (best,))

    assert bias(unaware, "iid") > 0


# --- the sum of the parts -------------------------------------------------------------


@REPEATABLE
@given(pair=pairs)
def test_what_other_drafts_add_is_what_the_residual_hits(pair):
    """The first of two drafts is verified alone; a recovered token may be the second."""
    p, q = pair
    hits = sum(m * b for m, b in zip(excess(p, q), q, strict=True))

    def first_only(p, q, slots):
        for token, slot, mass in multidraft.with_replacement(p, q, slots[:1]):
            hit = slot == NO_TOKEN and token == slots[1]
            yield token, 1 if hit else slot, mass

    got = multidraft.acceptance(first_only, p, q, 2, "iid")
    assert got == acceptance(p, q) + hits
    assert math.isclose(bias(first_only, "iid", 2, p, q), 0)
