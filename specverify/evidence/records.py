# SPDX-License-Identifier: Apache-2.0
"""Results as plain data: what a check found, what a run concludes.

Everything here is made of strings, numbers, tuples and mappings, so that it can travel
on a pytest report, be written as JSON, be merged and be rendered, in a process that has
never imported torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

Status = Literal["pass", "violation", "skipped", "expected_failure", "inconclusive"]
Effect = Literal["law", "contract", "efficiency"]
Grade = Literal["exact", "structural", "statistical"]
Verdict = Literal["lossless", "lossy", "broken", "inconclusive"]

#: Version of the evidence document. Only additive changes keep the major number.
SCHEMA_VERSION: Final = "1.0"
#: Version of the set of checks: two runs compare only if this agrees.
SUITE_VERSION: Final = "2026.2"


@dataclass(frozen=True, slots=True)
class Table:
    """Observed counts beside the law they should follow, for one input.

    Attributes
    ----------
    title
        What was counted, on which input.
    kind
        ``"law"`` for outcomes of a distribution, ``"position"`` for one success count a
        draft position (then `trials` holds the number of attempts at each).
    labels
        One name a cell, for example ``"0,2"`` for the tokens 0 then 2.
    observed
        Counts, one a cell.
    expected
        Expected counts under the law, one a cell.
    trials
        Attempts a cell; empty for ``kind="law"``.
    """

    title: str
    kind: Literal["law", "position"]
    labels: tuple[str, ...]
    observed: tuple[int, ...]
    expected: tuple[float, ...]
    trials: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Counterexample:
    """The smallest input found that shows a violation.

    Attributes
    ----------
    summary
        The input in words: vocab, k, p and q of every context.
    where
        Token and position with observed and expected frequency, or the broken promise.
    case
        The input as JSON data, readable by `specverify.inputs.Case.from_json`.
    seed
        Seed of the draws that showed the violation.
    command
        A shell command that repeats this check on this input.
    script
        A self-contained Python script that shows the same.
    """

    summary: str
    where: str
    case: Mapping[str, Any]
    seed: int
    command: str = ""
    script: str = ""


@dataclass(frozen=True, slots=True)
class CheckRecord:
    """What one check found out about one subject.

    Attributes
    ----------
    id, claim, law
        Identifier, the claim in one sentence, the law or contract it refers to.
    status, effect, grade
        Outcome; whether a violation makes the subject ``lossy`` (law), ``broken``
        (contract) or merely inefficient; and the kind of evidence.
    statistic, df, p_value, log10_p, e_value, limit
        The deciding test: its statistic, degrees of freedom, p-value and its base-10
        logarithm (a p-value below 1e-308 is zero as a float), e-value as log10, and the
        p-value below which the check is a violation after correction.
    samples, examples, examples_planned
        Draws in total; distinct inputs tried; inputs that the profile asks for.
    tv_estimate, tv_upper, detectable_tv
        Total variation: estimate, upper confidence bound, smallest bias that would have
        been seen with the stated power (worst over the inputs tried).
    reason
        Why the status is what it is, in one sentence. Empty for a plain pass.
    observations
        Findings that do not decide, such as the measured acceptance.
    """

    id: str
    claim: str
    law: str
    status: Status
    effect: Effect
    grade: Grade
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
    reason: str = ""
    counterexample: Counterexample | None = None
    likely_cause: str | None = None
    observations: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    duration_s: float = 0.0

    def with_(self, **changes: Any) -> CheckRecord:
        """Copy with some fields changed."""
        return replace(self, **changes)


@dataclass(frozen=True, slots=True)
class SubjectInfo:
    """Which implementation was under test."""

    name: str
    kind: str
    source: str
    version: str
    capabilities: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Claim:
    """Both errors that a verdict states.

    Attributes
    ----------
    error_rate
        Probability that a correct subject is called lossy or broken, for the whole run.
    detect_tv
        Total variation that must not go unseen on a tested input.
    power
        Probability of seeing a bias of `detect_tv`.
    """

    error_rate: float
    detect_tv: float
    power: float


@dataclass(frozen=True, slots=True)
class Evidence:
    """One run: a subject, what was promised, what was found.

    Attributes
    ----------
    checks_promised
        Ids of all checks that the suite has for this kind of subject, whether or not
        they ran: a shorter list of `checks` makes the verdict inconclusive.
    seed
        The salt of every draw in the run.
    strict_efficiency
        Whether an efficiency violation makes the subject fail.
    """

    subject: SubjectInfo
    claim: Claim
    checks: tuple[CheckRecord, ...]
    checks_promised: tuple[str, ...]
    seed: int
    profile: str
    environment: Mapping[str, str] = field(default_factory=dict)
    duration_s: float = 0.0
    strict_efficiency: bool = False
    schema_version: str = SCHEMA_VERSION
    suite_version: str = SUITE_VERSION

    @property
    def verdict(self) -> Verdict:
        """What the run concludes; see `conclude`."""
        return conclude(
            self.checks, self.checks_promised, strict_efficiency=self.strict_efficiency
        )

    @property
    def missing(self) -> tuple[str, ...]:
        """Promised checks of which nothing was heard."""
        reported = {check.id for check in self.checks}
        return tuple(name for name in self.checks_promised if name not in reported)

    @property
    def detectable_tv(self) -> float | None:
        """The coarsest resolution among the checks that ran; None if none has one."""
        found = [c.detectable_tv for c in self.checks if c.detectable_tv is not None]
        return max(found, default=None)

    @property
    def samples(self) -> int:
        """Draws of all checks together."""
        return sum(check.samples for check in self.checks)

    def __getitem__(self, id_: str) -> CheckRecord:
        """The record of one check."""
        for check in self.checks:
            if check.id == id_:
                return check
        msg = f"no check {id_!r} reported; there are {[c.id for c in self.checks]}"
        raise KeyError(msg)

    def with_status(self, status: Status) -> tuple[CheckRecord, ...]:
        """Select the checks that ended in `status`, in order."""
        return tuple(check for check in self.checks if check.status == status)

    def with_(self, **changes: Any) -> Evidence:
        """Copy with some fields changed."""
        return replace(self, **changes)


def conclude(
    checks: Iterable[CheckRecord],
    promised: Sequence[str],
    *,
    strict_efficiency: bool = False,
) -> Verdict:
    """Turn the records of a run into its verdict.

    A law violation outranks a broken contract, which outranks everything that could not
    be decided. Only a run in which every promised check reported, and at least one law
    was tested and held, is lossless.

    Parameters
    ----------
    checks
        One record for each check that reported.
    promised
        Ids of the checks that should have reported.
    strict_efficiency
        Count an efficiency violation as a law violation.
    """
    records = list(checks)
    effects = {c.effect for c in records if c.status == "violation"}
    if "law" in effects or (strict_efficiency and "efficiency" in effects):
        return "lossy"
    if "contract" in effects:
        return "broken"
    reported = {c.id for c in records}
    undecided = any(
        c.status == "inconclusive" and (strict_efficiency or c.effect != "efficiency")
        for c in records
    )
    passed = any(c.status == "pass" and c.effect == "law" for c in records)
    if undecided or not passed or not reported.issuperset(promised):
        return "inconclusive"
    return "lossless"
