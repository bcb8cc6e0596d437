# SPDX-License-Identifier: Apache-2.0
"""What the reference verifier of blocks promises."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from branches import ROUNDING, chain_law, farthest, rows_along, stated_chain_law
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

from specverify.core import block, verify_block, verify_chain
from specverify.inputs import WITNESSES
from specverify.inputs.strategies import cases
from specverify.laws import block as law_of_block
from specverify.laws import bounds, steps

REPEATABLE = settings(max_examples=25, derandomize=True, deadline=None, database=None)
SHORT = [name for name, case in WITNESSES.items() if case.k <= 2]
J2, M1, W2 = (WITNESSES[name] for name in ("J2", "M1", "W2"))


def miss(verify, case, **options):
    """How far the law of the code lies from that of block verification."""
    stated = stated_chain_law(law_of_block.emissions, case)
    return farthest(chain_law(verify, case, **options), stated)


# --- the law --------------------------------------------------------------------------


@pytest.mark.parametrize("name", SHORT)
def test_the_law_of_a_witness_is_that_of_block_verification(name, device):
    assert miss(verify_block, WITNESSES[name], device=device) <= ROUNDING


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", ["W", "W2"])
def test_the_law_is_the_same_in_every_dtype(name, dtype, device):
    case = WITNESSES[name]

    assert miss(verify_block, case, dtype=dtype, device=device) <= ROUNDING


@REPEATABLE
@given(case=cases(max_vocab=4, max_k=3, max_cells=64))
def test_the_law_of_any_case_is_that_of_block_verification(case):
    assert miss(verify_block, case) <= ROUNDING


def test_more_is_accepted_than_token_by_token_and_as_much_as_can_be():
    """On one path no lossless rule accepts more."""
    law = chain_law(verify_block, M1)
    mean = sum(accepted * mass for (_, accepted), mass in law.items())
    token_law = chain_law(verify_chain, M1)
    token_mean = sum(accepted * mass for (_, accepted), mass in token_law.items())

    bound = bounds.expected_accepted_bound(M1.target, M1.draft, M1.k)
    assert token_mean + 0.01 < mean <= bound + ROUNDING


def test_chance_of_a_prefix_is_its_joint_draft_mass_times_its_weight():
    """``P(accepted >= i, x_1..x_i) = Q(x_1..x_i) b_i`` (L14), by the code's own law."""
    law = chain_law(verify_block, M1)
    for length in (1, 2):
        for path, mass in steps.autoregressive_law(M1.draft, length).items():
            b = law_of_block.block_weights(M1.target, M1.draft, path)[0][length]
            kept = sum(
                share
                for (tokens, accepted), share in law.items()
                if accepted >= length and tokens[:length] == path
            )
            assert kept == pytest.approx(float(mass * b), abs=ROUNDING)


def test_token_level_verification_has_another_law():
    assert miss(verify_chain, M1) > 0.01


