# SPDX-License-Identifier: Apache-2.0
"""From logits to probabilities: temperature, top-k, top-p, min-p.

Verification is lossless with respect to the p that it is handed. Transform p, and drafts,
recovered and bonus tokens together follow the transformed target, whatever was done to
q, as long as the drafts are drawn from that q. Everything is computed in float64, and on
CUDA nothing waits for the device.
"""

from __future__ import annotations

import math
import sys
from typing import Final, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from specverify.core.validation import SUM_TOLERANCE

#: One number for all rows, or a tensor that broadcasts to the rows: one for each.
Setting: TypeAlias = float | Tensor

#: Closed range of each setting, and how a message puts it.
_RANGES: Final = {
    "temperature": (0, sys.float_info.max, "finite numbers of 0 or more"),
    "top_k": (0, 2**62, "whole numbers of 0 or more; 0 keeps every token"),
    "top_p": (math.nextafter(0, 1), 1, "numbers above 0 and up to 1"),
    "min_p": (0, 1, "numbers from 0 to 1"),
}


def token_probs(
    logits: Tensor,
    *,
    temperature: Setting = 1.0,
    top_k: int | Tensor | None = None,
    top_p: Setting | None = None,
    min_p: Setting | None = None,
    validate: bool | None = None,
) -> Tensor:
    """Turn logits into the probabilities that a sampler draws from.

    In this order: temperature, top-k, top-p, min-p, each on what the one before has left
    and renormalised; another order is another law.

    Parameters
    ----------
    logits
        Floating [..., vocab]; -inf excludes a token.
    temperature, top_k, top_p, min_p
        As in `apply_temperature`, `apply_top_k`, `apply_top_p` and `apply_min_p`; None
        leaves the step out. In a batch of mixed requests, tensors that broadcast to the
        leading shape of `logits`, with 1, 0, 1 and 0 for a row that is left alone.
    validate
        Whether to look at the values of tensors (that waits for the device); by default
        on the CPU only. Plain numbers, shapes, dtypes and devices are always checked.

    Returns
    -------
    Tensor
        Rows that sum to 1, computed in float64; float64 for float64 logits, otherwise
        float32. Shape of `logits`.

    Raises
    ------
    ValueError, TypeError
        A bad argument, or a row that holds NaN, +inf or nothing but -inf.

    Notes
    -----
    Law: `specverify.laws.sampling.token_law` of the softmax of the logits.
    """
    masked = apply_temperature(logits, temperature, validate=validate)
    if top_k is not None:
        masked = apply_top_k(masked, top_k, validate=validate)
    if top_p is not None:
        masked = apply_top_p(masked, top_p, validate=validate)
    if min_p is not None:
        masked = apply_min_p(masked, min_p, validate=validate)
    dtype = torch.float64 if logits.dtype == torch.float64 else torch.float32
    return masked.softmax(dim=-1).to(dtype)


def apply_temperature(
    logits: Tensor, temperature: Setting, *, validate: bool | None = None
) -> Tensor:
    """Divide logits by a temperature: ``p ** (1 / temperature)``, normalised.

    Parameters
    ----------
    logits
        Floating [..., vocab].
    temperature
        Finite, 0 or more; a tensor has one for each row. 0 leaves the most likely token
        alone, the lowest id among equals.
    validate
        As in `token_probs`.

    Returns
    -------
    Tensor
        float64, shape of `logits`, shifted so that the largest entry of a row is 0.

    Raises
    ------
    ValueError, TypeError
        As in `token_probs`.
    """
    x, look = _widened(logits, validate=validate)
    rate = _per_row("temperature", temperature, logits, look=look)
    # Shifted first: a temperature near 0 then cannot overflow the largest logit.
    shifted = x - x.amax(dim=-1, keepdim=True)
    first = shifted.argmax(dim=-1, keepdim=True)  # torch: the first of equals
    greedy = torch.full_like(shifted, -math.inf).scatter_(-1, first, 0.0)
    return torch.where(rate == 0, greedy, shifted / rate)


def apply_top_k(
    logits: Tensor, top_k: int | Tensor, *, validate: bool | None = None
) -> Tensor:
    """Keep the k most likely tokens: exactly k, equals by the lowest ids.

    Twice is once.

    Parameters
    ----------
    logits
        Floating [..., vocab].
    top_k
        Whole numbers; 0 keeps every token, and so does the size of the vocabulary.
    validate
        As in `token_probs`.

    Returns
    -------
    Tensor
        `logits` with -inf for the other tokens: dtype and shape of `logits`.

    Raises
    ------
    ValueError, TypeError
        As in `token_probs`.
    """
    x, look = _widened(logits, validate=validate)
    count = _per_row("top_k", top_k, logits, look=look)
    place = torch.arange(x.shape[-1], device=x.device)
    kept = _unsorted((place < count) | (count == 0), _descending(x))
    return logits.masked_fill(~kept, -math.inf)


def apply_top_p(
    logits: Tensor, top_p: Setting, *, validate: bool | None = None
) -> Tensor:
    """Keep the smallest set of most likely tokens whose mass reaches `top_p`.

    Equals enter by the lowest ids, and at least one token stays. Twice is not once: on
    (.4, .35, .25) a `top_p` of .5 keeps two tokens, the first of which then has .53 and
    is enough by itself. So p and q that are to be cut alike are to be cut equally often.

    Parameters
    ----------
    logits
        Floating [..., vocab].
    top_p
        Above 0 and up to 1; 1 keeps every token.
    validate
        As in `token_probs`.

    Returns
    -------
    Tensor
        `logits` with -inf for the other tokens: dtype and shape of `logits`.

    Raises
    ------
    ValueError, TypeError
        As in `token_probs`.
    """
    x, look = _widened(logits, validate=validate)
    mass = _per_row("top_p", top_p, logits, look=look)
    order = _descending(x)
    reached = x.softmax(dim=-1).gather(-1, order).cumsum(dim=-1)
    before = functional.pad(reached[..., :-1], (1, 0))  # mass of the tokens ahead
    enough = (before >= mass) & (mass < 1)
    # Parallel sums need not be monotone; once there is enough, nothing more enters.
    kept = _unsorted(enough.cumsum(dim=-1) == 0, order)
    return logits.masked_fill(~kept, -math.inf)


