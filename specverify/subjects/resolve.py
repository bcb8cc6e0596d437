# SPDX-License-Identifier: Apache-2.0
"""Find a subject from what a user types."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from specverify.errors import UsageError, nearest
from specverify.subjects.protocol import Kind, Subject, subject

#: Built-in subjects and the functions that load them; engines are imported by these.
_FAMILIES: Final = {
    "reference": (
        ("chain", "block", "match", "greedy", "one-hot", "coupling"),
        ("with-replacement", "without-replacement", "kseq", "hub"),
        ("greedy-draft", "selection", "target-only"),
        ("tree-target-only", "tree-recursive", "tree-traversal", "tree-paths"),
        ("exercise",),
    ),
    "lossy": (("lenient", "typical", "threshold", "top-k", "entropy", "synthetic"),),
}
BUILTIN: Final = {
    f"{family}:{name}": f"specverify.subjects.{family}:{name.replace('-', '_')}"
    for family, groups in _FAMILIES.items()
    for group in groups
    for name in group
} | {"transformers": "specverify.subjects.transformers:load"}


def resolve(
    target: str | Subject | Callable[..., Any], *, kind: Kind | None = None
) -> Subject:
    """Turn a target into a subject.

    Parameters
    ----------
    target
        A subject, a function, the name of a built-in subject, ``package.module:name`` or
        ``path/to/file.py:name``.
    kind
        Contract of a plain function; a declared subject keeps its own.

    Raises
    ------
    UsageError
        Nothing there, with the reason and the nearest name that exists.
    """
    if isinstance(target, Subject):
        return target
    if not isinstance(target, str):
        return replace(subject(target, kind=kind or "chain"), target=_address(target))
    if target in BUILTIN:
        loaded: Subject = _attribute(BUILTIN[target])()
        return replace(loaded, name=target, target=target)
    if ":" not in target:
        msg = (
            f"target is {target!r}{nearest(target, BUILTIN)} Allowed are "
            f"{', '.join(BUILTIN)}, package.module:name and path/to/file.py:name"
        )
        raise UsageError(msg)
    found = _attribute(target)
    if isinstance(found, Subject):
        return replace(found, target=target)
    if not callable(found):
        msg = f"{target} is a {type(found).__name__}; a subject must be callable"
        raise UsageError(msg)
    return replace(subject(found, kind=kind or "chain"), target=target)


def _address(fn: Callable[..., Any]) -> str:
    """Where ``specverify run`` would find a function; empty if it would not."""
    name, module = getattr(fn, "__qualname__", ""), getattr(fn, "__module__", "")
    loaded = sys.modules.get(module or "")
    if loaded is None or getattr(loaded, name, None) is not fn:
        return ""
    if module == "__main__":
        file = getattr(loaded, "__file__", None)
        return f"{file}:{name}" if file else ""
    return f"{module}:{name}"


def _attribute(target: str) -> Any:
    place, _, name = target.rpartition(":")
    try:
        # What a module prints while it is imported is not what specverify says.
        with contextlib.redirect_stdout(sys.stderr):
            module = (
                _load_file(Path(place))
                if place.endswith(".py")
                else _load_module(place)
            )
    except UsageError as error:
        hint = nearest(target, BUILTIN)
        raise UsageError(f"{error}{hint}" if hint != "." else str(error)) from error
    if not hasattr(module, name):
        public = [n for n in vars(module) if not n.startswith("_")]
        msg = f"{place} has no attribute {name!r}{nearest(name, public)}"
        raise UsageError(msg)
    return getattr(module, name)


def _load_module(name: str) -> ModuleType:
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        msg = f"cannot import {name}: {type(error).__name__}: {error}"
        raise UsageError(msg) from error


def _load_file(path: Path) -> ModuleType:
    """Import a file as Python runs a script: its folder is importable from it."""
    if not path.is_file():
        msg = f"{path} is no file"
        raise UsageError(msg)
    path = path.resolve()
    digest = hashlib.sha256(str(path).encode()).hexdigest()[:8]
    name = f"{path.stem}_{digest}"
    if name in sys.modules:
        return sys.modules[name]
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        msg = f"{path} cannot be loaded as Python"
        raise UsageError(msg)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        msg = f"cannot import {path}: {type(error).__name__}: {error}"
        raise UsageError(msg) from error
    return module
