# SPDX-License-Identifier: Apache-2.0
"""Turn the search for a broken law into a finding."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from hypothesis.strategies import SearchStrategy

from specverify.checks.comparison import Comparison, Tabulate, Tabulation
from specverify.checks.reproduce import counterexample
from specverify.checks.search import Evaluation, LawSearch, sequential_test
from specverify.checks.session import Finding, Session
from specverify.evidence.records import Effect, Table
from specverify.inputs.cases import Case
from specverify.inputs.models import IntArray
from specverify.statistics.certificates import tv_upper
from specverify.statistics.chisquare import ChiSquare
from specverify.subjects.faults import SubjectFault

_SHOWN_CELLS = 64
_LISTED_VOCAB = 8
_SIZING_DRAWS = 10_000

#: Reason of a violation that disappears when rows come one at a time.
DEPENDENT = (
    "the rows of one call depend on each other: called with one row at a time, the law "
    "holds on the same input"
)


def judge_law(
    session: Session,
    tabulate: Tabulate,
    witnesses: Sequence[Case],
    strategy: SearchStrategy[Case] | None = None,
) -> Finding:
    """Judge one law on witnesses and generated cases.

    Parameters
    ----------
    session
        Surroundings of the check.
    tabulate
        How a case is counted, and beside which law.
    witnesses
        Named cases, tried first.
    strategy
        Where further cases come from; None to stop at the witnesses.

    Returns
    -------
    Finding
        A violation with its smallest input, a pass, or inconclusive where time allowed
        only a coarser resolution than promised.
    """
    session.rig.refuse_if_hung()
    planned = len(witnesses) + (session.plan.examples if strategy is not None else 0)
    if not planned:
        return Finding("skipped", reason="no input of this check fits the subject")
    search = LawSearch(session, tabulate)
    smallest = search.run(witnesses, strategy)
    # A generated input that time cut short counts as not tried; a named one is promised.
    done = [e for e in search.evaluations.values() if e.case.name or not e.cut]
    common = Finding(
        status="pass",
        samples=sum(e.samples for e in done),
        examples=len(done),
        examples_planned=planned,
        tables=_tables(done, smallest),
    )
    if smallest is not None:
        return _violation(session, tabulate, smallest, done, common)
    return _judged(session, done, common)


def _judged(session: Session, done: list[Evaluation], common: Finding) -> Finding:
    """No violation: a pass if the resolution is what was promised."""
    if not any(e.samples for e in done):
        reason = "no step gave an outcome to count, so there is nothing to test"
        return replace(common, status="skipped", reason=reason)
    closest = max(done, key=lambda e: e.urgency)
    coarsest = max(done, key=lambda e: e.detectable_tv or 0.0)
    finding = replace(
        common, **_statistics(closest), detectable_tv=coarsest.detectable_tv
    )
    promised = session.plan.detect_tv
    if coarsest.detectable_tv is not None and coarsest.detectable_tv > promised:
        reason = (
            f"the time allowed {coarsest.samples} draws on an input ({session.elapsed:.0f} "
            f"s for this check): a bias below {coarsest.detectable_tv:.3g} would not be "
            f"seen, {promised:g} was promised; allow more with --max-seconds"
        )
        return replace(finding, status="inconclusive", reason=reason)
    return finding


def _violation(
    session: Session,
    tabulate: Tabulate,
    smallest: Evaluation,
    done: list[Evaluation],
    common: Finding,
) -> Finding:
    if smallest.fault:
        return replace(
            common,
            status="violation",
            effect="contract",
            grade="structural",
            reason=smallest.fault,
            counterexample=counterexample(session, smallest.case, smallest.fault),
        )
    effect, reason = _attribute(session, tabulate, smallest)
    measured = _measured(session, tabulate, smallest)
    statistics = _statistics(smallest) | {
        "tv_estimate": measured.test(smallest.limit).tv_estimate,
        "tv_upper": _certificate(measured),
    }
    return replace(
        common,
        **statistics,
        status="violation",
        effect=effect,
        reason=reason,
        observations=tuple(_first_tokens(session, tabulate, done)),
        counterexample=counterexample(session, smallest.case, measured.where()),
        tables=(measured.table(_titled(measured, smallest.case)), *common.tables[1:]),
    )


def _measured(session: Session, tabulate: Tabulate, found: Evaluation) -> Comparison:
    """Size up a violation on fresh draws: those that decided are biased by having done so.

    A subject too slow for that is sized up by the draws there are.
    """
    assert found.comparison is not None  # noqa: S101 - a judged law was counted
    if session.late:
        return found.comparison
    seed = session.seed(found.case, "size of the bias")
    tabulation = tabulate(found.case)
    try:
        counts = tabulation.count(session.rig, _SIZING_DRAWS, seed)
    except SubjectFault:
        return found.comparison
    return tabulation.beside(counts)


def _first_tokens(
    session: Session, tabulate: Tabulate, done: list[Evaluation]
) -> Iterator[str]:
    """The first token's law on each witness that shows the violation."""
    for found in done:
        if not (found.violated and found.case.name and found.comparison):
            continue
        if (
            found.case.vocab <= _LISTED_VOCAB
            and found.comparison.labels[0][0].isdigit()
        ):
            measured = _measured(session, tabulate, found)
            yield (
                f"witness {found.case.name}: first token observed "
                f"{measured.first_token()} in {measured.samples} draws"
            )


