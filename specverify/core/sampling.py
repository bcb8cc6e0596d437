# SPDX-License-Identifier: Apache-2.0
"""Draws that the verification rules share.

Uniforms are drawn, and distribution functions are summed, in float64: a float32 uniform
has 2^24 values only, which alone moves the law of a 128k vocabulary by a total variation
of up to 4e-3.
"""

from __future__ import annotations

import torch
from torch import Tensor


def draw_uniforms(
    shape: tuple[int, ...],
    *,
    device: torch.device,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Draw independent uniforms on [0, 1) in float64.

    Parameters
    ----------
    shape
        Shape of the result.
    device
        Where to draw; a given generator must live there.
    generator
        Source of randomness; None is torch's global one, as everywhere in torch.

    Returns
    -------
    Tensor
        float64, multiples of 2^-53; zero can occur, one cannot.
    """
    return torch.rand(shape, dtype=torch.float64, device=device, generator=generator)


def inverse_cdf(weights: Tensor, uniforms: Tensor) -> Tensor:
    """Draw one index a row, with probability proportional to its weight.

    Row ``b`` gets the first index whose cumulative weight exceeds ``uniforms[b]`` times
    the total. An index of weight zero is never returned, whatever the rounding of the
    cumulative sum: parallel sums need not be monotone.

    Parameters
    ----------
    weights
        Non-negative, not all zero in a row; any scale. Shape [batch, vocab].
    uniforms
        In [0, 1). Shape [batch].

    Returns
    -------
    Tensor
        int64, shape [batch].
    """
    weights = weights.to(torch.float64)
    possible = weights > 0
    cumulative = weights.cumsum(dim=-1)  # [batch, vocab]
    threshold = uniforms.to(torch.float64).unsqueeze(-1) * cumulative[:, -1:]
    reached = (cumulative > threshold) & possible
    first = reached.to(torch.int8).argmax(dim=-1)
    # Rounding can leave no index above the threshold: then the last possible one.
    last = weights.shape[-1] - 1 - possible.flip(-1).to(torch.int8).argmax(dim=-1)
    return torch.where(reached.any(dim=-1), first, last)
