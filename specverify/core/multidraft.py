# SPDX-License-Identifier: Apache-2.0
"""Several drafts at one position: each rule accepts one of them or recovers a token.

All functions share one form: ``(draft_token_ids [batch, n], draft_probs [batch, vocab],
target_probs [batch, vocab])`` to a `MultidraftResult`. They differ in how the drafts must
have been drawn, which no rule can see from the drafts; a wrong declaration is lossy. Rules
for drafts that are constructed or chosen from are in `selection`.

An empty slot, id -1, is skipped: where q has fewer tokens than there are slots.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor

from specverify.core.chain import accept_tokens
from specverify.core.residual import residual_weights
from specverify.core.sampling import inverse_cdf
from specverify.core.steps import PLACEHOLDER_TOKEN_ID, MultidraftResult, MultidraftStep

#: Halvings of [1, n] in the search for rho: more than float64 can tell apart.
_BISECTIONS: Final = 60


def verify_with_replacement(
    draft_token_ids: Tensor,
    draft_probs: Tensor,
    target_probs: Tensor,
    *,
    generator: torch.Generator | None = None,
    uniforms: Tensor | None = None,
    validate: bool | None = None,
) -> MultidraftResult:
    """Recursive rejection for independent drafts: multi-step speculative sampling.

    Parameters
    ----------
    draft_token_ids
        int64 [batch, n], n at least 1; each drawn from `draft_probs`, independently.
    draft_probs
        q: floating [batch, vocab].
    target_probs
        p: floating [batch, vocab].
    generator
        The only source of randomness, on the device of `target_probs`; None is torch's
        global generator.
    uniforms
        In place of a generator: [batch, n + 1] in [0, 1), the last for the recovered
        token.
    validate
        Whether to look at the values; by default on the CPU only.

    Returns
    -------
    MultidraftResult
        Token and slot of the accepted draft.

    Raises
    ------
    ValueError, TypeError
        A bad argument: the message names it, what was found and what is allowed.

    Notes
    -----
    Every rejection replaces p by its residual ``(p - q)+``, normalised, and the next draft
    is tested against that. Acceptance is ``1 - prod_i (1 - sum min(p_i, q))``. Takes
    O(n vocab) a sequence.

    References
    ----------
    Miao et al.: SpecInfer, ASPLOS 2024.
    """
    step = MultidraftStep.open(
        draft_token_ids,
        draft_probs,
        target_probs,
        generator=generator,
        uniforms=uniforms,
        validate=validate,
    )
    return _recursive(step, lambda q, token: q)


def verify_without_replacement(
    draft_token_ids: Tensor,
    draft_probs: Tensor,
    target_probs: Tensor,
    *,
    generator: torch.Generator | None = None,
    uniforms: Tensor | None = None,
    validate: bool | None = None,
) -> MultidraftResult:
    """Recursive rejection for drafts drawn one after the other without replacement.

    Parameters
    ----------
    draft_token_ids
        int64 [batch, n]: the first drawn from q, the second from q without it, and so on,
        in this order (as Gumbel-top-n draws them).
    draft_probs, target_probs, generator, uniforms, validate
        As in `verify_with_replacement`.

    Returns
    -------
    MultidraftResult
        Token and slot of the accepted draft.

    Raises
    ------
    ValueError, TypeError
        A bad argument: the message names it, what was found and what is allowed.

    Notes
    -----
    Besides p, every rejection also takes the rejected token out of q. With as many drafts
    as q has tokens something is accepted for sure.

    References
    ----------
    Chen et al.: Sequoia, NeurIPS 2024. Jeon et al.: Recursive speculative decoding, 2024.
    """
    step = MultidraftStep.open(
        draft_token_ids,
        draft_probs,
        target_probs,
        generator=generator,
        uniforms=uniforms,
        validate=validate,
    )
    return _recursive(step, without)


def verify_kseq(
    draft_token_ids: Tensor,
    draft_probs: Tensor,
    target_probs: Tensor,
    *,
    generator: torch.Generator | None = None,
    uniforms: Tensor | None = None,
    validate: bool | None = None,
) -> MultidraftResult:
    """K-SEQ for independent drafts: test all with one damped ratio.

    Parameters
    ----------
    draft_token_ids, draft_probs, target_probs, generator, uniforms, validate
        As in `verify_with_replacement`.

    Returns
    -------
    MultidraftResult
        Token and slot of the accepted draft.

    Raises
    ------
    ValueError, TypeError
        A bad argument: the message names it, what was found and what is allowed.

    Notes
    -----
    Every draft is accepted with probability ``min(1, p/(rho q))``; what is missing comes
    from ``p - min(p/rho, q) (1 - (1 - b)^n)/b`` with ``b = sum min(p/rho, q)``. That is
    non-negative from the rho of `kseq_rho` on; rho = 1 is lossy. Acceptance is
    ``1 - (1 - b)^n``, at least ``1 - 1/e`` of the best possible.

    References
    ----------
    Sun et al.: SpecTr: Fast speculative decoding via optimal transport, NeurIPS 2023.
    """
    step = MultidraftStep.open(
        draft_token_ids,
        draft_probs,
        target_probs,
        generator=generator,
        uniforms=uniforms,
        validate=validate,
    )
    n = (draft_token_ids >= 0).sum(dim=1)  # [batch]
    rho = kseq_rho(step.q, step.p, n).unsqueeze(1)  # [batch, 1]
    accepted = torch.full_like(draft_token_ids[:, 0], PLACEHOLDER_TOKEN_ID)
    for slot in range(step.n):
        p, q = token_masses(step.p, step.q, step.token(slot))
        passed = accept_tokens(p, rho[:, 0] * q, step.uniforms[:, slot])
        fresh = (accepted < 0) & step.filled(slot) & passed
        accepted = torch.where(fresh, slot, accepted)
    common = torch.minimum(step.p / rho, step.q)
    b = common.sum(dim=1, keepdim=True)
    offered = torch.where(b > 0, (1 - (1 - b) ** n.unsqueeze(1)) / b, 0.0)
    return step.finish(accepted, residual_weights(step.p, common * offered))


def verify_target_only(
    draft_token_ids: Tensor,
    draft_probs: Tensor | None,
    target_probs: Tensor,
    *,
    generator: torch.Generator | None = None,
    uniforms: Tensor | None = None,
    validate: bool | None = None,
) -> MultidraftResult:
    """Sample the target; the drafts that are the sample count as accepted.

    Lossless for any drafts, and for distinct deterministic ones the best that can be done:
    they are accepted with probability p(S).

    Parameters
    ----------
    draft_token_ids, target_probs, generator, validate
        As in `verify_with_replacement`, with drafts from anywhere.
    draft_probs
        Checked and not used; may be None.
    uniforms
        [batch, n + 1] in [0, 1), of which the last decides.

    Returns
    -------
    MultidraftResult
        Token and first slot that holds it.

    Raises
    ------
    ValueError, TypeError
        A bad argument: the message names it, what was found and what is allowed.
    """
    step = MultidraftStep.open(
        draft_token_ids,
        draft_probs,
        target_probs,
        generator=generator,
        uniforms=uniforms,
        validate=validate,
        any_drafts=True,
    )
    token = inverse_cdf(step.p, step.uniforms[:, step.n])
    return MultidraftResult(token, step.first_slot(token))


def kseq_rho(draft_probs: Tensor, target_probs: Tensor, n: int | Tensor) -> Tensor:
    """Smallest damping with which n independent drafts stay lossless.

    The root of ``1 - (1 - b)^n = rho b`` with ``b = sum min(p/rho, q)``, by bisection on
    [1, n]; the upper end is returned, where the residual cannot be negative.

    Parameters
    ----------
    draft_probs, target_probs
        q and p, [batch, vocab].
    n
        Number of drafts, or int64 [batch] where it differs.

    Returns
    -------
    Tensor
        float64 [batch].
    """
    q, p = draft_probs.to(torch.float64), target_probs.to(torch.float64)
    low = torch.ones_like(p[:, 0])
    high = low * n if isinstance(n, int) else low * n.clamp_min(1)
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        b = torch.minimum(p / middle.unsqueeze(1), q).sum(dim=1)
        short = 1 - (1 - b) ** n > middle * b  # more is offered than p can take
        low = torch.where(short, middle, low)
        high = torch.where(short, high, middle)
    return high


def without(q: Tensor, token: Tensor) -> Tensor:
    """Take one token a row out of q and normalise; zero where nothing is left."""
    rest = q.scatter(1, token.unsqueeze(1), 0.0)
    return rest / rest.sum(dim=1, keepdim=True).clamp_min(torch.finfo(q.dtype).tiny)


def _recursive(
    step: MultidraftStep, after: Callable[[Tensor, Tensor], Tensor]
) -> MultidraftResult:
    """Test slot by slot; `after` says what q is once a token has been rejected."""
    p, q = step.p, step.q
    accepted = torch.full_like(step.draft_token_ids[:, 0], PLACEHOLDER_TOKEN_ID)
    for slot in range(step.n):
        token, filled = step.token(slot), step.filled(slot)
        passed = accept_tokens(*token_masses(p, q, token), step.uniforms[:, slot])
        accepted = torch.where((accepted < 0) & filled & passed, slot, accepted)
        rejected = ((accepted < 0) & filled).unsqueeze(1)
        left = residual_weights(p, q)
        p = torch.where(rejected, left / left.sum(dim=1, keepdim=True), p)
        q = torch.where(rejected, after(q, token), q)
    return step.finish(accepted, p)


def token_masses(p: Tensor, q: Tensor, token: Tensor) -> tuple[Tensor, Tensor]:
    """Probabilities of one token a row: [batch] each."""
    index = token.unsqueeze(1)
    return p.gather(1, index).squeeze(1), q.gather(1, index).squeeze(1)
