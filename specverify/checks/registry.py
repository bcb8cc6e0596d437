# SPDX-License-Identifier: Apache-2.0
"""The list of checks, in the order in which they run and are reported."""

from __future__ import annotations

import fnmatch
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from specverify.checks.session import Finding, Session
from specverify.errors import UsageError, nearest
from specverify.evidence.records import Effect, Grade
from specverify.subjects.protocol import Kind, Subject

#: Says why a check does not apply to a subject; empty if it does.
Needs = Callable[[Subject], str]


@dataclass(frozen=True, slots=True)
class Check:
    """One claim about a subject.

    Attributes
    ----------
    id, claim, law
        Name, one sentence, and the law or contract that it states.
    effect, grade, kinds
        What a violation means, what evidence it gives, which contracts it is for.
    needs
        Reason for which a subject is passed over, if any.
    run
        The function itself.
    """

    id: str
    claim: str
    law: str
    effect: Effect
    grade: Grade
    kinds: tuple[Kind, ...]
    needs: Needs
    run: Callable[[Session], Finding]


CHECKS: Final[dict[str, Check]] = {}

#: Modules that register checks, in the order of runs and reports.
_MODULES: Final = tuple(
    f"specverify.checks.{name}"
    for name in (
        "contract",
        "exact",
        "joint",
        "rows",
        "acceptance",
        "drafting",
        "exercise",
    )
)


def check(
    id_: str,
    claim: str,
    *,
    law: str,
    effect: Effect = "law",
    grade: Grade = "statistical",
    kinds: tuple[Kind, ...] = ("chain",),
    needs: Needs = lambda subject: "",
) -> Callable[[Callable[[Session], Finding]], Callable[[Session], Finding]]:
    """Register the decorated function as a check; see `Check` for the parameters."""

    def register(run: Callable[[Session], Finding]) -> Callable[[Session], Finding]:
        if id_ in CHECKS:
            msg = f"check id {id_!r} is taken"
            raise ValueError(msg)
        CHECKS[id_] = Check(id_, claim, law, effect, grade, kinds, needs, run)
        return run

    return register


def checks_for(kind: Kind, pattern: str = "*") -> list[Check]:
    """Checks for one kind of subject whose id matches a glob pattern, in order.

    Raises
    ------
    UsageError
        No check matches.
    """
    for module in _MODULES:
        importlib.import_module(module)
    of_kind = [c for c in CHECKS.values() if kind in c.kinds]
    # Whoever imported one of the modules first must not change the order.
    of_kind.sort(key=lambda c: _MODULES.index(c.run.__module__))
    chosen = [c for c in of_kind if fnmatch.fnmatchcase(c.id, pattern)]
    if not chosen:
        raise UsageError(unknown_check(pattern, [c.id for c in of_kind]))
    return chosen


def unknown_check(name: str, known: list[str]) -> str:
    """Say that a check id does not exist, with the nearest one that does."""
    return f"no check is called {name!r}{nearest(name, known)} Known are {', '.join(known)}"
