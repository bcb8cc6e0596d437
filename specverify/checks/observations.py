# SPDX-License-Identifier: Apache-2.0
"""What a diagnosis looks at: emitted tokens on a few inputs, and in batches and loops."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np

from specverify.checks import rules, tabulate
from specverify.checks.common import fit
from specverify.checks.comparison import Tabulation
from specverify.checks.draws import draw_steps
from specverify.checks.rows import needs_batches, needs_ragged
from specverify.defects.diagnosis import Observations
from specverify.defects.laws import Law, label
from specverify.inputs import witnesses
from specverify.inputs.cases import Case
from specverify.inputs.trees import MultidraftCase, multidraft_case, tree_case
from specverify.statistics.ledger import derive_seed
from specverify.subjects.faults import SubjectFault
from specverify.subjects.protocol import Subject
from specverify.subjects.rig import Rig

_ROWS: Final = 4000
_BATCH: Final = 250
_SECONDS: Final = 8.0
#: Rule whose emitted law stands for "nothing wrong", by kind.
CORRECT: Final = {"chain": "token", "multidraft": "target_only", "tree": "target_only"}
#: Ways of observing whole batches and loops, by name; the check that counts so.
SETTINGS: Final = {
    "M1, among other rows": "batch-composition",
    "P2, step after step": "rounds",
    "M1, rows of all lengths": "ragged-rows",
}


def single_cases(subject: Subject) -> dict[str, Case]:
    """Inputs on which defects are told apart, by name, in the form of the kind."""
    drafts = subject.capabilities.drafts
    if subject.kind == "multidraft":
        n = 2
        return {
            case.name: multidraft_case(case, n, drafts)
            for case in (witnesses.W, witnesses.S1, witnesses.C5)
        }
    if subject.kind == "tree":
        shape = (-1, 0, 1, 0, 3) if drafts == "paths" else (-1, 0, 0, 1, 1)
        way = "iid" if drafts == "paths" else drafts
        named = (witnesses.M1, witnesses.J2)
        return {case.name: tree_case(case, shape, way) for case in named}
    chains = [witnesses.W, witnesses.J2, witnesses.M1, witnesses.C5]
    if subject.capabilities.draft_probs is False:
        chains = [witnesses.O1, witnesses.O2]
    return {case.name: case for case in chains}


def settings(subject: Subject) -> dict[str, Tabulation]:
    """Batches and loops that the subject takes: what single rows do not show."""
    if subject.kind != "chain":
        return {}
    among, after, ragged = SETTINGS
    found: dict[str, Tabulation] = {}
    m1, p2 = fit(subject, witnesses.M1), fit(subject, witnesses.P2)
    if m1 and not needs_batches(subject):
        found[among] = tabulate.mixed_batch(m1)
    if p2:
        found[after] = tabulate.rounds(p2)
    if m1 and not needs_ragged(subject):
        found[ragged] = tabulate.ragged(m1)
    return found


def observe(
    rig: Rig, seed: int, *, rows: int = _ROWS, seconds: float = _SECONDS
) -> Observations:
    """Count emitted tokens on each input, as many rows as the time allows.

    Nothing where the subject fails: it is broken otherwise.
    """
    deadline = time.monotonic() + seconds
    observed: dict[str, Mapping[str, int]] = {}
    try:
        for name, case in single_cases(rig.subject).items():
            if rig.subject.capabilities.allows(getattr(case, "n", case.k)):
                own = derive_seed(seed, "diagnosis", case.key)
                observed[name] = _emitted(rig, case, rows, own, deadline)
        return observed | in_settings(rig, seed, rows=rows, deadline=deadline)
    except SubjectFault:
        return {}


def in_settings(
    rig: Rig, seed: int, *, rows: int, deadline: float = math.inf
) -> dict[str, Mapping[str, int]]:
    """Count what comes out of batches and loops."""
    return {
        name: _counted(rig, found, rows, derive_seed(seed, "diagnosis", name), deadline)
        for name, found in settings(rig.subject).items()
        if time.monotonic() < deadline
    }


def _emitted(
    rig: Rig, case: Case, rows: int, seed: int, deadline: float
) -> dict[str, int]:
    """Tokens of single steps, before completion."""
    counts: dict[str, int] = {}
    for step in draw_steps(rig, case, rows, seed, batch=_BATCH):
        found, seen = np.unique(step.emission.token_ids, axis=0, return_counts=True)
        for row, count in zip(found.tolist(), seen.tolist(), strict=True):
            cell = label(tuple(token for token in row if token >= 0))
            counts[cell] = counts.get(cell, 0) + count
        if time.monotonic() > deadline:
            break
    return counts


def _counted(
    rig: Rig, tabulation: Tabulation, rows: int, seed: int, deadline: float
) -> dict[str, int]:
    """Cells of a tabulation, in parts so that the clock is looked at."""
    counts = np.zeros(len(tabulation.labels), np.int64)
    for part in range(0, rows, _BATCH):
        counts += tabulation.count(rig, _BATCH, derive_seed(seed, str(part)))
        if time.monotonic() > deadline:
            break
    return dict(zip(tabulation.labels, counts.tolist(), strict=True))


def correct_laws(subject: Subject) -> dict[str, Law]:
    """Laws on all inputs where nothing is wrong: those of the declared rule."""
    rule = subject.capabilities.efficiency or CORRECT[subject.kind]
    laws = {
        name: dict(_correct(case, rule)) for name, case in single_cases(subject).items()
    }
    for name, tabulation in settings(subject).items():
        assert tabulation.probs is not None  # noqa: S101 - all have a law
        laws[name] = dict(
            zip(tabulation.labels, tabulation.probs.tolist(), strict=True)
        )
    return laws


def _correct(case: Case, rule: str) -> Iterator[tuple[str, float]]:
    if isinstance(case, MultidraftCase):
        law: dict[int, float] = {}
        for (token, _), mass in rules.token_slot_law(case, rule).items():
            law[token] = law.get(token, 0.0) + float(mass)
        yield from ((str(token), mass) for token, mass in law.items())
    else:
        for tokens, mass in rules.emitted_law(case, rule).items():
            yield label(tokens), float(mass)
