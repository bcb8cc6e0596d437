# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: NPY002 - NumPy's global generator is one of those that are followed
"""What people do with random numbers is followed exactly.

Most of these forms were silently wrong in some version of the code.
"""

import bisect
import math
import random

import numpy as np
import pytest
import torch
from following import GRID, chance, distance, law_of
from torch.nn import functional

from specverify.exact import operations, symbolic

P = torch.tensor([0.2, 0.3, 0.5])
PAIRS = {(i, j): float(P[i] * P[j]) for i in range(3) for j in range(3)}
SINGLE = {(i,): float(P[i]) for i in range(3)}
u = torch.rand


def draw(count=1):
    return torch.multinomial(P, count, replacement=True)


# --- one truth value ------------------------------------------------------------------


def multiplied_in_place():
    noise = u(1)
    same = noise
    noise *= 2
    return same < 0.5


def written_out(function, *args):
    """What is found in the tensor that was given as ``out=``."""
    target = torch.zeros(1)
    function(*args, out=target)
    return target


def written_by_index():
    target = torch.zeros(2, 2)
    target[0, 1] = u(1)[0]
    return target[0, 1] < 0.3


def written_by_mask():
    target = torch.zeros(2)
    target[torch.tensor([True, False])] = u(1)
    return target[0] < 0.3


#: Function of a truth value and the probability of true.
CHANCES = {
    "compared": (lambda: u(1) < 0.3, 0.3),
    "named arguments": (lambda: torch.lt(input=u(1), other=0.3), 0.3),
    "size as a tuple": (lambda: u((1, 1), dtype=torch.float64) < 0.3, 0.3),
    "size by name": (lambda: u(size=(1,)) < 0.3, 0.3),
    "no dimension": (lambda: u(()).item() < 0.3, 0.3),
    "read with item, on the right": (lambda: u(1).item() > 0.3, 0.7),
    "against a plain tensor": (lambda: u(1).item() < torch.tensor([0.3]), 0.3),
    "against a NumPy number": (lambda: u(1).item() < np.float32(0.3), 0.3),
    "least of a number": (lambda: min(1, u(1).item()) < 0.3, 0.3),
    "sorted with a number": (lambda: sorted([u(1).item(), 0.3])[1] == 0.3, 0.3),
    "rounded": (lambda: u(1).round(decimals=1) < 0.35, 0.35),
    "cast to float": (lambda: u(1).double().float() < 0.3, 0.3),
    "cast to bool": (lambda: (u(1) * 4).long().bool(), 0.75),
    "asked for its truth": (lambda: bool(u(1)), 1 - 2**-24),
    "equal to a step": (lambda: (u(1) * 100).floor() == 37, 0.01),
    "equal to a whole number": (lambda: (u(1) * 100).long() == 37, 0.01),
    "unequal to a whole number": (lambda: (u(1) * 100).long() != 37, 0.99),
    "equal to where it is clamped": (lambda: u(1).clamp(min=0.4) == 0.4, 0.4),
    "never on an edge": (lambda: u(1) == 0, 2**-24),
    "square around a middle": (lambda: (u(1) - 0.3) ** 2 < 1e-4, 0.02),
    "odd power below zero": (lambda: (u(1) - 2) ** 3 < -1, 1),
    "reciprocal": (lambda: 1 / u(1) > 4, 0.25),
    "reciprocal with a pole": (lambda: 1 / (u(1) - 0.3) > 100, 0.01),
    "power with a pole": (lambda: (u(1) - 0.5) ** -1 > 4, 0.25),
    "pole at zero of the wrong sign": (lambda: 1 / (0 - u(1)) > 5, 2**-24),
    "logarithm": (lambda: u(1).log() < math.log(0.3), 0.3),
    "no logarithm in part": (lambda: (u(1) - 0.3).log() < -5, math.exp(-5)),
    "no root in part": (lambda: (u(1) - 0.3).sqrt() < 0.1, 0.01),
    "no number in part": (lambda: torch.where(u(1) < 0.3, torch.nan, 1) > 0, 0.7),
    "base below one": (lambda: 0.5 ** u(1) < 0.5**0.3, 0.7),
    "exponent": (lambda: u(1) ** 0.5 < 0.5, 0.25),
    "affine in place": (multiplied_in_place, 0.25),
    "out of mul": (lambda: written_out(torch.mul, u(1), 2) < 1, 0.5),
    "out of rand": (lambda: written_out(u, 1) < 0.3, 0.3),
    "out of bernoulli": (
        lambda: written_out(torch.bernoulli, torch.tensor([0.3])),
        0.3,
    ),
    "out of a comparison": (lambda: written_out(torch.lt, u(1), 0.3), 0.3),
    "written by index": (written_by_index, 0.3),
    "written by mask": (written_by_mask, 0.3),
    "uniform_ of a range": (lambda: torch.empty(1).uniform_(0.2, 0.7) < 0.3, 0.2),
    "uniform_ with names": (lambda: torch.empty(1).uniform_(to=2) < 0.3, 0.15),
    "rand_like a random one": (lambda: torch.rand_like(u(1)) < 0.3, 0.3),
    "exponential": (lambda: torch.empty(1).exponential_() < 1, 1 - math.exp(-1)),
    "half": (lambda: u(1, dtype=torch.float16) <= 0, 2**-11),
    "bfloat16": (lambda: u(1, dtype=torch.bfloat16) <= 0, 2**-8),
    "int of a tensor": (lambda: int(u(1) * 4) == 2, 0.25),
    "int of a number": (lambda: int(u(1).item() * 4) == 2, 0.25),
    "int towards zero": (lambda: int(u(1).item() * 4 - 2) == 0, 0.5),
    "math.floor": (lambda: math.floor(u(1).item() * 4) == 2, 0.25),
    "random.random": (lambda: random.random() < 0.3, 0.3),
    "random.uniform": (lambda: random.uniform(1, 2) < 1.3, 0.3),
    "numpy.random.rand": (lambda: np.random.rand() < 0.3, 0.3),
    "numpy.random.uniform": (lambda: np.random.uniform(0, 2) < 0.6, 0.3),
    "inference mode": (torch.inference_mode()(lambda: u(1) < 0.3), 0.3),
}


