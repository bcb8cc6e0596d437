# SPDX-License-Identifier: Apache-2.0
"""What the Gumbel coupling promises: races on noise that draft and target share."""

import math
from collections import Counter

import pytest
import torch
from calls import (
    CHAIN_ERRORS,
    DTYPES,
    LENGTHS,
    PADDINGS,
    Q_ERRORS,
    chain_call,
    global_state,
    padded,
    random_chain,
    same,
    seeded,
)

from specverify.core import race, race_noise, verify_chain, verify_coupled
from specverify.inputs import WITNESSES
from specverify.laws import coupling
from specverify.statistics.chisquare import goodness_of_fit

LEVEL, STEPS = 1e-9, 40_000
NAMES = ["W", "M1", "C5", "Z2", "W2"]


# --- the law, by sampling -------------------------------------------------------------


def raced(case, noise, dtype, device):
    """Drafts that race on the noise, and the rows behind them."""
    batch, k = len(noise), case.k
    models = [
        torch.from_numpy(model.matrix).to(device, dtype)
        for model in (case.draft, case.target)
    ]
    prefixes = torch.empty(batch, 0, dtype=torch.int64)
    q, p = [], []
    for position in range(k + 1):
        rows = [
            matrix[model.context_index(prefixes.numpy())]
            for matrix, model in zip(models, (case.draft, case.target), strict=True)
        ]
        p.append(rows[1])
        if position < k:
            q.append(rows[0])
            draft = race(rows[0], noise[:, position]).cpu()
            prefixes = torch.cat([prefixes, draft.unsqueeze(1)], dim=1)
    return prefixes.to(device), torch.stack(q, dim=1), torch.stack(p, dim=1)


def fit(verify, case, dtype=torch.float64, device="cpu"):
    """P-value of (emitted tokens, accepted) against the law, over sampled steps."""
    shape = STEPS, case.k + 1, case.vocab
    noise = race_noise(shape, device=device, generator=seeded(1, device))
    ids, q, p = raced(case, noise, dtype, device)
    tokens, kept = verify(ids, q, p, noise=noise)
    stated = Counter()
    for emitted, accepted, mass in coupling.emissions(case.target, case.draft, case.k):
        stated[(*emitted, *[-1] * (case.k - accepted)), accepted] += float(mass)
    rows = zip(tokens.tolist(), kept.tolist(), strict=True)
    found = Counter((tuple(row), accepted) for row, accepted in rows)
    outcomes = [*stated, *(found.keys() - stated.keys())]
    counts = torch.tensor([found[x] for x in outcomes])
    return goodness_of_fit(counts, [stated[x] for x in outcomes], level=LEVEL).p_value


@pytest.mark.parametrize("name", NAMES)
def test_what_is_emitted_and_accepted_follows_the_law_of_the_coupling(name, device):
    assert fit(verify_coupled, WITNESSES[name], device=device) >= LEVEL


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_law_is_the_same_in_every_dtype(dtype, device):
    assert fit(verify_coupled, WITNESSES["W2"], dtype, device) >= LEVEL


def own_noise(ids, q, p, *, noise):
    return verify_coupled(ids, q, p, noise=noise.roll(1, dims=0))


def rejection_on_shared_noise(ids, q, p, *, noise):
    """A lossy mistake: uniforms that the drafter has seen."""
    u = torch.exp(-noise.amin(dim=-1)).clamp_max(1 - 2**-53)
    return verify_chain(ids, q, p, uniforms=u)


@pytest.mark.parametrize("verify", [own_noise, rejection_on_shared_noise])
def test_another_use_of_the_noise_has_another_law(verify):
    assert fit(verify, WITNESSES["M1"]) < LEVEL


def first_tokens_fit(verify):
    """P-value of the first token alone against the target."""
    case = WITNESSES["W"]
    noise = race_noise((STEPS, 2, 4), generator=seeded(2))
    ids, q, p = raced(case, noise, torch.float64, "cpu")
    tokens = verify(ids, q, p, noise=noise).output_token_ids[:, 0]
    counts = tokens.bincount(minlength=4)
    return goodness_of_fit(
        counts, [float(x) for x in case.target(())], level=LEVEL
    ).p_value


