# SPDX-License-Identifier: Apache-2.0
"""What temperature, top-k, top-p and min-p make of a distribution.

The same transforms, in the same order and with the same ties, as those of logits in
`specverify.core.sampling`; here on the probabilities themselves, and exact for fractions.
Only a temperature other than 0 and 1 needs floats.
"""

from __future__ import annotations

import math
from collections.abc import Collection

from specverify.laws.distributions import Distribution, Model, Number


def token_law(
    p: Distribution,
    *,
    temperature: Number = 1,
    top_k: int = 0,
    top_p: Number = 1,
    min_p: Number = 0,
) -> list[Number]:
    """Law that a sampler draws from: temperature, top-k, top-p, min-p, in this order.

    Parameters
    ----------
    p
        Distribution over tokens.
    temperature, top_k, top_p, min_p
        As in the functions below; the defaults change nothing.

    Raises
    ------
    ValueError
        A setting out of range; the message names it.
    """
    law = apply_top_k(apply_temperature(p, temperature), top_k)
    return apply_min_p(apply_top_p(law, top_p), min_p)


def transformed(
    model: Model,
    *,
    temperature: Number = 1,
    top_k: int = 0,
    top_p: Number = 1,
    min_p: Number = 0,
) -> Model:
    """Model whose every next-token law is the `token_law` of that of `model`."""
    return lambda prefix: token_law(
        model(prefix), temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p
    )


def apply_temperature(p: Distribution, temperature: Number) -> list[Number]:
    """``p ** (1 / temperature)``, normalised; floats, save at 0 and 1.

    At 0 the most likely token alone, the lowest id among equals.

    Raises
    ------
    ValueError
        A temperature below 0 or not finite.
    """
    if not 0 <= temperature < math.inf:
        msg = f"temperature is {temperature}; allowed are finite numbers of 0 or more"
        raise ValueError(msg)
    if temperature == 0:
        return apply_top_k(p, 1)
    if temperature == 1:
        return list(p)
    largest, power = max(p), 1 / float(temperature)
    # Relative to the largest: that one then cannot underflow.
    return _normalised([float(mass / largest) ** power for mass in p])


def apply_top_k(p: Distribution, top_k: int) -> list[Number]:
    """Keep the k most likely tokens, equals by the lowest ids; every token at 0.

    Raises
    ------
    ValueError
        A number below 0.
    """
    if top_k < 0:
        msg = f"top_k is {top_k}; allowed are whole numbers of 0 or more"
        raise ValueError(msg)
    return _cut(p, _descending(p)[: top_k or None])


def apply_top_p(p: Distribution, top_p: Number) -> list[Number]:
    """Keep the smallest set of most likely tokens whose mass reaches `top_p`.

    Equals enter by the lowest ids. Twice is not once: (.4, .35, .25) cut at .5 leaves
    (8/15, 7/15, 0), and that cut at .5 leaves its first token alone.

    Raises
    ------
    ValueError
        A number outside (0, 1].
    """
    if not 0 < top_p <= 1:
        msg = f"top_p is {top_p}; allowed are numbers above 0 and up to 1"
        raise ValueError(msg)
    if top_p == 1:  # a sum of floats may reach 1 too early
        return list(p)
    order = _descending(p)
    size, reached = 1, p[order[0]]
    while reached < top_p and size < len(order):
        reached += p[order[size]]
        size += 1
    return _cut(p, order[:size])


def apply_min_p(p: Distribution, min_p: Number) -> list[Number]:
    """Keep the tokens at least `min_p` times as likely as the most likely one.

    Raises
    ------
    ValueError
        A number outside [0, 1].
    """
    if not 0 <= min_p <= 1:
        msg = f"min_p is {min_p}; allowed are numbers from 0 to 1"
        raise ValueError(msg)
    least = min_p * max(p)
    return _cut(p, [token for token, mass in enumerate(p) if mass >= least])


def _descending(p: Distribution) -> list[int]:
    """Token ids from the most to the least likely, equals by id."""
    return sorted(range(len(p)), key=lambda token: -p[token])


def _cut(p: Distribution, kept: Collection[int]) -> list[Number]:
    """Renormalise `p` on these tokens; itself where they are all."""
    if len(kept) == len(p):
        return list(p)
    return _normalised(
        [mass if token in kept else mass * 0 for token, mass in enumerate(p)]
    )


def _normalised(weights: list[Number]) -> list[Number]:
    total = sum(weights)
    return [weight / total for weight in weights]
