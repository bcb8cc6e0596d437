# SPDX-License-Identifier: Apache-2.0
"""A random Python number: arithmetic goes on, a comparison branches."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from specverify.exact.symbolic import Symbolic


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
            raise self.tensor.space.refuse("a random number is read as a Python float")
        return float(self.tensor)

    def __repr__(self) -> str:
        return repr(float(self))

    def __hash__(self) -> int:
        return hash(float(self))

    def __int__(self) -> int:
        return int(self.tensor.long())

    def __floor__(self) -> int:
        return int(self.tensor.floor().long())

    def __neg__(self) -> SymbolicNumber:
        return SymbolicNumber(-self.tensor)

    def __bool__(self) -> bool:
        return bool(self.tensor != 0)


def _plain(value: Any) -> Any:
    return value.tensor if isinstance(value, SymbolicNumber) else value


def _arithmetic(name: str) -> Any:
    def method(self: SymbolicNumber, other: Any) -> Any:
        result = getattr(self.tensor, name)(_plain(other))
        if result is NotImplemented or isinstance(other, Tensor):
            return result
        return SymbolicNumber(result)

    return method


def _comparison(name: str) -> Any:
    def method(self: SymbolicNumber, other: Any) -> Any:
        result = getattr(self.tensor, name)(_plain(other))
        if result is NotImplemented or isinstance(other, Tensor):
            return result
        return bool(result)

    return method


for _name in ("add", "sub", "mul", "truediv", "pow"):
    for _form in (f"__{_name}__", f"__r{_name}__"):
        setattr(SymbolicNumber, _form, _arithmetic(_form))
for _name in ("lt", "le", "gt", "ge", "eq", "ne"):
    setattr(SymbolicNumber, f"__{_name}__", _comparison(f"__{_name}__"))
