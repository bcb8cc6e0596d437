# SPDX-License-Identifier: Apache-2.0
"""Counts beside the law that they should follow."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import numpy as np

from specverify.evidence.records import Table
from specverify.inputs.cases import Case
from specverify.inputs.models import FloatArray, IntArray
from specverify.statistics.chisquare import ChiSquare, goodness_of_fit
from specverify.subjects.rig import Rig

#: Level at which the chi-square test is made for readers.
_FAMILIAR_LEVEL: Final = 0.01

#: Says how a case is counted, and beside which law.
Tabulate: TypeAlias = Callable[[Case], "Tabulation"]
#: Draws rows from a subject with a seed and counts them: int64 [cells].
Count: TypeAlias = Callable[[Rig, int, int], IntArray]


@dataclass(frozen=True, slots=True)
class Tabulation:
    """A way of counting what a subject emits on one case, and the law of the counts.

    Attributes
    ----------
    title
        What is counted.
    labels
        Name of each cell; tokens of an outcome are joined by commas.
    probs
        The law, float64 [cells], sums to 1. None where only independence is claimed:
        cells are then the pairs of two outcomes, row by row.
    count
        Draws and counts.
    alternatives
        Laws of known mistakes on the same cells, to bet on.
    draft
        Law of the drafts on the same cells.
    tolerance
        Total variation granted to the rounding of the inputs.
    """

    title: str
    labels: tuple[str, ...]
    probs: FloatArray | None
    count: Count
    draft: FloatArray | None = None
    alternatives: Mapping[str, FloatArray] = field(default_factory=dict)
    tolerance: float = 0.0

    @property
    def size(self) -> int:
        """Number of cells that the law can reach."""
        return (
            len(self.labels)
            if self.probs is None
            else int(np.count_nonzero(self.probs))
        )

    def beside(self, counts: IntArray) -> Comparison:
        """Put counts beside the law."""
        if self.probs is None:
            side = math.isqrt(len(counts))
            return Comparison.of_independence(
                self.title, self.labels, counts.reshape(side, side)
            )
        return Comparison(self.title, self.labels, counts, self.probs)


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
    def of_independence(
        cls, title: str, labels: tuple[str, ...], table: IntArray
    ) -> Comparison:
        """Put pairs beside the product of their own margins: int64 [cells, cells]."""
        rows, columns = table.sum(axis=1), table.sum(axis=0)
        probs = np.outer(rows, columns) / max(table.sum(), 1) ** 2
        fitted = int(np.count_nonzero(rows) + np.count_nonzero(columns)) - 2
        return cls(title, labels, table.ravel(), probs.ravel(), max(fitted, 1))

    @property
    def samples(self) -> int:
        """Number of counts."""
        return int(self.counts.sum())

    def test(self, level: float) -> ChiSquare:
        """Pearson's test of these counts, pooled for use at `level`."""
        return goodness_of_fit(self.counts, self.probs, level=level, fitted=self.fitted)

    def beside(self) -> ChiSquare:
        """Pearson's test as readers know it, expecting 5 counts in a cell.

        For reading beside an e-value: so far in the tail its p-value is approximate.
        """
        return self.test(_FAMILIAR_LEVEL)

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
            # Short in files, and never rounded to 0, which would make a cell impossible.
            expected=tuple(float(f"{e:.12g}") for e in self.probs * self.samples),
        )


def _vector(values: FloatArray) -> str:
    return f"({', '.join(f'{value:.3f}' for value in values)})"
