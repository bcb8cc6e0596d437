# SPDX-License-Identifier: Apache-2.0
"""What one check works with: the subject on its rig, its levels, its time."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from specverify.checks.plan import Plan
from specverify.evidence.records import Counterexample, Effect, Grade, Status, Table
from specverify.inputs.cases import Case
from specverify.statistics.ledger import derive_seed
from specverify.subjects.protocol import Capabilities, Subject
from specverify.subjects.rig import Rig


@dataclass
class Session:
    """Surroundings of one check on one subject.

    Attributes
    ----------
    rig
        Calls the subject.
    plan
        What the run promises.
    check_id
        Enters the seeds, so that no two checks share a draw.
    share
        Error rate that this check may spend.
    seconds
        Its share of the time: generated inputs are tried until it has passed.
    limit
        Time that its named inputs may take, before they make do with fewer draws.
    shrink
        Whether to look for a smaller input after a violation.
    """

    rig: Rig
    plan: Plan
    check_id: str
    share: float
    seconds: float
    limit: float
    shrink: bool = True
    started: float = field(default_factory=time.monotonic)

    @property
    def subject(self) -> Subject:
        """What is under test."""
        return self.rig.subject

    @property
    def capabilities(self) -> Capabilities:
        """What it says it can do."""
        return self.rig.subject.capabilities

    @property
    def elapsed(self) -> float:
        """Seconds since the check began."""
        return time.monotonic() - self.started

    @property
    def late(self) -> bool:
        """Whether the time for named inputs has passed."""
        return self.elapsed > self.limit

    def seed(self, case: Case | None = None, purpose: str = "draws") -> int:
        """Seed of one stream of this check: fixed by salt, check, case and purpose."""
        key = case.key if case is not None else b""
        return derive_seed(self.plan.seed, self.check_id, key, purpose)


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check function returns; the conductor adds id, claim and time.

    The fields are those of `specverify.evidence.records.CheckRecord`; `effect` and
    `grade` override what the check declares.
    """

    status: Status
    reason: str = ""
    effect: Effect | None = None
    grade: Grade | None = None
    statistic: float | None = None
    df: int | None = None
    p_value: float | None = None
    log10_p: float | None = None
    e_value: float | None = None
    limit: float | None = None
    samples: int = 0
    examples: int = 0
    examples_planned: int = 0
    tv_estimate: float | None = None
    tv_upper: float | None = None
    detectable_tv: float | None = None
    counterexample: Counterexample | None = None
    likely_cause: str | None = None
    observations: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()

    def fields(self) -> dict[str, Any]:
        """What was set, as keyword arguments."""
        values = {name: getattr(self, name) for name in self.__slots__}
        return {name: value for name, value in values.items() if value is not None}
