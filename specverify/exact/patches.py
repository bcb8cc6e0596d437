# SPDX-License-Identifier: Apache-2.0
"""Answer the random calls of Python and NumPy, in the threads that are followed.

Functions of modules belong to all threads. So the first thread that is followed replaces
them, the last one puts them back, and in every other thread they are what they were.
"""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import torch

from specverify.exact.generators import Watch
from specverify.exact.interception import Guard, Interception
from specverify.exact.numbers import SymbolicNumber
from specverify.exact.symbolic import leaf
from specverify.exact.variables import Space

_BITS: Final = 53
_Answer = Callable[..., Any]


def _number(space: Space, low: float = 0.0, high: float = 1.0) -> SymbolicNumber:
    """A float64 uniform outside torch."""
    first = space.uniforms(1, _BITS)
    with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():  # noqa: SLF001 - no mode sees it
        drawn = leaf(space, torch.tensor(first), lambda u: u * (high - low) + low)
    return SymbolicNumber(drawn)


def _scalar(space: Space, *size: Any, **named: Any) -> SymbolicNumber:
    if named or size not in ((), (None,)):
        raise space.refuse("arrays of NumPy's random numbers are not followed")
    return _number(space)


def _between(
    space: Space, low: float = 0.0, high: float = 1.0, size: Any = None
) -> SymbolicNumber:
    if size is not None:
        raise space.refuse("arrays of NumPy's random numbers are not followed")
    return _number(space, low, high)


def _refused(title: str) -> _Answer:
    def refuse(space: Space, *_args: Any, **_kwargs: Any) -> Any:
        raise space.refuse(f"{title} is not followed")

    return refuse


#: Module, function, what answers it.
_REPLACED: Final[list[tuple[Any, str, _Answer]]] = [
    (random, "random", _number),
    (random, "uniform", _between),
    (np.random, "rand", _scalar),
    (np.random, "random", _scalar),
    (np.random, "random_sample", _scalar),
    (np.random, "uniform", _between),
    *(
        (module, name, _refused(f"{module.__name__}.{name}"))
        for module, names in (
            (random, "choice choices randint randrange shuffle sample seed setstate"),
            (np.random, "choice randint multinomial default_rng seed set_state"),
            (torch, "manual_seed seed set_rng_state"),
            (torch.random, "manual_seed seed set_rng_state"),
        )
        for name in names.split()
    ),
]
_lock: Final = threading.Lock()
_spaces: Final[dict[int, Space]] = {}
_originals: Final[list[Any]] = []


def _dispatched(original: Any, answer: _Answer) -> _Answer:
    def call(*args: Any, **kwargs: Any) -> Any:
        space = _spaces.get(threading.get_ident())
        if space is None:
            return original(*args, **kwargs)
        return answer(space, *args, **kwargs)

    return call


@contextlib.contextmanager
def intercepted(space: Space, watch: Watch) -> Iterator[None]:
    """Turn every random call that this thread makes into variables of `space`."""
    thread = threading.get_ident()
    with _lock:
        if not _spaces:
            _originals[:] = [getattr(module, name) for module, name, _ in _REPLACED]
            for (module, name, answer), original in zip(
                _REPLACED, _originals, strict=True
            ):
                setattr(module, name, _dispatched(original, answer))
        _spaces[thread] = space
    try:
        guard = Guard() if space.on_guard else contextlib.nullcontext()  # type: ignore[no-untyped-call]
        with guard, Interception(space, watch):
            yield
    finally:
        with _lock:
            del _spaces[thread]
            if not _spaces:
                for (module, name, _), original in zip(
                    _REPLACED, _originals, strict=True
                ):
                    setattr(module, name, original)
