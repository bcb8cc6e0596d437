# SPDX-License-Identifier: Apache-2.0
"""From a broken law to its likely cause: draw on a few inputs, ask the catalogue."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from weakref import WeakKeyDictionary

from specverify.checks.observations import CORRECT, SETTINGS, correct_laws, observe
from specverify.checks.plan import Plan
from specverify.defects.catalogue import CATALOGUE
from specverify.defects.diagnosis import Cause, diagnose, in_words
from specverify.defects.laws import key_of, load
from specverify.errors import EvidenceError
from specverify.evidence.records import CheckRecord, Evidence, Table
from specverify.subjects.answers import NO_BONUS
from specverify.subjects.protocol import Subject
from specverify.subjects.rig import Rig

_TITLE: Final = "emitted tokens for the diagnosis, witness "
#: Which check's evidence holds what was drawn: its own setting, the first one the rest.
_HOLDER: Final = "joint-law"
_Found = tuple[list[Cause], tuple[Table, ...]]
_CAUSES: Final[WeakKeyDictionary[Rig, _Found]] = WeakKeyDictionary()
#: What checks say by themselves where the catalogue knows nothing better.
_HINTS: Final = {
    "row-independence": "rows of one call share random numbers",
    "batch-composition": "a row is verified with inputs of another row of its batch",
    "rounds": "random numbers or state are carried from one step to the next",
    "bonus-law": "the bonus token is drawn from another row than the target's last",
    "inputs-unchanged": "an input is used as scratch memory and not restored",
    "ragged-rows": "rows with fewer drafts are verified beyond their length",
    "declared-drafts": "the q that is declared is not the law that the drafts are drawn "
    "from",
}


def explained(record: CheckRecord, rig: Rig, plan: Plan) -> CheckRecord:
    """Add the likely cause to a violation, and what it was drawn from.

    Parameters
    ----------
    record
        What a check found.
    rig
        Calls the subject: some thousand draws more, once for all its violations.
    plan
        Fixes the seeds.
    """
    if record.status != "violation" or record.likely_cause:
        return record
    hint = _HINTS.get(record.id)
    if NO_BONUS in (record.reason or ""):
        hint = f"bonus-missing: {CATALOGUE['bonus-missing'].sentence}"
    if record.counterexample is None or not _of_a_known_law(record, rig.subject):
        return record.with_(likely_cause=hint)
    if rig not in _CAUSES:
        _CAUSES[rig] = _causes_of(rig, plan)
    causes, tables = _CAUSES[rig]
    named = causes and causes[0].ids and "lossless" not in causes[0].ids
    if not causes or (hint and not named):
        return record.with_(likely_cause=hint)
    words = in_words(causes, {d.id: d.sentence for d in CATALOGUE.values()})
    mine = tuple(table for table in tables if _holder(table) == record.id)
    return record.with_(likely_cause=words, tables=(*record.tables, *mine))


def _of_a_known_law(record: CheckRecord, subject: Subject) -> bool:
    """Whether the catalogue may know what breaks the law, or couples rows or steps."""
    settings = SETTINGS.values()
    sampling = subject.kind in CORRECT and not subject.capabilities.greedy
    return sampling and (record.effect == "law" or record.id in settings)


def _holder(table: Table) -> str:
    """Id of the check whose evidence keeps a table: however a run is cut into parts."""
    return SETTINGS.get(table.title.removeprefix(_TITLE), _HOLDER)


def diagnosed(evidence: Evidence) -> str:
    """Ask the catalogue again about a run, from what its evidence holds.

    Raises
    ------
    EvidenceError
        No law was broken, or nothing was drawn for a diagnosis.
    """
    tables = [
        table
        for check in evidence.checks
        for table in check.tables
        if table.title.startswith(_TITLE)
    ]
    about = evidence.subject
    known = load().get(key_of(about.kind, about.capabilities), {}) if tables else {}
    said = [check.likely_cause for check in evidence.checks if check.likely_cause]
    if not known and said:
        return said[0]
    if not known:
        msg = (
            "the evidence holds no draws for a diagnosis: it is made where the law of a "
            "chain, of several drafts or of a tree is broken"
        )
        raise EvidenceError(msg)
    observed, correct = {}, {}
    for table in tables:
        name, n = table.title.removeprefix(_TITLE), max(sum(table.observed), 1)
        observed[name] = dict(zip(table.labels, table.observed, strict=True))
        correct[name] = {
            cell: mass / n
            for cell, mass in zip(table.labels, table.expected, strict=True)
        }
    causes = diagnose(observed, known, correct)
    return in_words(causes, {d.id: d.sentence for d in CATALOGUE.values()})


def _causes_of(rig: Rig, plan: Plan) -> _Found:
    """Rank the known defects for a subject; nothing where none is known for its kind."""
    known = load().get(key_of(rig.subject.kind, rig.subject.declared()), {})
    observed = observe(rig, plan.seed) if known else {}
    if not observed:
        return [], ()
    correct = correct_laws(rig.subject)
    tables = tuple(_table(name, observed[name], correct[name]) for name in observed)
    return diagnose(observed, known, correct), tables


def _table(name: str, counts: Mapping[str, int], law: Mapping[str, float]) -> Table:
    labels = tuple(sorted({*counts, *law}))
    n = sum(counts.values())
    return Table(
        title=f"{_TITLE}{name}",
        kind="law",
        labels=labels,
        observed=tuple(counts.get(cell, 0) for cell in labels),
        expected=tuple(float(f"{n * law.get(cell, 0.0):.6g}") for cell in labels),
    )