def _attribute(
    session: Session, tabulate: Tabulate, smallest: Evaluation
) -> tuple[Effect | None, str]:
    """Ask whether the law itself is broken, or only the independence of a batch's rows.

    Rows that share noise make counts vary too much although each row follows its law.
    So the input is drawn again with one row a call, four times as long as it took to see
    the violation.
    """
    found = _reason(smallest)
    if session.capabilities.max_batch == 1 or not session.shrink or session.late:
        return None, found
    tabulation = tabulate(smallest.case)
    seed = session.seed(smallest.case, "one row a call")
    try:
        counts = tabulation.count(session.rig.single_rows(), 4 * smallest.samples, seed)
    except SubjectFault:
        return None, found
    if _violates(session, tabulation, counts, smallest.limit):
        return None, found
    return "contract", DEPENDENT


def _violates(
    session: Session, tabulation: Tabulation, counts: IntArray, level: float
) -> bool:
    """Whether counts contradict their law, at an error rate of `level`."""
    if tabulation.probs is None:
        return tabulation.beside(counts).test(level).p_value < level
    test = sequential_test(tabulation, session.plan, level)
    return test.decide(counts).outcome == "reject"


def _reason(evaluation: Evaluation) -> str:
    comparison = evaluation.comparison
    assert comparison is not None  # noqa: S101 - called for judged laws only
    test = _chi_square(evaluation, comparison)
    if test.impossible:
        labels = ", ".join(comparison.labels[i] for i in test.impossible[:3])
        return f"outcomes of probability zero were emitted: {labels}"
    beside = f"chi2 = {test.statistic:.1f} on {test.df} df (p = 1e{test.log10_p:.1f})"
    if evaluation.log_e is None:
        return f"{comparison.title}: {beside}, {test.samples} draws"
    return (
        f"{comparison.title}: e-value 1e{evaluation.log_e / math.log(10):.1f}, needed "
        f"{1 / evaluation.limit:.1e}; {beside}, {test.samples} draws"
    )


def _chi_square(evaluation: Evaluation, comparison: Comparison) -> ChiSquare:
    """The test that decided, or the one for readers where an e-value did."""
    if evaluation.log_e is None:
        return comparison.test(evaluation.limit)
    return comparison.beside()


def _statistics(evaluation: Evaluation) -> dict[str, Any]:
    comparison = evaluation.comparison
    if comparison is None:
        return {}
    test = _chi_square(evaluation, comparison)
    log_e = evaluation.log_e
    finite = log_e is not None and math.isfinite(log_e)
    log10_e = log_e / math.log(10) if finite and log_e is not None else None
    return {
        "statistic": test.statistic,
        "df": test.df,
        "p_value": test.p_value,
        "log10_p": test.log10_p,
        "e_value": log10_e,
        "limit": evaluation.limit,
        "tv_estimate": test.tv_estimate,
        "tv_upper": _certificate(comparison),
    }


def _certificate(comparison: Comparison) -> float | None:
    """Upper bound on the total variation; None where the law is fitted to the counts."""
    if comparison.fitted or not comparison.samples:
        return None
    return tv_upper(comparison.counts, comparison.probs)


def _tables(done: list[Evaluation], smallest: Evaluation | None) -> tuple[Table, ...]:
    """Counts to show: the smallest violation first, then a few witnesses."""
    shown = [e for e in done if e.case.name and e is not smallest][:3] or done[:1]
    if smallest is not None:
        shown = [smallest, *shown[:2]]
    return tuple(
        e.comparison.table(_titled(e.comparison, e.case))
        for e in shown
        if e.comparison is not None and len(e.comparison.labels) <= 4 * _SHOWN_CELLS
    )


def _titled(comparison: Comparison, case: Case) -> str:
    name = f"witness {case.name}" if case.name else f"vocab {case.vocab}, {case.shape}"
    return f"{comparison.title}, {name}"
