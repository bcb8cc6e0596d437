# SPDX-License-Identifier: Apache-2.0
"""Results as data: records, what they conclude, and files."""

from specverify.evidence.records import CheckRecord, Evidence

__all__ = ["CheckRecord", "Evidence"]
