# SPDX-License-Identifier: Apache-2.0
"""Matplotlib figures as small, themeable SVG for use inside a page.

Matplotlib writes SVG as a document of its own: prologue, metadata, nested groups, a
font list on every text, absolute black. `draw` keeps what is drawn and drops the rest.
Black becomes ``currentColor``, so that text and axes follow the page into dark mode;
coordinates are rounded to a tenth of a pixel; a title and a description are added for
readers who cannot see the picture. Identical figures give identical bytes, whatever
style the host has configured.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Iterator
from html import escape
from itertools import groupby
from typing import Any, Final
from unicodedata import category
from xml.etree import ElementTree as ET

import matplotlib as mpl
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

#: Figure width in pixels, which are also SVG user units.
WIDTH: Final = 720
FONT_SIZE: Final = 11
_DPI: Final = 72
_SETTINGS: Final[dict[Any, Any]] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "specverify",
    "font.size": FONT_SIZE,
    "text.parse_math": False,
}
_SVG: Final = "{http://www.w3.org/2000/svg}"
_STEP: Final = re.compile(r"([MLz])\s*(?:(-?[\d.]+) (-?[\d.]+))?")
_KEPT_STYLE: Final = {
    "fill",
    "opacity",
    "stroke",
    "stroke-dasharray",
    "stroke-opacity",
    "stroke-width",
    "text-anchor",
}
_BLACK: Final = "#000000"

Leaf = tuple[str, tuple[tuple[str, str], ...], str]


def draw(
    paint: Callable[[Figure], None], height: int, *, ident: str, title: str, desc: str
) -> str:
    """Paint a figure and return it as an ``<svg>`` element for inline use.

    Parameters
    ----------
    paint
        Draws on the empty, transparent figure that it is given.
    height
        Height in pixels; the width is `WIDTH`.
    ident
        Prefix of the two ids in the element, unique on its page.
    title, desc
        Name and content of the picture in words.
    """
    buffer = io.StringIO()
    with mpl.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")  # the reader's fonts draw the text
        mpl.rcdefaults()
        mpl.rcParams.update(_SETTINGS)
        figure = Figure(figsize=(WIDTH / _DPI, height / _DPI), dpi=_DPI)
        FigureCanvasSVG(figure)
        figure.patch.set_visible(False)
        paint(figure)
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return _element(buffer.getvalue(), height, ident, title, desc)


def printable(text: str) -> str:
    """Replace control, format and surrogate characters, which XML partly forbids."""
    return "".join("�" if category(char)[0] == "C" else char for char in text)


def _element(source: str, height: int, ident: str, title: str, desc: str) -> str:
    """Wrap the drawn leaves of a matplotlib document in a described element."""
    head = (
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-labelledby="{ident}-t {ident}-d" fill="currentColor" '
        f'font-size="{FONT_SIZE}">'
        f'<title id="{ident}-t">{escape(printable(title))}</title>'
        f'<desc id="{ident}-d">{escape(printable(desc))}</desc>'
    )
    groups = groupby(_leaves(source), key=lambda leaf: leaf[:2])
    body = (_group(key, [text for *_, text in leaves]) for key, leaves in groups)
    return head + "".join(body) + "</svg>"


def _group(key: tuple[str, tuple[tuple[str, str], ...]], texts: list[str]) -> str:
    """Write neighbours that share their attributes, the attributes once."""
    attributes = "".join(f' {name}="{escape(value)}"' for name, value in key[1])
    if key[0] == "path":
        return f'<path{attributes} d="{"".join(texts)}"/>'
    return f"<g{attributes}>{''.join(texts)}</g>" if attributes else "".join(texts)


def _leaves(source: str) -> Iterator[Leaf]:
    """Go through paths and texts in drawing order."""
    for node in ET.fromstring(source).iter():  # noqa: S314 -- written by matplotlib
        if node.tag == _SVG + "path" and "d" in node.attrib:
            yield "path", _style(node), _path(node.attrib["d"])
        elif node.tag == _SVG + "text":
            yield "text", _style(node), _text(node)


def _style(node: ET.Element) -> tuple[tuple[str, str], ...]:
    """Read the style of a node as presentation attributes."""
    pairs = (entry.split(":", 1) for entry in node.get("style", "").split(";") if entry)
    style = {name.strip(): value.strip() for name, value in pairs}
    return tuple(
        (name, "currentColor" if value == _BLACK else value)
        for name, value in style.items()
        if name in _KEPT_STYLE and not (name == "fill" and value == _BLACK)
    )


def _text(node: ET.Element) -> str:
    """Write a text without its font list and without a rotation by zero."""
    turn = node.get("transform", "")
    angle = re.search(r"rotate\((-?[\d.]+)", turn)
    place = f'x="{_round(node.get("x", "0"))}" y="{_round(node.get("y", "0"))}"'
    if angle and float(angle[1]) != 0:
        place += f' transform="{_rounded(turn)}"'
    return f"<text {place}>{escape(node.text or '', quote=False)}</text>"


def _path(data: str) -> str:
    """Write a path of straight lines with relative steps and one decimal."""
    if "C" in data or "Q" in data:
        return _rounded(" ".join(data.split()))
    steps, x, y = [], 0.0, 0.0
    for command, right, down in _STEP.findall(data):
        if command == "z":
            steps.append("z")
            continue
        to_x, to_y = round(float(right), 1), round(float(down), 1)
        steps.append(_step(command, to_x, to_y, x, y))
        x, y = to_x, to_y
    return "".join(steps)


def _step(command: str, to_x: float, to_y: float, x: float, y: float) -> str:
    if command == "M":
        return f"M{_round(to_x)} {_round(to_y)}"
    if to_y == y:
        return f"h{_round(to_x - x)}"
    if to_x == x:
        return f"v{_round(to_y - y)}"
    return f"l{_round(to_x - x)} {_round(to_y - y)}"


def _rounded(text: str) -> str:
    return re.sub(r"-?\d+\.\d+", lambda match: _round(match[0]), text)


def _round(value: float | str) -> str:
    text = f"{float(value):.1f}".removesuffix(".0")
    return "0" if text == "-0" else text
