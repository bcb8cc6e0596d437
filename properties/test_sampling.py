# SPDX-License-Identifier: Apache-2.0
"""Temperature, top-k, top-p and min-p: lossless with respect to the transformed target.

Whatever is done to the target is done to what comes out, and whatever is done to the
draft changes only how much of it is accepted. Exact in fractions, save for temperatures
other than 0 and 1.
"""

from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from injected import law_of_code, repeatable, row, rows, same_law
from offers import chain_offers, stated_law, token_parts

from specverify.core import token_probs, verify_chain, verify_greedy
from specverify.core.transforms import apply_min_p, apply_top_k, apply_top_p
from specverify.inputs import WITNESSES, Case, ToyModel
from specverify.inputs.strategies import cases, distributions
from specverify.laws import block, chain, coupling, matching, sampling, steps
from specverify.laws.distributions import accept_probability, residual

small_cases = cases(max_vocab=4, max_k=2, max_cells=27)
RULES = {"token": chain, "block": block, "match": matching, "coupling": coupling}
every_rule = pytest.mark.parametrize("rule", RULES.values(), ids=RULES)

#: Shares that no sum of small whole-number weights meets, so that rounding decides none.
shares = st.integers(1, 96).map(lambda parts: Fraction(parts, 97))
top_ks = st.integers(0, 4)
filters = st.fixed_dictionaries(
    {"top_k": top_ks, "top_p": shares | st.just(1), "min_p": shares | st.just(0)}
)
nothing = st.just({})


def logits(p):
    return row(p).log()


def as_floats(settings):
    return {
        name: int(value) if name == "top_k" else float(value)
        for name, value in settings.items()
    }


def support(p):
    return {token for token, mass in enumerate(p) if mass}


# --- the transforms -------------------------------------------------------------------


@repeatable(max_examples=60)
@given(p=distributions(5), top_k=top_ks, min_p=shares)
def test_top_k_and_min_p_twice_are_once(p, top_k, min_p):
    """L10a."""
    by_k, by_min_p = sampling.apply_top_k(p, top_k), sampling.apply_min_p(p, min_p)

    assert sampling.apply_top_k(by_k, top_k) == by_k
    assert sampling.apply_min_p(by_min_p, min_p) == by_min_p


@repeatable(max_examples=60)
@given(p=distributions(5), top_p=shares)
def test_top_p_again_only_takes_away(p, top_p):
    """L10a in what is left of it: what remains has the same ratios."""
    once = sampling.apply_top_p(p, top_p)
    twice = sampling.apply_top_p(once, top_p)
    kept = sum(once[x] for x in support(twice))

    assert support(twice) <= support(once)
    assert all(twice[x] * kept == once[x] for x in support(twice))


def test_top_p_twice_is_not_once():
    """It renormalises, and then fewer tokens reach the same share."""
    p = [Fraction(x, 20) for x in (8, 7, 5)]
    once = sampling.apply_top_p(p, Fraction(1, 2))

    assert once == [Fraction(8, 15), Fraction(7, 15), 0]
    assert sampling.apply_top_p(once, Fraction(1, 2)) == [1, 0, 0]


@repeatable(max_examples=60)
@given(p=distributions(5), top_p=shares, smaller=shares)
def test_top_p_keeps_the_least_that_reaches_the_mass(p, top_p, smaller):
    """And less of it for a smaller mass, so the kept sets are nested."""
    kept = support(sampling.apply_top_p(p, top_p))
    few = support(sampling.apply_top_p(p, min(top_p, smaller)))

    assert sum(p[x] for x in kept) >= top_p
    assert sum(p[x] for x in kept) - min(p[x] for x in kept) < top_p
    assert few <= kept


@pytest.mark.parametrize("apply", [apply_top_k, apply_min_p], ids=["top-k", "min-p"])
@repeatable(max_examples=40)
@given(p=distributions(5), top_k=top_ks, min_p=shares)
def test_the_code_cuts_twice_as_once(apply, p, top_k, min_p):
    """L10a."""
    setting = top_k if apply is apply_top_k else float(min_p)
    once = apply(logits(p), setting)

    assert apply(once, setting).equal(once)


