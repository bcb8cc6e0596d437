# SPDX-License-Identifier: Apache-2.0
"""Counts beside the law that they should follow."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from specverify.evidence.records import Table
from specverify.inputs.cases import Case
from specverify.inputs.models import FloatArray, IntArray
from specverify.laws.distributions import Number
from specverify.subjects.rig import Rig

#: Draws a number of rows from a subject on a case and tabulates what came out.
Compare: TypeAlias = Callable[[Rig, Case, int, int], "Comparison"]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Observed counts over cells whose law is known.

    Attributes
    ----------
    title
        What was counted.
    labels
        Name of each cell; tokens of an outcome are joined by commas.
    counts
        int64 [cells].
    probs
        float64 [cells], sums to 1.
    fitted
        Parameters of the law that were estimated from the counts themselves.
    """

    title: str
    labels: tuple[str, ...]
    counts: IntArray
    probs: FloatArray
    fitted: int = 0

    @classmethod
    def of_law(
        cls,
        title: str,
        law: Mapping[tuple[int, ...], Number],
        outcomes: Sequence[tuple[int, ...]],
        cells: IntArray,
    ) -> Comparison:
        """Tabulate `cells`, indices into `outcomes`, beside an exact law."""
        return cls(
            title,
            tuple(",".join(map(str, outcome)) or "none" for outcome in outcomes),
            np.bincount(cells, minlength=len(outcomes)),
            np.array([float(law.get(outcome, 0)) for outcome in outcomes]),
        )

    @classmethod
    def of_independence(cls, title: str, table: IntArray) -> Comparison:
        """Tabulate pairs beside the product of their own margins: int64 [cells, cells]."""
        rows, columns = table.sum(axis=1), table.sum(axis=0)
        probs = np.outer(rows, columns) / table.sum() ** 2
        labels = tuple(f"{a},{b}" for a, b in np.ndindex(table.shape))
        fitted = int(np.count_nonzero(rows) + np.count_nonzero(columns)) - 2
        return cls(title, labels, table.ravel(), probs.ravel(), fitted)

    @property
    def samples(self) -> int:
        """Number of counts."""
        return int(self.counts.sum())

    @property
    def size(self) -> int:
        """Number of cells that the law can reach."""
        return int(np.count_nonzero(self.probs))

    def plus(self, other: Comparison) -> Comparison:
        """Counts of both; the law is one, or fitted anew."""
        if self.fitted or other.fitted:
            side = math.isqrt(len(self.counts))
            table = (self.counts + other.counts).reshape(side, side)
            return Comparison.of_independence(self.title, table)
        return replace(self, counts=self.counts + other.counts)

    def where(self, most: int = 3) -> str:
        """Name the cells that deviate most, impossible ones first."""
        expected = self.probs * self.samples
        impossible = (self.probs == 0) & (self.counts > 0)
        with np.errstate(divide="ignore", invalid="ignore"):
            pearson = np.abs(self.counts - expected) / np.sqrt(expected)
        score = np.where(impossible, np.inf, np.nan_to_num(pearson))
        worst = np.argsort(-score, kind="stable")[:most]
        return "; ".join(
            f"{self.labels[i]}: observed {self.counts[i] / self.samples:.4f} "
            f"({self.counts[i]}), expected {self.probs[i]:.4f} ({expected[i]:.0f})"
            for i in worst
            if score[i] > 0
        )

    def first_token(self) -> str:
        """Observed and due law of the first token of each outcome, in words."""
        first = [label.split(",")[0] for label in self.labels]
        tokens = sorted(set(first), key=int)
        member = np.array([[token == f for f in first] for token in tokens])
        seen = member @ self.counts / max(self.samples, 1)
        return f"{_vector(seen)}, due {_vector(member @ self.probs)}"

    def table(self, title: str = "") -> Table:
        """Write as evidence."""
        return Table(
            title=title or self.title,
            kind="law",
            labels=self.labels,
            observed=tuple(int(c) for c in self.counts),
            expected=tuple(float(e) for e in self.probs * self.samples),
        )


def _vector(values: FloatArray) -> str:
    return f"({', '.join(f'{value:.3f}' for value in values)})"
