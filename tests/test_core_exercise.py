# SPDX-License-Identifier: Apache-2.0
"""The algorithm in the form of the tutorial: one sequence in, a list out."""

import itertools
import math
from collections import Counter
from fractions import Fraction

import pytest
import torch

from specverify.core import speculative_decode_step, speculative_verify
from specverify.inputs import ToyModel
from specverify.laws.chain import emissions
from specverify.laws.steps import output_law

VOCAB = 100


class Script:
    """Stands in for `torch.rand`, gives these numbers and counts how many."""

    def __init__(self, *numbers):
        self.numbers = numbers
        self.drawn = 0

    def __call__(self, *size, **options):
        assert size in [(1,), ((1,),)]
        self.drawn += 1
        return torch.tensor([self.numbers[self.drawn - 1]], dtype=torch.float64)


@pytest.fixture
def script(monkeypatch):
    """Replace torch.rand: ``script(0.5, 0.9)`` gives 0.5, then 0.9, then an error."""

    def write(*numbers):
        monkeypatch.setattr(torch, "rand", Script(*numbers))
        return torch.rand

    return write


def rows(masses, tokens, device="cpu"):
    """One row a position with the given mass on its token, the rest spread evenly."""
    table = torch.empty(len(masses), VOCAB, dtype=torch.float64, device=device)
    for position, (mass, token) in enumerate(zip(masses, tokens, strict=True)):
        table[position] = (1 - mass) / (VOCAB - 1)
        table[position, token] = mass
    return table


DRAFTS = [10, 20, 30, 40]
P, Q = [0.8, 0.4, 0.1, 0.5], [0.5, 0.5, 0.9, 0.5]


# --- the exercise ---------------------------------------------------------------------


def test_the_example_of_the_tutorial_gives_its_answer(script, device):
    """0.8 / 0.5 needs no draw; 0.5 < 0.4 / 0.5 accepts; 0.9 > 0.1 / 0.9 rejects."""
    script(0.5, 0.9)
    q, p = rows(Q, DRAFTS, device), rows(P, DRAFTS, device)

    assert speculative_verify(q, p, DRAFTS) == [10, 20]


def test_one_uniform_is_drawn_for_each_token_with_p_below_q(script):
    numbers = script(0.5, 0.9)
    speculative_verify(rows(Q, DRAFTS), rows(P, DRAFTS), DRAFTS)

    assert numbers.drawn == 2


def test_nothing_is_drawn_where_p_is_at_least_q(script):
    numbers = script()

    assert speculative_verify(rows(Q, DRAFTS), rows(Q, DRAFTS), DRAFTS) == DRAFTS
    assert numbers.drawn == 0


def test_nothing_is_drawn_behind_the_first_rejection(script):
    """The script ends there: a second draw would be an error."""
    script(0.9)

    assert speculative_verify(rows([0.9] * 4, DRAFTS), rows(P, DRAFTS), DRAFTS) == []


@pytest.mark.parametrize(
    ("u", "accepted"), [(0.0, [7]), (0.25 - 2**-53, [7]), (0.25, []), (0.75, [])]
)
def test_a_token_is_accepted_where_u_is_below_the_ratio(u, accepted, script):
    script(u)
    q, p = rows([0.5], [7]), rows([0.125], [7])

    assert speculative_verify(q, p, [7]) == accepted


def test_target_probability_zero_is_rejected_at_uniform_zero(script):
    script(0.0)

    assert speculative_verify(rows([0.5], [7]), rows([0.0], [7]), [7]) == []


def test_drafts_may_be_a_tensor(script):
    script(0.5, 0.9)
    drafts = torch.tensor(DRAFTS)

    accepted = speculative_verify(rows(Q, DRAFTS), rows(P, DRAFTS), drafts)
    assert accepted == [10, 20]
    assert {type(token) for token in accepted} == {int}


def test_no_drafts_give_an_empty_list():
    assert speculative_verify(rows([], []), rows([], []), []) == []


def test_rows_behind_the_drafts_are_ignored(script):
    script(0.5, 0.9)
    longer = torch.cat([rows(P, DRAFTS), torch.full((2, VOCAB), float("nan"))])

    assert speculative_verify(rows(Q, DRAFTS), longer, DRAFTS) == [10, 20]


