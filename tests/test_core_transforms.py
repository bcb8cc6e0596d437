# SPDX-License-Identifier: Apache-2.0
"""Logits to probabilities: temperature, top-k, top-p and min-p."""

import itertools
import math
from collections import Counter
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specverify.core.chain import verify_chain
from specverify.core.transforms import (
    apply_min_p,
    apply_temperature,
    apply_top_k,
    apply_top_p,
    token_probs,
)
from specverify.inputs import WITNESSES
from specverify.inputs.strategies import distributions
from specverify.laws.distributions import accept_probability, emitted_law, residual
from specverify.laws.sampling import token_law

REPEATABLE = settings(max_examples=200, derandomize=True, deadline=None, database=None)
VOCAB = 6
INF = math.inf
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
PRIME = 1009

rows = distributions(VOCAB)
#: No sum of probabilities of a drawn row has this denominator: no limit is met exactly,
#: so that rounding decides nothing.
inside = st.integers(1, PRIME - 1).map(lambda i: Fraction(i, PRIME))
some_settings = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0, 0.5, 0.7, 1, 2]),
        "top_k": st.integers(0, VOCAB + 1),
        "top_p": st.one_of(inside, st.just(1)),
        "min_p": st.one_of(inside, st.sampled_from([0, 1])),
    }
)


def logits_of(p, device="cpu"):
    """Logits whose softmax is p."""
    logs = [math.log(x) if x else -INF for x in p]
    return torch.tensor(logs, dtype=torch.float64, device=device)


def floats(options):
    """Settings as a caller has them."""
    return {name: value if name == "top_k" else float(value) for name, value in options}


def random_logits(shape, seed=0, device="cpu", dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=dtype).to(device)


# --- the law --------------------------------------------------------------------------


@REPEATABLE
@given(p=rows, options=some_settings)
def test_probabilities_are_those_of_the_law(p, options):
    got = token_probs(logits_of(p), **floats(options.items())).tolist()
    expected = [float(x) for x in token_law(p, **options)]

    assert [x > 0 for x in got] == [x > 0 for x in expected]
    assert got == pytest.approx(expected, abs=1e-12, rel=0)


def test_probabilities_are_those_of_the_law_on_the_device(device):
    p = WITNESSES["W"].target(())
    options = {"temperature": 0.7, "top_k": 3, "top_p": 0.9, "min_p": 0.2}
    got = token_probs(logits_of(p, device), **options).tolist()

    assert got == pytest.approx(token_law(p, **options), abs=1e-12, rel=0)


@REPEATABLE
@given(p=rows, options=some_settings)
def test_equal_logits_stay_equal_or_the_higher_id_goes(p, options):
    got = token_probs(logits_of(p), **floats(options.items())).tolist()

    for low, high in itertools.combinations(range(VOCAB), 2):
        if p[low] == p[high]:
            assert got[high] in {got[low], 0}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_without_settings_it_is_the_softmax_in_float64(dtype, device):
    logits = random_logits((5, 7), device=device).to(dtype)
    out = torch.float64 if dtype == torch.float64 else torch.float32

    assert torch.equal(token_probs(logits), logits.double().softmax(-1).to(out))


@pytest.mark.parametrize("shape", [(9,), (4, 9), (2, 3, 9), (0, 9)])
def test_any_leading_shape_will_do(shape, device):
    logits = random_logits(shape, device=device)
    got = token_probs(logits, temperature=0.5, top_k=4, top_p=0.8, min_p=0.1)

    assert got.shape == shape
    assert torch.allclose(got.sum(-1), torch.ones(shape[:-1], device=device).double())


# --- each step ------------------------------------------------------------------------


def kept(masked):
    return (masked > -INF).tolist()


@pytest.mark.parametrize("top_k", range(1, 8))
def test_top_k_keeps_exactly_k_of_equal_tokens_with_the_lowest_ids(top_k, device):
    masked = apply_top_k(torch.zeros(7, device=device), top_k)

    assert kept(masked) == [token < top_k for token in range(7)]


def test_equals_go_by_id_in_a_large_vocabulary_too(device):
    """Where a sort that is not stable would shuffle them."""
    logits = torch.zeros(2, 50_000, device=device)
    first = torch.arange(50_000, device=device) < 20_000

    assert torch.equal(apply_top_k(logits, 20_000)[1] == 0, first)
    assert torch.equal(apply_top_p(logits, 0.4 - 1e-6)[1] == 0, first)


