# SPDX-License-Identifier: Apache-2.0
"""Answer the random calls of code that runs.

Inside `Interception` random functions of torch return symbolic tensors and draw from no
generator. The mode is torch's own and belongs to one thread, so code in other threads is
not touched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fractions import Fraction
from typing import Any, Final

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from specverify.exact.functions import OTHER_RANDOM, name_of
from specverify.exact.generators import Watch
from specverify.exact.numbers import SymbolicNumber
from specverify.exact.operations import apply, fill
from specverify.exact.symbolic import Symbolic, leaf, mapped, symbolic, symbols_in
from specverify.exact.variables import Space, Unfollowed, exact_weights

#: Digits of what torch.rand draws, by dtype.
GRID_BITS: Final = {
    torch.float64: 53,
    torch.float32: 24,
    torch.float16: 11,
    torch.bfloat16: 8,
}
_PYTHON_BITS: Final = 53
_LARGEST_RANGE: Final = 4096


def _is_random(values: Iterable[Any]) -> bool:
    """Whether anything in nested arguments is random; asked at every call."""
    for value in values:
        kind = type(value)
        if kind is Symbolic or kind is SymbolicNumber:
            return True
        if (kind is tuple or kind is list) and _is_random(value):
            return True
        if kind is slice and _is_random((value.start, value.stop, value.step)):
            return True
    return False


def _tensor(value: Any) -> Any:
    return value.tensor if isinstance(value, SymbolicNumber) else value


class Interception(TorchFunctionMode):
    """Torch function mode that turns random calls into variables of a space."""

    def __init__(self, space: Space, watch: Watch) -> None:
        super().__init__()
        self.space, self.watch = space, watch
        self._random: dict[str, Callable[..., Tensor]] = {
            "rand": self._rand,
            "rand_like": self._rand_like,
            "uniform_": self._uniform,
            "exponential_": self._exponential,
            "bernoulli": self._bernoulli,
            "bernoulli_": self._bernoulli_in_place,
            "multinomial": self._multinomial,
            "randint": self._randint,
            "randint_like": self._randint_like,
            "random_": self._random_in_place,
        }

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Answer random calls, follow symbolic tensors, let everything else through."""
        del types
        kwargs = dict(kwargs or {})
        try:
            return self._answer(func, args, kwargs)
        except Unfollowed as reason:
            raise self.space.refuse(str(reason)) from None

    def _answer(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        name = name_of(func)
        if name in OTHER_RANDOM or getattr(func, "__module__", "") == "torch.nn.init":
            raise Unfollowed(f"torch.{name} is not followed")
        drawn = name in self._random
        if not (drawn or _is_random(args) or (kwargs and _is_random(kwargs.values()))):
            return func(*args, **kwargs)
        # Inside this method the mode is off: the subclass and the guard must be off too.
        with torch._C.DisableTorchFunctionSubclass(), torch._C._DisableTorchDispatch():  # noqa: SLF001 - torch's advice
            if drawn:
                return self._draw(name, args, kwargs)
            return apply(func, mapped(args, _tensor), mapped(kwargs, _tensor))

    def _draw(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        out = kwargs.pop("out", None)
        self.watch.drawn(kwargs.pop("generator", None))
        result = self._random[name](*args, **kwargs)
        return result if out is None else fill(out, result)

    # --- uniforms and exponentials ----------------------------------------------------

    def _rand(self, *size: Any, **kwargs: Any) -> Tensor:
        return self._uniforms(torch.zeros(*size, **kwargs))

    def _rand_like(self, tensor: Tensor, **kwargs: Any) -> Tensor:
        return self._uniforms(torch.zeros_like(tensor.as_subclass(Tensor), **kwargs))

    def _uniform(
        self, target: Tensor, low: float = 0, high: float = 1, **kwargs: Any
    ) -> Tensor:
        low, high = kwargs.get("from", low), kwargs.get("to", high)
        form = None if (low, high) == (0, 1) else lambda u: u * (high - low) + low
        return fill(target, self._uniforms(target, form))

    def _exponential(self, target: Tensor, lambd: float = 1, **kwargs: Any) -> Tensor:
        del kwargs
        dtype = target.dtype
        numbers = self._numbers(target, GRID_BITS[torch.float64])
        result = leaf(
            self.space,
            numbers,
            lambda u: (-torch.log1p(-u) / lambd).to(dtype).to(target.device),
        )
        return fill(target, result)

    def _uniforms(
        self, like: Tensor, form: Callable[[Tensor], Tensor] | None = None
    ) -> Tensor:
        dtype, device = like.dtype, like.device
        if dtype not in GRID_BITS:
            raise Unfollowed(f"uniforms of {dtype} are not followed")

        def elements(u: Tensor) -> Tensor:
            drawn = u.to(dtype).to(device)
            return drawn if form is None else form(drawn)

        return leaf(self.space, self._numbers(like, GRID_BITS[dtype]), elements)

    def _numbers(self, like: Tensor, bits: int) -> Tensor:
        first = self.space.uniforms(like.numel(), bits)
        return torch.arange(first, first + like.numel()).view(like.shape)

    # --- draws from finitely many outcomes --------------------------------------------

    def _multinomial(
        self,
        weights: Tensor,
        num_samples: int,
        replacement: bool = False,  # noqa: FBT001, FBT002 - torch's own signature
    ) -> Tensor:
        if symbols_in(weights):
            raise Unfollowed("torch.multinomial with random weights")
        # Torch refuses bad arguments in its own words; its draw is thrown away.
        torch.multinomial(
            weights, num_samples, replacement, generator=torch.Generator(weights.device)
        )
        rows = weights.double().reshape(-1, weights.shape[-1]).tolist()
        drawn = [self._draws(row, num_samples, replacement=replacement) for row in rows]
        numbers = torch.tensor(drawn).view(*weights.shape[:-1], num_samples)
        return self._categoricals(numbers, weights.device)

    def _draws(self, row: list[float], count: int, *, replacement: bool) -> list[int]:
        weights = exact_weights(row)
        numbers = []
        for draw in range(count):
            numbers.append(self.space.categorical(weights))
            if not replacement and draw + 1 < count:
                weights[self.space.value(numbers[-1])] = Fraction(0)
        return numbers

    def _bernoulli(self, probs: Tensor, p: float | None = None) -> Tensor:
        if isinstance(probs, Symbolic):
            raise Unfollowed("torch.bernoulli with random probabilities")
        chances = probs if p is None else torch.full_like(probs, p)
        torch.bernoulli(chances, generator=torch.Generator(chances.device))
        numbers = [
            self.space.categorical([1 - Fraction(x), Fraction(x)])
            for x in chances.double().flatten().tolist()
        ]
        found = torch.tensor(numbers, dtype=torch.int64).view(probs.shape)
        return leaf(self.space, found, lambda v: v.to(probs.dtype).to(probs.device))

    def _bernoulli_in_place(self, target: Tensor, p: float | Tensor = 0.5) -> Tensor:
        chances = p if isinstance(p, Tensor) else torch.full(target.shape, float(p))
        drawn = self._bernoulli(chances.expand(target.shape).to(torch.float64))
        assert isinstance(drawn, Symbolic)  # noqa: S101 - one variable an element
        compute = drawn.compute
        return fill(
            target,
            symbolic(self.space, drawn.source, lambda v: compute(v).to(target.dtype)),
        )

    def _randint(self, *args: Any, **kwargs: Any) -> Tensor:
        *bounds, size = args if "size" not in kwargs else (*args, kwargs.pop("size"))
        low = kwargs.pop("low", bounds[0] if len(bounds) > 1 else 0)
        high = kwargs.pop("high", bounds[-1] if bounds else 0)
        kwargs.setdefault("dtype", torch.int64)
        return self._integers(torch.zeros(size, **kwargs), int(low), int(high))

    def _randint_like(self, tensor: Tensor, *bounds: int, **kwargs: Any) -> Tensor:
        low, high = (0, *bounds)[-2:]
        return self._integers(torch.zeros_like(tensor, **kwargs), low, high)

    def _random_in_place(self, target: Tensor, *bounds: int, **kwargs: Any) -> Tensor:
        del kwargs
        if not bounds:
            raise Unfollowed("random_ over the whole range is not followed")
        low, high = (0, *bounds)[-2:]
        return fill(target, self._integers(target, low, high))

    def _integers(self, like: Tensor, low: int, high: int) -> Tensor:
        if not 0 < high - low <= _LARGEST_RANGE:
            raise Unfollowed(f"randint over {high - low} values is not followed")
        weights = [Fraction(1)] * (high - low)
        numbers = [self.space.categorical(weights) for _ in range(like.numel())]
        found = torch.tensor(numbers, dtype=torch.int64).view(like.shape)
        return leaf(
            self.space, found, lambda v: (v.to(like.dtype) + low).to(like.device)
        )

    def _categoricals(self, numbers: Tensor, device: torch.device) -> Tensor:
        return leaf(self.space, numbers, lambda v: v.to(torch.int64).to(device))

    # --- Python and NumPy -------------------------------------------------------------

    def number(self, low: float = 0.0, high: float = 1.0) -> SymbolicNumber:
        """A float64 uniform outside torch."""
        first = self.space.uniforms(1, _PYTHON_BITS)
        drawn = leaf(self.space, torch.tensor(first), lambda u: u * (high - low) + low)
        return SymbolicNumber(drawn)


class Guard(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Refuse compiled code that computes with the sample of a random number."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """See every operation that torch runs, from wherever it is called."""
        del types
        for symbol in symbols_in((args, kwargs or {})):
            raise symbol.space.refuse(f"{func} of random numbers, in compiled code")
        return func(*args, **(kwargs or {}))
