# SPDX-License-Identifier: Apache-2.0
"""Losslessness of token-level speculative decoding, as properties of the reference.

Target and draft are toy models with exact rational laws, so every "equal" below is an
equality of fractions, save where a law is sampled: there the false-alarm rate and the
bias that would be seen are stated. The numbers L1 to L16 are those under which the laws
are tested in ``tests/test_laws.py``.

To hold another engine to the same statements, put its verifier in the place of
`verify_chain`. Most need no more than the three tensors and injected uniforms.
"""

import math
from collections import Counter
from fractions import Fraction
from functools import partial

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specverify.core import inverse_cdf, verify_chain
from specverify.inputs import WITNESSES, Case, ToyModel
from specverify.inputs.strategies import (
    cases,
    distribution_pairs,
    distributions,
    model_pairs,
)
from specverify.laws import bounds, chain, steps
from specverify.laws.distributions import (
    accept_probability,
    excess,
    overlap,
    residual,
)
from specverify.statistics.chisquare import goodness_of_fit, min_samples
from specverify.statistics.ledger import Ledger, derive_seed

repeatable = partial(settings, derandomize=True, deadline=None, database=None)
LARGEST_UNIFORM = 1 - 2**-53

small_cases = cases(max_vocab=4, max_k=3, max_cells=64)
seeds = st.integers(0, 2**32 - 1)


# --- tensors of a step ----------------------------------------------------------------


def rows_along(model, paths, length):
    """Next-token rows behind the first 0, 1, ... tokens: [batch, length, vocab]."""
    rows = [model.probs(paths[:, :i]) for i in range(length)]
    return torch.from_numpy(np.stack(rows, axis=1))


def tensors(case, drafts):
    """What a verifier is handed when these tokens [batch, k] were drafted."""
    q = rows_along(case.draft, drafts, case.k)
    p = rows_along(case.target, drafts, case.k + 1)
    return torch.from_numpy(drafts), q, p


def drafted(case, rng, batch):
    """Tokens that the draft model proposes: int64 [batch, k]."""
    return case.draft.extend(np.empty((batch, 0), np.int64), case.k, rng)


def any_step(case, seed, batch=24):
    """Drafted tokens, q, p, and uniforms of which many lie at the ends of [0, 1)."""
    rng = np.random.default_rng(seed)
    uniforms = rng.random((batch, case.k + 1))
    uniforms[rng.random(uniforms.shape) < 0.15] = 0
    uniforms[rng.random(uniforms.shape) < 0.15] = LARGEST_UNIFORM
    return *tensors(case, drafted(case, rng, batch)), torch.from_numpy(uniforms)


# --- one position: p and q ------------------------------------------------------------


@repeatable(max_examples=100)
@given(p=distributions(4), q=distributions(4))
def test_what_is_not_accepted_is_recovered(p, q):
    """L1: ``min(p, q)`` and ``(p - q)+`` add up to p, token by token."""
    parts = zip(overlap(p, q), excess(p, q), strict=True)

    assert tuple(accepted + recovered for accepted, recovered in parts) == p


# --- one draft: the law of running code, exactly --------------------------------------


def midpoints(cells):
    return (torch.arange(cells, dtype=torch.float64) + 0.5) / cells


def tally(result):
    """How often a verifier answered what: ((emitted tokens, accepted), count)."""
    rows = torch.cat([result[0], result[1].unsqueeze(1)], dim=1)
    rows, counts = rows.unique(dim=0, return_counts=True)
    for (*ids, accepted), count in zip(rows.tolist(), counts.tolist(), strict=True):
        yield (tuple(x for x in ids if x >= 0), accepted), count


def injected_law(verify, case, dtype=torch.float64):
    """Law of (emitted tokens, accepted) of one draft, from injected uniforms.

    The outcome changes only where u or v crosses the border of a cell, so the middle of
    a cell stands for all of it, and rounding is far too small to move it across.
    """
    law = Counter()
    p, q = case.target(()), case.draft(())
    for token in np.flatnonzero(q).tolist():
        ratio = accept_probability(p[token], q[token])
        drawn_from = *residual(p, q), *case.target((token,))
        draws = math.lcm(*(Fraction(mass).denominator for mass in drawn_from))
        uniforms = torch.cartesian_prod(midpoints(ratio.denominator), midpoints(draws))
        ids, *probs = tensors(case, np.full((len(uniforms), 1), token))
        result = verify(ids, *(x.to(dtype) for x in probs), uniforms=uniforms)
        for outcome, count in tally(result):
            law[outcome] += q[token] * Fraction(count, len(uniforms))
    return law


