# SPDX-License-Identifier: Apache-2.0
"""Rules that look at the target only are lossless for any drafts whatever.

So nothing is drawn from a draft model here where that matters: the drafts are fixed, and
the law is that of the code given them. What a rule with a draft law makes of such drafts
stands beside it as a control. Greedy decoding is the same at temperature 0.
"""

from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from injected import (
    after,
    law_of_code,
    loop_law,
    repeatable,
    row,
    rows,
    same_law,
    sums,
)
from offers import chain_step, paths, stated_law

from specverify.core import (
    inverse_cdf,
    verify_chain,
    verify_greedy,
    verify_match,
    verify_mixed,
    verify_one_hot,
)
from specverify.inputs import WITNESSES
from specverify.inputs.strategies import cases, model_pairs
from specverify.laws import bounds, chain, matching, steps

small_cases = cases(max_vocab=3, max_k=2, max_cells=27)
seeds = st.integers(0, 2**32 - 1)


@st.composite
def fixed_drafts(draw):
    """A case, and drafts that nobody drew: q may even exclude them."""
    case = draw(small_cases)
    token = st.integers(0, case.vocab - 1)
    return case, tuple(draw(st.lists(token, min_size=case.k, max_size=case.k)))


def without(p, token):
    """The target given that it is not this token."""
    rest = [mass if x != token else 0 for x, mass in enumerate(p)]
    return [mass / (sum(rest) or 1) for mass in rest]


def match_borders(case, path):
    """Every uniform draws from the target."""
    return [sums(case.target(path[:i])) for i in range(case.k + 1)]


def one_hot_borders(case, path):
    """All uniforms test a draft, save the last, which draws."""
    laws = [case.target(path[:i]) for i in range(case.k + 1)]
    tests = [{p[x]} for p, x in zip(laws, path, strict=False)]
    others = [without(p, x) for p, x in zip(laws, path, strict=False)]
    return [*tests, sums(*others, laws[-1])]


BORDERS = {verify_match: match_borders, verify_one_hot: one_hot_borders}
either = pytest.mark.parametrize("verify", BORDERS, ids=lambda f: f.__name__)


def offer(case, path, borders, mass=1):
    q = torch.ones(case.k, case.vocab, dtype=torch.float64) / case.vocab
    return mass, (torch.tensor(path), q, rows(case.target, path)), borders


def law_given(verify, case, path, borders):
    """Law of (emitted tokens, accepted) of the code, given the drafts."""
    return law_of_code(verify, [offer(case, path, borders(case, path))])


def completed(law, case):
    emitted = {}
    for (tokens, _), mass in law.items():
        emitted[tokens] = emitted.get(tokens, 0) + mass
    return steps.completed_law(emitted, case.target, case.k + 1)


# --- any drafts -----------------------------------------------------------------------


@either
@repeatable(max_examples=40)
@given(drafts=fixed_drafts())
def test_given_any_drafts_the_code_emits_the_joint_law_of_the_target(verify, drafts):
    """L13 and L18: so they may be dropped or chosen for their values."""
    case, path = drafts
    law = completed(law_given(verify, case, path, BORDERS[verify]), case)

    assert same_law(law, steps.autoregressive_law(case.target, case.k + 1))


@repeatable(max_examples=40)
@given(drafts=fixed_drafts())
def test_sampling_to_compare_and_testing_a_one_hot_draft_have_one_law(drafts):
    """L3: of tokens and acceptance alike, though they use their uniforms otherwise."""
    sampled, tested = (law_given(f, *drafts, b) for f, b in BORDERS.items())

    assert same_law(sampled, tested)


def test_given_its_drafts_a_rule_with_a_draft_law_is_lossy():
    """It needs drafts that were drawn from q."""
    case, path = WITNESSES["W"], (1,)
    q = rows(case.draft, path)[:1]

    def with_q(ids, _, p, *, uniforms):
        return verify_chain(ids, q.expand(len(ids), -1, -1), p, uniforms=uniforms)

    p, q_row = case.target(()), case.draft(())
    borders = [{p[1] / q_row[1]}, sums([0.8, 0.0, 0.05, 0.15], case.target(path))]
    law = completed(law_of_code(with_q, [offer(case, path, borders)]), case)
    assert not same_law(law, steps.autoregressive_law(case.target, 2))


