# SPDX-License-Identifier: Apache-2.0
"""Keep every random number a monotone function of its variable.

Bisection finds the one place at which a monotone function passes a threshold; of another
function it would miss some, in silence. A sum, quotient or power that need not be monotone
is split into branches in which it is, or refused.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from specverify.exact.functions import DIVIDED, DIVIDES, POWERS, SEARCHES
from specverify.exact.symbolic import Symbolic, resolve, sample, symbolic
from specverify.exact.variables import Unfollowed


def split(name: str, args: tuple[Any, ...]) -> None:
    """Branch until an element-wise function is monotone in each of its arguments.

    Raises
    ------
    Unfollowed
        Where that takes more than to know a sign.
    """
    if name in DIVIDES:
        _decide(args[1], torch.signbit)
    elif name in DIVIDED:
        _decide(args[0], torch.signbit)
    elif name in POWERS:
        _decide(args[0], torch.signbit)
        if isinstance(args[1], Symbolic) and _may_be_negative(args[0]):
            raise Unfollowed("a negative number is raised to a random power")
    elif name == "rpow" and _may_be_negative(args[1]):
        raise Unfollowed("a negative number is raised to a random power")
    elif name in SEARCHES:
        _check_sorted(args[1] if name == "bucketize" else args[0])


def split_nan(symbols: list[Symbolic]) -> None:
    """Branch until each argument of a comparison is NaN everywhere or nowhere."""
    for symbol in symbols:
        _decide(symbol, torch.isnan)


def check_range(symbol: Symbolic, dtype: torch.dtype) -> None:
    """Refuse a cast to whole numbers that would wrap around."""
    limits = torch.iinfo(dtype)
    for end in _ends(symbol):
        whole = end.to(torch.float64)
        if not bool(((whole >= limits.min) & (whole <= limits.max)).all()):
            raise Unfollowed(f"a random number is cast to {dtype} and overflows")


def _may_be_negative(base: Any) -> bool:
    if isinstance(base, Symbolic):
        return any(bool((end < 0).any()) for end in _ends(base))
    return bool((torch.as_tensor(base) < 0).any())


def _check_sorted(sequence: Any) -> None:
    if isinstance(sequence, Symbolic):
        raise Unfollowed("a search among random numbers")
    if not bool((sequence.diff(dim=-1) >= 0).all()):
        raise Unfollowed("a search for a random number in numbers that are not sorted")


def _decide(value: Any, question: Callable[[Tensor], Tensor]) -> None:
    """Decide a truth value of a number, where it is not the same at both ends."""
    if not isinstance(value, Symbolic):
        return
    low, high = _ends(value)
    if not torch.equal(question(low), question(high)):
        compute = value.compute
        asked = symbolic(value.space, value.source, lambda v: question(compute(v)))
        resolve(asked)


def _ends(symbol: Symbolic) -> tuple[Tensor, Tensor]:
    """Elements at both ends of what the decisions have left of the variables."""
    low = symbol.compute(partial(sample, symbol.space))
    high = symbol.compute(partial(sample, symbol.space, last=True))
    return low, high
