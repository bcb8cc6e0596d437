# SPDX-License-Identifier: Apache-2.0
"""The law itself, where the subject's random calls can be followed: no sampling, no error.

Each branch of the subject is run once, with the weight of the random numbers that lead
there. What comes out is the subject's law in its own floating-point arithmetic, so that the
comparison with the target's has a tolerance for rounding and no error rate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import islice
from typing import Any, Final

from specverify.checks import rules
from specverify.checks.acceptance import needs_rule
from specverify.checks.common import (
    STEPS,
    allowed,
    needs_bonus,
)
from specverify.checks.exact_cases import named_cases, small_case, small_cases
from specverify.checks.following import TOLERANCE, Comparison, Following, Laws
from specverify.checks.registry import check
from specverify.checks.reproduce import counterexample
from specverify.checks.search import find_smallest
from specverify.checks.session import Finding, Session
from specverify.exact.stepping import StepLaw
from specverify.exact.variables import Unfollowed
from specverify.inputs import witnesses
from specverify.inputs.cases import Case
from specverify.inputs.trees import MultidraftCase
from specverify.laws import distributions, steps
from specverify.laws.distributions import Number, Prefix
from specverify.subjects.faults import SubjectFault, SubjectHung
from specverify.subjects.protocol import Subject

_LEAST_EXAMPLES: Final = 20
_SHRINK_EXAMPLES: Final = 60
#: Branches on one input beyond which they, not the subject's speed, are the obstacle.
_MANY_BRANCHES: Final = 300


@check(
    "exact-law",
    "The law of the tokens of a step, computed by following each of its random calls, is "
    "the target's.",
    law="L2, L13",
    grade="exact",
    kinds=STEPS,
)
def exact_joint_law(session: Session) -> Finding:
    """Witnesses, and at least 20 generated cases; k from 0 on."""

    def laws(case: Case, law: StepLaw) -> tuple[Mapping[Prefix, Number], ...]:
        found = steps.completed_law(law.emitted(), case.due, case.emits)
        return steps.autoregressive_law(case.due, case.emits), found

    return _judge(session, laws, named_cases(session), search=True)  # type: ignore[arg-type]


@check(
    "exact-acceptance",
    "The exact joint law of emitted tokens and acceptance is that of the declared rule.",
    law="L3, L14",
    effect="efficiency",
    grade="exact",
    kinds=STEPS,
    needs=needs_rule,
)
def exact_acceptance(session: Session) -> Finding:
    """Emitted tokens before completion."""
    rule = str(session.capabilities.efficiency)

    def laws(case: Case, law: StepLaw) -> tuple[Mapping[Any, Number], ...]:
        if not isinstance(case, MultidraftCase):
            return rules.emitted_law(case, rule), law.emitted()
        due: dict[Any, Number] = {}
        for (token, slot), mass in rules.token_slot_law(case, rule).items():
            due[token, slot >= 0] = due.get((token, slot >= 0), 0) + mass
        found: dict[Any, Number] = {}
        for (_, tokens, hit), mass in law.outcomes.items():
            cell = (tokens[0], bool(hit))
            found[cell] = found.get(cell, 0) + mass
        return due, found

    named = [witnesses.W, witnesses.J1, witnesses.S1]
    small = [small_case(session, case) for case in named]
    cases = [case for case in small if case is not None]
    return _judge(session, laws, cases)  # type: ignore[arg-type]


def needs_token_rule(subject: Subject) -> str:
    """Reason to skip the coupling law, which token-level verification alone has."""
    if subject.capabilities.efficiency != "token" or subject.draft is not None:
        return "the coupling of draft and output is fixed for efficiency='token' only"
    return needs_bonus(subject)


@check(
    "exact-coupling",
    "The exact joint law of draft and output is the maximal coupling: given a rejection, "
    "the recovered token does not depend on the rejected one.",
    law="L4",
    effect="efficiency",
    grade="exact",
    needs=needs_token_rule,
)
def exact_coupling(session: Session) -> Finding:
    """First draft and first token, for one draft."""

    def laws(case: Case, law: StepLaw) -> tuple[Mapping[Any, Number], ...]:
        due = distributions.coupling(case.due(()), case.draft(()))
        found: dict[Any, Number] = {}
        for (drafts, tokens, _), mass in law.outcomes.items():
            cell = (drafts[0], tokens[0])
            found[cell] = found.get(cell, 0) + mass
        return due, found

    named = [witnesses.W, witnesses.S1.with_(k=1), witnesses.C5]
    return _judge(session, laws, allowed(session, named))  # type: ignore[arg-type]


def _judge(
    session: Session, laws: Laws, named: list[Case], *, search: bool = False
) -> Finding:
    """Follow the subject on named and generated cases; the smallest violation is shown."""
    found = Following(session, laws)
    wrong: list[Case] = []
    try:
        violating = filter(found.violates, named)
        wrong = list(violating if session.shrink else islice(violating, 1))
        wrong.sort(key=lambda case: (case.vocab, case.k))
        if search and (session.shrink or not wrong):
            wrong = [*_generated(session, found, failed=bool(wrong)), *wrong]
    except Unfollowed as reason:
        # What was followed to its end, and is wrong, stays wrong.
        wrong = [c.case for c in found.done.values() if c.violated()]
        if not wrong:
            words = f"its law cannot be computed exactly: {reason}"
            return Finding("skipped", reason=words)
    except SubjectHung:
        raise  # it may have hung before this check, which the run knows
    except SubjectFault as fault:
        return Finding(
            "violation", reason=str(fault), effect="contract", grade="structural"
        )
    planned = len(named) + (_examples(session) if search else 0)
    common = Finding(
        "pass",
        examples=len(found.whole),
        examples_planned=planned,
        tv_upper=max((c.distance for c in found.whole), default=0.0),
        observations=tuple(_boundaries(found)),
    )
    if wrong:
        return _violation(session, found.compare(wrong[0]), common)
    return _passed(found, named, common)


def _generated(session: Session, found: Following, *, failed: bool) -> list[Case]:
    examples = _SHRINK_EXAMPLES if failed else _examples(session)
    smallest = find_smallest(
        small_cases(session),
        found.violates,
        examples=examples,
        seed=session.seed(purpose="examples"),
    )
    return [] if smallest is None else [smallest]


def _examples(session: Session) -> int:
    return max(_LEAST_EXAMPLES, session.plan.examples // 4)


def _passed(found: Following, named: list[Case], common: Finding) -> Finding:
    """No violation: a pass if all named cases were followed to the end."""
    if not found.done:
        return replace(common, status="skipped", reason="no input fits the subject")
    lost = [
        c for c in named if c.key not in found.done or not found.done[c.key].whole()
    ]
    if lost:
        return _cut_short(found, f"{len(lost)} of {len(named)} named inputs", common)
    branches = sum(c.law.branches for c in found.whole)
    words = [f"{branches} branches were followed on {len(found.whole)} inputs"]
    if left := common.examples_planned - len(found.whole):
        words.append(f"{left} generated inputs were not tried, or cut off by the time")
    return replace(
        common,
        detectable_tv=TOLERANCE,
        observations=(*words, *common.observations),
    )


def _cut_short(found: Following, lost: str, common: Finding) -> Finding:
    """Some named cases were not followed to the end.

    If that is for want of time, more of it was needed to keep the promise. If there are
    too many branches, this check is not for the subject, and the sampled ones decide.
    """
    begun = [c.law for c in found.done.values() if not c.whole()]
    branches = max((law.branches for law in begun), default=0)
    if branches >= _MANY_BRANCHES:
        reason = (
            f"on {lost} it has more branches than can be followed ({branches} on one were "
            f"not all); the law holds on the {len(found.whole)} that were followed to the "
            "end"
        )
        return replace(common, status="skipped", reason=reason)
    reason = (
        f"{lost} were not followed to the end in the time, which allowed {branches} "
        "branches on one; allow more with --max-seconds"
    )
    return replace(common, status="inconclusive", reason=reason)


def _violation(session: Session, worst: Comparison, common: Finding) -> Finding:
    return replace(
        common,
        status="violation",
        reason=(
            f"computed exactly over {worst.law.branches} branches, the law is off by a "
            f"total variation of {worst.distance:.7f}"
        ),
        tv_estimate=worst.distance,
        counterexample=counterexample(session, worst.case, worst.where()),
    )


def _boundaries(found: Following) -> list[str]:
    """Impossible outcomes that rounding lets through, with their exact probability."""
    worst = max(found.done.values(), key=lambda c: c.impossible, default=None)
    if worst is None or not worst.impossible or worst.violated():
        return []
    place = worst.case.name or "a generated input"
    words = (
        f"outcomes of probability zero come out with probability {worst.impossible} = "
        f"{float(worst.impossible):.2g} on {place}: a uniform at the edge of its grid is "
        "accepted"
    )
    return [words]
