# SPDX-License-Identifier: Apache-2.0
"""Progress of a run and the list of checks, on a terminal or in a log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from rich.console import Console
from rich.markup import escape
from rich.table import Table

import specverify
from specverify.checks.plan import Plan
from specverify.checks.registry import Check
from specverify.evidence.records import SUITE_VERSION, CheckRecord
from specverify.report.formats import count, number
from specverify.report.wording import STATUSES
from specverify.statistics.planning import SamplePlan
from specverify.subjects.protocol import Subject

if TYPE_CHECKING:
    from specverify.checks.selftest import Trial
    from specverify.defects.entry import Entry

_COLOURS: Final = {
    "pass": "green",
    "violation": "red",
    "inconclusive": "yellow",
    "skipped": "bright_black",
    "expected_failure": "yellow",
}


class Progress:
    """One line a check, as it ends.

    Parameters
    ----------
    quiet
        Print nothing.
    """

    def __init__(self, *, quiet: bool = False) -> None:
        self._console = Console(quiet=quiet, highlight=False, soft_wrap=True)

    def begin(self, subject: Subject, plan: Plan) -> None:
        """Say what is about to run, with everything that repeats it."""
        version = f" {subject.version}" if subject.version else ""
        self._console.print(
            f"specverify {specverify.__version__} · suite {SUITE_VERSION} · "
            f"{subject.name}{version} · {plan.device} · profile {plan.profile} · "
            f"seed {plan.seed}",
            markup=False,
        )

    def show(self, record: CheckRecord) -> None:
        """Print the line of a check that has ended."""
        symbol, word = STATUSES[record.status]
        if record.status == "violation" and record.effect == "efficiency":
            word = "inefficient"
        facts = []
        if record.samples:
            facts.append(f"{count(record.samples)} draws")
        if record.detectable_tv is not None:
            facts.append(f"sees TV {number(record.detectable_tv)}")
        facts.append(f"{record.duration_s:.1f} s")
        colour = _COLOURS[record.status]
        head = f"{symbol} {record.id:<26}{word:<18}"
        self._console.print(f"[{colour}]{head}[/]{', '.join(facts)}")


def print_checks(checks: Sequence[Check]) -> None:
    """Print the checks with claim, law and grade, grouped by the kinds they are for."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 120
    for kinds in dict.fromkeys(check.kinds for check in checks):
        title = f"kind {', '.join(kinds)}"
        table = Table(title=title, title_justify="left", box=None, pad_edge=False)
        for column in ("check", "claim", "law", "grade", "a violation means"):
            table.add_column(column, no_wrap=column == "check")
        meaning = {"law": "lossy", "contract": "broken", "efficiency": "inefficient"}
        for check in checks:
            if check.kinds == kinds:
                row = (
                    check.id,
                    check.claim,
                    check.law,
                    check.grade,
                    meaning[check.effect],
                )
                table.add_row(*(escape(cell) for cell in row))
        console.print(table)
        console.print()


def print_defects(entries: Sequence[Entry]) -> None:
    """Print the catalogue, family by family: id, bias and what is wrong."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 140
    for family in dict.fromkeys(entry.family for entry in entries):
        title = f"specverify.defects.{family}"
        table = Table(title=title, title_justify="left", box=None, pad_edge=False)
        for column in ("id", "bias", "what is wrong"):
            table.add_column(column, no_wrap=column == "id")
        for entry in entries:
            if entry.family == family:
                words = {"none": "correct", "contract": "contract"}
                bias = words.get(entry.effect, f"{entry.bias:.2g}")
                table.add_row(entry.id, bias, escape(entry.sentence))
        console.print(table)
        console.print()


def print_trial(trial: Trial) -> None:
    """Print what became of one entry of the catalogue of defects."""
    defect = trial.defect
    words = {
        "caught": f"caught by {trial.caught_by}",
        "passed": "MISSED",
        "inconclusive": "NOT DECIDED",
        "none": "NOT TRIED",
    }
    if defect.effect == "none":
        words |= {"passed": "let through", "caught": f"FLAGGED by {trial.caught_by}"}
    symbol = "✓" if trial.right else "✗"
    console = Console(highlight=False, soft_wrap=True)
    console.print(
        f"{symbol} {escape(defect.id):<34} {words[trial.outcome]:<30} "
        f"{count(trial.draws)} draws, {trial.seconds:.1f} s"
    )


def print_plan(
    plan: SamplePlan,
    *,
    tv: float,
    cells: int,
    level: float,
    power: float,
    samples: int | None,
) -> None:
    """Print what a decision costs, or can see, with a sentence that says so."""
    console = Console(highlight=False)
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_row("outcomes", count(cells))
    table.add_row("false-alarm rate of the decision", number(level))
    table.add_row("power", number(power, 6))
    table.add_row("smallest total variation seen", number(tv))
    table.add_row("draws at most (n_max)", count(plan.n_max))
    table.add_row("draws on a right implementation, mean", count(plan.expected_right))
    table.add_row("draws at exactly that bias, mean", count(plan.expected_wrong))
    console.print(table)
    if samples is None:
        told = (
            f"A bias of {number(tv)} in whatever direction is seen with probability "
            f"{number(power, 6)} within {count(plan.n_max)} draws; a right "
            f"implementation is rejected with probability at most {number(level)}."
        )
    else:
        told = (
            f"{count(samples)} draws see every bias of {number(tv)} or more with "
            f"probability {number(power, 6)}; smaller ones may go unseen."
        )
    console.print(told, soft_wrap=True)
