# SPDX-License-Identifier: Apache-2.0
"""How often the diagnosis names the planted defect, and what it says of an unknown one.

``python reports/diagnosis.py`` draws from every catalogued defect that breaks a law, as a
run does after a violation, and asks twice: with the whole catalogue, and with the defect
itself (and all that have the same law) struck out of it. It writes a table of confusions.
"""

from __future__ import annotations

import csv
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specverify.defects.diagnosis import Cause

HERE = Path(__file__).parent / "diagnosis"
NONE = "none of the known"
#: Total variation below which a defect is struck out together with the one in question.
TWINS = 0.012


@dataclass(frozen=True)
class Answer:
    """What was said of one defect."""

    id: str
    family: str
    bias: float
    key: str
    first: str
    weight: float
    right: bool
    struck_out: str


def ask(id_: str) -> Answer:
    """Draw from one defect and diagnose it."""
    import torch

    from specverify.checks.observations import correct_laws, observe
    from specverify.defects import CATALOGUE
    from specverify.defects.diagnosis import apart, diagnose
    from specverify.defects.laws import key_of, load
    from specverify.subjects.rig import Rig

    torch.set_num_threads(1)
    defect = CATALOGUE[id_]
    subject = defect.subject()
    key = key_of(subject.kind, subject.declared())
    known = load()[key]
    observed, correct = observe(Rig(subject), seed=1), correct_laws(subject)
    causes = diagnose(observed, known, correct)
    twins = {other for other, law in known.items() if apart(law, known[id_]) < TWINS}
    others = {other: law for other, law in known.items() if other not in twins}
    without = diagnose(observed, others, correct)
    return Answer(
        id=id_,
        family=defect.family,
        bias=defect.bias,
        key=key,
        first=_in_words(causes[0]),
        weight=round(causes[0].weight, 3),
        right=id_ in causes[0].ids,
        struck_out=_in_words(without[0]),
    )


def _in_words(cause: Cause) -> str:
    return " or ".join(cause.ids) or NONE


def main() -> None:
    """Ask about the whole catalogue and write what was answered."""
    from specverify.defects import CATALOGUE

    begun = time.monotonic()
    ids = [d.id for d in CATALOGUE.values() if d.effect == "law"]
    with ProcessPoolExecutor(2) as pool:
        answers = list(pool.map(ask, ids))
    HERE.mkdir(exist_ok=True)
    with (HERE / "answers.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, asdict(answers[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(answer) for answer in answers)
    text = "\n".join(_page(answers, time.monotonic() - begun))
    (HERE / "README.md").write_text(text, encoding="utf-8")
    print(text)


def _page(answers: list[Answer], seconds: float) -> list[str]:
    shown = [a for a in answers if "lossless" not in a.first.split(" or ")]
    right = sum(a.right for a in answers)
    unknown = sum(a.struck_out == NONE for a in shown)
    lines = [
        "# The diagnosis",
        "",
        f"`python reports/diagnosis.py`, {seconds:.0f} s on two cores. 4,000 draws on each",
        "input of a diagnosis, single steps, mixed and ragged batches and loops, as in a",
        "run; all answers are in [answers.csv](answers.csv).",
        "",
        f"- Named first: **{right} of {len(answers)}** defects that break a law",
        f"  ({right / len(answers):.1%}); of those {len(shown)} that show on these inputs,",
        f"  {right / len(shown):.1%}. Defects with one law on them are named together and",
        "  count as named.",
        f"- Unknown when struck out: **{unknown} of {len(shown)}**",
        f"  ({unknown / len(shown):.1%}) were then called none of the known, the",
        "  others by the name of a defect whose law is near.",
        "",
        "| family | defects | shown | named first | unknown when struck out |",
        "|--|--|--|--|--|",
    ]
    for family in dict.fromkeys(a.family for a in answers):
        every = [a for a in answers if a.family == family]
        mine = [a for a in shown if a.family == family]
        hits = sum(a.right for a in mine)
        none = sum(a.struck_out == NONE for a in mine)
        lines.append(f"| {family} | {len(every)} | {len(mine)} | {hits} | {none} |")
    wrong = [a for a in shown if not a.right]
    hidden = [a for a in answers if a not in shown]
    lines += ["", "Named otherwise:" if wrong else "Named otherwise: none.", ""]
    lines += [f"- `{a.id}`: {a.first} ({a.weight})" for a in wrong]
    lines += ["", "Too small, or on no such input, to show in so many draws:", ""]
    lines += [f"- `{a.id}`, bias {a.bias:.2g}" for a in hidden]
    return [*lines, ""]


if __name__ == "__main__":
    main()