@pytest.mark.parametrize(
    ("name", "value", "pattern"),
    [
        ("draft_probs", torch.ones(3, 100), r"\[3, 100\]; 4 draft .* least 4 rows"),
        ("target_probs", torch.ones(3, 100), r"\[3, 100\]; 4 draft .* least . rows"),
        ("draft_probs", torch.ones(100), r"\[100\]; .* \[4, vocab\]"),
        ("draft_tokens", [10, 20, 30, 100], "holds 100; allowed is 0 to 99"),
        ("draft_tokens", [10, -1, 30, 40], "holds -1; allowed is 0 to 99"),
        ("draft_probs", rows([math.nan] * 4, DRAFTS), "holds .* NaN .* 0 and more"),
        ("target_probs", rows([math.nan] * 5, [0] * 5), "holds .* NaN .* 0 and more"),
    ],
)
@pytest.mark.parametrize("function", [speculative_verify, speculative_decode_step])
def test_errors_name_argument_found_and_allowed(function, name, value, pattern):
    arguments = {
        "draft_probs": rows(Q, DRAFTS),
        "target_probs": rows([*P, 0.5], [*DRAFTS, 0]),
        "draft_tokens": DRAFTS,
    }
    with pytest.raises(ValueError, match=f"^{name} .*{pattern}"):
        function(**{**arguments, name: value})


# --- the whole step -------------------------------------------------------------------

# Thresholds in sixths and fifths: midpoints of 30 cells answer every draw exactly.
TARGET = ToyModel.from_positions([("1/8", "3/8", "1/2"), ("1/5", "2/5", "2/5")])
DRAFT = ToyModel.from_positions([("3/4", "1/8", "1/8")])


def law_of_step(step, script):
    """Law of what a step emits: each draft, each answer to its first two draws."""
    p = torch.tensor([[float(x) for x in row] for row in (TARGET(()), TARGET((0,)))])
    q = torch.tensor([[float(x) for x in DRAFT(())]])
    law = Counter()
    cells = [(i + 0.5) / 30 for i in range(30)]
    for token, u, v in itertools.product(range(3), cells, cells):
        script(u, v)
        emitted = step(q.double(), p.double(), [token])
        law[tuple(emitted)] += DRAFT(())[token] * Fraction(1, 900)
    return law


def test_scripted_uniforms_give_the_law_of_a_step_exactly(script):
    assert law_of_step(speculative_decode_step, script) == output_law(
        emissions, TARGET, DRAFT, 1
    )


def test_scripted_uniforms_refuse_a_step_that_recovers_from_p(script, monkeypatch):
    name = "specverify.core.exercise.residual_weights"
    monkeypatch.setattr(name, lambda target_row, draft_row: target_row)

    assert law_of_step(speculative_decode_step, script) != output_law(
        emissions, TARGET, DRAFT, 1
    )


@pytest.mark.parametrize(
    ("numbers", "emitted"),
    [((0.5, 0.9, 0.5), [10, 20]), ((0.5, 0.05, 0.999), [10, 20, 30, 40])],
)
def test_one_token_follows_the_accepted_prefix(numbers, emitted, script, device):
    script(*numbers)
    q, p = rows(Q, DRAFTS, device), rows([*P, 0.5], [*DRAFTS, 0], device)
    step = speculative_decode_step(q, p, DRAFTS)

    assert step[:-1] == emitted
    assert 0 <= step[-1] < VOCAB


def test_a_step_normalises_its_rows(script):
    """Weights in place of probabilities, on different scales, change nothing."""
    q, p = rows(Q, DRAFTS), rows([*P, 0.5], [*DRAFTS, 0])
    emitted = []
    for scale in (1, 4):
        script(0.5, 0.9, 0.25)
        emitted.append(speculative_decode_step(q * scale, p / scale, DRAFTS))

    assert emitted[0] == emitted[1]


def test_a_step_over_two_vocabularies_is_refused():
    with pytest.raises(
        ValueError, match=r"^draft_probs .*\[1, 2\]; .* vocabulary of 3"
    ):
        speculative_decode_step(torch.ones(1, 2), torch.ones(2, 3), [0])


def test_a_step_without_a_bonus_row_is_refused():
    with pytest.raises(
        ValueError, match=r"^target_probs .*\[4, 100\]; .* least 5 rows"
    ):
        speculative_decode_step(rows(Q, DRAFTS), rows(P, DRAFTS), DRAFTS)
