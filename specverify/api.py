# SPDX-License-Identifier: Apache-2.0
"""The doors for Python: `check_lossless` for any script, `parametrize` for pytest."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from specverify import recorder
from specverify.checks.plan import Plan, make_plan
from specverify.checks.registry import Check, checks_for
from specverify.checks.run import (
    checked_failures,
    make_evidence,
    make_rig,
    run_check,
    run_checks,
)
from specverify.errors import InconclusiveError, LosslessnessError, SubjectUnavailable
from specverify.evidence.files import to_json
from specverify.evidence.records import Evidence
from specverify.report.text import failure_text
from specverify.subjects.protocol import Kind, Subject
from specverify.subjects.resolve import resolve
from specverify.subjects.rig import Rig

if TYPE_CHECKING:
    import pytest

Target = str | Subject | Callable[..., Any]


def check_lossless(
    target: Target,
    *,
    kind: Kind | None = None,
    profile: str = "ci",
    checks: str = "*",
    expected_failures: Mapping[str, str] | None = None,
    **settings: Any,
) -> Evidence:
    """Prove an implementation lossless, to a stated resolution, or raise.

    Parameters
    ----------
    target
        A function with the signature of a verifier, a subject, or what
        ``specverify run`` takes: ``"transformers"``, ``"pkg.module:verify"``.
    kind
        Contract of a plain function: "chain" (default), "multidraft", "tree" or "exercise".
    profile
        "quick", "ci" or "nightly".
    checks
        Glob over check ids; the claim is then about those alone.
    expected_failures
        Check id to reason. Strict: an expected failure that passes fails.
    **settings
        Fields of `specverify.checks.plan.Plan`: error_rate, detect_tv, power, seed,
        device, max_seconds, call_seconds, examples, strict_efficiency.

    Returns
    -------
    Evidence
        Of a lossless subject.

    Raises
    ------
    LosslessnessError
        The subject is lossy or broken; ``error.evidence`` holds everything.
    InconclusiveError
        The run could not do what it promised.
    UsageError
        The request itself is wrong.

    Notes
    -----
    Guarantee: (a) a correct subject raises with probability at most `error_rate` (1e-9);
    (b) a subject whose law is off by a total variation of `detect_tv` or more on one of
    the tested inputs passes with probability at most ``1 - power`` (asymptotic).
    """
    subject = resolve(target, kind=kind)
    evidence = run_checks(
        subject,
        make_plan(profile, **settings),
        pattern=checks,
        expected_failures=expected_failures,
    )
    raise_if_failed(evidence)
    return evidence


def raise_if_failed(evidence: Evidence) -> None:
    """Raise `LosslessnessError` unless the verdict is lossless."""
    if evidence.verdict == "lossless":
        return
    text = failure_text(evidence)
    if evidence.verdict == "inconclusive":
        raise InconclusiveError(text, evidence)
    raise LosslessnessError(text, evidence)


def parametrize(
    targets: Sequence[Target],
    *,
    kind: Kind | None = None,
    profile: str = "ci",
    checks: str = "*",
    expected_failures: Mapping[str, str] | None = None,
    **settings: Any,
) -> pytest.MarkDecorator:
    """Make one pytest item of each (subject, check).

    Decorates a test with the parameters ``subject`` and ``check`` whose body calls
    ``check(subject)``. Selection, sharding, xdist and xfail then work as for any test.

    Parameters
    ----------
    targets
        Functions, subjects, or names that ``specverify run`` takes. An engine that is
        not installed makes one skipped item.
    kind, profile, checks, expected_failures, **settings
        As in `check_lossless`; ``--specverify-*`` options of pytest win over them.

    Returns
    -------
    pytest.MarkDecorator
        ``pytest.mark.parametrize`` with ids ``subject-check``.
    """
    import pytest

    make_plan(profile, **settings)  # refuse what is wrong before any test runs
    params = []
    names: dict[str, int] = {}
    for target in targets:
        try:
            subject = resolve(target, kind=kind)
        except SubjectUnavailable as missing:
            skip = pytest.mark.skip(reason=str(missing))
            params.append(pytest.param(None, None, id=f"{target}", marks=skip))
            continue
        names[subject.name] = names.get(subject.name, 0) + 1
        repeat = names[subject.name]
        name = subject.name if repeat == 1 else f"{subject.name}-{repeat}"
        chosen = checks_for(subject.kind, checks)
        expected = checked_failures(expected_failures, checks_for(subject.kind))
        for check in chosen:
            item = CheckItem(check, name, profile, settings, expected, chosen)
            params.append(pytest.param(subject, item, id=f"{name}-{check.id}"))
    return pytest.mark.parametrize(("subject", "check"), params)


class CheckItem:
    """One check as a callable for a pytest item: raises, skips or xfails.

    Parameters
    ----------
    check
        What to run.
    name
        Unique name of the subject in this test.
    profile, settings, expected
        As given to `parametrize`.
    promised
        All checks of the same subject and test.
    """

    def __init__(
        self,
        check: Check,
        name: str,
        profile: str,
        settings: Mapping[str, Any],
        expected: Mapping[str, str],
        promised: Sequence[Check],
    ) -> None:
        self.check = check
        self._name = name
        self._profile = profile
        self._settings = dict(settings)
        self._expected = expected
        self._promised = [check.id for check in promised]

    def __repr__(self) -> str:
        """Id of the check."""
        return self.check.id

    def plan(self) -> Plan:
        """Settings of this item; the command line of pytest wins over the code."""
        merged = {"profile": self._profile, **self._settings, **recorder.overrides}
        return make_plan(**merged)

    def __call__(self, subject: Subject) -> None:
        """Run the check on the subject; leave the evidence to the plugin."""
        import pytest

        __tracebackhide__ = True
        plan = self.plan()
        with _fair_threads():
            record = run_check(
                self.check, _rig(subject, plan), plan, expected=self._expected
            )
        evidence = make_evidence(
            subject, plan, [record], promised=[self.check.id], seconds=record.duration_s
        )
        document = to_json(evidence)
        recorder.record(
            {"name": self._name, "promised": self._promised, "evidence": document}
        )
        if record.status == "skipped":
            pytest.skip(record.reason)
        if record.status == "expected_failure":
            pytest.xfail(record.reason)
        failing = record.effect != "efficiency" or plan.strict_efficiency
        if record.status == "inconclusive" and failing:
            raise InconclusiveError(failure_text(evidence), evidence)
        if record.status == "violation" and failing:
            raise LosslessnessError(failure_text(evidence), evidence)


@contextlib.contextmanager
def _fair_threads() -> Iterator[None]:
    """Share the cores among the workers of pytest-xdist for the length of a check.

    Each worker would otherwise start as many threads as there are cores, and all of them
    wait for each other.
    """
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    before = torch.get_num_threads()
    torch.set_num_threads(max(1, min(before, (os.cpu_count() or 1) // workers)))
    try:
        yield
    finally:
        torch.set_num_threads(before)


_rigs: dict[tuple[int, Plan], Rig] = {}


def _rig(subject: Subject, plan: Plan) -> Rig:
    """One rig for each subject of a process: a subject that hung is not called again.

    By identity, since not every callable can be hashed; the rig keeps the subject.
    """
    key = (id(subject), plan)
    if key not in _rigs:
        _rigs[key] = make_rig(subject, plan)
    return _rigs[key]
