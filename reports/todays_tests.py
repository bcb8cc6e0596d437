# SPDX-License-Identifier: Apache-2.0
"""Study: the tests that engines have today, put to the catalogue of known defects.

    python reports/todays_tests.py [--fresh]

The rules are in `todays_rules`. All of them, and the checks of this project, see every
chain entry of the catalogue and its correct forms once. Goes on where it was interrupted;
``--fresh`` forgets what was kept. Writes ``reports/todays-tests/``.
"""

from __future__ import annotations

import argparse
import csv
import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import NamedTuple

import matplotlib as mpl
import torch
from matplotlib.figure import Figure
from scipy import stats
from todays_rules import RULES, Broken, Rule, Under, bigrams

from specverify.checks.plan import make_plan
from specverify.checks.registry import checks_for
from specverify.checks.selftest import try_defect
from specverify.core import verify_block, verify_chain
from specverify.defects import CATALOGUE, CONTROLS
from specverify.defects.drafter import Drafter
from specverify.defects.verifier import Verifier
from specverify.statistics.ledger import derive_seed
from specverify.subjects.protocol import Subject, subject

HERE = Path(__file__).parent / "todays-tests"
#: Of every run on the catalogue, fixed before the first one.
SEED = 0
#: This project, with the checks that apply to any engine, and with the exact law too.
SAMPLED = "specverify ci, by sampling"
OURS = "specverify ci"
#: Text stays text, and the same numbers give the same file.
SVG = {
    "svg.hashsalt": "todays-tests",
    "svg.fonttype": "none",
    "font.sans-serif": ["DejaVu Sans", "Arial"],
}


#: Whether a rule failed on the correct verifier, and the rows it drew.
Alarm = tuple[bool, int]


# --- running them ---------------------------------------------------------------------


class Row(NamedTuple):
    """What one rule said of one entry."""

    entry: str
    family: str
    effect: str
    bias: float
    rule: str
    verdict: str
    reason: str
    draws: int


def apply(rule: Rule, of: Subject, seed: int) -> tuple[str, int]:
    """Run a rule: why it fails (empty where it passes), and the rows it drew."""
    verify = Under(of, derive_seed(seed, "subject"))
    rng = torch.Generator().manual_seed(derive_seed(seed, rule.name))
    try:
        with verify.stream.owning_globals():
            passed = rule.decide(verify, rng)
    except Broken as error:
        return f"stopped: {error}", verify.draws
    return "" if passed else "failed", verify.draws


def on_entry(id_: str) -> list[Row]:
    """All rules and our checks on one entry, a fresh verifier for each."""
    torch.set_num_threads(1)
    entry = CATALOGUE.get(id_) or CONTROLS[id_]
    head = (id_, entry.family, entry.effect, entry.bias)
    rows = []
    for rule in RULES:
        of = entry.subject()
        if reason := rule.misfit(of):
            rows.append(Row(*head, rule.name, "not applied", reason, 0))
            continue
        reason, draws = apply(rule, of, SEED)
        verdict = "caught" if reason else "passed"
        rows.append(Row(*head, rule.name, verdict, reason, draws))
    plan, every = make_plan("ci", max_seconds=600), checks_for("chain")
    sampled = [check for check in every if check.grade != "exact"]
    for name, checks in ((OURS, every), (SAMPLED, sampled)):
        found = try_defect(entry, checks, plan)
        rows.append(Row(*head, name, found.outcome, found.caught_by, found.draws))
    return rows


def alarm(task: tuple[int, int]) -> Alarm:
    """Whether one rule fails on the correct verifier, and the rows it drew."""
    torch.set_num_threads(1)
    number, seed = task
    rule = RULES[number]
    right = Drafter() if rule.drafter else Verifier()
    of = subject(right, draft=getattr(right, "draft", None), rng="generator")
    reason, draws = apply(rule, of, seed)
    return bool(reason), draws


