# SPDX-License-Identifier: Apache-2.0
"""Judge a law on many inputs, and find the smallest input that breaks it.

Witnesses come first, then inputs that Hypothesis generates and, after a violation,
shrinks. Each distinct input is judged once, at a level that the ledger hands out, on
draws that depend on salt, check and input only; the verdict is kept, so that a replay
cannot flip it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import hypothesis
from hypothesis import HealthCheck, Phase, Verbosity
from hypothesis.strategies import SearchStrategy

from specverify.checks.comparison import Compare, Comparison
from specverify.checks.session import Session
from specverify.inputs.cases import Case
from specverify.statistics import chisquare
from specverify.statistics.chisquare import ChiSquare
from specverify.statistics.impossible import smallest_seen
from specverify.statistics.ledger import Ledger, derive_seed
from specverify.subjects.faults import SubjectFault, SubjectHung

#: Looks at a growing sample: fraction of the draws, and share of the level spent there.
#: Gross errors are seen after a sixteenth of the draws.
_LOOKS: Final = ((1 / 16, 1 / 8), (1 / 4, 1 / 8), (1.0, 3 / 4))
#: A conditional law (the bonus token) counts some rows only: draw up to this many times.
_MOST_REDRAWS: Final = 20
#: Generated inputs after a witness has failed, to have something to shrink from.
_LEAST_EXAMPLES: Final = 20
_LEAST_SHRINK_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Judgement of one input.

    Attributes
    ----------
    case
        The input.
    violated
        Whether the law is broken on it, or the subject failed.
    comparison, test, limit, detectable_tv
        What was counted, its test, the level it was held against, the resolution.
    fault
        How the subject broke its contract instead.
    """

    case: Case
    violated: bool
    comparison: Comparison | None = None
    test: ChiSquare | None = None
    limit: float = 0.0
    detectable_tv: float | None = None
    fault: str = ""

    @property
    def samples(self) -> int:
        """Counts that were judged."""
        return self.comparison.samples if self.comparison else 0

    @property
    def urgency(self) -> float:
        """How close to a violation: p-value as a fraction of its limit, log10."""
        if self.test is None or not self.limit:
            return -math.inf
        return self.test.log10_p - math.log10(self.limit)


