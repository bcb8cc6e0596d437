# SPDX-License-Identifier: Apache-2.0
"""What the rules promise that look at the target only: match, greedy, one-hot, mixed."""

from functools import partial

import pytest
import torch
from branches import ROUNDING, chain_law, farthest, stated_chain_law
from calls import (
    CHAIN_ERRORS,
    DTYPES,
    LENGTHS,
    PADDINGS,
    Q_ERRORS,
    U_ERRORS,
    chain_call,
    global_state,
    padded,
    random_chain,
    same,
    seeded,
    shortened,
)
from hypothesis import given, settings

from specverify.core import (
    inverse_cdf,
    verify_chain,
    verify_greedy,
    verify_match,
    verify_mixed,
    verify_one_hot,
)
from specverify.inputs import WITNESSES
from specverify.inputs.strategies import cases
from specverify.laws import matching as law_of_match

REPEATABLE = settings(max_examples=25, derandomize=True, deadline=None, database=None)
SHORT = [name for name, case in WITNESSES.items() if case.k <= 2]
FIXED = [name for name, case in WITNESSES.items() if case.deterministic]
M1 = WITNESSES["M1"]


def miss(verify, case, emissions=law_of_match.emissions, **options):
    """How far the law of the code lies from the stated one."""
    law = chain_law(verify, case, rounds=case.k + 1, **options)
    return farthest(law, stated_chain_law(emissions, case))


# --- sample and match -----------------------------------------------------------------


@pytest.mark.parametrize("name", SHORT)
def test_the_law_of_a_witness_is_that_of_sampling_and_comparing(name, device):
    assert miss(verify_match, WITNESSES[name], device=device) <= ROUNDING


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", ["W", "W2"])
def test_the_law_is_the_same_in_every_dtype(name, dtype, device):
    options = {"dtype": dtype, "device": device}

    assert miss(verify_match, WITNESSES[name], **options) <= ROUNDING


@REPEATABLE
@given(case=cases(max_vocab=3, max_k=2, max_cells=27))
def test_the_law_of_any_case_is_that_of_sampling_and_comparing(case):
    assert miss(verify_match, case) <= ROUNDING


def redrawn(ids, q, p, *, uniforms):
    """A lossy rule: where the sample does not match, the token is drawn again."""
    tokens, kept = verify_match(ids, q, p, uniforms=uniforms)
    last = kept.unsqueeze(1)
    again = inverse_cdf(p[torch.arange(len(p)), kept], uniforms[:, -1]).unsqueeze(1)
    return tokens.scatter(1, last, again), kept


def test_a_token_that_is_drawn_again_has_another_law():
    assert miss(redrawn, M1) > 0.01


def test_token_level_verification_accepts_more():
    assert miss(verify_chain, M1) > 0.01


def test_the_same_uniforms_give_the_same_tokens_whatever_was_drafted(device):
    """As far as both emit: the drafts decide only how much comes out."""
    ids, _, p, u = random_chain(1, batch=200, device=device)
    other = ids.roll(1, dims=0)
    results = [
        verify_match(x, None, p, uniforms=u).output_token_ids for x in (ids, other)
    ]
    both = (results[0] >= 0) & (results[1] >= 0)

    assert torch.equal(results[0][both], results[1][both])
    assert not torch.equal(*results)


# --- deterministic drafts -------------------------------------------------------------


@pytest.mark.parametrize("name", SHORT)
def test_rejection_against_one_hot_rows_has_the_law_of_matching(name, device):
    """Whatever law the drafts have: it does not enter."""
    assert miss(verify_one_hot, WITNESSES[name], device=device) <= ROUNDING


@pytest.mark.parametrize("name", FIXED)
def test_for_fixed_drafts_that_is_token_level_verification(name):
    assert miss(verify_chain, WITNESSES[name]) <= ROUNDING


def leaves_the_draft(ids, _, p, *, uniforms):
    """A lossy rule: the recovered token may be the draft that was rejected."""
    tokens, kept = verify_one_hot(ids, None, p, uniforms=uniforms)
    last = kept.unsqueeze(1)
    again = inverse_cdf(p[torch.arange(len(p)), kept], uniforms[:, -1]).unsqueeze(1)
    return tokens.scatter(1, last, again), kept


def test_a_recovered_token_that_may_be_the_draft_has_another_law():
    assert miss(leaves_the_draft, WITNESSES["O2"]) > 0.01


@pytest.mark.parametrize("fill", [float("nan"), 0.25])
def test_one_hot_does_not_look_at_draft_probs(fill, device):
    ids, q, p, u = random_chain(2, batch=100, device=device)

    with_q = verify_one_hot(ids, torch.full_like(q, fill), p, uniforms=u)
    assert same(with_q, verify_chain(ids, None, p, uniforms=u))


# --- greedy ---------------------------------------------------------------------------


