# SPDX-License-Identifier: Apache-2.0
"""The exact law of one step that tests drafts one by one, by enumeration.

Follows the algorithm itself: every draft path, every outcome of every test, every
recovered or bonus token, each with its weight. `TOKEN` is the lossless rule of Leviathan
et al. and Chen et al. (2023); its closed forms (L12: the tail of the accepted length is a
product of overlaps) are not used here, the tests compare with them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from specverify.laws.distributions import (
    Distribution,
    Model,
    Number,
    Prefix,
    accept_probability,
    residual,
)
from specverify.laws.steps import check_length, emit


@dataclass(frozen=True)
class Rule:
    """How one drafted token is tested, and what replaces it.

    Attributes
    ----------
    accept
        Probability with which the drafted token is accepted; from p, q and the token.
    recovered
        Law of the token emitted in its place; from p, q and the rejected token.
    """

    accept: Callable[[Distribution, Distribution, int], Number]
    recovered: Callable[[Distribution, Distribution, int], Distribution]


def _accept(p: Distribution, q: Distribution, token: int) -> Number:
    return accept_probability(p[token], q[token])


def _recovered(p: Distribution, q: Distribution, _rejected: int) -> Distribution:
    return residual(p, q)


#: Accept with ``min(1, p/q)``, recover from ``(p - q)+``.
TOKEN: Final = Rule(_accept, _recovered)


def emissions(
    target: Model, draft: Model, k: int, *, rule: Rule = TOKEN
) -> Iterator[tuple[Prefix, int, Number]]:
    """Enumerate what one step can do.

    Parameters
    ----------
    target, draft
        Models p and q; prefixes are relative to the start of the step.
    k
        Number of drafted tokens.
    rule
        How each of them is tested; lossless by default.

    Yields
    ------
    tuple
        Emitted tokens, number of accepted drafts, probability. Outcomes repeat (several
        branches emit the same tokens) and have positive probability.

    Raises
    ------
    ValueError
        A negative k.
    """
    check_length(k)
    yield from _descend(rule, target, draft, k, (), 1)


def _descend(
    rule: Rule, target: Model, draft: Model, k: int, prefix: Prefix, weight: Number
) -> Iterator[tuple[Prefix, int, Number]]:
    p = target(prefix)
    if len(prefix) == k:
        yield from emit(prefix, p, weight)
        return
    q = draft(prefix)
    recovered: list[Number] = [0] * len(p)
    for token, drafted in enumerate(q):
        if not drafted:
            continue
        accept = rule.accept(p, q, token)
        if accept:
            deeper = weight * drafted * accept
            yield from _descend(rule, target, draft, k, (*prefix, token), deeper)
        rejected = drafted * (1 - accept)
        if rejected:
            law = rule.recovered(p, q, token)
            pairs = zip(recovered, law, strict=True)
            recovered = [mass + rejected * r for mass, r in pairs]
    yield from emit(prefix, recovered, weight)
