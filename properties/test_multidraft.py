# SPDX-License-Identifier: Apache-2.0
"""Several drafts at one position: lossless, each rule for drafts drawn in its own way.

Laws are exact, over all tuples of drafts; the law of the code comes from injected
uniforms, see `injected`. No rule accepts more than optimal transport from the drafts to
the target, and two attain it. Drafts drawn in another way than a rule is for are its
control.
"""

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from injected import law_of_code, repeatable, row, same_law, sums
from offers import slot_offers, slot_step

from specverify import core
from specverify.inputs import WITNESSES
from specverify.inputs.strategies import (
    distribution_pairs,
    distributions,
    multidraft_cases,
    normalised,
)
from specverify.laws import bounds, multidraft
from specverify.laws.distributions import accept_probability, residual
from specverify.laws.distributions import token_accepted_law as single
from specverify.laws.multidraft import RULES
from specverify.laws.proposals import NO_TOKEN, draft_law, most_likely
from specverify.statistics.assertions import (
    assert_follows_law,
    min_samples_follows_law,
)

CODE = {
    "with_replacement": core.verify_with_replacement,
    "without_replacement": core.verify_without_replacement,
    "kseq": core.verify_kseq,
    "hub": core.verify_hub,
    "greedy_draft": core.verify_greedy_draft,
    "selection": core.verify_selected,
    "target_only": core.verify_target_only,
    "sample_and_match": core.verify_target_only,
}
#: Their law does not depend on how ties are broken.
WITHOUT_TIES = ["with_replacement", "without_replacement", "kseq", "sample_and_match"]
every_rule = pytest.mark.parametrize("name", RULES)
counts = st.integers(1, 3)
seeds = st.integers(0, 2**32 - 1)
four_weights = st.lists(st.integers(1, 6), min_size=4, max_size=4)


@st.composite
def cases_of(draw, name, max_n=3, max_vocab=4):
    """Target, draft law, number of drafts and the way in which a rule wants them."""
    drafts = RULES[name][1]
    case = draw(multidraft_cases(drafts=drafts, max_n=max_n, max_vocab=max_vocab))
    return case.target(()), case.draft(()), case.n, drafts


W = WITNESSES["W"].target(()), WITNESSES["W"].draft(())


def law_with(rule, p, q, drawn):
    """Law of the emitted token when the drafts follow the law `drawn`."""
    law = [Fraction(0)] * len(p)
    for slots, mass in drawn.items():
        for token, _, share in rule(p, q, slots):
            law[token] += mass * share
    return tuple(law)


# --- the law --------------------------------------------------------------------------


@every_rule
@repeatable(max_examples=30)
@given(data=st.data())
def test_the_emitted_token_follows_the_target(name, data):
    """L2, for any number of drafts; q may have fewer tokens than there are."""
    p, q, n, drafts = data.draw(cases_of(name))

    assert tuple(multidraft.output_law(RULES[name][0], p, q, n, drafts)) == p


MIXED_UP = [
    ("with_replacement", "without_replacement"),
    ("without_replacement", "iid"),
    ("with_replacement", "hub"),
    ("with_replacement", "deterministic"),
    ("selection", "without_replacement"),
    ("greedy_draft", "iid"),
]


@pytest.mark.parametrize(("name", "drafts"), MIXED_UP)
def test_drafts_drawn_in_another_way_than_the_rule_is_for_are_lossy(name, drafts):
    assert tuple(multidraft.output_law(RULES[name][0], *W, 2, drafts)) != W[0]


def merged(q, n):
    """Law of independent drafts of which equal ones are dropped but for the first."""
    law = {}
    for slots, mass in draft_law(q, n, "iid").items():
        kept = tuple(dict.fromkeys(slots))
        kept += (NO_TOKEN,) * (n - len(kept))
        law[kept] = law.get(kept, 0) + mass
    return law


@repeatable(max_examples=40)
@given(pair=distribution_pairs(4), n=counts)
def test_independent_drafts_without_duplicates_count_as_successive(pair, n):
    """L26."""
    p, q = pair

    assert law_with(multidraft.without_replacement, p, q, merged(q, n)) == p


def test_dropping_duplicates_and_keeping_the_draft_law_is_lossy():
    """L26: as if they were still independent."""
    assert law_with(multidraft.with_replacement, *W, merged(W[1], 2)) != W[0]