def uncut(seed: int) -> tuple[bool, bool]:
    """Whether streams as long as they come fail: by token, and block verification."""
    found = []
    for rule in (verify_chain, verify_block):
        verify = Under(subject(rule, rng="generator"), derive_seed(seed, "subject"))
        rng = torch.Generator().manual_seed(derive_seed(seed, "uncut"))
        found.append(not bigrams(verify, rng, most=48))
    return found[0], found[1]


# --- text and figure ------------------------------------------------------------------


@dataclass
class Score:
    """What a rule did in all."""

    name: str
    caught: int
    applied: int
    flagged: int
    controls: int
    draws: str
    alarms: str = "–"
    reasons: Counter[str] = field(default_factory=Counter)


def score(name: str, rows: Sequence[Row], right: Sequence[Alarm]) -> Score:
    """Add up the rows of a rule, and its runs on the correct verifier."""
    mine = [row for row in rows if row.rule == name]
    defects = [row for row in mine if row.effect != "none"]
    controls = [row for row in mine if row.effect == "none"]
    used = [row.draws for row in defects if row.verdict == "caught"]
    drawn = (
        f"{right[0][1]:,}" if right else f"{median(used):,.0f} (median)" if used else ""
    )
    found = Score(
        name,
        caught=sum(row.verdict == "caught" for row in defects),
        applied=sum(row.verdict != "not applied" for row in defects),
        flagged=sum(row.verdict == "caught" for row in controls),
        controls=sum(row.verdict != "not applied" for row in controls),
        draws=drawn,
    )
    found.reasons.update(r.reason for r in defects if r.verdict == "not applied")
    if right:
        hits = sum(failed for failed, _ in right)
        bounds = stats.binomtest(hits, len(right)).proportion_ci(0.95)
        found.alarms = f"{hits} of {len(right)} [{bounds.low:.3f}, {bounds.high:.3f}]"
    return found


def table(scores: Sequence[Score], total: int, controls: int) -> Iterator[str]:
    """Markdown table of all rules."""
    yield (
        f"| rule | caught of {total} | applied to | correct forms flagged, of applied "
        f"(of {controls}) | draws | alarms on the correct verifier |"
    )
    yield "|--|--|--|--|--|--|"
    for s in scores:
        bold = "**" if s.name in (OURS, SAMPLED) else ""
        yield (
            f"| {bold}{s.name}{bold} | {bold}{s.caught}{bold} | {s.applied} "
            f"| {s.flagged} of {s.controls} | {s.draws} | {s.alarms} |"
        )


def families(rows: Sequence[Row], scores: Sequence[Score]) -> Iterator[str]:
    """Markdown table of what was caught by family."""
    defects = [row for row in rows if row.effect != "none"]
    of = Counter(row.family for row in defects if row.rule == OURS)
    yield "| rule | " + " | ".join(f"{name} ({n})" for name, n in of.items()) + " |"
    yield "|--|" + "--|" * len(of)
    for s in scores:
        hits = Counter(
            r.family for r in defects if r.rule == s.name and r.verdict == "caught"
        )
        yield f"| {s.name} | " + " | ".join(str(hits[name]) for name in of) + " |"


def draw(scores: Sequence[Score], total: int, path: Path) -> None:
    """Bars: how many of all defects each rule catches, over those it can be put to."""
    figure = Figure(figsize=(8, 0.42 * len(scores) + 0.9), layout="constrained")
    axes = figure.subplots()
    for place, s in enumerate(reversed(scores)):
        colour = "#D55E00" if s.name in (OURS, SAMPLED) else "#0072B2"
        axes.barh(place, s.applied, color="#dddddd", height=0.7)
        axes.barh(place, s.caught, color=colour, height=0.7)
        axes.text(s.caught + total / 100, place, str(s.caught), va="center", fontsize=9)
    names = [s.name for s in reversed(scores)]
    axes.set_yticks(range(len(scores)), names)
    axes.set(
        xlim=(0, total * 1.06), xlabel=f"defects caught of {total}; grey: applied to"
    )
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    with mpl.rc_context(SVG):
        figure.savefig(path, metadata={"Date": None})