def test_a_fresh_draw_behind_a_mismatch_is_lossy():
    """What did not match must be emitted itself: 0.063 off on W."""
    case, path = WITNESSES["W"], (1,)

    def fresh(ids, q, p, *, uniforms):
        step = verify_match(ids, q, p, uniforms=uniforms[:, :2])
        drawn = inverse_cdf(p[:, 0], uniforms[:, 2])
        missed = (step.num_accepted == 0).unsqueeze(1)
        first = torch.where(missed, drawn.unsqueeze(1), step.output_token_ids[:, :1])
        emitted = torch.cat([first, step.output_token_ids[:, 1:]], dim=1)
        return emitted, step.num_accepted

    borders = [*match_borders(case, path), sums(case.target(()))]
    law = completed(law_of_code(fresh, [offer(case, path, borders)]), case)
    assert not same_law(law, steps.autoregressive_law(case.target, 2))


# --- drafts of a draft model ----------------------------------------------------------


@either
@repeatable(max_examples=30)
@given(case=small_cases)
def test_the_code_has_exactly_the_stated_law(verify, case):
    offers = (
        offer(case, path, BORDERS[verify](case, path), mass)
        for path, mass in paths(case)
    )

    assert same_law(law_of_code(verify, offers), stated_law(case, matching.emissions))


@repeatable(max_examples=40)
@given(case=small_cases)
def test_a_prefix_is_accepted_as_often_as_both_models_draw_it(case):
    """P times Q, where the token rule has the product of the smaller ones."""
    law = steps.accepted_law(matching.emissions, case.target, case.draft, case.k)

    for length in range(case.k + 1):
        p, q = (
            steps.autoregressive_law(model, length)
            for model in (case.target, case.draft)
        )
        assert sum(law[length:]) == sum(mass * q.get(x, 0) for x, mass in p.items())


@repeatable(max_examples=40)
@given(case=small_cases)
def test_matching_accepts_no_more_than_the_token_rule(case):
    """And so stays below the bound of L11 too."""
    matched, tested = (
        steps.expected_accepted(rule.emissions, case.target, case.draft, case.k)
        for rule in (matching, chain)
    )

    bound = bounds.expected_accepted_bound(case.target, case.draft, case.k)
    assert matched <= tested <= bound


@repeatable(max_examples=30)
@given(pair=model_pairs(2), other=model_pairs(2), ks=st.lists(st.integers(0, 2)))
def test_a_loop_may_choose_draft_model_and_length_by_what_is_committed(pair, other, ks):
    """L16."""
    target = pair[0]

    def step(prefix):
        k = ks[sum(prefix) % len(ks)] if ks else 1
        draft = (pair, other)[len(prefix) % 2][1]
        return steps.output_law(
            matching.emissions, after(target, prefix), after(draft, prefix), k
        )

    assert loop_law(step, 4) == steps.autoregressive_law(target, 4)


@repeatable(max_examples=30)
@given(case=small_cases, data=st.data())
def test_renaming_tokens_renames_the_law(case, data):
    """L10."""
    order = tuple(data.draw(st.permutations(range(case.vocab))))

    assert stated_law(case.permuted(order), matching.emissions) == {
        (tuple(order[x] for x in emitted), accepted): mass
        for (emitted, accepted), mass in stated_law(case, matching.emissions).items()
    }


# --- deterministic drafts with a draft law --------------------------------------------


