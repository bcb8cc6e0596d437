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

from specverify.checks import rules, tabulate
from specverify.checks.common import STEPS, allowed, generated, needs_bonus
from specverify.checks.draws import Step, draw_steps, steps_in_time
from specverify.checks.judge import DEPENDENT, judge_law
from specverify.checks.registry import check
from specverify.checks.reproduce import counterexample
from specverify.checks.session import Finding, Session
from specverify.evidence.records import Table
from specverify.inputs import witnesses
from specverify.inputs.cases import Case
from specverify.inputs.models import FloatArray, IntArray
from specverify.statistics.impossible import samples_to_see
from specverify.subjects.protocol import EFFICIENCIES, Subject


def needs_rule(subject: Subject) -> str:
    """Reason to skip a check that holds the subject to a law of acceptance."""
    if not subject.capabilities.efficiency:
        known = ", ".join(EFFICIENCIES[subject.kind])
        return (
            "the acceptance law of the rule is not fixed: the subject declares none; "
            f"specverify.subject(fn, efficiency=...) does, with one of {known}"
        )
    return needs_bonus(subject)


def needs_sure_acceptance(subject: Subject) -> str:
    """Reason to skip a check that p = q is always accepted."""
    if subject.capabilities.draft_probs is False:
        return "the subject takes deterministic drafts only (draft_probs=False)"
    if subject.capabilities.greedy:
        return "the subject decodes greedily (greedy=True)"
    if subject.capabilities.efficiency not in {"token", "block", "coupling"}:
        return "the declared rule, if any, promises no sure acceptance where p = q"
    return needs_bonus(subject)


@check(
    "acceptance-bound",
    "No more drafts are accepted than any lossless rule can accept.",
    law="L5, L11, L20",
    kinds=STEPS,
    needs=needs_bonus,
)
def acceptance_bound(session: Session) -> Finding:
    """Exact binomial test of each tail of the accepted length against its bound."""
    plan = session.plan
    named = allowed(session, [witnesses.J1, witnesses.W])
    level = session.share / max(sum(case.k for case in named), 1)
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
            tables=(*finding.tables, *_by_position(session, case, tail)),
            observations=(*finding.observations, _mean_accepted(session, case, tail)),
        )
        for position, bound in enumerate(rules.acceptance_bounds(case), start=1):
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


def _theory(session: Session, case: Case) -> tuple[str, FloatArray] | None:
    """A rule to read acceptance beside, and its ``P(accepted >= i)``: [k + 1].

    The declared one, or token-level verification for chains; None for others.
    """
    rule = session.capabilities.efficiency
    if rule is None and session.subject.kind != "chain":
        return None
    law = np.array(rules.accepted_law(case, rule or "token"), np.float64)
    return rule or "token", law[::-1].cumsum()[::-1]


def _by_position(session: Session, case: Case, tail: IntArray) -> list[Table]:
    """Acceptance at each position that was reached, beside theory."""
    found = _theory(session, case)
    if found is None:
        return []
    rule, theory = found
    table = Table(
        title=f"drafts accepted by position, witness {case.name}; theory of the "
        f"{rule} rule",
        kind="position",
        labels=tuple(f"position {i}" for i in range(case.k)),
        observed=tuple(int(count) for count in tail[1:]),
        expected=tuple(
            float(reached * later / now) if now else 0.0
            for reached, now, later in zip(
                tail[:-1], theory[:-1], theory[1:], strict=True
            )
        ),
        trials=tuple(int(count) for count in tail[:-1]),
    )
    return [table]


def _mean_accepted(session: Session, case: Case, tail: IntArray) -> str:
    mean = tail[1:].sum() / tail[0]
    words = f"accepted {mean:.3f} of {case.k} drafts on witness {case.name}"
    if session.subject.kind == "multidraft":
        words = f"accepted a draft in {mean:.3f} of the steps on witness {case.name}"
    found = _theory(session, case)
    if found is not None:
        rule, theory = found
        due = theory[1:].sum()
        words += f"; the {rule} rule accepts {due:.3f} ({mean - due:+.3f})"
    bounds = rules.acceptance_bounds(case)
    if len(bounds) == case.k:
        words += f", no lossless rule more than {sum(bounds):.3f}"
    return words


@check(
    "token-accepted-law",
    "Emitted tokens and acceptance follow the joint law of the declared rule: token-level, "
    "x is accepted with mass min(p, q)(x) and recovered with mass (p - q)+(x).",
    law="L3, L14",
    effect="efficiency",
    kinds=STEPS,
    needs=needs_rule,
)
def token_accepted_law(session: Session) -> Finding:
    """Emitted tokens before completion, against the enumerated law of the rule."""
    named = allowed(session, [witnesses.W, witnesses.J1, witnesses.M1])
    rule = str(session.capabilities.efficiency)
    return judge_law(
        session,
        lambda case: tabulate.emitted(case, rule),
        named,
        generated(session, max_cells=27 if session.subject.kind == "tree" else 81),
    )


@check(
    "accepted-length",
    "The number of accepted drafts follows the law of the declared rule.",
    law="L12, L14",
    effect="efficiency",
    kinds=STEPS,
    needs=needs_rule,
)
def accepted_length(session: Session) -> Finding:
    """Number of accepted drafts, 0 to k."""
    named = allowed(session, [witnesses.P2.with_(k=5), witnesses.J1, witnesses.J2])
    rule = str(session.capabilities.efficiency)
    return judge_law(
        session,
        lambda case: tabulate.accepted_length(case, rule),
        named,
        generated(session, max_cells=27 if session.subject.kind == "tree" else 81),
    )


@check(
    "equal-models",
    "Where p = q, bit for bit, every draft is accepted.",
    law="L9",
    effect="efficiency",
    grade="structural",
    needs=needs_sure_acceptance,
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
