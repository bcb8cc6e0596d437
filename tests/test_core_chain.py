# SPDX-License-Identifier: Apache-2.0
"""What the reference verifier of a chain of drafts promises."""

import math
from collections import Counter

import pytest
import torch

from specverify.core import inverse_cdf, residual_weights, verify_chain
from specverify.core.chain import accept_tokens
from specverify.core.steps import ChainStep
from specverify.inputs import WITNESSES
from specverify.laws.distributions import token_accepted_law
from specverify.statistics.chisquare import goodness_of_fit

W = WITNESSES["W"]
P, Q = W.target(()), W.draft(())
LAW = token_accepted_law(P, Q)
LARGEST_UNIFORM = 1 - 2**-53
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


def seeded(seed, device="cpu"):
    return torch.Generator(device).manual_seed(seed)


def step_on_w(drafts, dtype=torch.float64, device="cpu"):
    """Arguments of one step on witness W, a row for each draft."""
    p = torch.tensor(W.target.matrix[:2], dtype=dtype, device=device)
    q = torch.tensor(W.draft.matrix, dtype=dtype, device=device)
    batch = len(drafts)
    ids = drafts.to(device).unsqueeze(1)
    return ids, q.expand(batch, 1, 4), p.expand(batch, 2, 4)


def random_step(seed, *, batch=7, k=4, vocab=6, device="cpu"):
    """Arguments of one step with different rows, and uniforms for it."""
    generator = seeded(seed)
    weights = torch.rand(batch, 2 * k + 1, vocab, generator=generator).double()
    rows = weights / weights.sum(-1, keepdim=True)
    q, p = rows[:, :k], rows[:, k:]
    u = torch.rand(batch, 2 * k + 1, dtype=torch.float64, generator=generator)
    ids = inverse_cdf(q.reshape(-1, vocab), u[:, :k].reshape(-1)).view(batch, k)
    return tuple(x.to(device) for x in (ids, q, p, u[:, k:]))


# --- the law, exactly -----------------------------------------------------------------


def midpoints(cells):
    return (torch.arange(cells, dtype=torch.float64) + 0.5) / cells


def exact_law(verify, dtype=torch.float64, device="cpu"):
    """Law of (first token, accepted) on W, each of 4 x 21 x 17 cells called once."""
    grid = torch.cartesian_prod(
        torch.arange(4.0).double(), midpoints(21), midpoints(17)
    )
    drafts, uniforms = grid[:, 0].long(), grid[:, 1:].to(device)
    ids, kept = verify(*step_on_w(drafts, dtype, device), uniforms=uniforms)
    law = Counter()
    rows = zip(drafts.tolist(), ids[:, 0].tolist(), kept.tolist(), strict=True)
    for draft, token, accepted in rows:
        law[token, bool(accepted)] += Q[draft] / (21 * 17)
    return {outcome: law[outcome] for outcome in LAW}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_injected_uniforms_give_the_law_of_token_and_acceptance_exactly(dtype, device):
    assert exact_law(verify_chain, dtype, device) == LAW


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_injected_uniforms_give_the_target_law_exactly(dtype, device):
    law = exact_law(verify_chain, dtype, device)

    assert tuple(law[x, True] + law[x, False] for x in range(4)) == P


def lossy(*, accept=accept_tokens, weights=residual_weights):
    """The verifier with a part exchanged."""

    def verify(ids, q, p, *, uniforms):
        step = ChainStep.open(ids, q, p, uniforms=uniforms)
        accepted = step.accepted_prefix(accept(*step.drafted(), uniforms[:, :-1]))
        return step.emit(accepted, weights(*step.rows(accepted)))

    return verify


LOSSY = {
    "accepts all": lossy(accept=lambda p, q, u: u < 1),
    "ratio upside down": lossy(accept=lambda p, q, u: accept_tokens(q, p, u)),
    "recovers from p": lossy(weights=lambda p, q: p),
    "recovers from |p - q|": lossy(weights=lambda p, q: (p - q).abs()),
    "recovers from (q - p)+": lossy(weights=lambda p, q: residual_weights(q, p)),
}


