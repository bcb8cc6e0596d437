# SPDX-License-Identifier: Apache-2.0
"""The kill matrix: which profile and which grade of evidence catches which known defect.

``python reports/kill_matrix.py`` runs every entry of the catalogue, and every correct form,
in the profiles quick and ci, in parallel under pytest-xdist, and writes a table (CSV) and a
page (HTML). Each (entry, profile, grade) is a pytest item; checks are tried in their order
until one sees a violation that counts, without a search for a smaller input.
"""

from __future__ import annotations

import csv
import json
import sys
import time
from collections.abc import Iterator
from html import escape
from pathlib import Path

import pytest

HERE = Path(__file__).parent / "kill-matrix"
ROWS = HERE / "rows"
PROFILES = ("quick", "ci")
GRADES = ("exact", "structural", "statistical")
COLUMNS = (
    "id",
    "family",
    "effect",
    "bias",
    "profile",
    "grade",
    "caught_by",
    "draws",
    "seconds",
)


def entries() -> Iterator[tuple[str, str, str]]:
    """Every (id, profile, grade)."""
    from specverify.defects import CATALOGUE, CONTROLS

    for id_ in (*CATALOGUE, *CONTROLS):
        for profile in PROFILES:
            for grade in GRADES:
                if grade != "exact" or profile == "ci":  # exact has one effort
                    yield id_, profile, grade


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One item for each entry, profile and grade."""
    metafunc.parametrize(("id_", "profile", "grade"), list(entries()))


def test_entry(id_: str, profile: str, grade: str) -> None:
    """Try one entry and keep the row; a defect that is missed is no failure here."""
    import torch

    from specverify.checks.plan import make_plan
    from specverify.checks.registry import checks_for
    from specverify.checks.run import make_rig, run_check
    from specverify.defects import CATALOGUE, CONTROLS

    torch.set_num_threads(1)
    defect = CATALOGUE.get(id_) or CONTROLS[id_]
    plan = make_plan(profile, max_seconds=600)
    rig, started = make_rig(defect.subject(), plan), time.monotonic()
    draws, caught = 0, ""
    for check in checks_for(defect.kind):
        if check.grade != grade:
            continue
        record = run_check(check, rig, plan, shrink=False)
        draws += record.samples
        if record.status == "violation" and record.effect != "efficiency":
            caught = record.id
            break
    row = {
        "id": id_,
        "family": defect.family,
        "effect": defect.effect,
        "bias": defect.bias,
        "profile": profile,
        "grade": grade,
        "caught_by": caught,
        "draws": draws,
        "seconds": round(time.monotonic() - started, 2),
    }
    ROWS.mkdir(parents=True, exist_ok=True)
    path = ROWS / f"{id_}.{profile}.{grade}.json"
    path.write_text(json.dumps(row), encoding="utf-8")
    assert defect.effect != "none" or not caught, "a correct form was flagged"


def collect() -> list[dict[str, object]]:
    """Read the rows of all workers, in the order of the catalogue, and remove them."""
    order = {key: place for place, key in enumerate(entries())}
    rows = [json.loads(path.read_text("utf-8")) for path in ROWS.glob("*.json")]
    rows.sort(key=lambda row: order[row["id"], row["profile"], row["grade"]])
    for path in ROWS.glob("*.json"):
        path.unlink()
    ROWS.rmdir()
    return rows


def write(rows: list[dict[str, object]], seconds: float) -> None:
    """Write the table and the page."""
    with (HERE / "matrix.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)
    page = HERE / "index.html"
    page.write_text("\n".join(_page(rows, seconds)), encoding="utf-8")
    (HERE / "README.md").write_text("\n".join(_summary(rows, seconds)), "utf-8")


def _caught(rows: list[dict[str, object]], id_: str, profile: str) -> bool:
    return any(
        row["caught_by"]
        for row in rows
        if row["id"] == id_ and (row["profile"] == profile or row["grade"] == "exact")
    )


def _summary(rows: list[dict[str, object]], seconds: float) -> Iterator[str]:
    ids = {row["id"]: row for row in rows}
    defects = [id_ for id_, row in ids.items() if row["effect"] != "none"]
    controls = [id_ for id_, row in ids.items() if row["effect"] == "none"]
    yield "# The kill matrix"
    yield ""
    yield f"`python reports/kill_matrix.py`, {seconds / 60:.0f} min on two cores."
    yield "[The page](index.html) has a row for each defect, [matrix.csv](matrix.csv) all"
    yield "numbers."
    yield ""
    yield "| profile | grade | defects caught | correct forms flagged |"
    yield "|--|--|--|--|"
    for profile in PROFILES:
        for grade in GRADES:
            hit = {
                row["id"]
                for row in rows
                if row["caught_by"]
                and row["grade"] == grade
                and (row["profile"] == profile or grade == "exact")
            }
            yield (
                f"| {profile} | {grade} | {len(hit & set(defects))} of {len(defects)} "
                f"| {len(hit & set(controls))} of {len(controls)} |"
            )
        every = [id_ for id_ in defects if _caught(rows, str(id_), profile)]
        wrong = [id_ for id_ in controls if _caught(rows, str(id_), profile)]
        yield (
            f"| {profile} | all | **{len(every)} of {len(defects)}** "
            f"| **{len(wrong)} of {len(controls)}** |"
        )
    missed = [id_ for id_ in defects if not _caught(rows, str(id_), "ci")]
    yield ""
    yield "Missed in ci: " + (
        ", ".join(f"{id_} (bias {ids[id_]['bias']})" for id_ in missed) or "none"
    )
    yield ""


def _page(rows: list[dict[str, object]], seconds: float) -> Iterator[str]:
    from specverify.defects import CATALOGUE, CONTROLS

    yield "<!doctype html><html lang=en><meta charset=utf-8><title>Kill matrix</title>"
    yield "<style>body{font:15px/1.5 system-ui;margin:2em auto;max-width:75em}"
    yield "table{border-collapse:collapse}td,th{padding:.25em .6em;text-align:left;"
    yield "border-bottom:1px solid #ddd;vertical-align:top}.no{color:#a00}"
    yield "thead th{position:sticky;top:0;background:#fff}</style>"
    yield "<h1>Which evidence catches which defect</h1>"
    yield f"<p><code>python reports/kill_matrix.py</code>, {seconds / 60:.0f} min on two "
    yield "cores. Each cell names the check that saw the defect first, with draws and "
    yield "seconds up to then.</p>"
    heads = [f"{p}, {g}" for p in PROFILES for g in GRADES if g != "exact" or p == "ci"]
    yield "<table><thead><tr><th>defect<th>bias"
    yield "".join(f"<th>{head}" for head in heads) + "<tbody>"
    cells = {(r["id"], f"{r['profile']}, {r['grade']}"): r for r in rows}
    for id_, defect in (*CATALOGUE.items(), *CONTROLS.items()):
        word = "correct" if defect.effect == "none" else f"{defect.bias:.3g}"
        yield f"<tr><td><b>{escape(id_)}</b><br>{escape(defect.sentence)}<td>{word}"
        for head in heads:
            row = cells.get((id_, head))
            if row is None:
                yield "<td>"
            elif not row["caught_by"]:
                yield '<td class="no">–'
            else:
                seen = f"{row['draws']:,} draws, " if row["draws"] else ""
                yield f"<td>{row['caught_by']}<br>{seen}{row['seconds']} s"
    yield "</table></html>"


if __name__ == "__main__":
    begun = time.monotonic()
    code = pytest.main(
        [
            "-q",
            "-n",
            "2",
            "-p",
            "no:cacheprovider",
            "--no-header",
            __file__,
            *sys.argv[1:],
        ]
    )
    write(collect(), time.monotonic() - begun)
    sys.exit(code)
