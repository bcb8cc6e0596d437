# SPDX-License-Identifier: Apache-2.0
"""Draws by inverse distribution function, and the law of the recovered token."""

from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specverify.core import draw_uniforms, inverse_cdf, residual_weights
from specverify.inputs.strategies import distribution_pairs
from specverify.laws.distributions import acceptance, residual
from specverify.statistics.chisquare import goodness_of_fit

ONE_BELOW = 1 - 2**-53
REPEATABLE = settings(max_examples=200, derandomize=True, deadline=None, database=None)
counts = st.lists(st.integers(0, 9), min_size=1, max_size=12).filter(any)
floats = st.one_of(st.just(0.0), st.floats(0, 1e300), st.floats(0, 1e-300))
float_rows = st.lists(floats, min_size=1, max_size=12).filter(any)


def draw(weights, uniforms, device="cpu", sampler=inverse_cdf):
    """Indices that one row of weights gives at each of the uniforms."""
    table = torch.tensor(weights, dtype=torch.float64, device=device)
    u = torch.tensor(uniforms, dtype=torch.float64, device=device)
    return sampler(table.expand(len(uniforms), -1), u).tolist()


def left_sided(weights, uniforms):
    """The usual mistake: the first index whose cumulative weight reaches u."""
    return torch.searchsorted(weights.cumsum(-1), uniforms.unsqueeze(-1)).squeeze(-1)


# --- inverse_cdf ----------------------------------------------------------------------


@REPEATABLE
@given(weights=counts)
def test_midpoints_give_each_index_exactly_its_weight(weights):
    total = sum(weights)
    drawn = draw(weights, [(i + 0.5) / total for i in range(total)])

    assert [drawn.count(index) for index in range(len(weights))] == weights


def test_midpoints_give_each_index_exactly_its_weight_on_the_device(device):
    drawn = draw([2, 0, 3, 1], [(i + 0.5) / 6 for i in range(6)], device)

    assert drawn == [0, 0, 2, 2, 2, 3]


@REPEATABLE
@given(weights=float_rows, u=st.floats(0, ONE_BELOW))
def test_an_index_of_weight_zero_is_never_drawn(weights, u):
    (index,) = draw(weights, [u])

    assert weights[index] > 0


@pytest.mark.parametrize(
    "weights", [[0, 1, 0], [0, 0, 5e-324, 0], [0, 1e300, 1e-300, 0], [0, 0.1, 0.2, 0]]
)
@pytest.mark.parametrize("u", [0.0, 2**-53, ONE_BELOW])
def test_the_ends_of_the_unit_interval_draw_no_index_of_weight_zero(weights, u, device):
    (index,) = draw(weights, [u], device)

    assert weights[index] > 0


def test_a_left_sided_search_does_draw_an_index_of_weight_zero():
    """So the claims above can fail."""
    assert draw([0, 1, 0], [0.0], sampler=left_sided) == [0]


@pytest.mark.parametrize(("u", "index"), [(0.25 - 2**-54, 0), (0.25, 1), (0.75, 2)])
def test_an_index_owns_its_interval_without_the_upper_end(u, index, device):
    assert draw([0.25, 0.5, 0.25], [u], device) == [index]


@REPEATABLE
@given(weights=counts, exponent=st.integers(-900, 900), u=st.floats(0, ONE_BELOW))
def test_scaling_by_a_power_of_two_changes_no_draw(weights, exponent, u):
    scaled = [weight * 2.0**exponent for weight in weights]

    assert draw(scaled, [u]) == draw(weights, [u])


@REPEATABLE
@given(weights=counts, scale=st.floats(1e-200, 1e200))
def test_scaling_by_anything_changes_no_law(weights, scale):
    total = sum(weights)
    middle = [(i + 0.5) / total for i in range(total)]

    assert draw([w * scale for w in weights], middle) == draw(weights, middle)


