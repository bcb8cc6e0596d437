# SPDX-License-Identifier: Apache-2.0
"""Study of the instrument itself: both errors, promised and measured.

    python reports/instrument.py [--runs 2000] [--repeats 400]

False alarms are counted over whole runs on correct verifiers at an error rate inflated to
0.05, where they could be seen; power and sample counts on simulated samplers with a known
bias, beside the planner; and two common rules on the same draws. Writes
``reports/instrument/``.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy import stats

from specverify.statistics import chisquare
from specverify.statistics.decisions import SequentialTest
from specverify.statistics.planning import plan_samples

HERE = Path(__file__).parent / "instrument"
INFLATED = 0.05
LEVEL, POWER = 1e-9, 0.99
VOCABS, BIASES = (2, 4, 32, 1000), (0.05, 0.02, 0.01)
KINDS = ("none", "spread", "cell")

Law = NDArray[np.float64]


def worst_case(vocab: int) -> Law:
    """Target of all simulations: falls off as 1/rank; two tokens are equally likely.

    The planner plans for the law and the direction in which a bias is hardest to see: half
    of the mass moves in proportion. Two tokens allow that only if each has one half.
    """
    law = 1 / np.arange(1, vocab + 1) if vocab > 2 else np.ones(vocab)
    return law / law.sum()


def biased(p: Law, kind: str, tv: float) -> Law:
    """Move p by exactly `tv`: spread over all tokens in proportion, or onto one cell."""
    if kind == "none":
        return p
    if kind == "cell":
        mass = np.zeros(len(p))
        mass[len(p) // 2] = 1
    else:
        tilt = np.where(np.arange(len(p)) % 2, 1.0, -1.0)
        mass = p * (1 + 0.5 * tilt)
        mass /= mass.sum()
    distance = np.abs(mass - p).sum() / 2
    return p + (mass - p) * (tv / distance)


@dataclass(frozen=True)
class Cell:
    """Measured behaviour of the sequential test in one situation."""

    vocab: int
    kind: str
    tv: float
    n_max: int
    planned: int
    mean: float
    median: float
    rejected: int
    repeats: int


def simulate(situation: tuple[int, str, float], repeats: int) -> Cell:
    """Run the sequential test on simulated draws again and again."""
    vocab, kind, tv = situation
    rng = np.random.default_rng([vocab, KINDS.index(kind), int(tv * 1000)])
    p = worst_case(vocab)
    law = biased(p, kind, tv)
    test = SequentialTest(p, level=LEVEL, power=POWER, tv=tv)
    used, rejected = [], 0
    for _ in range(repeats):
        counts, before = np.zeros(vocab), 0
        for size in test.looks():
            counts += rng.multinomial(size - before, law)
            before = size
            decision = test.decide(counts)
            if decision.outcome != "continue":
                break
        used.append(decision.samples)
        rejected += decision.outcome == "reject"
    plan = plan_samples(cells=vocab, level=LEVEL, power=POWER, tv=tv)
    planned = plan.expected_right if kind == "none" else plan.expected_wrong
    mean, median = float(np.mean(used)), float(np.median(used))
    return Cell(vocab, kind, tv, test.n_max, planned, mean, median, rejected, repeats)


def whole_run(seed: int) -> tuple[str, int]:
    """One whole quick run on the reference at the inflated error rate."""
    import torch

    from specverify.checks.plan import make_plan
    from specverify.checks.run import run_checks
    from specverify.core import verify_chain
    from specverify.subjects.protocol import subject
    from specverify.subjects.resolve import resolve

    torch.set_num_threads(1)
    plan = make_plan("quick", seed=seed, error_rate=INFLATED, max_seconds=600)
    # The reference without its argument checks, which cost a fifth of the time.
    unchecked = partial(verify_chain, validate=False)
    capabilities = resolve("reference:chain").capabilities.to_json() | {
        "rng": "generator"
    }
    evidence = run_checks(subject(unchecked, name="reference", **capabilities), plan)
    return evidence.verdict, evidence.samples


def whole_runs(pool: ProcessPoolExecutor, number: int) -> dict[int, tuple[str, int]]:
    """Whole runs by seed; kept in a file, so that an interrupted study goes on."""
    path = HERE / "runs.csv"
    done: dict[int, tuple[str, int]] = {}
    if path.exists():
        for line in path.read_text(encoding="utf-8").splitlines():
            seed, verdict, draws = line.split(",")
            done[int(seed)] = (verdict, int(draws))
    left = [seed for seed in range(1, number + 1) if seed not in done]
    with path.open("a", encoding="utf-8") as file:
        for seed, (verdict, draws) in zip(left, pool.map(whole_run, left), strict=True):
            done[seed] = (verdict, draws)
            file.write(f"{seed},{verdict},{draws}\n")
            file.flush()
    return {seed: found for seed, found in done.items() if seed <= number}


def per_example(seed: int, level: float, examples: int = 100) -> bool:
    """Whether a rule "chi-square p < level on each example" flags a right sampler."""
    rng = np.random.default_rng([seed, 7])
    for _ in range(examples):
        p = rng.dirichlet(np.ones(6))
        counts = rng.multinomial(20_000, p)
        if chisquare.goodness_of_fit(counts, p, level=0.01).p_value < level:
            return True
    return False


def fixed_power(cell: Cell, repeats: int) -> tuple[int, int]:
    """Draws and detections of a fixed-n chi-square test planned for the same errors."""
    n = chisquare.min_samples(tv=cell.tv, cells=cell.vocab, level=LEVEL, power=POWER)
    rng = np.random.default_rng([cell.vocab, 11])
    p = worst_case(cell.vocab)
    law = biased(p, cell.kind, cell.tv)
    hits = sum(
        chisquare.goodness_of_fit(rng.multinomial(n, law), p, level=LEVEL).p_value
        < LEVEL
        for _ in range(repeats)
    )
    return n, hits


def p_values(vocab: int, repeats: int) -> Law:
    """P-values of the fixed-n chi-square test under the law."""
    rng = np.random.default_rng([vocab, 13])
    p = worst_case(vocab)
    draws = (rng.multinomial(200 * vocab, p) for _ in range(repeats))
    found = [chisquare.goodness_of_fit(c, p, level=0.01).p_value for c in draws]
    return np.array(found)


def interval(hits: int, trials: int) -> str:
    """Exact 95 % interval of a rate."""
    found = stats.binomtest(hits, trials).proportion_ci(0.95)
    return f"{hits / trials:.4f} [{found.low:.4f}, {found.high:.4f}]"


def situations() -> Iterator[tuple[int, str, float]]:
    """All combinations of vocabulary, kind and size of the bias."""
    return ((v, kind, tv) for v in VOCABS for tv in BIASES for kind in KINDS)


def power_table(cells: list[Cell]) -> str:
    """Markdown table of simulated against planned behaviour."""
    head = (
        "| vocab | TV | sampler | n_max | mean draws (planned) | mean / n_max | rejected "
        "(95 % interval) |\n|--|--|--|--|--|--|--|\n"
    )
    rows = (
        f"| {c.vocab} | {c.tv} | {'right' if c.kind == 'none' else c.kind} | {c.n_max:,} "
        f"| {c.mean:,.0f} ({c.planned:,}) | {c.mean / c.n_max:.2f} "
        f"| {interval(c.rejected, c.repeats)} |"
        for c in cells
    )
    return head + "\n".join(rows)


def comparison_table(cells: list[Cell], repeats: int) -> str:
    """Markdown table beside the fixed-n chi-square test."""
    head = (
        "| vocab | TV | bias | sequential: median draws, found | fixed n: draws, found |\n"
        "|--|--|--|--|--|\n"
    )
    rows = []
    for c in cells:
        if c.kind == "none" or c.vocab > 100:
            continue
        n, hits = fixed_power(c, repeats)
        rows.append(
            f"| {c.vocab} | {c.tv} | {c.kind} "
            f"| {c.median:,.0f}, {c.rejected / c.repeats:.3f} "
            f"| {n:,}, {hits / repeats:.3f} |"
        )
    return head + "\n".join(rows)


def draw_p_values(samples: dict[int, Law], path: Path) -> None:
    """Plot the distribution functions of p-values against the diagonal."""
    figure = Figure(figsize=(4.5, 3.2), layout="constrained")
    axes = figure.subplots()
    for vocab, values in samples.items():
        ordered = np.sort(values)
        axes.step(
            ordered,
            np.arange(1, len(ordered) + 1) / len(ordered),
            label=f"vocab {vocab}",
        )
    axes.plot([0, 1], [0, 1], color="grey", linewidth=0.8)
    axes.set(xlabel="p-value", ylabel="share at or below")
    axes.legend(frameon=False)
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """Measure and write."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--runs", type=int, default=2000)
    options.add_argument("--repeats", type=int, default=400)
    given = options.parse_args()
    HERE.mkdir(exist_ok=True)
    started = time.monotonic()
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        cells = list(pool.map(partial(simulate, repeats=given.repeats), situations()))
        print(f"power: {time.monotonic() - started:.0f} s", flush=True)
        flagged = sum(pool.map(partial(per_example, level=0.01), range(200)))
        runs = list(whole_runs(pool, given.runs).values())
    failed = sum(verdict != "lossless" for verdict, _ in runs)
    samples = {vocab: p_values(vocab, 2000) for vocab in (2, 4, 32)}
    draw_p_values(samples, HERE / "p-values.svg")
    distances = {
        v: stats.kstest(x, "uniform").pvalue for v, x in samples.items() if v > 2
    }
    text = TEMPLATE.format(
        options=f"--runs {given.runs} --repeats {given.repeats}",
        seconds=f"{time.monotonic() - started:.0f}",
        runs=len(runs),
        failed=interval(failed, len(runs)),
        draws=f"{sum(count for _, count in runs):,}",
        flagged=interval(flagged, 200),
        power=power_table(cells),
        comparison=comparison_table(cells, given.repeats),
        uniform=", ".join(f"vocab {v}: {p:.2f}" for v, p in distances.items()),
    )
    (HERE / "README.md").write_text(text, encoding="utf-8")
    print(text)


TEMPLATE = """# The instrument itself

`python reports/instrument.py {options}`, {seconds} s on two cores. Whole runs are kept in
`runs.csv`; the first pass took half an hour.

## False alarms

{runs} whole `quick` runs on the reference verifier, each with its own seed, at an error
rate inflated to 0.05 so that false alarms could be seen ({draws} draws): failed runs
{failed}. The stated rate is 0.05; it is a bound (Ville's inequality and a union bound), so
the measured rate lies below it.

The rule "chi-square p < 0.01 on each of 100 examples" on right samplers: flagged runs
{flagged}.

## Power and draws against the planner

Decisions at level 1e-9 and power 0.99 on Zipf laws; on two tokens, where the worst law is
the even one, on that. `spread` tilts all tokens in proportion (the worst direction, which
the planner plans for), `cell` moves the mass onto one token. For a right sampler
"rejected" is the false-alarm rate of one decision.

{power}

## Beside a fixed-n chi-square test planned for the same errors

{comparison}

## p-values

Where they exist (fixed n, dense cells) they are uniform; Kolmogorov-Smirnov p-values:
{uniform}. With two cells the statistic is a lattice and its p-values are steps.

![Distribution functions of p-values](p-values.svg)
"""


if __name__ == "__main__":
    main()
