# SPDX-License-Identifier: Apache-2.0
"""Walk through all branches of a function and add up the law of what it returns."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from specverify.exact.interception import intercepted
from specverify.exact.symbolic import Symbolic, resolve
from specverify.exact.variables import Space, Unfollowed

_MOST_BRANCHES: Final = 20_000


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
) -> ExactLaw:
    """Compute the law of what a function returns, by following each of its branches.

    Parameters
    ----------
    fn
        Called without arguments, once for each branch; apart from random calls it must do
        the same each time.
    max_branches, seconds
        Limits; the probability that they cut off is reported, never dropped.
    generators
        Generators that `fn` may draw from. That no draw reached them, or a global one,
        shows that none was missed.

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
    space, started = Space(), time.monotonic()
    law: dict[Hashable, Fraction] = {}
    before, branches, more = _states(generators), 0, True
    while more and branches < max_branches and time.monotonic() - started < seconds:
        space.restart()
        with intercepted(space):
            outcome = freeze(fn())
        law[outcome] = law.get(outcome, Fraction(0)) + space.weight
        branches += 1
        more = space.advance()
    if not _equal(before, _states(generators)):
        raise Unfollowed(
            "it drew from a generator, or seeded one, in a way not followed"
        )
    return ExactLaw(law, branches, 1 - sum(law.values(), Fraction(0)))


def freeze(value: Any) -> Hashable:
    """Turn what a function returned into an outcome; decides what is left to decide."""
    if isinstance(value, Symbolic) and value.continuous:
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


def _states(generators: Sequence[torch.Generator]) -> list[Any]:
    numpy_state = np.random.get_state()  # noqa: NPY002 - the global one is watched
    return [
        torch.random.get_rng_state(),
        *(generator.get_state() for generator in generators),
        (numpy_state[1].tobytes(), numpy_state[2]),  # type: ignore[index]
        random.getstate(),
    ]


def _equal(before: list[Any], after: list[Any]) -> bool:
    return all(
        torch.equal(a, b) if isinstance(a, Tensor) else a == b
        for a, b in zip(before, after, strict=True)
    )