BROKEN = {
    "a prefix passes with its weight": ("_pass_rates", lambda step, b: b[:, 1:]),
    "the weights are not capped": (
        "block_weights",
        lambda p, q: torch.nn.functional.pad((p / q).cumprod(1), (1, 0), value=1.0),
    ),
    "each test forgets the tokens before": (
        "block_weights",
        lambda p, q: torch.nn.functional.pad((p / q).clamp_max(1), (1, 0), value=1.0),
    ),
    "a recovered token ignores the weight": (
        "residual_weights",
        lambda p, q, otherwise: (otherwise - q).clamp_min(0) + 1e-9 * otherwise,
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_part_has_another_law(name, monkeypatch):
    part, wrong = BROKEN[name]
    monkeypatch.setattr(block, part, wrong)

    assert miss(verify_block, J2) > 1e-3


@pytest.mark.parametrize("with_q", [True, False])
def test_one_draft_is_verified_as_a_token(with_q, device):
    ids, q, p, u = random_chain(1, batch=400, k=1, device=device)
    q = q if with_q else None

    token = verify_chain(ids, q, p, uniforms=u)
    assert same(verify_block(ids, q, p, uniforms=u), token)


def test_two_drafts_are_not():
    ids, q, p, u = random_chain(1, batch=400, k=2)

    token = verify_chain(ids, q, p, uniforms=u)
    assert not same(verify_block(ids, q, p, uniforms=u), token)


def test_equal_models_accept_everything(device):
    """Both sides of the test of a prefix are zero then."""
    ids, q, p, _ = random_chain(2, batch=100, device=device)
    p = torch.cat([q, p[:, -1:]], dim=1)
    u = torch.full((100, 5), 1 - 2**-53, dtype=torch.float64, device=device)

    assert verify_block(ids, q, p, uniforms=u).num_accepted.tolist() == [4] * 100


# --- long drafts ----------------------------------------------------------------------


def exact_weights(ratios):
    weights = [Fraction(1)]
    for ratio in ratios:
        weights.append(min(Fraction(1), weights[-1] * ratio))
    return weights


def log_weights(weights):
    return [math.log2(w.numerator) - math.log2(w.denominator) for w in weights]


def weights_of(exponents, device="cpu"):
    """Weights of drafts with ratios p/q = 2^e."""
    e = torch.tensor([exponents], dtype=torch.float64, device=device)
    p, q = 2.0 ** e.clamp_max(0), 2.0 ** -e.clamp_min(0)
    return block.block_weights(p, q)[0].tolist()


UP_AND_DOWN = {
    "up and down": [3, -2, -1, 4, -7, 2, 1, -1] * 8,
    "far down": [-10] * 64,
    "far up": [40] * 64,
    "deep down and back": [-40] * 32 + [40] * 32,
}


@pytest.mark.parametrize("name", UP_AND_DOWN)
def test_weights_of_64_drafts_are_exact_to_rounding(name, device):
    exponents = UP_AND_DOWN[name]
    stated = exact_weights([Fraction(2) ** e for e in exponents])
    found = weights_of(exponents, device)

    for weight, fraction in zip(found, stated, strict=True):
        assert weight == pytest.approx(float(fraction), rel=1e-11)


def test_a_product_that_underflows_would_be_seen():
    """Multiplied up, a weight of 2^-1280 is zero and never comes back."""
    exponents = UP_AND_DOWN["deep down and back"]
    weight = 1.0
    for e in exponents:
        weight = min(1.0, weight * 2.0**e)

    assert weight == 0.0
    assert weights_of(exponents)[-1] == pytest.approx(1.0, rel=1e-11)


@pytest.mark.parametrize("name", ["P2", "M1"])
def test_pass_rates_of_64_drafts_are_those_of_the_law(name, device):
    case = WITNESSES[name]
    empty, rng = np.empty((1, 0), np.int64), np.random.default_rng(3)
    path = tuple(case.draft.extend(empty, 64, rng)[0].tolist())
    _, stated = law_of_block.block_weights(case.target, case.draft, path)
    q = rows_along(case.draft, [path], 64).to(device)
    p = rows_along(case.target, [path], 65).to(device)
    ids = torch.tensor([path], device=device)
    step = block.ChainStep.open(ids, q, p)
    rates = block._pass_rates(step, block.block_weights(*step.drafted()))[0]

    assert rates.tolist() == pytest.approx([float(h) for h in stated[1:]], rel=1e-10)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_long_drafts_far_from_the_target_give_tokens_of_the_target(dtype, device):
    """Weights from 2^-600 on; NaN would end on a token of probability zero."""
    p = torch.tensor([2**-10, 1 - 2**-10, 0.0], dtype=torch.float64)
    q = torch.tensor([1 - 2**-5, 2**-5 - 2**-6, 2**-6], dtype=torch.float64)
    p, q = (x.to(dtype).to(device) for x in (p, q))
    ids = torch.zeros(50, 64, dtype=torch.int64, device=device)
    step = ids, q.expand(50, 64, 3), p.expand(50, 65, 3)
    tokens, accepted = verify_block(*step, generator=seeded(5, device))

    assert tokens.gather(1, accepted.unsqueeze(1)).max() <= 1


# --- forms of the input ---------------------------------------------------------------


def test_no_draft_probs_means_one_hot_at_the_drafts(device):
    ids, _, p, u = random_chain(4, batch=200, device=device)
    one_hot = torch.nn.functional.one_hot(ids, p.shape[-1]).double()

    implicit = verify_block(ids, None, p, uniforms=u)
    assert same(implicit, verify_block(ids, one_hot, p, uniforms=u))


def test_a_ragged_row_gives_what_the_shorter_row_gives_alone(device):
    step = random_chain(6, device=device)
    lengths = torch.tensor(LENGTHS, device=device)
    ragged = verify_block(*step[:3], uniforms=step[3], num_draft_tokens=lengths)

    for row, length in enumerate(LENGTHS):
        *short, uniforms = shortened(step, row, length)
        alone = verify_block(*short, uniforms=uniforms).output_token_ids
        assert torch.equal(ragged.output_token_ids[row, : length + 1], alone[0])
        assert (ragged.output_token_ids[row, length + 1 :] == -1).all()


@pytest.mark.parametrize("with_q", [True, False])
@pytest.mark.parametrize("padding", [*PADDINGS, {"uniforms": float("nan")}], ids=str)
def test_what_stands_behind_the_drafts_of_a_ragged_row_is_ignored(
    padding, with_q, device
):
    step = random_chain(7, device=device)
    options = {"num_draft_tokens": torch.tensor(LENGTHS, device=device)}
    clean, other = (
        verify_block(ids, q if with_q else None, p, uniforms=u, **options)
        for ids, q, p, u in (step, padded(step, **padding))
    )

    assert same(clean, other)


def test_the_last_draft_of_a_ragged_row_is_tested_with_its_weight(device):
    """And not as a prefix with more behind it, whose test passes more often."""
    case = W2.with_(k=1)
    short = stated_chain_law(law_of_block.emissions, case)

    def verify(ids, q, p, *, uniforms):
        more = torch.nn.functional.pad
        return verify_block(
            more(ids, (0, 1)),
            more(q, (0, 0, 0, 1)),
            more(p, (0, 0, 0, 1)),
            uniforms=torch.cat([uniforms[:, :1], uniforms], dim=1),
            num_draft_tokens=torch.ones_like(ids[:, 0]),
        )

    assert farthest(chain_law(verify, case, device=device), short) <= ROUNDING


def test_no_drafts_give_one_token_of_the_target_row(device):
    ids, q, p, u = random_chain(3, k=0, device=device)

    token = verify_chain(ids, q, p, uniforms=u)
    assert same(verify_block(ids, q, p, uniforms=u), token)


def test_an_empty_batch_gives_an_empty_result(device):
    step = (x[:0] for x in random_chain(3, device=device)[:3])

    assert verify_block(*step).output_token_ids.shape == (0, 5)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_probabilities_are_widened_before_anything_is_computed(dtype, device):
    ids, q, p, u = random_chain(8, batch=200, device=device)
    q, p = q.to(dtype), p.to(dtype)

    narrow = verify_block(ids, q, p, uniforms=u, validate=False)
    wide = verify_block(ids, q.double(), p.double(), uniforms=u, validate=False)
    assert same(narrow, wide)


# --- side effects ---------------------------------------------------------------------


@pytest.mark.parametrize("with_q", [True, False])
def test_inputs_are_left_bitwise_unchanged(with_q, device):
    ids, q, p, u = random_chain(10, device=device)
    lengths = torch.tensor(LENGTHS, device=device)
    before = [x.clone() for x in (ids, q, p, u, lengths)]
    q_or_none = q if with_q else None
    verify_block(ids, q_or_none, p, uniforms=u, num_draft_tokens=lengths)

    assert same(before, (ids, q, p, u, lengths))


def test_a_given_generator_is_the_only_one_that_advances(device):
    step = random_chain(11, device=device)[:3]
    generator = seeded(0, device)
    before = generator.get_state(), global_state(device)
    verify_block(*step, generator=generator)

    assert not torch.equal(generator.get_state(), before[0])
    assert torch.equal(global_state(device), before[1])


@pytest.mark.parametrize(("second", "equal"), [(13, True), (14, False)])
def test_the_output_is_a_function_of_the_generator_state(second, equal, device):
    step = random_chain(13, batch=200, device=device)[:3]
    first = verify_block(*step, generator=seeded(13, device))

    assert same(first, verify_block(*step, generator=seeded(second, device))) == equal


@pytest.mark.parametrize("device", ["cuda"], indirect=True)
@pytest.mark.parametrize("with_q", [True, False])
def test_the_host_never_waits_for_the_device(with_q, device):
    ids, q, p, _ = random_chain(15, device=device)
    lengths = torch.tensor(LENGTHS, device=device)
    generator = seeded(0, device)
    torch.cuda.set_sync_debug_mode("error")
    try:
        verify_block(ids, q if with_q else None, p, generator=generator)
        verify_block(ids, q, p, generator=generator, num_draft_tokens=lengths)
    finally:
        torch.cuda.set_sync_debug_mode("default")


# --- errors ---------------------------------------------------------------------------


def test_the_call_that_the_errors_start_from_is_valid():
    assert verify_block(**chain_call()).output_token_ids.shape == (2, 3)


@pytest.mark.parametrize(
    ("name", "value", "error", "says"), [*CHAIN_ERRORS, *Q_ERRORS, *U_ERRORS]
)
def test_a_bad_argument_is_refused_by_name_with_found_and_allowed(
    name, value, error, says
):
    first = "draft_token_ids" if "drawn from" in says else name
    with pytest.raises(error, match=f"^{first}.*{says}"):
        verify_block(**chain_call(**{name: value}))


@pytest.mark.parametrize("name", ["target_probs", "draft_probs"])
def test_values_are_not_looked_at_where_validation_is_off(name):
    bad = torch.full_like(chain_call()[name], float("nan"))

    result = verify_block(**chain_call(**{name: bad}), validate=False)
    assert result.num_accepted.shape == (2,)
