# SPDX-License-Identifier: Apache-2.0
"""Rules that look at the target only: a draft is kept where the target agrees with it.

They are lossless whatever the drafts are and whoever made them, since no draft law enters:
what they emit is drawn from the target, and the drafts decide only how much of it one step
can emit.
"""

from __future__ import annotations

import torch
from torch import Tensor

from specverify.core.chain import verify_chain
from specverify.core.sampling import inverse_cdf
from specverify.core.steps import ChainResult, ChainStep, assemble
from specverify.core.validation import check_extra, check_metadata, check_values


def verify_match(
    draft_token_ids: Tensor,
    draft_probs: Tensor | None,
    target_probs: Tensor,
    *,
    generator: torch.Generator | None = None,
    uniforms: Tensor | None = None,
    num_draft_tokens: Tensor | None = None,
    validate: bool | None = None,
) -> ChainResult:
    """Sample the target at every position; accept drafts while they match the samples.

    Parameters
    ----------
    draft_token_ids, draft_probs, target_probs
        As in `specverify.core.chain.verify_chain`; `draft_probs` is checked and not used.
    generator, num_draft_tokens, validate
        As there.
    uniforms
        [batch, k + 1] in [0, 1): one for the target sample at each position.

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
    The sample that does not match is itself the recovered token; drawing a fresh one would
    be lossy. A draft x is accepted with probability p(x), on average ``sum p q``. Takes
    O(k vocab) a sequence.
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
    samples = inverse_cdf(target_probs.flatten(0, 1), step.uniforms.flatten())
    return keep_matches(step, samples.view(-1, step.k + 1))


def verify_greedy(
    draft_token_ids: Tensor,
    draft_probs: Tensor | None,
    target_probs: Tensor,
    *,
    num_draft_tokens: Tensor | None = None,
    validate: bool | None = None,
) -> ChainResult:
    """Accept drafts while each is the target's most likely token: greedy decoding.

    What is emitted is the path of most likely tokens, of ties the one with the lowest id;
    no randomness is drawn.

    Parameters
    ----------
    draft_token_ids, draft_probs, target_probs, num_draft_tokens, validate
        As in `verify_match`.

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
    return keep_matches(step, target_probs.argmax(dim=-1))


def verify_one_hot(
    draft_token_ids: Tensor,
    draft_probs: Tensor | None,
    target_probs: Tensor,
    *,
    generator: torch.Generator | None = None,
    uniforms: Tensor | None = None,
    num_draft_tokens: Tensor | None = None,
    validate: bool | None = None,
) -> ChainResult:
    """Verify deterministic drafts (n-gram, prompt lookup, argmax): q is one-hot.

    Accepts draft x with probability p(x) and recovers from p without x. The law of what
    is emitted and accepted is that of `verify_match`; one row a sequence is needed here.

    Parameters
    ----------
    draft_token_ids, draft_probs, target_probs
        As in `verify_match`; `draft_probs` is not looked at: the softmax of a draft model
        is not the law of its argmax.
    generator, uniforms, num_draft_tokens, validate
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
    del draft_probs
    return verify_chain(
        draft_token_ids,
        None,
        target_probs,
        generator=generator,
        uniforms=uniforms,
        num_draft_tokens=num_draft_tokens,
        validate=validate,
    )


def verify_mixed(
    draft_token_ids: Tensor,
    draft_probs: Tensor | None,
    target_probs: Tensor,
    *,
    greedy: Tensor,
    generator: torch.Generator | None = None,
    uniforms: Tensor | None = None,
    num_draft_tokens: Tensor | None = None,
    validate: bool | None = None,
) -> ChainResult:
    """Verify a batch in which some rows decode greedily and the others sample.

    Parameters
    ----------
    draft_token_ids, draft_probs, target_probs
        As in `specverify.core.chain.verify_chain`.
    greedy
        bool [batch]: rows whose target is its most likely token, as in `verify_greedy`.
    generator, uniforms, num_draft_tokens, validate
        As in `specverify.core.chain.verify_chain`.

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
    Token-level verification against a one-hot target is greedy verification, whatever q
    is: the most likely token is accepted, any other rejected, and the residual is the
    most likely token. So the rows differ in their target only.
    """
    check_metadata(
        draft_token_ids, draft_probs, target_probs, uniforms, num_draft_tokens
    )
    check_extra(
        "greedy", greedy, tuple(target_probs.shape[:1]), "[batch]", target_probs
    )
    # A greedy row becomes one-hot whatever it holds, so what it holds is checked here.
    if validate if validate is not None else target_probs.device.type == "cpu":
        check_values(draft_token_ids, None, target_probs, uniforms, num_draft_tokens)
    if greedy.dtype != torch.bool:
        msg = f"greedy has dtype {greedy.dtype}; allowed is torch.bool"
        raise TypeError(msg)
    return verify_chain(
        draft_token_ids,
        draft_probs,
        torch.where(greedy[:, None, None], greedy_probs(target_probs), target_probs),
        generator=generator,
        uniforms=uniforms,
        num_draft_tokens=num_draft_tokens,
        validate=validate,
    )


def greedy_probs(probs: Tensor) -> Tensor:
    """One-hot rows at the most likely token, of ties the lowest id: [..., vocab]."""
    best = probs.argmax(dim=-1, keepdim=True)
    return torch.zeros_like(probs).scatter_(-1, best, 1.0)


def keep_matches(step: ChainStep, samples: Tensor) -> ChainResult:
    """Emit target samples up to the first that is not the draft.

    Parameters
    ----------
    step
        The drafts.
    samples
        int64 [batch, k + 1]: what the target says at each position.
    """
    accepted = samples[:, : step.k] == step.draft_token_ids
    num_accepted = step.accepted_prefix(accepted)
    token = samples.gather(1, num_accepted.unsqueeze(1)).squeeze(1)
    output = assemble(step.draft_token_ids, token, num_accepted)
    return ChainResult(output, num_accepted)
