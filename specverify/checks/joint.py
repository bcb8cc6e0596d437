# SPDX-License-Identifier: Apache-2.0
"""Losslessness itself: what comes out follows the target, on every kind of input."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np
from hypothesis import strategies as st

from specverify.checks import tabulate
from specverify.checks.common import (
    STEPS,
    allowed,
    fitted,
    generated,
    needs_bonus,
    shapes,
)
from specverify.checks.draws import encode, steps_in_time
from specverify.checks.judge import judge_law
from specverify.checks.registry import check
from specverify.checks.reproduce import counterexample
from specverify.checks.session import Finding, Session
from specverify.inputs import strategies, witnesses
from specverify.inputs.cases import Case
from specverify.inputs.models import ToyModel
from specverify.inputs.strategies import normalised
from specverify.statistics.impossible import samples_to_see, smallest_seen
from specverify.subjects.protocol import Subject

_HALF: Final = frozenset({"bfloat16", "float16"})


@check(
    "joint-law",
    "The tokens of a step, completed by target sampling to as many as it can emit, follow "
    "the target's joint law, with p and q that depend on the drafted prefix.",
    law="L2, L13",
    kinds=STEPS,
)
def joint_law(session: Session) -> Finding:
    """Witnesses and generated cases, joint law of k + 1 tokens."""
    named = [witnesses.M1, witnesses.J1, witnesses.J2, witnesses.W, witnesses.S1]
    return judge_law(
        session,
        tabulate.joint,
        allowed(session, named),
        generated(session),
    )


@check(
    "support",
    "A token to which the target gives probability 0 is never emitted.",
    law="L9",
    grade="structural",
    kinds=STEPS,
)
def support(session: Session) -> Finding:
    """Draw where p has zeros that q proposes; a single sight is a proof."""
    plan = session.plan
    unseen = plan.detect_tv / 100  # mass of impossible tokens that may go unseen
    goal = samples_to_see(unseen, power=plan.power)
    finding = Finding("pass", detectable_tv=0.0)
    for case in allowed(session, [witnesses.C5, witnesses.Z2]):
        tabulation = tabulate.joint(case)
        counts = np.zeros(len(tabulation.labels), np.int64)
        for step in steps_in_time(session, case, goal):
            cells = encode(step.completed, case.vocab)
            counts += np.bincount(cells, minlength=len(counts))
        drawn = tabulation.beside(counts)
        seen = smallest_seen(drawn.samples, power=plan.power)
        finding = replace(
            finding,
            samples=finding.samples + drawn.samples,
            examples=finding.examples + 1,
            examples_planned=finding.examples + 1,
            detectable_tv=max(seen, finding.detectable_tv or 0.0),
            tables=(
                *finding.tables,
                drawn.table(f"{drawn.title}, witness {case.name}"),
            ),
        )
        hits = int(counts[drawn.probs == 0].sum())
        if seen > plan.detect_tv:
            finding = replace(
                finding,
                status="inconclusive",
                reason=f"the time allowed {drawn.samples} draws on an input only",
            )
        if hits:
            return replace(
                finding,
                status="violation",
                reason=f"tokens with p = 0 were emitted in {hits} of {drawn.samples} steps",
                counterexample=counterexample(session, case, drawn.where()),
            )
    return finding


@check(
    "bonus-law",
    "After full acceptance the bonus token follows the target's last row.",
    law="L12",
    needs=needs_bonus,
)
def bonus_law(session: Session) -> Finding:
    """Models that depend on the position only and agree on every drafted one."""
    named = allowed(session, [witnesses.B1, witnesses.B2])
    finding = judge_law(session, tabulate.bonus, named, _agreeing(session))
    if finding.status == "skipped":
        reason = (
            "no step emitted k + 1 tokens: either all drafts were never accepted, or the "
            "bonus token is missing (where the engine draws it elsewhere, "
            "specverify.subject(fn, bonus=False) says so)"
        )
        return replace(finding, reason=reason)
    return finding


@check(
    "disjoint-supports",
    "Where p and q share no token, every draft is rejected and the output follows p.",
    law="L9",
    kinds=STEPS,
)
def disjoint_supports(session: Session) -> Finding:
    """All mass of the output comes from the residual."""
    named = allowed(session, [witnesses.D1, witnesses.D2])
    return judge_law(session, tabulate.joint, named)


@check(
    "one-hot-draft",
    "A deterministic draft (q one-hot) leaves the target's law as it is.",
    law="L9, L25",
)
def one_hot_draft(session: Session) -> Finding:
    """One-hot rows, handed over as rows and, where the subject takes it, as None."""
    forms = {True: [False], False: [True], "optional": [False, True]}
    named = [
        case.with_(deterministic=deterministic)
        for deterministic in forms[session.capabilities.draft_probs]
        for case in allowed(session, [witnesses.O1, witnesses.O2])
    ]
    return judge_law(session, tabulate.joint, named)


def needs_greedy(subject: Subject) -> str:
    """Reason to skip a check of greedy decoding."""
    if not subject.capabilities.greedy:
        return "the subject samples; specverify.subject(fn, greedy=True) says otherwise"
    return ""


@check(
    "greedy-ties",
    "Of equally likely tokens, greedy decoding takes the one with the lowest id.",
    law="L27",
    needs=needs_greedy,
)
def greedy_ties(session: Session) -> Finding:
    """Ties at the top of every row, drafted and not."""
    named = [witnesses.C3, witnesses.T1]
    return judge_law(session, tabulate.joint, allowed(session, named))


@check(
    "draft-lengths",
    "The law holds for every number of drafts: chains of 0 to 5, 1 to 4 at one position, "
    "trees of several shapes.",
    law="L13",
    kinds=STEPS,
)
def draft_lengths(session: Session) -> Finding:
    """Two tokens for chains, so that six positions make 64 outcomes; else three."""
    return judge_law(session, tabulate.joint, shapes(session))


@check(
    "vocab-permutation",
    "Renaming the tokens renames the output and changes nothing else.",
    law="L10",
    kinds=STEPS,
)
def vocab_permutation(session: Session) -> Finding:
    """Witnesses with their tokens reversed and rotated."""
    named = [
        case.permuted(order).with_(name=f"{case.name}, tokens renamed {order}")
        for case, order in ((witnesses.M1, (2, 1, 0)), (witnesses.W, (1, 2, 3, 0)))
    ]
    return judge_law(session, tabulate.joint, allowed(session, named))


@check(
    "vocab-padding",
    "Padding tokens with p = q = 0 are never emitted and change nothing.",
    law="L10",
    kinds=STEPS,
)
def vocab_padding(session: Session) -> Finding:
    """Witnesses with impossible tokens behind the vocabulary."""
    named = [
        case.padded(extra).with_(name=f"{case.name} with {extra} padding tokens")
        for case, extra in ((witnesses.J1, 2), (witnesses.W, 4))
    ]
    return judge_law(session, tabulate.joint, allowed(session, named))


@check(
    "large-vocab",
    "The law holds for vocabularies past 1024 that fill no whole block.",
    law="L2",
    kinds=STEPS,
)
def large_vocab(session: Session) -> Finding:
    """First token, in cells of q/p crossed with quarters of the token ids."""
    named = allowed(session, [large_case(1031), large_case(2053)])
    return judge_law(session, tabulate.partitioned, named)


@check(
    "dtypes",
    "The law holds in every dtype that the subject takes.",
    law="L28",
    kinds=STEPS,
)
def dtypes(session: Session) -> Finding:
    """Probabilities that are exact in bfloat16, so that rounding is no excuse."""
    named = [
        case.with_(dtype=dtype, name=f"{case.name}, {dtype}")
        for dtype in session.capabilities.dtypes
        for case in allowed(session, [witnesses.W, witnesses.W2])
    ]
    return judge_law(session, tabulate.joint, named)


def needs_half_precision(subject: Subject) -> str:
    """Reason to skip a check of rounded probabilities."""
    if not _HALF.intersection(subject.capabilities.dtypes):
        return f"the subject takes {', '.join(subject.capabilities.dtypes)} only"
    return ""


@check(
    "half-precision",
    "In half precision the law is off by no more than the rounding of p and q.",
    law="L29",
    needs=needs_half_precision,
)
def half_precision(session: Session) -> Finding:
    """Probabilities that half precision cannot write, with their rounding granted."""
    named = [
        case.with_(dtype=dtype, name=f"{case.name}, {dtype}")
        for dtype in session.capabilities.dtypes
        if dtype in _HALF
        for case in allowed(session, [witnesses.M1, witnesses.S1])
    ]
    finding = judge_law(session, tabulate.rounded_joint, named)
    granted = [
        f"{case.name}: total variation {tabulate.rounded_joint(case).tolerance:.2g} is "
        "granted to the rounding of p and q"
        for case in named
    ]
    return replace(finding, observations=(*finding.observations, *granted))


def large_case(vocab: int) -> Case:
    """One draft over a large vocabulary: p and q fall off in opposite directions.

    Rows depend on whether the token before was even, so three rows are all there is.
    """
    p = [1 + 5000 // (1 + token) for token in range(vocab)]
    q = [1 + 5000 // (1 + (token * 7) % vocab) for token in range(vocab)]
    models = []
    for weights in (p, q):
        turned = [weights, weights[::-1], weights[vocab // 3 :] + weights[: vocab // 3]]
        models.append(
            ToyModel(tuple(normalised(w) for w in turned), memory=1, groups=2)
        )
    target, draft = models
    return Case(target, draft, k=1, name=f"large {vocab}")


@st.composite
def _positions(draw: st.DrawFn, min_k: int, max_k: int) -> Case:
    vocab = draw(st.integers(2, 4))
    k = draw(st.integers(min_k, max_k))
    row = strategies.distributions(vocab)
    rows = draw(st.lists(row, min_size=k + 1, max_size=k + 1))
    target = ToyModel.from_positions(rows)
    return Case(target, ToyModel.from_positions(rows[:k] or rows), k)


def _agreeing(session: Session) -> st.SearchStrategy[Case]:
    """Cases with p = q at each drafted position and a row of its own for the bonus."""
    least = max(1, session.capabilities.min_draft_tokens)
    most = session.capabilities.max_draft_tokens
    agreeing = _positions(least, max(least, min(2, most if most is not None else 2)))
    return fitted(session, agreeing)