def test_the_parts_put_together_unchanged_give_the_exact_law():
    assert exact_law(lossy()) == LAW


@pytest.mark.parametrize("name", LOSSY)
def test_injected_uniforms_refuse_a_lossy_rule(name):
    assert exact_law(LOSSY[name]) != LAW


# --- the law, by sampling -------------------------------------------------------------


def sampled_fit(verify, device="cpu"):
    """Chi-square of (first token, accepted) on W over 40,000 sampled steps."""
    generator = seeded(1, device)
    weights = torch.tensor([float(x) for x in Q]).expand(40_000, 4)
    drafts = inverse_cdf(weights, torch.rand(40_000, generator=seeded(2)))
    ids, kept = verify(*step_on_w(drafts, device=device), generator=generator)
    cells = (2 * ids[:, 0] + kept.clamp_max(1)).bincount(minlength=8)
    probs = [float(LAW[x, bool(kept)]) for x in range(4) for kept in (0, 1)]
    return goodness_of_fit(cells.cpu(), probs, level=1e-9)


def test_draws_from_the_generator_follow_the_law(device):
    assert sampled_fit(verify_chain, device).p_value >= 1e-9


def test_draws_that_accept_a_little_too_often_are_refused():
    def eager(*step, generator):
        uniforms = torch.rand(len(step[0]), 2, generator=generator)
        uniforms[:, 0] *= 0.8
        return verify_chain(*step, uniforms=uniforms)

    assert sampled_fit(eager).p_value < 1e-9


# --- the test of one draft, at its corners --------------------------------------------


def accepts(p, q, u, dtype=torch.float64, device="cpu"):
    """Whether a draft of masses p and q is accepted at uniform u."""
    ids = torch.zeros(1, 1, dtype=torch.int64, device=device)
    rows = torch.tensor([[[p, 1 - p], [0.5, 0.5]]], dtype=dtype, device=device)
    draft = torch.tensor([[[q, 1 - q]]], dtype=dtype, device=device)
    uniforms = torch.tensor([[u, 0.5]], dtype=torch.float64, device=device)
    return bool(verify_chain(ids, draft, rows, uniforms=uniforms).num_accepted)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_uniform_zero_does_not_accept_a_token_of_target_probability_zero(dtype, device):
    assert not accepts(0.0, 0.5, 0.0, dtype, device)


@pytest.mark.parametrize("p", [5e-324, 2.0**-149, 2.0**-24, 0.25])
def test_uniform_zero_accepts_every_token_that_the_target_can_emit(p, device):
    assert accepts(p, 0.5, 0.0, device=device)


@pytest.mark.parametrize("mass", [5e-324, 1.5e-323, 2.0**-1074 * 3, 1e-310, 0.3, 1.0])
def test_equal_masses_are_accepted_at_the_largest_uniform(mass, device):
    assert accepts(mass, mass, LARGEST_UNIFORM, device=device)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_equal_subnormal_masses_are_accepted_in_every_dtype(dtype, device):
    mass = torch.finfo(dtype).smallest_normal / 4

    assert accepts(mass, mass, LARGEST_UNIFORM, dtype, device)


@pytest.mark.parametrize("mass", [1.5e-323, 1e-310, 0.3, 1.0])
def test_the_next_smaller_target_mass_is_rejected_at_the_largest_uniform(mass, device):
    smaller = math.nextafter(mass, 0)

    assert not accepts(smaller, mass, LARGEST_UNIFORM, device=device)


@pytest.mark.parametrize(("u", "accepted"), [(0.25 - 2**-53, True), (0.25, False)])
def test_acceptance_ends_exactly_at_the_ratio(u, accepted, device):
    """With p/q = 1/4, u = 1/4 is the first uniform that rejects."""
    assert accepts(0.125, 0.5, u, device=device) == accepted