@pytest.mark.parametrize("name", CHANCES)
def test_a_truth_value_has_its_exact_probability(name):
    fn, due = CHANCES[name]

    assert chance(fn) == pytest.approx(due, abs=GRID)


def test_a_truth_value_under_autocast_has_its_exact_probability():
    def halved():
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return u(1) * 0.5 < 0.25

    assert chance(halved) == 0.5


def test_another_probability_would_be_noticed():
    fn, due = CHANCES["compared"]

    assert chance(fn) != pytest.approx(due + 2 * GRID, abs=GRID)


# --- whole laws -----------------------------------------------------------------------


def changed(change):
    """Two drawn tokens after something was done to them in place."""

    def fn():
        tokens = draw(2)
        same = tokens
        change(tokens)
        return same

    return fn


def remasked(tokens):
    tokens &= 1


def chain_of_where():
    noise = u(2)
    return torch.where(noise < 0.2, 0, torch.where(noise < 0.5, 1, 2))


def one_uniform_for_all():
    noise = u(1)
    return noise < 0.3, noise < 0.6, noise > 0.5


def rescaled():
    noise, kept = u((), dtype=torch.float64), 0.25
    if noise < kept:
        return 0
    cdf = torch.tensor([0.5, 1.0], dtype=torch.float64)
    return 1 + int(torch.searchsorted(cdf, (noise - kept) / (1 - kept), right=True))


def row_of_tokens():
    target = torch.full((2, 1), -1)
    row = target[0]
    row[0] = draw()[0]
    return target[0]


