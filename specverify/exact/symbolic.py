# SPDX-License-Identifier: Apache-2.0
"""Tensors whose elements are functions of random variables.

A symbolic tensor knows, for each element, on which variable it depends (`source`, -1 for
none), and how to compute all elements from values of the variables. Torch itself computes
them, so rounding is the subject's own. Its data are a sample, which gives shape, dtype and
device to whoever asks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NoReturn

import torch
from torch import Tensor

from specverify.exact.variables import Categorical, Interval, Space, Unfollowed

#: Values of variables: a float64 or int64 tensor for the numbers of a leaf.
Values = Callable[[Tensor], Tensor]
#: Computes a tensor from values of the variables.
Compute = Callable[[Values], Tensor]

_CONSTANT: Final = -1
_SEVERAL: Final = -2
#: Interior points at which a function is asked whether it is monotone.
_PROBES: Final = 7
_MOST_PIECES: Final = 4096


class Symbolic(torch.Tensor):
    """A tensor that depends on random variables; made by `symbolic`."""

    space: Space
    source: Tensor
    compute: Compute
    #: Whether torch would let it share memory with another tensor.
    shares: bool = False

    @property
    def continuous(self) -> bool:
        """Whether an element is a number as fine as a uniform, no draw and no step."""
        steps = not self.as_subclass(Tensor).is_floating_point()
        return not steps and any(
            not isinstance(self.space.variables[number], Categorical)
            for number in self.source.flatten().tolist()
            if number != _CONSTANT
        )

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> NoReturn:
        """Refuse whatever would compute with the sample, out of sight of the mode."""
        del func, types, kwargs
        reason = "a random number is used where it cannot be followed"
        for symbol in symbols_in(args):
            raise symbol.space.refuse(reason)
        raise Unfollowed(reason)


def symbolic(space: Space, source: Tensor, compute: Compute) -> Tensor:
    """Make a tensor from its dependence; a plain one where nothing is random.

    Parameters
    ----------
    space
        The variables.
    source
        int64, of the tensor's shape: the variable of each element, or -1.
    compute
        Gives the elements for values of the variables.
    """
    data = compute(partial(sample, space))
    if not bool((source != _CONSTANT).any()):
        return data
    return adopt(data.detach().clone(), space, source, compute)


def adopt(tensor: Tensor, space: Space, source: Tensor, compute: Compute) -> Tensor:
    """Turn a tensor that exists into a symbolic one: what in-place functions need."""
    tensor.__class__ = Symbolic
    assert isinstance(tensor, Symbolic)  # noqa: S101 - just made one
    tensor.space, tensor.compute = space, compute
    tensor.source = source.expand(tensor.shape) if source.ndim == 0 else source
    return tensor


def leaf(space: Space, numbers: Tensor, form: Callable[[Tensor], Tensor]) -> Tensor:
    """Make a tensor of fresh variables: `form` turns their values into elements."""
    return symbolic(space, numbers, lambda values: form(values(numbers)))


def plain(value: Any) -> Any:
    """The sample of a symbolic tensor, and anything else as it is."""
    return value.as_subclass(Tensor) if isinstance(value, Symbolic) else value


def is_shared(tensor: Tensor) -> bool:
    """Whether other tensors would see a change in place."""
    if isinstance(tensor, Symbolic):
        return tensor.shares
    storage = tensor.untyped_storage()
    if not storage.resizable():  # NumPy or another process owns it
        return True
    # One use is the tensor's own, one is `storage`.
    return int(torch._C._storage_Use_Count(storage._cdata)) > 2  # noqa: SLF001


def mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """Change every leaf of nested arguments; torch's own function is ten times slower."""
    if isinstance(value, (tuple, list)):
        return type(value)([mapped(item, change) for item in value])
    if isinstance(value, dict):
        return {key: mapped(item, change) for key, item in value.items()}
    if isinstance(value, slice):
        return slice(
            *(mapped(x, change) for x in (value.start, value.stop, value.step))
        )
    return change(value)


def symbols_in(value: Any) -> list[Symbolic]:
    """All symbolic tensors in nested tuples, lists and dicts."""
    if isinstance(value, Symbolic):
        return [value]
    if isinstance(value, (tuple, list)):
        return [symbol for item in value for symbol in symbols_in(item)]
    if isinstance(value, dict):
        return [symbol for item in value.values() for symbol in symbols_in(item)]
    if isinstance(value, slice):
        return symbols_in((value.start, value.stop, value.step))
    return []


def resolve(tensor: Tensor) -> Tensor:
    """Decide everything on which a tensor of whole numbers or truth values depends.

    Raises
    ------
    Unfollowed
        Elements that depend on several variables, or take too many values.
    """
    if not isinstance(tensor, Symbolic):
        return tensor
    space = tensor.space
    numbers = [n for n in tensor.source.flatten().tolist() if n != _CONSTANT]
    numbers = list(dict.fromkeys(numbers))
    if _SEVERAL in numbers:
        raise Unfollowed("a decision depends on two random numbers at once")
    uniforms = []
    for number in numbers:
        if isinstance(space.variables[number], Categorical):
            space.value(number)
        else:
            space.uniform(number)
            uniforms.append(number)
    if uniforms:
        _narrow(tensor, uniforms)
    return tensor.compute(partial(sample, space)).as_subclass(Tensor)


def _narrow(tensor: Symbolic, numbers: list[int]) -> None:
    """Narrow uniforms until the tensor is constant on what is left of them."""
    found: dict[int, list[Interval]] = {}

    def pieces(number: int) -> list[Interval]:
        if not found:
            found.update(_pieces(tensor, numbers))
        return found[number]

    for number in numbers:
        variable = tensor.space.uniform(number)
        if variable.high - variable.low > 1:
            tensor.space.narrow(number, lambda number=number: pieces(number))  # type: ignore[misc]


