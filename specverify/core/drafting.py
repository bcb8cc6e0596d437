# SPDX-License-Identifier: Apache-2.0
"""Ways of drawing several drafts at one position.

A rule for several drafts is lossless for drafts drawn in its own way only, so the way has
a name here and in the declaration of a subject:

========================  ============================================================
``iid``                   independent draws from q
``without_replacement``   one after the other, without those before
``deterministic``         the n most likely tokens, of ties the lowest ids
``hub``                   the most likely token and one other (SpecHub), n = 2
``greedy``                the n - 1 most likely tokens, and one drawn from the others
========================  ============================================================

Where q has fewer tokens than there are slots, the slots left over hold -1.
"""

from __future__ import annotations

from typing import Final, Literal, get_args

import torch
from torch import Tensor

from specverify.core.coupling import race_noise
from specverify.core.sampling import draw_uniforms, inverse_cdf
from specverify.core.steps import PLACEHOLDER_TOKEN_ID

Drafts = Literal["iid", "without_replacement", "deterministic", "hub", "greedy"]
_PAIR: Final = 2


def draw_drafts(
    draft_probs: Tensor,
    n: int,
    *,
    drafts: Drafts = "iid",
    generator: torch.Generator | None = None,
) -> Tensor:
    """Draw n drafts a row.

    Parameters
    ----------
    draft_probs
        q: floating [batch, vocab].
    n
        Number of slots, at least 1.
    drafts
        How; see the module.
    generator
        Source of randomness, on the device of `draft_probs`.

    Returns
    -------
    Tensor
        int64 [batch, n].

    Raises
    ------
    ValueError
        Unknown way, n below 1, or n other than 2 for "hub"; another shape.
    """
    if drafts not in get_args(Drafts):
        msg = f"drafts is {drafts!r}; allowed are {', '.join(get_args(Drafts))}"
        raise ValueError(msg)
    if n < 1 or (drafts == "hub" and n != _PAIR):
        allowed = "2" if drafts == "hub" else "1 and more"
        msg = f"n is {n}; allowed is {allowed} with drafts={drafts!r}"
        raise ValueError(msg)
    if draft_probs.ndim != _PAIR:
        msg = f"draft_probs has shape {list(draft_probs.shape)}; it must be [batch, vocab]"
        raise ValueError(msg)
    q = draft_probs.to(torch.float64)
    if drafts == "iid":
        rows = q.repeat_interleave(n, dim=0)
        u = draw_uniforms((len(rows),), device=q.device, generator=generator)
        return inverse_cdf(rows, u).view(-1, n)
    if drafts == "without_replacement":
        noise = race_noise(tuple(q.shape), device=q.device, generator=generator)
        return _best(torch.where(q > 0, -noise / q, -torch.inf), n, -torch.inf)
    if drafts == "deterministic":
        return _best(q, n, 0.0)
    u = draw_uniforms((len(q), 2), device=q.device, generator=generator)
    if drafts == "greedy":
        top = _best(q, n - 1, 0.0)
        return torch.cat([top, _draw(_outside(q, top), u[:, 0]).unsqueeze(1)], dim=1)
    hub = q.argmax(dim=1, keepdim=True)  # [batch, 1]
    first = inverse_cdf(q, u[:, 0]).unsqueeze(1)
    other = _draw(_outside(q, hub), u[:, 1]).unsqueeze(1)
    return torch.cat([first, torch.where(first == hub, other, hub)], dim=1)


def _best(score: Tensor, n: int, nothing: float) -> Tensor:
    """The n highest scores a row, of ties the lowest ids; -1 where none is left."""
    order = score.argsort(dim=1, descending=True, stable=True)[:, :n]
    ids = torch.where(score.gather(1, order) > nothing, order, PLACEHOLDER_TOKEN_ID)
    missing = n - ids.shape[1]
    return torch.nn.functional.pad(ids, (0, missing), value=PLACEHOLDER_TOKEN_ID)


def _outside(q: Tensor, taken: Tensor) -> Tensor:
    """Set the tokens of other slots to zero in q."""
    if not taken.shape[1]:
        return q
    keep = torch.ones_like(q)
    keep.scatter_reduce_(1, taken.clamp_min(0), (taken < 0).to(q.dtype), reduce="amin")
    return q * keep


def _draw(weights: Tensor, uniforms: Tensor) -> Tensor:
    """Draw one token a row by its weight; -1 where a row is zero."""
    token = inverse_cdf(weights, uniforms)
    return torch.where(weights.sum(dim=1) > 0, token, PLACEHOLDER_TOKEN_ID)