def apply_min_p(
    logits: Tensor, min_p: Setting, *, validate: bool | None = None
) -> Tensor:
    """Keep the tokens at least `min_p` times as likely as the most likely one.

    Twice is once.

    Parameters
    ----------
    logits
        Floating [..., vocab].
    min_p
        From 0, which keeps every token, to 1, which keeps the most likely and its equals.
    validate
        As in `token_probs`.

    Returns
    -------
    Tensor
        `logits` with -inf for the other tokens: dtype and shape of `logits`.

    Raises
    ------
    ValueError, TypeError
        As in `token_probs`.
    """
    x, look = _widened(logits, validate=validate)
    share = _per_row("min_p", min_p, logits, look=look)
    ratio = (x - x.amax(dim=-1, keepdim=True)).exp()
    return logits.masked_fill(ratio < share, -math.inf)


def _descending(x: Tensor) -> Tensor:
    """Token ids from the most to the least likely, equals by id: int64 [..., vocab]."""
    return x.sort(dim=-1, descending=True, stable=True).indices


def _unsorted(kept: Tensor, order: Tensor) -> Tensor:
    """Carry a mask over places in `order` back to token ids: bool [..., vocab]."""
    empty = torch.zeros_like(order, dtype=torch.bool)
    return empty.scatter_(-1, order, kept.broadcast_to(order.shape))


def _widened(logits: Tensor, *, validate: bool | None) -> tuple[Tensor, bool]:
    """Check logits; give them in float64, and whether values are to be looked at."""
    _check_logits(logits)
    look = validate if validate is not None else logits.device.type == "cpu"
    if look:
        # NaN fails every comparison, and so counts as bad.
        fine = (logits < math.inf).all(dim=-1) & (logits > -math.inf).any(dim=-1)
        if not bool(fine.all()):
            where = (~fine).nonzero()[0].tolist()
            row = logits[tuple(where)]
            empty = bool((row == -math.inf).all())
            found = "nothing but -inf" if empty else "NaN or +inf"
            msg = (
                f"logits{where or ''} holds {found}; "
                "allowed are finite numbers, and -inf beside them"
            )
            raise ValueError(msg)
    return logits.to(torch.float64), look


def _check_logits(logits: object) -> None:
    """Check type, dtype and shape; looks at no value."""
    if not isinstance(logits, Tensor):
        msg = f"logits is a {type(logits).__name__}; it must be a torch.Tensor"
        raise TypeError(msg)
    if logits.dtype not in SUM_TOLERANCE:
        allowed = ", ".join(str(dtype) for dtype in SUM_TOLERANCE)
        msg = f"logits has dtype {logits.dtype}; allowed are {allowed}"
        raise TypeError(msg)
    if logits.ndim == 0 or logits.shape[-1] == 0:
        msg = (
            f"logits has shape {list(logits.shape)}; "
            "it must be [..., vocab] with at least one token"
        )
        raise ValueError(msg)


def _per_row(name: str, value: Setting, logits: Tensor, *, look: bool) -> Tensor:
    """Check a setting; give it as a tensor that broadcasts against `logits`."""
    whole = name == "top_k"
    dtype = torch.int64 if whole else torch.float64
    low, high, allowed = _RANGES[name]
    if not isinstance(value, Tensor):
        if whole and not isinstance(value, int):
            msg = f"{name} is a {type(value).__name__}; allowed are {allowed}"
            raise TypeError(msg)
        if not low <= value <= high:
            msg = f"{name} is {value}; allowed are {allowed}"
            raise ValueError(msg)
        return torch.full((1,), value, dtype=dtype, device=logits.device)
    _check_setting(name, value, logits)
    wide = value.to(dtype)  # first: the limits do not fit a narrow dtype
    if look:
        fine = (wide >= low) & (wide <= high)
        if not bool(fine.all()):
            where = (~fine).nonzero()[0].tolist()
            found = wide[tuple(where)].item()
            msg = f"{name}{where or ''} is {found}; allowed are {allowed}"
            raise ValueError(msg)
    return wide.unsqueeze(-1)


def _check_setting(name: str, value: Tensor, logits: Tensor) -> None:
    """Check a setting given as a tensor, without a look at its values."""
    if name == "top_k" and (value.is_floating_point() or value.dtype == torch.bool):
        msg = f"{name} has dtype {value.dtype}; allowed are integer dtypes"
        raise TypeError(msg)
    rows = logits.shape[:-1]
    pairs = zip(reversed(value.shape), reversed(rows), strict=False)
    if value.ndim > len(rows) or any(size not in (1, row) for size, row in pairs):
        msg = (
            f"{name} has shape {list(value.shape)}; it must broadcast to the rows of "
            f"logits, {list(rows)}"
        )
        raise ValueError(msg)
    if value.device != logits.device:
        msg = (
            f"{name} is on {value.device}; it must be on the device of logits, "
            f"{logits.device}"
        )
        raise ValueError(msg)