class LawSearch:
    """Judges one law of one subject on as many inputs as the plan and the time allow.

    Parameters
    ----------
    session
        Surroundings of the check.
    compare
        Draws and tabulates.
    cells
        Number of outcomes of the law on a case.
    """

    def __init__(
        self, session: Session, compare: Compare, cells: Callable[[Case], int]
    ) -> None:
        self.session = session
        self.evaluations: dict[bytes, Evaluation] = {}
        self._compare = compare
        self._cells = cells
        self._ledger = Ledger(session.share, 1)
        self._fraction = 1.0  # of the draws that the promised resolution asks for
        self._enough = math.inf  # draws beyond which shrinking gains nothing
        self._deadline = math.inf

    def run(
        self, witnesses: Sequence[Case], strategy: SearchStrategy[Case] | None
    ) -> Evaluation | None:
        """Judge witnesses and generated inputs; return the smallest violation found."""
        examples = self.session.plan.examples if strategy is not None else 0
        self._ledger = Ledger(self.session.share, len(witnesses) + examples)
        examples = self._fit(witnesses, examples)
        failed = [e for e in map(self.evaluate, witnesses) if e.violated]
        # The smallest witness, if nothing smaller is found.
        failed.sort(key=lambda e: (bool(e.fault), e.case.vocab, e.case.k))
        if failed and not self.session.shrink:
            return failed[0]
        smallest = None
        if strategy is not None and (examples or failed):
            self._limit_shrinking(failed)
            number = max(examples, _LEAST_EXAMPLES) if failed else examples
            seed = self.session.seed(purpose="examples")
            smallest = find_smallest(strategy, self._breaks, examples=number, seed=seed)
        if smallest is not None:
            return self.evaluations[smallest.key]
        return failed[0] if failed else None

    def evaluate(self, case: Case) -> Evaluation:
        """Judge one input, once."""
        if case.key not in self.evaluations:
            try:
                evaluation = self._judge(case, self._ledger.next_level())
            except SubjectHung:
                raise
            except SubjectFault as fault:
                evaluation = Evaluation(case, violated=True, fault=str(fault))
            self.evaluations[case.key] = evaluation
        return self.evaluations[case.key]

    def _breaks(self, case: Case) -> bool:
        if case.key not in self.evaluations and time.monotonic() > self._deadline:
            return False  # out of time: what is not known yet counts as no improvement
        evaluation = self.evaluate(case)
        if evaluation.violated:
            self._limit_shrinking([evaluation])
        return evaluation.violated

    def _limit_shrinking(self, failed: list[Evaluation]) -> None:
        """After a violation, bound time and draws: what follows only seeks a smaller one."""
        if failed and self._deadline == math.inf:
            seconds = max(_LEAST_SHRINK_SECONDS, self.session.seconds)
            self._deadline = time.monotonic() + seconds
            self._enough = max(4 * e.samples for e in failed) or math.inf

    def _judge(self, case: Case, level: float) -> Evaluation:
        """Draw in looks of growing size and test after each."""
        plan, final = self.session.plan, level * _LOOKS[-1][1]
        wanted = chisquare.min_samples(
            tv=plan.detect_tv, cells=self._cells(case), level=final, power=plan.power
        )
        goal = min(max(64, math.ceil(wanted * self._fraction)), self._enough)
        comparison: Comparison | None = None
        for look, (part, share) in enumerate(_LOOKS):
            comparison = self._grow(case, comparison, math.ceil(goal * part), look)
            test = chisquare.goodness_of_fit(
                comparison.counts,
                comparison.probs,
                level=level * share,
                fitted=comparison.fitted,
            )
            if test.p_value < level * share:
                return Evaluation(case, True, comparison, test, level * share)  # noqa: FBT003
        resolution = self._resolution(comparison, test, final)
        return Evaluation(case, False, comparison, test, final, resolution)  # noqa: FBT003

    def _resolution(self, comparison: Comparison, test: ChiSquare, level: float) -> float:
        power = self.session.plan.power
        if comparison.size == 1:  # only one outcome is possible: any other is a proof
            return smallest_seen(comparison.samples, power=power)
        return chisquare.min_detectable_tv(
            samples=comparison.samples, cells=test.df + 1, level=level, power=power
        )

    def _grow(
        self, case: Case, comparison: Comparison | None, goal: int, look: int
    ) -> Comparison:
        """Draw until `goal` rows are counted; conditional laws count only some."""
        drawn, rate = 0, 1.0
        for redraw in range(_MOST_REDRAWS):
            have = comparison.samples if comparison else 0
            rows = min(math.ceil((goal - have) / rate), 4 * goal)
            if rows <= 0:
                break
            seed = self.session.seed(case, f"look {look}, redraw {redraw}")
            fresh = self._compare(self.session.rig, case, rows, seed)
            comparison = comparison.plus(fresh) if comparison else fresh
            drawn += rows
            rate = max((comparison.samples - have) / rows, 0.01)
        assert comparison is not None  # noqa: S101 - a goal is at least one row
        return comparison

    def _fit(self, witnesses: Sequence[Case], examples: int) -> int:
        """Fit the effort into the time: fewer generated inputs first, then fewer draws."""
        case = max(witnesses, key=self._cells)
        try:
            per_row = self.session.rig.seconds_per_row(
                lambda rows: self._compare(
                    self.session.rig, case, rows, self.session.seed(case, "timing")
                )
            )
        except SubjectHung:
            raise
        except SubjectFault:
            return examples
        plan = self.session.plan
        draws = chisquare.min_samples(
            tv=plan.detect_tv,
            cells=self._cells(case),
            level=self._ledger.planned_level * _LOOKS[-1][1],
            power=plan.power,
        )
        affordable = self.session.seconds / (per_row * draws)
        # The witnesses come first: other checks finish early and leave them their time.
        # An estimate made on a busy machine may be off by half.
        longest = 2 * max(self.session.limit, self.session.seconds)
        self._fraction = min(1.0, longest / (per_row * draws * len(witnesses)))
        return max(0, min(examples, int(affordable) - len(witnesses)))


def find_smallest(
    strategy: SearchStrategy[Case],
    violates: Callable[[Case], bool],
    *,
    examples: int,
    seed: int,
) -> Case | None:
    """Let Hypothesis look for a case that violates, and shrink it.

    Parameters
    ----------
    strategy
        Where cases come from.
    violates
        Must answer the same for equal cases.
    examples
        Cases to try before giving up.
    seed
        Of the search.

    Returns
    -------
    Case or None
        The smallest violating case found.
    """

    @hypothesis.seed(derive_seed(seed, "hypothesis"))
    @hypothesis.settings(
        max_examples=examples,
        database=None,
        deadline=None,
        derandomize=False,
        print_blob=False,
        report_multiple_bugs=False,
        verbosity=Verbosity.quiet,
        phases=(Phase.generate, Phase.shrink),
        # Judging takes as long as it takes; a busy machine must not fail the search.
        suppress_health_check=(HealthCheck.too_slow,),
    )
    @hypothesis.given(strategy)
    def search(case: Case) -> None:
        if violates(case):
            raise _Violation(case)

    try:
        search()
    except _Violation as violation:
        return violation.case
    return None


class _Violation(Exception):  # noqa: N818 - carries a case, says nothing
    def __init__(self, case: Case) -> None:
        super().__init__()
        self.case = case
