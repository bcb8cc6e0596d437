# SPDX-License-Identifier: Apache-2.0
"""The exact law of code that takes its uniforms as an argument, kernels included.

Nothing is intercepted: the function is called with uniforms of our choice, many rows at a
time, so that one call of a GPU kernel answers thousands of questions. Two constructions:

`midpoints`
    A grid of uniforms in the middle of equal strata, as fine as the denominators of all
    thresholds ask: no threshold lies near a point, so float32 arithmetic cannot move one
    across, and the share of rows is the exact law.
`box_law`
    Finds the thresholds instead of knowing them: scans each coordinate, bisects to the grid
    of the uniforms, checks on random lines that nothing changes between thresholds, and
    evaluates one point in every box. What is narrower than a scan sees and the lines meet
    by chance only, can be missed. For functions whose outcomes fill axis-parallel boxes, as
    those of accept/reject rules and of inverse distribution functions do.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Final

import numpy as np
from numpy.typing import NDArray

from specverify.exact.variables import Unfollowed
from specverify.inputs.cases import Case
from specverify.inputs.models import IntArray
from specverify.laws import steps
from specverify.laws.distributions import Prefix, residual

#: Outcome numbers of rows with uniforms at grid positions: int64 [rows], [rows, dims].
Outcomes = Callable[[IntArray, IntArray], IntArray]

_SCAN: Final = 33
_LEVELS: Final = (0.02, 0.5, 0.98)
_LINES: Final = 128
_ROUNDS: Final = 6
_MOST_EDGES: Final = 500
_MOST_BOXES: Final = 2_000_000


@dataclass(frozen=True)
class Row:
    """One row of a stratified grid: drafts, uniforms, and its share of the law."""

    drafts: Prefix
    uniforms: tuple[Fraction, ...]
    weight: Fraction


def midpoints(case: Case, *, bonus: bool = True) -> Iterator[Row]:
    """Rows that show the exact law of token-level verification of one chain.

    Test uniforms are midpoints of as many strata as the common denominator of the ratios
    p/q at their position, the last one of as many as that of all residual and bonus rows.
    Weight of each row: that of its drafts, divided by the number of grid points.

    Parameters
    ----------
    case
        A chain; the number of rows grows as a product over positions, to millions from
        k = 2 on, where `box_law` needs thousands.
    bonus
        False leaves the bonus row out of the last denominator: 1,428 rows in place of
        45,696 on witness W, exact for everything but the bonus token.

    Yields
    ------
    Row
        Uniforms in the order of the contract: k tests, then the recovered or bonus token.
    """
    for drafts, weight in steps.autoregressive_law(case.draft, case.k).items():
        sides = [_test_strata(case, drafts[:i]) for i in range(case.k)]
        sides.append(_token_strata(case, drafts, bonus=bonus))
        share = Fraction(weight) / math.prod(sides)
        for place in itertools.product(*map(range, sides)):
            uniforms = (
                Fraction(2 * i + 1, 2 * n) for i, n in zip(place, sides, strict=True)
            )
            yield Row(drafts, tuple(uniforms), share)


def _test_strata(case: Case, prefix: Prefix) -> int:
    p, q = case.due(prefix), case.draft(prefix)
    ratios = [Fraction(a) / Fraction(b) for a, b in zip(p, q, strict=True) if b]
    return math.lcm(*(ratio.denominator for ratio in ratios if ratio < 1), 1)


def _token_strata(case: Case, drafts: Prefix, *, bonus: bool) -> int:
    rows = [
        residual(case.due(drafts[:i]), case.draft(drafts[:i])) for i in range(case.k)
    ]
    if bonus:
        rows.append(list(case.due(drafts)))
    sums = (itertools.accumulate(Fraction(x) for x in row) for row in rows if any(row))
    return math.lcm(*(total.denominator for row in sums for total in row), 1)


# --- thresholds that are found --------------------------------------------------------


def box_law(
    outcomes: Outcomes,
    *,
    groups: int,
    dims: int,
    bits: int = 24,
    seed: int = 0,
) -> list[dict[int, Fraction]]:
    """Law of an outcome under independent uniforms, for several groups of rows at once.

    Parameters
    ----------
    outcomes
        Gives the outcome of rows: their groups (what else is put in, the drafts) and their
        uniforms as positions on the grid.
    groups, dims
        Number of groups; number of uniforms of a row.
    bits
        Digits of the grid of the uniforms.
    seed
        Of the random lines that check the result.

    Returns
    -------
    list
        For each group the probability of each outcome, exact on the grid.

    Raises
    ------
    Unfollowed
        The regions of the outcomes are no boxes, or too many.
    """
    search = _Boxes(outcomes, groups, dims, bits, np.random.default_rng(seed))
    search.scan()
    for _ in range(_ROUNDS):
        if not search.check():
            return [search.law(group) for group in range(groups)]
        if search.most_edges > _MOST_EDGES:
            break
    msg = "the outcomes do not fill boxes of its uniforms"
    raise Unfollowed(msg)


@dataclass
class _Boxes:
    """Thresholds found so far, for each group and uniform."""

    outcomes: Outcomes
    groups: int
    dims: int
    bits: int
    rng: np.random.Generator
    edges: list[list[set[int]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.size = 1 << self.bits
        self.edges = [[set() for _ in range(self.dims)] for _ in range(self.groups)]

    def scan(self) -> None:
        """Walk along each coordinate, the others at a few levels, and bisect changes."""
        levels = [int(level * self.size) for level in _LEVELS]
        steps_ = np.linspace(0, self.size - 1, _SCAN).astype(np.int64)
        for dim in range(self.dims):
            others = list(itertools.product(levels, repeat=self.dims - 1))
            base = np.array(others, np.int64).reshape(len(others), self.dims - 1)
            lines = np.insert(base, dim, 0, axis=1)  # [lines, dims]
            group = np.repeat(np.arange(self.groups), len(lines) * _SCAN)
            points = np.tile(np.repeat(lines, _SCAN, axis=0), (self.groups, 1))
            points[:, dim] = np.tile(steps_, self.groups * len(lines))
            found = self.outcomes(group, points).reshape(-1, _SCAN)
            row, place = np.nonzero(found[:, 1:] != found[:, :-1])
            first = row * _SCAN + place
            self._bisect(group[first], points[first], points[first + 1])

    def _bisect(self, group: IntArray, low: IntArray, high: IntArray) -> None:
        """Find a threshold between pairs of points that differ in one coordinate."""
        if not len(group):
            return
        low, high = low.copy(), high.copy()
        start = self.outcomes(group, low)
        dim = (low != high).argmax(axis=1)
        rows = np.arange(len(group))
        while (high - low).max() > 1:
            middle = (low + high) // 2
            same = self.outcomes(group, middle) == start
            low = np.where(same[:, None], middle, low)
            high = np.where(same[:, None], high, middle)
        for g, d, edge in zip(group, dim, high[rows, dim], strict=True):
            self.edges[g][d].add(int(edge))

    def check(self) -> bool:
        """Walk along random lines; add thresholds where something changes between two."""
        changed = False
        for dim in range(self.dims):
            group, low, high = self._lines(dim)
            order = self.rng.permutation(len(low))  # a row's place must not matter
            other = np.empty(len(low), np.int64)
            other[order] = self.outcomes(group[order], high[order])
            moved = self.outcomes(group, low) != other
            self._bisect(group[moved], low[moved], high[moved])
            changed |= bool(moved.any())
        return changed

    @property
    def most_edges(self) -> int:
        """Largest number of thresholds of one uniform."""
        return max(len(edges) for sides in self.edges for edges in sides)

    def _lines(self, dim: int) -> tuple[IntArray, IntArray, IntArray]:
        """Groups, and both ends of every interval between thresholds on random lines."""
        parts = []
        for g in range(self.groups):
            sides = np.array(self._sides(g, dim))
            lines = self.rng.integers(0, self.size, (_LINES, self.dims))
            low = np.repeat(lines, len(sides) - 1, axis=0)
            high = low.copy()
            low[:, dim] = np.tile(sides[:-1], _LINES)
            high[:, dim] = np.tile(sides[1:] - 1, _LINES)
            parts.append((np.full(len(low), g), low, high))
        group, low, high = map(np.concatenate, zip(*parts, strict=True))
        return group, low, high

    def _sides(self, group: int, dim: int) -> list[int]:
        return [0, *sorted(self.edges[group][dim]), self.size]

    def law(self, group: int) -> dict[int, Fraction]:
        """Add up the boxes of a group by their outcome."""
        sides = [self._sides(group, dim) for dim in range(self.dims)]
        if math.prod(len(side) - 1 for side in sides) > _MOST_BOXES:
            raise Unfollowed(f"more than {_MOST_BOXES} boxes of its uniforms")
        middles = [[(a + b) // 2 for a, b in itertools.pairwise(s)] for s in sides]
        widths = [[b - a for a, b in itertools.pairwise(s)] for s in sides]
        points: NDArray[np.int64] = np.array(
            list(itertools.product(*middles)), np.int64
        ).reshape(-1, self.dims)
        found = self.outcomes(np.full(len(points), group), points)
        law: dict[int, Fraction] = {}
        whole = self.size**self.dims
        for outcome, box in zip(found, itertools.product(*widths), strict=True):
            mass = Fraction(math.prod(box), whole)
            law[int(outcome)] = law.get(int(outcome), Fraction(0)) + mass
        return law
