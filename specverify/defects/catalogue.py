# SPDX-License-Identifier: Apache-2.0
"""The list of defects and controls, one module for each family."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from specverify.defects.entry import Defect

#: Modules of the catalogue, in the order of the data flow of an engine.
FAMILIES: Final = (
    "proposals",
    "sampling",
    "processors",
    "acceptance",
    "rejection",
    "residual",
    "bonus",
    "randomness",
    "noise",
    "numerics",
    "layout",
    "batches",
    "blocks",
    "siblings",
    "several",
    "trees",
    "controls",
)


def _collect(name: str) -> dict[str, Defect]:
    found: dict[str, Defect] = {}
    for family in FAMILIES:
        module = importlib.import_module(f"specverify.defects.{family}")
        for entry in getattr(module, name, ()):
            if entry.id in found:
                msg = f"defect {entry.id!r} is listed twice"
                raise ValueError(msg)
            found[entry.id] = replace(entry, family=family)
    return found


#: Every defect by its id.
CATALOGUE: Final[Mapping[str, Defect]] = MappingProxyType(_collect("DEFECTS"))
#: Everything that looks like one and is lossless.
CONTROLS: Final[Mapping[str, Defect]] = MappingProxyType(_collect("CONTROLS"))
