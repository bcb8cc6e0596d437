# SPDX-License-Identifier: Apache-2.0
"""What is particular to drafts that are constructed, or chosen from."""

from fractions import Fraction
from functools import partial

import pytest
import torch
from branches import ROUNDING, farthest, multidraft_law
from calls import random_slots, same, seeded, slots_call
from hypothesis import given, settings
from hypothesis import strategies as st

from specverify.core import selection, verify_greedy_draft, verify_hub, verify_selected
from specverify.inputs import WITNESSES
from specverify.inputs.strategies import multidraft_cases
from specverify.laws import multidraft as laws

REPEATABLE = settings(max_examples=20, derandomize=True, deadline=None, database=None)
W = WITNESSES["W"]
P, Q = W.target(()), W.draft(())


def miss(verify, rule, drafts, p=P, q=Q, n=2, **options):
    """How far the law of the code lies from that of a rule."""
    found = multidraft_law(verify, p, q, n, drafts, **options)
    return farthest(found, laws.joint_law(rule, p, q, n, drafts))


# --- chosen by weights ----------------------------------------------------------------


def choice(table):
    """The rule that chooses by a table of probabilities, in fractions."""
    return partial(laws.weighted_selection, first=lambda x, y: table[x][y])


def weights(table):
    rows = [[float(x) for x in row] for row in table]
    return torch.tensor(rows, dtype=torch.float64)


ALWAYS_FIRST = [[Fraction(1)] * 4] * 4
UNEVEN = [[Fraction((3 * x + 5 * y) % 8, 7) for y in range(4)] for x in range(4)]


@pytest.mark.parametrize("table", [ALWAYS_FIRST, UNEVEN], ids=["first", "uneven"])
def test_a_choice_by_weights_has_the_stated_law(table, device):
    options = {"weights": weights(table), "device": device}

    assert miss(verify_selected, choice(table), "iid", **options) <= ROUNDING


tables = st.lists(
    st.lists(st.integers(0, 4).map(lambda x: Fraction(x, 4)), min_size=4, max_size=4),
    min_size=4,
    max_size=4,
)


@REPEATABLE
@given(case=multidraft_cases(drafts="iid", max_vocab=4), table=tables)
def test_a_choice_by_any_weights_has_the_stated_law(case, table):
    p, q = case.target(()), case.draft(())
    some = weights(table)[: case.vocab, : case.vocab]

    assert miss(verify_selected, choice(table), "iid", p, q, weights=some) <= ROUNDING


def test_a_choice_by_any_weights_emits_the_target():
    law = multidraft_law(verify_selected, P, Q, 2, "iid", weights=weights(UNEVEN))
    tokens = dict.fromkeys(range(4), 0.0)
    for (token, _), mass in law.items():
        tokens[token] += mass

    assert farthest(tokens, dict(enumerate(P))) <= ROUNDING


def test_other_weights_have_another_law():
    other = [row[::-1] for row in UNEVEN]

    assert miss(verify_selected, choice(UNEVEN), "iid", weights=weights(other)) > 1e-3


def test_weights_that_always_take_the_first_draft_make_a_chain_of_one(device):
    ids, q, p, u = random_slots(1, n=2, batch=300, vocab=4, device=device)
    first = torch.ones(300, 4, 4, device=device)
    one = verify_selected(ids[:, :1], q, p, uniforms=u[:, [0, 2]])

    assert same(verify_selected(ids, q, p, weights=first, uniforms=u), one)


def test_a_draft_without_another_is_chosen_whatever_its_weight(device):
    ids, q, p, u = random_slots(2, n=1, batch=300, vocab=4, device=device)
    any_weights = torch.rand(300, 4, 4, generator=seeded(3)).to(device)
    uniforms = u[:, [0, 0, 1]]
    token, slot = verify_selected(ids, q, p, uniforms=u)

    for place in (0, 1):
        wide = torch.full((300, 2), -1, device=device)
        wide[:, place] = ids[:, 0]
        result = verify_selected(wide, q, p, weights=any_weights, uniforms=uniforms)
        assert same(result, (token, torch.where(slot >= 0, place, -1)))


BAD_WEIGHTS = [
    ([[0.5]], TypeError, r"weights is a list; .* \[batch, vocab, vocab\]"),
    (torch.ones(4, 4), ValueError, r"weights has shape \[4, 4\]; .* vocab, vocab\]"),
    (torch.ones(2, 4, 3), ValueError, r"weights has shape \[2, 4, 3\]; .* \[2, 4, 4\]"),
    (torch.ones(2, 4, 4).to("meta"), ValueError, "weights is on meta; .* cpu"),
]


@pytest.mark.parametrize(("value", "error", "says"), BAD_WEIGHTS)
def test_bad_weights_are_refused_with_found_and_allowed(value, error, says):
    with pytest.raises(error, match=f"^{says}"):
        verify_selected(**slots_call(), weights=value)


