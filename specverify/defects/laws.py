# SPDX-License-Identifier: Apache-2.0
"""Laws of all defects on the inputs of a diagnosis, kept in ``laws.json``.

``python -m specverify.defects.laws`` computes them again, by following each defect exactly;
what cannot be followed (noise shared with the drafter) is drawn instead, a million times.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from specverify.defects.catalogue import CATALOGUE
from specverify.defects.entry import Defect
from specverify.exact.stepping import step_law
from specverify.exact.variables import Unfollowed
from specverify.inputs import witnesses
from specverify.inputs.cases import Case
from specverify.inputs.trees import multidraft_case, tree_case
from specverify.laws.distributions import Prefix
from specverify.subjects.faults import SubjectFault
from specverify.subjects.protocol import Subject
from specverify.subjects.rig import Rig

FloatArray = NDArray[np.float64]
#: Law of the emitted tokens by their label: tokens joined by commas.
Law = dict[str, float]

_DRAWS: Final = 1_000_000
_UNIT: Final = 1_000_000
_FILE: Final = "laws.json"


def diagnosis_cases(subject: Subject) -> dict[str, Case]:
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


def key_of(kind: str, declared: Mapping[str, Any]) -> str:
    """Kinds of subjects whose laws compare: kind, drafts, who drafts, what is taken.

    Parameters
    ----------
    kind, declared
        Of the subject: `Subject.kind`, and `Subject.declared` or what evidence keeps of it.
    """
    parts = [kind]
    if kind != "chain":
        parts.append(str(declared["drafts"]))
    if declared["draft_probs"] is False:
        parts.append("deterministic")
    if declared.get("drafter"):
        parts.append("drafter")
    return " ".join(parts)


def label(tokens: Prefix) -> str:
    """Name of emitted tokens in a law."""
    return ",".join(map(str, tokens))


def emitted_law(defect: Defect, case: Case) -> Law:
    """Law of the emitted tokens of a defect on a case; empty if it cannot take the case."""
    rig = Rig(defect.subject())
    try:
        found = step_law(rig, case, max_branches=20_000, seconds=60)
        law = {label(tokens): float(mass) for tokens, mass in found.emitted().items()}
    except Unfollowed:
        law = _drawn(rig, case)
    except SubjectFault:
        return {}
    return law


def _drawn(rig: Rig, case: Case) -> Law:
    """Shares of emitted tokens in many draws."""
    rng, stream = np.random.default_rng(0), rig.stream(0)
    counts: dict[str, int] = {}
    try:
        for size in rig.chunks(case, _DRAWS):
            none = np.empty((size, 0), np.int64)
            _, emission = rig.step(case, none, stream, rng)
            rows, seen = np.unique(emission.token_ids, axis=0, return_counts=True)
            for row, count in zip(rows.tolist(), seen.tolist(), strict=True):
                name = label(tuple(token for token in row if token >= 0))
                counts[name] = counts.get(name, 0) + count
    except SubjectFault:
        return {}
    total = sum(counts.values())
    return {name: count / total for name, count in counts.items()}


def compute(defects: Mapping[str, Defect] = CATALOGUE) -> dict[str, Any]:
    """Laws of all defects, packed: by `key_of` and case, labels and millionths."""
    laws: dict[str, dict[str, dict[str, Law]]] = {}
    for defect in defects.values():
        if defect.effect != "law":
            continue
        subject = defect.subject()
        key = key_of(subject.kind, subject.declared())
        found = {
            name: emitted_law(defect, case)
            for name, case in diagnosis_cases(subject).items()
        }
        if all(found.values()):
            for name, law in found.items():
                laws.setdefault(key, {}).setdefault(name, {})[defect.id] = law
    return {
        key: {name: _packed(by_defect) for name, by_defect in cases.items()}
        for key, cases in laws.items()
    }


def _packed(laws: Mapping[str, Law]) -> dict[str, Any]:
    labels = sorted({cell for law in laws.values() for cell in law})
    rows = {
        id_: [round(law.get(cell, 0.0) * _UNIT) for cell in labels]
        for id_, law in laws.items()
    }
    return {"labels": labels, "millionths": rows}


@cache
def load() -> dict[str, dict[str, dict[str, Law]]]:
    """Read the laws that were computed before: by `key_of`, defect and case."""
    text = resources.files("specverify.defects").joinpath(_FILE).read_text("utf-8")
    laws: dict[str, dict[str, dict[str, Law]]] = {}
    for key, cases in json.loads(text).items():
        for name, packed in cases.items():
            for id_, row in packed["millionths"].items():
                law = zip(packed["labels"], row, strict=True)
                laws.setdefault(key, {}).setdefault(id_, {})[name] = {
                    cell: mass / _UNIT for cell, mass in law if mass
                }
    return laws


if __name__ == "__main__":
    path = Path(__file__).with_name(_FILE)
    path.write_text(
        json.dumps(compute(), separators=(",", ":"), sort_keys=True) + "\n", "utf-8"
    )