def test_the_code_cuts_by_top_p_twice_as_the_law_does():
    once = apply_top_p(logits((Fraction(2, 5), Fraction(7, 20), Fraction(1, 4))), 0.5)

    assert apply_top_p(once, 0.5).isfinite().tolist() == [True, False, False]


@repeatable(max_examples=80)
@given(p=distributions(5), settings=filters, cold=st.booleans())
def test_the_code_has_the_law_of_every_setting(p, settings, cold):
    found = token_probs(logits(p), temperature=1 - cold, **as_floats(settings))
    law = sampling.token_law(p, temperature=1 - cold, **settings)

    assert torch.allclose(found, row(law), rtol=0, atol=1e-12)


@repeatable(max_examples=40)
@given(p=distributions(5), tenths=st.integers(1, 40))
def test_the_code_has_the_law_of_a_temperature(p, tenths):
    found = token_probs(logits(p), temperature=tenths / 10)
    law = sampling.token_law(p, temperature=tenths / 10)

    assert torch.allclose(found, row(law), rtol=0, atol=1e-12)


@repeatable(max_examples=40)
@given(p=distributions(5), settings=filters, shift=st.integers(-300, 300))
def test_a_common_shift_of_the_logits_changes_nothing(p, settings, shift):
    """L10: common scaling of the probabilities before they are normalised."""
    before, after = (
        token_probs(x, **as_floats(settings)) for x in (logits(p), logits(p) + shift)
    )

    assert torch.allclose(before, after, rtol=0, atol=1e-9)


# --- a step on transformed models -----------------------------------------------------


def completed(rule, target, draft, case):
    emitted = steps.output_law(rule.emissions, target, draft, case.k)
    return steps.completed_law(emitted, target, case.k + 1)


WHERE = {
    "target": (filters, nothing),
    "draft": (nothing, filters),
    "both": (filters,) * 2,
}


@every_rule
@pytest.mark.parametrize("where", WHERE)
@repeatable(max_examples=20)
@given(case=small_cases, data=st.data())
def test_a_step_emits_the_transformed_target(rule, where, case, data):
    """L13: with the target alone transformed, the draft alone, or both, each its own."""
    of_p, of_q = map(data.draw, WHERE[where])
    target = sampling.transformed(case.target, **of_p)
    draft = sampling.transformed(case.draft, **of_q)

    due = steps.autoregressive_law(target, case.k + 1)
    assert completed(rule, target, draft, case) == due


@repeatable(max_examples=30)
@given(case=small_cases, tenths=st.integers(2, 30))
def test_a_step_with_a_temperature_emits_the_transformed_target(case, tenths):
    """L13, in floats."""
    target, draft = (
        sampling.transformed(model, temperature=tenths / 10)
        for model in (case.target, case.draft)
    )

    due = steps.autoregressive_law(target, case.k + 1)
    assert same_law(completed(block, target, draft, case), due)


def test_a_transformed_target_is_not_the_target():
    """The control of both: the raw target is another law."""
    case = WITNESSES["J1"]
    target = sampling.transformed(case.target, top_k=2)

    due = steps.autoregressive_law(case.target, case.k + 1)
    assert completed(chain, target, case.draft, case) != due


def test_a_bonus_token_from_the_raw_target_is_lossy():
    """Transformed where drafts are tested, but not behind them."""
    case = WITNESSES["J1"]
    target = sampling.transformed(case.target, top_k=2)

    def late(prefix):
        return case.target(prefix) if len(prefix) == case.k else target(prefix)

    law = steps.output_law(chain.emissions, late, case.draft, case.k)
    due = steps.autoregressive_law(target, case.k + 1)
    assert steps.completed_law(law, target, case.k + 1) != due


