# SPDX-License-Identifier: Apache-2.0
"""How large vocabularies are cut into few cells."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specverify.statistics.partitions import (
    id_blocks,
    id_tiles,
    rank_bins,
    ratio_bins,
    totals,
)

REPEATABLE = settings(max_examples=200, derandomize=True, deadline=None, database=None)


@st.composite
def laws(draw):
    """Target and draft law over up to 40 tokens; each may be zero anywhere."""
    vocab = draw(st.integers(1, 40))
    weights = st.lists(st.integers(0, 20), min_size=vocab, max_size=vocab).filter(any)
    p, q = (np.array(draw(weights), dtype=float) for _ in range(2))
    return p / p.sum(), q / q.sum()


bins = st.integers(1, 20)


# --- ratio bins -----------------------------------------------------------------------


@REPEATABLE
@given(pair=laws(), bins=bins)
def test_ratio_bins_are_numbered_from_zero_without_gaps(pair, bins):
    cells = ratio_bins(*pair, bins)

    assert cells.dtype == np.int64
    assert set(cells) == set(range(cells.max() + 1))


@REPEATABLE
@given(pair=laws(), bins=bins)
def test_there_are_at_most_as_many_ratio_bins_as_asked_for_and_one(pair, bins):
    """The one is for tokens that the target excludes."""
    p, q = pair
    cells = ratio_bins(p, q, bins)

    assert len(set(cells[p > 0])) <= bins
    assert len(set(cells[p == 0])) <= 1


@REPEATABLE
@given(pair=laws(), bins=bins)
def test_excluded_tokens_have_the_last_cell_to_themselves(pair, bins):
    p, q = pair
    cells = ratio_bins(p, q, bins)

    if (p == 0).any():
        assert cells[p == 0].min() == cells.max() > cells[p > 0].max()


@REPEATABLE
@given(pair=laws(), bins=bins)
def test_ratio_bins_follow_the_ratio_of_draft_to_target(pair, bins):
    p, q = pair
    possible = p > 0
    order = np.argsort(q[possible] / p[possible], kind="stable")

    assert (np.diff(ratio_bins(p, q, bins)[possible][order]) >= 0).all()


@REPEATABLE
@given(pair=laws(), bins=bins)
def test_a_ratio_bin_holds_an_equal_share_and_at_most_one_token_more(pair, bins):
    """Before its last token a cell holds less than 1/bins of the target."""
    p, q = pair
    cells = ratio_bins(p, q, bins)

    for cell in set(cells[p > 0]):
        inside = p[cells == cell]
        assert inside.sum() - inside.max() <= 1 / bins + 1e-12


def test_an_even_target_is_cut_into_cells_of_equal_mass():
    p = np.full(64, 1 / 64)
    cells = ratio_bins(p, np.random.default_rng(0).permutation(p.cumsum()), bins=16)

    assert np.bincount(cells).tolist() == [4] * 16


def test_blocks_of_ids_do_not_follow_the_ratio():
    """So the claim about the order can fail."""
    p, q = np.full(8, 1 / 8), np.arange(8)[::-1] / 28

    cells = id_blocks(p, size=2)[np.argsort(q / p)]
    assert not (np.diff(cells) >= 0).all()


def test_a_token_that_both_laws_exclude_is_no_error():
    cells = ratio_bins(np.array([0.5, 0.5, 0]), np.array([0.2, 0.8, 0]), bins=2)

    assert cells.tolist() == [0, 1, 2]


def test_masses_as_small_as_float64_has_them_are_no_error():
    """Their ratio overflows, which is a large ratio and no warning."""
    cells = ratio_bins(np.array([1.0, 1e-310]), np.array([0.5, 0.5]), bins=2)

    assert cells.tolist() == [0, 1]


# --- blocks ---------------------------------------------------------------------------


@pytest.mark.parametrize(("vocab", "blocks"), [(1, 1), (128, 1), (129, 2), (1000, 8)])
def test_blocks_hold_128_tokens_and_the_last_one_the_rest(vocab, blocks):
    cells = id_blocks(np.full(vocab, 1 / vocab))

    assert np.bincount(cells).tolist() == [128] * (blocks - 1) + [
        vocab - 128 * (blocks - 1)
    ]


def test_blocks_are_consecutive():
    assert id_blocks(np.full(7, 1 / 7), size=3).tolist() == [0, 0, 0, 1, 1, 1, 2]


# --- tiles ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("vocab", "size"),
    [(1, 2), (64, 2), (128, 2), (129, 4), (1000, 16), (128_256, 2048)],
)
def test_tiles_are_the_smallest_powers_of_two_that_are_few_enough(vocab, size):
    cells = id_tiles(np.full(vocab, 1 / vocab))

    assert np.array_equal(cells, np.arange(vocab) // size)


@pytest.mark.parametrize("most", [1, 3, 64])
@pytest.mark.parametrize("vocab", [1, 5, 64, 65, 4097])
def test_there_are_at_most_as_many_tiles_as_asked_for(vocab, most):
    assert id_tiles(np.full(vocab, 1 / vocab), most=most).max() < most


# --- ranks ----------------------------------------------------------------------------


@REPEATABLE
@given(pair=laws(), deepest=st.integers(1, 12))
def test_rank_bins_are_numbered_from_zero_without_gaps(pair, deepest):
    cells = rank_bins(pair[0], deepest)

    assert cells.dtype == np.int64
    assert set(cells) == set(range(cells.max() + 1))
    assert cells.max() <= deepest


@REPEATABLE
@given(pair=laws())
def test_likelier_tokens_never_have_a_later_rank_bin(pair):
    p = pair[0]
    order = np.argsort(-p, kind="stable")

    assert (np.diff(rank_bins(p)[order]) >= 0).all()


@REPEATABLE
@given(pair=laws())
def test_the_tokens_of_a_rank_bin_start_within_one_halving_of_the_tail(pair):
    p = pair[0]
    cells = rank_bins(p, deepest=60)
    order = np.argsort(-p, kind="stable")
    tail = p[order][::-1].cumsum()[::-1]  # mass of a token and all behind it

    for cell in set(cells):
        inside = tail[cells[order] == cell]
        assert inside[-1] >= inside[0] / 2 - 1e-9 or inside[-1] < 1e-9


def test_halving_masses_have_a_rank_bin_each_up_to_the_deepest():
    p = 2.0 ** -np.arange(1, 21)
    p[-1] *= 2

    assert rank_bins(p, deepest=11).tolist() == [*range(11), *[11] * 9]


def test_rank_bins_do_not_depend_on_the_order_of_the_tokens():
    p = np.array([0.4, 0.25, 0.2, 0.1, 0.05])
    order = np.random.default_rng(0).permutation(5)

    assert np.array_equal(rank_bins(p[order]), rank_bins(p)[order])


def test_excluded_tokens_have_the_deepest_rank_bin():
    assert rank_bins(np.array([0.5, 0.0, 0.5, 0.0])).tolist() == [0, 2, 1, 2]


# --- totals ---------------------------------------------------------------------------


@REPEATABLE
@given(pair=laws(), bins=bins)
def test_totals_keep_the_mass(pair, bins):
    p, q = pair

    assert totals(ratio_bins(p, q, bins), p).sum() == pytest.approx(1, rel=1e-12)


def test_totals_sum_the_weights_of_each_cell():
    found = totals(np.array([0, 2, 0, 1]), np.array([1.0, 2, 3, 4]))

    assert found.tolist() == [4, 4, 2]
    assert found.dtype == np.float64


def test_totals_of_whole_numbers_are_floats():
    assert totals(np.array([0, 0]), np.array([1, 2])).dtype == np.float64