def test_greedy_emits_the_most_likely_tokens_up_to_the_first_other_draft(device):
    ids, _, p, _ = random_chain(3, batch=300, device=device)
    best = p.argmax(dim=-1)
    coin = torch.rand(ids.shape, generator=seeded(1)).to(device) < 0.7
    ids = torch.where(coin, best[:, :-1], ids)
    tokens, kept = verify_greedy(ids, None, p)

    for path, drafts, row, count in zip(
        *(x.tolist() for x in (best, ids, tokens, kept)), strict=True
    ):
        equal = [x == y for x, y in zip(drafts, path[:-1], strict=True)]
        assert count == [*equal, False].index(False)
        assert row == [*path[: count + 1], *[-1] * (4 - count)]


@pytest.mark.parametrize("name", SHORT)
def test_the_law_of_greedy_is_that_of_its_drafts(name, device):
    def verify(ids, q, p, *, uniforms):
        return verify_greedy(ids, q, p)

    emissions = law_of_match.greedy_emissions
    assert miss(verify, WITNESSES[name], emissions, device=device) <= ROUNDING


def test_greedy_does_not_have_the_law_of_sampling():
    def verify(ids, q, p, *, uniforms):
        return verify_greedy(ids, q, p)

    assert miss(verify, M1) > 0.01


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_of_ties_the_lowest_id_is_the_most_likely(dtype, device):
    p = torch.tensor(
        [[[0.25, 0.375, 0.375], [0.5, 0.5, 0]]], dtype=dtype, device=device
    )
    first = verify_greedy(torch.tensor([[1]], device=device), None, p)
    second = verify_greedy(torch.tensor([[2]], device=device), None, p)

    assert first.output_token_ids.tolist() == [[1, 0]]
    assert second.output_token_ids.tolist() == [[1, -1]]


def test_greedy_draws_nothing(device):
    ids, q, p, _ = random_chain(4, device=device)
    before = global_state(device)
    verify_greedy(ids, q, p)

    assert torch.equal(global_state(device), before)


def test_greedy_takes_no_randomness():
    ids, q, p, u = random_chain(4)

    for source in ({"uniforms": u}, {"generator": seeded(0)}):
        with pytest.raises(TypeError, match=next(iter(source))):
            verify_greedy(ids, q, p, **source)


# --- mixed batches --------------------------------------------------------------------


def mixed_step(device):
    ids, q, p, u = random_chain(5, batch=200, device=device)
    greedy = torch.arange(200, device=device) % 3 == 0
    best = p[:, :-1].argmax(dim=-1)
    coin = torch.rand(ids.shape, generator=seeded(1)).to(device) < 0.5
    # Only where q can draw it is the most likely token a possible draft.
    possible = q.gather(2, best.unsqueeze(-1)).squeeze(-1) > 0
    return torch.where(coin & possible, best, ids), q, p, u, greedy


def test_rows_of_a_mixed_batch_are_greedy_where_asked_for(device):
    ids, q, p, u, greedy = mixed_step(device)
    tokens, kept = verify_mixed(ids, q, p, greedy=greedy, uniforms=u)

    alone = verify_greedy(ids, q, p)
    assert same((tokens[greedy], kept[greedy]), (x[greedy] for x in alone))
    assert kept[greedy].max() > 1


def test_the_other_rows_of_a_mixed_batch_are_sampled(device):
    ids, q, p, u, greedy = mixed_step(device)
    tokens, kept = verify_mixed(ids, q, p, greedy=greedy, uniforms=u)

    alone = verify_chain(ids, q, p, uniforms=u)
    assert same((tokens[~greedy], kept[~greedy]), (x[~greedy] for x in alone))
    assert not torch.equal(tokens, alone.output_token_ids)


BAD_MASKS = [
    ([True, False], TypeError, r"is a list; .* torch.Tensor \[batch\]"),
    (torch.tensor([1, 0]), TypeError, "dtype torch.int64; allowed is torch.bool"),
    (torch.tensor([True]), ValueError, r"shape \[1\]; .* asks for \[2\]"),
    (torch.ones(2, 1).bool(), ValueError, r"shape \[2, 1\]; it must be \[batch\]"),
    (torch.ones(2).bool().to("meta"), ValueError, "on meta; .* target_probs, cpu"),
]


@pytest.mark.parametrize(("mask", "error", "says"), BAD_MASKS)
def test_a_bad_mask_of_greedy_rows_is_refused(mask, error, says):
    with pytest.raises(error, match=f"^greedy .*{says}"):
        verify_mixed(**chain_call(), greedy=mask)


# --- all of them ----------------------------------------------------------------------


def half_greedy(ids, *step, **options):
    """Every other row greedy."""
    mask = torch.arange(len(ids), device=ids.device) % 2 == 0
    return verify_mixed(ids, *step, greedy=mask, **options)


def greedy_for_any(*step, uniforms=None, generator=None, **options):
    return verify_greedy(*step, **options)


