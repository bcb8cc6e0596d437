# SPDX-License-Identifier: Apache-2.0
"""Settings from ``[tool.specverify]`` in pyproject.toml."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Final

from specverify.errors import UsageError, nearest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

#: Keys and the type that each must have.
KEYS: Final[dict[str, tuple[type, ...]]] = {
    "target": (str,),
    "kind": (str,),
    "profile": (str,),
    "checks": (str,),
    "device": (str,),
    "seed": (int,),
    "examples": (int,),
    "error_rate": (float,),
    "detect_tv": (float,),
    "power": (float,),
    "max_seconds": (float, int),
    "call_seconds": (float, int),
    "strict_efficiency": (bool,),
    "expected_failures": (dict,),
}


def load_settings(folder: Path | None = None) -> dict[str, Any]:
    """Read ``[tool.specverify]`` of the nearest pyproject.toml above `folder`.

    Returns
    -------
    dict
        Empty where there is no such file or table.

    Raises
    ------
    UsageError
        The file is no TOML, a key is unknown, or a value has the wrong type.
    """
    start = (folder or Path.cwd()).resolve()
    for place in (start, *start.parents):
        path = place / "pyproject.toml"
        if path.is_file():
            return _checked(path)
    return {}


def _checked(path: Path) -> dict[str, Any]:
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from error
    tools = document.get("tool", {})
    settings = tools.get("specverify", {}) if isinstance(tools, dict) else None
    if not isinstance(settings, dict):
        raise UsageError(f"{path}: [tool.specverify] must be a table")
    for key, value in settings.items():
        if key not in KEYS:
            raise UsageError(
                f"{path}: [tool.specverify] has the unknown key {key!r}"
                f"{nearest(key, KEYS)} Known are {', '.join(KEYS)}"
            )
        allowed = KEYS[key]
        if not isinstance(value, allowed) or (
            isinstance(value, bool) and bool not in allowed
        ):
            names = " or ".join(kind.__name__ for kind in allowed)
            raise UsageError(
                f"{path}: [tool.specverify] {key} is {value!r}; it must be a {names}"
            )
    for name, reason in settings.get("expected_failures", {}).items():
        if not isinstance(reason, str):
            raise UsageError(
                f"{path}: expected_failures.{name} is {reason!r}; it must be a reason"
            )
    return settings