def test_rows_are_drawn_each_from_its_own_weights(device):
    weights = torch.eye(5, device=device).roll(2, dims=1)
    uniforms = torch.linspace(0, 0.9, 5, device=device)

    assert inverse_cdf(weights, uniforms).tolist() == [2, 3, 4, 0, 1]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_sums_are_taken_in_float64_whatever_the_dtype(dtype, device):
    """4096 ones, summed in half precision, would stop at 2048 or at 256."""
    weights = torch.ones(1, 4096, dtype=dtype, device=device)
    uniforms = torch.tensor([4095.5 / 4096], device=device)

    assert inverse_cdf(weights, uniforms).tolist() == [4095]


# --- draw_uniforms --------------------------------------------------------------------


def test_uniforms_have_more_than_the_24_bits_of_float32(device):
    u = draw_uniforms((64,), device=torch.device(device))

    assert u.dtype == torch.float64
    assert not torch.equal(u, u.float().double())


def test_uniforms_are_uniform(device):
    generator = torch.Generator(device).manual_seed(0)
    u = draw_uniforms((64_000,), device=torch.device(device), generator=generator)
    cells = (u * 64).long().bincount(minlength=64).cpu()

    assert goodness_of_fit(cells, [1 / 64] * 64, level=1e-9).p_value >= 1e-9


# --- residual_weights -----------------------------------------------------------------


def exact_residual(p, q):
    """The residual of Fractions, through tensors, exact where p and q are dyadic."""
    rows = (torch.tensor([[float(x) for x in row]]).double() for row in (p, q))
    return [Fraction(x) for x in residual_weights(*rows)[0].tolist()]


def dyadic(weights):
    """A row of sum 1 in multiples of 1/64: the weights, and what is left at the end."""
    return [*(Fraction(w, 64) for w in weights), Fraction(64 - sum(weights), 64)]


dyadics = st.lists(st.integers(0, 12), min_size=4, max_size=4).map(dyadic)


@REPEATABLE
@given(p=dyadics, q=dyadics)
def test_residual_weights_normalised_are_the_law_of_the_recovered_token(p, q):
    weights = exact_residual(p, q)

    assert [w / sum(weights) for w in weights] == residual(p, q)


@REPEATABLE
@given(p=dyadics, q=dyadics)
def test_residual_weights_sum_to_the_probability_of_a_rejection(p, q):
    """Left unnormalised, they keep the mass 1 - alpha; p itself stands where p = q."""
    lost = 1 - acceptance(p, q)

    assert sum(exact_residual(p, q)) == (lost or 1)


@REPEATABLE
@given(pair=distribution_pairs(5))
def test_residual_weights_are_zero_where_the_draft_has_enough(pair):
    p, q = pair
    weights = exact_residual(p, q)

    assert [w > 0 for w in weights] == [a > b for a, b in zip(p, q, strict=True)]


def test_residual_weights_of_equal_rows_are_the_target(device):
    row = torch.tensor([[0.3, 0.7]], device=device)

    assert torch.equal(residual_weights(row, row.clone()), row.double())


def test_a_draft_row_of_zeros_gives_the_target(device):
    row = torch.tensor([[0.3, 0.7]], device=device)

    assert torch.equal(residual_weights(row, torch.zeros_like(row)), row.double())


def test_rows_fall_back_one_by_one(device):
    p = torch.tensor([[0.25, 0.75], [0.25, 0.75]], device=device)
    q = torch.tensor([[0.25, 0.75], [0.75, 0.25]], device=device)

    assert residual_weights(p, q).tolist() == [[0.25, 0.75], [0.0, 0.5]]


def test_the_smallest_difference_of_half_precision_rows_is_kept(device):
    """In bfloat16 the difference 1 - (1 - 2^-8) is exact; in float64 it is too."""
    p = torch.tensor([[1.0, 0.0]], dtype=torch.bfloat16, device=device)
    q = torch.tensor([[1 - 2**-8, 2**-8]], dtype=torch.bfloat16, device=device)

    assert residual_weights(p, q).tolist() == [[2**-8, 0.0]]