def test_the_test_of_one_draft_for_each_of_several_is_lossy():
    """K-SEQ without its damping."""

    def eager(p, q, slots):
        return multidraft.kseq(p, q, slots, rho=1)

    assert tuple(multidraft.output_law(eager, *W, 2, "iid")) != W[0]


@pytest.mark.parametrize("name", [*WITHOUT_TIES[:3], "selection", "greedy_draft"])
@repeatable(max_examples=40)
@given(pair=distribution_pairs(4))
def test_one_draft_is_verified_as_by_the_token_rule(name, pair):
    """L3: n = 1."""
    law = multidraft.joint_law(RULES[name][0], *pair, 1, RULES[name][1])

    assert law == {
        (token, accepted - 1): mass
        for (token, accepted), mass in single(*pair).items()
        if mass
    }


@repeatable(max_examples=40)
@given(pair=distribution_pairs(4))
def test_one_draft_is_matched_by_the_target_alone_as_in_a_chain(pair):
    """L3, of the matching rule."""
    p, q = pair
    found = multidraft.joint_law(multidraft.target_only, p, q, 1, "iid")

    assert found == {
        (token, slot): mass
        for token, (a, b) in enumerate(zip(p, q, strict=True))
        for slot, mass in ((0, a * b), (NO_TOKEN, a * (1 - b)))
        if mass
    }


@pytest.mark.parametrize("name", WITHOUT_TIES)
@repeatable(max_examples=30)
@given(data=st.data())
def test_renaming_tokens_renames_the_law(name, data):
    """L10: of tokens and slots."""
    p, q, n, drafts = data.draw(cases_of(name))
    order = data.draw(st.permutations(range(len(p))))
    back = np.argsort(order)
    renamed = ([law[x] for x in back] for law in (p, q))

    before = multidraft.joint_law(RULES[name][0], p, q, n, drafts)
    after = multidraft.joint_law(RULES[name][0], *renamed, n, drafts)
    assert after == {(order[x], slot): mass for (x, slot), mass in before.items()}


# --- how much is accepted -------------------------------------------------------------


@every_rule
@repeatable(max_examples=40)
@given(data=st.data())
def test_no_rule_accepts_more_than_the_drafts_allow(name, data):
    """L20 and L22."""
    p, q, n, drafts = data.draw(cases_of(name))
    found = multidraft.acceptance(RULES[name][0], p, q, n, drafts)

    assert found <= bounds.optimum(p, draft_law(q, n, drafts))


@pytest.mark.parametrize("name", ["hub", "greedy_draft", "target_only"])
@repeatable(max_examples=40)
@given(data=st.data())
def test_drafts_constructed_for_it_are_accepted_as_often_as_can_be(name, data):
    """L23 and L25."""
    p, q, n, drafts = data.draw(cases_of(name, max_vocab=5))
    found = multidraft.acceptance(RULES[name][0], p, q, n, drafts)

    assert found == bounds.optimum(p, draft_law(q, n, drafts))


@pytest.mark.parametrize(
    ("name", "witness"),
    [("with_replacement", "W"), ("kseq", "W"), ("selection", "B1")],
)
def test_independent_drafts_leave_something_to_be_gained(name, witness):
    """L23: on B1 p and q agree, and a choice among ties leaves the selected law."""
    p, q = WITNESSES[witness].target(()), WITNESSES[witness].draft(())
    found = multidraft.acceptance(RULES[name][0], p, q, 2, "iid")

    assert found < bounds.optimum(p, draft_law(q, 2, "iid"))


@repeatable(max_examples=40)
@given(pair=distribution_pairs(4), n=counts)
def test_kseq_accepts_a_fixed_share_of_the_optimum(pair, n):
    """L23: ``1 - (1 - 1/n)^n`` of it, save for the 2^-40 to which rho is found."""
    found = multidraft.acceptance(multidraft.kseq, *pair, n, "iid")
    share = 1 - (1 - Fraction(1, n)) ** n

    best = bounds.optimum(pair[0], draft_law(pair[1], n, "iid"))
    assert found >= share * best - Fraction(1, 2**30)