# --- what is emitted ------------------------------------------------------------------


def ladder(passes, device="cpu", **options):
    """Verify three drafts of token 0, of which test i passes where ``passes[i]``.

    The residual of position i holds token i + 1 alone, the bonus row token 4.
    """
    p = torch.zeros(1, 4, 5)
    p[0, [0, 1, 2], 0] = 0.5
    p[0, [0, 1, 2], [1, 2, 3]] = 0.5
    p[0, 3, 4] = 1
    q = torch.tensor([1.0, 0, 0, 0, 0]).expand(1, 3, 5)
    ids = torch.zeros(1, 3, dtype=torch.int64)
    uniforms = torch.tensor([[*(0.25 if x else 0.75 for x in passes), 0.5]])
    step = (x.to(device) for x in (ids, q, p))
    return verify_chain(*step, uniforms=uniforms.to(device), **options)


@pytest.mark.parametrize(
    ("passes", "emitted"),
    [
        ((False, False, False), [1, -1, -1, -1]),
        ((False, True, True), [1, -1, -1, -1]),
        ((True, False, True), [0, 2, -1, -1]),
        ((True, True, False), [0, 0, 3, -1]),
        ((True, True, True), [0, 0, 0, 4]),
    ],
)
def test_a_row_holds_accepted_drafts_then_one_token_then_placeholders(
    passes, emitted, device
):
    """The one token comes from the residual where the first test fails, or is bonus."""
    assert ladder(passes, device).output_token_ids.tolist() == [emitted]


@pytest.mark.parametrize(
    ("passes", "count"),
    [((False, True, True), 0), ((True, False, True), 1), ((True, True, True), 3)],
)
def test_num_accepted_counts_the_tests_passed_before_the_first_failure(
    passes, count, device
):
    assert ladder(passes, device).num_accepted.tolist() == [count]


@pytest.mark.parametrize("drafts", [0, 1, 2, 3])
def test_a_shorter_row_takes_its_bonus_token_behind_its_own_drafts(drafts, device):
    """Behind n drafts that is target row n, which on the ladder holds 0 and n + 1."""
    lengths = torch.tensor([drafts], device=device)
    result = ladder((True, True, True), device, num_draft_tokens=lengths)

    bonus = 4 if drafts == 3 else drafts + 1
    assert result.output_token_ids[0, drafts] == bonus


def test_results_are_int64_on_the_device_of_the_inputs(device):
    result = ladder((True, True, True), device)

    assert {x.dtype for x in result} == {torch.int64}
    assert {x.device.type for x in result} == {device}


def test_no_drafts_give_one_token_of_the_target_row(device):
    """With k = 0 a step is plain sampling: midpoints give exactly the target's law."""
    p = torch.tensor(W.target.matrix[:1], device=device).expand(32, 1, 4)
    ids = torch.empty(32, 0, dtype=torch.int64, device=device)
    q = torch.empty(32, 0, 4, device=device)
    result = verify_chain(ids, q, p, uniforms=midpoints(32).unsqueeze(1).to(device))

    assert result.output_token_ids[:, 0].bincount().tolist() == [8, 4, 9, 11]


def test_an_empty_batch_gives_an_empty_result(device):
    step = (x[:0] for x in random_step(3, device=device)[:3])

    assert verify_chain(*step).output_token_ids.shape == (0, 5)


