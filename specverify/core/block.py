# SPDX-License-Identifier: Apache-2.0
"""Block verification: test whole prefixes of a draft instead of one token at a time.

The rule of Sun et al. (2025). It emits the same law as token-level verification and
accepts at least as many drafts, on average the most that any rule can that sees one
drafted path and corrects it with one token. The hierarchical rule of HSD (2026,
equations 16 to 20) is the same rule in other symbols; see `specverify.laws.block`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from specverify.core.residual import residual_weights
from specverify.core.steps import ChainResult, ChainStep


def verify_block(
    draft_token_ids: Tensor,
    draft_probs: Tensor | None,
    target_probs: Tensor,
    *,
    generator: torch.Generator | None = None,
    uniforms: Tensor | None = None,
    num_draft_tokens: Tensor | None = None,
    validate: bool | None = None,
) -> ChainResult:
    """Verify one chain of draft tokens a row as a block, losslessly.

    Parameters
    ----------
    draft_token_ids, draft_probs, target_probs
        As in `specverify.core.chain.verify_chain`: int64 [batch, k], floating
        [batch, k, vocab] or None, floating [batch, k + 1, vocab].
    generator, uniforms, num_draft_tokens, validate
        As there.

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
    With ``b_0 = 1``, ``b_i = min(1, b_{i-1} p(x_i)/q(x_i))`` and, at every position i
    before the last, ``S_i = sum (b_i p - q)+``, a prefix of i drafts passes with
    probability ``h_i = S_i / (S_i + 1 - b_i)``, all of them with ``h_k = b_k``; the tests
    are independent and the longest prefix that passes is accepted, whatever became of the
    shorter ones. The recovered token comes from ``(b p - q)+``. Law:
    ``P(accepted >= i, x_1..x_i) = Q(x_1..x_i) b_i``.

    Takes O(k vocab) a sequence: every position needs its residual mass, where token-level
    verification needs one row.

    References
    ----------
    Sun, Mendlovic, Leviathan et al.: Block verification accelerates speculative decoding,
    ICLR 2025.
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
    return verify_opened_block(step)


def verify_opened_block(step: ChainStep) -> ChainResult:
    """Apply the rule to arguments that have been checked."""
    weights = block_weights(*step.drafted())  # [batch, k + 1]
    passed = step.used & (step.uniforms[:, : step.k] < _pass_rates(step, weights))
    position = torch.arange(1, step.k + 1, device=passed.device)
    lengths = torch.where(passed, position, 0)
    start = torch.zeros_like(step.num_draft_tokens).unsqueeze(1)
    num_accepted = torch.cat([start, lengths], dim=1).amax(dim=1)  # [batch]
    p, q = step.rows(num_accepted)
    b = weights.gather(1, num_accepted.unsqueeze(1))  # [batch, 1]
    # Behind all drafts q is zero and b a mere scale: the bonus token comes from p.
    return step.emit(num_accepted, residual_weights(b * p, q, otherwise=p))


def block_weights(p: Tensor, q: Tensor) -> Tensor:
    """Weights ``b_0 = 1, b_i = min(1, b_{i-1} p_i/q_i)`` of the drafted prefixes.

    Computed as ``log b_i = S_i - max(0, S_1, .., S_i)`` from the sums S of log ratios, so
    that a long draft neither underflows nor overflows.

    Parameters
    ----------
    p, q
        Probabilities of the drafts under target and draft: float64 [batch, k].

    Returns
    -------
    Tensor
        float64 [batch, k + 1].
    """
    ratios = (p.log() - q.log()).cumsum(dim=1)  # [batch, k]
    sums = torch.cat([p.new_zeros((len(p), 1)), ratios], dim=1)
    return torch.exp(sums - sums.cummax(dim=1).values)


def _pass_rates(step: ChainStep, weights: Tensor) -> Tensor:
    """Probability h_i with which each prefix of 1 to k drafts passes: [batch, k]."""
    k = step.k
    b = weights[:, 1:]  # [batch, k]
    if k == 0:
        return b
    # The row behind prefix i is row i; behind the last there is no q to compare with.
    p = step.target_probs[:, 1:k].to(torch.float64)  # [batch, k - 1, vocab]
    excess = b[:, : k - 1, None] * p
    if step.draft_probs is None:
        # One-hot q covers at most what its token has: the others are left over.
        ids = step.draft_token_ids[:, 1:].unsqueeze(-1)
        excess = excess.scatter(2, ids, 0.0)
    else:
        excess = (excess - step.draft_probs[:, 1:].to(torch.float64)).clamp_min(0)
    left = excess.sum(dim=-1)  # [batch, k - 1]
    short = 1 - b[:, : k - 1]
    # 0/0 is a prefix with b = 1 and p = q behind it: it passes.
    inner = torch.where(short <= 0, 1.0, left / (left + short))
    rates = torch.cat([inner, b[:, k - 1 :]], dim=1)
    last = torch.arange(1, k + 1, device=b.device) == step.num_draft_tokens.unsqueeze(1)
    return torch.where(last, b, rates)
