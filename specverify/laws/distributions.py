# SPDX-License-Identifier: Apache-2.0
"""One draft, one token: laws L1 to L9 as functions of p and q.

Distributions are sequences of numbers (`Fraction`, int or float) indexed by token id.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import TypeAlias, TypeVar

Number: TypeAlias = Fraction | float
Distribution: TypeAlias = Sequence[Number]
Prefix: TypeAlias = tuple[int, ...]
#: A language model: prefix in, next-token distribution out.
Model: TypeAlias = Callable[[Prefix], Distribution]
Outcome = TypeVar("Outcome")
Law: TypeAlias = dict[Outcome, Number]


def overlap(p: Distribution, q: Distribution) -> list[Number]:
    """``min(p, q)`` token by token: the law of accepted tokens, unnormalised."""
    return [min(a, b) for a, b in zip(p, q, strict=True)]


def excess(p: Distribution, q: Distribution) -> list[Number]:
    """``(p - q)+`` token by token: the law of recovered tokens, unnormalised."""
    return [max(a - b, 0) for a, b in zip(p, q, strict=True)]


def total_variation(p: Distribution, q: Distribution) -> Number:
    """Half the sum of ``|p - q|``: the largest difference on any set of tokens."""
    return sum(excess(p, q) + excess(q, p)) / 2


def law_distance(
    first: Mapping[Outcome, Number], second: Mapping[Outcome, Number]
) -> Number:
    """Total variation of two laws given as mappings; absent outcomes have mass 0."""
    outcomes = list(first.keys() | second.keys())
    p, q = ([law.get(x, 0) for x in outcomes] for law in (first, second))
    return total_variation(p, q)


def acceptance(p: Distribution, q: Distribution) -> Number:
    """Probability that the draft is accepted: ``sum min(p, q) = 1 - TV(p, q)`` (L1)."""
    return sum(overlap(p, q))


def accept_probability(p: Number, q: Number) -> Number:
    """``min(1, p/q)``: acceptance of one drafted token; 1 where q is 0 and p is not."""
    if p >= q:
        return p / p if p else p  # one, in the number type of p; zero where p = q = 0
    return p / q


def residual(p: Distribution, q: Distribution) -> list[Number]:
    """Law of the recovered token, ``(p - q)+ / TV``; p itself where p = q (L6)."""
    weights = excess(p, q)
    mass = sum(weights)
    return [w / mass for w in weights] if mass else list(p)


def token_accepted_law(p: Distribution, q: Distribution) -> Law[tuple[int, bool]]:
    """Joint law of (emitted token, accepted) at one position (L3)."""
    law: Law[tuple[int, bool]] = {}
    for token, (both, rest) in enumerate(zip(overlap(p, q), excess(p, q), strict=True)):
        law[token, True] = both
        law[token, False] = rest
    return law


def coupling(p: Distribution, q: Distribution) -> Law[tuple[int, int]]:
    """Joint law of (draft token, emitted token): the maximal coupling (L4)."""
    law: Law[tuple[int, int]] = {(x, x): m for x, m in enumerate(overlap(p, q))}
    rejected, recovered = excess(q, p), residual(p, q)
    for x, mass in enumerate(rejected):
        for y, r in enumerate(recovered):
            if mass:
                law[x, y] = law.get((x, y), 0) + mass * r
    return law


def emitted_law(
    q: Distribution, accept: Distribution, recovered: Distribution
) -> list[Number]:
    """Law of a rule given by its parts (L7): ``q a + (1 - sum q a) r``.

    Parameters
    ----------
    q
        The law that the draft is really drawn from.
    accept
        Acceptance probability of each token.
    recovered
        Law of the token emitted after a rejection.
    """
    kept = [mass * a for mass, a in zip(q, accept, strict=True)]
    lost = 1 - sum(kept)
    return [mass + lost * r for mass, r in zip(kept, recovered, strict=True)]
