# SPDX-License-Identifier: Apache-2.0
"""Laws of rules that are lossy by design: what they emit, and how far from the target.

The rules are those of `specverify.core.lossy`, with the same default settings, and obey
L7: ``out = q a + sum_x q(x) (1 - a(x)) r_x``, for a draft x accepted with probability
a(x) and replaced by a token of law r_x otherwise. By L5 acceptance above ``sum min(p, q)``
is paid in total variation, whatever the rule; exactly once, if ``a >= min(1, p/q)``
everywhere and the recovered token comes from ``(p - q)+``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Final

from specverify.laws.chain import Rule
from specverify.laws.distributions import (
    Distribution,
    Number,
    accept_probability,
    residual,
    total_variation,
)
from specverify.laws.sampling import apply_top_k


def output(p: Distribution, q: Distribution, rule: Rule) -> list[Number]:
    """Law of the first token that a rule emits (L7).

    Parameters
    ----------
    p, q
        Target and draft.
    rule
        Any rule that tests drafts one by one, lossless ones included.
    """
    law: list[Number] = [0] * len(p)
    for token, drafted in enumerate(q):
        if not drafted:
            continue
        kept = drafted * rule.accept(p, q, token)
        law[token] += kept
        if kept < drafted:
            recovered = rule.recovered(p, q, token)
            pairs = zip(law, recovered, strict=True)
            law = [mass + (drafted - kept) * r for mass, r in pairs]
    return law


def bias(p: Distribution, q: Distribution, rule: Rule) -> Number:
    """Total variation between what a rule emits and the target."""
    return total_variation(output(p, q, rule), p)


def acceptance_rate(p: Distribution, q: Distribution, rule: Rule) -> Number:
    """Probability that a rule accepts the draft."""
    return sum(m * rule.accept(p, q, token) for token, m in enumerate(q) if m)


def entropy(p: Distribution) -> float:
    """Shannon entropy in nats; tokens of probability 0 add nothing."""
    return -sum(float(mass) * math.log(mass) for mass in p if mass)


def lenient(lenience: Number = Fraction(1, 2)) -> Rule:
    """Accept with ``min(1, p / (l q))``, recover from ``(p - q)+``.

    L5 holds with equality: the bias is ``sum min(q, p/l) - sum min(p, q)``.

    Parameters
    ----------
    lenience
        l in (0, 1]; 1 is the lossless rule.

    Raises
    ------
    ValueError
        A setting out of range, here as below.
    """
    _check_share("lenience", lenience, positive=True)
    return _scaled(lambda p: lenience)


def entropy_scaled(
    factor: Number = Fraction(2, 5), cap: Number = Fraction(19, 20)
) -> Rule:
    """`lenient` with ``l = min(exp(-factor H(p)), cap)``, H the entropy of the target.

    Parameters
    ----------
    factor
        0 or more.
    cap
        In (0, 1].
    """
    _check_factor("factor", factor)
    _check_share("cap", cap, positive=True)
    return _scaled(lambda p: min(math.exp(-factor * entropy(p)), cap))


def typical(
    threshold: Number = Fraction(3, 10), entropy_factor: Number = Fraction(9, 100)
) -> Rule:
    """Accept iff ``p(x) > min(threshold, factor exp(-H(p)))``, recover from p.

    With A the accepted set and q' the draft's law given A, ``out - p = q(A) (q' - p)``:
    the bias is ``q(A) TV(q', p)``.

    Parameters
    ----------
    threshold
        In [0, 1].
    entropy_factor
        0 or more.
    """
    _check_share("threshold", threshold)
    _check_factor("entropy_factor", entropy_factor)

    # In floats, as an implementation compares: a fraction .3 exceeds the float .3.
    def accept(p: Distribution, _q: Distribution, token: int) -> Number:
        limit = min(float(threshold), float(entropy_factor) * math.exp(-entropy(p)))
        return int(float(p[token]) > limit)

    return Rule(accept, _from_target)


def top_k_accepted(top: int = 2) -> Rule:
    """Accept the `top` most likely tokens of the target, recover from p.

    A token of probability 0 is none of them. The bias is that of `typical`.

    Parameters
    ----------
    top
        1 or more.
    """
    if top < 1:
        msg = f"top is {top}; allowed are whole numbers of 1 or more"
        raise ValueError(msg)

    def accept(p: Distribution, _q: Distribution, token: int) -> Number:
        return int(apply_top_k(p, top)[token] > 0)

    return Rule(accept, _from_target)


def thresholded(
    threshold_single: Number = Fraction(3, 10), threshold_acc: Number = Fraction(1, 2)
) -> Rule:
    """Accept with ``min(1, p(x) / threshold_acc)``, surely at ``threshold_single``.

    q is not read; the recovered token comes from p without x. A draft x shifts
    ``a(x) - p(x)`` from the other tokens to itself, so the bias is at most
    ``sum q (a - p)``, which a one-hot draft reaches. With both at 1 it is zero.

    Parameters
    ----------
    threshold_single
        In (0, 1]: a token at least as likely is accepted always.
    threshold_acc
        In (0, 1].
    """
    _check_share("threshold_single", threshold_single, positive=True)
    _check_share("threshold_acc", threshold_acc, positive=True)

    def accept(p: Distribution, _q: Distribution, token: int) -> Number:
        if float(p[token]) >= float(threshold_single):
            return 1
        return accept_probability(p[token], threshold_acc)

    return Rule(accept, _without_draft)


def synthetic(rate: Number = Fraction(7, 10)) -> Rule:
    """Accept with the given probability whatever p and q, recover from ``(p - q)+``.

    ``out = rate q + (1 - rate) (p - q)+ / TV(p, q)``; p in the place of the residual
    where p = q.

    Parameters
    ----------
    rate
        In [0, 1].
    """
    _check_share("rate", rate)
    return Rule(lambda p, q, token: rate, _from_residual)


def _scaled(lenience: Callable[[Distribution], Number]) -> Rule:
    """Compare p with q times a number that depends on p alone."""

    def accept(p: Distribution, q: Distribution, token: int) -> Number:
        return accept_probability(p[token], lenience(p) * q[token])

    return Rule(accept, _from_residual)


def _from_residual(p: Distribution, q: Distribution, _rejected: int) -> Distribution:
    return residual(p, q)


def _from_target(p: Distribution, _q: Distribution, _rejected: int) -> Distribution:
    return p


def _without_draft(p: Distribution, _q: Distribution, rejected: int) -> Distribution:
    return residual(p, [int(token == rejected) for token in range(len(p))])


def _check_share(name: str, value: Number, *, positive: bool = False) -> None:
    if not 0 <= value <= 1 or (positive and value == 0):
        msg = f"{name} is {value}; allowed is {'(0, 1]' if positive else '[0, 1]'}"
        raise ValueError(msg)


def _check_factor(name: str, value: Number) -> None:
    if not 0 <= value < math.inf:
        msg = f"{name} is {value}; allowed are finite numbers of 0 or more"
        raise ValueError(msg)


#: Each rule with its default settings, by name.
RULES: Final[dict[str, Rule]] = {
    "lenient": lenient(),
    "typical": typical(),
    "threshold": thresholded(),
    "top-k": top_k_accepted(),
    "entropy": entropy_scaled(),
    "synthetic": synthetic(),
}
