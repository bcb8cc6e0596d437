# SPDX-License-Identifier: Apache-2.0
"""One strict order of drafts, and the law of the best of several in it.

Tokens are ranked by p/q, paths by the ranks of their tokens. The order decides nothing
but which draft is tested: a test against the law of the best one is lossless for any
order, as long as selection and law use the same, ties included.
"""

from __future__ import annotations

from specverify.laws.distributions import Distribution, Model, Number, Prefix


def ranked(p: Distribution, q: Distribution) -> list[int]:
    """Tokens that q can draw, by ascending p/q; among ties the lowest id comes last."""
    possible = [x for x, mass in enumerate(q) if mass]
    return sorted(possible, key=lambda x: (p[x] / q[x], -x))


def largest_in(below: Number, mass: Number, n: int) -> Number:
    """Probability that the largest of n draws has this mass's place in the order.

    ``(below + mass)^n - below^n``, without the cancellation.

    Parameters
    ----------
    below
        Mass of what stands lower.
    mass
        Mass of the place itself.
    n
        Number of independent draws.
    """
    upto = below + mass
    return mass * sum(upto**i * below ** (n - 1 - i) for i in range(n))


def selected_law(p: Distribution, q: Distribution, n: int) -> list[Number]:
    """Law of the best of n independent drafts: ``F^n - F_below^n`` along the ranks."""
    law: list[Number] = [0] * len(q)
    below: Number = 0
    for token in ranked(p, q):
        law[token] = largest_in(below, q[token], n)
        below += q[token]
    return law


def path_ranks(target: Model, draft: Model, path: Prefix) -> list[int]:
    """Rank of each token of a path behind the tokens before it: larger is better."""
    return [
        ranked(target(path[:i]), draft(path[:i])).index(token)
        for i, token in enumerate(path)
    ]


def best_path(target: Model, draft: Model, n: int) -> Model:
    """Law of the next token of the best of n independent paths.

    With j the mass of a prefix and A that of the paths ranked below it, the best path has
    that prefix with probability ``(A + j)^n - A^n``.
    """

    def conditional(prefix: Prefix) -> list[Number]:
        below, joint = _placed(target, draft, prefix)
        q = draft(prefix)
        law: list[Number] = [0] * len(q)
        for token in ranked(target(prefix), q):
            law[token] = largest_in(below, joint * q[token], n)
            below += joint * q[token]
        total = sum(law)
        return [mass / total for mass in law]

    return conditional


def _placed(target: Model, draft: Model, prefix: Prefix) -> tuple[Number, Number]:
    """Mass of the paths ranked below a prefix, and of the prefix."""
    below: Number = 0
    joint: Number = 1
    for i, token in enumerate(prefix):
        q = draft(prefix[:i])
        order = ranked(target(prefix[:i]), q)
        below += joint * sum(q[x] for x in order[: order.index(token)])
        joint *= q[token]
    return below, joint