def test_drafts_filtered_behind_the_back_of_the_verifier_are_lossy():
    """L8: drawn from the transformed q, and tested with the raw one."""
    case = WITNESSES["W"]
    p, q, cut = case.target(()), case.draft(()), sampling.apply_top_k(case.draft(()), 2)
    kept = [accept_probability(a, b) * c for a, b, c in zip(p, q, cut, strict=True)]
    rest = 1 - sum(kept)
    law = [a + rest * r for a, r in zip(kept, residual(p, q), strict=True)]

    assert sum(abs(a - b) for a, b in zip(law, p, strict=True)) / 2 > Fraction(1, 10)


# --- from logits to tokens, in code ---------------------------------------------------


def cut_case(case, of_p, of_q):
    """The case whose models are the transformed ones, in fractions."""
    models = (
        ToyModel(
            tuple(tuple(sampling.token_law(x, **settings)) for x in model.rows),
            model.memory,
        )
        for model, settings in ((case.target, of_p), (case.draft, of_q))
    )
    return Case(*models, case.k)


def found_law(case, cut, of_p, of_q):
    """Law of the code, which is handed logits and transforms them."""

    def verify(ids, q, p, *, uniforms):
        p = token_probs(p.log(), **as_floats(of_p))
        return verify_chain(
            ids, token_probs(q.log(), **as_floats(of_q)), p, uniforms=uniforms
        )

    return law_of_code(verify, chain_offers(cut, token_parts(cut), handed=case))


@repeatable(max_examples=30)
@given(case=small_cases, of_p=filters, of_q=filters)
def test_from_logits_on_the_code_follows_the_transformed_target(case, of_p, of_q):
    """L13: transformed and verified by the core, with settings of their own."""
    cut = cut_case(case, of_p, of_q)

    assert same_law(found_law(case, cut, of_p, of_q), stated_law(cut, chain.emissions))


def test_code_that_transforms_the_draft_only_has_another_law():
    case, of_q = WITNESSES["J1"], {"top_k": 2}
    cut = cut_case(case, of_q, of_q)

    found = found_law(case, cut, {}, of_q)
    assert not same_law(found, stated_law(cut, chain.emissions))


# --- temperature 0 --------------------------------------------------------------------


@every_rule
@repeatable(max_examples=20)
@given(case=small_cases, of_q=filters)
def test_at_temperature_zero_every_rule_emits_the_argmax_path(rule, case, of_q):
    """L27: on ties the lowest id, in all rules alike."""
    cold = sampling.transformed(case.target, temperature=0)
    draft = sampling.transformed(case.draft, **of_q)
    path = ()
    while len(path) <= case.k:
        p = case.target(path)
        path = (*path, p.index(max(p)))

    assert completed(rule, cold, draft, case) == {path: 1}


@repeatable(max_examples=40)
@given(case=small_cases, data=st.data())
def test_at_temperature_zero_the_code_is_greedy_verification(case, data):
    """L27: pathwise, whatever was drafted and whatever the uniforms."""
    token = st.integers(0, case.vocab - 1)
    path = data.draw(st.lists(token, min_size=case.k, max_size=case.k))
    p = rows(case.target, path).unsqueeze(0)
    ids, uniform = torch.tensor([path]), data.draw(st.integers(0, 9)) / 10
    uniforms = torch.full((1, case.k + 1), uniform, dtype=torch.float64)

    cold = token_probs(p.log(), temperature=0.0)
    found = verify_chain(ids, None, cold, uniforms=uniforms).output_token_ids
    assert found.equal(verify_greedy(ids, None, p).output_token_ids)


@repeatable(max_examples=40)
@given(p=distributions(5))
def test_towards_temperature_zero_ties_are_shared_and_at_zero_they_are_not(p):
    """L27: the limit of the laws is not the law of the limit where the argmax is tied."""
    best = [x for x, mass in enumerate(p) if mass == max(p)]
    cold = sampling.apply_temperature(p, 0.001)

    assert cold == pytest.approx([(x in best) / len(best) for x in range(5)], abs=1e-9)
    assert support(sampling.apply_temperature(p, 0)) == {best[0]}