def listed(rows: Sequence[Row]) -> dict[str, str]:
    """Defects by who sees them."""
    seen: dict[str, set[str]] = {
        row.entry: set() for row in rows if row.effect != "none"
    }
    for row in rows:
        if row.effect != "none" and row.verdict == "caught":
            seen[row.entry].add(row.rule)
    ours = {OURS, SAMPLED}
    ours_only = [name for name, by in seen.items() if by and by <= ours]
    theirs_only = [name for name, by in seen.items() if by and not by & ours]
    together = sum(bool(by - ours) for by in seen.values())
    return {
        "union": str(together),
        "ours_only": ", ".join(f"`{name}`" for name in ours_only) or "none",
        "ours_count": str(len(ours_only)),
        "theirs_only": ", ".join(f"`{name}`" for name in theirs_only) or "none",
        "nobody": ", ".join(f"`{name}`" for name, by in seen.items() if not by)
        or "none",
    }


def kept(path: Path, heads: Sequence[str], *, fresh: bool) -> list[list[str]]:
    """Lines of an earlier run that was interrupted; begins the file if there is none."""
    if fresh or not path.exists():
        path.write_text(",".join(heads) + "\n", encoding="utf-8")
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file))[1:]


def append(path: Path, lines: Iterable[Iterable[object]]) -> None:
    """Add lines to a file."""
    with path.open("a", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(lines)


def on_catalogue(pool: ProcessPoolExecutor, *, fresh: bool) -> list[Row]:
    """Rows of all chain entries; those of an earlier run are not made again."""
    path = HERE / "table.csv"
    both = [*CONTROLS.values(), *CATALOGUE.values()]  # the longest first
    ids = [entry.id for entry in both if entry.kind == "chain"]
    old = kept(path, Row._fields, fresh=fresh)
    rows = [
        Row(r[0], r[1], r[2], float(r[3]), r[4], r[5], r[6], int(r[7]))
        for r in old
        if r[0] in ids
    ]
    done = {row.entry for row in rows}
    for found in pool.map(on_entry, [id_ for id_ in ids if id_ not in done]):
        append(path, found)
        rows += found
    return rows


def on_correct(pool: ProcessPoolExecutor, *, fresh: bool) -> dict[str, list[Alarm]]:
    """Runs of every rule on the correct verifier, those of an earlier run kept."""
    path = HERE / "alarms.csv"
    names = [rule.name for rule in RULES]
    old = kept(path, ("rule", "seed", "failed", "draws"), fresh=fresh)
    runs: dict[str, list[Alarm]] = {name: [] for name in names}
    for name, _, failed, draws in old:
        runs[name].append((failed == "True", int(draws)))
    done = {(name, int(seed)) for name, seed, *_ in old}
    tasks = [
        (i, seed)
        for i, rule in enumerate(RULES)
        for seed in range(1, rule.seeds + 1)
        if (rule.name, seed) not in done
    ]
    for (i, seed), found in zip(
        tasks, pool.map(alarm, tasks, chunksize=4), strict=True
    ):
        append(path, [(names[i], seed, *found)])
        runs[names[i]].append(found)
    return runs


def main() -> None:
    """Run, draw and write."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--fresh", action="store_true", help="forget an earlier run")
    fresh = options.parse_args().fresh
    HERE.mkdir(exist_ok=True)
    started = time.monotonic()
    with ProcessPoolExecutor(min(2, os.cpu_count() or 1)) as pool:
        rows = on_catalogue(pool, fresh=fresh)
        print(f"catalogue: {time.monotonic() - started:.0f} s", flush=True)
        runs = on_correct(pool, fresh=fresh)
        long = list(pool.map(uncut, range(1, 101)))
    write(rows, runs, long, time.monotonic() - started)


def write(
    rows: Sequence[Row],
    runs: Mapping[str, list[Alarm]],
    long: Sequence[tuple[bool, bool]],
    seconds: float,
) -> None:
    """Write table, figure and page, in the order of the catalogue."""
    place = {id_: i for i, id_ in enumerate([*CATALOGUE, *CONTROLS])}
    rows = sorted(rows, key=lambda row: place[row.entry])
    with (HERE / "table.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(Row._fields)
        writer.writerows(rows)
    scores = [score(rule.name, rows, runs[rule.name]) for rule in RULES]
    scores.sort(key=lambda s: -s.caught)
    scores[:0] = [score(name, rows, []) for name in (OURS, SAMPLED)]
    total = len({row.entry for row in rows if row.effect != "none"})
    controls = len({row.entry for row in rows}) - total
    draw(scores, total, HERE / "caught.svg")
    text = TEMPLATE.format(
        seconds=f"{seconds:.0f}",
        total=total,
        controls=controls,
        seed=SEED,
        long=len(long),
        long_token=sum(token for token, _ in long),
        long_block=sum(block for _, block in long),
        table="\n".join(table(scores, total, controls)),
        families="\n".join(families(rows, scores)),
        rules="\n".join(
            f"- **{rule.name}** (`{rule.source}`): {rule.text}."
            + (f" *Here: {rule.here}.*" if rule.here else "")
            for rule in RULES
        ),
        misfits="\n".join(
            f"- {s.name}: " + ", ".join(f"{why} {n}" for why, n in s.reasons.items())
            for s in scores
            if s.reasons
        ),
        **listed(rows),
    )
    (HERE / "README.md").write_text(text, encoding="utf-8")
    print(text)


TEMPLATE = """# Today's tests beside this project's

`python reports/todays_tests.py --fresh`, {seconds} s on two cores. Every verdict is in
[table.csv](table.csv), the runs on the correct verifier in [alarms.csv](alarms.csv).
Without `--fresh` an interrupted pass goes on: an entry that has a row is not run again.

The rules by which public engines test their verifiers, written anew from a description of
the tests and put to the {total} chain defects of the catalogue and its {controls} correct
forms, once each with seed {seed}. A rule makes its inputs as the test does; most draw the
drafts themselves, so what a drafter does wrong is hidden from them. Where an entry cannot
be put to a rule, it counts as not caught. A test that stops with an error counts as red.

The catalogue is this project's, and the checks were developed with it at hand; the rules
were written for one verifier each, beside other tests of the same engine (exact cases,
end-to-end runs) that are not here. So the numbers compare rules on one list of faults;
they do not say how many faults an engine has.

{table}

"By sampling" leaves out the exact law, which needs random calls that can be followed.
"Draws" are the rows of one run on a correct verifier; for this project, the median over
caught defects of all rows drawn up to the first violation. The last column is with other
seeds, with exact 95 % intervals; the false alarms of this project are a study of their
own, [instrument](../instrument/README.md).

![Defects caught, by rule](caught.svg)

## By family

{families}

## Seen by whom

All other rules together see {union} of {total}. {ours_count} are seen by this project's
checks only: {ours_only}.

Seen by another rule and not by this project's checks: {theirs_only}.

Seen by nobody: {nobody}.

## The rules

{rules}

SGLang counts pairs in streams as long as they come. Such a stream ends behind a step,
and the last token of a step does not follow p (given that it is the last), so the first
tokens of the pairs do not either. Of {long} runs of that form {long_token} failed on
correct verification by token and {long_block} on correct verification by block, for which
it is meant. Here all streams are cut behind their 16th token, which every stream has.

Why a rule was not applied, with the number of defects:

{misfits}
"""


if __name__ == "__main__":
    main()