@pytest.mark.parametrize("top_k", [0, 7, 100])
def test_top_k_of_zero_or_beyond_the_vocabulary_keeps_everything(top_k, device):
    logits = random_logits((3, 7), device=device)

    assert torch.equal(apply_top_k(logits, top_k), logits)


def test_top_k_does_not_bring_back_an_excluded_token():
    logits = torch.tensor([-INF, 1.0, -INF, 0.0])

    assert kept(apply_top_k(logits, 3)) == [False, True, False, True]


@pytest.mark.parametrize(
    ("top_p", "size"), [(5e-324, 1), (0.25, 1), (0.26, 2), (0.5, 2), (0.75, 3), (1, 4)]
)
def test_top_p_that_is_reached_exactly_takes_no_further_token(top_p, size, device):
    """Four equal tokens: their sums are exact in binary."""
    masked = apply_top_p(torch.zeros(4, device=device), top_p)

    assert kept(masked) == [token < size for token in range(4)]


@pytest.mark.parametrize("vocab", [7, 1000, 131_072])
def test_top_p_of_one_keeps_everything_whatever_the_rounding_of_sums(vocab, device):
    logits = 5 * random_logits((2, vocab), device=device)

    assert torch.equal(apply_top_p(logits, 1.0), logits)


@pytest.mark.parametrize(
    ("min_p", "expected"),
    [(0, [1, 1, 1, 0]), (0.3, [1, 0, 1, 0]), (1, [1, 0, 1, 0])],
)
def test_min_p_measures_by_the_most_likely_token(min_p, expected, device):
    logits = torch.tensor([2.0, 0.5, 2.0, -INF], device=device)

    assert kept(apply_min_p(logits, min_p)) == [bool(x) for x in expected]


def test_temperature_zero_is_one_hot_at_the_first_of_the_largest(device):
    logits = torch.tensor([[1.0, 3.0, 3.0], [5.0, -INF, 5.0]], device=device)

    got = token_probs(logits, temperature=0).tolist()
    assert got == [[0, 1, 0], [1, 0, 0]]


@pytest.mark.parametrize("temperature", [5e-324, 1e-300, 1e-3, 1e300])
@pytest.mark.parametrize("scale", [1.0, 1e4, 1e300])
def test_extreme_temperatures_and_logits_give_distributions(temperature, scale, device):
    logits = scale * torch.tensor([0.5, 1.0, -1.0], device=device).double()
    got = token_probs(logits, temperature=temperature)

    assert got.sum().item() == pytest.approx(1)
    assert got[1] == got.max()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("step", "value"), [(apply_top_k, 3), (apply_top_p, 0.5), (apply_min_p, 0.2)]
)
def test_a_cut_only_masks(step, value, dtype, device):
    """Dtype and the values of what is kept are left alone."""
    logits = random_logits((4, 8), device=device).to(dtype)
    masked = step(logits, value)

    assert masked.dtype == dtype
    assert torch.equal(torch.where(masked > -INF, masked, logits), logits)
    assert (masked == -INF).any()


def test_temperature_gives_float64_with_the_largest_at_zero(device):
    scaled = apply_temperature(torch.tensor([1.0, 3.0], device=device).half(), 2)

    assert scaled.dtype == torch.float64
    assert scaled.tolist() == [-1, 0]


# --- twice ----------------------------------------------------------------------------


@REPEATABLE
@given(p=rows, top_k=st.integers(0, VOCAB + 1), min_p=st.one_of(inside, st.just(1)))
def test_top_k_and_min_p_twice_are_once(p, top_k, min_p):
    """L10a, to the last bit."""
    logits = logits_of(p)
    once = apply_top_k(logits, top_k), apply_min_p(logits, float(min_p))

    assert torch.equal(apply_top_k(once[0], top_k), once[0])
    assert torch.equal(apply_min_p(once[1], float(min_p)), once[1])


def test_top_p_twice_is_not_once(device):
    logits = logits_of([0.4, 0.35, 0.25], device)
    once = apply_top_p(logits, 0.5)

    assert kept(once) == [True, True, False]
    assert kept(apply_top_p(once, 0.5)) == [True, False, False]


# --- batches of mixed requests --------------------------------------------------------

MIXED = {
    "temperature": [0.0, 1.0, 0.5, 2.0],
    "top_k": [0, 3, 2, 0],
    "top_p": [1.0, 0.6, 1.0, 0.9],
    "min_p": [0.0, 0.0, 0.3, 0.1],
}


