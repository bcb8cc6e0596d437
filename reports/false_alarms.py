# SPDX-License-Identifier: Apache-2.0
"""Study: does a correct verifier ever fail? 200 whole runs with different seeds.

Writes ``reports/false-alarms.md``::

    python reports/false_alarms.py
"""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

from scipy import stats

from specverify.checks.plan import make_plan
from specverify.checks.run import run_checks
from specverify.subjects.resolve import resolve

RUNS = 200


def main() -> None:
    """Run the quick profile again and again and count the verdicts."""
    subject = resolve("reference:chain")
    verdicts: Counter[str] = Counter()
    p_values: list[float] = []
    started, draws = time.monotonic(), 0
    for seed in range(1, RUNS + 1):
        evidence = run_checks(subject, make_plan("quick", seed=seed, max_seconds=300))
        verdicts[evidence.verdict] += 1
        draws += evidence.samples
        # Smallest of several p-values a check, so small ones are expected.
        p_values += [c.p_value for c in evidence.checks if c.p_value is not None]
        if seed % 20 == 0:
            print(seed, dict(verdicts), f"{time.monotonic() - started:.0f} s")
    failed = RUNS - verdicts["lossless"]
    upper = stats.binomtest(failed, RUNS).proportion_ci(0.95).high
    text = f"""# False alarms on the reference verifier

`python reports/false_alarms.py`

{RUNS} runs of `check_lossless("reference:chain", profile="quick")` with seeds 1 to
{RUNS}, {draws:,} draws, {time.monotonic() - started:.0f} s.

| verdict | runs |
|--|--|
{chr(10).join(f"| {name} | {count} |" for name, count in verdicts.most_common())}

Failed runs: {failed} of {RUNS} (95 % upper bound on the rate {upper:.3g}; stated rate
1e-9). Smallest p-value of {len(p_values):,} decisions: {min(p_values):.2g}, each of them
the smallest over the inputs of its check; the limits lie between 1e-13 and 1e-11.
"""
    (Path(__file__).parent / "false-alarms.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
