# SPDX-License-Identifier: Apache-2.0
"""Exact laws of rules that verify several drafts at one position.

A rule is the law of one verification given p, q and the drafts: an iterator of (emitted
token, slot of the accepted draft or -1, probability). A token counts as accepted when the
rule accepts it as a draft, not when a recovered token happens to equal one; where a rule
does count such hits, its docstring says so. All are lossless with the drafts that `RULES`
lists beside them, and some with others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from functools import lru_cache
from types import MappingProxyType
from typing import Final, NamedTuple, TypeAlias

from specverify.laws.distributions import (
    Distribution,
    Law,
    Number,
    accept_probability,
    excess,
    overlap,
    residual,
)
from specverify.laws.proposals import NO_TOKEN, Slots, draft_law, most_likely, removed
from specverify.laws.ranks import ranked, selected_law

#: Emitted token, slot of the accepted draft or -1, probability.
Outcomes: TypeAlias = Iterator[tuple[int, int, Number]]
#: The law of one verification, given p, q and the drafts.
NodeRule: TypeAlias = Callable[[Distribution, Distribution, Slots], Outcomes]

#: The root of K-SEQ is found to within 2^-40.
_KSEQ_BITS: Final = 40


# --- laws of a rule -------------------------------------------------------------------


def joint_law(
    rule: NodeRule, p: Distribution, q: Distribution, n: int, drafts: str
) -> Law[tuple[int, int]]:
    """Joint law of (emitted token, slot of the accepted draft or -1).

    Parameters
    ----------
    rule
        The verification.
    p, q
        Target and draft law.
    n, drafts
        Number of drafts and how they are drawn, see `draft_law`.
    """
    law: Law[tuple[int, int]] = {}
    for slots, mass in draft_law(q, n, drafts).items():
        for token, slot, share in rule(p, q, slots):
            law[token, slot] = law.get((token, slot), 0) + mass * share
    return law


def output_law(
    rule: NodeRule, p: Distribution, q: Distribution, n: int, drafts: str
) -> list[Number]:
    """Law of the emitted token, by token id; parameters as in `joint_law`."""
    law: list[Number] = [0] * len(p)
    for (token, _), mass in joint_law(rule, p, q, n, drafts).items():
        law[token] += mass
    return law


def acceptance(
    rule: NodeRule, p: Distribution, q: Distribution, n: int, drafts: str
) -> Number:
    """Probability that some draft is accepted; parameters as in `joint_law`."""
    law = joint_law(rule, p, q, n, drafts)
    return sum(mass for (_, slot), mass in law.items() if slot != NO_TOKEN)


# --- one draft after the other --------------------------------------------------------


def with_replacement(p: Distribution, q: Distribution, drafts: Slots) -> Outcomes:
    """Recursive rejection with independent drafts, each tested against the residual.

    References
    ----------
    Miao et al.: SpecInfer, ASPLOS 2024 (multi-step speculative sampling).
    """
    yield from _recursive(p, q, drafts, lambda law, _: law)


def without_replacement(p: Distribution, q: Distribution, drafts: Slots) -> Outcomes:
    """Recursive rejection with successive drafts: a rejected token also leaves q.

    References
    ----------
    Jeon et al.: Recursive speculative decoding, 2024. Chen et al.: Sequoia, NeurIPS 2024.
    """
    yield from _recursive(p, q, drafts, lambda law, token: removed(law, (token,)))


def _recursive(
    p: Distribution,
    q: Distribution,
    drafts: Slots,
    after: Callable[[Distribution, int], Distribution],
) -> Outcomes:
    rest: Number = 1
    for slot, token in enumerate(drafts):
        if token == NO_TOKEN or not rest:
            continue
        accept = accept_probability(p[token], q[token])
        if accept:
            yield token, slot, rest * accept
        rest *= 1 - accept
        p, q = residual(p, q), after(q, token)
    yield from _recovered(p, rest)


def _recovered(p: Distribution, weight: Number) -> Outcomes:
    for token, mass in enumerate(p):
        if mass and weight:
            yield token, NO_TOKEN, weight * mass


def kseq(
    p: Distribution, q: Distribution, drafts: Slots, *, rho: Number | None = None
) -> Outcomes:
    """K-SEQ of SpecTr: every independent draft is tested against ``p / rho``.

    Parameters
    ----------
    p, q, drafts
        As in every rule.
    rho
        Lossless from `kseq_rho` on, the default; smaller ones are lossy.

    References
    ----------
    Sun et al.: SpecTr, NeurIPS 2023, arXiv:2310.15141.
    """
    n = sum(token != NO_TOKEN for token in drafts)
    rho = _kseq_rho(tuple(p), tuple(q), max(n, 1)) if rho is None else rho
    scaled = [mass / rho for mass in p]
    rest: Number = 1
    for slot, token in enumerate(drafts):
        if token == NO_TOKEN:
            continue
        accept = accept_probability(scaled[token], q[token])
        if accept and rest:
            yield token, slot, rest * accept
        rest *= 1 - accept
    kept = overlap(scaled, q)
    once = sum(kept)
    share = (1 - (1 - once) ** n) / once if once else 0
    yield from _recovered(residual(p, [mass * share for mass in kept]), rest)


def kseq_rho(p: Distribution, q: Distribution, n: int) -> Number:
    """Smallest lossless rho of K-SEQ with n drafts, by bisection, from above.

    The root of ``1 - (1 - b)^n = rho b`` on [1, n], where ``b = sum min(p/rho, q)``. The
    answer exceeds it by at most 2^-40, so the residual is never negative and the law is
    p exactly.
    """
    return _kseq_rho(tuple(p), tuple(q), n)


@lru_cache(maxsize=256)
def _kseq_rho(p: tuple[Number, ...], q: tuple[Number, ...], n: int) -> Number:
    exact = not any(isinstance(mass, float) for mass in (*p, *q))
    low, high = (Fraction(1), Fraction(n)) if exact else (1.0, float(n))

    def enough(rho: Number) -> bool:
        once = sum(overlap([mass / rho for mass in p], q))
        return 1 - (1 - once) ** n <= rho * once

    if enough(low):
        return low
    for _ in range(_KSEQ_BITS + n.bit_length()):
        middle = (low + high) / 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


# --- several drafts at once -----------------------------------------------------------


def hub(p: Distribution, q: Distribution, drafts: Slots) -> Outcomes:
    """SpecHub: pairs that hold the most likely draft, each flow on what is left.

    With a the hub: x from (x, a), x from (a, x), a from (a, x), a from (x, a). Attains
    the largest acceptance that pairs of this law allow (L23).

    References
    ----------
    Sun et al.: SpecHub, EMNLP 2024, arXiv:2411.05289.
    """
    (a,) = most_likely(q, 1)
    plan = _hub_plan(p, q, a)
    if drafts[0] == a:
        accept_other, accept_hub, slot = *plan.behind_hub, 1
    else:
        accept_other, accept_hub, slot = *plan.before_hub, 0
    other = drafts[slot]
    accept = accept_other[other] if other != NO_TOKEN else 0
    if accept:
        yield other, slot, accept
    if accept_hub and accept < 1:
        yield a, 1 - slot, (1 - accept) * accept_hub
    yield from _recovered(plan.recovered, (1 - accept) * (1 - accept_hub))


class _HubPlan(NamedTuple):
    """Acceptance of the other token, by id, then of the hub; law of recovered tokens."""

    before_hub: tuple[Distribution, Number]  # in pairs (x, a)
    behind_hub: tuple[Distribution, Number]  # in pairs (a, x)
    recovered: Distribution


def _hub_plan(p: Distribution, q: Distribution, a: int) -> _HubPlan:
    rest = removed(q, (a,))
    before = [mass - mass if x == a else mass for x, mass in enumerate(q)]
    behind = [q[a] * mass for mass in rest]
    from_before = overlap(p, before)
    p_left = excess(p, from_before)
    from_behind = overlap(p_left, behind)
    p_left = excess(p_left, from_behind)
    open_behind = sum(excess(behind, from_behind)) if any(rest) else q[a]
    open_before = sum(excess(before, from_before))
    a_behind = min(p_left[a], open_behind)
    a_before = min(p_left[a] - a_behind, open_before)
    p_left[a] -= a_behind + a_before
    left = sum(p_left)
    return _HubPlan(
        (_quotients(from_before, before), a_before / (open_before or 1)),
        (_quotients(from_behind, behind), a_behind / (open_behind or 1)),
        [mass / (left or 1) for mass in p_left],
    )


def _quotients(parts: Distribution, masses: Distribution) -> list[Number]:
    return [part / (mass or 1) for part, mass in zip(parts, masses, strict=True)]


def greedy_draft(p: Distribution, q: Distribution, drafts: Slots) -> Outcomes:
    """Verify n - 1 fixed drafts T and one drawn from the rest, the drawn one first.

    It is tested with p, not renormalised, against q restricted to the rest; a recovered
    token counts as accepted when it is in T. Accepts ``p(T) + sum min(p, q / (1 - q(T)))``
    (sum outside T), the most that these drafts allow (L23).

    References
    ----------
    Hu et al.: Towards optimal multi-draft speculative decoding, ICLR 2025.
    """
    *fixed, drawn = drafts
    rest = removed(q, tuple(fixed))
    lost: Number = 1
    if drawn != NO_TOKEN:
        accept = accept_probability(p[drawn], rest[drawn])
        if accept:
            yield drawn, len(fixed), accept
        lost = 1 - accept
    for token, _, weight in _recovered(residual(p, rest), lost):
        yield token, fixed.index(token) if token in fixed else NO_TOKEN, weight


def target_only(p: Distribution, _q: Distribution, drafts: Slots) -> Outcomes:
    """Draw from p; accepted when the token is a draft. Lossless for any drafts (L25)."""
    for token, _, mass in _recovered(p, 1):
        yield token, drafts.index(token) if token in drafts else NO_TOKEN, mass


# --- select one draft, then verify it alone -------------------------------------------


def selection(p: Distribution, q: Distribution, drafts: Slots) -> Outcomes:
    """Select the independent draft of largest p/q, then verify it against its own law.

    References
    ----------
    Khisti et al.: Multi-draft speculative sampling, ICLR 2025 (the decomposition into
    selection and single-draft verification).
    """
    order = ranked(p, q)
    best = max(drafts, key=order.index)
    chosen = selected_law(p, q, len(drafts))
    yield from _verify_selected(p, chosen, best, drafts.index(best), 1)


def weighted_selection(
    p: Distribution,
    q: Distribution,
    drafts: Slots,
    *,
    first: Callable[[int, int], Number],
) -> Outcomes:
    """Select one of two independent drafts at random, then verify it against its law.

    Parameters
    ----------
    p, q, drafts
        As in every rule; two drafts.
    first
        Probability of selecting the first of two given tokens. Lossless for any.
    """
    chosen: list[Number] = [0] * len(q)
    for (x, y), mass in draft_law(q, 2, "iid").items():
        chosen[x] += mass * first(x, y)
        chosen[y] += mass * (1 - first(x, y))
    shares = first(*drafts), 1 - first(*drafts)
    for slot, (token, share) in enumerate(zip(drafts, shares, strict=True)):
        if share:
            yield from _verify_selected(p, chosen, token, slot, share)


def _verify_selected(
    p: Distribution, chosen: Distribution, token: int, slot: int, weight: Number
) -> Outcomes:
    accept = accept_probability(p[token], chosen[token])
    if accept:
        yield token, slot, weight * accept
    yield from _recovered(residual(p, chosen), weight * (1 - accept))


#: Lossless rules, each with a way of drawing the drafts that it is for.
RULES: Final[Mapping[str, tuple[NodeRule, str]]] = MappingProxyType(
    {
        "with_replacement": (with_replacement, "iid"),
        "without_replacement": (without_replacement, "without_replacement"),
        "kseq": (kseq, "iid"),
        "hub": (hub, "hub"),
        "greedy_draft": (greedy_draft, "greedy"),
        "selection": (selection, "iid"),
        "target_only": (target_only, "deterministic"),
        "sample_and_match": (target_only, "iid"),
    }
)