def mixed(device):
    return {name: torch.tensor(x, device=device) for name, x in MIXED.items()}


def test_settings_for_each_row_give_what_the_rows_give_alone(device):
    logits = random_logits((4, 8), device=device)
    together = token_probs(logits, **mixed(device))

    for row in range(4):
        alone = {name: x[row] for name, x in mixed(device).items()}
        assert torch.equal(token_probs(logits[row], **alone), together[row])


def test_one_setting_for_each_request_holds_at_all_its_positions(device):
    logits = random_logits((4, 3, 8), device=device)
    columns = {name: x.unsqueeze(1) for name, x in mixed(device).items()}
    together = token_probs(logits, **columns)

    for position in range(3):
        alone = token_probs(logits[:, position], **mixed(device))
        assert torch.equal(alone, together[:, position])


def test_numbers_give_what_tensors_of_them_give(device):
    logits = random_logits((2, 8), device=device)
    numbers = {"temperature": 0.5, "top_k": 5, "top_p": 0.75, "min_p": 0.25}
    tensors = {
        name: torch.full((2,), value, device=device) for name, value in numbers.items()
    }

    assert torch.equal(token_probs(logits, **numbers), token_probs(logits, **tensors))


# --- verification ---------------------------------------------------------------------

W = WITNESSES["W"]
P, Q = W.target(()), W.draft(())
CUTS = {
    "none": {},
    "top-k": {"top_k": 2},
    "top-p": {"top_p": Fraction(3, 5)},
    "min-p": {"min_p": Fraction(1, 2)},
    "all": {"top_k": 3, "top_p": Fraction(9, 10), "min_p": Fraction(2, 5)},
}


def midpoints(cells):
    return (torch.arange(cells, dtype=torch.float64) + 0.5) / cells


def emitted(of_p, of_q, device):
    """Law of the first token of `verify_chain` on transformed W, exactly.

    The middle of a cell of uniforms stands for all of it: rounding moves none across.
    """
    p, q = token_law(P, **of_p), token_law(Q, **of_q)
    rows = (
        token_probs(logits_of(row, device), **floats(options.items()))
        for row, options in ((P, of_p), (Q, of_q))
    )
    target, draft = rows
    draws = math.lcm(*(mass.denominator for mass in residual(p, q)))
    law = Counter()
    for token in range(len(q)):
        if not q[token]:
            continue
        tests = accept_probability(p[token], q[token]).denominator
        uniforms = torch.cartesian_prod(midpoints(tests), midpoints(draws)).to(device)
        batch = len(uniforms)
        ids, _ = verify_chain(
            torch.full((batch, 1), token, device=device),
            draft.expand(batch, 1, -1),
            target.expand(batch, 2, -1),
            uniforms=uniforms,
        )
        for first, count in Counter(ids[:, 0].tolist()).items():
            law[first] += q[token] * Fraction(count, batch)
    return [law[token] for token in range(len(p))]


@pytest.mark.parametrize("of_p", CUTS)
@pytest.mark.parametrize("of_q", CUTS)
def test_verification_emits_the_transformed_target_exactly(of_p, of_q, device):
    """Whatever was done to the draft: nothing, the same, or something else."""
    assert emitted(CUTS[of_p], CUTS[of_q], device) == token_law(P, **CUTS[of_p])


def test_a_draft_drawn_from_a_cut_law_and_verified_with_the_raw_one_is_lossy():
    """So the claim needs the q that the draft was really drawn from."""
    accept = [accept_probability(a, b) for a, b in zip(P, Q, strict=True)]

    law = emitted_law(token_law(Q, top_k=2), accept, residual(P, Q))
    assert law != list(P)


# --- side effects ---------------------------------------------------------------------


def test_inputs_are_left_bitwise_unchanged(device):
    logits, options = random_logits((4, 8), device=device), mixed(device)
    before = [x.clone() for x in (logits, *options.values())]
    token_probs(logits, **options)

    assert all(map(torch.equal, (logits, *options.values()), before))


@pytest.mark.parametrize("device", ["cuda"], indirect=True)
def test_the_host_never_waits_for_the_device(device):
    logits, options = random_logits((4, 8), device=device), mixed(device)
    torch.cuda.set_sync_debug_mode("error")
    try:
        token_probs(logits, **options)
        token_probs(logits, temperature=0.5, top_k=3, top_p=0.5, min_p=0.1)
    finally:
        torch.cuda.set_sync_debug_mode("default")


