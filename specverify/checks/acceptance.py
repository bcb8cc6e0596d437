# SPDX-License-Identifier: Apache-2.0
"""How much is accepted: a question of efficiency, apart from losslessness.

A rule that accepts less than its name promises can still be lossless (match rules are),
so a violation here does not fail a run by itself. Accepting *more* than the overlap of p
and q allows shows as a broken joint law (L5).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
from scipy import stats

from specverify.checks import tabulate
from specverify.checks.common import allowed, generated, needs_bonus
from specverify.checks.draws import Step, draw_steps, steps_in_time
from specverify.checks.judge import DEPENDENT, judge_law
from specverify.checks.registry import check
from specverify.checks.reproduce import counterexample
from specverify.checks.session import Finding, Session
from specverify.evidence.records import Table
from specverify.inputs import witnesses
from specverify.inputs.cases import Case
from specverify.inputs.models import IntArray
from specverify.laws import chain
from specverify.statistics.impossible import samples_to_see
from specverify.subjects.protocol import Subject


def needs_token_rule(subject: Subject) -> str:
    """Reason to skip a check that holds the subject to token-level acceptance."""
    declared = subject.capabilities.efficiency
    if declared != "token":
        said = f"declares efficiency={declared!r}" if declared else "declares none"
        return (
            f"the acceptance law of the rule is not fixed: the subject {said}; "
            "specverify.subject(fn, efficiency='token') holds it to min(1, p/q)"
        )
    return needs_bonus(subject)


@check(
    "acceptance-bound",
    "No more drafts are accepted than any lossless rule can accept.",
    law="L5, L11",
    needs=needs_bonus,
)
def acceptance_bound(session: Session) -> Finding:
    """Exact binomial test of each tail of the accepted length against its bound."""
    plan = session.plan
    named = allowed(session, [witnesses.J1, witnesses.W])
    level = session.share / sum(case.k for case in named)
    finding = Finding("pass", examples_planned=len(named))
    for case in named:
        noise = _noise(level) + _noise(1 - plan.power)
        goal = math.ceil((noise / plan.detect_tv) ** 2)
        tail = _tail_counts(case, steps_in_time(session, case, goal))
        rows = int(tail[0])
        if rows < goal:
            reason = f"the time allowed {rows} of {goal} draws on an input"
            finding = replace(finding, status="inconclusive", reason=reason)
        finding = replace(
            finding,
            samples=finding.samples + rows,
            detectable_tv=max(finding.detectable_tv or 0.0, noise / math.sqrt(rows)),
            examples=finding.examples + 1,
            tables=(*finding.tables, _by_position(case, tail)),
            observations=(*finding.observations, _mean_accepted(case, tail)),
        )
        for position in range(1, case.k + 1):
            bound = min(
                1.0, float(chain.acceptance_bound(case.target, case.draft, position))
            )
            p_value = float(stats.binom.sf(tail[position] - 1, rows, bound))
            if p_value < level:
                if _holds_alone(session, case, position, bound, rows, level):
                    return replace(
                        finding, status="violation", effect="contract", reason=DEPENDENT
                    )
                where = (
                    f"{position} or more drafts were accepted in "
                    f"{tail[position] / rows:.4f} of {rows} steps; no lossless rule "
                    f"can do so in more than {bound:.4f}"
                )
                return replace(
                    finding,
                    status="violation",
                    reason=where,
                    p_value=p_value,
                    limit=level,
                    counterexample=counterexample(session, case, where),
                )
    return finding


def _noise(error: float) -> float:
    """Deviation of a share of n draws that is exceeded with `error`, times sqrt n."""
    return math.sqrt(math.log(1 / error) / 2)  # Hoeffding


def _holds_alone(
    session: Session, case: Case, position: int, bound: float, rows: int, level: float
) -> bool:
    """Whether the bound holds when the subject is called with one row at a time."""
    if session.capabilities.max_batch == 1:
        return False
    alone = session.rig.single_rows()
    tail = _tail_counts(case, draw_steps(alone, case, rows, session.seed(case)))
    return bool(stats.binom.sf(tail[position] - 1, rows, bound) >= level)


def _tail_counts(case: Case, steps: Iterable[Step]) -> IntArray:
    """How many steps accepted i or more drafts, for i = 0 to k."""
    lengths = np.zeros(case.k + 1, np.int64)
    for step in steps:
        lengths += np.bincount(step.accepted, minlength=case.k + 1)
    return lengths[::-1].cumsum()[::-1]


def _by_position(case: Case, tail: IntArray) -> Table:
    """Acceptance at each position that was reached, beside token-level theory."""
    law = np.array(chain.accepted_law(case.target, case.draft, case.k), np.float64)
    theory = law[::-1].cumsum()[::-1]  # P(accepted >= i)
    return Table(
        title=f"drafts accepted by position, witness {case.name}; token-level theory",
        kind="position",
        labels=tuple(f"position {i}" for i in range(case.k)),
        observed=tuple(int(count) for count in tail[1:]),
        expected=tuple(
            float(reached * later / now)
            for reached, now, later in zip(
                tail[:-1], theory[:-1], theory[1:], strict=True
            )
        ),
        trials=tuple(int(count) for count in tail[:-1]),
    )


def _mean_accepted(case: Case, tail: IntArray) -> str:
    mean = tail[1:].sum() / tail[0]
    token = float(chain.expected_accepted(case.target, case.draft, case.k))
    bounds = range(1, case.k + 1)
    most = sum(
        float(chain.acceptance_bound(case.target, case.draft, i)) for i in bounds
    )
    return (
        f"accepted {mean:.3f} of {case.k} drafts on witness {case.name}; "
        f"token-level verification {token:.3f}, no lossless rule above {most:.3f}"
    )


@check(
    "token-accepted-law",
    "Emitted tokens and acceptance follow their joint law: x is accepted with mass "
    "min(p, q)(x) and recovered with mass (p - q)+(x).",
    law="L3",
    effect="efficiency",
    needs=needs_token_rule,
)
def token_accepted_law(session: Session) -> Finding:
    """Emitted tokens before completion, against the enumerated law of the rule."""
    named = allowed(session, [witnesses.W, witnesses.J1, witnesses.M1])
    return judge_law(session, tabulate.emitted, named, generated(session))


@check(
    "accepted-length",
    "The number of accepted drafts follows the law of token-level verification.",
    law="L12",
    effect="efficiency",
    needs=needs_token_rule,
)
def accepted_length(session: Session) -> Finding:
    """Number of accepted drafts, 0 to k."""
    named = allowed(session, [witnesses.P2.with_(k=5), witnesses.J1, witnesses.J2])
    return judge_law(session, tabulate.accepted_length, named, generated(session))


@check(
    "equal-models",
    "Where p = q, bit for bit, every draft is accepted.",
    law="L9",
    effect="efficiency",
    grade="structural",
    needs=needs_token_rule,
)
def equal_models(session: Session) -> Finding:
    """The draft model is the target model; a single rejection is a proof."""
    plan = session.plan
    rows = samples_to_see(plan.detect_tv / 100, power=plan.power)
    samples = 0
    for base in allowed(session, [witnesses.M1, witnesses.W2]):
        case = base.with_(draft=base.target, name=f"{base.name} with q = p")
        for step in steps_in_time(session, case, rows):
            samples += len(step.drafts)
            rejected = int((step.accepted < case.k).sum())
            if rejected:
                where = f"{rejected} of {len(step.drafts)} rows rejected a draft"
                return Finding(
                    "violation",
                    reason=where,
                    samples=samples,
                    counterexample=counterexample(session, case, where),
                )
    return Finding("pass", samples=samples, examples=2, examples_planned=2)
