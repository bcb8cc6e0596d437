# SPDX-License-Identifier: Apache-2.0
"""How often the diagnosis names the planted defect, and what it says of an unknown one.

``python reports/diagnosis.py`` draws from every catalogued defect that breaks a law, as a
run does after a violation, and asks twice: with the whole catalogue, and with the defect
itself (and all that have the same law) struck out of it. It writes a table of confusions.
"""

from __future__ import annotations

import csv
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

HERE = Path(__file__).parent / "diagnosis"


@dataclass(frozen=True)
class Answer:
    """What was said of one defect."""

    id: str
    family: str
    key: str
    first: str
    weight: float
    right: bool
    struck_out: str


def ask(id_: str) -> Answer | None:
    """Draw from one defect and diagnose it; None where no law is kept for it."""
    import torch

    from specverify.checks.diagnose import correct_law, observe
    from specverify.checks.plan import make_plan
    from specverify.defects import CATALOGUE
    from specverify.defects.diagnosis import diagnose
    from specverify.defects.laws import diagnosis_cases, key_of, load
    from specverify.subjects.rig import Rig

    torch.set_num_threads(1)
    defect = CATALOGUE[id_]
    subject = defect.subject()
    key = key_of(subject.kind, subject.declared())
    known = load().get(key, {})
    if id_ not in known:
        return None
    rig, cases = Rig(subject), diagnosis_cases(subject)
    observed = observe(rig, cases, make_plan("ci", seed=1))
    correct = {name: correct_law(rig, cases[name]) for name in observed}
    first = diagnose(observed, known, correct)[0]
    twins = {other for other, law in known.items() if _same(law, known[id_])}
    others = {other: law for other, law in known.items() if other not in twins}
    without = diagnose(observed, others, correct)[0]
    return Answer(
        id=id_,
        family=defect.family,
        key=key,
        first=" or ".join(first.ids) or "none of the known",
        weight=round(first.weight, 3),
        right=id_ in first.ids,
        struck_out=" or ".join(without.ids) or "none of the known",
    )


def _same(a: dict[str, dict[str, float]], b: dict[str, dict[str, float]]) -> bool:
    cells = {(name, cell) for law in (a, b) for name in law for cell in law[name]}
    return all(
        abs(a[name].get(cell, 0) - b[name].get(cell, 0)) < 2e-4 for name, cell in cells
    )


def main() -> None:
    """Ask about the whole catalogue and write what was answered."""
    from specverify.defects import CATALOGUE

    begun = time.monotonic()
    ids = [d.id for d in CATALOGUE.values() if d.effect == "law"]
    with ProcessPoolExecutor(2) as pool:
        answers = [answer for answer in pool.map(ask, ids) if answer is not None]
    HERE.mkdir(exist_ok=True)
    with (HERE / "answers.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, asdict(answers[0]))
        writer.writeheader()
        writer.writerows(asdict(answer) for answer in answers)
    text = "\n".join(_page(answers, len(ids), time.monotonic() - begun))
    (HERE / "README.md").write_text(text, encoding="utf-8")
    print(text)


def _page(answers: list[Answer], asked: int, seconds: float) -> list[str]:
    shown = [a for a in answers if "lossless" not in a.first.split(" or ")]
    right = sum(a.right for a in shown)
    none = sum(a.struck_out == "none of the known" for a in shown)
    lines = [
        "# The diagnosis",
        "",
        f"`python reports/diagnosis.py`, {seconds:.0f} s on two cores. 4,000 draws on each",
        "of the inputs of a diagnosis, as in a run; all answers are in",
        "[answers.csv](answers.csv).",
        "",
        f"Of {asked} defects that break a law, {len(answers)} have a law on these",
        f"inputs, and {len(shown)} show on them; the others break the law of whole",
        "batches, of several steps or of other inputs, and the check that sees them",
        "says so.",
        "",
        f"- Named first: **{right} of {len(shown)}** ({right / len(shown):.1%}). Defects",
        "  with one law on these inputs are named together and count as named.",
        f"- Unknown when struck out: **{none} of {len(shown)}** ({none / len(shown):.1%})",
        "  were then called none of the known.",
        "",
        "| family | shown | named first | unknown when struck out |",
        "|--|--|--|--|",
    ]
    families = Counter(a.family for a in shown)
    for family, count in families.items():
        mine = [a for a in shown if a.family == family]
        hits = sum(a.right for a in mine)
        unknown = sum(a.struck_out == "none of the known" for a in mine)
        lines.append(f"| {family} | {count} | {hits} | {unknown} |")
    wrong = [a for a in shown if not a.right]
    lines += ["", "Named otherwise: " + ("none." if not wrong else ""), ""]
    lines += [f"- `{a.id}`: {a.first} ({a.weight})" for a in wrong]
    return [*lines, ""]


if __name__ == "__main__":
    main()