LAWS = {
    "multinomial": (draw, SINGLE),
    "unnormalised multinomial": (lambda: torch.multinomial(P * 7, 1), SINGLE),
    "without replacement": (
        lambda: torch.multinomial(P, 2),
        {(i, j): float(P[i] * P[j] / (1 - P[i])) for i, j in PAIRS if i != j},
    ),
    "multinomial into out": (
        lambda: torch.multinomial(P, 1, out=torch.zeros(1, dtype=torch.int64)),
        SINGLE,
    ),
    "randint": (lambda: torch.randint(0, 2, (1,)), {(0,): 0.5, (1,): 0.5}),
    "randint by name": (
        lambda: torch.randint(high=2, size=(1,)),
        {(0,): 0.5, (1,): 0.5},
    ),
    "random_": (
        lambda: torch.empty(1, dtype=torch.int64).random_(0, 2),
        {(0,): 0.5, (1,): 0.5},
    ),
    "bernoulli_": (
        lambda: torch.zeros(1, dtype=torch.int64).bernoulli_(torch.tensor([0.25])),
        {(0,): 0.75, (1,): 0.25},
    ),
    "argmax of coins": (
        lambda: torch.bernoulli(torch.tensor([0.5, 0.5])).argmax(),
        {0: 0.75, 1: 0.25},
    ),
    "tokens as floats": (
        lambda: draw(2).float() * 2,
        {(2.0 * i, 2.0 * j): mass for (i, j), mass in PAIRS.items()},
    ),
    "tokens as int32": (lambda: draw(2).int(), PAIRS),
    "scatter_ on tokens": (
        changed(lambda t: t.scatter_(0, torch.tensor([0]), 7)),
        {(7, i): float(P[i]) for i in range(3)},
    ),
    "fill_ on tokens": (changed(lambda t: t.fill_(7)), {(7, 7): 1}),
    "&= on tokens": (
        changed(remasked),
        {(0, 0): 0.49, (0, 1): 0.21, (1, 0): 0.21, (1, 1): 0.09},
    ),
    "a token as a slice": (
        lambda: torch.arange(3)[: draw()[0]].shape[0],
        {0: 0.2, 1: 0.3, 2: 0.5},
    ),
    "a token in a list": (lambda: [5, 6, 7][draw()[0]], {5: 0.2, 6: 0.3, 7: 0.5}),
    "a token in a dict": (
        lambda: {0: "a", 1: "b", 2: "c"}[draw().item()],
        {"a": 0.2, "b": 0.3, "c": 0.5},
    ),
    "a token in torch.tensor": (
        lambda: torch.tensor([draw()[0], 3]),
        {(i, 3): float(P[i]) for i in range(3)},
    ),
    "tokens in NumPy": (
        lambda: int(np.asarray(draw(2)).sum()),
        {0: 0.04, 1: 0.12, 2: 0.29, 3: 0.3, 4: 0.25},
    ),
    "one-hot": (
        lambda: functional.one_hot(draw(), 3)[0],
        {(1, 0, 0): 0.2, (0, 1, 0): 0.3, (0, 0, 1): 0.5},
    ),
    "a token written into a row": (row_of_tokens, SINGLE),
    "two tokens compared": (
        lambda: torch.equal(draw(), draw()),
        {True: 0.38, False: 0.62},
    ),
    "a coin on a sampled probability": (
        lambda: bool(u(1) < P[draw()]),
        {True: 0.38, False: 0.62},
    ),
    "cdf < u": (lambda: (P.cumsum(0) <= u(2, 1)).sum(1), PAIRS),
    "searchsorted": (
        lambda: torch.searchsorted(P.cumsum(0), u(2), right=True),
        PAIRS,
    ),
    "bucketize": (lambda: torch.bucketize(u(2), P.cumsum(0), right=True), PAIRS),
    "bisect": (
        lambda: bisect.bisect([0.2, 0.5, 1.0], random.random()),
        {0: 0.2, 1: 0.3, 2: 0.5},
    ),
    "chain of where": (chain_of_where, PAIRS),
    "steps of a uniform": (
        lambda: torch.floor(u(1) * 2).long(),
        {(0,): 0.5, (1,): 0.5},
    ),
    "one uniform for several tests": (
        one_uniform_for_all,
        {
            ((True,), (True,), (False,)): 0.3,
            ((False,), (True,), (False,)): 0.2,
            ((False,), (True,), (True,)): 0.1,
            ((False,), (False,), (True,)): 0.4,
        },
    ),
    "a rescaled uniform": (rescaled, {0: 0.25, 1: 0.375, 2: 0.375}),
    "iteration": (
        lambda: tuple(bool(x < 0.5) for x in u(2)),
        {(a, b): 0.25 for a in (True, False) for b in (True, False)},
    ),
    "accepted prefix": (
        lambda: (u(2) < 0.5).cumprod(0).sum(),
        {0: 0.5, 1: 0.25, 2: 0.25},
    ),
    "noise on both sides of cat": (
        lambda: torch.cat([u(1), torch.tensor([0.1])]) < 0.5,
        {(True, True): 0.5, (False, True): 0.5},
    ),
    "a dict of tensors": (
        lambda: {"token": draw()},
        {(("token", (i,)),): float(P[i]) for i in range(3)},
    ),
}


@pytest.mark.parametrize("name", LAWS)
def test_what_is_returned_has_its_exact_law(name):
    fn, due = LAWS[name]

    assert distance(law_of(fn), due) < GRID


def test_another_law_would_be_noticed():
    assert distance(law_of(draw), {(0,): 0.2, (1,): 0.3 + 1e-6, (2,): 0.5}) > GRID


# --- each guard is needed -------------------------------------------------------------


def test_without_the_search_for_poles_a_square_is_followed_wrongly(monkeypatch):
    monkeypatch.setattr(operations, "split", lambda name, args: None)

    assert chance(CHANCES["square around a middle"][0]) == 0


def test_without_the_search_for_nan_a_logarithm_is_followed_wrongly(monkeypatch):
    monkeypatch.setattr(operations, "split_nan", lambda symbols: None)

    assert chance(CHANCES["no logarithm in part"][0]) == 0


def test_without_the_sides_of_equality_a_step_is_missed(monkeypatch):
    monkeypatch.setattr(operations, "_side", lambda a, b: (a != b).long())
    monkeypatch.setattr(symbolic, "_PROBES", 1)

    assert chance(CHANCES["equal to a step"][0]) == 0
