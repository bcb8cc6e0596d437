# SPDX-License-Identifier: Apache-2.0
"""Check a solution of the tutorial's exercise: accept a prefix of the drafts.

The solution draws from `torch.rand`, so its law needs no sampling: the uniforms are
scripted and the share of them at which it accepts is counted, on torch's own grid.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import Final

import numpy as np
import torch

from specverify.checks.registry import check
from specverify.checks.reproduce import command
from specverify.checks.session import Finding, Session
from specverify.evidence.records import Counterexample, Table
from specverify.inputs import witnesses
from specverify.laws import chain, steps
from specverify.statistics import chisquare
from specverify.subjects.scripted import GRID, Exercise, pair_rows

#: Target and draft masses of the drafted token: p below, at and above q; zeros; ties.
_MASSES: Final = (0.0, 0.05, 0.2, 0.25, 0.4, 0.5, 0.8, 1.0)
_ALMOST_ONE: Final = (GRID - 1) / GRID
_EXACT: Final = 2 / GRID


def _above(p: float, q: float) -> float:
    """Uniforms above p/q are accepted where p < q, all of them elsewhere."""
    return 1.0 if p >= q else -(1 - p / q)


#: Acceptance laws that solutions follow by mistake, in words. A negative value is a
#: share of large uniforms.
_MISTAKES: Final[list[tuple[str, Callable[[float, float], float]]]] = [
    (
        "accepts with probability q/p instead of p/q",
        lambda p, q: min(1, q / p) if p else 1,
    ),
    ("accepts with probability p instead of min(1, p/q)", lambda p, q: p),
    ("accepts with probability p instead of p/q", lambda p, q: 1 if p >= q else p),
    ("accepts with probability q instead of min(1, p/q)", lambda p, q: q),
    (
        "rejects with probability p/q instead of accepting",
        lambda p, q: -max(0, 1 - p / q),
    ),
    ("rejects with probability p/q instead of accepting", _above),
    (
        "accepts with probability 1 - p/q instead of p/q",
        lambda p, q: 1 if p >= q else 1 - p / q,
    ),
    ("always accepts", lambda p, q: 1),
    ("never accepts", lambda p, q: 0),
    ("accepts only where p >= q, without chance", lambda p, q: float(p >= q)),
]
_KEEPS_REJECTED: Final = "returns the rejected token too"
_UNSCRIPTABLE: Final = Finding(
    "inconclusive",
    reason="its randomness does not come from torch.rand, so it cannot be scripted; "
    "the accepted lengths are still tested by drawing",
)


@check(
    "exercise-accept-law",
    "A draft is accepted with probability min(1, p/q), exactly.",
    law="L3",
    grade="exact",
    kinds=("exercise",),
)
def accept_law(session: Session) -> Finding:
    """Count the uniforms at which a single draft is accepted, for a grid of (p, q)."""
    solution = _solution(session)
    if solution.hides_randomness():
        return _UNSCRIPTABLE
    found = {(p, q): solution.acceptance(p, q) for p, q in _pairs()}
    wrong = {
        pair: share
        for pair, share in found.items()
        if abs(share - _due(*pair)) > _EXACT
    }
    if not wrong:
        return Finding(
            "pass",
            detectable_tv=_EXACT,
            examples=len(found),
            examples_planned=len(found),
        )
    (p, q), share = max(wrong.items(), key=lambda item: abs(item[1] - _due(*item[0])))
    cause = _KEEPS_REJECTED if solution.keeps_rejected() else _mistake(found)
    where = (
        f"p = {p:g}, q = {q:g}: accepted with probability {abs(share):.6f}, "
        f"due is {_due(p, q):.6f}"
    )
    return Finding(
        "violation",
        reason=f"it {cause}" if cause else where,
        likely_cause=cause,
        counterexample=_counterexample(session, [(p, q)], [abs(share)], where),
        tv_estimate=abs(abs(share) - _due(p, q)) * q,
        examples=len(found),
        examples_planned=len(found),
    )


@check(
    "exercise-stop",
    "The answer is the accepted prefix: nothing follows the first rejection.",
    law="contract",
    grade="exact",
    kinds=("exercise",),
)
def stops(session: Session) -> Finding:
    """Script every pattern of acceptances over three drafts."""
    solution = _solution(session)
    if solution.hides_randomness():
        return _UNSCRIPTABLE
    tokens = [1, 2, 3]
    for pattern in product((False, True), repeat=3):
        pairs = [(0.2, 0.5)] * 3  # p < q: the uniform decides
        uniforms = [0.0 if accept else _ALMOST_ONE for accept in pattern]
        answer = solution.run(*pair_rows(pairs), tokens, uniforms)
        stop = pattern.index(False) if False in pattern else 3
        due = tokens[:stop]
        if answer.accepted == due:
            continue
        plan = ", ".join("accepted" if accept else "rejected" for accept in pattern)
        where = f"drafts in turn {plan}: it returned {answer.accepted}, due is {due}"
        cause = _stopping_mistake(answer.accepted, tokens, stop)
        return Finding(
            "violation",
            reason=f"it {cause}: {where}",
            likely_cause=cause,
            counterexample=_counterexample(session, pairs, uniforms, where),
        )
    return Finding("pass", examples=8, examples_planned=8)


def _stopping_mistake(answer: list[int], tokens: list[int], stop: int) -> str:
    """Say what an answer does wrong whose first rejected draft is number `stop`."""
    if answer == tokens[: stop + 1]:
        return _KEEPS_REJECTED
    if set(answer) & set(tokens[stop:]):
        return "goes on after a rejection"
    return "stops before a rejection"


@check(
    "exercise-prefix",
    "The answer holds the drafted ids themselves, in order.",
    law="contract",
    effect="contract",
    grade="exact",
    kinds=("exercise",),
)
def prefix(session: Session) -> Finding:
    """Distinct ids, all accepted; also on rows that are not normalised."""
    solution = _solution(session)
    if solution.hides_randomness():
        return _UNSCRIPTABLE
    p, q = torch.zeros(4, 100), torch.zeros(4, 100)
    tokens = [10, 20, 30, 40]
    for position, token in enumerate(tokens):
        p[position, token], q[position, token] = 0.8, 0.5
    answer = solution.run(q, p, tokens, [_ALMOST_ONE])
    if answer.accepted != tokens:
        reason = f"p > q for all of {tokens}, and it returned {answer.accepted}"
        return Finding("violation", reason=reason, samples=1)
    p[1, 20], q[1, 20], p[2, 30], q[2, 30] = 0.4, 0.5, 0.1, 0.9
    answer = solution.run(q, p, tokens, [0.5, 0.9])
    if answer.accepted != [10, 20]:
        reason = (
            "p/q at the drafts 0.8/0.5, 0.4/0.5, 0.1/0.9, ..., uniforms 0.5 and 0.9: it "
            f"returned {answer.accepted}, due is [10, 20]"
        )
        return Finding("violation", reason=reason, samples=2)
    return Finding("pass", samples=2, examples=2, examples_planned=2)


@check(
    "exercise-draws",
    "torch.rand(1) is drawn once for each tested draft with p < q, and never where p >= q.",
    law="contract",
    effect="contract",
    grade="exact",
    kinds=("exercise",),
)
def draws(session: Session) -> Finding:
    """Count the draws for p below, at and above q, and after a rejection."""
    solution = _solution(session)
    plans = [
        ("where p > q", [(0.8, 0.5)], 0),
        ("where p = q", [(0.5, 0.5)], 0),
        ("where p < q", [(0.2, 0.5)], 1),
        ("for three accepted drafts with p < q", [(0.2, 0.5)] * 3, 3),
        ("for p > q, p < q, p > q", [(0.8, 0.5), (0.2, 0.5), (0.8, 0.5)], 1),
    ]
    for words, pairs, due in plans:
        drafts = list(range(1, len(pairs) + 1))
        answer = solution.run(*pair_rows(pairs), drafts, [0.0])
        if answer.draws != due:
            reason = f"it draws {answer.draws} uniforms {words}; due are {due}"
            if answer.draws == 0:
                reason += (
                    " (its randomness does not come from torch.rand, or it has none)"
                )
            shown = _counterexample(session, pairs, [0.0], reason)
            return Finding("violation", reason=reason, counterexample=shown)
    return Finding("pass", examples=len(plans), examples_planned=len(plans))


@check(
    "exercise-accepted-length",
    "With its own randomness, the number of accepted drafts follows its law.",
    law="L12",
    kinds=("exercise",),
)
def accepted_length(session: Session) -> Finding:
    """Draw for real: covers solutions whose randomness cannot be scripted."""
    solution, case, plan = _solution(session), witnesses.J1, session.plan
    rows = chisquare.min_samples(
        tv=plan.detect_tv, cells=case.k + 1, level=session.share, power=plan.power
    )
    counts = _real_lengths(session, solution, rows)
    law = np.array(
        steps.accepted_law(chain.emissions, case.target, case.draft, case.k), np.float64
    )
    test = chisquare.goodness_of_fit(counts, law, level=session.share)
    samples = int(counts.sum())
    detectable = chisquare.min_detectable_tv(
        samples=samples, cells=test.df + 1, level=session.share, power=plan.power
    )
    coarse = detectable > plan.detect_tv
    violated = test.p_value < session.share
    labels = tuple(str(length) for length in range(case.k + 1))
    expected = tuple(float(x) for x in law * samples)
    observed = tuple(int(c) for c in counts)
    return Finding(
        "violation" if violated else "inconclusive" if coarse else "pass",
        reason=_length_reason(
            violated=violated, coarse=coarse, log10_p=test.log10_p, samples=samples
        ),
        statistic=test.statistic,
        df=test.df,
        p_value=test.p_value,
        log10_p=test.log10_p,
        limit=session.share,
        samples=samples,
        examples=1,
        examples_planned=1,
        tv_estimate=test.tv_estimate,
        detectable_tv=detectable,
        tables=(
            Table("accepted drafts, witness J1", "law", labels, observed, expected),
        ),
    )


def _real_lengths(session: Session, solution: Exercise, rows: int) -> np.ndarray:
    """Accepted lengths of `rows` runs, or of as many as the time allows."""
    case = witnesses.J1
    rng = np.random.default_rng(session.seed(case, "drafts"))
    drafts = case.draft.extend(np.empty((rows, 0), np.int64), case.k, rng)
    q = [
        case.draft.matrix[case.draft.context_index(drafts[:, :i])]
        for i in range(case.k)
    ]
    p = [
        case.target.matrix[case.target.context_index(drafts[:, :i])]
        for i in range(case.k)
    ]
    q_rows, p_rows = torch.tensor(np.stack(q, 1)), torch.tensor(np.stack(p, 1))
    counts = np.zeros(case.k + 1, np.int64)
    stream = session.rig.stream(session.seed(case))
    with stream.owning_globals():
        for row in range(rows):
            accepted = solution.call(q_rows[row], p_rows[row], drafts[row].tolist())
            counts[min(len(accepted), case.k)] += 1
            if row % 256 == 255 and session.elapsed > session.seconds * 4:
                break
    return counts


def _length_reason(
    *, violated: bool, coarse: bool, log10_p: float, samples: int
) -> str:
    if violated:
        return f"accepted lengths have p = 1e{log10_p:.1f} over {samples} runs"
    return f"time allowed {samples} runs only" if coarse else ""


def _solution(session: Session) -> Exercise:
    return Exercise(session.subject, call_seconds=session.plan.call_seconds)


def _pairs() -> Iterator[tuple[float, float]]:
    """All masses with q > 0: a token of draft mass zero is never drafted."""
    return ((p, q) for p, q in product(_MASSES, _MASSES) if q > 0)


def _due(p: float, q: float) -> float:
    return 1.0 if p >= q else p / q


def _mistake(found: dict[tuple[float, float], float]) -> str | None:
    """Name the known mistake whose law is the observed one on every tested pair."""
    for words, law in _MISTAKES:
        if all(abs(share - law(p, q)) <= _EXACT for (p, q), share in found.items()):
            return words
    return None


def _counterexample(
    session: Session,
    pairs: list[tuple[float, float]],
    uniforms: list[float],
    where: str,
) -> Counterexample:
    q, p = pair_rows(pairs)
    script = (
        "from unittest import mock\n\nimport torch\n\n"
        "# verify = your solution\n"
        f"draft_probs = torch.tensor({q.tolist()})\n"
        f"target_probs = torch.tensor({p.tolist()})\n"
        f"uniforms = iter({uniforms})\n"
        'with mock.patch("torch.rand", lambda *size: torch.tensor([next(uniforms)])):\n'
        f"    print(verify(draft_probs, target_probs, {list(range(1, len(pairs) + 1))}))\n"
    )
    return Counterexample(
        summary="; ".join(f"p = {a:g}, q = {b:g}" for a, b in pairs),
        where=where,
        case={"p": p.tolist(), "q": q.tolist(), "uniforms": uniforms},
        seed=0,
        command=command(session),
        script=script,
    )
