# SPDX-License-Identifier: Apache-2.0
"""The kill matrix: which profile and which grade of evidence catches which known defect.

    python reports/kill_matrix.py [--fresh]

Puts every entry of the catalogue, and every correct form, to the checks of every grade in
every profile, in parallel under pytest-xdist, and writes ``reports/kill-matrix/``: a table
(CSV), a page (HTML), a figure and a summary. Each (entry, profile, grade) is one pytest
item: checks are tried in their order until one sees a violation, without a search for a
smaller input. Goes on where it was interrupted; ``--fresh`` forgets what was kept.
"""

from __future__ import annotations

import csv
import json
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import jinja2
import matplotlib as mpl
import pytest
from matplotlib.figure import Figure

HERE = Path(__file__).parent / "kill-matrix"
KEPT = HERE / "rows"
PROFILES = ("quick", "ci", "nightly")
GRADES = ("exact", "structural", "statistical")
#: Bias at the smallest exposing input from which on profile ci must see a defect.
PROMISED = 0.005
#: Long enough that only the draws that a plan asks for end a check.
SECONDS = 3600.0
SVG = {
    "svg.hashsalt": "kill-matrix",
    "svg.fonttype": "none",
    "font.sans-serif": ["DejaVu Sans", "Arial"],
}


@dataclass(frozen=True)
class Row:
    """One entry in one profile, seen by the checks of one grade.

    `evidence` is the grade of what was seen: a check that counts may come upon an answer
    that cannot be, which is a proof. `outcome` is "caught", "passed", "inconclusive", or
    "none" where no check of the grade applies; `draws` and `seconds`, of CPU time, are of
    all checks up to the one that caught it.
    """

    id: str
    family: str
    effect: str
    bias: float
    profile: str
    grade: str
    outcome: str
    caught_by: str
    evidence: str
    draws: int
    seconds: float


