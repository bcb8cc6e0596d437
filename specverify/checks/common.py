# SPDX-License-Identifier: Apache-2.0
"""Which cases and checks fit a subject."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from hypothesis import strategies as st

from specverify.checks.session import Session
from specverify.inputs import strategies, witnesses
from specverify.inputs.cases import Case
from specverify.inputs.trees import (
    TreeCase,
    even_tree,
    multidraft_case,
    separate_paths,
    tree_case,
)
from specverify.subjects.protocol import Capabilities, Kind, Subject

#: Kinds whose subjects verify one step: they share most checks.
STEPS: Final[tuple[Kind, ...]] = ("chain", "multidraft", "tree")

#: Tree shapes: the root alone, a chain, siblings, and mixtures of both.
_SHAPES: Final = (
    (-1,),
    (-1, 0, 1),
    (-1, 0, 0, 0),
    (-1, 0, 1, 0),
    (-1, 0, 0, 2, 2),
    (-1, 0, 0, 1, 1, 2),
)


def needs_bonus(subject: Subject) -> str:
    """Reason to skip a check that looks at the bonus token."""
    if not subject.capabilities.bonus:
        return "the subject draws its bonus token elsewhere (bonus=False)"
    return ""


def needs_sampling(subject: Subject) -> str:
    """Reason to skip a check of randomness that greedy decoding does not have."""
    if subject.capabilities.greedy:
        return "the subject decodes greedily (greedy=True): its output is fixed"
    return ""


def allowed(session: Session, cases: Iterable[Case]) -> list[Case]:
    """Bring cases of one chain into the form that the subject takes, where it can."""
    found = (fit(session.subject, case) for case in cases)
    return [case for case in found if case is not None]


def fit(subject: Subject, case: Case) -> Case | None:
    """The case in the form of the subject's kind; None if the subject cannot take it.

    Trees get two children a node, three at a single level; several drafts are three, or
    the pair of SpecHub.
    """
    own = subject.capabilities
    if subject.kind == "chain":
        return _fit_chain(own, case)
    if subject.kind == "multidraft":
        n = 2 if own.drafts == "hub" else 3
        n = max(min(n, own.max_draft_tokens or n), own.min_draft_tokens)
        return filled(own, multidraft_case(case, n, own.drafts))
    depth = max(1, min(case.k, 2, own.max_draft_tokens or 2))
    if own.drafts == "paths":
        shape = separate_paths(3, depth)
    else:
        shape = even_tree((2, 2) if depth == 2 else (3,))
    return fit_shape(own, case, shape)


def fit_shape(own: Capabilities, case: Case, parents: tuple[int, ...]) -> Case | None:
    """The models of a case with a tree of one shape, if the subject takes that."""
    way = "iid" if own.drafts == "paths" else own.drafts
    tree = tree_case(case, parents, way)
    if own.drafts == "paths" and parents != separate_paths(tree.width, tree.k):
        return None
    return filled(own, tree) if own.allows(tree.k) else None


def shapes(session: Session) -> list[Case]:
    """Every number of drafts, or shape of the drafts, that the subject takes."""
    subject = session.subject
    own = subject.capabilities
    if subject.kind == "chain":
        lengths = [witnesses.P2.with_(k=k, name=f"P2, k = {k}") for k in range(6)]
        return allowed(session, lengths)
    base = witnesses.M1
    found: list[Case | None] = []
    if subject.kind == "multidraft":
        for n in (2,) if own.drafts == "hub" else (1, 2, 3, 4):
            if own.allows(n):
                case = base.with_(name=f"M1, n = {n}")
                found.append(filled(own, multidraft_case(case, n, own.drafts)))
    else:
        for shape in (*_SHAPES, separate_paths(2, 2)):
            case = base.with_(name=f"M1, tree {list(shape)}")
            found.append(fit_shape(own, case, shape))
    return [case for case in found if case is not None]


def generated(session: Session, **bounds: int) -> st.SearchStrategy[Case]:
    """Random cases that the subject can take; bounds are those of `strategies.cases`."""
    own = session.capabilities
    longest = own.max_draft_tokens
    if session.subject.kind == "multidraft":
        return strategies.multidraft_cases(
            drafts=own.drafts,
            min_n=max(own.min_draft_tokens, 1),
            max_n=4 if longest is None else min(longest, 4),
            max_vocab=bounds.get("max_vocab", 6),
            unused=own.ragged,
        )
    if session.subject.kind == "tree":
        cells = bounds.get("max_cells", 81)
        return strategies.tree_cases(
            drafts=own.drafts,
            max_nodes=7 if cells > 27 else 5,
            max_cells=cells,
            max_depth=longest,
            unused=own.ragged,
        )
    bounds["min_k"] = max(bounds.get("min_k", 1), own.min_draft_tokens)
    bounds["max_k"] = min(bounds.get("max_k", 5), 5 if longest is None else longest)
    return fitted(session, strategies.cases(**bounds))


def fitted(
    session: Session, chains: st.SearchStrategy[Case]
) -> st.SearchStrategy[Case]:
    """Chains whose k the subject takes, in the form that it takes them in."""
    return chains.map(lambda case: _fit_chain(session.capabilities, case) or case)


def default_case(subject: Subject) -> Case:
    """A witness that the subject can take."""
    named = [witnesses.M1, witnesses.W]
    found = [case for case in (fit(subject, case) for case in named) if case]
    return found[0] if found else named[0]


def _fit_chain(own: Capabilities, case: Case) -> Case | None:
    if not own.allows(case.k):
        return None
    if own.draft_probs is False and not case.deterministic:
        case = case.with_(draft=case.draft.greedy(), deterministic=True)
    return case.with_(greedy=own.greedy)


def filled(own: Capabilities, case: TreeCase) -> TreeCase | None:
    """The case, unless it would leave slots unused and the subject cannot take that."""
    fewest = min(sum(mass > 0 for mass in row) for row in case.draft.rows)
    with_replacement = case.drafts == "iid"
    return case if own.ragged or with_replacement or case.width <= fewest else None
