# SPDX-License-Identifier: Apache-2.0
"""The law of code that takes its uniforms, from answers to uniforms of our choice."""

from fractions import Fraction
from itertools import product

import numpy as np
import pytest
import torch

from specverify.core import verify_block, verify_chain
from specverify.exact import Unfollowed
from specverify.exact.injection import box_law, midpoints
from specverify.exact.stepping import injected_step_law, step_law
from specverify.inputs import witnesses
from specverify.laws import steps
from specverify.laws.distributions import law_distance, token_accepted_law
from specverify.subjects.protocol import subject
from specverify.subjects.rig import Rig

W = witnesses.W.with_(k=1)
SIZE = 1 << 24


def bias(law, case):
    due = steps.autoregressive_law(case.due, case.emits)
    return float(
        law_distance(steps.completed_law(law.emitted(), case.due, case.emits), due)
    )


# --- midpoints ------------------------------------------------------------------------


def law_on_midpoints(case, verify, **options):
    """Law of first token and acceptance, one call for all rows."""
    rows = list(midpoints(case, **options))
    ids = torch.tensor([row.drafts for row in rows])
    given = [[float(u) for u in row.uniforms] for row in rows]
    q = torch.tensor(case.draft.matrix[:1], dtype=torch.float32)
    p = torch.tensor(case.target.matrix[:2], dtype=torch.float32)
    tokens, kept = verify(
        ids,
        q.expand(len(rows), 1, -1),
        p.expand(len(rows), 2, -1),
        uniforms=torch.tensor(given),
    )
    law = {}
    for row, token, accepted in zip(rows, tokens.tolist(), kept.tolist(), strict=True):
        cell = (token[0], bool(accepted))
        law[cell] = law.get(cell, 0) + row.weight
    return law


def test_midpoints_of_witness_w_are_few_without_the_bonus_row():
    assert len(list(midpoints(W, bonus=False))) == 1428


def test_midpoints_of_witness_w_are_more_with_the_bonus_row():
    assert len(list(midpoints(W))) == 45_696


def test_the_weights_of_midpoints_add_up_to_one():
    assert sum(row.weight for row in midpoints(W, bonus=False)) == 1


def test_midpoints_give_the_law_of_the_chain_rule_without_any_error():
    law = token_accepted_law(W.target(()), W.draft(()))
    due = {cell: mass for cell, mass in law.items() if mass}

    assert law_on_midpoints(W, verify_chain, bonus=False) == due


def test_midpoints_show_a_lenience_exactly():
    def lenient(ids, q, p, *, uniforms):
        halved = torch.cat([uniforms[:, :1] / 2, uniforms[:, 1:]], dim=1)
        return verify_chain(ids, q, p, uniforms=halved)

    law = law_on_midpoints(W, lenient, bonus=False)
    accepted = sum(mass for (_, kept), mass in law.items() if kept)
    p, q = W.target(()), W.draft(())
    wanted = [
        q[x] * Fraction(np.ceil(float(min(1, 2 * p[x] / q[x]) * 21) - 0.5)) / 21
        for x in range(4)
    ]

    assert accepted == sum(wanted)


# --- boxes that are found -------------------------------------------------------------


def boxes(rule, dims, **options):
    """Law of a rule of uniforms in [0, 1): float64 [rows, dims] -> numbers [rows]."""
    return box_law(
        lambda group, at: rule(at / SIZE).astype(np.int64),
        groups=1,
        dims=dims,
        **options,
    )[0]