def test_the_softmax_of_a_draft_model_is_not_the_law_of_its_argmax():
    """L8: drafted greedily and verified with q, the first token is 0.198 off on W."""
    p, q = WITNESSES["W"].target(()), WITNESSES["W"].draft(())
    best = q.index(max(q))
    kept = min(1, p[best] / q[best])
    excess = [max(a - b, 0) for a, b in zip(p, q, strict=True)]
    law = [(1 - kept) * mass / sum(excess) for mass in excess]
    law[best] += kept

    case = WITNESSES["W"]
    borders = [{kept}, sums([x / sum(excess) for x in excess], case.target((best,)))]
    step = torch.tensor([best]), row(q).unsqueeze(0), rows(case.target, (best,))
    found = law_of_code(verify_chain, [(1, step, borders)])
    first = [Fraction(0)] * 4
    for (tokens, _), mass in found.items():
        first[tokens[0]] += mass
    assert first == pytest.approx([float(mass) for mass in law], abs=1e-11)
    assert sum(abs(a - b) for a, b in zip(law, p, strict=True)) / 2 > 0.19


# --- greedy decoding ------------------------------------------------------------------


def argmax_path(case):
    """The path of most likely tokens, on ties the lowest ids."""
    path = ()
    while len(path) <= case.k:
        p = case.target(path)
        path = (*path, p.index(max(p)))
    return path


@repeatable(max_examples=60)
@given(drafts=fixed_drafts())
def test_greedy_code_emits_the_argmax_path_as_far_as_it_was_drafted(drafts):
    """L27: pathwise, and one token behind the longest common prefix."""
    case, path = drafts
    best = argmax_path(case)
    common = next((i for i in range(case.k) if path[i] != best[i]), case.k)
    step = torch.tensor([path]), None, rows(case.target, path).unsqueeze(0)
    ids, accepted = verify_greedy(*step)

    emitted = [*best[: common + 1], *[-1] * (case.k - common)]
    assert (ids.tolist(), accepted.tolist()) == ([emitted], [common])


@repeatable(max_examples=30)
@given(case=small_cases, seed=seeds)
def test_greedy_code_draws_nothing(case, seed):
    """L27: torch's own generator stands where it stood."""
    before = torch.get_rng_state()
    verify_greedy(*chain_step(case, seed)[:3])

    assert torch.get_rng_state().equal(before)


@repeatable(max_examples=40)
@given(case=small_cases)
def test_the_greedy_law_is_the_law_of_the_argmax_path(case):
    """L27: the drafts decide how far a step gets, and nothing else."""
    law = steps.output_law(matching.greedy_emissions, case.target, case.draft, case.k)

    assert steps.completed_law(law, case.target.greedy(), case.k + 1) == {
        argmax_path(case): 1
    }


@repeatable(max_examples=40)
@given(case=small_cases, seed=seeds)
def test_every_rule_is_the_greedy_one_for_a_target_at_temperature_zero(case, seed):
    """L27: with a draft law or without, whatever the uniforms."""
    ids, q, p, uniforms = chain_step(case, seed)
    cold = torch.nn.functional.one_hot(p.argmax(dim=-1), case.vocab).double()
    greedy = verify_greedy(ids, q, p)

    for verify in (verify_chain, verify_match, verify_one_hot):
        found = verify(ids, q, cold, uniforms=uniforms)
        assert found.output_token_ids.equal(greedy.output_token_ids)


@repeatable(max_examples=40)
@given(case=small_cases, seed=seeds)
def test_in_a_mixed_batch_every_row_is_as_it_would_be_alone(case, seed):
    ids, q, p, uniforms = chain_step(case, seed)
    cold = torch.arange(len(ids)) % 2 == 0
    mixed = verify_mixed(ids, q, p, greedy=cold, uniforms=uniforms).output_token_ids

    sampled = verify_chain(ids, q, p, uniforms=uniforms).output_token_ids
    argmax = verify_greedy(ids, q, p).output_token_ids
    assert mixed.equal(torch.where(cold.unsqueeze(1), argmax, sampled))


def test_a_sampled_target_leaves_the_argmax_path():
    """The control: at temperature 1 the rules above are not the greedy one."""
    ids, q, p, uniforms = chain_step(WITNESSES["W"], seed=0)
    greedy = verify_greedy(ids, q, p)

    for verify in (verify_chain, verify_match, verify_one_hot):
        found = verify(ids, q, p, uniforms=uniforms)
        assert not found.output_token_ids.equal(greedy.output_token_ids)
