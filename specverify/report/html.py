# SPDX-License-Identifier: Apache-2.0
"""The report as one self-contained HTML page.

The page needs nothing but itself: no script, no font, no picture from elsewhere, and a
content security policy that forbids them. It follows the reader's light or dark setting
and prints with everything unfolded. The evidence it was made from is part of it, as
JSON, so a report is its own data.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Final

import jinja2
from markupsafe import Markup

from specverify.evidence.files import to_json
from specverify.evidence.records import CheckRecord, Evidence, Status, Table
from specverify.report import formats, wording
from specverify.report.cells import Cell, Rate, law_cells, ranked, rates
from specverify.report.charts import HOW_TO_READ, chart

#: Rows of a data table, for a check that asks for attention and for any other.
MAX_ROWS: Final = 40
MAX_ROWS_QUIET: Final = 10
_ORDER: Final[dict[Status, int]] = {
    "violation": 0,
    "inconclusive": 1,
    "expected_failure": 2,
    "pass": 3,
}


@dataclass(frozen=True, slots=True)
class Panel:
    """One table of a check, ready to be shown.

    Attributes
    ----------
    how
        How to read the chart; empty if the section has said so already.
    total
        Cells of the table, of which `cells` or `rates` may be a selection.
    """

    title: str
    svg: Markup
    how: str
    cells: tuple[Cell, ...]
    rates: tuple[Rate, ...]
    total: int


@dataclass(frozen=True, slots=True)
class Section:
    """One check, ready to be shown.

    Attributes
    ----------
    anchor
        Suffix of the ids that belong to the check.
    facts
        Names and values of its numbers.
    """

    check: CheckRecord
    anchor: str
    facts: tuple[tuple[str, str], ...]
    panels: tuple[Panel, ...]


def render_html(evidence: Evidence) -> str:
    """Write the report of a run as an HTML page.

    Parameters
    ----------
    evidence
        What the run found.

    Returns
    -------
    str
        A complete document; the same evidence gives the same text.

    Raises
    ------
    EvidenceError
        The evidence holds values that JSON has no place for.
    """
    ran = [check for check in evidence.checks if check.status in _ORDER]
    ran.sort(key=lambda check: _ORDER[check.status])
    return _template().render(
        evidence=evidence,
        sections=[_section(check) for check in ran],
        symbol=wording.VERDICTS[evidence.verdict][0],
        tally=wording.counts(evidence),
        css=_asset("report.css"),
        json=_embedded(evidence),
    )


def write_html(evidence: Evidence, path: str | os.PathLike[str]) -> Path:
    """Write the report of a run to a file, whose folder is created if need be.

    Returns
    -------
    Path
        Where the file is.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    page = render_html(evidence).encode("utf-8", errors="replace")
    target.write_bytes(page)
    return target


@cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        autoescape=True,
        keep_trailing_newline=True,
        loader=jinja2.FunctionLoader(_asset),
        lstrip_blocks=True,
        trim_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.globals |= {"formats": formats, "wording": wording, "anchor": _anchor}
    return environment.get_template("report.html.j2")


def _asset(name: str) -> Markup:
    """Read a file of this package; its author is trusted."""
    source = files("specverify.report").joinpath(f"templates/{name}")
    return Markup(source.read_text("utf-8"))  # noqa: S704


def _embedded(evidence: Evidence) -> Markup:
    """Write the evidence as JSON that cannot end the element around it."""
    text = json.dumps(to_json(evidence), allow_nan=False, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c"))  # noqa: S704


def _section(check: CheckRecord) -> Section:
    name = _anchor(check.id)
    return Section(check, name, tuple(_facts(check)), tuple(_panels(check, name)))


def _panels(check: CheckRecord, name: str) -> Iterator[Panel]:
    explained = set()
    for index, table in enumerate(check.tables):
        # What was found comes first; the other tables stand beside it.
        loud = index == 0 and check.status != "pass"
        rows = MAX_ROWS if loud else MAX_ROWS_QUIET
        svg = chart(table, limit=check.limit, ident=f"{name}-{index}")
        how = "" if table.kind in explained else HOW_TO_READ[table.kind]
        explained.add(table.kind)
        yield _panel(table, Markup(svg), how, rows)  # noqa: S704 -- our own drawing


def _panel(table: Table, svg: Markup, how: str, rows: int) -> Panel:
    position = table.kind == "position"
    return Panel(
        title=table.title,
        svg=svg,
        how=how,
        cells=() if position else ranked(law_cells(table), rows),
        rates=rates(table)[:rows] if position else (),
        total=len(table.labels),
    )


def _facts(check: CheckRecord) -> Iterator[tuple[str, str]]:
    yield "Evidence", check.grade
    if check.e_value is not None:
        yield "e-value", formats.e_value(check.e_value)
        yield "e-value needed", formats.e_needed(check.limit)
    if check.limit is not None:
        yield "Error rate of this decision", formats.number(check.limit, 2)
    if check.statistic is not None:
        yield "Chi-square", formats.number(check.statistic, 4)
    if check.df is not None:
        yield "Degrees of freedom", formats.count(check.df)
    if check.p_value is not None or check.log10_p is not None:
        yield "p-value", formats.p_value(check.p_value, check.log10_p)
    if check.samples:
        yield "Draws", formats.count(check.samples)
    yield "Inputs tried", _examples(check)
    if check.tv_estimate is not None:
        yield "TV estimate", formats.number(check.tv_estimate)
    if check.tv_upper is not None:
        yield "TV upper bound", formats.number(check.tv_upper)
    if check.detectable_tv is not None:
        yield "Detectable TV", formats.number(check.detectable_tv)
    yield "Time", formats.duration(check.duration_s)


def _examples(check: CheckRecord) -> str:
    tried = formats.count(check.examples)
    planned = formats.count(check.examples_planned)
    return f"{tried} of {planned} planned" if check.examples_planned else tried


def _anchor(identifier: str) -> str:
    """Turn the id of a check into a part of an HTML id."""
    return re.sub(r"[^A-Za-z0-9_.-]", "-", identifier)
