# SPDX-License-Identifier: Apache-2.0
"""Turn the search for a broken law into a finding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from hypothesis.strategies import SearchStrategy

from specverify.checks.comparison import Compare
from specverify.checks.reproduce import counterexample
from specverify.checks.search import Evaluation, LawSearch
from specverify.checks.session import Finding, Session
from specverify.evidence.records import Effect, Table
from specverify.inputs.cases import Case
from specverify.statistics import chisquare
from specverify.subjects.faults import SubjectFault

_SHOWN_CELLS = 64
_LISTED_VOCAB = 8

#: Reason of a violation that disappears when rows come one at a time.
DEPENDENT = (
    "the rows of one call depend on each other: called with one row at a time, the law "
    "holds on the same input"
)


def judge_law(
    session: Session,
    compare: Compare,
    cells: Callable[[Case], int],
    witnesses: Sequence[Case],
    strategy: SearchStrategy[Case] | None = None,
) -> Finding:
    """Judge one law on witnesses and generated cases.

    Parameters
    ----------
    session
        Surroundings of the check.
    compare, cells
        Draws and tabulates; number of outcomes on a case.
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
    search = LawSearch(session, compare, cells)
    smallest = search.run(witnesses, strategy)
    done = list(search.evaluations.values())
    planned = len(witnesses) + (session.plan.examples if strategy is not None else 0)
    common = Finding(
        status="pass",
        samples=sum(e.samples for e in done),
        examples=len(done),
        examples_planned=planned,
        tables=_tables(done, smallest),
    )
    if smallest is not None:
        return _violation(session, compare, smallest, done, common)
    return _judged(session, done, common)


def _judged(session: Session, done: list[Evaluation], common: Finding) -> Finding:
    """No violation: a pass if the resolution is what was promised."""
    closest = min(done, key=lambda e: e.urgency)
    coarsest = max(done, key=lambda e: e.detectable_tv or 0.0)
    finding = replace(
        common, **_statistics(closest), detectable_tv=coarsest.detectable_tv
    )
    promised = session.plan.detect_tv
    if coarsest.detectable_tv is not None and coarsest.detectable_tv > promised:
        reason = (
            f"in {session.seconds:.0f} s the subject gave {coarsest.samples} draws on "
            f"an input: a bias below {coarsest.detectable_tv:.3g} would not be seen, "
            f"{promised:g} was promised; allow more with --max-seconds"
        )
        return replace(finding, status="inconclusive", reason=reason)
    return finding


def _violation(
    session: Session,
    compare: Compare,
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
    assert smallest.comparison is not None  # noqa: S101 - no fault, so it was counted
    where = smallest.comparison.where()
    effect, reason = _attribute(session, compare, smallest)
    return replace(
        common,
        **_statistics(smallest),
        status="violation",
        effect=effect,
        reason=reason,
        observations=_first_tokens(done),
        counterexample=counterexample(session, smallest.case, where),
    )


def _first_tokens(done: list[Evaluation]) -> tuple[str, ...]:
    """The first token's law on each witness that shows the violation."""
    shown = [
        e
        for e in done
        if e.violated and e.case.name and e.comparison and e.case.vocab <= _LISTED_VOCAB
    ]
    return tuple(
        f"witness {e.case.name}: first token observed {e.comparison.first_token()}"
        for e in shown
        if e.comparison is not None and e.comparison.labels[0][0].isdigit()
    )


def _attribute(
    session: Session, compare: Compare, smallest: Evaluation
) -> tuple[Effect | None, str]:
    """Ask whether the law itself is broken, or only the independence of a batch's rows.

    Rows that share noise make counts vary too much although each row follows its law.
    So the input is drawn again with one row a call, four times as long as it took to see
    the violation.
    """
    assert smallest.test is not None  # noqa: S101 - called for judged laws only
    found = _reason(smallest)
    if session.capabilities.max_batch == 1 or not session.shrink:
        return None, found
    rows = 4 * smallest.samples
    seed = session.seed(smallest.case, "one row a call")
    try:
        single = compare(session.rig.single_rows(), smallest.case, rows, seed)
    except SubjectFault:
        return None, found
    test = chisquare.goodness_of_fit(
        single.counts, single.probs, level=smallest.limit, fitted=single.fitted
    )
    if test.p_value < smallest.limit:
        return None, found
    return "contract", DEPENDENT


def _reason(evaluation: Evaluation) -> str:
    test = evaluation.test
    assert test is not None and evaluation.comparison is not None  # noqa: S101, PT018
    if test.impossible:
        labels = ", ".join(evaluation.comparison.labels[i] for i in test.impossible[:3])
        return f"outcomes of probability zero were emitted: {labels}"
    return (
        f"{evaluation.comparison.title}: chi2 = {test.statistic:.1f} on {test.df} df, "
        f"p = 1e{test.log10_p:.1f}, limit {evaluation.limit:.1e}, {test.samples} draws"
    )


def _statistics(evaluation: Evaluation) -> dict[str, float | int | None]:
    test = evaluation.test
    if test is None:
        return {}
    return {
        "statistic": test.statistic,
        "df": test.df,
        "p_value": test.p_value,
        "log10_p": test.log10_p,
        "limit": evaluation.limit,
        "tv_estimate": test.tv_estimate,
    }


def _tables(done: list[Evaluation], smallest: Evaluation | None) -> tuple[Table, ...]:
    """Counts to show: the smallest violation first, then a few witnesses."""
    shown = [e for e in done if e.case.name and e is not smallest][:3] or done[:1]
    if smallest is not None:
        shown = [smallest, *shown[:2]]
    return tuple(
        e.comparison.table(f"{e.comparison.title}, {_name(e.case)}")
        for e in shown
        if e.comparison is not None and len(e.comparison.labels) <= 4 * _SHOWN_CELLS
    )


def _name(case: Case) -> str:
    if case.name:
        return f"witness {case.name}"
    return f"vocab {case.vocab}, k = {case.k}"