def stated_law(case):
    """The same law, from the definition of the algorithm."""
    law = Counter()
    for emitted, accepted, mass in chain.emissions(case.target, case.draft, case.k):
        law[emitted, accepted] += mass
    return law


@st.composite
def single_drafts(draw):
    """Cases of one draft, small enough that a grid of uniforms answers every draw."""
    vocab = draw(st.integers(2, 4))
    p, q = draw(distribution_pairs(vocab))
    bonus = draw(distributions(vocab))
    return Case(ToyModel.from_positions([p, bonus]), ToyModel((q,)), k=1)


@repeatable(max_examples=60)
@given(case=single_drafts(), dtype=st.sampled_from([torch.float64, torch.float32]))
def test_one_step_has_exactly_the_stated_law(case, dtype):
    """L3: which tokens, and how many of them accepted, drafts included."""
    assert injected_law(verify_chain, case, dtype) == stated_law(case)


@repeatable(max_examples=40)
@given(case=single_drafts())
def test_the_first_token_follows_the_target_exactly(case):
    """L2."""
    law = Counter()
    for (emitted, _), mass in injected_law(verify_chain, case).items():
        law[emitted[0]] += mass

    assert tuple(law[token] for token in range(case.vocab)) == case.target(())


@repeatable(max_examples=40)
@given(case=single_drafts())
def test_as_much_is_accepted_as_a_lossless_rule_can_and_no_more(case):
    """L5 and L11: for one draft that is ``sum min(p, q)``."""
    law = injected_law(verify_chain, case)
    accepted = sum(mass for (_, count), mass in law.items() if count)

    assert accepted == bounds.acceptance_bound(case.target, case.draft, 1)


def recovers_from_target(ids, q, p, *, uniforms=None, generator=None):
    """A lossy verifier: after a rejection it draws from p, not from the residual."""
    if uniforms is None:
        shape = len(ids), ids.shape[1] + 1
        uniforms = torch.rand(shape, generator=generator, dtype=torch.float64)
    emitted, accepted = verify_chain(ids, q, p, uniforms=uniforms)
    last = accepted.unsqueeze(1)
    token = inverse_cdf(p[torch.arange(len(p)), accepted], uniforms[:, -1])
    return emitted.scatter(1, last, token.unsqueeze(1)), accepted


def accepts_too_much(ids, q, p, *, uniforms):
    """A lossy verifier: it accepts more than it may, with u/2 in the place of u."""
    return verify_chain(ids, q, p, uniforms=uniforms * torch.tensor([0.5, 1.0]))


def test_a_rule_that_recovers_from_the_target_has_another_law():
    case = WITNESSES["W"]

    assert injected_law(recovers_from_target, case) != stated_law(case)


def test_a_rule_that_accepts_too_much_has_another_law():
    case = WITNESSES["W"]

    assert injected_law(accepts_too_much, case) != stated_law(case)


# --- corners, on the same grid --------------------------------------------------------


@repeatable(max_examples=40)
@given(pair=distribution_pairs(4))
def test_disjoint_supports_accept_nothing_and_emit_the_target(pair):
    """L9: the excess of p over q and that of q over p share no token."""
    p, q = residual(*pair), residual(*pair[::-1])
    case = Case(ToyModel((tuple(p),)), ToyModel((tuple(q),)), k=1)

    law = injected_law(verify_chain, case)
    assert law == {((token,), 0): mass for token, mass in enumerate(p) if mass}


@repeatable(max_examples=40)
@given(p=distributions(4), token=st.integers(0, 3))
def test_a_deterministic_draft_is_accepted_as_often_as_the_target_draws_it(p, token):
    """L9: handed over without q, which stands for a one-hot row at the draft."""
    one_hot = tuple(Fraction(x == token) for x in range(4))
    case = Case(ToyModel((p,)), ToyModel((one_hot,)), k=1)

    def without_q(ids, _, target_probs, *, uniforms):
        return verify_chain(ids, None, target_probs, uniforms=uniforms)

    law = injected_law(without_q, case)
    assert law == stated_law(case)
    assert sum(mass for (_, count), mass in law.items() if count) == p[token]


@repeatable(max_examples=60)
@given(case=small_cases, seed=seeds)
def test_equal_models_accept_everything(case, seed):
    """L9: whatever the uniforms."""
    equal = case.with_(draft=case.target)
    ids, q, p, uniforms = any_step(equal, seed)

    emitted, accepted = verify_chain(ids, q, p, uniforms=uniforms)
    assert accepted.tolist() == [case.k] * len(ids)
    assert torch.equal(emitted[:, : case.k], ids)


