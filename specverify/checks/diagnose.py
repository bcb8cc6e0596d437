# SPDX-License-Identifier: Apache-2.0
"""From a broken law to its likely cause: draw on a few inputs, ask the catalogue."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final
from weakref import WeakKeyDictionary

import numpy as np

from specverify.checks import rules
from specverify.checks.draws import draw_steps
from specverify.checks.plan import Plan
from specverify.defects.catalogue import CATALOGUE
from specverify.defects.diagnosis import Cause, Observations, diagnose, in_words
from specverify.defects.laws import diagnosis_cases, key_of, label, load
from specverify.errors import EvidenceError
from specverify.evidence.records import CheckRecord, Evidence, Table
from specverify.inputs.cases import Case
from specverify.inputs.trees import MultidraftCase
from specverify.statistics.ledger import derive_seed
from specverify.subjects.faults import SubjectFault
from specverify.subjects.rig import Rig

_ROWS: Final = 4000
_BATCH: Final = 250
_SECONDS: Final = 8.0
#: The check whose evidence holds the draws of the diagnosis, for all of a run.
_HOLDER: Final = "joint-law"
_TITLE: Final = "emitted tokens for the diagnosis, witness "
_Found = tuple[list[Cause], tuple[Table, ...]]
_CAUSES: Final[WeakKeyDictionary[Rig, _Found]] = WeakKeyDictionary()
#: Rule whose emitted law stands for "nothing wrong", by kind.
_CORRECT: Final = {"chain": "token", "multidraft": "target_only", "tree": "target_only"}
#: What checks say by themselves where no law of a single row is broken.
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
    """Add the likely cause to a violation, and to the joint law what it was drawn from.

    Parameters
    ----------
    record
        What a check found.
    rig
        Calls the subject: a few thousand more draws, once for all its violations.
    plan
        Fixes the seeds.
    """
    if record.status != "violation" or record.likely_cause:
        return record
    hint = _HINTS.get(record.id)
    own = rig.subject.capabilities
    sampled = record.effect == "law" and record.counterexample is not None
    if not sampled or own.greedy or rig.subject.kind not in _CORRECT:
        return record.with_(likely_cause=hint)
    if rig not in _CAUSES:
        _CAUSES[rig] = _causes_of(rig, plan)
    causes, tables = _CAUSES[rig]
    if not causes or (hint and "lossless" in causes[0].ids):
        return record.with_(likely_cause=hint)
    words = in_words(causes, {d.id: d.sentence for d in CATALOGUE.values()})
    kept = (*record.tables, *tables) if record.id == _HOLDER else record.tables
    return record.with_(likely_cause=words, tables=kept)


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


def _causes_of(rig: Rig, plan: Plan) -> tuple[list[Cause], tuple[Table, ...]]:
    """Rank the known defects for a subject; nothing where none is known for its kind."""
    known = load().get(key_of(rig.subject.kind, rig.subject.declared()), {})
    cases = diagnosis_cases(rig.subject)
    observed = observe(rig, cases, plan) if known else {}
    if not observed:
        return [], ()
    correct = {name: correct_law(rig, cases[name]) for name in observed}
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
        expected=tuple(n * law.get(cell, 0.0) for cell in labels),
    )


def observe(rig: Rig, cases: dict[str, Case], plan: Plan) -> Observations:
    """Count emitted tokens on each input, as many rows as the time allows."""
    deadline = time.monotonic() + _SECONDS
    observed: dict[str, dict[str, int]] = {}
    for name, case in cases.items():
        if not rig.subject.capabilities.allows(getattr(case, "n", case.k)):
            continue
        seed = derive_seed(plan.seed, "diagnosis", case.key)
        counts: dict[str, int] = {}
        try:
            for step in draw_steps(rig, case, _ROWS, seed, batch=_BATCH):
                rows, seen = np.unique(
                    step.emission.token_ids, axis=0, return_counts=True
                )
                for row, count in zip(rows.tolist(), seen.tolist(), strict=True):
                    cell = label(tuple(token for token in row if token >= 0))
                    counts[cell] = counts.get(cell, 0) + count
                if time.monotonic() > deadline:
                    break
        except SubjectFault:
            return {}
        observed[name] = counts
    return observed


def correct_law(rig: Rig, case: Case) -> dict[str, float]:
    """Law of the emitted tokens of the declared rule, where nothing is wrong."""
    rule = rig.subject.capabilities.efficiency or _CORRECT[rig.subject.kind]
    if isinstance(case, MultidraftCase):
        law: dict[str, float] = {}
        for (token, _), mass in rules.token_slot_law(case, rule).items():
            law[str(token)] = law.get(str(token), 0.0) + float(mass)
        return law
    return {
        label(tokens): float(mass)
        for tokens, mass in rules.emitted_law(case, rule).items()
    }
