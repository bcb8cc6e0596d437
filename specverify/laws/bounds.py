# SPDX-License-Identifier: Apache-2.0
"""Bounds on what any lossless rule can accept."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from specverify.laws.distributions import Distribution, Model, Number
from specverify.laws.proposals import NO_TOKEN, Slots, removed
from specverify.laws.steps import autoregressive_law


def acceptance_bound(target: Model, draft: Model, length: int) -> Number:
    """Largest probability with which a lossless rule accepts `length` drafts (L11).

    A rule that accepts a prefix x of one drafted path with mass above ``min(P, Q)(x)``,
    P and Q the joint laws of target and draft, emits x too often or was never offered it.
    """
    p, q = autoregressive_law(target, length), autoregressive_law(draft, length)
    return sum(min(mass, q.get(path, 0)) for path, mass in p.items())


def expected_accepted_bound(target: Model, draft: Model, k: int) -> Number:
    """Largest mean number of accepted drafts of a lossless rule on one path (L11)."""
    return sum(acceptance_bound(target, draft, i) for i in range(1, k + 1))


def optimum(p: Distribution, draft_law: Mapping[Slots, Number]) -> Number:
    """Largest acceptance of a lossless rule that is offered several drafts (L20).

    That is optimal transport from the drafts to the output, and by its minimum cut ``1 +
    min_H p(H) - Q(all drafts in H)`` over all sets H of tokens. Takes ``2^vocab`` steps.

    Parameters
    ----------
    p
        Law of the output.
    draft_law
        Law Q of the tuples of drafts, -1 in empty slots.
    """
    offered = [(set(slots) - {NO_TOKEN}, mass) for slots, mass in draft_law.items()]
    tokens = range(len(p))
    every = (
        set(chosen)
        for size in range(len(p) + 1)
        for chosen in itertools.combinations(tokens, size)
    )
    return 1 + min(
        sum(p[x] for x in chosen)
        - sum(mass for held, mass in offered if held <= chosen)
        for chosen in every
    )


def optimum_sorted(p: Distribution, q: Distribution, n: int, drafts: str) -> Number:
    """`optimum` of n drafts from q, from ``vocab + 1`` sets alone (L21).

    For the two ways of drawing below, the minimum is attained by the tokens of largest
    q/p.

    Parameters
    ----------
    p, q
        Target and draft law.
    n
        Number of drafts.
    drafts
        ``"iid"`` or ``"without_replacement"``.

    Raises
    ------
    ValueError
        Another way of drawing.
    """
    if drafts not in {"iid", "without_replacement"}:
        msg = f"drafts is {drafts!r}; allowed are iid, without_replacement"
        raise ValueError(msg)
    possible = [x for x in range(len(p)) if p[x] or q[x]]
    order = sorted(possible, key=lambda x: p[x] / q[x] if q[x] else float("inf"))
    best: Number = 0
    for size in range(1, len(order) + 1):
        chosen = tuple(order[:size])
        mass = sum(q[x] for x in chosen)
        held = mass**n if drafts == "iid" else _all_in(q, chosen, n)
        best = min(best, sum(p[x] for x in chosen) - held)
    return 1 + best


def _all_in(q: Distribution, tokens: Slots, n: int) -> Number:
    """Probability that n draws without replacement all lie in `tokens`."""
    if n == 0 or not any(q):
        return 1
    return sum(q[x] * _all_in(removed(q, (x,)), tokens, n - 1) for x in tokens if q[x])
