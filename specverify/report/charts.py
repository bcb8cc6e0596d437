# SPDX-License-Identifier: Apache-2.0
"""The charts of a report, each a pure function from a table to an ``<svg>`` element.

Two pictures are enough for a table of counts. The upper panel shows the counts beside
their law, on a scale where rare outcomes stay visible. The lower panel shows what the
eye cannot read off the upper one: how far each count is from its law, in units of what
chance would do. Shapes differ as well as colours, so nothing depends on colour alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from specverify.evidence.records import Table
from specverify.report.cells import (
    COVERAGE,
    Cell,
    Rate,
    chosen,
    law_cells,
    rates,
    threshold,
)
from specverify.report.formats import count, number, plural, signed
from specverify.report.panels import (
    BLACK,
    BLUE,
    CHAR,
    HEIGHT,
    INNER,
    VERMILLION,
    band,
    bars,
    caption,
    centred_axis,
    count_ticks,
    dashes,
    label_columns,
    marks,
    rules,
    short,
    spans,
    two_panels,
)
from specverify.report.svg import draw

#: Residuals within this band are what chance alone gives, 19 times in 20.
INNER_BAND: Final = 2.0
_MAX_NOTES: Final = 3
#: How to read the chart of each kind of table.
HOW_TO_READ: Final = {
    "law": (
        "Each bar should end at its mark. The scale is the square root of the count, "
        "so that rare outcomes stay visible. Below, the difference is in standard "
        "deviations: for a correct subject about 95 bars in 100 stay within the grey "
        "band. A single bar beyond a dashed line would by itself pass the limit of "
        "this check, corrected for the number of cells. The verdict comes from all "
        "cells together, not from the picture."
    ),
    "position": (
        "Each bar should end at its mark, the acceptance rate that theory gives for "
        "that draft position, among the draws that got so far. Below, the same "
        "difference magnified, with exact (Clopper-Pearson) intervals that hold for "
        f"all positions of the chart together with probability {COVERAGE:.2f}: an "
        "interval that misses zero contradicts theory at that level."
    ),
}


def chart(table: Table, *, limit: float | None, ident: str) -> str:
    """Draw the chart that belongs to the kind of `table`.

    Parameters
    ----------
    table
        Counts and their law.
    limit
        The p-value below which the check is a violation; None draws no outer band.
    ident
        Prefix for ids in the element, unique on its page.
    """
    if table.kind == "position":
        return position_chart(table, ident=ident)
    return law_chart(table, limit=limit, ident=ident)


def law_chart(table: Table, *, limit: float | None, ident: str) -> str:
    """Draw observed bars with expected marks, and the residuals below."""
    every = law_cells(table)
    bound = threshold(limit, len(every))
    cells, pooled = chosen(every, bound)

    def paint(figure: Figure) -> None:
        upper, lower = two_panels(figure, len(cells))
        _paint_counts(upper, cells)
        _paint_residuals(lower, cells, bound)
        label_columns(lower, [cell.label for cell in cells])

    return draw(
        paint,
        HEIGHT,
        ident=ident,
        title=f"Observed and expected counts: {table.title}",
        desc=_describe_law(every, bound, pooled),
    )


def position_chart(table: Table, *, ident: str) -> str:
    """Draw acceptance by draft position against theory, with exact intervals."""
    rows = rates(table)

    def paint(figure: Figure) -> None:
        upper, lower = two_panels(figure, max(1, len(rows)))
        _paint_rates(upper, rows)
        _paint_differences(lower, rows)
        label_columns(lower, [row.label for row in rows])

    return draw(
        paint,
        HEIGHT,
        ident=ident,
        title=f"Acceptance by draft position: {table.title}",
        desc=_describe_rates(rows),
    )


def _describe_law(cells: Sequence[Cell], bound: float, pooled: int) -> str:
    drawn = sum(cell.observed for cell in cells)
    words = [f"{count(drawn)} draws in {plural(len(cells), 'cell')}."]
    if cells:
        worst = max(cells, key=lambda cell: abs(cell.residual))
        size = signed(worst.residual)
        words.append(f"Largest residual: {size} at {worst.label}.")
    if math.isfinite(bound):
        beyond = sum(abs(cell.residual) > bound for cell in cells)
        words.append(f"{beyond} beyond ±{number(bound)}.")
    if pooled:
        words.append(f"The last bar pools {plural(pooled, 'cell')}.")
    return " ".join(words)


def _describe_rates(rows: Sequence[Rate]) -> str:
    outside = [row.label for row in rows if row.off]
    told = f"{plural(len(rows), 'position')} with exact {COVERAGE:.0%} intervals."
    if outside:
        return f"{told} Theory lies outside the interval at {', '.join(outside)}."
    return f"{told} Theory lies inside every interval."


def _paint_counts(panel: Axes, cells: Sequence[Cell]) -> None:
    top = max([1.0, *(max(c.observed, c.expected) for c in cells)])
    panel.set_ylim(0, math.sqrt(top) * 1.03)
    ticks = count_ticks(top)
    panel.set_yticks([math.sqrt(tick) for tick in ticks], [count(t) for t in ticks])
    rules(panel, [math.sqrt(tick) for tick in ticks])
    bars(panel, BLUE, [(i, math.sqrt(c.observed)) for i, c in enumerate(cells)])
    law = [(i, math.sqrt(c.expected)) for i, c in enumerate(cells)]
    marks(panel, BLACK, law, width=1.8)
    caption(panel, "count", ("bars: observed", BLUE), ("marks: expected", BLACK))


def _paint_residuals(panel: Axes, cells: Sequence[Cell], bound: float) -> None:
    finite = [abs(c.residual) for c in cells if math.isfinite(c.residual)]
    outer = bound if math.isfinite(bound) else 0.0
    reach = max([4.0, outer * 1.15, *(1.15 * value for value in finite)])
    panel.set_ylim(-reach, reach)
    centred_axis(panel, reach)
    band(panel, INNER_BAND)
    if outer:
        dashes(panel, outer)
    for colour, beyond in ((BLUE, False), (VERMILLION, True)):
        tops = [
            (i, max(-reach, min(reach, cell.residual)))
            for i, cell in enumerate(cells)
            if (abs(cell.residual) > bound) is beyond
        ]
        bars(panel, colour, tops)
    rules(panel, [0], colour=BLACK)
    _note_worst(panel, cells, bound, reach)
    caption(panel, "residual")


def _note_worst(panel: Axes, cells: Sequence[Cell], bound: float, reach: float) -> None:
    """Name the few worst cells where a violation shows, if there is room."""
    bad = [i for i, cell in enumerate(cells) if abs(cell.residual) > bound]
    taken: list[tuple[float, float]] = []
    for i in sorted(bad, key=lambda i: -abs(cells[i].residual))[:_MAX_NOTES]:
        label = short(cells[i].label)
        half = len(label) * CHAR / 2 + 4
        centre = (i + 0.5) / len(cells) * INNER
        if any(centre - half < right and left < centre + half for left, right in taken):
            continue
        taken.append((centre - half, centre + half))
        side = math.copysign(1, cells[i].residual)
        panel.text(
            i,
            -side * reach * 0.12,
            label,
            ha="center",
            va="top" if side > 0 else "bottom",
        )


def _paint_rates(panel: Axes, rows: Sequence[Rate]) -> None:
    panel.set_ylim(0, 1.03)
    panel.set_yticks([0, 0.5, 1], ["0", "0.5", "1"])
    rules(panel, [0, 0.5, 1])
    bars(panel, BLUE, [(i, row.measured) for i, row in enumerate(rows)])
    marks(panel, BLACK, [(i, row.predicted) for i, row in enumerate(rows)], width=1.8)
    caption(panel, "acceptance", ("bars: measured", BLUE), ("marks: theory", BLACK))


def _paint_differences(panel: Axes, rows: Sequence[Rate]) -> None:
    ends = [(row.low - row.predicted, row.high - row.predicted) for row in rows]
    reach = 1.2 * max([1e-9, *(abs(end) for pair in ends for end in pair)])
    panel.set_ylim(-reach, reach)
    centred_axis(panel, reach)
    rules(panel, [0], colour=BLACK)
    for colour, off in ((BLUE, False), (VERMILLION, True)):
        picked = [i for i, row in enumerate(rows) if row.off is off]
        middles = [(i, rows[i].measured - rows[i].predicted) for i in picked]
        spans(panel, colour, [(i, ends[i]) for i in picked])
        marks(panel, colour, middles, width=3.5)
    caption(panel, f"measured − theory, with exact {COVERAGE:.0%} intervals")
