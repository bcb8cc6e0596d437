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
import numpy as np
from hypothesis import HealthCheck, Phase, Verbosity
from hypothesis.strategies import SearchStrategy

from specverify.checks.comparison import Comparison, Tabulate, Tabulation
from specverify.checks.plan import Plan
from specverify.checks.session import Session
from specverify.inputs.cases import Case
from specverify.inputs.models import IntArray
from specverify.statistics import chisquare, planning
from specverify.statistics.decisions import SequentialTest
from specverify.statistics.impossible import smallest_seen
from specverify.statistics.ledger import Ledger, derive_seed
from specverify.subjects.faults import SubjectFault, SubjectHung

#: A conditional law (the bonus token) counts some rows only: draw up to this many times.
_MOST_REDRAWS: Final = 20
#: Generated inputs after a witness has failed, to have something to shrink from.
_LEAST_EXAMPLES: Final = 20
_SUPPRESSED: Final = tuple(
    check for check in HealthCheck if check.name in ("too_slow", "nested_given")
)
_SHRINK_SECONDS: Final = 30.0
#: Draws between two looks at the clock where there are no looks at the counts.
_STRIDE: Final = 1024


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Judgement of one input.

    Attributes
    ----------
    case
        The input.
    violated
        Whether the law is broken on it, or the subject failed.
    comparison
        What was counted.
    limit
        Error rate of the decision.
    log_e
        Evidence against the law, natural logarithm; None where chi-square decided.
    detectable_tv
        Bias that would have been seen.
    fault
        How the subject broke its contract instead.
    cut
        Whether time ran out before the decision had the draws it asks for.
    """

    case: Case
    violated: bool
    comparison: Comparison | None = None
    limit: float = 0.0
    log_e: float | None = None
    detectable_tv: float | None = None
    fault: str = ""
    cut: bool = False

    @property
    def samples(self) -> int:
        """Counts that were judged."""
        return self.comparison.samples if self.comparison else 0

    @property
    def growth(self) -> float | None:
        """Evidence gained with each draw: what the search climbs towards."""
        if self.log_e is None or not math.isfinite(self.log_e) or not self.samples:
            return None
        return self.log_e / self.samples

    @property
    def urgency(self) -> float:
        """How close to a violation: log10 of the evidence as a share of its limit."""
        if self.comparison is None or not self.limit:
            return -math.inf
        log10_e = (
            self.log_e / math.log(10)
            if self.log_e is not None
            else -self.comparison.test(self.limit).log10_p
        )
        return log10_e + math.log10(self.limit)


class LawSearch:
    """Judges one law of one subject on as many inputs as the plan and the time allow.

    Parameters
    ----------
    session
        Surroundings of the check.
    tabulate
        How a case is counted, and beside which law.
    """

    def __init__(self, session: Session, tabulate: Tabulate) -> None:
        self.session = session
        self.evaluations: dict[bytes, Evaluation] = {}
        self._tabulate = tabulate
        self._ledger = Ledger(session.share, 1)
        self._enough = math.inf  # draws beyond which shrinking gains nothing
        self._deadline = math.inf  # when the input at hand must make do with its draws
        self._shrinking = False

    def run(
        self, witnesses: Sequence[Case], strategy: SearchStrategy[Case] | None
    ) -> Evaluation | None:
        """Judge witnesses and generated inputs; return the smallest violation found."""
        examples = self.session.plan.examples if strategy is not None else 0
        self._ledger = Ledger(self.session.share, len(witnesses) + examples)
        for number, case in enumerate(witnesses):
            self._allow(self.session.limit / (len(witnesses) - number))
            self.evaluate(case)
        # The smallest witness comes first, if nothing smaller is found.
        failed = [e for e in self.evaluations.values() if e.violated]
        failed.sort(key=lambda e: (bool(e.fault), e.case.vocab, e.case.k))
        if failed and not self.session.shrink:
            return failed[0]
        smallest = None
        if strategy is not None and (examples or failed):
            self._allow(self.session.seconds)
            self._limit_shrinking(failed)
            number = max(examples, _LEAST_EXAMPLES) if failed else examples
            seed = self.session.seed(purpose="examples")
            smallest = find_smallest(strategy, self._breaks, examples=number, seed=seed)
        found = [self.evaluations[smallest.key]] if smallest is not None else []
        # A law that is broken says more than an exception on a smaller input.
        found = sorted([*found, *failed], key=lambda e: bool(e.fault))
        return found[0] if found else None

    def _allow(self, until: float) -> None:
        """Let draws go on until so many seconds of the check have passed."""
        self._deadline = self.session.started + until

    @property
    def _late(self) -> bool:
        return time.monotonic() > self._deadline

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
        if case.key not in self.evaluations and self._late:
            return False  # not tried, and not counted as tried
        evaluation = self.evaluate(case)
        if evaluation.violated:
            self._limit_shrinking([evaluation])
        elif evaluation.growth is not None:
            hypothesis.target(evaluation.growth)
        return evaluation.violated

    def _limit_shrinking(self, failed: list[Evaluation]) -> None:
        """After a violation, bound time and draws: the rest only seeks a smaller one."""
        if failed and not self._shrinking:
            self._shrinking = True
            self._allow(self.session.elapsed + _SHRINK_SECONDS)
            self._enough = max(4 * e.samples for e in failed) or math.inf

    def _judge(self, case: Case, level: float) -> Evaluation:
        """Draw in looks of growing size until the law is rejected or a bias excluded."""
        tabulation = self._tabulate(case)
        if tabulation.probs is None:
            return self._judge_independence(case, tabulation, level)
        test = sequential_test(tabulation, self.session.plan, level)
        goal = int(min(test.n_max, self._enough))
        counts = np.zeros(len(tabulation.labels), np.int64)
        for size in [look for look in test.looks() if look < goal] + [goal]:
            counts = self._grow(case, tabulation, counts, size)
            decision = test.decide(counts)
            if decision.outcome != "continue" or self._late or not counts.any():
                break
        return Evaluation(
            case=case,
            violated=decision.outcome == "reject",
            comparison=tabulation.beside(counts),
            limit=level,
            log_e=decision.evidence.log_e,
            detectable_tv=self._resolution(test, decision.outcome, decision.samples),
            cut=decision.outcome == "continue" and decision.samples < goal,
        )

    def _resolution(
        self, test: SequentialTest, outcome: str, samples: int
    ) -> float | None:
        """Bias that would have been seen: as promised once a bias is excluded."""
        if outcome == "reject":
            return None
        if test.cells == 1:  # only one outcome is possible: any other is a proof
            return smallest_seen(samples, power=test.power)
        if outcome == "accept":
            return test.tv
        if test.tolerance:
            return 1.0  # undecided: no bias of any size is excluded in every direction
        return planning.min_detectable_tv(
            samples=samples, cells=test.cells, level=test.level, power=test.power
        )

    def _judge_independence(
        self, case: Case, tabulation: Tabulation, level: float
    ) -> Evaluation:
        """Chi-square of independence, once, at the full number of draws.

        Its margins are fitted, so no e-value against a known law exists.
        """
        plan = self.session.plan
        goal = chisquare.min_samples(
            tv=plan.detect_tv, cells=tabulation.size, level=level, power=plan.power
        )
        goal = int(min(goal, self._enough))
        counts = np.zeros(len(tabulation.labels), np.int64)
        for size in range(goal % _STRIDE, goal + 1, _STRIDE):
            counts = self._grow(case, tabulation, counts, size)
            if self._late:
                break
        comparison = tabulation.beside(counts)
        test = comparison.test(level)
        resolution = chisquare.min_detectable_tv(
            samples=comparison.samples, cells=test.df + 1, level=level, power=plan.power
        )
        return Evaluation(
            case=case,
            violated=test.p_value < level,
            comparison=comparison,
            limit=level,
            detectable_tv=resolution,
        )

    def _grow(
        self, case: Case, tabulation: Tabulation, counts: IntArray, goal: int
    ) -> IntArray:
        """Draw until `goal` rows are counted; conditional laws count only some."""
        rate = 1.0
        for redraw in range(_MOST_REDRAWS):
            have = int(counts.sum())
            rows = min(math.ceil((goal - have) / rate), 4 * goal)
            if rows <= 0:
                break
            seed = self.session.seed(case, f"goal {goal}, redraw {redraw}")
            counts = counts + tabulation.count(self.session.rig, rows, seed)
            if redraw and not counts.any():
                break  # what it is conditional on does not happen
            rate = max((int(counts.sum()) - have) / rows, 0.01)
        return counts


def sequential_test(tabulation: Tabulation, plan: Plan, level: float) -> SequentialTest:
    """The test of a law that is known, at the errors and resolution of a plan."""
    assert tabulation.probs is not None  # noqa: S101 - independence is judged apart
    return SequentialTest(
        tabulation.probs,
        level=level,
        power=plan.power,
        tv=plan.detect_tv,
        draft=tabulation.draft,
        alternatives=tabulation.alternatives,
        tolerance=tabulation.tolerance,
    )


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
        phases=(Phase.generate, Phase.target, Phase.shrink),
        # Judging takes as long as it takes; a busy machine must not fail the search.
        # Users may call us from within a test of theirs that is under Hypothesis.
        suppress_health_check=_SUPPRESSED,
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
