# SPDX-License-Identifier: Apache-2.0
"""Evidence as JSON: one document a run, validated when written and when read.

The document holds the fields of `Evidence` under their own names, and two more: its
``kind``, so that it can be told from other JSON, and the ``verdict``, so that no reader
has to know how one is reached. ``schema.json`` beside this module describes it.

What is written is read back equal, float by float. NaN and infinity have no place in
JSON and are refused in both directions. Mappings (capabilities, environment, case) hold
JSON data: a tuple in them comes back as a list.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from specverify.errors import EvidenceError
from specverify.evidence.records import (
    SCHEMA_VERSION,
    CheckRecord,
    Claim,
    Counterexample,
    Evidence,
    SubjectInfo,
    Table,
)

if TYPE_CHECKING:
    from jsonschema import ValidationError

#: Value of the field ``kind`` of every evidence document.
DOCUMENT_KIND: Final = "specverify-evidence"
_DERIVED: Final = ("kind", "verdict")
_WORDS: Final = {
    "minLength": "text that is not empty",
    "minimum": "at least {}",
    "maximum": "at most {}",
    "exclusiveMinimum": "more than {}",
    "exclusiveMaximum": "less than {}",
}


def to_json(evidence: Evidence) -> dict[str, Any]:
    """Turn evidence into a JSON document.

    Returns
    -------
    dict
        Made of dictionaries with text keys, lists, text, numbers, booleans and None.

    Raises
    ------
    EvidenceError
        A value is NaN, infinite or no JSON data; the message names its path.
    """
    found: dict[str, Any] = _plain(evidence, "$")
    return {"kind": DOCUMENT_KIND, "verdict": evidence.verdict, **found}


def from_json(document: Mapping[str, Any], *, source: str = "evidence") -> Evidence:
    """Turn a JSON document into evidence.

    Parameters
    ----------
    document
        What `to_json` returned, or the content of a file.
    source
        What error messages call the document.

    Raises
    ------
    EvidenceError
        The document does not follow the schema, its tables are ragged, or its verdict
        is not the one that its checks lead to.
    """
    validate(document, source=source)
    found = {name: value for name, value in document.items() if name not in _DERIVED}
    found["subject"] = SubjectInfo(**found["subject"])
    found["claim"] = Claim(**found["claim"])
    found["checks"] = tuple(_check(check) for check in found["checks"])
    found["checks_promised"] = tuple(found["checks_promised"])
    evidence = Evidence(**found)
    if evidence.verdict != document["verdict"]:
        raise EvidenceError(
            f"{source}: $.verdict: found {document['verdict']!r}; allowed: "
            f"{evidence.verdict!r}, which is what the checks in the document lead to."
        )
    return evidence


def save(evidence: Evidence, path: str | os.PathLike[str]) -> Path:
    """Write evidence to a file; a reader never sees half of it.

    Parents of `path` are created. An existing file is replaced.

    Returns
    -------
    Path
        Where the file is.

    Raises
    ------
    EvidenceError
        As `to_json` and `validate`; then no file is written.
    """
    target = Path(path)
    document = to_json(evidence)
    validate(document, source=str(target))
    text = json.dumps(document, allow_nan=False, indent=1)
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        draft.write_text(text + "\n", encoding="utf-8", newline="\n")
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)
    return target


def load(path: str | os.PathLike[str]) -> Evidence:
    """Read evidence from a file.

    Raises
    ------
    EvidenceError
        The file cannot be read, is not JSON, or `from_json` refuses it.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise EvidenceError(f"{path}: cannot be read: {reason}.") from error
    except UnicodeDecodeError as error:
        raise EvidenceError(f"{path}: is not UTF-8 text: {error.reason}.") from error
    try:
        document = json.loads(text, parse_constant=_refuse, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        raise EvidenceError(f"{path}: is not JSON: {error}.") from error
    return from_json(document, source=str(path))


def validate(document: object, *, source: str = "evidence") -> None:
    """Hold a document against the schema and the rules that a schema cannot state.

    Raises
    ------
    EvidenceError
        One sentence with source, JSON path, what was found and what is allowed.
    """
    from jsonschema import Draft202012Validator

    found = Draft202012Validator(schema()).iter_errors(document)
    worst = min(found, key=_rank, default=None)
    if worst is not None:
        raise EvidenceError(f"{source}: {worst.json_path}: {_complaint(worst)}.")
    for path, wrong in _ragged(cast("dict[str, Any]", document)["checks"]):
        raise EvidenceError(f"{source}: {path}: {wrong}.")


@cache
def schema() -> Mapping[str, Any]:
    """Read the JSON Schema of the document."""
    text = files("specverify.evidence").joinpath("schema.json").read_text("utf-8")
    loaded: Mapping[str, Any] = json.loads(text)
    return loaded


def _plain(value: object, path: str) -> Any:
    """Turn a value into JSON data, or say at which path it is none."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        if math.isfinite(value):
            return float(value)
        raise EvidenceError(f"{path}: found {value}; allowed: a finite number.")
    if is_dataclass(value):
        names = [entry.name for entry in fields(value)]
        return {name: _plain(getattr(value, name), f"{path}.{name}") for name in names}
    if isinstance(value, Mapping):
        return {_key(k, path): _plain(v, f"{path}.{k}") for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry, f"{path}[{i}]") for i, entry in enumerate(value)]
    kind = type(value)
    raise EvidenceError(
        f"{path}: found a value of type {kind.__module__}.{kind.__qualname__}; "
        "allowed: text, numbers, booleans, None, and mappings, lists or tuples of them."
    )


def _key(key: object, path: str) -> str:
    if isinstance(key, str):
        return key
    raise EvidenceError(f"{path}: found the key {key!r}; allowed: text.")


def _check(found: Mapping[str, Any]) -> CheckRecord:
    changed: dict[str, Any] = {}
    if found.get("counterexample") is not None:
        changed["counterexample"] = Counterexample(**found["counterexample"])
    if "tables" in found:
        changed["tables"] = tuple(_table(table) for table in found["tables"])
    if "observations" in found:
        changed["observations"] = tuple(found["observations"])
    return CheckRecord(**{**found, **changed})


def _table(found: Mapping[str, Any]) -> Table:
    lists = {name: tuple(v) for name, v in found.items() if isinstance(v, list)}
    return Table(**{**found, **lists})


def _ragged(checks: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """Find lists of a table that do not have one entry a cell."""
    for i, check in enumerate(checks):
        for j, table in enumerate(check.get("tables", ())):
            cells = len(table["labels"])
            trials = cells if table["kind"] == "position" else 0
            wanted = {"observed": cells, "expected": cells, "trials": trials}
            for name, length in wanted.items():
                if (given := len(table.get(name, ()))) != length:
                    path = f"$.checks[{i}].tables[{j}].{name}"
                    yield path, f"found {given} entries; allowed: {length}"


def _rank(error: ValidationError) -> tuple[bool, int]:
    """Complain about the wrong sort of document first, then from the outside in."""
    about_document = list(error.path) in (["kind"], ["schema_version"])
    return not about_document, len(error.path)


def _complaint(error: ValidationError) -> str:
    """Say what was found and what is allowed."""
    rule: Any = error.validator_value
    given: Any = error.instance
    if error.validator == "required":
        absent = next(name for name in rule if name not in given)
        return f"found no field {absent!r}; allowed: an object that has it"
    if error.validator == "additionalProperties" and rule is False:
        known = list(cast("dict[str, Any]", error.schema)["properties"])
        extra = next(name for name in given if name not in known)
        return f"found the field {extra!r}; allowed: {_nearest(extra, known)}"
    return f"found {_shown(given)}; allowed: {_allowed(error)}"


def _allowed(error: ValidationError) -> str:
    if list(error.path) == ["schema_version"]:
        return f"a version that this specverify reads, 1.x, such as {SCHEMA_VERSION!r}"
    rule: Any = error.validator_value
    values = " or ".join(map(str, rule)) if isinstance(rule, list) else str(rule)
    return _WORDS.get(str(error.validator), "{}").format(values)


def _nearest(name: str, known: list[str]) -> str:
    """Name the field that was probably meant, or all of them."""
    close = get_close_matches(name, known, n=1)
    return f"{close[0]!r}, perhaps" if close else ", ".join(known)


def _shown(value: object, longest: int = 60) -> str:
    text = json.dumps(value, ensure_ascii=False, default=repr)
    return text if len(text) <= longest else text[: longest - 1] + "…"


def _refuse(name: str) -> float:
    raise ValueError(f"found {name}; allowed: finite numbers")


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"found {text}, which no float holds; allowed: finite numbers")
    return value
