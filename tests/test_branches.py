# SPDX-License-Identifier: Apache-2.0
"""The search for the branches of running code, on code whose law is known."""

import pytest
import torch
from branches import LARGEST_UNIFORM, ROUNDING, exact_law, farthest

from specverify.core import inverse_cdf

WEIGHTS = torch.tensor(
    [[0.1, 0.0, 0.6, 0.3], [0.7, 0.3, 0.0, 0.0]], dtype=torch.float64
)


def one_draw(rows, uniforms):
    return inverse_cdf(WEIGHTS[rows], uniforms[:, 0]).unsqueeze(1)


def two_draws(rows, uniforms):
    """The second is made only behind a first token in the middle."""
    first = one_draw(rows, uniforms)
    second = inverse_cdf(WEIGHTS[rows], uniforms[:, 1]).unsqueeze(1)
    return torch.cat([first, torch.where(first == 2, second, -1)], dim=1)


def test_a_draw_has_the_law_of_its_weights():
    law = exact_law([0.25, 0.75], one_draw, 1)
    stated = dict(enumerate((WEIGHTS * torch.tensor([[0.25], [0.75]])).sum(0).tolist()))

    assert farthest(law, {(x,): mass for x, mass in stated.items()}) <= ROUNDING


@pytest.mark.parametrize("threshold", [2.0**-40, 1e-9, 0.3, 1 - 1e-9, LARGEST_UNIFORM])
def test_the_threshold_of_a_test_is_found_wherever_it_lies(threshold):
    def passes(rows, uniforms):
        return (uniforms < threshold).long()

    law = exact_law([1.0], passes, 1)
    assert farthest(law, {(1,): threshold, (0,): 1 - threshold}) <= ROUNDING


def test_a_test_that_only_some_see_is_found():
    """The second counts where the first fails."""

    def passes(rows, uniforms):
        first, second = (uniforms < torch.tensor([0.25, 0.5])).long().T
        return torch.where(first > 0, 2, second).unsqueeze(1)

    law = exact_law([1.0], passes, 2)
    assert farthest(law, {(2,): 0.25, (1,): 0.375, (0,): 0.375}) <= ROUNDING


def test_a_second_draw_in_the_middle_takes_a_second_round():
    stated = {(0, -1): 0.1, (3, -1): 0.3}
    stated |= {(2, x): 0.6 * mass for x, mass in ((0, 0.1), (2, 0.6), (3, 0.3))}

    assert farthest(exact_law([1.0], two_draws, 2, rounds=2), stated) <= ROUNDING
    assert farthest(exact_law([1.0], two_draws, 2, rounds=1), stated) > 0.01


def test_the_search_calls_a_law_that_is_off_by_a_millionth_another_one():
    law = exact_law([1.0], lambda rows, u: (u < 0.5).long(), 1)

    assert farthest(law, {(1,): 0.500001, (0,): 0.499999}) > ROUNDING