def entries() -> list[tuple[str, str, str]]:
    """Every (id, profile, grade)."""
    from specverify.defects import CATALOGUE, CONTROLS

    return [
        (id_, profile, grade)
        for id_ in (*CATALOGUE, *CONTROLS)
        for profile in PROFILES
        for grade in GRADES
    ]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One item for each entry, profile and grade."""
    metafunc.parametrize(("id_", "profile", "grade"), entries())


def test_entry(id_: str, profile: str, grade: str) -> None:
    """Try one entry and keep the row; a defect that is missed is no failure here."""
    path = kept(id_, profile, grade)
    if not path.exists():
        row = tried(id_, profile, grade)
        begun = path.with_suffix(".begun")  # what is kept is whole
        begun.write_text(json.dumps(asdict(row)), encoding="utf-8")
        begun.replace(path)
    row = read(path)
    assert row.effect != "none" or row.outcome != "caught", "a correct form was flagged"


def kept(id_: str, profile: str, grade: str) -> Path:
    """Where the row of an item is kept until all are there."""
    return KEPT / f"{id_}.{profile}.{grade}.json"


def read(path: Path) -> Row:
    """Read a row that was kept."""
    return Row(**json.loads(path.read_text("utf-8")))


def tried(id_: str, profile: str, grade: str) -> Row:
    """Put one entry to the checks of one grade."""
    import torch

    from specverify.checks.plan import make_plan
    from specverify.checks.registry import checks_for
    from specverify.checks.selftest import try_defect
    from specverify.defects import CATALOGUE, CONTROLS

    torch.set_num_threads(1)
    defect = CATALOGUE.get(id_) or CONTROLS[id_]
    checks = [check for check in checks_for(defect.kind) if check.grade == grade]
    started = time.process_time()
    trial = try_defect(defect, checks, make_plan(profile, max_seconds=SECONDS))
    return Row(
        id=id_,
        family=defect.family,
        effect=defect.effect,
        bias=defect.bias,
        profile=profile,
        grade=grade,
        outcome=trial.outcome,
        caught_by=trial.caught_by,
        evidence=trial.grade,
        draws=trial.draws,
        seconds=round(time.process_time() - started, 2),
    )


# --- what it comes to -----------------------------------------------------------------


@dataclass
class Matrix:
    """All rows of a run, in the order of the catalogue."""

    rows: Sequence[Row]

    @property
    def defects(self) -> dict[str, Row]:
        """One row of each defect, by id."""
        return {row.id: row for row in self.rows if row.effect != "none"}

    @property
    def controls(self) -> dict[str, Row]:
        """One row of each correct form, by id."""
        return {row.id: row for row in self.rows if row.effect == "none"}

    def caught(self, profile: str, grades: Sequence[str] = GRADES) -> set[str]:
        """Entries that a profile catches by evidence of some of the grades."""
        return {
            row.id
            for row in self.rows
            if row.outcome == "caught"
            and row.profile == profile
            and row.evidence in grades
        }

    def undecided(self) -> list[Row]:
        """Rows that ended without a decision."""
        return [row for row in self.rows if row.outcome == "inconclusive"]


def collect() -> Matrix:
    """Read the rows of all workers, in the order of the catalogue."""
    return Matrix([read(kept(*entry)) for entry in entries()])


def needed(id_: str) -> str:
    """Draws that would show a defect on the input of its entry, one cell an outcome."""
    from specverify.checks.plan import make_plan
    from specverify.defects import CATALOGUE
    from specverify.statistics.planning import plan_samples

    defect, plan = CATALOGUE[id_], make_plan("ci")
    cells = defect.shown_on.vocab**defect.shown_on.emits
    try:
        n = plan_samples(
            cells=cells, level=plan.error_rate, power=plan.power, tv=defect.bias
        ).n_max
    except ValueError:
        return "more than 1e12 draws"
    return f"{n:.1e} draws"


def summary(matrix: Matrix) -> Iterator[str]:
    """The README of the study."""
    defects, controls = matrix.defects, matrix.controls
    seconds = sum(row.seconds for row in matrix.rows)
    yield "# The kill matrix"
    yield ""
    yield f"`python reports/kill_matrix.py`, {seconds / 60:.0f} minutes of CPU time."
    yield "[The page](index.html) has a row for each defect, [matrix.csv](matrix.csv) all"
    yield "numbers. Each item stops at the first check that sees the defect, and is"
    yield "filed by the grade of what was seen."
    yield ""
    yield "| profile | exact | structural | statistical | any | correct forms flagged |"
    yield "|--|--|--|--|--|--|"
    for profile in PROFILES:
        by = [len(matrix.caught(profile, [grade]) & set(defects)) for grade in GRADES]
        every = matrix.caught(profile)
        yield (
            f"| {profile} | "
            + " | ".join(map(str, by))
            + f" | **{len(every & set(defects))}"
            f" of {len(defects)}** | **{len(every & set(controls))} of {len(controls)}** |"
        )
    promised = {id_ for id_, row in defects.items() if row.bias >= PROMISED}
    seen = promised & matrix.caught("ci")
    yield ""
    yield f"Of {len(promised)} defects with a bias of {PROMISED} or more on some input,"
    sampled = matrix.caught("ci", ["structural", "statistical"])
    yield f"profile ci catches **{len(seen)}**, and **{len(promised & sampled)}** by"
    yield "structural and statistical evidence alone."
    yield ""
    yield "![Draws up to the first violation, by bias](draws.svg)"
    yield ""
    yield "## Missed by sampling in profile ci"
    yield ""
    yield "An engine whose random calls cannot be followed has the sampled checks only."
    yield "What these do not see, with the draws that its bias would need on the input of"
    yield "the entry:"
    yield ""
    for id_, row in defects.items():
        if id_ not in sampled:
            exact = id_ in matrix.caught("ci", ["exact"])
            yield (
                f"- `{id_}`, bias {row.bias:.2g}: {needed(id_) if row.bias else 'contract'}"
                f"{'; caught exactly' if exact else '; **not caught**'}"
            )
    if matrix.undecided():
        yield ""
        yield "Not decided: " + ", ".join(
            f"`{row.id}` ({row.profile}, {row.grade})" for row in matrix.undecided()
        )
    yield ""


def draw(matrix: Matrix) -> None:
    """Draws that the sampled checks of profile ci took, beside the bias."""
    figure = Figure(figsize=(7.2, 4.2), layout="constrained")
    axes = figure.subplots()
    for grade, colour, mark in (
        ("statistical", "#1f6f8b", "o"),
        ("structural", "#c1592e", "s"),
    ):
        rows = [
            row
            for row in matrix.rows
            if (row.profile, row.evidence, row.outcome) == ("ci", grade, "caught")
            and row.grade != "exact"
            and row.effect != "none"
            and row.bias
            and row.draws
        ]
        axes.scatter(
            [row.bias for row in rows],
            [row.draws for row in rows],
            s=22,
            marker=mark,
            color=colour,
            alpha=0.75,
            linewidths=0,
            label=grade,
        )
    axes.set(xscale="log", yscale="log")
    axes.set_xlabel("total variation on the smallest exposing input")
    axes.set_ylabel("draws up to the first violation")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    with mpl.rc_context(SVG):
        figure.savefig(HERE / "draws.svg", metadata={"Date": None})


PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Kill matrix</title>
<style>
body{font:14px/1.45 system-ui,sans-serif;margin:2em;color:#222}
table{border-collapse:collapse;width:100%}
td,th{padding:.3em .6em;text-align:left;border-bottom:1px solid #ddd;vertical-align:top}
thead th{position:sticky;top:0;background:#fff;border-bottom:2px solid #999}
td small{color:#666;white-space:nowrap}td.id{min-width:21em}
.caught{background:#e6f2ea;white-space:nowrap}.missed{color:#a03010}.quiet{color:#999}
.flagged{background:#f7dada}
@media (prefers-color-scheme:dark){body{background:#161616;color:#ddd}
thead th{background:#161616}td,th{border-color:#333}.caught{background:#173a24}
.flagged{background:#5a1d1d}.missed{color:#f09070}td small{color:#999}}
</style>
<h1>Which evidence catches which defect</h1>
<p><code>python reports/kill_matrix.py</code>. Each cell names the check that saw the
defect first, with all draws and seconds of CPU time up to then.
<span class="quiet">passed</span>: every check of the grade did;
<span class="quiet">n/a</span>: none applies.</p>
{% for title, entries in parts %}
<h2>{{ title }}</h2>
<table><thead><tr><th>{{ title }}<th>bias
{%- for profile in profiles %}{% for grade in grades %}<th>{{ profile }}<br>{{ grade }}
{%- endfor %}{% endfor %}<tbody>
{% for entry in entries %}<tr><td class="id"><b>{{ entry.id }}</b><br>{{ entry.sentence }}
<td>{% if entry.bias %}{{ "%.3g"|format(entry.bias) }}{% else %}–{% endif %}
{%- for row in cells[entry.id] -%}
{% if row.outcome == "caught" -%}
<td class="{{ 'caught' if row.effect != 'none' else 'flagged' }}">{{ row.caught_by }}<br>
<small>{% if row.draws %}{{ "{:,}".format(row.draws) }} draws, {% endif -%}
{{ row.seconds }} s
{%- if row.evidence != row.grade %}, {{ row.evidence }}{% endif %}</small>
{%- elif row.outcome == "none" %}<td class="quiet">n/a
{%- elif row.outcome == "inconclusive" %}<td class="missed">inconclusive
{%- else %}<td class="quiet">passed{% endif %}
{%- endfor %}
{% endfor %}</table>
{% endfor %}
</html>
"""


