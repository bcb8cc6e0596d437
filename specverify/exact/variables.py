# SPDX-License-Identifier: Apache-2.0
"""Random variables of a run, and the branch of the run that is being followed.

A uniform is an interval of whole numbers, positions on the grid of its floating-point
type; a decision about it narrows the interval. A draw from finitely many outcomes is a
categorical variable, decided when its value is needed. The decisions so far are the path of
a run, and the space walks through all paths, depth first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

#: First and last-but-one position: ``low <= position < high``.
Interval = tuple[int, int]


class Unfollowed(Exception):  # noqa: N818 - says what happened, is often expected
    """A use of randomness that cannot be followed exactly; the message is the reason."""


@dataclass
class Uniform:
    """A number on a grid of ``2**bits`` positions.

    Attributes
    ----------
    bits
        Digits of the grid.
    low, high
        Interval that the decisions so far have left.
    """

    bits: int
    low: int
    high: int

    @property
    def whole(self) -> bool:
        """Whether no decision has narrowed it."""
        return self.low == 0 and self.high == 1 << self.bits


@dataclass
class Categorical:
    """A draw from finitely many outcomes.

    Attributes
    ----------
    weights
        Of the outcomes 0, 1, ..., unnormalised.
    noise
        Variables that were raced for it; two different races must not share any.
    value
        The outcome, once it is decided.
    """

    weights: tuple[Fraction, ...]
    noise: frozenset[int] = frozenset()
    value: int | None = None


@dataclass
class _Node:
    """A decision on the current path: its options' weights, and the one taken."""

    weights: list[Fraction]
    options: list[object]
    taken: int = 0


@dataclass
class Space:
    """Variables of one run and the decisions that led it.

    Attributes
    ----------
    variables
        By number, in the order in which the run made them.
    weight
        Probability of the path so far.
    """

    variables: list[Uniform | Categorical] = field(default_factory=list)
    weight: Fraction = Fraction(1)
    _path: list[_Node] = field(default_factory=list)
    _depth: int = 0
    _raced: dict[int, tuple[Fraction, ...]] = field(default_factory=dict)

    def restart(self) -> None:
        """Begin the next run, along the current path."""
        self.variables, self.weight = [], Fraction(1)
        self._depth, self._raced = 0, {}

    def advance(self) -> bool:
        """Move to the next path; False where all have been walked."""
        if self._depth != len(self._path):
            raise Unfollowed(
                "it repeats differently: a decision was not asked for again"
            )
        while self._path:
            node = self._path[-1]
            node.taken += 1
            if node.taken < len(node.options):
                return True
            self._path.pop()
        return False

    def uniforms(self, count: int, bits: int) -> int:
        """Make new uniforms; returns the number of the first."""
        first = len(self.variables)
        self.variables += [Uniform(bits, 0, 1 << bits) for _ in range(count)]
        return first

    def categorical(
        self, weights: Sequence[Fraction], noise: frozenset[int] = frozenset()
    ) -> int:
        """Make a draw from finitely many outcomes; returns its number."""
        self.variables.append(Categorical(tuple(weights), noise))
        return len(self.variables) - 1

    def decide(self, options: Callable[[], list[tuple[object, Fraction]]]) -> object:
        """Take a branch: the one on the current path, or the first where it ends.

        `options` is asked only for a new decision. A single option is no decision.
        """
        if self._depth == len(self._path):
            found = [(option, weight) for option, weight in options() if weight]
            if not found:
                raise Unfollowed("a draw has no possible outcome")
            total = sum((weight for _, weight in found), Fraction(0))
            weights = [weight / total for _, weight in found]
            self._path.append(_Node(weights, [option for option, _ in found]))
        node = self._path[self._depth]
        self._depth += 1
        self.weight *= node.weights[node.taken]
        return node.options[node.taken]

    @property
    def replaying(self) -> bool:
        """Whether the next decision has been taken in an earlier run."""
        return self._depth < len(self._path)

    def value(self, number: int) -> int:
        """Decide a categorical variable, once."""
        variable = self.variables[number]
        assert isinstance(variable, Categorical)  # noqa: S101 - uniforms are narrowed
        if variable.value is None:
            self._claim(variable)
            chosen = self.decide(lambda: list(enumerate(variable.weights)))
            assert isinstance(chosen, int)  # noqa: S101 - options are outcomes
            variable.value = chosen
        return variable.value

    def narrow(self, number: int, pieces: Callable[[], list[Interval]]) -> None:
        """Decide in which of some pieces of its interval a uniform lies."""
        variable = self.uniform(number)
        piece = self.decide(
            lambda: [((low, high), Fraction(high - low)) for low, high in pieces()]
        )
        variable.low, variable.high = piece  # type: ignore[misc]

    def uniform(self, number: int) -> Uniform:
        """A uniform that has not been used up in a race."""
        variable = self.variables[number]
        assert isinstance(variable, Uniform)  # noqa: S101 - categoricals have values
        if number in self._raced:
            raise Unfollowed("noise of a race is used again")
        return variable

    def _claim(self, variable: Categorical) -> None:
        for number in variable.noise:
            if self._raced.get(number, variable.weights) != variable.weights:
                raise Unfollowed("two different races are run on the same noise")
            noise = self.variables[number]
            if isinstance(noise, Uniform) and not noise.whole:
                raise Unfollowed("noise of a race has been compared before")
            self._raced[number] = variable.weights


def exact_weights(values: Sequence[float]) -> list[Fraction]:
    """Weights of a draw as fractions; refuses what is no weight."""
    if any(not math.isfinite(value) or value < 0 for value in values):
        raise Unfollowed(f"weights of a draw are {list(values)[:8]}")
    return [Fraction(value) for value in values]