@repeatable(max_examples=60)
@given(case=small_cases, seed=seeds)
def test_what_was_emitted_is_accepted_when_the_target_is_its_own_draft(case, seed):
    """L10a: verifying twice is verifying once."""
    ids, q, p, uniforms = any_step(case, seed)
    emitted, accepted = verify_chain(ids, q, p, uniforms=uniforms)
    lengths = (accepted + 1).clamp_max(case.k)
    rows = rows_along(case.target, emitted.numpy(), case.k + 1)
    step = emitted[:, : case.k], rows[:, : case.k], rows

    again = verify_chain(*step, uniforms=uniforms, num_draft_tokens=lengths)
    assert torch.equal(again.num_accepted, lengths)


@repeatable(max_examples=100)
@given(case=small_cases, seed=seeds)
def test_no_token_is_emitted_that_the_target_excludes(case, seed):
    """L9: not even at the ends of the interval of the uniforms."""
    *step, uniforms = any_step(case, seed)
    emitted, accepted = verify_chain(*step, uniforms=uniforms)

    for tokens, count in zip(emitted.tolist(), accepted.tolist(), strict=True):
        for position in range(count + 1):
            assert case.target(tokens[:position])[tokens[position]] > 0


@repeatable(max_examples=60)
@given(case=small_cases, seed=seeds)
def test_a_row_is_accepted_drafts_one_token_and_placeholders(case, seed):
    ids, q, p, uniforms = any_step(case, seed)
    emitted, accepted = verify_chain(ids, q, p, uniforms=uniforms)
    position, last = torch.arange(case.k + 1), accepted.unsqueeze(1)
    drafts = torch.nn.functional.pad(ids, (0, 1))

    assert torch.equal(emitted >= 0, position <= last)
    assert ((emitted == drafts) | (position >= last)).all()


@repeatable(max_examples=60)
@given(case=small_cases, seed=seeds)
def test_a_recovered_token_differs_from_the_draft_that_was_rejected(case, seed):
    """L4: where p < q at the draft, the residual is zero."""
    ids, q, p, uniforms = any_step(case, seed)
    emitted, accepted = verify_chain(ids, q, p, uniforms=uniforms)
    rejected = accepted < case.k
    place = accepted[rejected].unsqueeze(1)

    recovered, draft = (x[rejected].gather(1, place) for x in (emitted, ids))
    assert (recovered != draft).all()


# --- the joint law, sampled -----------------------------------------------------------

#: Both errors of `joint_p_value`: over all examples a correct verifier is refused with
#: probability 1e-9; a total variation of 0.05 in one example, on the cells that chi-
#: square keeps apart, is missed with probability 0.01.
EXAMPLES = 20
LEVEL = Ledger(share=1e-9, planned=EXAMPLES).planned_level
BIAS, POWER = 0.05, 0.99


def completed(case, emitted, accepted, rng):
    """Emitted tokens, carried on to k + 1 by the target itself: [batch, k + 1]."""
    parts = [
        case.target.extend(emitted[accepted == n, : n + 1], case.k + 1, rng)
        for n in range(case.k + 1)
    ]
    return np.concatenate(parts)


def joint_p_value(verify, case):
    """P-value of k + 1 tokens against the target's own sampling (L13)."""
    law = steps.autoregressive_law(case.target, case.k + 1)
    cells = case.vocab ** (case.k + 1)
    draws = min_samples(tv=BIAS, cells=max(cells, 2), level=LEVEL, power=POWER)
    seed = derive_seed(0, "joint law", case.key)
    rng, generator = np.random.default_rng(seed), torch.Generator().manual_seed(seed)
    step = tensors(case, drafted(case, rng, draws))
    emitted, accepted = verify(*step, generator=generator)
    tokens = completed(case, emitted.numpy(), accepted.numpy(), rng)
    place = case.vocab ** np.arange(case.k, -1, -1)
    probs = np.zeros(cells)
    for path, mass in law.items():
        probs[np.dot(path, place)] = mass
    counts = np.bincount(tokens @ place, minlength=cells)
    return goodness_of_fit(counts, probs, level=LEVEL).p_value


@repeatable(max_examples=EXAMPLES)
@given(case=cases(max_k=3, max_vocab=5, max_cells=27))
def test_the_tokens_of_a_step_follow_the_joint_law_of_the_target(case):
    """L13: the joint law, for marginals hide what couples positions."""
    assert joint_p_value(verify_chain, case) >= LEVEL