def page(matrix: Matrix) -> str:
    """All cells as a page."""
    from specverify.defects import CATALOGUE, CONTROLS

    cells: dict[str, list[Row]] = {}
    for row in matrix.rows:
        cells.setdefault(row.id, []).append(row)
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    return environment.from_string(PAGE).render(
        parts=[
            ("Defects", list(CATALOGUE.values())),
            ("Correct forms", list(CONTROLS.values())),
        ],
        cells=cells,
        profiles=PROFILES,
        grades=GRADES,
    )


def write(matrix: Matrix) -> None:
    """Write table, page, figure and summary."""
    with (HERE / "matrix.csv").open("w", encoding="utf-8", newline="") as file:
        heads = [field.name for field in fields(Row)]
        writer = csv.DictWriter(file, heads, lineterminator="\n")
        writer.writeheader()
        writer.writerows(map(asdict, matrix.rows))
    (HERE / "index.html").write_text(page(matrix), encoding="utf-8")
    draw(matrix)
    text = "\n".join(summary(matrix))
    (HERE / "README.md").write_text(text, encoding="utf-8")
    print(text)


def main() -> int:
    """Run what is missing and write what was found."""
    if "--fresh" in sys.argv[1:]:
        shutil.rmtree(KEPT, ignore_errors=True)
    KEPT.mkdir(parents=True, exist_ok=True)
    quiet = ["-q", "-r", "f", "-p", "no:cacheprovider", "--no-header"]
    code = pytest.main([*quiet, "-n", "auto", "--dist", "worksteal", __file__])
    if not all(kept(*entry).exists() for entry in entries()):
        print("Some entries ended with an error, see above; nothing is written.")
        return int(code) or 1
    write(collect())
    shutil.rmtree(KEPT)
    return int(code)


if __name__ == "__main__":
    sys.exit(main())
