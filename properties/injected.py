# SPDX-License-Identifier: Apache-2.0
"""The law of running code, from injected uniforms, and of a whole loop of steps.

A verifier that takes its uniforms as an argument is a function on a cube. It is constant
between borders, which its law tells: the probability of passing each test, and the sums
of what a last token is drawn from. So `law_of_code` puts two points into every cell, just
inside its ends, and gives each half of the cell. A border that lies elsewhere by more
than `EDGE` moves half a cell to another outcome; `ROUNDING` is far below that.
"""

from fractions import Fraction
from functools import partial
from itertools import accumulate, pairwise

import torch
from hypothesis import settings

from specverify.laws.distributions import law_distance

EDGE = 1e-9
ROUNDING = 1e-11
LARGEST_UNIFORM = 1 - 2**-53

repeatable = partial(settings, derandomize=True, deadline=None, database=None)


def same_law(first, second):
    """Whether two laws agree, save for the rounding of float64."""
    return law_distance(first, second) <= ROUNDING


def row(law):
    return torch.tensor([float(mass) for mass in law], dtype=torch.float64)


def rows(model, path):
    """Next-token rows behind the first 0, 1, ... tokens of a path: [len + 1, vocab]."""
    return torch.stack([row(model(path[:i])) for i in range(len(path) + 1)])


def sums(*laws):
    """Borders of a token that is drawn from one of these laws by its uniform."""
    return {border for law in laws for border in accumulate(map(Fraction, law))}


def cells(borders):
    """Points in [0, 1), and what share of the interval each stands for."""
    ends = sorted({0.0, 1.0} | {float(x) for x in borders if 0 < x < 1})
    points, shares = [], []
    for low, high in pairwise(ends):
        step = min(EDGE, (high - low) / 4)
        points += [low + step, min(high - step, LARGEST_UNIFORM)]
        shares += [(high - low) / 2] * 2
    return torch.tensor([points, shares], dtype=torch.float64)


def grid(borders):
    """Uniforms [rows, len(borders)] and the share of the cube of each row: [rows]."""
    points, shares = zip(*(cells(axis) for axis in borders), strict=True)
    axes = len(points)
    uniforms, parts = torch.cartesian_prod(*points), torch.cartesian_prod(*shares)
    return uniforms.view(-1, axes), parts.view(-1, axes).prod(dim=1)


def law_of_code(verify, offers):
    """Law of the answer of a verifier.

    `offers` yields what may have been drafted: its probability, the arguments without
    their batch dimension, and the borders of each uniform. An outcome is a tuple with
    one tuple of numbers for each tensor of the answer, placeholders left out.
    """
    batches, weights = [], []
    for mass, arguments, borders in offers:
        uniforms, shares = grid(borders)
        batch = [x.expand(len(uniforms), *x.shape) for x in arguments]
        batches.append([*batch, uniforms])
        weights.append(float(mass) * shares)
    *arguments, uniforms = map(torch.cat, zip(*batches, strict=True))
    answer = [x.view(len(x), -1) for x in verify(*arguments, uniforms=uniforms)]
    table, place = torch.cat(answer, dim=1).unique(dim=0, return_inverse=True)
    masses = torch.zeros(len(table), dtype=torch.float64)
    masses.index_add_(0, place, torch.cat(weights))
    parts = [x.tolist() for x in table.split([x.shape[1] for x in answer], dim=1)]
    keys = (
        tuple(tuple(x for x in part if x >= 0) for part in outcome)
        for outcome in zip(*parts, strict=True)
    )
    law = {}
    for key, mass in zip(keys, masses.tolist(), strict=True):
        law[key] = law.get(key, 0) + mass
    return law


def after(model, prefix):
    """The model behind committed tokens."""
    return lambda tokens: model((*prefix, *tokens))


def loop_law(step, length):
    """Joint law of the first tokens of a loop.

    `step` gives the law of what is emitted behind the committed tokens; whatever it
    decides on, it decides on these.
    """
    done, unfinished = {}, {(): Fraction(1)}
    while unfinished:
        prefix, mass = unfinished.popitem()
        for tokens, share in step(prefix).items():
            text = (*prefix, *tokens)[:length]
            home = done if len(text) == length else unfinished
            home[text] = home.get(text, 0) + mass * share
    return done