def test_the_joint_law_refuses_a_rule_that_recovers_from_the_target():
    assert joint_p_value(recovers_from_target, WITNESSES["M1"]) < LEVEL


def test_the_joint_law_refuses_a_bonus_token_from_the_row_before():
    """Its first k tokens follow the target, so only all k + 1 together show it."""

    def stale_bonus(ids, q, p, *, generator):
        stale = torch.cat([p[:, :-1], p[:, -2:-1]], dim=1)
        return verify_chain(ids, q, stale, generator=generator)

    assert joint_p_value(stale_bonus, WITNESSES["B2"]) < LEVEL


# --- blocks and loops, on the laws ----------------------------------------------------


@repeatable(max_examples=60)
@given(case=small_cases)
def test_acceptance_up_to_any_length_stays_below_the_universal_bound(case):
    """L11: no lossless rule that accepts a prefix of one path exceeds it."""
    law = steps.accepted_law(chain.emissions, case.target, case.draft, case.k)

    for length in range(1, case.k + 1):
        bound = bounds.acceptance_bound(case.target, case.draft, length)
        assert sum(law[length:]) <= bound


@repeatable(max_examples=60)
@given(
    pair=model_pairs(2, memory=2),
    k=st.integers(0, 3),
    length=st.integers(1, 4),
)
def test_a_loop_of_steps_emits_the_target_for_any_number_of_tokens(pair, k, length):
    """L16: exactly, in the joint law of all tokens."""
    target, draft = pair
    loop = steps.composed_law(chain.emissions, target, draft, k, length)

    assert loop == steps.autoregressive_law(target, length)


# --- invariances, path by path --------------------------------------------------------


@repeatable(max_examples=60)
@given(case=small_cases, data=st.data())
def test_renaming_tokens_renames_the_law(case, data):
    """L10."""
    order = tuple(data.draw(st.permutations(range(case.vocab))))
    renamed = stated_law(case.permuted(order))

    assert renamed == {
        (tuple(order[x] for x in emitted), accepted): mass
        for (emitted, accepted), mass in stated_law(case).items()
    }


@repeatable(max_examples=60)
@given(case=small_cases, seed=seeds, data=st.data())
def test_renaming_tokens_changes_no_acceptance(case, seed, data):
    """L10: with the same uniforms the same drafts are accepted."""
    order = data.draw(st.permutations(range(case.vocab)))
    ids, q, p, uniforms = any_step(case, seed)
    back = torch.tensor(order).argsort()
    renamed = torch.tensor(order)[ids], q[..., back], p[..., back]

    before = verify_chain(ids, q, p, uniforms=uniforms).num_accepted
    after = verify_chain(*renamed, uniforms=uniforms).num_accepted
    assert torch.equal(before, after)


@repeatable(max_examples=60)
@given(case=small_cases, seed=seeds, extra=st.integers(1, 5))
def test_impossible_tokens_behind_the_vocabulary_change_nothing(case, seed, extra):
    """L10: with the same uniforms the output is the same."""
    ids, q, p, uniforms = any_step(case, seed)
    padded = (torch.nn.functional.pad(rows, (0, extra)) for rows in (q, p))

    before = verify_chain(ids, q, p, uniforms=uniforms).output_token_ids
    after = verify_chain(ids, *padded, uniforms=uniforms).output_token_ids
    assert torch.equal(before, after)


@repeatable(max_examples=60)
@given(case=small_cases, seed=seeds, row=st.integers(0, 23))
def test_a_row_does_not_depend_on_the_rows_beside_it(case, seed, row):
    """L10: it comes out the same alone."""
    step = any_step(case, seed)
    *alone, uniforms = (x[row : row + 1] for x in step)

    beside = verify_chain(*step[:3], uniforms=step[3]).output_token_ids[row]
    assert verify_chain(*alone, uniforms=uniforms).output_token_ids[0].equal(beside)


@repeatable(max_examples=60)
@given(case=small_cases, seed=seeds)
def test_verification_is_a_pure_function(case, seed):
    """L10a: the same again for the same inputs, which are left as they were."""
    step = any_step(case, seed)
    before = [x.clone() for x in step]
    first, second = (
        verify_chain(*step[:3], uniforms=step[3]).output_token_ids for _ in range(2)
    )

    assert torch.equal(first, second)
    assert all(map(torch.equal, step, before))
