# SPDX-License-Identifier: Apache-2.0
"""Where checks under pytest leave their evidence for the plugin, and find its options.

Standard library only: the plugin imports this in every pytest run of a host project.
"""

from __future__ import annotations

from typing import Any

#: Plan settings from the command line of pytest; they win over those in the code.
overrides: dict[str, Any] = {}

_reports: list[dict[str, Any]] = []


def record(document: dict[str, Any]) -> None:
    """Keep the evidence of one check, as JSON data, until the plugin takes it."""
    _reports.append(document)


def take() -> list[dict[str, Any]]:
    """Hand over what was recorded since the last call."""
    taken, _reports[:] = list(_reports), []
    return taken
