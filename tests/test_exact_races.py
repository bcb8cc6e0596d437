# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: PLW0108 - each call draws anew
"""Races of exponentials and Gumbel noise are draws in proportion to weights."""

import pytest
import torch
from following import GRID, distance, law_of, reason_of

from specverify.exact import races

P = torch.tensor([0.2, 0.3, 0.5])
LOG = P.log()
SQUARES = {0: 4 / 38, 1: 9 / 38, 2: 25 / 38}
DUE = {0: 0.2, 1: 0.3, 2: 0.5}
PAIRS = {(i, j): float(P[i] * P[j]) for i in range(3) for j in range(3)}


def exponentials(*shape, **options):
    return torch.empty(*(shape or (3,)), **options).exponential_()


def gumbel(small=0.0):
    return -torch.log(-torch.log(torch.rand(3) + small) + small)


def masked():
    scores = P / exponentials()
    return scores.masked_fill(torch.tensor([True, False, False]), 0).argmax()


def divided_in_place():
    return P.clone().div_(exponentials()).argmax(dim=-1)


def with_where():
    noise, weights = exponentials(dtype=torch.float64), torch.tensor([0.25, 0.0, 0.75])
    return torch.where(weights > 0, noise / weights, torch.inf).argmin(dim=-1)


FORMS = {
    "w / e": (lambda: (P / exponentials()).argmax(), DUE),
    "unnormalised": (lambda: (P * 7 / exponentials()).argmax(), DUE),
    "by name": (lambda: torch.argmax(input=P / exponentials(), dim=-1), DUE),
    "double": (
        lambda: (P.double() / exponentials(dtype=torch.float64)).argmax(),
        DUE,
    ),
    "another rate": (lambda: (P / torch.empty(3).exponential_(2.0)).argmax(), DUE),
    "in place": (divided_in_place, DUE),
    "e / w": (lambda: (exponentials() / P).argmin(), DUE),
    "e / w with where": (with_where, {0: 0.25, 2: 0.75}),
    "log w - log e": (lambda: (LOG - exponentials().log()).argmax(), DUE),
    "Gumbel": (lambda: (LOG + gumbel()).argmax(), DUE),
    "Gumbel, guarded": (lambda: (LOG + gumbel(1e-20)).argmax(), DUE),
    "torch's Gumbel": (
        lambda: (LOG + torch.distributions.Gumbel(0.0, 1.0).sample((3,))).argmax(),
        DUE,
    ),
    "torch's Exponential": (
        lambda: (P / torch.distributions.Exponential(1.0).sample((3,))).argmax(),
        DUE,
    ),
    "powers of uniforms": (lambda: (torch.rand(3) ** (1 / P)).argmax(), DUE),
    "uniforms": (lambda: torch.rand(3).argmax(), {0: 1 / 3, 1: 1 / 3, 2: 1 / 3}),
    "masked": (masked, {1: 0.375, 2: 0.625}),
    "masked logits": (
        lambda: (torch.tensor([0.5, 0.0, 0.5]).log() + gumbel()).argmax(),
        {0: 0.5, 2: 0.5},
    ),
    "temperature": (lambda: (2 * LOG + gumbel()).argmax(), SQUARES),
    "rows": (lambda: (P / exponentials(2, 3)).argmax(-1), PAIRS),
    "columns": (lambda: (P[:, None] / exponentials(3, 2)).argmax(0), PAIRS),
    "flattened": (lambda: (P[None] / exponentials(1, 3)).argmax(), DUE),
    "keepdim": (
        lambda: (P / exponentials(1, 3)).argmax(1, keepdim=True)[0, 0],
        DUE,
    ),
    "Categorical": (lambda: torch.distributions.Categorical(P).sample(), DUE),
    "Categorical of logits": (
        lambda: torch.distributions.Categorical(logits=LOG).sample(),
        DUE,
    ),
}


@pytest.mark.parametrize("name", FORMS)
def test_a_race_is_a_draw_in_proportion_to_its_weights(name):
    fn, due = FORMS[name]

    assert distance(law_of(fn), due) < GRID


