# SPDX-License-Identifier: Apache-2.0
"""Gumbel coupling: draft and target race on shared noise, and no draft law is needed.

Both models sample by an exponential race over the same noise E: the token with the smallest
``E/q`` is the draft, the one with the smallest ``E/p`` is emitted. They are the same token
with probability ``sum_x 1 / sum_y max(p(y)/p(x), q(y)/q(x))``, at least
``(1 - TV)/(1 + TV)``. What is emitted is a function of noise and target alone, so for fixed
noise it does not depend on the drafter, its draft length or how often it is right.

Shared noise may be used with this rule only: a test ``u q < p`` or a residual drawn from
noise that the drafter has seen is lossy.

References
----------
Daliri, Musco, Suresh: Coupling without communication and drafter-invariant speculative
decoding, 2024.
"""

from __future__ import annotations

import torch
from torch import Tensor

from specverify.core.matching import keep_matches
from specverify.core.steps import ChainResult, ChainStep
from specverify.core.validation import check_extra, check_metadata


def race_noise(
    shape: tuple[int, ...],
    *,
    device: torch.device | str = "cpu",
    generator: torch.Generator | None = None,
) -> Tensor:
    """Draw standard exponentials for races: float64, positive.

    Parameters
    ----------
    shape
        [batch, positions, vocab].
    device, generator
        Where and from what to draw.
    """
    noise = torch.empty(shape, dtype=torch.float64, device=device)
    return noise.exponential_(generator=generator)


def race(probs: Tensor, noise: Tensor) -> Tensor:
    """Sample by an exponential race: the token with the smallest ``noise / probs``.

    Parameters
    ----------
    probs
        Floating [..., vocab], non-negative, not all zero in a row; any scale.
    noise
        Standard exponentials of the same shape.

    Returns
    -------
    Tensor
        int64 [...]; a token of probability zero never wins.
    """
    rates = probs.to(torch.float64)
    return torch.where(rates > 0, noise / rates, torch.inf).argmin(dim=-1)


def verify_coupled(
    draft_token_ids: Tensor,
    draft_probs: Tensor | None,
    target_probs: Tensor,
    *,
    generator: torch.Generator | None = None,
    noise: Tensor | None = None,
    num_draft_tokens: Tensor | None = None,
    validate: bool | None = None,
) -> ChainResult:
    """Race the target at every position; accept drafts while they are its winners.

    Parameters
    ----------
    draft_token_ids, draft_probs, target_probs
        As in `specverify.core.chain.verify_chain`; `draft_probs` is checked and not used.
    generator
        Source of the noise where none is given.
    noise
        Standard exponentials [batch, k + 1, vocab], those that the drafter raced on.
    num_draft_tokens, validate
        As in `specverify.core.chain.verify_chain`.

    Returns
    -------
    ChainResult
        Tokens and the number of accepted drafts.

    Raises
    ------
    ValueError, TypeError
        A bad argument: the message names it, what was found and what is allowed.
    """
    check_metadata(draft_token_ids, draft_probs, target_probs, None, num_draft_tokens)
    step = ChainStep.open(
        draft_token_ids,
        draft_probs,
        target_probs,
        uniforms=torch.zeros(
            target_probs.shape[:2], device=target_probs.device, dtype=torch.float64
        ),
        num_draft_tokens=num_draft_tokens,
        validate=validate,
    )
    shape = tuple(target_probs.shape)
    if noise is None:
        noise = race_noise(shape, device=target_probs.device, generator=generator)
    else:
        check_extra("noise", noise, shape, "[batch, k + 1, vocab]", target_probs)
    return keep_matches(step, race(target_probs, noise))
