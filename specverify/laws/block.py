# SPDX-License-Identifier: Apache-2.0
"""The exact law of one step of block verification, by enumeration.

Sun et al. (2025) test all prefixes of the drafted path and keep the longest that passes.
With r_i the ratio p/q of the i-th drafted token::

    b_0 = 1,  b_i = min(1, b_{i-1} r_i)
    S_i = sum (b_i p_i - q_i)+
    h_i = S_i / (S_i + 1 - b_i) for i < k,  h_k = b_k

Prefix i passes with probability h_i, independently of the others, and the recovered token
comes from ``(b_i p_i - q_i)+``. On one path no lossless rule accepts more in the mean.
The hierarchical form of Zhou et al. (2026) says the same in joint probabilities; it is
here as `hierarchical_weights`.

References
----------
Sun et al.: Block verification accelerates speculative decoding, ICLR 2025,
arXiv:2403.10444. Zhou et al.: HSD, ICLR 2026, arXiv:2601.05724.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from specverify.laws.distributions import (
    Distribution,
    Law,
    Model,
    Number,
    Prefix,
    excess,
    residual,
)
from specverify.laws.steps import autoregressive_law, check_length, emit


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
        Emitted tokens, number of accepted drafts, probability (positive). No outcome
        repeats.

    Raises
    ------
    ValueError
        A negative k.
    """
    check_length(k)
    stops: Law[Prefix] = {}
    for path, mass in autoregressive_law(draft, k).items():
        _, accept = block_weights(target, draft, path)
        for length, share in enumerate(last_passed(accept)):
            prefix = path[:length]
            stops[prefix] = stops.get(prefix, 0) + mass * share
    for prefix, weight in stops.items():
        if weight:
            yield from emit(prefix, _last_token(target, draft, prefix, k), weight)


def path_emissions(
    target: Model, draft: Model, path: Prefix
) -> Iterator[tuple[Prefix, int, Number]]:
    """Enumerate what one step can do once `path` has been drafted.

    Parameters
    ----------
    target, draft
        Models p and q; q must be the law that the path was drawn from.
    path
        The drafted tokens.

    Yields
    ------
    tuple
        As `emissions`, given the path.
    """
    _, accept = block_weights(target, draft, path)
    for length, share in enumerate(last_passed(accept)):
        if share:
            prefix = path[:length]
            law = _last_token(target, draft, prefix, len(path))
            yield from emit(prefix, law, share)


def block_weights(
    target: Model, draft: Model, path: Prefix
) -> tuple[list[Number], list[Number]]:
    """Weights b and acceptance probabilities h of the prefixes of a drafted path.

    Parameters
    ----------
    target, draft
        Models p and q.
    path
        k drafted tokens, each of positive probability under the draft.

    Returns
    -------
    tuple
        ``[b_0, ..., b_k]`` and ``[h_0, ..., h_k]``; h_0 is 1, for the empty prefix is
        what remains when no other passes.

    Notes
    -----
    Given the first i drafts, i or more are accepted with probability b_i (L14).
    """
    weights = _weights(target, draft, path)
    accept: list[Number] = [1]
    for i in range(1, len(path)):
        p, q, b = target(path[:i]), draft(path[:i]), weights[i]
        accept.append(accept_share(sum(excess([b * x for x in p], q)), b))
    return weights, [*accept, weights[-1]] if path else accept


def last_passed(accept: Sequence[Number]) -> list[Number]:
    """Law of the last of several independent tests that passes.

    Parameters
    ----------
    accept
        Probability of passing, test by test; the first one always passes.
    """
    law: list[Number] = []
    rest: Number = 1
    for probability in reversed(accept):
        law.append(rest * probability)
        rest *= 1 - probability
    return law[::-1]


def hierarchical_weights(
    target: Model, draft: Model, path: Prefix
) -> tuple[list[Number], list[Distribution]]:
    """Acceptance and residuals of HSD, eqs. 16 to 20 of Zhou et al., term by term.

    With P and Q the joint laws, ``R = P/Q`` and M_t the largest of 1 and of R on the
    first t tokens, the branch divergences behind ``x_1..x_t`` are ``sum (P/M_t - Q)+``
    and ``sum (Q - P/M_t)+`` over the next token; the test of t is their ratio, the
    residual the first one's summands.

    Parameters
    ----------
    target, draft
        Models p and q.
    path
        k drafted tokens, each of positive probability under the draft.

    Returns
    -------
    tuple
        ``[h_0, ..., h_k]``, with h_0 = 1 as in `block_weights`, and the k laws of the
        recovered token.
    """
    accept: list[Number] = []
    residuals: list[Distribution] = []
    joint_p: Number = 1
    joint_q: Number = 1
    largest: Number = 1
    for i, token in enumerate(path):
        p = [joint_p * x / largest for x in target(path[:i])]
        q = [joint_q * x for x in draft(path[:i])]
        gained, lost = sum(excess(p, q)), sum(excess(q, p))
        accept.append(gained / lost if i and lost else 1)
        residuals.append(residual(p, q))
        joint_p, joint_q = joint_p * target(path[:i])[token], q[token]
        ratio = joint_p / joint_q
        capped = min(ratio / largest, 1)
        largest = max(largest, ratio)
    return [*accept, capped] if path else [1], residuals


def _weights(target: Model, draft: Model, path: Prefix) -> list[Number]:
    weights: list[Number] = [1]
    for i, token in enumerate(path):
        ratio = target(path[:i])[token] / draft(path[:i])[token]
        weights.append(min(1, weights[-1] * ratio))
    return weights


def accept_share(mass: Number, weight: Number) -> Number:
    """Form ``h = S / (S + 1 - b)`` from S and b; 0/0 is 1, for there p = q."""
    return mass / (mass + (1 - weight)) if mass or weight < 1 else 1


def _last_token(target: Model, draft: Model, prefix: Prefix, k: int) -> Distribution:
    """Law of the bonus token, or of the one recovered behind a prefix."""
    p = target(prefix)
    if len(prefix) == k:
        return p
    b = _weights(target, draft, prefix)[-1]
    return residual([b * x for x in p], draft(prefix))
