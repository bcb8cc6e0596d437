# SPDX-License-Identifier: Apache-2.0
"""A random Python number: arithmetic goes on, a comparison branches."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from specverify.exact.symbolic import Symbolic
from specverify.exact.variables import Unfollowed


class SymbolicNumber:
    """What ``item()`` of a random element gives; not a `float`, which could not branch.

    Parameters
    ----------
    tensor
        float64, of no dimension.
    """

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor

    def __float__(self) -> float:
        """Refuse: whoever asks for the number itself leaves what can be followed."""
        if isinstance(self.tensor, Symbolic):
            raise Unfollowed("a random number is read as a Python float")
        return float(self.tensor)

    def __int__(self) -> int:
        return int(self.tensor.floor())

    def __neg__(self) -> SymbolicNumber:
        return SymbolicNumber(-self.tensor)

    def __bool__(self) -> bool:
        return bool(self.tensor != 0)


def _plain(value: Any) -> Any:
    return value.tensor if isinstance(value, SymbolicNumber) else value


def _arithmetic(name: str) -> Any:
    def method(self: SymbolicNumber, other: Any) -> SymbolicNumber:
        result = getattr(self.tensor, name)(_plain(other))
        return result if result is NotImplemented else SymbolicNumber(result)

    return method


def _comparison(name: str) -> Any:
    def method(self: SymbolicNumber, other: Any) -> bool:
        return bool(getattr(self.tensor, name)(_plain(other)))

    return method


for _name in ("add", "sub", "mul", "truediv", "pow"):
    for _form in (f"__{_name}__", f"__r{_name}__"):
        setattr(SymbolicNumber, _form, _arithmetic(_form))
for _name in ("lt", "le", "gt", "ge", "eq", "ne"):
    setattr(SymbolicNumber, f"__{_name}__", _comparison(f"__{_name}__"))
