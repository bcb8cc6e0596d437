# SPDX-License-Identifier: Apache-2.0
"""Token-level verification of a chain of drafts.

The rule of Leviathan, Kalman and Matias (2023) and of Chen et al. (2023): accept draft
token x with probability ``min(1, p(x)/q(x))``, stop at the first rejection and draw the
recovered token from ``(p - q)+``; when all drafts are accepted, draw a bonus token from
the target. The emitted tokens follow the target's law exactly.
"""

from __future__ import annotations

import torch
from torch import Tensor

from specverify.core.residual import residual_weights
from specverify.core.steps import ChainResult, ChainStep


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
    step = ChainStep.open(
        draft_token_ids,
        draft_probs,
        target_probs,
        generator=generator,
        uniforms=uniforms,
        num_draft_tokens=num_draft_tokens,
        validate=validate,
    )
    p, q = step.drafted()
    accepted = accept_tokens(p, q, step.uniforms[:, : step.k])
    num_accepted = step.accepted_prefix(accepted)
    return step.emit(num_accepted, residual_weights(*step.rows(num_accepted)))


def accept_tokens(p: Tensor, q: Tensor, uniforms: Tensor) -> Tensor:
    """Test drafts by themselves: True where ``u q < p``; p, q, u of one shape."""
    # u q < p follows from q <= p in the reals, but u q rounds up to q among subnormals.
    return (uniforms.to(torch.float64) * q < p) | ((q <= p) & (p > 0))
