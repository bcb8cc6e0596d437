# SPDX-License-Identifier: Apache-2.0
"""Several drafts at one position that are constructed, or chosen from, with q in view.

The constructed pairs and sets reach the best acceptance that their way of drawing allows;
how far a choice falls short of it depends on the choice. See `specverify.laws.bounds`.
Arguments and results are those of `specverify.core.multidraft`, the ways of drawing those
of `specverify.core.drafting`.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from specverify.core.chain import accept_tokens
from specverify.core.multidraft import token_masses, without
from specverify.core.residual import residual_weights
from specverify.core.steps import PLACEHOLDER_TOKEN_ID, MultidraftResult, MultidraftStep
from specverify.core.validation import check_extra

_PAIR: Final = 2


def verify_hub(
    draft_token_ids: Tensor,
    draft_probs: Tensor,
    target_probs: Tensor,
    *,
    generator: torch.Generator | None = None,
    uniforms: Tensor | None = None,
    validate: bool | None = None,
) -> MultidraftResult:
    """SpecHub: two drafts, one of which is the most likely token, the hub.

    Parameters
    ----------
    draft_token_ids
        int64 [batch, 2], drawn with ``drafts="hub"``: the hub a stands in one slot, and
        ``P(i, a) = q(i)``, ``P(a, i) = q(a) q(i) / (1 - q(a))``.
    draft_probs, target_probs, generator, uniforms, validate
        As in `specverify.core.multidraft.verify_with_replacement`.

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
    Each test takes for its token as much as p has left for it: first i of the pairs
    (i, a), then i of the pairs (a, i), then a of what is left of the pairs (a, i), then a
    of what is left of the pairs (i, a). Takes O(vocab) a sequence and is optimal for its
    law of drafts.

    References
    ----------
    Sun et al.: SpecHub: Provable acceleration to multi-draft speculative decoding, 2024.
    """
    step = MultidraftStep.open(
        draft_token_ids,
        draft_probs,
        target_probs,
        generator=generator,
        uniforms=uniforms,
        validate=validate,
    )
    if step.n != _PAIR:
        msg = f"draft_token_ids has {step.n} slots; SpecHub takes pairs: [batch, 2]"
        raise ValueError(msg)
    p, q = step.p, step.q
    hub = q.argmax(dim=1, keepdim=True)  # [batch, 1]
    hub_mass = q.gather(1, hub)  # [batch, 1]
    head = q.scatter(1, hub, 0.0)  # mass of (i, a)
    tail = without(q, hub[:, 0]) * hub_mass  # mass of (a, i)
    others = p.scatter(1, hub, 0.0)
    after_head = (others - head).clamp_min(0)
    left = (after_head - tail).clamp_min(0)  # of p, for the others
    open_tail = hub_mass - torch.minimum(tail, after_head).sum(dim=1, keepdim=True)
    open_tail = open_tail.clamp_min(0)
    open_head = (head - others).clamp_min(0).sum(dim=1, keepdim=True)
    for_hub = p.gather(1, hub)
    for_hub_then = (for_hub - open_tail).clamp_min(0)

    hub_first = step.draft_token_ids[:, :1] == hub  # [batch, 1]
    other_slot = hub_first.long()
    other = step.draft_token_ids.gather(1, other_slot)
    index = other.clamp_min(0)
    due = torch.where(hub_first, after_head.gather(1, index), p.gather(1, index))
    offered = torch.where(hub_first, tail.gather(1, index), head.gather(1, index))
    takes_other = (other >= 0) & accept_tokens(due, offered, step.uniforms[:, :1])
    takes_hub = accept_tokens(
        torch.where(hub_first, for_hub, for_hub_then),
        torch.where(hub_first, open_tail, open_head),
        step.uniforms[:, 1:2],
    )
    accepted = torch.where(takes_hub, 1 - other_slot, PLACEHOLDER_TOKEN_ID)
    accepted = torch.where(takes_other, other_slot, accepted)[:, 0]
    weights = left.scatter(1, hub, (for_hub_then - open_head).clamp_min(0))
    return step.finish(accepted, residual_weights(weights, 0 * weights, otherwise=p))


def verify_greedy_draft(
    draft_token_ids: Tensor,
    draft_probs: Tensor,
    target_probs: Tensor,
    *,
    generator: torch.Generator | None = None,
    uniforms: Tensor | None = None,
    validate: bool | None = None,
) -> MultidraftResult:
    """Greedy draft construction: the n - 1 most likely tokens and one drawn from the rest.

    Parameters
    ----------
    draft_token_ids
        int64 [batch, n], drawn with ``drafts="greedy"``: the last slot holds the drawn
        token.
    draft_probs, target_probs, generator, uniforms, validate
        As in `specverify.core.multidraft.verify_with_replacement`; of the uniforms the
        first tests the drawn token.

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
    The drawn token is tested first, with all of p; then the residual is drawn, and where
    it is one of the fixed tokens T it counts as accepted. Acceptance is
    ``p(T) + sum min(p, q / (1 - q(T)))`` outside T, the best for this law of drafts;
    testing T first would be lossless and accept less. Takes O(vocab) a sequence.

    References
    ----------
    Hu et al.: Towards optimal multi-draft speculative decoding, ICLR 2025.
    """
    step = MultidraftStep.open(
        draft_token_ids,
        draft_probs,
        target_probs,
        generator=generator,
        uniforms=uniforms,
        validate=validate,
    )
    q, last = step.q, step.n - 1
    for slot in range(last):
        taken = without(q, step.token(slot))
        q = torch.where(step.filled(slot).unsqueeze(1), taken, q)
    passed = accept_tokens(
        *token_masses(step.p, q, step.token(last)), step.uniforms[:, 0]
    )
    accepted = torch.where(step.filled(last) & passed, last, PLACEHOLDER_TOKEN_ID)
    result = step.finish(accepted, residual_weights(step.p, q))
    # A recovered token is outside the drawn slot's excess, so it can only be one of T.
    hit = step.first_slot(result.token_ids)
    return MultidraftResult(result.token_ids, torch.where(accepted < 0, hit, accepted))


def verify_selected(
    draft_token_ids: Tensor,
    draft_probs: Tensor,
    target_probs: Tensor,
    *,
    weights: Tensor | None = None,
    generator: torch.Generator | None = None,
    uniforms: Tensor | None = None,
    validate: bool | None = None,
) -> MultidraftResult:
    """Choose one of n independent drafts, then test that one against its own law.

    Parameters
    ----------
    draft_token_ids, draft_probs, target_probs, generator, validate
        As in `specverify.core.multidraft.verify_with_replacement`.
    weights
        For n = 2, [batch, vocab, vocab] in [0, 1]: probability of choosing the first
        draft, given both. Any choice is lossless; by default the draft with the larger
        p/q is chosen, of ties the lower id.
    uniforms
        [batch, n + 1] in [0, 1): the first tests, the second chooses where `weights` are
        given, the last is for the recovered token.

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
    The law r of the chosen token is known: with F the mass of q at tokens ranked no
    better, ``r = F^n - (F - q)^n``. Testing the chosen token with q in place of r is the
    lossy mistake that choosing by value invites. Takes O(vocab log vocab) a sequence, or
    O(vocab^2) with weights.

    References
    ----------
    Khisti et al.: Multi-draft speculative sampling: canonical decomposition and
    theoretical limits, ICLR 2025.
    """
    step = MultidraftStep.open(
        draft_token_ids,
        draft_probs,
        target_probs,
        generator=generator,
        uniforms=uniforms,
        validate=validate,
    )
    if weights is None:
        r, slot = _best_ranked(step)
    else:
        r, slot = _weighted(step, weights)
    token = step.draft_token_ids.gather(1, slot.unsqueeze(1)).squeeze(1)
    masses = token_masses(step.p, r, token.clamp_min(0))
    passed = (token >= 0) & accept_tokens(*masses, step.uniforms[:, 0])
    accepted = torch.where(passed, slot, PLACEHOLDER_TOKEN_ID)
    return step.finish(accepted, residual_weights(step.p, r))


def ranked(p: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
    """Rank the tokens by p/q, largest first.

    Parameters
    ----------
    p, q
        float64 [batch, vocab]; a token with q = 0 ranks first.

    Returns
    -------
    tuple
        Place of every token, int64 [batch, vocab], and the mass of q that is ranked
        below it, float64 [batch, vocab].
    """
    ratio = torch.where(q > 0, p / q, torch.inf)
    order = ratio.argsort(dim=1, descending=True, stable=True)  # best first
    sorted_q = q.gather(1, order)
    # Summed from the worst up, so that small tails keep their digits.
    below = (sorted_q.flip(1).cumsum(dim=1).flip(1) - sorted_q).clamp_min(0)
    places = torch.arange(order.shape[1], device=order.device).expand_as(order)
    rank = torch.empty_like(order).scatter_(1, order, places)
    return rank, torch.empty_like(below).scatter_(1, order, below)


def _best_ranked(step: MultidraftStep) -> tuple[Tensor, Tensor]:
    """Law of the draft with the largest p/q, and its slot: [batch, vocab], [batch]."""
    rank, below = ranked(step.p, step.q)
    filled = step.draft_token_ids >= 0
    n = filled.sum(dim=1, keepdim=True)  # without drafts r is zero
    place = rank.gather(1, step.draft_token_ids.clamp_min(0))
    slot = torch.where(filled, place, rank.shape[1]).argmin(dim=1)
    return (below + step.q) ** n - below**n, slot


def _weighted(step: MultidraftStep, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Law of the chosen draft, and its slot, for pairs chosen by weights."""
    batch, vocab = step.q.shape
    shape = (batch, vocab, vocab)
    check_extra("weights", weights, shape, "[batch, vocab, vocab]", step.p)
    if step.n != _PAIR:
        msg = (
            f"draft_token_ids has {step.n} slots; weights choose from pairs: [batch, 2]"
        )
        raise ValueError(msg)
    w = weights.to(torch.float64)
    first = (w * step.q.unsqueeze(1)).sum(dim=2)  # chosen, given it is the first draft
    second = ((1 - w) * step.q.unsqueeze(2)).sum(dim=1)
    rows = torch.arange(batch, device=w.device)
    chance = w[rows, step.token(0), step.token(1)]
    slot = (step.uniforms[:, 1].to(torch.float64) >= chance).long()
    one, other = step.filled(0), step.filled(1)
    both = (one & other).unsqueeze(1)  # a draft without another is chosen for sure
    r = torch.where(both, step.q * (first + second), step.q)
    r = torch.where((one | other).unsqueeze(1), r, 0.0)
    return r, torch.where(one == other, slot, other.long())