@pytest.mark.parametrize("drafts", ["iid", "without_replacement"])
@repeatable(max_examples=40)
@given(pair=distribution_pairs(4), n=counts)
def test_the_optimum_is_found_among_the_tokens_of_largest_ratio(drafts, pair, n):
    """L21."""
    p, q = pair

    assert bounds.optimum_sorted(p, q, n, drafts) == bounds.optimum(
        p, draft_law(q, n, drafts)
    )


@pytest.mark.parametrize("drafts", ["iid", "without_replacement", "deterministic"])
@repeatable(max_examples=40)
@given(pair=distribution_pairs(4), n=counts)
def test_another_draft_never_lowers_the_optimum(drafts, pair, n):
    """L21."""
    p, q = pair
    fewer, more = (bounds.optimum(p, draft_law(q, size, drafts)) for size in (n, n + 1))

    assert fewer <= more


@repeatable(max_examples=40)
@given(p=distributions(4), weights=four_weights)
def test_as_many_successive_drafts_as_tokens_are_accepted_surely(p, weights):
    """L24."""
    q = normalised(weights)
    rule, drafts = RULES["without_replacement"]

    assert multidraft.acceptance(rule, p, q, 4, drafts) == 1


def test_with_one_draft_fewer_they_are_not():
    rule, drafts = RULES["without_replacement"]

    assert multidraft.acceptance(rule, *W, 3, drafts) < 1


@repeatable(max_examples=40)
@given(pair=distribution_pairs(4), n=counts, data=st.data())
def test_the_order_of_deterministic_drafts_does_not_matter(pair, n, data):
    """L25: for tokens and acceptance; the slot moves with its draft."""
    p, q = pair
    slots = most_likely(q, n)
    turned = tuple(data.draw(st.permutations(slots)))

    def outcomes(order):
        return {
            (token, slot != NO_TOKEN): mass
            for token, slot, mass in multidraft.target_only(p, q, order)
        }

    assert outcomes(slots) == outcomes(turned)


def test_the_order_of_drawn_drafts_does_matter():
    """Tried from the last to the first, successive drafts are lossy."""

    def backwards(p, q, slots):
        return multidraft.without_replacement(p, q, slots[::-1])

    assert tuple(multidraft.output_law(backwards, *W, 2, "without_replacement")) != W[0]


# --- the code -------------------------------------------------------------------------


def stated_law(name, p, q, n, drafts):
    law = multidraft.joint_law(RULES[name][0], p, q, n, drafts)
    return {
        ((token,), (slot,) if slot != NO_TOKEN else ()): mass
        for (token, slot), mass in law.items()
    }


@every_rule
@repeatable(max_examples=20)
@given(data=st.data())
def test_the_code_has_exactly_the_stated_law(name, data):
    """L3: which token, and which draft was accepted. K-SEQ finds its rho to 2^-40."""
    case = data.draw(cases_of(name))

    assert same_law(
        law_of_code(CODE[name], slot_offers(name, *case)), stated_law(name, *case)
    )


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("with_replacement", "without_replacement"),
        ("without_replacement", "kseq"),
        ("kseq", "with_replacement"),
        ("selection", "kseq"),
        ("hub", "without_replacement"),
        ("greedy_draft", "target_only"),
        ("without_replacement", "target_only"),
    ],
)
def test_the_code_of_another_rule_has_another_law(code, name):
    case = *W, 2, RULES[name][1]

    law = law_of_code(CODE[code], slot_offers(name, *case))
    assert not same_law(law, stated_law(name, *case))


tables = st.lists(st.integers(0, 4), min_size=9, max_size=9)


@repeatable(max_examples=30)
@given(pair=distribution_pairs(3), table=tables)
def test_any_choice_between_two_drafts_is_lossless(pair, table):
    """The choice may depend on both tokens: what was chosen has a law of its own."""
    p, q = pair
    chance = [[Fraction(x, 4) for x in table[i : i + 3]] for i in (0, 3, 6)]
    chosen = [Fraction(0)] * 3
    for (x, y), mass in draft_law(q, 2, "iid").items():
        chosen[x] += mass * chance[x][y]
        chosen[y] += mass * (1 - chance[x][y])
    weights = torch.tensor([[float(x) for x in row] for row in chance])

    def verify(ids, q, p, *, uniforms):
        batch = weights.double().expand(len(ids), -1, -1)
        return core.verify_selected(ids, q, p, weights=batch, uniforms=uniforms)

    def drafted():
        for (x, y), mass in draft_law(q, 2, "iid").items():
            tests = {accept_probability(p[z], chosen[z] or 1) for z in (x, y)}
            last = sums(residual(p, chosen))
            step = torch.tensor([x, y]), row(q), row(p)
            yield mass, step, [tests, {chance[x][y]}, last]

    law = {}
    for ((token,), _), mass in law_of_code(verify, drafted()).items():
        law[token] = law.get(token, 0) + mass
    assert same_law(law, dict(enumerate(p)))


