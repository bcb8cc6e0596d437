# SPDX-License-Identifier: Apache-2.0
"""Token-level verification of a chain of drafts.

The rule of Leviathan, Kalman and Matias (2023) and of Chen et al. (2023): accept draft
token x with probability ``min(1, p(x)/q(x))``, stop at the first rejection and draw the
recovered token from ``(p - q)+``; when all drafts are accepted, draw a bonus token from
the target. The emitted tokens follow the target's law exactly.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import torch
from torch import Tensor

from specverify.core.residual import residual_weights
from specverify.core.sampling import draw_uniforms, inverse_cdf
from specverify.core.validation import check_metadata, check_values

#: Stands behind the last emitted token of a row.
PLACEHOLDER_TOKEN_ID: Final = -1


class ChainResult(NamedTuple):
    """What one verification step emits.

    Attributes
    ----------
    output_token_ids
        int64 [batch, k + 1]: accepted drafts, one recovered or bonus token, then -1.
    num_accepted
        int64 [batch]: accepted drafts; the emitted tokens are one more.
    """

    output_token_ids: Tensor
    num_accepted: Tensor


def verify_chain(
    draft_token_ids: Tensor,
    draft_probs: Tensor | None,
    target_probs: Tensor,
    *,
    generator: torch.Generator | None = None,
    uniforms: Tensor | None = None,
    num_draft_tokens: Tensor | None = None,
    validate: bool | None = None,
) -> ChainResult:
    """Verify one chain of draft tokens a row, losslessly.

    Parameters
    ----------
    draft_token_ids
        int64 [batch, k]; k may be 0. Token i of a row must have been drawn from
        ``draft_probs[:, i]``, independently of the uniforms used here.
    draft_probs
        q: floating [batch, k, vocab], or None when the drafts are a deterministic
        function of the prefix (n-gram, argmax): q is then one-hot at the draft.
    target_probs
        p: floating [batch, k + 1, vocab]; the last row is the law of the bonus token.
    generator
        The only source of randomness, on the device of `target_probs`; None is torch's
        global generator.
    uniforms
        In place of a generator: [batch, k + 1] in [0, 1), the first k for the tests, the
        last for the recovered or bonus token (by inverse distribution function).
    num_draft_tokens
        int64 [batch], the drafts of each row when they differ; what stands at or behind
        that position in the other arguments is ignored, save the target row there.
    validate
        Whether to look at the values (rows are distributions, ids are in range). That
        waits for the device, so by default it happens on the CPU only; shapes, dtypes
        and devices are always checked.

    Returns
    -------
    ChainResult
        Tokens and the number of accepted drafts.

    Raises
    ------
    ValueError, TypeError
        A bad argument: the message names it, what was found and what is allowed.

    Notes
    -----
    Law: with ``m(x) = min(p(x), q(x))``, ``P(accepted >= i, x_1..x_i) = prod_j m_j(x_j)``
    and a rejected position emits y with probability ``(p - q)+(y)``; see
    `specverify.laws.chain`. A token is accepted where ``u q < p`` with u in [0, 1), in
    float64: p = q is accepted always, p = 0 never.

    References
    ----------
    Leviathan, Kalman, Matias: Fast inference from transformers via speculative decoding,
    ICML 2023. Chen et al.: Accelerating large language model decoding with speculative
    sampling, 2023.
    """
    check_metadata(
        draft_token_ids, draft_probs, target_probs, uniforms, num_draft_tokens
    )
    if validate if validate is not None else target_probs.device.type == "cpu":
        check_values(
            draft_token_ids, draft_probs, target_probs, uniforms, num_draft_tokens
        )
    batch, k = draft_token_ids.shape
    if uniforms is None:
        uniforms = draw_uniforms(
            (batch, k + 1), device=target_probs.device, generator=generator
        )
    if num_draft_tokens is None:
        num_draft_tokens = torch.full((batch,), k, device=target_probs.device)
    used = _positions(draft_token_ids) < num_draft_tokens.unsqueeze(1)  # [batch, k]
    draft_token_ids = torch.where(used, draft_token_ids, 0)  # padding may be any number
    accepted = used & accept_tokens(
        draft_token_ids, draft_probs, target_probs, uniforms[:, :k]
    )
    num_accepted = accepted.long().cumprod(dim=1).sum(dim=1)  # [batch]
    weights = _next_token_weights(
        draft_token_ids, draft_probs, target_probs, num_accepted, num_draft_tokens
    )
    token = inverse_cdf(weights, uniforms[:, k])  # [batch]
    return ChainResult(assemble(draft_token_ids, token, num_accepted), num_accepted)


def accept_tokens(
    draft_token_ids: Tensor,
    draft_probs: Tensor | None,
    target_probs: Tensor,
    uniforms: Tensor,
) -> Tensor:
    """Test every draft token by itself: bool [batch, k], True where ``u q < p``."""
    ids = draft_token_ids.unsqueeze(-1)
    k = draft_token_ids.shape[1]
    p = target_probs[:, :k].gather(2, ids).squeeze(-1).to(torch.float64)  # [batch, k]
    if draft_probs is None:
        q = torch.ones_like(p)
    else:
        q = draft_probs.gather(2, ids).squeeze(-1).to(torch.float64)
    # u q < p follows from q <= p in the reals, but u q rounds up to q among subnormals.
    return (uniforms.to(torch.float64) * q < p) | ((q <= p) & (p > 0))


def assemble(draft_token_ids: Tensor, token: Tensor, num_accepted: Tensor) -> Tensor:
    """Lay out accepted drafts, then `token`, then placeholders: int64 [batch, k + 1]."""
    padded = torch.cat([draft_token_ids, token.unsqueeze(1)], dim=1)  # [batch, k + 1]
    position, last = _positions(padded), num_accepted.unsqueeze(1)
    output = torch.where(position < last, padded, PLACEHOLDER_TOKEN_ID)
    return torch.where(position == last, token.unsqueeze(1), output)


def _positions(table: Tensor) -> Tensor:
    return torch.arange(table.shape[1], device=table.device).unsqueeze(0)


def _next_token_weights(
    draft_token_ids: Tensor,
    draft_probs: Tensor | None,
    target_probs: Tensor,
    num_accepted: Tensor,
    num_draft_tokens: Tensor,
) -> Tensor:
    """Form the one row that a sequence needs: residual, or p for a bonus token."""
    batch, k = draft_token_ids.shape
    rows = torch.arange(batch, device=target_probs.device)
    target_row = target_probs[rows, num_accepted].to(torch.float64)  # [batch, vocab]
    if k == 0:
        return target_row
    position = num_accepted.clamp_max(k - 1)
    if draft_probs is None:
        draft_row = torch.zeros_like(target_row)
        rejected = draft_token_ids[rows, position]
        draft_row.scatter_(1, rejected.unsqueeze(1), 1.0)
    else:
        draft_row = draft_probs[rows, position].to(torch.float64)
    full = (num_accepted == num_draft_tokens).unsqueeze(1)  # [batch, 1]
    return residual_weights(target_row, torch.where(full, 0.0, draft_row))
