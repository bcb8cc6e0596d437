# SPDX-License-Identifier: Apache-2.0
"""What torch functions do to symbolic tensors."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

from specverify.exact.deferred import call
from specverify.exact.functions import (
    CASTS,
    COMPARISONS,
    COPIES,
    ELEMENTWISE,
    IN_PLACE,
    JOINS,
    METADATA,
    MOVES,
    READS,
    SEARCHES,
    name_of,
)
from specverify.exact.monotone import check_range, split, split_nan
from specverify.exact.numbers import SymbolicNumber
from specverify.exact.races import race
from specverify.exact.symbolic import (
    Symbolic,
    Values,
    adopt,
    combine,
    is_shared,
    mapped,
    plain,
    resolve,
    symbolic,
    symbols_in,
)
from specverify.exact.variables import Unfollowed

Function = Callable[..., Any]
Args = tuple[Any, ...]
Named = dict[str, Any]


def apply(func: Function, args: Args, kwargs: Named) -> Any:
    """Call a torch function some of whose arguments are symbolic.

    Raises
    ------
    Unfollowed
        A function whose effect on random numbers is not known here.
    """
    name = name_of(func)
    args, kwargs = _positional(args, kwargs)
    if kwargs.get("out") is not None:
        return _out(kwargs.pop("out"), apply(func, args, kwargs))
    inner = name[:-1] if name.endswith("_") else IN_PLACE.get(name, "")
    if inner in ELEMENTWISE or inner == "copy":
        return _in_place(inner, args, kwargs)
    symbols = symbols_in((args, kwargs))
    continuous = any(symbol.continuous for symbol in symbols)
    if continuous or len(symbols) == 1 or name not in ELEMENTWISE | COMPARISONS:
        for names, answer in _ANSWERS:
            if name in names:
                return answer(func, args, kwargs)
    if continuous:
        raise Unfollowed(f"torch.{name} of random numbers is not followed")
    # Whole numbers and truth values are decided, and torch goes on with what they are.
    changes = inner or name in IN_PLACE or name == "set"
    if changes and isinstance(args[0], Symbolic):
        fill(args[0], resolve(args[0]))  # no copy of it: the target itself must change
        return func(args[0], *_decided(args[1:]), **_decided(kwargs))
    return func(*_decided(args), **_decided(kwargs))


def _positional(args: Args, kwargs: Named) -> tuple[Args, Named]:
    """Arguments with the leading ones, which torch lets one name, in their places."""
    kwargs = dict(kwargs)
    for place, names in enumerate((("input", "self"), ("other", "exponent"))):
        for name in names:
            if len(args) == place and name in kwargs:
                args = (*args, kwargs.pop(name))
    return args, kwargs


def _decided(value: Any) -> Any:
    return mapped(
        value, lambda leaf: resolve(leaf) if isinstance(leaf, Tensor) else leaf
    )


def _elementwise(func: Function, args: Args, kwargs: Named) -> Tensor:
    name, symbols = name_of(func), symbols_in((args, kwargs))
    split(name, args)
    result = _monotone(func, args, kwargs)
    cast = not result.is_floating_point() and name not in SEARCHES
    if cast and symbols[0].is_floating_point():
        if result.dtype == torch.bool:
            return _compared(Tensor.ne, (symbols[0], 0), {})
        check_range(symbols[0], result.dtype)
    return result


def _compared(func: Function, args: Args, kwargs: Named) -> Tensor:
    """The answer to a comparison, decided."""
    split_nan([s for s in symbols_in((args, kwargs)) if s.continuous])
    name = name_of(func)
    if name not in ("eq", "ne", "not_equal"):
        return resolve(_monotone(func, args, kwargs))
    # Equality is no monotone question; on which side of it a number lies is one.
    side = resolve(_monotone(_side, args, kwargs))
    return side == 0 if name == "eq" else side != 0


def _monotone(func: Function, args: Args, kwargs: Named) -> Tensor:
    """An element-wise function that is monotone as long as no variable meets itself."""
    symbols = symbols_in((args, kwargs))
    shape = func(*mapped(args, plain), **mapped(kwargs, plain)).shape
    if len(symbols) > 1 and _shared(symbols, shape):
        raise Unfollowed("a random number is combined or compared with itself")
    source = combine([symbol.source for symbol in symbols], shape)
    return symbolic(symbols[0].space, source, call(func, args, kwargs))


def _side(first: Tensor, second: Any) -> Tensor:
    """1 above, 0 at and -1 below a number; 2 where one of them is no number."""
    above, below = (first > second).long(), (first < second).long()
    equal = (first == second).long()
    return torch.where(above + below + equal == 0, 2, above - below)


def _shared(symbols: list[Symbolic], shape: torch.Size) -> bool:
    """Whether two arguments depend on the same variable in some element."""
    first, *others = (symbol.source.broadcast_to(shape) for symbol in symbols)
    return any(bool(((first == other) & (first >= 0)).any()) for other in others)


def _move(func: Function, args: Args, kwargs: Named) -> Any:
    first, rest, named = args[0], _decided(args[1:]), _decided(kwargs)
    if any(isinstance(x, torch.dtype) for x in (*rest, *named.values())):
        raise Unfollowed("the bits of random numbers are read")
    if not isinstance(first, Symbolic):  # the index was random, not the tensor
        return func(first, *rest, **named)
    sources = func(first.source, *rest, **named)
    moved = call(func, (first, *rest), named)
    if isinstance(sources, Tensor):
        return _view(func, first, symbolic(first.space, sources, moved))
    return tuple(
        _view(func, first, symbolic(first.space, source, partial(_part, moved, i)))
        for i, source in enumerate(sources)
    )


def _part(whole: Callable[[Values], Any], i: int, values: Values) -> Tensor:
    part: Tensor = whole(values)[i]
    return part


def _view(func: Callable[..., Any], base: Symbolic, result: Tensor) -> Tensor:
    """Remember what shares memory in torch: changes in place would be seen there."""
    if isinstance(result, Symbolic) and name_of(func) not in COPIES:
        result.shares = base.shares = True
    return result


def _join(func: Function, args: Args, kwargs: Named) -> Tensor:
    where = name_of(func) == "where"
    if where:
        args = (resolve(args[0]), *args[1:])
    symbols = symbols_in((args, kwargs))
    if not symbols or (where and len(args) < 3):
        result: Tensor = func(*args, **kwargs)
        return result

    def source_of(leaf: Any) -> Any:
        if isinstance(leaf, Symbolic):
            return leaf.source
        return torch.full(leaf.shape, -1) if isinstance(leaf, Tensor) else leaf

    if where:
        chosen = [
            leaf.source if isinstance(leaf, Symbolic) else torch.tensor(-1)
            for leaf in args[1:3]
        ]
        source = torch.where(args[0].cpu(), chosen[0], chosen[1])
    else:
        source = func(*mapped(args, source_of), **kwargs)
    return symbolic(symbols[0].space, source, call(func, args, kwargs))


def _in_place(inner: str, args: Args, kwargs: Named) -> Tensor:
    target = args[0]
    if inner == "copy":
        return fill(target, args[1])
    result = apply(getattr(Tensor, inner), args, kwargs)
    if not torch.can_cast(result.dtype, target.dtype) or result.shape != target.shape:
        raise Unfollowed("a result in place has another dtype or shape")
    return fill(target, result)


def _out(target: Tensor, result: Tensor) -> Tensor:
    if target.shape != result.shape:
        raise Unfollowed("the tensor given as out= has another shape than the result")
    return fill(target, result)


def fill(target: Tensor, result: Tensor) -> Tensor:
    """Write a result, symbolic or not, into a tensor that exists.

    Raises
    ------
    Unfollowed
        Other tensors share its memory, and would have to change too.
    """
    if isinstance(target, Symbolic) or isinstance(result, Symbolic):
        if is_shared(target):
            raise Unfollowed("random numbers are in memory that tensors share")
        if result.dtype != target.dtype:
            result = apply(Tensor.to, (result, target.dtype), {})
        if result.shape != target.shape:
            result = apply(Tensor.expand, (result, target.shape), {})
    return _become(target, result)


def _become(target: Tensor, result: Tensor) -> Tensor:
    if isinstance(result, Symbolic):
        return adopt(target, result.space, result.source, result.compute)
    if isinstance(target, Symbolic):
        target.__class__ = Tensor  # type: ignore[assignment]
    return target.copy_(result)


def _extreme(func: Function, args: Args, kwargs: Named) -> Tensor:
    if not args[0].continuous:
        result: Tensor = func(*_decided(args), **_decided(kwargs))
        return result
    tensor, dim, keepdim = (*args, None, None)[:3]
    dim = kwargs.get("dim", kwargs.get("axis", dim))
    keepdim = bool(kwargs.get("keepdim", kwargs.get("keepdims", keepdim)))
    return race(tensor, dim, keepdim=keepdim, largest=name_of(func) == "argmax")


def _set_item(_func: Function, args: Args, _kwargs: Named) -> None:
    target, index, value = args
    index = _decided(index)
    if isinstance(value, Symbolic) and not value.continuous:
        value = resolve(value)  # whole numbers have few values: a branch for each
    if not symbols_in((target, value)):
        target[index] = value
        return
    source = torch.full(target.shape, -1)
    if isinstance(target, Symbolic):
        source = target.source.clone()
    source[index] = value.source if isinstance(value, Symbolic) else -1
    space = symbols_in((target, value))[0].space
    fill(target, symbolic(space, source, call(_written, (target, index, value), {})))


def _written(target: Tensor, index: Any, value: Any) -> Tensor:
    result = target.clone()
    result[index] = value
    return result


def _read(func: Function, args: Args, _kwargs: Named) -> Any:
    tensor, name = args[0], name_of(func)
    if tensor.continuous and name in ("__bool__", "__int__"):
        tensor = apply(Tensor.bool if name == "__bool__" else Tensor.long, args, {})
    elif tensor.continuous:
        if name != "item":
            raise Unfollowed(f"random numbers are read with {name}()")
        scalar = _move(Tensor.reshape, (tensor, ()), {})
        return SymbolicNumber(_elementwise(Tensor.double, (scalar,), {}))
    value = resolve(tensor)
    return getattr(value, "numpy" if name == "array" else name)()


def _cast(func: Function, args: Args, kwargs: Named) -> Tensor:
    """Change the dtype to one that has the name of a Python type."""
    result: Tensor = apply(Tensor.to, (args[0], _DTYPES[name_of(func)]), kwargs)
    return result


_DTYPES: Final = {
    "bool": torch.bool,
    "int": torch.int32,
    "float": torch.float32,
}


def _ask_sample(func: Function, args: Args, kwargs: Named) -> Any:
    return func(*mapped(args, plain), **mapped(kwargs, plain))


_Answer = Callable[[Function, Args, Named], Any]
#: What is done with which functions.
_ANSWERS: Final[tuple[tuple[Collection[str], _Answer], ...]] = (
    (METADATA, _ask_sample),
    (READS, _read),
    (CASTS, _cast),
    (COMPARISONS, _compared),
    (ELEMENTWISE, _elementwise),
    (MOVES, _move),
    (JOINS, _join),
    (("setitem",), _set_item),
    (("argmax", "argmin"), _extreme),
)