def test_a_zero_residual_falls_back_to_the_target(device):
    """By rounding, q can be p or more everywhere; recovered tokens then follow p."""
    p = torch.tensor([0.25, 0.75], device=device).expand(8, 2, 2)
    q = torch.tensor([0.25 + 2e-5, 0.75], device=device).expand(8, 1, 2)
    ids = torch.zeros(8, 1, dtype=torch.int64, device=device)
    u = torch.full((8,), LARGEST_UNIFORM, dtype=torch.float64)
    uniforms = torch.stack([u, midpoints(8)], dim=1).to(device)
    result = verify_chain(ids, q, p, uniforms=uniforms)

    assert result.num_accepted.tolist() == [0] * 8
    assert result.output_token_ids[:, 0].bincount().tolist() == [2, 6]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_vocabulary_of_128k_is_read_to_its_last_token(dtype, device):
    """All of the residual sits on the last token, in a single row."""
    vocab = 131_072
    q = torch.full((1, 1, vocab), 1 / vocab, dtype=dtype, device=device)
    p = q.repeat(1, 2, 1)
    p[:, :, : vocab // 2] = 0
    p[:, :, -1] = 0.5
    ids = torch.zeros(1, 1, dtype=torch.int64, device=device)

    assert verify_chain(ids, q, p).output_token_ids.tolist() == [[vocab - 1, -1]]


# --- forms of the input ---------------------------------------------------------------


def test_no_draft_probs_means_one_hot_at_the_drafts(device):
    ids, q, p, u = random_step(4, batch=200, device=device)
    one_hot = torch.nn.functional.one_hot(ids, q.shape[-1]).double()

    implicit = verify_chain(ids, None, p, uniforms=u)
    explicit = verify_chain(ids, one_hot, p, uniforms=u)
    assert torch.equal(implicit.output_token_ids, explicit.output_token_ids)


def test_a_batch_gives_what_its_rows_give_alone(device):
    step = random_step(5, device=device)
    whole = verify_chain(*step[:3], uniforms=step[3]).output_token_ids

    for row in range(len(whole)):
        ids, q, p, u = (x[row : row + 1] for x in step)
        alone = verify_chain(ids, q, p, uniforms=u).output_token_ids
        assert torch.equal(alone, whole[row : row + 1])


LENGTHS = [0, 1, 2, 3, 4, 2, 0]


def shortened(step, row, length):
    """A row of a ragged step as a step of its own."""
    ids, q, p, u = (x[row : row + 1] for x in step)
    uniforms = torch.cat([u[:, :length], u[:, -1:]], dim=1)
    return ids[:, :length], q[:, :length], p[:, : length + 1], uniforms


def test_a_ragged_row_gives_what_the_shorter_row_gives_alone(device):
    step = random_step(6, device=device)
    lengths = torch.tensor(LENGTHS, device=device)
    ragged = verify_chain(*step[:3], uniforms=step[3], num_draft_tokens=lengths)

    for row, length in enumerate(LENGTHS):
        *short, uniforms = shortened(step, row, length)
        alone = verify_chain(*short, uniforms=uniforms).output_token_ids
        assert torch.equal(ragged.output_token_ids[row, : length + 1], alone[0])
        assert (ragged.output_token_ids[row, length + 1 :] == -1).all()


def padded(step, *, ids=None, probs=None, uniforms=None):
    """The same step with other values wherever a ragged row should not look."""
    new = [x.clone() for x in step]
    fills, bonus = (ids, probs, probs, uniforms), (0, 0, 1, 0)
    for tensor, fill, skip in zip(new, fills, bonus, strict=True):
        for row, length in enumerate(LENGTHS):
            if fill is not None:
                tensor[row, length + skip : 4 + skip] = fill
    return new


@pytest.mark.parametrize("with_q", [True, False])
@pytest.mark.parametrize(
    "padding",
    [
        {"ids": -1},
        {"ids": 6},
        {"ids": 2**62},
        {"probs": 0.0},
        {"probs": float("nan")},
        {"uniforms": float("nan")},
        {"ids": -1, "probs": float("nan")},
    ],
    ids=str,
)
def test_what_stands_behind_the_drafts_of_a_ragged_row_is_ignored(
    padding, with_q, device
):
    step = random_step(7, device=device)
    options = {"num_draft_tokens": torch.tensor(LENGTHS, device=device)}
    outputs = []
    for ids, q, p, u in (step, padded(step, **padding)):
        result = verify_chain(ids, q if with_q else None, p, uniforms=u, **options)
        outputs.append(result.output_token_ids)

    assert torch.equal(*outputs)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_probabilities_are_widened_before_anything_is_computed(dtype, device):
    """Half precision gives what float64 gives on the same, already rounded, numbers."""
    ids, q, p, u = random_step(8, batch=200, device=device)
    q, p = q.to(dtype), p.to(dtype)

    narrow = verify_chain(ids, q, p, uniforms=u)
    wide = verify_chain(ids, q.double(), p.double(), uniforms=u, validate=False)
    assert torch.equal(narrow.output_token_ids, wide.output_token_ids)


def test_strides_do_not_matter(device):
    ids, q, p, u = random_step(9, device=device)
    turned = [x.transpose(0, 1).contiguous().transpose(0, 1) for x in (ids, q, p, u)]

    plain = verify_chain(ids, q, p, uniforms=u)
    strided = verify_chain(*turned[:3], uniforms=turned[3])
    assert torch.equal(plain.output_token_ids, strided.output_token_ids)


# --- side effects ---------------------------------------------------------------------


@pytest.mark.parametrize("with_q", [True, False])
def test_inputs_are_left_bitwise_unchanged(with_q, device):
    ids, q, p, u = random_step(10, device=device)
    lengths = torch.tensor(LENGTHS, device=device)
    before = [x.clone() for x in (ids, q, p, u, lengths)]
    q_or_none = q if with_q else None
    verify_chain(ids, q_or_none, p, uniforms=u, num_draft_tokens=lengths)

    after = (ids, q, p, u, lengths)
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def global_state(device):
    if device == "cuda":
        return torch.cuda.get_rng_state()
    return torch.random.get_rng_state()


def test_a_given_generator_is_the_only_one_that_advances(device):
    step = random_step(11, device=device)[:3]
    before = global_state(device)
    verify_chain(*step, generator=seeded(0, device))

    assert torch.equal(global_state(device), before)


def test_without_a_generator_the_global_one_advances(device):
    step = random_step(11, device=device)[:3]
    before = global_state(device)
    verify_chain(*step)

    assert not torch.equal(global_state(device), before)


def test_injected_uniforms_leave_every_generator_alone(device):
    ids, q, p, u = random_step(12, device=device)
    generator = seeded(0, device)
    before = generator.get_state(), global_state(device)
    verify_chain(ids, q, p, uniforms=u, generator=generator)

    assert torch.equal(generator.get_state(), before[0])
    assert torch.equal(global_state(device), before[1])


@pytest.mark.parametrize(("second", "same"), [(13, True), (14, False)])
def test_the_output_is_a_function_of_the_generator_state(second, same, device):
    """Equal seeds give equal outputs, different seeds different ones."""
    step = random_step(13, batch=200, device=device)[:3]
    first = verify_chain(*step, generator=seeded(13, device)).output_token_ids
    again = verify_chain(*step, generator=seeded(second, device)).output_token_ids

    assert torch.equal(first, again) == same


@pytest.mark.parametrize("device", ["cuda"], indirect=True)
@pytest.mark.parametrize("with_q", [True, False])
def test_the_host_never_waits_for_the_device(with_q, device):
    ids, q, p, _ = random_step(15, device=device)
    lengths = torch.tensor(LENGTHS, device=device)
    generator = seeded(0, device)
    torch.cuda.set_sync_debug_mode("error")
    try:
        verify_chain(ids, q if with_q else None, p, generator=generator)
        verify_chain(ids, q, p, generator=generator, num_draft_tokens=lengths)
    finally:
        torch.cuda.set_sync_debug_mode("default")


# --- errors ---------------------------------------------------------------------------


def arguments(**changes):
    """A valid call with batch 2, k 2, vocab 4, and some arguments replaced."""
    valid = {
        "draft_token_ids": torch.tensor([[0, 1], [2, 3]]),
        "draft_probs": torch.full((2, 2, 4), 0.25),
        "target_probs": torch.full((2, 3, 4), 0.25),
        "uniforms": torch.full((2, 3), 0.5),
        "num_draft_tokens": torch.tensor([2, 1]),
    }
    return {**valid, **changes}


def spoilt(name, where, value):
    """That argument with one place changed."""
    tensor = arguments()[name].clone()
    tensor[where] = value
    return tensor


def test_the_call_that_the_errors_start_from_is_valid():
    assert verify_chain(**arguments()).output_token_ids.shape == (2, 3)


FLOATS = "torch.float64, torch.float32, torch.float16, torch.bfloat16"
TYPE_ERRORS = [
    ("target_probs", [[[1.0]]], r"a list; .* a torch.Tensor \[batch, k \+ 1, vocab\]"),
    ("target_probs", torch.ones(2, 3, 4).int(), f"int32; .* {FLOATS}"),
    ("draft_token_ids", None, r"a NoneType; .* a torch.Tensor \[batch, k\]"),
    ("draft_token_ids", torch.ones(2, 2).int(), "int32; .* torch.int64"),
    ("draft_probs", 0.5, r"a float; .* a torch.Tensor \[batch, k, vocab\]"),
    ("draft_probs", torch.ones(2, 2, 4).long(), f"int64; .* {FLOATS}"),
    ("uniforms", [0.5], r"a list; .* a torch.Tensor \[batch, k \+ 1\]"),
    ("uniforms", torch.ones(2, 3).half(), "float16; .* torch.float32, torch.float64"),
    ("num_draft_tokens", 2, r"a int; .* a torch.Tensor \[batch\]"),
    ("num_draft_tokens", torch.ones(2), "float32; .* torch.int64"),
]
SHAPE_ERRORS = [
    ("target_probs", torch.ones(3, 4), r"\[3, 4\]; .* \[batch, k \+ 1, vocab\]"),
    ("target_probs", torch.ones(2, 0, 4), r"\[2, 0, 4\]; .* one row"),
    ("target_probs", torch.ones(2, 3, 0), r"\[2, 3, 0\]; .* one token"),
    ("draft_token_ids", torch.ones(2).long(), r"\[2\]; .* \[batch, k\]"),
    ("draft_token_ids", torch.ones(2, 3).long(), r"\[2, 3\]; .* \[2, 2\]"),
    ("draft_probs", torch.ones(2, 4), r"\[2, 4\]; .* \[batch, k, vocab\]"),
    ("draft_probs", torch.ones(2, 2, 5), r"\[2, 2, 5\]; .* \[2, 2, 4\]"),
    ("uniforms", torch.ones(2), r"\[2\]; .* \[batch, k \+ 1\]"),
    ("uniforms", torch.ones(2, 2), r"\[2, 2\]; .* \[2, 3\]"),
    ("num_draft_tokens", torch.ones(2, 1).long(), r"\[2, 1\]; .* \[batch\]"),
    ("num_draft_tokens", torch.ones(3).long(), r"\[3\]; .* \[2\]"),
]
VALUE_ERRORS = [
    ("target_probs", (1, 0, 2), float("nan"), r"\[1, 0\] holds NaN or inf.* finite"),
    ("target_probs", (0, 2, 2), float("inf"), r"\[0, 2\] holds NaN or inf.* finite"),
    ("target_probs", (1, 1, 0), -0.25, r"\[1, 1\] .* entry -0.25; .* non-negative"),
    ("target_probs", (0, 0, 3), 0.5, r"\[0, 0\] sums to 1.25; .* 1 within 0.0001"),
    ("draft_probs", (1, 0, 2), float("nan"), r"\[1, 0\] holds NaN or inf.* finite"),
    ("draft_probs", (0, 1, 2), float("-inf"), r"\[0, 1\] holds NaN or inf.* finite"),
    ("draft_probs", (0, 0, 1), -1.0, r"\[0, 0\] .* negative entry -1; .* non-negative"),
    ("draft_probs", (0, 1, 0), 0.0, r"\[0, 1\] sums to 0.75; .* 1 within 0.0001"),
    ("draft_token_ids", (1, 0), -1, r"\[1, 0\] is -1; allowed is 0 to 3"),
    ("draft_token_ids", (0, 1), 4, r"\[0, 1\] is 4; allowed is 0 to 3"),
    ("uniforms", (0, 0), 1.0, r"from 0.5 to 1; allowed .* \[0, 1\)"),
    ("uniforms", (1, 2), -0.5, r"from -0.5 to 0.5; allowed .* \[0, 1\)"),
    ("uniforms", (0, 1), float("nan"), r"nan.*; allowed .* \[0, 1\)"),
    ("num_draft_tokens", 0, -1, r"\[0\] is -1; allowed is 0 to 2"),
    ("num_draft_tokens", 1, 3, r"\[1\] is 3; allowed is 0 to 2"),
]


@pytest.mark.parametrize(("name", "value", "pattern"), TYPE_ERRORS)
def test_a_wrong_type_is_refused_by_name_with_found_and_allowed(name, value, pattern):
    with pytest.raises(TypeError, match=f"^{name} .*{pattern}"):
        verify_chain(**arguments(**{name: value}), validate=False)


@pytest.mark.parametrize(("name", "value", "pattern"), SHAPE_ERRORS)
def test_a_wrong_shape_is_refused_by_name_with_found_and_allowed(name, value, pattern):
    with pytest.raises(ValueError, match=f"^{name} has shape {pattern}"):
        verify_chain(**arguments(**{name: value}), validate=False)


OTHERS = sorted(arguments().keys() - {"target_probs"})


@pytest.mark.parametrize("name", OTHERS)
def test_an_argument_on_another_device_is_refused_by_name(name):
    elsewhere = arguments()[name].to("meta")

    with pytest.raises(ValueError, match=f"^{name} is on meta; .* target_probs, cpu"):
        verify_chain(**arguments(**{name: elsewhere}))


@pytest.mark.parametrize(("name", "where", "value", "pattern"), VALUE_ERRORS)
def test_a_wrong_value_is_refused_by_name_with_found_and_allowed(
    name, where, value, pattern
):
    with pytest.raises(ValueError, match=f"^{name}.*{pattern}"):
        verify_chain(**arguments(**{name: spoilt(name, where, value)}))


def test_a_draft_that_the_draft_model_cannot_make_is_refused():
    q = spoilt("draft_probs", (1, 0), torch.tensor([0.5, 0.5, 0, 0]))

    message = r"^draft_token_ids\[1, 0\] is 2, to which draft_probs gives probability 0"
    with pytest.raises(ValueError, match=message):
        verify_chain(**arguments(draft_probs=q))


@pytest.mark.parametrize(
    ("name", "where", "value"),
    [
        ("target_probs", (1, 0, 2), float("nan")),
        ("draft_probs", (0, 0, 1), -1.0),
        ("draft_probs", (0, 1, 0), 0.0),
        ("uniforms", (0, 0), 1.0),
    ],
)
def test_values_are_not_looked_at_where_validation_is_off(name, where, value):
    spoilt_call = arguments(**{name: spoilt(name, where, value)})

    assert verify_chain(**spoilt_call, validate=False).num_accepted.shape == (2,)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rows_that_softmax_rounded_to_their_dtype_pass_validation(dtype):
    """Over a large vocabulary they sum to 1 only within the rounding of the dtype."""
    logits = 3 * torch.randn(1, 3, 32_768, generator=seeded(16))
    p = logits.softmax(dim=-1).to(dtype)
    ids = p[:, :2].argmax(dim=-1)

    assert verify_chain(ids, p[:, :2], p).output_token_ids.shape == (1, 3)
