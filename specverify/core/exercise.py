# SPDX-License-Identifier: Apache-2.0
"""One sequence in, a list out: the form in which tutorials teach the algorithm.

`speculative_verify` is the exercise as it is usually set: it returns the accepted prefix
and nothing more. That is not yet lossless. Emitting only accepted tokens gives token x
the law ``min(p, q)(x)``, normalised, at the first position; the missing mass ``(p - q)+``
is what `speculative_decode_step` adds with its recovered token.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specverify.core.residual import residual_weights
from specverify.core.sampling import inverse_cdf


def speculative_verify(
    draft_probs: Tensor, target_probs: Tensor, draft_tokens: Sequence[int] | Tensor
) -> list[int]:
    """Return the accepted prefix of `draft_tokens`.

    ``torch.rand(1)`` is drawn once for each token with p < q and never otherwise, so a
    test may replace `torch.rand` by a script.

    Parameters
    ----------
    draft_probs
        q, at least [k, vocab]; non-negative, may be unnormalised.
    target_probs
        p on the same scale, at least [k, vocab].
    draft_tokens
        The k drafted token ids.

    Returns
    -------
    list of int
        The tokens before the first rejection.

    Raises
    ------
    ValueError
        Too few rows, or a token id outside the vocabulary.
    """
    tokens = [int(token) for token in draft_tokens]
    _check_rows("draft_probs", draft_probs, len(tokens), tokens)
    _check_rows("target_probs", target_probs, len(tokens), tokens)
    accepted: list[int] = []
    for position, token in enumerate(tokens):
        p = float(target_probs[position, token])
        q = float(draft_probs[position, token])
        if p < q and not float(torch.rand(1)) * q < p:
            break
        accepted.append(token)
    return accepted


def speculative_decode_step(
    draft_probs: Tensor, target_probs: Tensor, draft_tokens: Sequence[int] | Tensor
) -> list[int]:
    """Return the accepted prefix and one recovered or bonus token: lossless.

    Parameters
    ----------
    draft_probs
        q [k, vocab]; non-negative, rows are normalised here.
    target_probs
        p [k + 1, vocab], likewise.
    draft_tokens
        k token ids, token i drawn from row i of `draft_probs`.

    Returns
    -------
    list of int
        Between 1 and k + 1 tokens whose law is the target's.

    Raises
    ------
    ValueError
        Too few rows, or a token id outside the vocabulary.
    """
    tokens = [int(token) for token in draft_tokens]
    _check_rows("target_probs", target_probs, len(tokens) + 1, tokens)
    p = target_probs.double() / target_probs.double().sum(dim=-1, keepdim=True)
    q = draft_probs.double() / draft_probs.double().sum(dim=-1, keepdim=True)
    if q.shape[-1] != p.shape[-1]:
        msg = (
            f"draft_probs has shape {list(q.shape)}; target_probs of shape "
            f"{list(p.shape)} asks for a vocabulary of {p.shape[-1]}"
        )
        raise ValueError(msg)
    emitted = speculative_verify(q, p, tokens)
    position = len(emitted)
    if position < len(tokens):
        weights = residual_weights(p[position : position + 1], q[position, None])
    else:
        weights = p[position : position + 1]
    return [*emitted, int(inverse_cdf(weights, torch.rand(1).to(weights.device)))]


def _check_rows(name: str, probs: Tensor, rows: int, tokens: Sequence[int]) -> None:
    if probs.ndim != 2 or probs.shape[0] < rows:
        msg = (
            f"{name} has shape {list(probs.shape)}; {len(tokens)} draft tokens need "
            f"at least {rows} rows: [{rows}, vocab]"
        )
        raise ValueError(msg)
    used = probs[:rows]
    if not bool((torch.isfinite(used) & (used >= 0)).all()):
        msg = f"{name} holds negative numbers, NaN or infinity; allowed are 0 and more"
        raise ValueError(msg)
    outside = [token for token in tokens if not 0 <= token < probs.shape[1]]
    if outside:
        msg = (
            f"draft_tokens holds {outside[0]}; allowed is 0 to {probs.shape[1] - 1}, "
            f"the vocabulary of {name}"
        )
        raise ValueError(msg)
