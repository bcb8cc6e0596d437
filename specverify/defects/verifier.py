# SPDX-License-Identifier: Apache-2.0
"""Token-level verification as a row of steps, each of which a defect may replace.

The steps are those of any engine: read the inputs, draw uniforms, test the drafts, form the
row behind each position, draw a token from each, write the answer. Left as they are, they
verify losslessly.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

#: What is read off the arguments: draft ids, q and p.
Arguments = tuple[Tensor, Tensor, Tensor]


def as_given(ids: Tensor, q: Tensor, p: Tensor) -> Arguments:
    """Read the arguments as they are."""
    return ids, q, p


def fresh(batch: int, width: int, generator: torch.Generator) -> Tensor:
    """Draw independent float64 uniforms [batch, width]."""
    device = generator.device
    return torch.rand(
        batch, width, dtype=torch.float64, generator=generator, device=device
    )


def below_ratio(u: Tensor, p_x: Tensor, q_x: Tensor) -> Tensor:
    """Accept where ``u q < p``."""
    return u * q_x < p_x


def positive_part(p: Tensor, q: Tensor, ids: Tensor) -> Tensor:
    """Residual weights ``(p - q)+`` behind every position: [batch, k + 1, vocab]."""
    del ids
    return (p - q).clamp_min(0)


def second(u: Tensor, v: Tensor) -> Tensor:
    """Draw tokens with the uniforms that no test has seen."""
    del u
    return v


def from_cdf(weights: Tensor, v: Tensor) -> Tensor:
    """First token whose cumulated weight exceeds v times the total: [batch, k + 1]."""
    cdf = weights.double().cumsum(dim=-1)
    return (cdf <= v[..., None] * cdf[..., -1:]).sum(dim=-1)


def up_to_rejection(ids: Tensor, tokens: Tensor, accepted: Tensor) -> Tensor:
    """Write drafts up to the first rejection, the token drawn there, then -1."""
    return cut(ids, tokens, accepted.cumprod(dim=1).sum(dim=1))


def cut(ids: Tensor, tokens: Tensor, length: Tensor) -> Tensor:
    """Write `length` drafts, the token that stands behind them, then -1."""
    drafts = torch.cat([ids, tokens[:, -1:]], dim=1)
    position = torch.arange(tokens.shape[1], device=ids.device)
    last = length[:, None]
    output = torch.where(position < last, drafts, tokens)
    return output.masked_fill(position > last, -1)


def at(probs: Tensor, ids: Tensor) -> Tensor:
    """Probability of every draft token: [batch, k]."""
    return probs[:, : ids.shape[1]].gather(2, ids[..., None]).squeeze(-1)


@dataclass(frozen=True)
class Verifier:
    """Verifies a chain of drafts; behind the last draft q is zero.

    Attributes
    ----------
    reads
        What is taken for draft ids, q and p.
    uniforms
        Draws [batch, k + 1] uniforms; called for the tests, then for the tokens.
    accepts
        Tests drafts, from uniforms, p and q at the draft: bool [batch, k].
    weights
        Forms the weights behind each position, from p, q and ids: [batch, k + 1, vocab].
    token_uniforms
        Chooses the uniforms that draw tokens, from those of the tests and others.
    draws
        Draws a token at every position, from weights and uniforms: [batch, k + 1].
    writes
        Lays out the answer, from drafts, drawn tokens and tests: [batch, k + 1].
    """

    reads: Callable[[Tensor, Tensor, Tensor], Arguments] = as_given
    uniforms: Callable[[int, int, torch.Generator], Tensor] = fresh
    accepts: Callable[[Tensor, Tensor, Tensor], Tensor] = below_ratio
    weights: Callable[[Tensor, Tensor, Tensor], Tensor] = positive_part
    token_uniforms: Callable[[Tensor, Tensor], Tensor] = second
    draws: Callable[[Tensor, Tensor], Tensor] = from_cdf
    writes: Callable[[Tensor, Tensor, Tensor], Tensor] = up_to_rejection

    def __call__(
        self,
        draft_token_ids: Tensor,
        draft_probs: Tensor,
        target_probs: Tensor,
        *,
        generator: torch.Generator,
    ) -> Tensor:
        """Verify one step: int64 [batch, k + 1]."""
        ids, q, p = self.reads(draft_token_ids, draft_probs, target_probs)
        batch, k = ids.shape
        q = torch.cat([q, torch.zeros_like(p[:, :1])], dim=1)  # [batch, k + 1, vocab]
        u = self.uniforms(batch, k + 1, generator)
        v = self.uniforms(batch, k + 1, generator)
        accepted = self.accepts(u[:, :k], at(p, ids), at(q, ids))
        weights = self.weights(p, q, ids)
        weights = torch.where(weights.sum(dim=-1, keepdim=True) > 0, weights, p)
        tokens = self.draws(weights, self.token_uniforms(u, v))
        return self.writes(ids, tokens, accepted)