# --- errors ---------------------------------------------------------------------------

LOGITS = torch.zeros(2, 4)
NUMBERS = [
    ("temperature", -0.5, "finite numbers of 0 or more"),
    ("temperature", INF, "finite numbers of 0 or more"),
    ("temperature", math.nan, "finite numbers of 0 or more"),
    ("top_k", -1, "whole numbers of 0 or more"),
    ("top_p", 0.0, r"numbers above 0 and up to 1"),
    ("top_p", 1.5, r"numbers above 0 and up to 1"),
    ("top_p", math.nan, r"numbers above 0 and up to 1"),
    ("min_p", -0.25, "numbers from 0 to 1"),
    ("min_p", 1.5, "numbers from 0 to 1"),
]


@pytest.mark.parametrize(("name", "value", "allowed"), NUMBERS)
def test_a_number_out_of_range_is_refused_even_without_validation(name, value, allowed):
    with pytest.raises(ValueError, match=f"^{name} is {value}; allowed are {allowed}"):
        token_probs(LOGITS, **{name: value}, validate=False)


@pytest.mark.parametrize(("name", "value", "allowed"), NUMBERS)
def test_a_bad_entry_of_a_tensor_is_refused_by_its_place(name, value, allowed):
    spoilt = torch.tensor([1, value])

    with pytest.raises(ValueError, match=rf"^{name}\[1\] is {value}; .* {allowed}"):
        token_probs(LOGITS, **{name: spoilt})


@pytest.mark.parametrize(("name", "value", "allowed"), NUMBERS)
def test_entries_of_tensors_are_not_looked_at_where_validation_is_off(
    name, value, allowed
):
    spoilt = torch.tensor([1, value])

    assert token_probs(LOGITS, **{name: spoilt}, validate=False).shape == (2, 4)


@pytest.mark.parametrize(
    ("row", "found"),
    [
        ([0, math.nan, 0, 0], "NaN or .inf"),
        ([0, INF, 0, 0], "NaN or .inf"),
        ([-INF] * 4, "nothing but -inf"),
    ],
)
def test_a_row_without_a_softmax_is_refused(row, found):
    logits = torch.stack([LOGITS[0], torch.tensor(row)])

    with pytest.raises(ValueError, match=rf"^logits\[1\] holds {found}; allowed are"):
        token_probs(logits)
    assert token_probs(logits, validate=False).shape == (2, 4)


def test_a_single_bad_row_is_named_without_a_place():
    with pytest.raises(ValueError, match=r"^logits holds NaN or \+inf; allowed are"):
        token_probs(torch.tensor([0.0, math.nan]))


@pytest.mark.parametrize(
    ("options", "pattern"),
    [
        ({"logits": [0.0]}, r"^logits is a list; it must be a torch.Tensor"),
        ({"logits": LOGITS.long()}, r"^logits has dtype torch.int64; allowed are .*32"),
        ({"top_k": 1.5}, r"^top_k is a float; allowed are whole numbers"),
        (
            {"top_k": torch.ones(2)},
            r"^top_k has dtype torch.float32; .* integer dtypes",
        ),
    ],
)
def test_a_wrong_type_is_refused_by_name(options, pattern):
    with pytest.raises(TypeError, match=pattern):
        token_probs(**{"logits": LOGITS, **options}, validate=False)


@pytest.mark.parametrize(
    ("options", "pattern"),
    [
        ({"logits": torch.tensor(0.0)}, r"^logits has shape \[\]; .* \[..., vocab\]"),
        ({"logits": torch.zeros(2, 0)}, r"^logits has shape \[2, 0\]; .* one token"),
        ({"top_p": torch.ones(3)}, r"^top_p has shape \[3\]; .* rows of logits, \[2\]"),
        ({"min_p": torch.ones(1, 2)}, r"^min_p has shape \[1, 2\]; .* logits, \[2\]"),
        (
            {"temperature": torch.ones(2, device="meta")},
            r"^temperature is on meta; .* device of logits, cpu",
        ),
    ],
)
def test_a_wrong_shape_or_device_is_refused_by_name(options, pattern):
    with pytest.raises(ValueError, match=pattern):
        token_probs(**{"logits": LOGITS, **options}, validate=False)