def test_the_first_token_follows_the_target():
    assert first_tokens_fit(verify_coupled) >= LEVEL


def test_rejection_on_shared_noise_is_lossy():
    assert first_tokens_fit(rejection_on_shared_noise) < LEVEL


# --- path by path ---------------------------------------------------------------------


def noisy(seed, *, batch=200, device="cpu"):
    ids, q, p, _ = random_chain(seed, batch=batch, device=device)
    noise = race_noise(tuple(p.shape), device=device, generator=seeded(seed, device))
    return ids, q, p, noise


def test_for_fixed_noise_the_tokens_do_not_depend_on_the_drafts(device):
    """As far as both are emitted."""
    ids, _, p, noise = noisy(1, device=device)
    first, second = (
        verify_coupled(x, None, p, noise=noise).output_token_ids
        for x in (ids, ids.roll(1, dims=0))
    )
    both = (first >= 0) & (second >= 0)

    assert torch.equal(first[both], second[both])
    assert not torch.equal(first, second)


@pytest.mark.parametrize("k", [0, 1, 3])
def test_for_fixed_noise_the_tokens_do_not_depend_on_the_draft_length(k, device):
    ids, q, p, noise = noisy(2, device=device)
    long = verify_coupled(ids, q, p, noise=noise).output_token_ids
    short = verify_coupled(
        ids[:, :k], q[:, :k], p[:, : k + 1], noise=noise[:, : k + 1]
    ).output_token_ids

    both = (short >= 0) & (long[:, : k + 1] >= 0)
    assert torch.equal(short[both], long[:, : k + 1][both])
    assert torch.equal(short[:, 0], long[:, 0])


def test_drafts_raced_on_the_target_itself_are_all_accepted(device):
    _, _, p, noise = noisy(3, device=device)
    ids = race(p, noise)[:, :-1]

    assert (verify_coupled(ids, None, p, noise=noise).num_accepted == 4).all()


def test_a_token_of_probability_zero_never_wins(device):
    """Not even without any noise."""
    p = torch.tensor([0.0, 0.5, 0.0, 0.5], device=device).expand(500, 4)
    noise = race_noise((500, 4), device=device, generator=seeded(4, device))
    noise[:, [0, 2]] = 0

    assert set(race(p, noise).tolist()) == {1, 3}


def test_the_scale_of_the_weights_does_not_matter(device):
    _, _, p, noise = noisy(5, device=device)

    assert torch.equal(race(p, noise), race(p / 1024, noise))


def test_the_winner_is_the_token_with_the_least_noise_per_probability():
    p = torch.tensor([[0.5, 0.25, 0.25]])
    noise = torch.tensor([[1.0, 0.6, 0.4], [1.0, 0.6, 0.6], [1.1, 0.5, 0.6]])

    assert race(p.expand(3, 3), noise).tolist() == [2, 0, 1]


def tails_fit(probs, device="cpu"):
    """P-value of the noise between 0, ln 2, 2 ln 2, 3 ln 2 and beyond."""
    noise = race_noise((STEPS,), device=device, generator=seeded(6, device))
    cells = (noise / math.log(2)).long().clamp_max(3)
    return goodness_of_fit(
        cells.bincount(minlength=4).cpu(), probs, level=LEVEL
    ).p_value


def test_noise_is_standard_exponential(device):
    assert tails_fit([0.5, 0.25, 0.125, 0.125], device) >= LEVEL


def test_noise_with_other_tails_is_told_apart():
    assert tails_fit([0.48, 0.27, 0.125, 0.125]) < LEVEL


def test_noise_is_positive_and_in_float64(device):
    noise = race_noise((STEPS,), device=device, generator=seeded(6, device))

    assert noise.dtype == torch.float64
    assert (noise > 0).all()


# --- forms of the input ---------------------------------------------------------------


def test_a_race_is_run_in_float64_in_every_dtype(device):
    _, _, p, noise = noisy(7, device=device)
    half = p.half()

    assert torch.equal(race(half, noise), race(half.double(), noise))


