# SPDX-License-Identifier: Apache-2.0
"""Put the evidence of single checks, from any number of workers, back together."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from specverify.errors import UsageError
from specverify.evidence.files import from_json, save
from specverify.evidence.records import Evidence


def collect(documents: Iterable[Mapping[str, Any]]) -> dict[str, Evidence]:
    """One evidence for each subject.

    Parameters
    ----------
    documents
        What checks under pytest recorded: the subject's name, the ids of all checks that
        its test promises, and the evidence of the one that ran.

    Returns
    -------
    dict
        Evidence by name. Checks that were promised and did not report (deselected, or
        lost with a crashed worker) are missing from it, which makes it inconclusive.
    """
    found: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for document in documents:
        key = (str(document["name"]), str(document.get("test", "")))
        found.setdefault(key, []).append(document)
    joined: dict[str, Evidence] = {}
    for (name, test), parts in found.items():
        unique = f"{name} ({test})" if name in joined else name
        joined[unique] = _joined(unique, parts)
    return joined


def _joined(name: str, documents: list[Mapping[str, Any]]) -> Evidence:
    parts = [from_json(document["evidence"]) for document in documents]
    promised = list(dict.fromkeys(id_ for doc in documents for id_ in doc["promised"]))
    records = {check.id: check for part in parts for check in part.checks}
    ordered = [records[name] for name in promised if name in records]
    return parts[0].with_(
        subject=replace(parts[0].subject, name=name),
        checks=tuple(ordered),
        checks_promised=tuple(promised),
        duration_s=round(sum(part.duration_s for part in parts), 3),
    )


def write(evidence: Evidence, form: str, pattern: str, name: str) -> Path:
    """Write evidence as "html" or "json" to `pattern`, in which ``{}`` is the name.

    Without ``{}`` the name goes before the suffix, so that no subject overwrites another.
    """
    safe = re.sub(r"[^\w.-]+", "-", name).strip("-")
    plain = Path(pattern)
    if "{}" not in pattern:
        pattern = str(plain.with_name(f"{plain.stem}-{safe}{plain.suffix}"))
    path = Path(pattern.replace("{}", safe))
    path.parent.mkdir(parents=True, exist_ok=True)
    if form == "json":
        return save(evidence, path)
    if form == "html":
        from specverify.report.html import write_html

        return write_html(evidence, path)
    raise UsageError(f"form is {form!r}; allowed are html, json")
