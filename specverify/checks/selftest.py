# SPDX-License-Identifier: Apache-2.0
"""The instrument put to the test: planted defects and correct forms, in a minute."""

from __future__ import annotations

import fnmatch
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import torch

from specverify.checks.plan import Plan, make_plan
from specverify.checks.registry import Check, checks_for
from specverify.checks.run import make_rig, run_check
from specverify.defects.catalogue import (
    CATALOGUE,
    CONTROLS,
    DECODER_CONTROLS,
    DECODERS,
    FAMILIES,
)
from specverify.defects.entry import Defect
from specverify.errors import UsageError, nearest
from specverify.evidence.records import Status

Outcome = Literal["caught", "passed", "inconclusive", "none"]

#: Checks that are tried on a defect, the cheapest first, until one sees it.
_ORDER: Final = (
    "joint-law",
    "bonus-law",
    "one-hot-draft",
    "output-contract",
    "inputs-unchanged",
    "randomness",
    "row-independence",
    "batch-composition",
    "rounds",
    "support",
    "declared-drafts",
    "ragged-rows",
    "large-vocab",
    "greedy-ties",
    "exact-law",
    "dtypes",
    "vocab-padding",
    "vocab-permutation",
    "disjoint-supports",
    "draft-lengths",
)
_CONTROL_CHECKS: Final = ("output-contract", "inputs-unchanged", "joint-law", "support")
_EACH: Final = 3


@dataclass(frozen=True, slots=True)
class Trial:
    """What became of one entry of the catalogue.

    Attributes
    ----------
    defect
        The entry.
    caught_by
        The check that saw it; empty if none did.
    grade
        Of the evidence that it gave; empty if there is none.
    draws, seconds
        What that took, checks that saw nothing included.
    statuses
        What the checks said, up to the one that saw it.
    """

    defect: Defect
    caught_by: str
    grade: str
    draws: int
    seconds: float
    statuses: frozenset[Status]

    @property
    def outcome(self) -> Outcome:
        """In a word; "none" where no check applied."""
        if self.caught_by:
            return "caught"
        if "inconclusive" in self.statuses:
            return "inconclusive"
        return "passed" if "pass" in self.statuses else "none"

    @property
    def right(self) -> bool:
        """Whether a defect was caught, or a control let through."""
        return self.outcome == ("passed" if self.defect.effect == "none" else "caught")


def chosen(pattern: str | None = None) -> list[Defect]:
    """Entries whose id matches a glob pattern.

    By default a few defects of each family, those with the largest bias, and all controls.

    Raises
    ------
    UsageError
        Nothing matches.
    """
    every = {**CATALOGUE, **CONTROLS}
    if pattern:
        found = [d for id_, d in every.items() if fnmatch.fnmatchcase(id_, pattern)]
        if not found:
            raise UsageError(_nothing_called(pattern, every))
        return found
    picked: list[Defect] = []
    for family in FAMILIES:
        mine = [d for d in CATALOGUE.values() if d.family == family]
        mine.sort(key=lambda d: -d.bias)
        picked += mine[:_EACH]
    return [*picked, *CONTROLS.values()]


def _nothing_called(pattern: str, every: Mapping[str, Defect]) -> str:
    loops = {**DECODERS, **DECODER_CONTROLS}
    if fnmatch.filter(loops, pattern):
        return (
            f"{pattern!r} is a defect of a whole decoder; the selftest puts verification "
            "steps to the test"
        )
    return (
        f"no entry of the catalogue is called {pattern!r}{nearest(pattern, every)} "
        "All are printed by 'specverify list --defects'"
    )


def selftest(
    defects: Sequence[Defect], listener: Callable[[Trial], None] = lambda trial: None
) -> list[Trial]:
    """Try to catch each defect, and to let each control through.

    Parameters
    ----------
    defects
        Entries of the catalogue, see `chosen`.
    listener
        Hears each trial.
    """
    torch.set_num_threads(1)
    trials, plan = [], make_plan("quick", max_seconds=600)
    for defect in defects:
        trials.append(try_defect(defect, _checks(defect), plan))
        listener(trials[-1])
    return trials


def tally(trials: Sequence[Trial]) -> str:
    """What came of all trials, in a line."""
    defects = [trial for trial in trials if trial.defect.effect != "none"]
    controls = [trial for trial in trials if trial.defect.effect == "none"]
    caught = sum(trial.outcome == "caught" for trial in defects)
    flagged = sum(trial.outcome == "caught" for trial in controls)
    undecided = sum(trial.outcome in ("inconclusive", "none") for trial in trials)
    line = (
        f"caught {caught} of {len(defects)} defects, flagged {flagged} of "
        f"{len(controls)} correct forms"
    )
    return f"{line}; {undecided} not decided" if undecided else line


def try_defect(defect: Defect, checks: Iterable[Check], plan: Plan) -> Trial:
    """Run checks on one entry until one sees a violation that counts.

    Neither a smaller input nor the cause is looked for.
    """
    started, draws, caught_by, grade = time.monotonic(), 0, "", ""
    statuses: set[Status] = set()
    rig = make_rig(defect.subject(), plan)
    for check in checks:
        record = run_check(check, rig, plan, shrink=False, explain=False)
        draws += record.samples
        statuses.add(record.status)
        if record.status == "violation" and record.effect != "efficiency":
            caught_by, grade = record.id, record.grade
            break
    seconds = round(time.monotonic() - started, 2)
    return Trial(defect, caught_by, grade, draws, seconds, frozenset(statuses))


def _checks(defect: Defect) -> Iterator[Check]:
    by_id = {check.id: check for check in checks_for(defect.kind)}
    order = _CONTROL_CHECKS if defect.effect == "none" else _ORDER
    yield from (by_id[name] for name in order if name in by_id)
