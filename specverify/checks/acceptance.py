# SPDX-License-Identifier: Apache-2.0
"""How much is accepted: a question of efficiency, apart from losslessness.

A rule that accepts less than its name promises can still be lossless (match rules are),
so a violation here does not fail a run by itself. Accepting *more* than the overlap of p
and q allows shows as a broken joint law (L5).
"""

from __future__ import annotations

from specverify.checks import tabulate
from specverify.checks.draws import draw_steps
from specverify.checks.common import allowed, generated, needs_bonus
from specverify.checks.judge import judge_law
from specverify.checks.registry import check
from specverify.checks.reproduce import counterexample
from specverify.checks.session import Finding, Session
from specverify.inputs import witnesses
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
    return judge_law(
        session, tabulate.emitted, tabulate.emitted_cells, named, generated(session)
    )


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
    return judge_law(
        session, tabulate.accepted_length, lambda case: case.k + 1, named, generated(session)
    )


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
        for step in draw_steps(session.rig, case, rows, session.seed(case)):
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