def test_one_threshold_is_found_to_the_last_digit():
    law = boxes(lambda u: u[:, 0] < 0.3, 1)

    assert law == {1: Fraction(-(-3 * SIZE // 10), SIZE), 0: 1 - law[1]}


def test_boxes_of_two_uniforms_are_multiplied():
    law = boxes(lambda u: (u[:, 0] < 0.25) * 2 + (u[:, 1] < 0.5), 2)

    assert law == {i: Fraction(n, 8) for i, n in enumerate((3, 3, 1, 1))}


def test_a_threshold_that_depends_on_another_uniform_is_found():
    law = boxes(lambda u: np.where(u[:, 0] < 0.5, u[:, 1] < 0.25, u[:, 1] < 0.75), 2)

    assert law == {0: Fraction(1, 2), 1: Fraction(1, 2)}


def test_a_lenience_of_a_thousandth_is_found():
    law = boxes(lambda u: u[:, 0] < 0.5 * 1.001, 1)

    assert float(law[1]) == pytest.approx(0.5005, abs=1e-7)


def test_groups_have_thresholds_of_their_own():
    laws = box_law(
        lambda group, at: (at[:, 0] < SIZE // 2 ** (group + 1)).astype(np.int64),
        groups=2,
        dims=1,
    )

    assert [law[1] for law in laws] == [Fraction(1, 2), Fraction(1, 4)]


def diagonal(u):
    return u[:, 0] < u[:, 1]


def circle(u):
    return (u**2).sum(axis=1) < 0.5


def by_the_row(u):
    """The same for rows at the same place of a batch, whatever their uniforms."""
    return np.random.default_rng(len(u)).integers(0, 2, len(u))


@pytest.mark.parametrize("rule", [diagonal, circle, by_the_row])
def test_outcomes_that_fill_no_boxes_are_refused(rule):
    with pytest.raises(Unfollowed, match="boxes"):
        boxes(rule, 2)


def test_narrow_slabs_can_be_missed():
    """The limit of the method, which its documentation states."""
    law = boxes(lambda u: (u[:, 0] > 0.3) & (u[:, 0] < 0.3001), 1)

    assert law == {0: 1}


# --- subjects that take uniforms ------------------------------------------------------


def taking(verify, *, rng="uniforms", **options):
    """A subject around a verifier of the core."""

    def fn(ids, q, p, *, uniforms):
        return verify(ids, q, p, uniforms=uniforms)

    return subject(fn, name="taking", rng=rng, **options)


CASES = [W, witnesses.M1, witnesses.P2.with_(k=3, name="P2, k = 3")]
RULES = [verify_chain, verify_block]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("rule", RULES)
def test_the_core_has_the_target_law_by_injection(rule, case):
    assert bias(injected_step_law(Rig(taking(rule)), case), case) < 1e-6


@pytest.mark.parametrize("rule", RULES)
def test_injection_and_interception_find_the_same_law(rule):
    rig = Rig(taking(rule))
    injected, followed = injected_step_law(rig, W), step_law(rig, W)
    distance = law_distance(injected.outcomes, followed.outcomes)

    assert float(distance) < 1e-6


def lenient(ids, q, p, *, uniforms):
    k = ids.shape[1]
    return verify_chain(
        ids, q, p, uniforms=torch.cat([uniforms[:, :k] / 1.001, uniforms[:, k:]], dim=1)
    )


def test_a_lenience_of_a_thousandth_has_its_exact_bias_by_injection():
    """Rejection of x is rarer by 0.001 p(x), wherever p < q."""
    p, q = W.target(()), W.draft(())
    lost = float(sum(min(a, b - a) for a, b in zip(p, q, strict=True) if a < b)) * 1e-3

    assert bias(injected_step_law(Rig(taking(lenient)), W), W) == pytest.approx(
        lost, abs=1e-6
    )


def draws_more(ids, q, p, *, uniforms):
    return verify_chain(ids, q, p, uniforms=torch.rand_like(uniforms))


def test_a_subject_that_draws_besides_is_refused():
    with pytest.raises(Unfollowed, match="boxes"):
        injected_step_law(Rig(taking(draws_more)), W)


def test_a_subject_that_takes_no_uniforms_is_refused():
    with pytest.raises(Unfollowed, match="takes no uniforms"):
        injected_step_law(Rig(subject(verify_chain)), W)


def test_every_outcome_is_a_draft_with_its_tokens():
    law = injected_step_law(Rig(taking(verify_chain)), W).outcomes
    possible = {((x,), (x, y), 1) for x, y in product(range(4), repeat=2)} | {
        ((x,), (y,), 0) for x, y in product(range(4), repeat=2)
    }

    assert set(law) <= possible
