# SPDX-License-Identifier: Apache-2.0
"""What a terminal shows: one conclusion, then number, place, smallest input, command."""

from __future__ import annotations

from collections.abc import Iterator

from specverify.evidence.records import CheckRecord, Evidence
from specverify.report.formats import number
from specverify.report.wording import (
    headline,
    inefficiencies,
    totals,
    verdict_notes,
    verdict_sentence,
    violations,
)

_INDENT = "  "


def verdict_text(evidence: Evidence) -> str:
    """The verdict with both errors, what limits it, and the counts."""
    return "\n".join(
        [
            f"{evidence.subject.name}: {headline(evidence)}",
            f"{_INDENT}{verdict_sentence(evidence)}",
            *(f"{_INDENT}{note}" for note in verdict_notes(evidence)),
            f"{_INDENT}{totals(evidence)}",
        ]
    )


def failure_text(evidence: Evidence) -> str:
    """Everything that a person needs who meets the failure in a log."""
    lines = [verdict_text(evidence)]
    failed = violations(evidence)
    for check in failed[:1]:
        lines += ["", *_in_full(check)]
    if len(failed) > 1:
        lines += ["", "Also violated:", *(_in_short(check) for check in failed[1:])]
    lines += _acceptance(evidence)
    undecided = evidence.with_status("inconclusive")
    if undecided:
        lines += ["", "Not decided:", *(_in_short(check) for check in undecided)]
    if evidence.missing:
        lines += ["", f"Promised, but not heard of: {', '.join(evidence.missing)}"]
    slow = inefficiencies(evidence)
    if slow:
        lines += ["", "Less efficient than declared:", *(_in_short(c) for c in slow)]
    return "\n".join(lines)


def _acceptance(evidence: Evidence) -> list[str]:
    """What the violation bought: acceptance beside theory, as one check observed it."""
    lines = [
        f"{_INDENT}{line}"
        for check in evidence.checks
        if check.id == "acceptance-bound"
        for line in check.observations
    ]
    return ["", "Acceptance:", *lines] if lines else []


def _in_full(check: CheckRecord) -> Iterator[str]:
    """One violation: what, by how much, where, on which input, and how to see it again."""
    yield f"{check.id} is violated: {check.claim} ({check.law})"
    yield f"{_INDENT}found       {check.reason}"
    if check.likely_cause:
        yield f"{_INDENT}cause       {check.likely_cause}"
    if check.tv_estimate is not None and check.effect == "law":
        yield f"{_INDENT}size        total variation about {number(check.tv_estimate)}"
    shown = check.counterexample
    if shown is None:
        return
    if shown.where and shown.where not in check.reason:
        yield from _block("where", shown.where.split("; "))
    for observation in check.observations:
        yield f"{_INDENT}            {observation}"
    yield from _block("smallest", shown.summary.splitlines())
    if shown.command:
        yield f"{_INDENT}reproduce   {shown.command}"
    if shown.script:
        yield f"{_INDENT}script      in the HTML report and the JSON evidence of this run"


def _block(head: str, lines: list[str]) -> Iterator[str]:
    for number_, line in enumerate(lines):
        yield f"{_INDENT}{head if not number_ else '':<12}{line}"


def _in_short(check: CheckRecord) -> str:
    return f"{_INDENT}{check.id:<22} {check.reason}"