RULES = {
    "match": verify_match,
    "greedy": greedy_for_any,
    "one-hot": verify_one_hot,
    "mixed": half_greedy,
}
every_rule = pytest.mark.parametrize("name", RULES)
sampling = pytest.mark.parametrize("name", [name for name in RULES if name != "greedy"])


@every_rule
def test_a_ragged_row_gives_what_the_shorter_row_gives_alone(name, device):
    step = random_chain(6, device=device)
    lengths = torch.tensor(LENGTHS, device=device)
    mask = torch.arange(len(LENGTHS), device=device) % 2 == 0
    rule = RULES[name]
    ragged = rule(*step[:3], uniforms=step[3], num_draft_tokens=lengths)

    for row, length in enumerate(LENGTHS):
        *short, uniforms = shortened(step, row, length)
        if name == "match":  # entry i draws position i
            uniforms = step[3][row : row + 1, : length + 1]
        if name == "mixed":
            rule = partial(verify_mixed, greedy=mask[row : row + 1])
        alone = rule(*short, uniforms=uniforms).output_token_ids
        assert torch.equal(ragged.output_token_ids[row, : length + 1], alone[0])
        assert (ragged.output_token_ids[row, length + 1 :] == -1).all()


@every_rule
@pytest.mark.parametrize("padding", PADDINGS, ids=str)
def test_what_stands_behind_the_drafts_of_a_ragged_row_is_ignored(
    name, padding, device
):
    step = random_chain(7, device=device)
    lengths = torch.tensor(LENGTHS, device=device)
    clean, other = (
        RULES[name](*call, uniforms=u, num_draft_tokens=lengths)
        for *call, u in (step, padded(step, **padding))
    )

    assert same(clean, other)


@every_rule
def test_inputs_are_left_bitwise_unchanged(name, device):
    step = random_chain(10, device=device)
    before = [x.clone() for x in step]
    RULES[name](*step[:3], uniforms=step[3])

    assert same(before, step)


@sampling
def test_a_given_generator_is_the_only_one_that_advances(name, device):
    step = random_chain(11, device=device)[:3]
    generator = seeded(0, device)
    before = generator.get_state(), global_state(device)
    RULES[name](*step, generator=generator)

    assert not torch.equal(generator.get_state(), before[0])
    assert torch.equal(global_state(device), before[1])


@sampling
@pytest.mark.parametrize(("second", "equal"), [(13, True), (14, False)])
def test_the_output_is_a_function_of_the_generator_state(name, second, equal, device):
    step = random_chain(13, batch=200, device=device)[:3]
    first, again = (
        RULES[name](*step, generator=seeded(seed, device)) for seed in (13, second)
    )

    assert same(first, again) == equal


@pytest.mark.parametrize("device", ["cuda"], indirect=True)
@every_rule
def test_the_host_never_waits_for_the_device(name, device):
    ids, q, p, _ = random_chain(15, device=device)
    lengths = torch.tensor(LENGTHS, device=device)
    generator = seeded(0, device)
    torch.cuda.set_sync_debug_mode("error")
    try:
        RULES[name](ids, q, p, generator=generator, num_draft_tokens=lengths)
    finally:
        torch.cuda.set_sync_debug_mode("default")


MASK = torch.tensor([True, False])
CALLS = {**RULES, "mixed": partial(verify_mixed, greedy=MASK), "greedy": verify_greedy}


@every_rule
def test_the_call_that_the_errors_start_from_is_valid(name):
    assert CALLS[name](**chain_call()).output_token_ids.shape == (2, 3)


@every_rule
@pytest.mark.parametrize(("argument", "value", "error", "says"), CHAIN_ERRORS)
def test_a_bad_argument_is_refused_by_name_with_found_and_allowed(
    name, argument, value, error, says
):
    with pytest.raises(error, match=f"^{argument}.*{says}"):
        CALLS[name](**chain_call(**{argument: value}))


@pytest.mark.parametrize("name", ["match", "greedy", "mixed"])
@pytest.mark.parametrize(("argument", "value", "error", "says"), Q_ERRORS)
def test_bad_draft_probs_are_refused(name, argument, value, error, says):
    first = "draft_token_ids" if "drawn from" in says else argument
    with pytest.raises(error, match=f"^{first}.*{says}"):
        CALLS[name](**chain_call(**{argument: value}))


@sampling
@pytest.mark.parametrize(("argument", "value", "error", "says"), U_ERRORS)
def test_bad_uniforms_are_refused(name, argument, value, error, says):
    with pytest.raises(error, match=f"^{argument}.*{says}"):
        CALLS[name](**chain_call(**{argument: value}))


@every_rule
def test_values_are_not_looked_at_where_validation_is_off(name):
    bad = torch.full((2, 3, 4), float("nan"))

    result = CALLS[name](**chain_call(target_probs=bad), validate=False)
    assert result.num_accepted.shape == (2,)
