# SPDX-License-Identifier: Apache-2.0
"""The parts that charts are made of: two stacked panels and what is drawn in them.

Everything is drawn as a few compound paths, one for each colour and width, because a
page holds fifty charts and has to stay small. Nothing is clipped: clipping needs ids,
and ids of several pictures meet in one page.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch
from matplotlib.path import Path

from specverify.report.formats import number
from specverify.report.svg import WIDTH, printable

# Okabe and Ito's palette; the style sheet swaps BLUE for its lighter sister in the dark
BLUE: Final = "#0072b2"
VERMILLION: Final = "#d55e00"
GREY: Final = "#888888"
BLACK: Final = "#000000"

_LEFT, _RIGHT, _TOP, _GAP, _BOTTOM = 56, 10, 20, 26, 20
_UPPER, _LOWER = 112, 74
#: Height of a chart, and width of its columns together, in pixels.
HEIGHT: Final = _TOP + _UPPER + _GAP + _LOWER + _BOTTOM
INNER: Final = WIDTH - _LEFT - _RIGHT
#: Width that is reserved for one character of a label.
CHAR: Final = 6.4
_MAX_LABEL: Final = 16
_WIDEST: Final = 44

Point = tuple[float, float]
Box = tuple[float, float, float, float]


def two_panels(figure: Figure, columns: int) -> tuple[Axes, Axes]:
    """Two axes above each other that share their columns."""
    axes = []
    for bottom, height in ((_BOTTOM + _LOWER + _GAP, _UPPER), (_BOTTOM, _LOWER)):
        box = (_LEFT / WIDTH, bottom / HEIGHT, INNER / WIDTH, height / HEIGHT)
        panel = figure.add_axes(box)
        panel.patch.set_visible(False)
        panel.spines[["top", "right", "left", "bottom"]].set_visible(False)
        panel.tick_params(length=0, pad=5)
        panel.set_xlim(-0.5, columns - 0.5)
        panel.set_xticks([])
        axes.append(panel)
    return axes[0], axes[1]


def centred_axis(panel: Axes, reach: float) -> None:
    """Give a panel that is symmetric about zero one round tick on either side."""
    step = _nice_below(reach * 0.9)
    ticks = [-step, 0.0, step]
    panel.set_yticks(ticks, [number(tick) for tick in ticks])
    rules(panel, ticks)


def count_ticks(top: float) -> list[int]:
    """Three round counts and zero, spread over a square-root scale."""
    best = max(1, round(_nice_below(top)))
    return sorted({0, best, *(round(best * share) for share in (0.1, 0.4))})


def _nice_below(value: float) -> float:
    """Largest of 1, 2, 5 times a power of ten that does not exceed `value`."""
    power = 10.0 ** math.floor(math.log10(value))
    return max(step * power for step in (1, 2, 5) if step * power <= value * (1 + 1e-9))


def label_columns(panel: Axes, labels: Sequence[str]) -> None:
    """Label as many columns as fit, the last one first because it may be the pool."""
    taken: list[tuple[float, float]] = []
    for i in (*range(len(labels))[-1:], *range(len(labels) - 1)):
        text = short(labels[i])
        half = len(text) * CHAR / 2 + 9
        centre = min((i + 0.5) / len(labels) * INNER, INNER + _RIGHT + 3 - half)
        centre = max(centre, half - _LEFT)
        if all(centre + half < left or right < centre - half for left, right in taken):
            taken.append((centre - half, centre + half))
            _label(panel, centre / INNER, text)


def _label(panel: Axes, share: float, text: str) -> None:
    panel.text(
        share,
        -0.07,
        text,
        ha="center",
        va="top",
        transform=panel.transAxes,
    )


def short(label: str) -> str:
    """Cut a label to what fits under a column."""
    text = printable(label)
    return text if len(text) <= _MAX_LABEL else text[: _MAX_LABEL - 1] + "…"


def caption(panel: Axes, what: str, *legend: tuple[str, str]) -> None:
    """Name the panel at its upper left and its marks at its upper right."""
    box = panel.get_window_extent()
    scale = 1 / box.width
    above = 1 + 5 / box.height
    panel.text(0, above, what, transform=panel.transAxes, fontweight="normal")
    right = 1.0
    for text, colour in reversed(legend):
        panel.text(
            right, above, text, color=colour, ha="right", transform=panel.transAxes
        )
        right -= (len(text) * CHAR + 6) * scale


def rules(panel: Axes, heights: Iterable[float], *, colour: str = GREY) -> None:
    """Hairlines across the panel."""
    left, right = panel.get_xlim()
    faint = 0.7 if colour == BLACK else 0.4
    lines(panel, colour, [(left, y, right, y) for y in heights], width=faint)


def dashes(panel: Axes, bound: float) -> None:
    """Draw the limits ``-bound`` and ``bound`` as dashed lines."""
    left, right = panel.get_xlim()
    lines(
        panel,
        VERMILLION,
        [(left, y, right, y) for y in (-bound, bound)],
        width=0.9,
        linestyle=(0, (5, 4)),
    )


def band(panel: Axes, half: float) -> None:
    """Shade the strip between ``-half`` and ``half``."""
    left, right = panel.get_xlim()
    corners = [(left, -half), (left, half), (right, half), (right, -half), (left, 0)]
    codes = [Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY]
    _add(panel, corners, codes, {"facecolor": GREY, "linewidth": 0, "alpha": 0.22})


def bars(panel: Axes, colour: str, tops: Sequence[Point]) -> None:
    """Draw a bar from zero for each (column, top), as one path of broad strokes."""
    width = min(0.68 * _column(panel), _WIDEST)
    lines(panel, colour, [(x, 0, x, top) for x, top in tops if top != 0], width=width)


def marks(panel: Axes, colour: str, points: Sequence[Point], width: float) -> None:
    """Draw a short level stroke, a little broader than a bar, at each point."""
    half = min(0.44, 0.65 * _WIDEST / _column(panel))
    lines(panel, colour, [(x - half, y, x + half, y) for x, y in points], width=width)


def spans(panel: Axes, colour: str, ranges: Sequence[tuple[float, Point]]) -> None:
    """Draw an interval with caps for each (column, (low, high))."""
    cap = min(0.25, 6 / _column(panel))
    stems = [(x, low, x, high) for x, (low, high) in ranges]
    caps = [(x - cap, y, x + cap, y) for x, ends in ranges for y in ends]
    lines(panel, colour, [*stems, *caps], width=1.2)


def _column(panel: Axes) -> float:
    """Width of a column in pixels."""
    left, right = panel.get_xlim()
    return INNER / (right - left)


def lines(
    panel: Axes, colour: str, segments: Sequence[Box], *, width: float, **style: Any
) -> None:
    """Draw segments (x, y, x, y) as one path."""
    points = [point for a, b, c, d in segments for point in ((a, b), (c, d))]
    style |= {"facecolor": "none", "edgecolor": colour, "linewidth": width}
    style |= {"capstyle": "butt"}
    _add(panel, points, [Path.MOVETO, Path.LINETO] * len(segments), style)


def _add(
    panel: Axes,
    points: Sequence[Point],
    codes: Sequence[np.uint8],
    style: dict[str, Any],
) -> None:
    """Add one path without clipping, which would need ids, and without smoothing."""
    if not points:
        return
    path = Path(np.array(points), np.array(codes))
    path.should_simplify = False
    panel.add_patch(PathPatch(path, clip_on=False, **style))
