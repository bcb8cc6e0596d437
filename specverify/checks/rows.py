# SPDX-License-Identifier: Apache-2.0
"""Rows of a batch, and rounds of a loop: nothing may be carried from one to another."""

from __future__ import annotations

from specverify.checks import tabulate
from specverify.checks.common import (
    STEPS,
    allowed,
    generated,
    needs_bonus,
    needs_sampling,
)
from specverify.checks.judge import judge_law
from specverify.checks.registry import check
from specverify.checks.session import Finding, Session
from specverify.inputs import witnesses
from specverify.subjects.protocol import Subject


def needs_batches(subject: Subject) -> str:
    """Reason to skip a check of large batches."""
    limit = subject.capabilities.max_batch
    if limit is not None and limit < 97:
        return f"the subject takes at most {limit} rows a call (max_batch={limit})"
    return ""


@check(
    "row-independence",
    "Two rows of one batch are independent.",
    law="L10, L19",
    effect="contract",
    kinds=STEPS,
    needs=needs_sampling,
)
def row_independence(session: Session) -> Finding:
    """Equal inputs in all rows; random pairs of rows against the product law."""
    named = allowed(session, [witnesses.W, witnesses.M1])
    return judge_law(session, tabulate.pairs, named)


@check(
    "batch-composition",
    "In a batch of 97 rows, each row follows its own target, whatever its neighbours are.",
    law="L10",
    kinds=STEPS,
    needs=needs_batches,
)
def batch_composition(session: Session) -> Finding:
    """Rows of another case sit between the rows that are counted."""
    named = allowed(session, [witnesses.M1, witnesses.J1])
    return judge_law(session, tabulate.mixed_batch, named)


def needs_ragged(subject: Subject) -> str:
    """Reason to skip a check of rows with different numbers of drafts."""
    if not subject.capabilities.ragged:
        return (
            "the subject takes no num_draft_tokens; specverify.subject(fn, ragged=True) "
            "says that it does"
        )
    return needs_bonus(subject)


@check(
    "ragged-rows",
    "In a batch whose rows have 0 to k drafts, each row follows the law.",
    law="L13",
    needs=needs_ragged,
)
def ragged_rows(session: Session) -> Finding:
    """Rows of all lengths in turn, told by ``num_draft_tokens``."""
    named = allowed(session, [witnesses.M1, witnesses.J2])
    return judge_law(session, tabulate.ragged, named)


@check(
    "rounds",
    "Several steps in a row, composed into a text, follow the target's joint law.",
    law="L16, L19",
    kinds=STEPS,
)
def rounds(session: Session) -> Finding:
    """A loop of steps on one stream of randomness; state carried over shows here."""
    named = allowed(session, [witnesses.P2, witnesses.M1.with_(k=1, name="M1, k = 1")])
    return judge_law(
        session,
        tabulate.rounds,
        named,
        generated(session, max_vocab=3, max_k=2, max_cells=27),
    )
