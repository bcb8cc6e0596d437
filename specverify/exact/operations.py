# SPDX-License-Identifier: Apache-2.0
"""What torch functions do to symbolic tensors."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

from specverify.exact.functions import (
    COMPARISONS,
    COPIES,
    ELEMENTWISE,
    IN_PLACE,
    JOINS,
    METADATA,
    MOVES,
    PRODUCTS,
    READS,
    name_of,
)
from specverify.exact.numbers import SymbolicNumber
from specverify.exact.races import race
from specverify.exact.symbolic import (
    Compute,
    Symbolic,
    Values,
    adopt,
    combine,
    is_view,
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
    inner = name[:-1] if name.endswith("_") else IN_PLACE.get(name, "")
    if inner in ELEMENTWISE or inner == "copy":
        return _in_place(inner, args, kwargs)
    for names, answer in _ANSWERS:
        if name in names:
            return answer(func, args, kwargs)
    if any(symbol.continuous for symbol in symbols_in((args, kwargs))):
        raise Unfollowed(f"torch.{name} of random numbers is not followed")
    # Whole numbers and truth values are decided, and torch goes on with what they are.
    return func(*_decided(args), **_decided(kwargs))


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


def _decided(value: Any) -> Any:
    return mapped(
        value, lambda leaf: resolve(leaf) if isinstance(leaf, Tensor) else leaf
    )


def _call(func: Function, args: Args, kwargs: Named) -> Compute:
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


def _elementwise(func: Function, args: Args, kwargs: Named) -> Tensor:
    symbols = symbols_in((args, kwargs))
    shape = func(*mapped(args, plain), **mapped(kwargs, plain)).shape
    source = combine([symbol.source for symbol in symbols], shape)
    if len(symbols) > 1 and name_of(func) in PRODUCTS and _shared(symbols, shape):
        raise Unfollowed("a random number is multiplied by itself")
    return symbolic(symbols[0].space, source, _call(func, args, kwargs))


def _shared(symbols: list[Symbolic], shape: torch.Size) -> bool:
    """Whether two arguments depend on the same variable in some element."""
    first, *others = (symbol.source.broadcast_to(shape) for symbol in symbols)
    return any(bool(((first == other) & (first >= 0)).any()) for other in others)


def _move(func: Function, args: Args, kwargs: Named) -> Any:
    first, rest, named = args[0], _decided(args[1:]), _decided(kwargs)
    if not isinstance(first, Symbolic):  # the index was random, not the tensor
        return func(first, *rest, **named)
    sources = func(first.source, *rest, **named)
    call = _call(func, (first, *rest), named)
    if isinstance(sources, Tensor):
        return _view(func, first, symbolic(first.space, sources, call))
    return tuple(
        _view(func, first, symbolic(first.space, source, partial(_part, call, i)))
        for i, source in enumerate(sources)
    )


def _part(call: Callable[[Values], Any], i: int, values: Values) -> Tensor:
    part: Tensor = call(values)[i]
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
    return symbolic(symbols[0].space, source, _call(func, args, kwargs))


def _in_place(inner: str, args: Args, kwargs: Named) -> Tensor:
    target, function = args[0], getattr(Tensor, inner, None)
    _refuse_shared(target)
    if inner == "copy":
        function, args = _copied, (target, args[1])
    assert function is not None  # noqa: S101 - the names are torch's
    return become(target, _elementwise(function, args, kwargs))


def _copied(target: Tensor, value: Tensor) -> Tensor:
    """What ``target.copy_(value)`` leaves in the target."""
    return value.to(target.dtype).expand(target.shape)


def _refuse_shared(target: Tensor) -> None:
    shares = target.shares if isinstance(target, Symbolic) else is_view(target)
    if shares:
        raise Unfollowed("random numbers are changed in place through a view")


def become(target: Tensor, result: Tensor) -> Tensor:
    """Let a tensor that exists take the place of a result, symbolic or not."""
    if isinstance(result, Symbolic):
        return adopt(target, result.space, result.source, result.compute)
    if isinstance(target, Symbolic):
        target.__class__ = Tensor  # type: ignore[assignment]
    return target.copy_(result)


def _extreme(func: Function, args: Args, kwargs: Named) -> Tensor:
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
    _refuse_shared(target)
    source = torch.full(target.shape, -1)
    if isinstance(target, Symbolic):
        source = target.source.clone()
    source[index] = value.source if isinstance(value, Symbolic) else -1
    space = symbols_in((target, value))[0].space
    become(target, symbolic(space, source, _call(_written, (target, index, value), {})))


def _written(target: Tensor, index: Any, value: Any) -> Tensor:
    result = target.clone()
    result[index] = value
    return result


def _read(func: Function, args: Args, _kwargs: Named) -> Any:
    tensor, name = args[0], name_of(func)
    if tensor.continuous:
        if name != "item":
            raise Unfollowed(f"random numbers are read with {name}()")
        scalar = _move(Tensor.reshape, (tensor, ()), {})
        return SymbolicNumber(_elementwise(Tensor.double, (scalar,), {}))
    value = resolve(tensor)
    if name in ("item", "tolist", "numpy", "array"):
        return getattr(value, "numpy" if name == "array" else name)()
    return {"bool": bool, "int": int, "index": int, "float": float}[name](value)


def _ask_sample(func: Function, args: Args, kwargs: Named) -> Any:
    return func(*mapped(args, plain), **mapped(kwargs, plain))


_Answer = Callable[[Function, Args, Named], Any]
#: What is done with which functions.
_ANSWERS: Final[tuple[tuple[Collection[str], _Answer], ...]] = (
    (METADATA, _ask_sample),
    (READS, _read),
    (COMPARISONS, lambda *call: resolve(_elementwise(*call))),
    (ELEMENTWISE, _elementwise),
    (MOVES, _move),
    (JOINS, _join),
    (("setitem",), _set_item),
    (("argmax", "argmin"), _extreme),
)
