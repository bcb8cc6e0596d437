# SPDX-License-Identifier: Apache-2.0
"""The exact law of one step of token-level verification, by enumeration.

Follows the algorithm itself: every draft path, every outcome of every test, every
recovered or bonus token, each with its weight. The closed forms (L12: the tail of the
accepted length is a product of overlaps) are not used here; the tests compare with them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from specverify.laws.distributions import (
    Distribution,
    Law,
    Model,
    Number,
    Prefix,
    accept_probability,
    residual,
)


def emissions(
    target: Model, draft: Model, k: int
) -> Iterator[tuple[Prefix, int, Number]]:
    """Enumerate what one step can do.

    Parameters
    ----------
    target, draft
        Models p and q; prefixes are relative to the start of the step.
    k
        Number of drafted tokens.

    Yields
    ------
    tuple
        Emitted tokens, number of accepted drafts, probability. Outcomes repeat (several
        branches emit the same tokens) and have positive probability.
    """
    if k < 0:
        msg = f"k is {k}; allowed is 0 or more"
        raise ValueError(msg)
    yield from _descend(target, draft, k, (), 1)


def _descend(
    target: Model, draft: Model, k: int, prefix: Prefix, weight: Number
) -> Iterator[tuple[Prefix, int, Number]]:
    p = target(prefix)
    if len(prefix) == k:
        yield from _emit(prefix, p, weight)
        return
    q = draft(prefix)
    rejected: Number = 0
    for token, drafted in enumerate(q):
        if not drafted:
            continue
        accept = accept_probability(p[token], drafted)
        rejected += drafted * (1 - accept)
        if accept:
            deeper = weight * drafted * accept
            yield from _descend(target, draft, k, (*prefix, token), deeper)
    # Given a rejection, the recovered token does not depend on the rejected one.
    if rejected:
        yield from _emit(prefix, residual(p, q), weight * rejected)


def _emit(
    prefix: Prefix, law: Distribution, weight: Number
) -> Iterator[tuple[Prefix, int, Number]]:
    for token, mass in enumerate(law):
        if mass:
            yield (*prefix, token), len(prefix), weight * mass


def output_law(target: Model, draft: Model, k: int) -> Law[Prefix]:
    """Law of the tokens that one step emits: 1 to k + 1 of them."""
    law: Law[Prefix] = {}
    for emitted, _, weight in emissions(target, draft, k):
        law[emitted] = law.get(emitted, 0) + weight
    return law


def accepted_law(target: Model, draft: Model, k: int) -> list[Number]:
    """Law of the number of accepted drafts: entry i is ``P(accepted = i)``, i <= k."""
    law: list[Number] = [0] * (k + 1)
    for _, accepted, weight in emissions(target, draft, k):
        law[accepted] += weight
    return law


def expected_accepted(target: Model, draft: Model, k: int) -> Number:
    """Mean number of accepted drafts."""
    law = accepted_law(target, draft, k)
    return sum(count * mass for count, mass in enumerate(law))


def acceptance_bound(target: Model, draft: Model, length: int) -> Number:
    """Largest probability with which a lossless rule accepts `length` drafts (L11).

    A rule that accepts a prefix x of one drafted path with mass above ``min(P, Q)(x)``,
    P and Q the joint laws of target and draft, emits x too often or was never offered it.
    """
    p, q = autoregressive_law(target, length), autoregressive_law(draft, length)
    return sum(min(mass, q.get(path, 0)) for path, mass in p.items())


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


def composed_law(target: Model, draft: Model, k: int, length: int) -> Law[Prefix]:
    """Law of the first `length` tokens of a whole loop of steps (L16)."""
    done: Law[Prefix] = {}
    open_: Law[Prefix] = {(): 1}
    while open_:
        prefix, weight = open_.popitem()
        step = output_law(_after(target, prefix), _after(draft, prefix), k)
        for tokens, mass in step.items():
            outcome = (*prefix, *tokens)[:length]
            home = done if len(outcome) == length else open_
            home[outcome] = home.get(outcome, 0) + weight * mass
    return done


def _after(model: Model, prefix: Prefix) -> Model:
    return lambda tokens: model((*prefix, *tokens))