def test_a_race_in_double_is_exact_to_rounding():
    weights = torch.tensor([1, 2, 5], dtype=torch.float64) / 8
    law = law_of(lambda: (weights / exponentials(dtype=torch.float64)).argmax())

    assert distance(law, {0: 0.125, 1: 0.25, 2: 0.625}) < 1e-14


def test_another_temperature_would_be_noticed():
    assert distance(law_of(lambda: (1.001 * LOG + gumbel()).argmax()), DUE) > GRID


# --- one noise, several races ---------------------------------------------------------


def test_the_same_race_on_the_same_noise_has_the_same_winner():
    def twice():
        noise = exponentials()
        return (P / noise).argmax(), (P / noise).argmax()

    assert distance(law_of(twice), {(i, i): float(P[i]) for i in range(3)}) < GRID


def test_rows_that_share_their_noise_have_the_same_winner():
    def expanded():
        return (P / exponentials(1, 3).expand(2, 3)).argmax(-1)

    assert distance(law_of(expanded), {(i, i): float(P[i]) for i in range(3)}) < GRID


def test_of_several_races_on_one_noise_one_may_be_read():
    def either():
        noise = exponentials()
        first, second = (P / noise).argmax(), (P.flip(0) / noise).argmax()
        return first if torch.rand(()) < 0.5 else second

    assert distance(law_of(either), {0: 0.35, 1: 0.3, 2: 0.35}) < GRID


def mirrored():
    noise = exponentials(2)
    return noise.argmin(), noise.flip(0).argmin()


def coupled():
    noise = exponentials()
    return (P / noise).argmax(), (P.flip(0) / noise).argmax()


def overlapping():
    noise = exponentials()
    return noise[:2].argmin(), noise[1:].argmin()


def compared_before():
    noise = exponentials()
    return noise[0] < 1, (P / noise).argmax()


def compared_behind():
    noise = exponentials()
    winner = (P / noise).argmax().item()
    return winner, noise[0] < 1


def with_a_constant():
    scores = P / exponentials()
    scores[0] = 1.0
    return scores.argmax()


def other_scale():
    """A draw in proportion to squares, in a form that is not recognised."""
    return (LOG + gumbel() / 2).argmax()


def halved():
    weights = torch.tensor([0.5, 0.5], dtype=torch.bfloat16)
    return (weights / exponentials(2, dtype=torch.bfloat16)).argmax()


REFUSED = {
    "two laws on one noise": (coupled, "two different races"),
    "mirrored": (mirrored, "two different races"),
    "overlapping": (overlapping, "two different races"),
    "noise compared before": (compared_before, "compared before"),
    "noise compared behind": (compared_behind, "used again"),
    "against a constant": (with_a_constant, "no known race"),
    "at another scale": (other_scale, "no known race"),
    "a large guard": (lambda: (LOG + gumbel(1e-3)).argmax(), "no known race"),
    "clamped noise": (
        lambda: (P / exponentials().clamp_min(0.5)).argmax(),
        "no known race",
    ),
    "bfloat16": (halved, "ties"),
    "topk": (lambda: (P / exponentials()).topk(1).indices, "topk of random"),
    "max": (lambda: (P / exponentials()).max(-1).indices, "max of random"),
    "softmax": (
        lambda: (LOG - exponentials().log()).softmax(-1).argmax(),
        "softmax of random",
    ),
    "gumbel_softmax": (
        lambda: torch.nn.functional.gumbel_softmax(LOG, hard=True).argmax(),
        "gumbel_softmax is not followed",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_known_race_is_refused_with_the_reason(name):
    fn, reason = REFUSED[name]

    assert reason in reason_of(fn)


def test_a_race_in_bfloat16_favours_the_first_of_equal_weights():
    """Why it is refused: in torch it is not the draw that it would be taken for."""
    noise = torch.empty(2, 200_000, dtype=torch.bfloat16)
    noise.exponential_(generator=torch.Generator().manual_seed(1))
    ties = (noise[0] == noise[1]).double().mean()

    assert ties > 1e-3


def test_with_a_loose_tolerance_another_scale_is_taken_for_a_race(monkeypatch):
    monkeypatch.setattr(races, "_TOLERANCE", {torch.float32: 10.0})

    assert distance(law_of(other_scale), SQUARES) > 0.01
