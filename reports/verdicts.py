# SPDX-License-Identifier: Apache-2.0
"""First study: what a report looks like for a right, a real and a wrong verifier.

Writes one HTML report each into ``reports/verdicts/`` and a table beside them::

    python reports/verdicts.py
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

import specverify
from specverify.checks.plan import make_plan
from specverify.checks.run import run_checks
from specverify.core.chain import accept_tokens
from specverify.core.steps import ChainStep
from specverify.evidence.records import Evidence
from specverify.report.html import write_html
from specverify.subjects.resolve import resolve

HERE = Path(__file__).parent / "verdicts"


def residual_from_p(
    draft_token_ids: Tensor,
    draft_probs: Tensor,
    target_probs: Tensor,
    *,
    generator: torch.Generator,
) -> Tensor:
    """Verify as published, but draw the recovered token from p instead of (p - q)+."""
    step = ChainStep.open(
        draft_token_ids, draft_probs, target_probs, generator=generator
    )
    accepted = accept_tokens(*step.drafted(), step.uniforms[:, : step.k])
    num_accepted = step.accepted_prefix(accepted)
    p, _ = step.rows(num_accepted)
    return step.emit(num_accepted, p).output_token_ids


SUBJECTS = {
    "reference": "reference:chain",
    "transformers": "transformers",
    "residual-from-p": specverify.subject(residual_from_p, efficiency="token"),
}


def main() -> None:
    """Run all subjects in profile ci and write what comes out."""
    HERE.mkdir(exist_ok=True)
    rows = [
        "| subject | verdict | checks run | draws | seconds | sees TV |",
        "|--|--|--|--|--|--|",
    ]
    for name, target in SUBJECTS.items():
        evidence = run_checks(resolve(target), make_plan("ci", max_seconds=120))
        write_html(evidence, HERE / f"{name}.html")
        rows.append(_row(name, evidence))
        print(rows[-1])
    text = "\n".join(["# Verdicts", "", "`python reports/verdicts.py`", "", *rows, ""])
    (HERE / "README.md").write_text(text, encoding="utf-8")


def _row(name: str, evidence: Evidence) -> str:
    ran = len(evidence.checks) - len(evidence.with_status("skipped"))
    resolution = evidence.detectable_tv
    seen = f"{resolution:.3g}" if resolution is not None else "none stated"
    return (
        f"| [{evidence.subject.name} {evidence.subject.version}]({name}.html) "
        f"| {evidence.verdict} | {ran} of {len(evidence.checks_promised)} "
        f"| {evidence.samples:,} | {evidence.duration_s:.0f} | {seen} |"
    )


if __name__ == "__main__":
    main()