def _pieces(tensor: Symbolic, numbers: list[int]) -> dict[int, list[Interval]]:
    """Largest intervals of each uniform on which all its elements are constant."""
    search = _Search(tensor, numbers)
    starts = {number: [int(search.low[i])] for i, number in enumerate(numbers)}
    position, end = search.low.clone(), search.high - 1
    search.check_monotone()
    while True:
        change = search.next_change(position, end)
        moved = change <= end
        if not bool(moved.any()):
            break
        for i in moved.nonzero()[:, 0].tolist():
            starts[numbers[i]].append(int(change[i]))
        if max(len(s) for s in starts.values()) > _MOST_PIECES:
            raise Unfollowed(f"a random number takes more than {_MOST_PIECES} values")
        position = torch.where(moved, change, position)
        search.live = search.live & moved
    return {
        number: list(zip(s, [*s[1:], int(search.high[i])], strict=True))
        for i, (number, s) in enumerate(starts.items())
    }


@dataclass
class _Search:
    """Looks for the positions at which a tensor changes, for many uniforms at once."""

    tensor: Symbolic
    numbers: list[int]

    def __post_init__(self) -> None:
        space = self.tensor.space
        found = [space.uniform(number) for number in self.numbers]
        self.low = torch.tensor([variable.low for variable in found])
        self.high = torch.tensor([variable.high for variable in found])
        self.live = torch.ones(len(found), dtype=torch.bool)
        place = {number: i for i, number in enumerate(self.numbers)}
        flat = self.tensor.source.flatten().tolist()
        self.elements = torch.tensor([i for i, n in enumerate(flat) if n in place])
        self.owner = torch.tensor([place[n] for n in flat if n in place])
        self._leaves: dict[int, tuple[Tensor, Tensor, Tensor, Tensor]] = {}

    def at(self, positions: Tensor) -> Tensor:
        """Elements at positions of the uniforms: [elements]."""

        def values(asked: Tensor) -> Tensor:
            _, fixed, place, scale = self._leaf(asked)
            moved = positions[place].to(torch.float64) * scale
            return torch.where(scale > 0, moved, fixed)

        result = self.tensor.compute(values).flatten()
        return result[self.elements].to(torch.int64)

    def _leaf(self, asked: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """What never changes about a leaf: its sample, its places here, its grid."""
        if id(asked) not in self._leaves:
            place = {number: i for i, number in enumerate(self.numbers)}
            flat = asked.flatten().tolist()
            space = self.tensor.space
            grid = [2.0 ** -space.uniform(n).bits if n in place else 0.0 for n in flat]
            self._leaves[id(asked)] = (
                asked,  # kept, so that its identity is not used again
                sample(space, asked),
                torch.tensor([place.get(n, 0) for n in flat]).view(asked.shape),
                torch.tensor(grid, dtype=torch.float64).view(asked.shape),
            )
        return self._leaves[id(asked)]

    def _differs(self, a: Tensor, b: Tensor) -> Tensor:
        """Whether any element of each uniform differs: bool [numbers]."""
        counts = torch.zeros(len(self.numbers), dtype=torch.int64)
        counts.index_add_(0, self.owner, (a != b).long())
        return counts > 0

    def next_change(self, start: Tensor, end: Tensor) -> Tensor:
        """First position behind `start` with another value; ``end + 1`` for none."""
        value = self.at(start)
        same, other = start.clone(), end.clone()
        open_ = self.live & self._differs(value, self.at(end))
        result_none = ~open_
        while bool((open_ & (other - same > 1)).any()):
            middle = (same + other) // 2
            changed = self._differs(value, self.at(middle))
            other = torch.where(open_ & changed, middle, other)
            same = torch.where(open_ & ~changed, middle, same)
        return torch.where(result_none, end + 1, other)

    def check_monotone(self) -> None:
        """Refuse elements that go up and down again: bisection would miss that."""
        steps = torch.arange(_PROBES + 2)
        span = self.high - 1 - self.low
        points = [self.low + span * int(i) // (_PROBES + 1) for i in steps]
        rows = torch.stack([self.at(point) for point in points])
        rise = (rows.diff(dim=0) > 0).any(dim=0)
        fall = (rows.diff(dim=0) < 0).any(dim=0)
        if bool((rise & fall).any()):
            raise Unfollowed(
                "a random number is compared in a way that is not monotone"
            )


def sample(space: Space, numbers: Tensor, *, last: bool = False) -> Tensor:
    """Values of variables at the first or last place that is left of them: float64."""
    found = []
    for number in numbers.flatten().tolist():
        variable = space.variables[number]
        if isinstance(variable, Categorical):
            found.append(float(variable.value or 0))
        else:
            position = variable.high - 1 if last else variable.low
            found.append(position * 2.0**-variable.bits)
    return torch.tensor(found, dtype=torch.float64).view(numbers.shape)


def combine(sources: Iterable[Tensor], shape: torch.Size) -> Tensor:
    """Source of an element-wise function: that of its arguments, if they agree."""
    result = torch.full(shape, _CONSTANT)
    for source in sources:
        wide = source.broadcast_to(shape)
        clash = (result != _CONSTANT) & (wide != _CONSTANT) & (result != wide)
        result = torch.where(result == _CONSTANT, wide, result)
        result = torch.where(clash, _SEVERAL, result)
    return result
