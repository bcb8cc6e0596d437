# SPDX-License-Identifier: Apache-2.0
"""Conduct a run: every check once, within its error rate and its time."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterable, Mapping
from importlib import metadata
from typing import Any

import torch

from specverify.checks.common import STEPS, default_case
from specverify.checks.diagnose import explained
from specverify.checks.draws import draw_steps
from specverify.checks.plan import Plan
from specverify.checks.registry import Check, checks_for, unknown_check
from specverify.checks.session import Finding, Session
from specverify.errors import UsageError
from specverify.evidence.records import CheckRecord, Evidence, SubjectInfo
from specverify.subjects.faults import SubjectFault, SubjectHung
from specverify.subjects.protocol import Subject
from specverify.subjects.rig import Rig

#: Called with every record as it comes in.
Listener = Callable[[CheckRecord], None]


def run_checks(
    subject: Subject,
    plan: Plan,
    *,
    pattern: str = "*",
    expected_failures: Mapping[str, str] | None = None,
    listener: Listener = lambda record: None,
) -> Evidence:
    """Run the checks for a subject and collect the evidence.

    Parameters
    ----------
    subject
        What is under test.
    plan
        Error rates, resolution, effort.
    pattern
        Glob over check ids. Checks that it leaves out are not promised.
    expected_failures
        Check id to reason: these must fail; a pass is then a violation.
    listener
        Hears each record.
    """
    checks = checks_for(subject.kind, pattern)
    expected = checked_failures(expected_failures, checks_for(subject.kind))
    rig = make_rig(subject, plan)
    started = time.monotonic()
    records: list[CheckRecord] = []
    for number, check in enumerate(checks):
        left = max(1.0, plan.max_seconds - (time.monotonic() - started))
        # One smallest input is worth its time; after it, witnesses say enough.
        shrink = not any(
            r.effect == "law" and r.grade != "exact" and r.status == "violation"
            for r in records
        )
        record = run_check(
            check,
            rig,
            plan,
            seconds=left / (len(checks) - number),
            limit=left / 2,
            expected=expected,
            shrink=shrink,
        )
        records.append(record)
        listener(record)
    return make_evidence(
        subject,
        plan,
        records,
        promised=[check.id for check in checks],
        seconds=time.monotonic() - started,
    )


def make_rig(subject: Subject, plan: Plan) -> Rig:
    """A rig for the device of the plan.

    Raises
    ------
    UsageError
        The subject does not run there, or the device does not exist.
    """
    kind = plan.device.split(":")[0]
    allowed = subject.capabilities.devices
    if kind not in allowed:
        msg = f"device is {plan.device!r}; {subject.name} runs on {', '.join(allowed)}"
        raise UsageError(msg)
    if kind == "cuda" and not torch.cuda.is_available():
        msg = "device is 'cuda', but torch sees no CUDA device here"
        raise UsageError(msg)
    try:
        rig = Rig(subject, device=plan.device, call_seconds=plan.call_seconds)
    except RuntimeError as error:
        raise UsageError(f"device is {plan.device!r}; torch says: {error}") from error
    if subject.kind in STEPS:
        _warm_up(rig)
    return rig


def _warm_up(rig: Rig) -> None:
    """Call once before the clock starts: imports and compilation are not slowness.

    Whatever goes wrong here goes wrong again in a check, which says so.
    """
    case = default_case(rig.subject)
    try:
        next(draw_steps(rig, case, 1, 0))
    except SubjectHung as hung:
        rig.remember_hang(hung)
    except SubjectFault:
        pass


def run_check(
    check: Check,
    rig: Rig,
    plan: Plan,
    *,
    seconds: float | None = None,
    limit: float | None = None,
    expected: Mapping[str, str] | None = None,
    shrink: bool = True,
    explain: bool = True,
) -> CheckRecord:
    """Run one check.

    Parameters
    ----------
    check, rig, plan
        What to run, on what, under which promises.
    seconds, limit
        Times of the check, see `Session`; a fair share and a quarter of the run's by
        default.
    expected
        Expected failures.
    shrink
        Whether to look for a smaller input after a violation.
    explain
        Whether to ask the catalogue for the cause of a violation, which takes draws.

    Notes
    -----
    Its error rate is the same share of the run's whether or not other checks run too,
    so selecting checks, or spreading them over workers, changes no verdict.
    """
    checks = checks_for(rig.subject.kind)
    session = Session(
        rig=rig,
        plan=plan,
        check_id=check.id,
        share=plan.error_rate / len(checks),
        seconds=seconds if seconds is not None else plan.max_seconds / len(checks),
        limit=limit if limit is not None else plan.max_seconds / 4,
        shrink=shrink and check.id not in (expected or {}),
    )
    reason = check.needs(rig.subject)
    finding = Finding("skipped", reason=reason) if reason else _find(check, session)
    fields: dict[str, Any] = {"effect": check.effect, "grade": check.grade}
    fields |= finding.fields()
    record = CheckRecord(
        id=check.id,
        claim=check.claim,
        law=check.law,
        duration_s=round(session.elapsed, 3),
        **fields,
    )
    if explain:
        record = explained(record, rig, plan)
    return as_expected(record, expected or {})


def as_expected(record: CheckRecord, expected: Mapping[str, str]) -> CheckRecord:
    """Hold a record against the expected failures; an unexpected pass is a violation."""
    if record.id not in expected or record.status == "skipped":
        return record
    if record.status == "violation":
        reason = f"expected: {expected[record.id]} ({record.reason})"
        return record.with_(status="expected_failure", reason=reason)
    reason = f"it was expected to fail ({expected[record.id]}), but the check passed"
    if record.status == "pass":
        return record.with_(status="violation", effect="contract", reason=reason)
    return record


def checked_failures(
    expected: Mapping[str, str] | None, checks: Iterable[Check]
) -> dict[str, str]:
    """Expected failures whose ids exist and whose reasons say something.

    Raises
    ------
    UsageError
        Unknown id (with the nearest one) or empty reason.
    """
    known = [check.id for check in checks]
    for name, reason in (expected or {}).items():
        if name not in known:
            raise UsageError(f"expected_failures: {unknown_check(name, known)}")
        if not reason.strip():
            msg = f"expected_failures[{name!r}] is empty; say why the check must fail"
            raise UsageError(msg)
    return dict(expected or {})


def make_evidence(
    subject: Subject,
    plan: Plan,
    records: Iterable[CheckRecord],
    *,
    promised: Iterable[str],
    seconds: float,
) -> Evidence:
    """Assemble the evidence of a run."""
    return Evidence(
        subject=SubjectInfo(
            name=subject.name,
            kind=subject.kind,
            source=subject.source,
            version=subject.version,
            capabilities=subject.declared(),
        ),
        claim=plan.claim,
        checks=tuple(records),
        checks_promised=tuple(promised),
        seed=plan.seed,
        profile=plan.profile,
        environment=environment(plan.device),
        duration_s=round(seconds, 3),
        strict_efficiency=plan.strict_efficiency,
    )


def environment(device: str) -> dict[str, str]:
    """Versions and machine, as far as they can matter for a verdict."""
    names = ("specverify-decoding", "torch", "numpy", "scipy", "hypothesis")
    found = {name: _version(name) for name in names}
    found |= {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device": device,
        "threads": str(torch.get_num_threads()),
    }
    if device.startswith("cuda"):
        found["gpu"] = torch.cuda.get_device_name(device)
        found["cuda"] = str(torch.version.cuda)
    return found


def _find(check: Check, session: Session) -> Finding:
    try:
        return check.run(session)
    except SubjectHung as hung:
        status = "inconclusive" if "not called again" in str(hung) else "violation"
        return Finding(status, reason=str(hung), effect="contract", grade="structural")  # type: ignore[arg-type]
    except SubjectFault as fault:
        return Finding(
            "violation", reason=str(fault), effect="contract", grade="structural"
        )


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "not installed"
