# SPDX-License-Identifier: Apache-2.0
"""What a report says in words.

The sentences are the part of a report that people quote, so they are made in one place,
for all formats. Every verdict states both of its errors, and what it does not claim.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from specverify.evidence.records import CheckRecord, Evidence, Status, Verdict
from specverify.report.formats import (
    duration,
    e_needed,
    e_value,
    number,
    p_value,
    plural,
)

#: Symbol and word of each verdict; colour never stands alone.
VERDICTS: Final[dict[Verdict, tuple[str, str]]] = {
    "lossless": ("✓", "LOSSLESS"),
    "lossy": ("✗", "LOSSY"),
    "broken": ("✗", "BROKEN"),
    "inconclusive": ("?", "INCONCLUSIVE"),
}
#: Symbol and word of each status.
STATUSES: Final[dict[Status, tuple[str, str]]] = {
    "violation": ("✗", "violation"),
    "inconclusive": ("?", "inconclusive"),
    "expected_failure": ("!", "expected failure"),
    "pass": ("✓", "pass"),
    "skipped": ("–", "skipped"),
}


_EXACT_LAW: Final = "exact-law"
_EXERCISE_RIGHT: Final = (
    "The accept/reject rule is right, but this alone is not yet a lossless decoder, "
    "because the recovered token after a rejection and the bonus token after full "
    "acceptance are missing"
)


@dataclass(frozen=True, slots=True)
class Counts:
    """How many checks ended how; `run` are those that were neither skipped nor missing.

    Attributes
    ----------
    promised
        What the suite has for this kind of subject.
    missing
        Promised checks of which nothing was heard.
    """

    run: int
    promised: int
    violations: int
    undecided: int
    expected: int
    skipped: int
    missing: int


def counts(evidence: Evidence) -> Counts:
    """Count the checks of a run by their outcome."""
    skipped = len(evidence.with_status("skipped"))
    return Counts(
        run=len(evidence.checks) - skipped,
        promised=len(evidence.checks_promised),
        violations=len(violations(evidence)),
        undecided=len(evidence.with_status("inconclusive")),
        expected=len(evidence.with_status("expected_failure")),
        skipped=skipped,
        missing=len(evidence.missing),
    )


def violations(evidence: Evidence) -> tuple[CheckRecord, ...]:
    """Violations that make the subject fail."""
    return tuple(c for c in evidence.with_status("violation") if _fails(evidence, c))


def inefficiencies(evidence: Evidence) -> tuple[CheckRecord, ...]:
    """Efficiency findings that are reported and make nobody fail."""
    found = evidence.with_status("violation")
    return tuple(c for c in found if not _fails(evidence, c))


def outcome(evidence: Evidence, check: CheckRecord) -> tuple[str, str, str]:
    """Kind, symbol and word of how a check ended."""
    if check in inefficiencies(evidence):
        return "inefficient", "!", "inefficient"
    return check.status, *STATUSES[check.status]


def headline(evidence: Evidence) -> str:
    """The verdict in a few words, without its symbol."""
    word = VERDICTS[evidence.verdict][1]
    if evidence.verdict != "lossless":
        return word
    what = " accept/reject rule" if evidence.subject.kind == "exercise" else ""
    return f"{word}{what} at the tested resolution"


def verdict_sentence(evidence: Evidence) -> str:
    """One sentence: what the verdict claims, both error rates, what it leaves open."""
    opening, closing = _claim(evidence)
    return f"{opening}: {_false_alarm(evidence)}; {_resolution(evidence)}; {closing}."


def verdict_notes(evidence: Evidence) -> tuple[str, ...]:
    """Sentences on what the verdict rests on: declared, exact, skipped, too coarse."""
    notes = (
        _declared(evidence),
        _exact(evidence),
        _uncovered(evidence),
        _coarse(evidence),
    )
    return tuple(note for note in notes if note)


def decision(check: CheckRecord) -> str:
    """The numbers that decided a check, on one line."""
    parts = []
    if check.e_value is not None:
        parts.append(
            f"e-value {e_value(check.e_value)}, {e_needed(check.limit)} needed"
        )
    if check.statistic is not None:
        df = "" if check.df is None else f" on {check.df} df"
        beside = "; beside it " if parts else ""
        parts.append(f"{beside}chi-square {number(check.statistic, 4)}{df}")
    if check.p_value is not None or check.log10_p is not None:
        decided = check.e_value is None and check.limit is not None
        limit = f" (limit {number(check.limit, 2)})" if decided else ""
        parts.append(f"p = {p_value(check.p_value, check.log10_p)}{limit}")
    if check.grade == "exact" and check.tv_estimate is not None:
        parts.append(f"exact total variation {number(check.tv_estimate)}")
    if not parts and check.grade == "structural":
        parts.append("an event that the law excludes: one sight is a proof")
    return ", ".join(parts).replace(", ; ", "; ") or "no statistic"


def totals(evidence: Evidence) -> str:
    """Checks, draws and time on one line."""
    tally = counts(evidence)
    ran = f"{tally.run} of {tally.promised} promised checks ran"
    rest = f"{tally.skipped} skipped, {tally.missing} missing"
    drawn = f"{plural(evidence.samples, 'draw')} in {duration(evidence.duration_s)}"
    return f"{ran}, {rest}; {drawn}"


def _fails(evidence: Evidence, check: CheckRecord) -> bool:
    return check.effect != "efficiency" or evidence.strict_efficiency


def _claim(evidence: Evidence) -> tuple[str, str]:
    """What is claimed, and what is not."""
    exercise = evidence.subject.kind == "exercise"
    failed = plural(len(violations(evidence)), "check")
    if evidence.verdict == "lossless":
        return (
            _EXERCISE_RIGHT if exercise else _none_found(evidence),
            "smaller biases and inputs that were not tested are not excluded",
        )
    if evidence.verdict == "lossy":
        return _lossy(evidence), "how large the bias is on other inputs is not claimed"
    if evidence.verdict == "broken":
        what = "this exercise" if exercise else f"a {evidence.subject.kind} subject"
        return (
            f"The contract of {what} is violated ({failed})",
            "nothing is claimed about its law beyond the checks that passed",
        )
    return (
        f"The run could not do what it promised ({_shortfall(evidence)})",
        "neither that the subject is lossless nor that it is lossy is claimed",
    )


def _none_found(evidence: Evidence) -> str:
    if evidence.with_status("expected_failure"):
        return "No deviation was found beyond the declared failures"
    return "No deviation from the target's law was found"


def _lossy(evidence: Evidence) -> str:
    found = violations(evidence)
    law = sum(check.effect == "law" for check in found)
    if law == 0:
        return (
            "The subject accepts less than its declared rule could "
            f"({plural(len(found), 'check')}), which this run was told to count"
        )
    if evidence.subject.kind == "exercise":
        return f"The accept/reject rule is wrong ({plural(law, 'check')} violated)"
    told = f"{plural(law, 'check')} violated"
    return f"The emitted tokens do not follow the target's law ({told})"


def _shortfall(evidence: Evidence) -> str:
    tally = counts(evidence)
    parts = []
    if tally.missing:
        parts.append(f"{plural(tally.missing, 'check')} missing")
    if tally.undecided:
        parts.append(f"{plural(tally.undecided, 'check')} undecided")
    if not any(check.effect == "law" for check in evidence.with_status("pass")):
        parts.append("no law was tested and held")
    return ", ".join(parts)


def _false_alarm(evidence: Evidence) -> str:
    rate = number(evidence.claim.error_rate)
    return f"a correct subject would fail such a run with probability at most {rate}"


def _resolution(evidence: Evidence) -> str:
    if evidence.detectable_tv is None:
        if any(check.grade == "exact" for check in evidence.with_status("pass")):
            return (
                "where evidence is exact, the law was computed on each input tested, "
                "to the precision of the arithmetic"
            )
        return "no check states the smallest bias that it would have seen"
    bias, power = number(evidence.detectable_tv), number(evidence.claim.power, 6)
    return (
        f"on the inputs tested, a bias of total variation {bias} or more "
        f"would have been seen with probability {power}"
    )


def _declared(evidence: Evidence) -> str:
    names = [check.id for check in evidence.with_status("expected_failure")]
    if not names:
        return ""
    return (
        f"Failures that were declared beforehand do not count: {', '.join(names)}. "
        "The verdict holds apart from them."
    )


def _exact(evidence: Evidence) -> str:
    """Say whether the law itself was computed, beside what was sampled."""
    for check in evidence.checks:
        if check.id != _EXACT_LAW:
            continue
        if check.status == "pass" and check.tv_upper is not None:
            return (
                f"On {plural(check.examples, 'input')} the law itself was computed, by "
                "following every random call: it is off by a total variation of at most "
                f"{number(check.tv_upper, 2)}."
            )
        if check.status == "skipped":
            return f"Statistical evidence only: {check.reason}."
    return ""


def _uncovered(evidence: Evidence) -> str:
    tally = counts(evidence)
    if not tally.skipped and not tally.missing:
        return ""
    return (
        f"{tally.skipped} skipped and {tally.missing} missing of {tally.promised} "
        "promised checks: what they would have tested is not covered."
    )


def _coarse(evidence: Evidence) -> str:
    """Warn if the run was asked to see smaller biases than it could."""
    reached, asked = evidence.detectable_tv, evidence.claim.detect_tv
    if reached is None or reached <= asked:
        return ""
    return (
        f"The run was asked to see a total variation of {number(asked)}; "
        f"its coarsest check reaches {number(reached)}."
    )
