# SPDX-License-Identifier: Apache-2.0
"""What the laws of all verification rules share: from one step to a whole loop.

A rule is given by the enumeration of what one step can do; the rest follows from that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

from specverify.laws.distributions import Distribution, Law, Model, Number, Prefix

#: What one step can do. Target, draft and k in; emitted tokens, number of accepted
#: drafts and probability out, with positive probability; outcomes may repeat.
Emissions: TypeAlias = Callable[
    [Model, Model, int], Iterator[tuple[Prefix, int, Number]]
]


def emit(
    accepted: Prefix, law: Distribution, weight: Number
) -> Iterator[tuple[Prefix, int, Number]]:
    """Put a last token, drawn from `law`, behind the accepted drafts of a step."""
    for token, mass in enumerate(law):
        if mass:
            yield (*accepted, token), len(accepted), weight * mass


def output_law(
    emissions: Emissions, target: Model, draft: Model, k: int
) -> Law[Prefix]:
    """Law of the tokens that one step emits: 1 to k + 1 of them."""
    law: Law[Prefix] = {}
    for emitted, _, weight in emissions(target, draft, k):
        law[emitted] = law.get(emitted, 0) + weight
    return law


def accepted_law(
    emissions: Emissions, target: Model, draft: Model, k: int
) -> list[Number]:
    """Law of the number of accepted drafts: entry i is ``P(accepted = i)``, i <= k."""
    law: list[Number] = [0] * (k + 1)
    for _, accepted, weight in emissions(target, draft, k):
        law[accepted] += weight
    return law


def expected_accepted(
    emissions: Emissions, target: Model, draft: Model, k: int
) -> Number:
    """Mean number of accepted drafts."""
    law = accepted_law(emissions, target, draft, k)
    return sum(count * mass for count, mass in enumerate(law))


def autoregressive_law(target: Model, length: int, prefix: Prefix = ()) -> Law[Prefix]:
    """Joint law of the next `length` tokens under plain sampling: what must come out."""
    law: Law[Prefix] = {(): 1}
    for _ in range(length):
        law = {
            (*tokens, token): weight * mass
            for tokens, weight in law.items()
            for token, mass in enumerate(target((*prefix, *tokens)))
            if mass
        }
    return law


def completed_law(
    emitted: Mapping[Prefix, Number], target: Model, length: int
) -> Law[Prefix]:
    """Law of `length` tokens: `emitted`, then plain target sampling (L13).

    Parameters
    ----------
    emitted
        Law of what a step emits.
    target
        Model that continues after it.
    length
        Tokens in every outcome; longer emissions are cut.
    """
    law: Law[Prefix] = {}
    for tokens, weight in emitted.items():
        head = tokens[:length]
        for tail, mass in autoregressive_law(target, length - len(head), head).items():
            outcome = (*head, *tail)
            law[outcome] = law.get(outcome, 0) + weight * mass
    return law


def composed_law(
    emissions: Emissions, target: Model, draft: Model, k: int, length: int
) -> Law[Prefix]:
    """Law of the first `length` tokens of a whole loop of steps (L16)."""
    done: Law[Prefix] = {}
    open_: Law[Prefix] = {(): 1}
    while open_:
        prefix, weight = open_.popitem()
        step = output_law(emissions, _after(target, prefix), _after(draft, prefix), k)
        for tokens, mass in step.items():
            outcome = (*prefix, *tokens)[:length]
            home = done if len(outcome) == length else open_
            home[outcome] = home.get(outcome, 0) + weight * mass
    return done


def _after(model: Model, prefix: Prefix) -> Model:
    return lambda tokens: model((*prefix, *tokens))


def check_length(k: int) -> None:
    """Refuse a negative draft length.

    Raises
    ------
    ValueError
        A negative k.
    """
    if k < 0:
        msg = f"k is {k}; allowed is 0 or more"
        raise ValueError(msg)
