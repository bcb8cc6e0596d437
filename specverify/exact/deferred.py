# SPDX-License-Identifier: Apache-2.0
"""Calls of torch that are made again for other values of the variables."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from specverify.exact.symbolic import Compute, Symbolic, Values, mapped

Function = Callable[..., Any]
Args = tuple[Any, ...]
Named = dict[str, Any]


@dataclass(frozen=True)
class _Link:
    """A symbolic argument as it was when it was used: it may be changed in place later."""

    compute: Compute


def _frozen(value: Any) -> Any:
    """Arguments as they are now."""

    def freeze(leaf: Any) -> Any:
        if isinstance(leaf, Symbolic):
            return _Link(leaf.compute)
        return leaf.clone() if isinstance(leaf, Tensor) else leaf

    return mapped(value, freeze)


def _computed(value: Any, values: Values) -> Any:
    """Frozen arguments for values of the variables."""
    return mapped(
        value, lambda leaf: leaf.compute(values) if isinstance(leaf, _Link) else leaf
    )


def call(func: Function, args: Args, kwargs: Named) -> Compute:
    """A torch function of arguments as they are now, for values of the variables."""
    args, kwargs = _frozen(args), _frozen(kwargs)
    links = [i for i, arg in enumerate(args) if isinstance(arg, _Link)]
    nested = kwargs or any(isinstance(arg, (tuple, list)) for arg in args)

    def compute_flat(values: Values) -> Tensor:
        given = list(args)
        for i in links:
            given[i] = args[i].compute(values)
        result: Tensor = func(*given)
        return result

    def compute(values: Values) -> Tensor:
        result: Tensor = func(*_computed(args, values), **_computed(kwargs, values))
        return result

    return compute if nested else compute_flat
