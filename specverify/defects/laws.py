# SPDX-License-Identifier: Apache-2.0
"""Laws of all defects on the inputs of a diagnosis, as they are kept in ``laws.json``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any, Final

from specverify.laws.distributions import Prefix

#: Law of the emitted tokens by their label: tokens joined by commas.
Law = dict[str, float]

FILE: Final = "laws.json"
#: Masses are kept as whole numbers of this part of 1.
_PARTS: Final = 100_000


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


def packed(laws: Mapping[str, Law]) -> dict[str, Any]:
    """Laws by defect, as labels and whole numbers."""
    labels = sorted({cell for law in laws.values() for cell in law})
    rows = {
        id_: [round(law.get(cell, 0.0) * _PARTS) for cell in labels]
        for id_, law in laws.items()
    }
    return {"labels": labels, "masses": rows}


@cache
def load() -> dict[str, dict[str, dict[str, Law]]]:
    """Read the laws: by `key_of`, defect and input. Not every defect has all inputs."""
    text = resources.files("specverify.defects").joinpath(FILE).read_text("utf-8")
    laws: dict[str, dict[str, dict[str, Law]]] = {}
    for key, inputs in json.loads(text).items():
        for name, kept in inputs.items():
            for id_, row in kept["masses"].items():
                law = zip(kept["labels"], row, strict=True)
                laws.setdefault(key, {}).setdefault(id_, {})[name] = {
                    cell: mass / _PARTS for cell, mass in law if mass
                }
    return laws
