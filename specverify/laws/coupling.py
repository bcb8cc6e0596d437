# SPDX-License-Identifier: Apache-2.0
"""Exact laws of drafts and outputs that share their randomness.

Each token x has an exponential variable E_x; the draft is the token of least ``E_x/q(x)``,
the output that of least ``E_x/p(x)``, and the draft is accepted when they are equal. The
output does not depend on the draft at all, so the rule is lossless for any draft model,
and gives the same text with all of them. Gumbel noise is the same: ``-log E``.

References
----------
Daliri, Musco, Suresh: Coupling without communication and drafter-invariant speculative
decoding, 2024, arXiv:2408.07978.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from specverify.laws.distributions import Distribution, Law, Model, Number, Prefix
from specverify.laws.steps import check_length, emit


def emissions(
    target: Model, draft: Model, k: int
) -> Iterator[tuple[Prefix, int, Number]]:
    """Enumerate what one step can do, with new variables at every position.

    Parameters
    ----------
    target, draft
        Models p and q; prefixes are relative to the start of the step.
    k
        Number of drafted tokens.

    Yields
    ------
    tuple
        Emitted tokens, number of accepted drafts, probability (positive): outputs as long
        as they equal the drafts, then one more.

    Raises
    ------
    ValueError
        A negative k.
    """
    check_length(k)
    yield from _descend(target, draft, k, (), 1)


def _descend(
    target: Model, draft: Model, k: int, prefix: Prefix, weight: Number
) -> Iterator[tuple[Prefix, int, Number]]:
    p = target(prefix)
    if len(prefix) == k:
        yield from emit(prefix, p, weight)
        return
    differing: list[Number] = [0] * len(p)
    for (drafted, token), mass in coupling_law(p, draft(prefix)).items():
        if drafted == token:
            yield from _descend(target, draft, k, (*prefix, token), weight * mass)
        else:
            differing[token] += mass
    yield from emit(prefix, differing, weight)


def match_probability(p: Distribution, q: Distribution) -> Number:
    """Probability that draft and output are equal.

    ``sum_x 1 / sum_y max(p(y)/p(x), q(y)/q(x))`` over the tokens that both can draw: at
    least ``(1 - TV) / (1 + TV)``, at most ``1 - TV``.
    """
    return sum(_match(p, q, x) for x in range(len(p)))


def coupling_law(p: Distribution, q: Distribution) -> Law[tuple[int, int]]:
    """Joint law of (draft, output); its marginals are q and p.

    Outcomes of probability 0 are absent.
    """
    tokens = range(len(p))
    law = {
        (x, y): _match(p, q, x) if x == y else _mismatch(p, q, x, y)
        for x, y in itertools.product(tokens, tokens)
    }
    return {outcome: mass for outcome, mass in law.items() if mass}


def _match(p: Distribution, q: Distribution, x: int) -> Number:
    if not p[x] or not q[x]:
        return 0
    return 1 / sum(max(a / p[x], b / q[x]) for a, b in zip(p, q, strict=True))


def _mismatch(p: Distribution, q: Distribution, x: int, y: int) -> Number:
    """Probability of draft x and output y, for x != y.

    With ``t = E_y / E_x``, x is drafted and y is put out only for t between q(y)/q(x) and
    p(y)/p(x), and then with density ``1 / h(t)^2``, where h is 1 + t and, for every other
    z, ``max(q(z)/q(x), t p(z)/p(y))``. Between two corners h is linear, and the integral
    from a to b is ``(b - a) / (h(a) h(b))``; from a to infinity ``1 / (slope h(a))``.
    """
    if not q[x] or not p[y]:
        return 0
    others = [
        (b / q[x], a / p[y])
        for z, (a, b) in enumerate(zip(p, q, strict=True))
        if z not in {x, y}
    ]

    def h(t: Number) -> Number:
        return 1 + t + sum(max(level, t * slope) for level, slope in others)

    low, high = q[y] / q[x], p[y] / p[x] if p[x] else None
    if high is not None and high <= low:
        return 0
    corners = sorted(level / slope for level, slope in others if slope)
    inside = [t for t in corners if t > low and (high is None or t < high)]
    ends = [low, *inside] if high is None else [low, *inside, high]
    mass = sum((b - a) / (h(a) * h(b)) for a, b in itertools.pairwise(ends))
    if high is None:
        mass += 1 / ((1 + sum(slope for _, slope in others)) * h(ends[-1]))
    return mass
