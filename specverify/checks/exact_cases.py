# SPDX-License-Identifier: Apache-2.0
"""Inputs small enough to follow every branch of a subject on them."""

from __future__ import annotations

from typing import Final

from hypothesis import strategies as st

from specverify.checks.common import filled, fit, fit_shape, generated
from specverify.checks.session import Session
from specverify.inputs import strategies, witnesses
from specverify.inputs.cases import Case
from specverify.inputs.trees import multidraft_case

_MOST_CELLS: Final = 27
_MOST_TREE_CELLS: Final = 16
_SMALL_VOCAB: Final = 3
_PRECISE: Final = ("float32", "float64")


def named_cases(session: Session) -> list[Case]:
    """Witnesses; chains with k from 0 to 3, others with two drafts at a position."""
    own = session.capabilities
    dtypes = [dtype for dtype in own.dtypes if dtype in _PRECISE]
    shared = [witnesses.S1, witnesses.C5, witnesses.Z2, witnesses.N1]
    if session.subject.kind == "chain":
        lengths = [witnesses.P2.with_(k=k, name=f"P2, k = {k}") for k in (0, 3)]
        shared += [witnesses.M1, witnesses.J2, *lengths, witnesses.D1, witnesses.W]
        shared += [witnesses.O1.with_(deterministic=False)]
    cases = [small_case(session, case) for case in shared]
    precise = [
        case.with_(dtype=dtype, name=f"{case.name}, {dtype}")
        for dtype in dtypes[1:]
        for case in (cases[0], cases[1])
        if case is not None
    ]
    return [case for case in (*cases, *precise) if case is not None]


def small_case(session: Session, case: Case) -> Case | None:
    """A witness with as few drafts as show something: the work grows exponentially."""
    own = session.capabilities
    if session.subject.kind == "multidraft" and own.allows(2):
        return filled(own, multidraft_case(case, 2, own.drafts))
    if session.subject.kind == "tree":
        wide = case.vocab > _SMALL_VOCAB or case.k == 1
        shape = (-1, 0, 0) if wide or own.drafts == "paths" else (-1, 0, 0, 1)
        return fit_shape(own, case, shape)
    return fit(session.subject, case)


def small_cases(session: Session) -> st.SearchStrategy[Case]:
    """Random cases: chains with k from 0 to 3, two drafts, trees of up to three nodes."""
    own, kind = session.capabilities, session.subject.kind
    if kind == "multidraft":
        most = min(2, own.max_draft_tokens or 2)
        return strategies.multidraft_cases(
            drafts=own.drafts,
            min_n=max(own.min_draft_tokens, 1),
            max_n=max(most, own.min_draft_tokens),
            max_vocab=3,
            unused=own.ragged,
        )
    if kind == "tree":
        return strategies.tree_cases(
            drafts=own.drafts,
            max_nodes=3,
            max_cells=_MOST_TREE_CELLS,
            max_depth=own.max_draft_tokens,
            unused=own.ragged,
        )
    return generated(session, min_k=0, max_k=3, max_vocab=6, max_cells=_MOST_CELLS)
