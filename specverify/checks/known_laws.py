# SPDX-License-Identifier: Apache-2.0
"""Laws of all defects on the inputs of a diagnosis: what ``defects/laws.json`` holds.

``python -m specverify.checks.known_laws`` computes them again, by following each defect
exactly, one row at a time. What it does in batches and loops is drawn, 200,000 times each;
so is everything where that differs, or cannot be followed (noise shared with the drafter).
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, Final

import torch

from specverify import defects
from specverify.checks.observations import in_settings, observe, single_cases
from specverify.defects.catalogue import CATALOGUE
from specverify.defects.diagnosis import Laws, Observations, apart
from specverify.defects.laws import FILE, Law, key_of, label, packed
from specverify.exact.stepping import step_law
from specverify.exact.variables import Unfollowed
from specverify.subjects.faults import SubjectFault
from specverify.subjects.rig import Rig

_FEW: Final = 20_000
_MANY: Final = 200_000
_SECONDS: Final = 600.0
#: Total variation that few draws show beyond their noise.
_SHOWN: Final = 0.03


def known_laws(id_: str) -> dict[str, Law]:
    """Laws of one defect, by input."""
    torch.set_num_threads(1)
    single = _followed(id_)
    drawn = _drawn(id_, _FEW)
    if not single or _differs(drawn, single):
        return _drawn(id_, _MANY)
    return single | _shares(in_settings(Rig(CATALOGUE[id_].subject()), 0, rows=_MANY))


def _followed(id_: str) -> dict[str, Law]:
    """Laws of single rows, each branch followed; empty where that cannot be done."""
    subject = CATALOGUE[id_].subject()
    laws: dict[str, Law] = {}
    try:
        for name, case in single_cases(subject).items():
            found = step_law(Rig(subject), case, max_branches=20_000, seconds=60)
            laws[name] = {
                label(tokens): float(mass) for tokens, mass in found.emitted().items()
            }
    except (Unfollowed, SubjectFault):
        return {}
    return laws


def _drawn(id_: str, rows: int) -> dict[str, Law]:
    """Shares in many draws."""
    rig = Rig(CATALOGUE[id_].subject())
    return _shares(observe(rig, 0, rows=rows, seconds=_SECONDS))


def _shares(observed: Observations) -> dict[str, Law]:
    return {
        name: {cell: n / sum(counts.values()) for cell, n in counts.items() if n}
        for name, counts in observed.items()
    }


def _differs(laws: Laws, others: Laws) -> bool:
    """Whether two sets of laws differ on an input that both have."""
    shared = {name: others[name] for name in others if name in laws}
    return apart(laws, shared) > _SHOWN


def compute() -> dict[str, Any]:
    """Laws of all defects, packed: by `key_of` and input."""
    ids = [id_ for id_, defect in CATALOGUE.items() if defect.effect == "law"]
    laws: dict[str, dict[str, dict[str, Law]]] = {}
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for id_, found in zip(ids, pool.map(known_laws, ids), strict=True):
            subject = CATALOGUE[id_].subject()
            of_key = laws.setdefault(key_of(subject.kind, subject.declared()), {})
            for name, law in found.items():
                of_key.setdefault(name, {})[id_] = law
    return {
        key: {name: packed(by_defect) for name, by_defect in inputs.items()}
        for key, inputs in laws.items()
    }


def write(laws: Mapping[str, Any]) -> None:
    """Write the laws into the package."""
    text = json.dumps(laws, separators=(",", ":"), sort_keys=True)
    path = Path(defects.__file__).with_name(FILE)
    path.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    write(compute())