def test_a_ragged_row_gives_what_the_shorter_row_gives_alone(device):
    ids, q, p, noise = noisy(8, batch=7, device=device)
    lengths = torch.tensor(LENGTHS, device=device)
    ragged = verify_coupled(ids, q, p, noise=noise, num_draft_tokens=lengths)

    for row, k in enumerate(LENGTHS):
        part = slice(row, row + 1)
        alone = verify_coupled(
            ids[part, :k], q[part, :k], p[part, : k + 1], noise=noise[part, : k + 1]
        ).output_token_ids
        assert torch.equal(ragged.output_token_ids[row, : k + 1], alone[0])
        assert (ragged.output_token_ids[row, k + 1 :] == -1).all()


@pytest.mark.parametrize("padding", PADDINGS, ids=str)
def test_what_stands_behind_the_drafts_of_a_ragged_row_is_ignored(padding, device):
    ids, q, p, noise = noisy(9, batch=7, device=device)
    step = ids, q, p, noise
    lengths = torch.tensor(LENGTHS, device=device)
    clean, other = (
        verify_coupled(*call, noise=noise, num_draft_tokens=lengths)
        for *call, _ in (step, padded(step, **padding))
    )

    assert same(clean, other)


# --- side effects and errors ----------------------------------------------------------


def test_inputs_are_left_bitwise_unchanged(device):
    step = noisy(10, device=device)
    before = [x.clone() for x in step]
    verify_coupled(*step[:3], noise=step[3])

    assert same(before, step)


def test_a_given_generator_is_the_only_one_that_advances(device):
    step = noisy(11, device=device)[:3]
    generator = seeded(0, device)
    before = generator.get_state(), global_state(device)
    verify_coupled(*step, generator=generator)

    assert not torch.equal(generator.get_state(), before[0])
    assert torch.equal(global_state(device), before[1])


@pytest.mark.parametrize(("second", "equal"), [(13, True), (14, False)])
def test_the_output_is_a_function_of_the_generator_state(second, equal, device):
    step = noisy(13, device=device)[:3]
    first, again = (
        verify_coupled(*step, generator=seeded(seed, device)) for seed in (13, second)
    )

    assert same(first, again) == equal


def test_given_noise_leaves_every_generator_alone(device):
    *step, noise = noisy(12, device=device)
    generator = seeded(0, device)
    before = generator.get_state(), global_state(device)
    verify_coupled(*step, noise=noise, generator=generator)

    assert same(before, (generator.get_state(), global_state(device)))


@pytest.mark.parametrize("device", ["cuda"], indirect=True)
def test_the_host_never_waits_for_the_device(device):
    ids, q, p, _ = random_chain(15, device=device)
    lengths = torch.tensor(LENGTHS, device=device)
    generator = seeded(0, device)
    torch.cuda.set_sync_debug_mode("error")
    try:
        verify_coupled(ids, q, p, generator=generator, num_draft_tokens=lengths)
    finally:
        torch.cuda.set_sync_debug_mode("default")


NOISE_ERRORS = [
    ("noise", [1.0], TypeError, r"is a list; .* \[batch, k \+ 1, vocab\]"),
    ("noise", torch.ones(2, 3), ValueError, r"shape \[2, 3\]; .* k \+ 1, vocab"),
    ("noise", torch.ones(2, 2, 4), ValueError, r"\[2, 2, 4\]; .* \[2, 3, 4\]"),
    ("noise", torch.ones(2, 3, 4).to("meta"), ValueError, "meta; .* target_probs, cpu"),
]


@pytest.mark.parametrize(
    ("name", "value", "error", "says"), [*CHAIN_ERRORS, *Q_ERRORS, *NOISE_ERRORS]
)
def test_a_bad_argument_is_refused_by_name_with_found_and_allowed(
    name, value, error, says
):
    first = "draft_token_ids" if "drawn from" in says else name
    with pytest.raises(error, match=f"^{first}.*{says}"):
        verify_coupled(**chain_call(**{name: value}))


def test_values_are_not_looked_at_where_validation_is_off():
    bad = chain_call(target_probs=torch.full((2, 3, 4), float("nan")))

    assert verify_coupled(**bad, validate=False).num_accepted.shape == (2,)
