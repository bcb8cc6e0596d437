# SPDX-License-Identifier: Apache-2.0
"""Walk through all branches of a function and add up the law of what it returns."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from specverify.exact.generators import Watch
from specverify.exact.numbers import SymbolicNumber
from specverify.exact.patches import intercepted
from specverify.exact.symbolic import Symbolic, resolve
from specverify.exact.variables import GivenUp, Space, Unfollowed

_MOST_BRANCHES: Final = 20_000
#: Repetitions of the first run, with and without random calls in it.
_REPEATS: Final = {True: 2, False: 7}


@dataclass(frozen=True)
class ExactLaw:
    """The law of what a function returns.

    Attributes
    ----------
    outcomes
        Probability of each outcome: tensors as nested tuples of numbers.
    branches
        Runs that it took.
    unfollowed
        Probability of the branches that a limit on runs or time cut off; 0 where the law
        is complete.
    """

    outcomes: Mapping[Hashable, Fraction]
    branches: int
    unfollowed: Fraction

    @property
    def complete(self) -> bool:
        """Whether every branch was followed."""
        return not self.unfollowed


def exact_law(
    fn: Callable[[], Any],
    *,
    max_branches: int = _MOST_BRANCHES,
    seconds: float = 60.0,
    generators: Sequence[torch.Generator] = (),
    seeds: Sequence[int] = (),
    repeat: bool = True,
) -> ExactLaw:
    """Compute the law of what a function returns, by following each of its branches.

    Parameters
    ----------
    fn
        Called without arguments, once for each branch; apart from random calls it must do
        the same each time. The first branch is run a few times more, to see whether it
        does.
    max_branches, seconds
        Limits; the probability that they cut off is reported, never dropped.
    generators
        Generators that `fn` may draw from. That no draw reached them, or a global one,
        shows that none was missed.
    seeds
        Seeds of which `fn` may make a generator of its own each.
    repeat
        Whether to run the first branch again; False where a like function has just been
        followed so.

    Returns
    -------
    ExactLaw
        Outcomes with their probabilities, as fractions: the arithmetic of the function is
        its own floating-point arithmetic, the weights are exact.

    Raises
    ------
    Unfollowed
        A random call, or a use of a random number, that cannot be followed.
    """
    started = time.monotonic()
    space = Space(deadline=started + seconds)
    watch = Watch(generators, seeds)
    law: dict[Hashable, Fraction] = {}
    branches, more = 0, True
    try:
        while more and branches < max_branches and time.monotonic() < space.deadline:
            for outcome in _run(fn, space, watch):
                if repeat and not branches:
                    _check_repetition(fn, space, watch, outcome)
                law[outcome] = law.get(outcome, Fraction(0)) + space.weight
            branches += 1
            more = space.advance()
    finally:
        watch.restore()
    return ExactLaw(law, branches, 1 - sum(law.values(), Fraction(0)))


def _run(fn: Callable[[], Any], space: Space, watch: Watch) -> list[Hashable]:
    """Outcome of the current path; none if it was given up."""
    space.restart()
    watch.start()
    try:
        with intercepted(space, watch):
            value = fn()
        with torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001 - as in a mode
            outcome = freeze(value)
    except GivenUp:
        return []
    except Exception as error:
        if space.refusal:  # it came of it
            raise Unfollowed(space.refusal) from error
        raise
    if space.given_up:
        return []
    if space.refusal:
        raise Unfollowed(space.refusal)
    watch.finish()
    space.check_repeated()
    return [outcome]


def _check_repetition(
    fn: Callable[[], Any], space: Space, watch: Watch, outcome: Hashable
) -> None:
    """Run the same path again: randomness that is not seen makes another outcome."""
    for _ in range(_REPEATS[space.branched]):
        if [repr(again) for again in _run(fn, space, watch)] != [repr(outcome)]:
            raise Unfollowed(
                "it repeats differently: it keeps a state, or draws from a generator "
                "that is not seen"
            )


def freeze(value: Any) -> Hashable:
    """Turn what a function returned into an outcome; decides what is left to decide."""
    if isinstance(value, SymbolicNumber) or (
        isinstance(value, Symbolic) and value.continuous
    ):
        raise Unfollowed("it returns random numbers themselves")
    if isinstance(value, Tensor):
        return _tuple(resolve(value).tolist())
    if isinstance(value, Mapping):
        return tuple((key, freeze(item)) for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return tuple(freeze(item) for item in value)
    if isinstance(value, np.ndarray):
        return _tuple(value.tolist())
    if not isinstance(value, Hashable):
        raise Unfollowed(
            f"it returns a {type(value).__name__}, which cannot be compared"
        )
    return value


def _tuple(value: Any) -> Hashable:
    return tuple(map(_tuple, value)) if isinstance(value, list) else value
