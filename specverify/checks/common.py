# SPDX-License-Identifier: Apache-2.0
"""Which cases and checks fit a subject."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import strategies as st

from specverify.checks.session import Session
from specverify.inputs import strategies, witnesses
from specverify.inputs.cases import Case
from specverify.subjects.protocol import Capabilities, Subject


def needs_draft_probs(subject: Subject) -> str:
    """Reason to skip a check that hands over q."""
    if subject.capabilities.draft_probs is False:
        return "the subject takes deterministic drafts only (draft_probs=False)"
    return ""


def needs_bonus(subject: Subject) -> str:
    """Reason to skip a check that looks at the bonus token."""
    if not subject.capabilities.bonus:
        return "the subject draws its bonus token elsewhere (bonus=False)"
    return needs_draft_probs(subject)


def allowed(session: Session, cases: Iterable[Case]) -> list[Case]:
    """Keep the cases whose k the subject can take."""
    return [case for case in cases if session.capabilities.allows(case.k)]


def generated(session: Session, **bounds: int) -> st.SearchStrategy[Case]:
    """Random cases within the range of k that the subject can take."""
    capabilities = session.capabilities
    longest = capabilities.max_draft_tokens
    bounds["min_k"] = max(bounds.get("min_k", 1), capabilities.min_draft_tokens)
    bounds["max_k"] = min(bounds.get("max_k", 5), 5 if longest is None else longest)
    return strategies.cases(**bounds)


def default_case(capabilities: Capabilities) -> Case:
    """A witness that the subject can take."""
    named = [witnesses.M1, witnesses.W]
    if capabilities.draft_probs is False:
        named = [witnesses.O2, witnesses.O1]
    fitting = [case for case in named if capabilities.allows(case.k)]
    return fitting[0] if fitting else named[0]
