# SPDX-License-Identifier: Apache-2.0
"""Random variables of a run, and the branch of the run that is being followed.

A uniform is an interval of whole numbers, positions on the grid of its floating-point
type; a decision about it narrows the interval. A draw from finitely many outcomes is a
categorical variable, decided when its value is needed. The decisions so far are the path of
a run, and the space walks through all paths, depth first.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Final

#: First and last-but-one position: ``low <= position < high``.
Interval = tuple[int, int]
#: A path of a smaller probability is given up: a loop may go on for ever.
_LEAST_WEIGHT: Final = Fraction(1, 2**100)
_REPEATS: Final = "it repeats differently: called again, it makes other decisions"


#: One run of so many is watched for compiled code.
_ON_GUARD: Final = 8


class Unfollowed(Exception):  # noqa: N818 - says what happened, is often expected
    """A use of randomness that cannot be followed exactly; the message is the reason."""


class GivenUp(BaseException):
    """Ends a run whose probability or time is too small; no subject may catch it."""


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
        Variables that were raced for it, -1 for a constant; two different races must not
        share any.
    value
        The outcome, once it is decided.
    """

    weights: tuple[Fraction, ...]
    noise: tuple[int, ...] = ()
    value: int | None = None


@dataclass
class _Node:
    """A decision on the current path: its options' weights, and the one taken.

    The subject asks for it: `asked` is the variable, counted from the start of the run.
    """

    asked: int
    weights: list[Fraction]
    options: list[object]
    taken: int = 0


class _Variables(dict[int, "Uniform | Categorical"]):
    """Variables of one run by number; no number is used in two runs."""

    def __missing__(self, number: int) -> Uniform | Categorical:
        if number < 0:
            raise Unfollowed("a decision depends on two random numbers at once")
        raise Unfollowed("a random number of an earlier call is used again")


@dataclass
class Space:
    """Variables of one run and the decisions that led it.

    Attributes
    ----------
    variables
        By number, in the order in which the run made them.
    weight
        Probability of the path so far.
    deadline
        When to give up, by `time.monotonic`.
    refusal
        Why the run cannot be followed, whatever the subject does with the exception.
    given_up
        Whether the run was given up.
    """

    variables: _Variables = field(default_factory=_Variables)
    weight: Fraction = Fraction(1)
    deadline: float = math.inf
    refusal: str = ""
    given_up: bool = False
    _path: list[_Node] = field(default_factory=list)
    _depth: int = 0
    _raced: dict[int, Categorical] = field(default_factory=dict)
    _races: dict[tuple[int, ...], int] = field(default_factory=dict)
    _first: int = 0
    _made: int = 0
    _runs: int = 0

    @property
    def on_guard(self) -> bool:
        """Whether this run is watched for compiled code: the first, then some.

        Watching takes as long as the run itself.
        """
        return self._runs % _ON_GUARD == 1

    def restart(self) -> None:
        """Begin the next run, along the current path."""
        self._runs += 1
        self.variables, self.weight = _Variables(), Fraction(1)
        self._depth, self._raced, self._races = 0, {}, {}
        self._first, self.refusal, self.given_up = self._made, "", False

    def refuse(self, reason: str) -> Unfollowed:
        """An exception to raise, the reason of which is remembered."""
        self.refusal = self.refusal or reason
        return Unfollowed(reason)

    @property
    def branched(self) -> bool:
        """Whether the run has made a decision."""
        return self._depth > 0

    def check_repeated(self) -> None:
        """Refuse a run that did not ask for every decision of its path again."""
        if self._depth != len(self._path):
            raise Unfollowed(_REPEATS)

    def advance(self) -> bool:
        """Move to the next path; False where all have been walked."""
        while self._path:
            node = self._path[-1]
            node.taken += 1
            if node.taken < len(node.options):
                return True
            self._path.pop()
        return False

    def uniforms(self, count: int, bits: int) -> int:
        """Make new uniforms; returns the number of the first."""
        first = self._made
        for _ in range(count):
            self._add(Uniform(bits, 0, 1 << bits))
        return first

    def _add(self, variable: Uniform | Categorical) -> int:
        self.variables[self._made] = variable
        self._made += 1
        return self._made - 1

    def categorical(
        self, weights: Sequence[Fraction], noise: tuple[int, ...] = ()
    ) -> int:
        """Make a draw from finitely many outcomes; returns its number.

        The same race on the same noise is the same draw.
        """
        made = Categorical(tuple(weights), noise)
        if noise in self._races:
            again = self.variables[self._races[noise]]
            if isinstance(again, Categorical) and again.weights == made.weights:
                return self._races[noise]
        number = self._add(made)
        if noise:
            self._races[noise] = number
        return number

    def decide(
        self, number: int, options: Callable[[], list[tuple[object, Fraction]]]
    ) -> object:
        """Take a branch: the one on the current path, or the first where it ends.

        `options` is asked only for a new decision about the variable `number`.
        """
        if self.weight < _LEAST_WEIGHT or time.monotonic() > self.deadline:
            self.given_up = True
            raise GivenUp
        asked = number - self._first
        if self._depth == len(self._path):
            found = [(option, weight) for option, weight in options() if weight]
            if not found:
                raise Unfollowed("a draw has no possible outcome")
            total = sum((weight for _, weight in found), Fraction(0))
            weights = [weight / total for _, weight in found]
            self._path.append(_Node(asked, weights, [option for option, _ in found]))
        node = self._path[self._depth]
        if node.asked != asked:
            raise Unfollowed(_REPEATS)
        self._depth += 1
        self.weight *= node.weights[node.taken]
        return node.options[node.taken]

    def value(self, number: int) -> int:
        """Decide a categorical variable, once."""
        variable = self.variables[number]
        assert isinstance(variable, Categorical)  # noqa: S101 - uniforms are narrowed
        if variable.value is None:
            self._claim(variable)
            chosen = self.decide(number, lambda: list(enumerate(variable.weights)))
            assert isinstance(chosen, int)  # noqa: S101 - options are outcomes
            variable.value = chosen
        return variable.value

    def narrow(self, number: int, pieces: Callable[[], list[Interval]]) -> None:
        """Decide in which of some pieces of its interval a uniform lies."""
        variable = self.uniform(number)
        piece = self.decide(
            number,
            lambda: [((low, high), Fraction(high - low)) for low, high in pieces()],
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
            if number < 0:
                continue
            if self._raced.get(number, variable) is not variable:
                raise Unfollowed("two different races are run on the same noise")
            noise = self.variables[number]
            if isinstance(noise, Uniform) and not noise.whole:
                raise Unfollowed("noise of a race has been compared before")
            self._raced[number] = variable


def exact_weights(values: Sequence[float]) -> list[Fraction]:
    """Weights of a draw as fractions; refuses what is no weight."""
    if any(not math.isfinite(value) or value < 0 for value in values):
        raise Unfollowed(f"weights of a draw are {list(values)[:8]}")
    return [Fraction(value) for value in values]
