# SPDX-License-Identifier: Apache-2.0
"""The errors that users can meet, in one place."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specverify.evidence.records import Evidence


class SpecverifyError(Exception):
    """Base of every error that specverify raises on purpose."""


class UsageError(SpecverifyError):
    """The request itself is wrong: an unknown name, option or target."""


class SubjectUnavailable(UsageError):  # noqa: N818 - a state of the machine, not a fault
    """A built-in subject needs a package that is not installed."""


class EvidenceError(SpecverifyError):
    """An evidence file is unreadable or does not follow the schema."""


class LosslessnessError(SpecverifyError, AssertionError):
    """A subject is lossy or broken; also an `AssertionError`, so test runners fail.

    Attributes
    ----------
    evidence
        Everything the run found.
    """

    def __init__(self, message: str, evidence: Evidence | None = None) -> None:
        super().__init__(message)
        self.evidence = evidence


class InconclusiveError(LosslessnessError):
    """The run could not do what it promised, so it is no pass."""


def nearest(name: str, known: Iterable[str]) -> str:
    """Continue a sentence about an unknown name: the nearest known one, or a full stop."""
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else "."
