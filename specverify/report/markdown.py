# SPDX-License-Identifier: Apache-2.0
"""The report as short Markdown, for the step summary of a CI run.

Verdict first, then what failed and how to repeat it, then one row a check. Text from
the run is escaped, so a subject's name can neither break a table nor add markup.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from typing import Final

import jinja2

from specverify.evidence.records import Evidence, Status
from specverify.report import formats, wording

#: Rows of the table of checks and number of violations told in full.
MAX_ROWS: Final = 20
MAX_FINDINGS: Final = 10
_ORDER: Final[tuple[Status, ...]] = (
    "violation",
    "inconclusive",
    "expected_failure",
    "pass",
    "skipped",
)
_SPECIAL: Final = re.compile(r"([\\`*_\[\]<>#|~&@$])")


def render_markdown(evidence: Evidence) -> str:
    """Write the report of a run as Markdown.

    Parameters
    ----------
    evidence
        What the run found.

    Returns
    -------
    str
        Starts with a heading of the third level and ends with a newline.
    """
    ordered = [check for status in _ORDER for check in evidence.with_status(status)]
    return _template().render(
        evidence=evidence,
        symbol=wording.VERDICTS[evidence.verdict][0],
        rows=ordered[:MAX_ROWS],
        unlisted=len(ordered) - MAX_ROWS,
        findings=wording.violations(evidence)[:MAX_FINDINGS],
        untold=len(wording.violations(evidence)) - MAX_FINDINGS,
    )


@cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        autoescape=False,  # noqa: S701 -- the filter md escapes for Markdown
        keep_trailing_newline=True,
        lstrip_blocks=True,
        trim_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= {"md": _escape, "fence": _fence}
    environment.globals |= {"formats": formats, "wording": wording}
    source = files("specverify.report").joinpath("templates/summary.md.j2")
    return environment.from_string(source.read_text("utf-8"))


def _escape(text: object) -> str:
    """Escape text for one line of Markdown."""
    return _SPECIAL.sub(r"\\\1", " ".join(str(text).split()))


def _fence(text: str, language: str = "") -> str:
    """Wrap code in a fence that is longer than any run of backticks in it."""
    longest = max(map(len, re.findall(r"`+", text)), default=0)
    bar = "`" * max(3, longest + 1)
    return f"{bar}{language}\n{text.rstrip()}\n{bar}"
