# SPDX-License-Identifier: Apache-2.0
"""The subject's own drafter: the drafts follow the law that it declares for them.

A rule is lossless for drafts drawn in its own way from the q that it is told. Drafts that
were deduplicated, pruned by their values, drawn with instead of without replacement, or
from another temperature than the declared rows have a law of their own (L8, L18).
"""

from __future__ import annotations

import itertools

import numpy as np

from specverify.checks.common import allowed
from specverify.checks.comparison import Tabulation
from specverify.checks.draws import encode, open_streams
from specverify.checks.judge import judge_law
from specverify.checks.registry import check
from specverify.checks.session import Finding, Session
from specverify.inputs import witnesses
from specverify.inputs.cases import Case
from specverify.inputs.models import IntArray
from specverify.inputs.trees import MultidraftCase
from specverify.laws import proposals, steps
from specverify.laws.distributions import Law, Model, Prefix
from specverify.subjects.protocol import Subject
from specverify.subjects.rig import Rig


def needs_drafter(subject: Subject) -> str:
    """Reason to skip a check of the subject's own drafter."""
    if subject.draft is None:
        return "the subject brings no drafter of its own; specverify.subject(fn, draft=...)"
    return ""


@check(
    "declared-drafts",
    "The drafts that the subject draws itself follow the law that it declares for them.",
    law="L8, L18",
    kinds=("chain", "multidraft"),
    needs=needs_drafter,
)
def declared_drafts(session: Session) -> Finding:
    """Drafts before any verification, against the declared rows."""
    named = allowed(session, [witnesses.W, witnesses.M1, witnesses.S1])
    return judge_law(session, lambda case: _drafts(session, case), named)


def _drafts(session: Session, case: Case) -> Tabulation:
    """Joint law of the drafts of a step under the rows that the subject declares."""
    size = case.n if isinstance(case, MultidraftCase) else case.k
    base = case.vocab + 1  # -1 marks an empty slot: shift by one
    tokens = range(-1 if isinstance(case, MultidraftCase) else 0, case.vocab)
    outcomes = list(itertools.product(tokens, repeat=size))
    index = np.zeros(base**size, np.int64)
    index[encode(np.array(outcomes).reshape(-1, size) + 1, base)] = np.arange(
        len(outcomes)
    )
    law = _declared_law(session, case, size)

    def count(rig: Rig, rows: int, seed: int) -> IntArray:
        stream, rng = open_streams(rig, seed)
        counts = np.zeros(len(outcomes), np.int64)
        for chunk in rig.chunks(case, rows):
            none = np.empty((chunk, 0), np.int64)
            drafts, _ = rig.step(case, none, stream, rng)
            cells = index[encode(drafts + 1, base)]
            counts += np.bincount(cells, minlength=len(counts))
        return counts

    labels = tuple(",".join(map(str, outcome)) for outcome in outcomes)
    probs = np.array([float(law.get(outcome, 0)) for outcome in outcomes])
    return Tabulation("drafts under their declared law", labels, probs, count)


def _declared_law(session: Session, case: Case, size: int) -> Law[Prefix]:
    if isinstance(case, MultidraftCase):
        row = _declared_row(session, case, ())
        return proposals.draft_law(row, size, case.drafts)
    model: Model = lambda prefix: _declared_row(session, case, prefix)  # noqa: E731
    return steps.autoregressive_law(model, size)


def _declared_row(session: Session, case: Case, prefix: Prefix) -> list[float]:
    """Q that the drafter declares behind a prefix, normalised in float64."""
    text = np.array([prefix], np.int64).reshape(1, -1)
    stream, _ = open_streams(session.rig, session.seed(case, f"declared {prefix}"))
    row = session.rig.declared(case, text, stream)
    total = sum(row)
    return [mass / total for mass in row]