@pytest.mark.parametrize("n", [1, 3])
def test_weights_choose_from_pairs_only(n):
    call = slots_call(
        draft_token_ids=torch.zeros(2, n).long(), uniforms=torch.zeros(2, n + 1)
    )

    with pytest.raises(ValueError, match=rf"has {n} slots; weights .* \[batch, 2\]"):
        verify_selected(**call, weights=torch.ones(2, 4, 4))


# --- chosen by rank -------------------------------------------------------------------


def test_of_equal_ratios_the_lower_id_is_chosen(device):
    """Law and choice must break ties in one way: here everything is a tie."""
    even = [Fraction(1, 4)] * 4
    ids = torch.tensor([[3, 1, 2], [0, 0, 3]], device=device)
    row = torch.full((2, 4), 0.25, device=device)
    u = torch.zeros(2, 4, dtype=torch.float64, device=device)

    assert miss(verify_selected, laws.selection, "iid", even, even, n=3) <= ROUNDING
    assert verify_selected(ids, row, row, uniforms=u).accepted.tolist() == [1, 0]


def test_testing_the_chosen_draft_against_q_is_lossy(monkeypatch):
    """The mistake that choosing by value invites."""
    best = selection._best_ranked
    monkeypatch.setattr(selection, "_best_ranked", lambda step: (step.q, best(step)[1]))

    assert miss(verify_selected, laws.selection, "iid") > 0.01


def test_breaking_ties_differently_in_choice_and_law_is_lossy(monkeypatch):
    p = [Fraction(1, 2), Fraction(1, 4), Fraction(1, 4)]
    q = [Fraction(1, 4), Fraction(3, 8), Fraction(3, 8)]
    best = selection._best_ranked
    assert miss(verify_selected, laws.selection, "iid", p, q) <= ROUNDING

    def last_of_ties(step):
        law, slot = best(step)
        both = (step.draft_token_ids > 0).all(dim=1)
        return law, torch.where(both, step.draft_token_ids.argmax(dim=1), slot)

    monkeypatch.setattr(selection, "_best_ranked", last_of_ties)
    assert miss(verify_selected, laws.selection, "iid", p, q) > 0.01


@pytest.mark.parametrize("n", [1, 2, 64])
def test_the_law_of_the_best_draft_sums_to_one_with_small_tails(n, device):
    """Tokens of mass 2^-60 keep their digits."""
    q = torch.tensor([[2.0**-60, 0.5, 0.5 - 2.0**-60]], dtype=torch.float64)
    p = torch.tensor([[2.0**-62, 0.25, 0.75]], dtype=torch.float64)
    ids = torch.zeros(1, n, dtype=torch.int64)
    step = selection.MultidraftStep.open(
        ids.to(device), q.to(device), p.to(device), uniforms=None
    )
    law, _ = selection._best_ranked(step)

    assert law.sum().item() == pytest.approx(1, abs=1e-15)
    assert law[0, 0].item() == pytest.approx(2.0 ** (-60 * n), rel=1e-12)


# --- hub ------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 3])
def test_hub_takes_pairs_only(n):
    call = slots_call(
        draft_token_ids=torch.zeros(2, n).long(), uniforms=torch.zeros(2, n + 1)
    )

    with pytest.raises(ValueError, match=rf"has {n} slots; SpecHub .* \[batch, 2\]"):
        verify_hub(**call)


def test_a_hub_without_another_token_is_verified_against_one_hot(device):
    q = [Fraction(0), Fraction(1), Fraction(0), Fraction(0)]

    assert miss(verify_hub, laws.hub, "hub", P, q, device=device) <= ROUNDING


def test_a_hub_that_forgets_what_it_gave_away_has_another_law(monkeypatch):
    """Both flows of the hub then take from all of p."""
    monkeypatch.setattr(selection, "without", lambda q, token: q)

    assert miss(verify_hub, laws.hub, "hub") > 1e-3


# --- greedy drafts --------------------------------------------------------------------


def test_a_recovered_token_that_is_a_fixed_draft_counts_as_accepted(device):
    """With p on the fixed token alone it is always that one."""
    ids = torch.tensor([[1, 0]], device=device).expand(50, 2)
    p = torch.tensor([0.0, 1.0, 0.0], device=device).expand(50, 3)
    q = torch.tensor([0.25, 0.5, 0.25], device=device).expand(50, 3)

    result = verify_greedy_draft(ids, q, p)
    assert result.accepted.tolist() == [0] * 50


def test_a_drawn_token_that_is_tested_against_all_of_q_has_another_law(monkeypatch):
    monkeypatch.setattr(selection, "without", lambda q, token: q)

    assert miss(verify_greedy_draft, laws.greedy_draft, "greedy") > 0.01
