# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: N802 - the laws are called L20 to L25 wherever they are written down
"""Bounds on acceptance, against a linear program and against the rules themselves."""

import itertools
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from specverify.inputs.strategies import distributions
from specverify.laws import bounds, multidraft
from specverify.laws.distributions import acceptance, total_variation
from specverify.laws.multidraft import RULES
from specverify.laws.proposals import NO_TOKEN, draft_law, most_likely

REPEATABLE = settings(max_examples=60, derandomize=True, deadline=None, database=None)
vocabularies = st.integers(3, 4)
pairs = vocabularies.flatmap(lambda v: st.tuples(distributions(v), distributions(v)))
counts = st.integers(1, 3)
DRAFTS = ["iid", "without_replacement", "deterministic", "greedy", "hub"]
SORTED = ["iid", "without_replacement"]


def slots_of(drafts, n):
    return 2 if drafts == "hub" else n


def transport(p, law):
    """Largest mass that goes from tuples of drafts to one of their tokens."""
    flows = [(i, x) for i, slots in enumerate(law) for x in set(slots) - {NO_TOKEN}]
    limits = [float(mass) for mass in (*law.values(), *p)]
    rows = np.zeros((len(limits), len(flows)))
    for column, (i, x) in enumerate(flows):
        rows[i, column] = rows[len(law) + x, column] = 1
    return -linprog(-np.ones(len(flows)), A_ub=rows, b_ub=limits).fun


@pytest.mark.parametrize("drafts", DRAFTS)
@REPEATABLE
@given(pair=pairs, n=counts)
def test_L20_the_smallest_cut_is_the_largest_transport(drafts, pair, n):
    """The solver's own tolerance is 1e-7."""
    p, q = pair
    law = draft_law(q, slots_of(drafts, n), drafts)

    assert float(bounds.optimum(p, law)) == pytest.approx(transport(p, law), abs=1e-6)


@REPEATABLE
@given(pair=pairs)
def test_L20_of_one_draft_the_overlap_is_accepted_at_most(pair):
    p, q = pair

    assert bounds.optimum(p, draft_law(q, 1, "iid")) == acceptance(p, q)


def test_L20_without_a_draft_nothing_is_accepted():
    half = Fraction(1, 2)

    assert bounds.optimum((half, half), {(0, -1): half, (-1, -1): half}) == half


@pytest.mark.parametrize("drafts", SORTED)
@REPEATABLE
@given(pair=pairs, n=counts)
def test_L21_the_smallest_cut_holds_the_tokens_of_largest_ratio(drafts, pair, n):
    p, q = pair
    best = bounds.optimum(p, draft_law(q, n, drafts))

    assert bounds.optimum_sorted(p, q, n, drafts) == best


@pytest.mark.parametrize("drafts", SORTED)
@REPEATABLE
@given(pair=pairs, n=counts)
def test_L21_more_drafts_allow_no_less(drafts, pair, n):
    fewer, more = (bounds.optimum_sorted(*pair, m, drafts) for m in (n, n + 1))

    assert fewer <= more


@REPEATABLE
@given(pair=pairs)
def test_L21_two_drafts_can_always_hold_the_output_iff_no_set_is_too_likely(pair):
    p, q = pair
    sets = itertools.chain.from_iterable(
        itertools.combinations(range(len(p)), size) for size in range(len(p) + 1)
    )
    room = all(sum(p[x] for x in s) >= sum(q[x] for x in s) ** 2 for s in sets)

    assert (bounds.optimum_sorted(p, q, 2, "iid") == 1) == room


@pytest.mark.parametrize("name", RULES)
@REPEATABLE
@given(pair=pairs, n=counts)
def test_L22_no_rule_accepts_more_than_its_drafts_allow(name, pair, n):
    p, q = pair
    rule, drafts = RULES[name]
    n = slots_of(drafts, n)
    best = bounds.optimum(p, draft_law(q, n, drafts))

    assert multidraft.acceptance(rule, p, q, n, drafts) <= best


@pytest.mark.parametrize("name", ["hub", "greedy_draft", "target_only"])
@REPEATABLE
@given(pair=pairs, n=counts)
def test_L23_the_best_rule_for_some_drafts_accepts_all_they_allow(name, pair, n):
    p, q = pair
    rule, drafts = RULES[name]
    n = slots_of(drafts, n)
    best = bounds.optimum(p, draft_law(q, n, drafts))

    assert multidraft.acceptance(rule, p, q, n, drafts) == best


@REPEATABLE
@given(pair=pairs, n=counts)
def test_L23_kseq_accepts_a_fixed_part_of_what_its_drafts_allow(pair, n):
    """Less n 2^-40: rho is that close to its root, and acceptance has slope n at most."""
    p, q = pair
    best = bounds.optimum_sorted(p, q, n, "iid")
    part = 1 - (1 - Fraction(1, n)) ** n

    got = multidraft.acceptance(multidraft.kseq, p, q, n, "iid")
    assert got >= part * best - n * Fraction(1, 2**40)


@REPEATABLE
@given(pair=pairs, n=counts)
def test_L25_of_deterministic_drafts_as_many_are_accepted_as_the_target_draws(pair, n):
    p, q = pair
    drafted = sum(p[x] for x in most_likely(q, n) if x != NO_TOKEN)

    assert bounds.optimum(p, draft_law(q, n, "deterministic")) == drafted


@REPEATABLE
@given(pair=pairs, n=counts, halves=st.integers(1, 6))
def test_L5_acceptance_above_the_optimum_costs_total_variation(pair, n, halves):
    """K-SEQ with any rho, mostly a lossy one: the optimum has slope 1 in the output."""
    p, q = pair

    def rule(p, q, slots):
        return multidraft.kseq(p, q, slots, rho=Fraction(halves, 2))

    lost = total_variation(multidraft.output_law(rule, p, q, n, "iid"), p)
    got = multidraft.acceptance(rule, p, q, n, "iid")
    assert got <= bounds.optimum_sorted(p, q, n, "iid") + lost


def test_an_accepting_rule_breaks_the_bound():
    """So it can be broken: disjoint laws allow nothing."""

    def eager(p, q, slots):
        yield slots[0], 0, 1

    p, q = (Fraction(1), Fraction(0)), (Fraction(0), Fraction(1))
    best = bounds.optimum_sorted(p, q, 2, "iid")

    assert multidraft.acceptance(eager, p, q, 2, "iid") > best == 0


def test_other_drafts_have_no_sorted_optimum():
    with pytest.raises(ValueError, match=r"^drafts is 'hub'; allowed are iid, without"):
        bounds.optimum_sorted((1,), (1,), 2, "hub")