@every_rule
@repeatable(max_examples=25)
@given(data=st.data(), seed=seeds)
def test_what_is_accepted_is_the_draft_in_that_slot(name, data, seed):
    """L22."""
    ids, *step, uniforms = slot_step(*data.draw(cases_of(name)), seed)
    token, slot = CODE[name](ids, *step, uniforms=uniforms)
    drafted = ids.gather(1, slot.clamp_min(0).unsqueeze(1)).squeeze(1)

    assert ((slot < 0) | (drafted == token)).all()


@every_rule
@repeatable(max_examples=25)
@given(data=st.data(), seed=seeds)
def test_no_token_is_emitted_that_the_target_excludes(name, data, seed):
    """L9: not even at the ends of the interval of the uniforms."""
    ids, q, p, uniforms = slot_step(*data.draw(cases_of(name)), seed)
    token, _ = CODE[name](ids, q, p, uniforms=uniforms)

    assert (p.gather(1, token.unsqueeze(1)) > 0).all()


@repeatable(max_examples=25)
@given(p=distributions(4), weights=four_weights, seed=seeds)
def test_the_code_accepts_surely_when_every_token_is_drafted(p, weights, seed):
    """L24: whatever the uniforms."""
    case = p, normalised(weights), 4, "without_replacement"
    *step, uniforms = slot_step(*case, seed)

    _, slot = core.verify_without_replacement(*step, uniforms=uniforms)
    assert (slot >= 0).all()


@pytest.mark.parametrize("name", WITHOUT_TIES[:3])
@repeatable(max_examples=25)
@given(data=st.data(), seed=seeds)
def test_renaming_tokens_changes_no_acceptance(name, data, seed):
    """L10: with the same uniforms the same slot is accepted."""
    case = data.draw(cases_of(name))
    order = torch.tensor(data.draw(st.permutations(range(len(case[0])))))
    ids, q, p, _ = slot_step(*case, seed)
    generator = torch.Generator().manual_seed(seed)
    uniforms = torch.rand(len(ids), case[2] + 1, generator=generator)
    back = order.argsort()
    names = torch.where(ids < 0, ids, order[ids.clamp_min(0)])

    before = CODE[name](ids, q, p, uniforms=uniforms).accepted
    after = CODE[name](names, q[:, back], p[:, back], uniforms=uniforms).accepted
    assert before.equal(after)


# --- drawn by the core and verified by the core, sampled ------------------------------

#: A correct rule is refused with probability 1e-9; a total variation of 0.05 is missed
#: with probability 0.01.
LEVEL, BIAS = 1e-9, 0.05


def sampled(name, code, seed=0):
    """Counts of the emitted token on W, three drafts or SpecHub's two."""
    draws = min_samples_follows_law(tv=BIAS, cells=4, error_rate=LEVEL)
    drafts = RULES[name][1]
    case = *W, 2 if drafts == "hub" else 3, drafts
    *step, _ = slot_step(*case, seed, batch=draws)
    generator = torch.Generator().manual_seed(seed + 1)
    return code(*step, generator=generator).token_ids.bincount(minlength=4)


@every_rule
def test_drawn_and_verified_by_the_core_tokens_follow_the_target(name):
    """L2."""
    assert_follows_law(sampled(name, CODE[name]), row(W[0]), error_rate=LEVEL, tv=BIAS)


def test_the_sampled_law_refuses_a_rule_for_other_drafts():
    """Successive drafts, tested as if they were independent."""
    wrong = sampled("without_replacement", core.verify_with_replacement)

    with pytest.raises(AssertionError, match="do not follow the law"):
        assert_follows_law(wrong, row(W[0]), error_rate=LEVEL, tv=BIAS)
