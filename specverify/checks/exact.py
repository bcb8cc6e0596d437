# SPDX-License-Identifier: Apache-2.0
"""The law itself, where the subject's random calls can be followed: no sampling, no error.

Each branch of the subject is run once, with the weight of the random numbers that lead
there. What comes out is the subject's law in its own floating-point arithmetic, so that the
comparison with the target's has a tolerance for rounding and no error rate.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
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
from specverify.checks.registry import check
from specverify.checks.reproduce import counterexample
from specverify.checks.search import find_smallest
from specverify.checks.session import Finding, Session
from specverify.exact.stepping import StepLaw, injected_step_law, step_law
from specverify.exact.variables import Unfollowed
from specverify.inputs import witnesses
from specverify.inputs.cases import Case
from specverify.inputs.trees import MultidraftCase
from specverify.laws import distributions, steps
from specverify.laws.distributions import Number, Prefix
from specverify.subjects.faults import SubjectFault
from specverify.subjects.protocol import Subject

#: Total variation granted to the rounding of float32 and to the grid of its uniforms.
TOLERANCE: Final = 1e-6


_LEAST_EXAMPLES: Final = 20
_SHRINK_EXAMPLES: Final = 60
_LISTED: Final = 12

#: A law that a case must have, and the one that it has, over the same outcomes.
Laws = Callable[[Case, StepLaw], tuple[Mapping[Any, Number], Mapping[Any, Number]]]


@dataclass
class _Comparison:
    """What was found on one case."""

    case: Case
    law: StepLaw
    due: Mapping[Any, Number]
    found: Mapping[Any, Number]

    @property
    def distance(self) -> float:
        """Total variation, the part that was not followed excluded."""
        return float(distributions.law_distance(self.found, self.due))

    @property
    def surplus(self) -> float:
        """Mass above the law: a lower bound, whatever was not followed."""
        over = (mass - self.due.get(x, 0) for x, mass in self.found.items())
        return float(sum(extra for extra in over if extra > 0))

    @property
    def impossible(self) -> Fraction:
        """Mass of outcomes that must not be."""
        return sum(
            (Fraction(m) for x, m in self.found.items() if not self.due.get(x)),
            Fraction(0),
        )

    def violated(self) -> bool:
        """Whether the laws differ by more than rounding."""
        return self.surplus > TOLERANCE

    def whole(self) -> bool:
        """Whether what was not followed is no more than rounding."""
        return float(self.law.unfollowed) <= TOLERANCE

    def where(self) -> str:
        """The outcomes that differ, both laws side by side."""
        cells = sorted(
            {*self.found, *self.due},
            key=lambda x: -abs(float(self.found.get(x, 0) - self.due.get(x, 0))),
        )
        lines = [
            f"{_label(x)}: exactly {float(self.found.get(x, 0)):.7f}, due "
            f"{float(self.due.get(x, 0)):.7f} "
            f"({float(self.found.get(x, 0) - self.due.get(x, 0)):+.7f})"
            for x in cells[:_LISTED]
        ]
        hidden = len(cells) - len(lines)
        return "; ".join([*lines, *([f"and {hidden} more"] if hidden else [])])


@dataclass
class _Search:
    """Follows a subject on many cases."""

    session: Session
    laws: Laws
    done: dict[bytes, _Comparison] = field(default_factory=dict)
    faults: dict[bytes, SubjectFault | Unfollowed] = field(default_factory=dict)

    def compare(self, case: Case) -> _Comparison:
        """Follow the subject on a case, once."""
        if case.key in self.faults:  # a replay must end as the first time did
            raise self.faults[case.key]
        if case.key not in self.done:
            left = self.session.limit - self.session.elapsed
            try:  # an input with branches without end leaves time for the others
                law = self._follow(case, max(left / 4, 1.0))
            except (SubjectFault, Unfollowed) as fault:
                self.faults[case.key] = fault
                raise
            self.done[case.key] = _Comparison(case, law, *self.laws(case, law))
        return self.done[case.key]

    def _follow(self, case: Case, seconds: float) -> StepLaw:
        try:
            return step_law(self.session.rig, case, seconds=seconds)
        except Unfollowed:
            if self.session.capabilities.rng != "uniforms":
                raise
            # It may be compiled code: what it does with given uniforms can be asked.
            seed = self.session.seed(case, "probes")
            return injected_step_law(self.session.rig, case, seed=seed)

    @property
    def whole(self) -> list[_Comparison]:
        """Cases that were followed to the end."""
        return [found for found in self.done.values() if found.whole()]

    def violates(self, case: Case) -> bool:
        """Whether the law is broken on a case; with no time left, it was not tried."""
        known = case.key in self.done or case.key in self.faults
        if not known and self.session.late:
            return False
        return self.compare(case).violated()


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
    found = _Search(session, laws)
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
    return _passed(found, common)


def _generated(session: Session, found: _Search, *, failed: bool) -> list[Case]:
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


def _passed(found: _Search, common: Finding) -> Finding:
    if not found.done:
        return replace(common, status="skipped", reason="no input fits the subject")
    cut = max(found.done.values(), key=lambda c: c.law.unfollowed)
    short = (
        f"{cut.law.branches} branches were followed on an input, and probability "
        f"{float(cut.law.unfollowed):.3g} was not reached"
    )
    if not found.whole:
        reason = f"{short}; allow more time with --max-seconds"
        return replace(common, status="inconclusive", reason=reason)
    branches = sum(c.law.branches for c in found.whole)
    words = [f"{branches} branches were followed on {len(found.whole)} inputs"]
    if left := len(found.done) - len(found.whole):
        words.append(f"{left} inputs have too many branches for the time: {short}")
    return replace(
        common,
        detectable_tv=TOLERANCE,
        observations=(*words, *common.observations),
    )


def _violation(session: Session, worst: _Comparison, common: Finding) -> Finding:
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


def _boundaries(found: _Search) -> list[str]:
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


def _label(outcome: Any) -> str:
    return ",".join(map(str, outcome)) if isinstance(outcome, tuple) else str(outcome)
