# SPDX-License-Identifier: Apache-2.0
"""Prove, at stated error rates, that speculative decoding is lossless.

The public names are loaded on first use: importing the package costs milliseconds and
brings neither torch nor SciPy nor Hypothesis.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from specverify.api import check_lossless, parametrize
    from specverify.errors import InconclusiveError, LosslessnessError, UsageError
    from specverify.evidence.records import Evidence
    from specverify.subjects.protocol import Subject, subject

__version__: Final = "0.1.0"

_HOMES: Final = {
    "Evidence": "specverify.evidence.records",
    "InconclusiveError": "specverify.errors",
    "LosslessnessError": "specverify.errors",
    "Subject": "specverify.subjects.protocol",
    "UsageError": "specverify.errors",
    "check_lossless": "specverify.api",
    "parametrize": "specverify.api",
    "subject": "specverify.subjects.protocol",
}

__all__ = [
    "Evidence",
    "InconclusiveError",
    "LosslessnessError",
    "Subject",
    "UsageError",
    "__version__",
    "check_lossless",
    "parametrize",
    "subject",
]


def __getattr__(name: str) -> Any:
    """Load a public name from its home (PEP 562)."""
    if name not in _HOMES:
        msg = f"module 'specverify' has no attribute {name!r}"
        raise AttributeError(msg)
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    """List the public names."""
    return sorted(__all__)
