# SPDX-License-Identifier: Apache-2.0
"""Follow a subject on one case after another, each law beside the one that is due."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Final

from specverify.checks.session import Session
from specverify.exact.stepping import StepLaw, injected_step_law, step_law
from specverify.exact.variables import Unfollowed
from specverify.inputs.cases import Case
from specverify.laws import distributions
from specverify.laws.distributions import Number
from specverify.subjects.faults import SubjectFault

#: Total variation granted to the rounding of float32 and to the grid of its uniforms.
TOLERANCE: Final = 1e-6
_LISTED: Final = 12

#: A law that a case must have, and the one that it has, over the same outcomes.
Laws = Callable[[Case, StepLaw], tuple[Mapping[Any, Number], Mapping[Any, Number]]]


@dataclass
class Comparison:
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
class Following:
    """Follows a subject on many cases."""

    session: Session
    laws: Laws
    done: dict[bytes, Comparison] = field(default_factory=dict)
    faults: dict[bytes, SubjectFault | Unfollowed] = field(default_factory=dict)

    def compare(self, case: Case) -> Comparison:
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
            self.done[case.key] = Comparison(case, law, *self.laws(case, law))
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
    def whole(self) -> list[Comparison]:
        """Cases that were followed to the end."""
        return [found for found in self.done.values() if found.whole()]

    def violates(self, case: Case) -> bool:
        """Whether the law is broken on a case; with no time left, it was not tried."""
        known = case.key in self.done or case.key in self.faults
        if not known and self.session.late:
            return False
        return self.compare(case).violated()


def _label(outcome: Any) -> str:
    return ",".join(map(str, outcome)) if isinstance(outcome, tuple) else str(outcome)
