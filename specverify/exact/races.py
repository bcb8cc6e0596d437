# SPDX-License-Identifier: Apache-2.0
"""Recognise exponential and Gumbel races: a draw in proportion to weights.

If E_i are independent standard exponentials, ``argmin E_i / w_i`` is i with probability
``w_i / sum w``, and so is the place of the extreme of any one monotone function of the
``E_i / w_i``. A row is taken for a race if one of the usual forms, with weights that do not
depend on the noise, explains its values at several points.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import partial
from typing import Final

import torch
from torch import Tensor

from specverify.exact.symbolic import Symbolic, symbolic
from specverify.exact.variables import Unfollowed, Uniform, exact_weights

#: Values of the uniforms at which the forms are tried.
_POINTS: Final = (0.08, 0.3, 0.55, 0.8, 0.95)
#: How far weights found at different points may differ, by dtype.
_TOLERANCE: Final = {torch.float64: 1e-9, torch.float32: 1e-4}
#: From a value of the row, where the largest wins, and its exponential, the weight.
_FORMS: Final[tuple[Callable[[Tensor, Tensor], Tensor], ...]] = (
    lambda g, e: g * e,  # w / e
    lambda g, e: torch.exp(g + e.log()),  # log w - log e
    lambda g, e: torch.where(g.isinf(), 0.0, -e / g),  # -e / w
    lambda g, e: torch.where(g > 0, -e / g.log(), 0.0),  # u^(1 / w)
)
#: From a uniform its exponential: torch's own, and the two of hand-made noise.
_EXPONENTIALS: Final[tuple[Callable[[Tensor], Tensor], ...]] = (
    lambda u: -torch.log1p(-u),
    lambda u: -u.log(),
)


def race(tensor: Symbolic, dim: int | None, *, keepdim: bool, largest: bool) -> Tensor:
    """The place of the extreme along a dimension, as a draw for each row.

    Raises
    ------
    Unfollowed
        A row that is no race.
    """
    if tensor.dtype not in _TOLERANCE:
        raise Unfollowed(f"a race in {tensor.dtype} has ties and large rounding")
    flat = dim is None
    axis = 0 if dim is None else dim % tensor.source.ndim
    values = [tensor.compute(partial(_everywhere, u)) for u in _POINTS]
    if flat:
        values = [value.flatten() for value in values]
    rows = torch.stack(values).to(torch.float64).movedim(axis + 1, -1)
    sources = (tensor.source.flatten() if flat else tensor.source).movedim(axis, -1)
    width, shape = sources.shape[-1], sources.shape[:-1]
    rows = rows.reshape(len(_POINTS), -1, width)
    drawn = [
        _row(tensor, rows[:, i], row, largest=largest)
        for i, row in enumerate(sources.reshape(-1, width))
    ]
    constants = torch.tensor([constant for constant, _ in drawn])
    numbers = torch.tensor([number for _, number in drawn])

    def winners(found: Callable[[Tensor], Tensor]) -> Tensor:
        asked = found(numbers.clamp_min(0)).to(torch.int64)
        return _shaped(torch.where(numbers >= 0, asked, constants))

    def _shaped(found: Tensor) -> Tensor:
        result = found.view(shape)
        return result.unsqueeze(axis) if keepdim and not flat else result

    return symbolic(tensor.space, _shaped(numbers), winners)


def _everywhere(u: float, numbers: Tensor) -> Tensor:
    return torch.full(numbers.shape, u, dtype=torch.float64)


def _row(
    tensor: Symbolic, values: Tensor, source: Tensor, *, largest: bool
) -> tuple[int, int]:
    """The winner of a row if it is fixed, else the number of its draw."""
    extreme = torch.argmax if largest else torch.argmin
    if bool((source == -1).all()) or bool(values.isnan().any()):
        return int(extreme(values[0])), -1
    numbers = source[source != -1].tolist()
    if len(set(numbers)) < len(numbers) or min(numbers) < 0:
        raise Unfollowed("the extreme of numbers that depend on each other")
    space = tensor.space
    for number in numbers:
        variable = space.variables[number]
        if not isinstance(variable, Uniform) or not variable.whole:
            raise Unfollowed("the extreme of numbers that have been compared before")
    weights = _weights(values if largest else -values, source, tensor.dtype)
    if not any(weights):  # all equal: torch takes the first of the extremes
        return int(extreme(values[0])), -1
    return 0, space.categorical(weights, tuple(source.tolist()))


def _weights(values: Tensor, source: Tensor, dtype: torch.dtype) -> list[Fraction]:
    """Weights of a row of values [points, width] whose largest wins."""
    points = torch.tensor(_POINTS, dtype=torch.float64).unsqueeze(1)
    tolerance = _TOLERANCE[dtype]
    random = source != -1
    for exponential in _EXPONENTIALS:
        for form in _FORMS:
            found = form(values, exponential(points))
            middle = found.median(dim=0).values
            spread = (found - middle).abs().amax(dim=0)
            fits = bool((spread <= tolerance * middle.abs() + 1e-300).all())
            usable = bool(torch.isfinite(middle).all()) and bool((middle >= 0).all())
            # A constant takes part in a race only as a weight of zero.
            if fits and usable and not bool(middle[~random].any()):
                return exact_weights(middle.tolist())
    raise Unfollowed("the extreme of random numbers in a form that is no known race")
