# SPDX-License-Identifier: Apache-2.0
"""Study: does a correct verifier ever fail? 200 whole runs with different seeds.

Writes ``reports/false-alarms.md``::

    python reports/false_alarms.py
"""

from __future__ import annotations

import os
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import torch
from scipy import stats

from specverify.checks.plan import make_plan
from specverify.checks.run import run_checks
from specverify.evidence.records import Evidence
from specverify.subjects.resolve import resolve

RUNS = 200


def one_run(seed: int) -> Evidence:
    """One whole quick run on the reference verifier."""
    torch.set_num_threads(1)
    plan = make_plan("quick", seed=seed, max_seconds=600)
    return run_checks(resolve("reference:chain"), plan)


def main() -> None:
    """Run the quick profile again and again and count the verdicts."""
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        found = list(pool.map(one_run, range(1, RUNS + 1)))
    verdicts = Counter(evidence.verdict for evidence in found)
    failed = RUNS - verdicts["lossless"]
    upper = stats.binomtest(failed, RUNS).proportion_ci(0.95).high
    values = [c.e_value for e in found for c in e.checks if c.e_value is not None]
    table = "\n".join(f"| {name} | {count} |" for name, count in verdicts.most_common())
    text = f"""# False alarms on the reference verifier

`python reports/false_alarms.py`

{RUNS} whole runs of `check_lossless("reference:chain", profile="quick")` with seeds 1 to
{RUNS}, {sum(e.samples for e in found):,} draws.

| verdict | runs |
|--|--|
{table}

Failed runs: {failed} of {RUNS} (95 % upper bound on the rate {upper:.3g}; stated rate
1e-9). Largest e-value among {len(values):,} checks, each the largest over its inputs:
1e{max(values):.1f}; a violation takes 1e10.9 or more.
"""
    (Path(__file__).parent / "false-alarms.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
