# SPDX-License-Identifier: Apache-2.0
"""The list of defects and controls, one module for each family."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final, TypeVar

from specverify.defects.entry import DecoderDefect, Defect, Entry

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


#: Modules with defects of whole decoders.
DECODER_FAMILIES: Final = ("caches", "loops", "constraints", "stops")

_E = TypeVar("_E", bound=Entry)


def _collect(families: Iterable[str], name: str, kind: type[_E]) -> Mapping[str, _E]:
    found: dict[str, _E] = {}
    for family in families:
        module = importlib.import_module(f"specverify.defects.{family}")
        for entry in getattr(module, name, ()):
            if not isinstance(entry, kind) or entry.id in found:
                msg = f"{family}.{name} lists {entry.id!r} twice, or as another kind"
                raise ValueError(msg)
            found[entry.id] = replace(entry, family=family)
    return MappingProxyType(found)


#: Every defect of the verification step by its id.
CATALOGUE: Final = _collect(FAMILIES, "DEFECTS", Defect)
#: Everything that looks like one and is lossless.
CONTROLS: Final = _collect(FAMILIES, "CONTROLS", Defect)
#: Defects of the loop around it, in whole decoders.
DECODERS: Final = _collect(DECODER_FAMILIES, "DEFECTS", DecoderDefect)
#: Decoders that look wrong and are lossless.
DECODER_CONTROLS: Final = _collect(DECODER_FAMILIES, "CONTROLS", DecoderDefect)
