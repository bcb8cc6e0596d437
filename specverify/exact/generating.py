# SPDX-License-Identifier: Apache-2.0
"""The exact law of the texts that a decoder writes."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from specverify.exact.enumeration import ExactLaw, exact_law
from specverify.inputs.generation import Generation
from specverify.subjects.networks import ToyNetwork

#: Ends a text before its length: what stands behind is no token.
_PLACEHOLDER = -1


def generation_law(
    decoder: Callable[..., Tensor],
    case: Generation,
    *,
    max_branches: int = 20_000,
    seconds: float = 60.0,
) -> ExactLaw:
    """Follow a decoder on all its branches.

    Parameters
    ----------
    decoder
        ``(target, draft, prompt_ids, *, max_new_tokens, generator) -> ids``.
    case
        What it is put to.
    max_branches, seconds
        Limits, see `exact_law`.

    Returns
    -------
    ExactLaw
        Outcomes are tuples with one text for each prompt, each a tuple of new tokens.

    Raises
    ------
    Unfollowed
        A use of random numbers that cannot be followed.
    """
    target, draft = ToyNetwork(case.target), ToyNetwork(case.draft)
    prompts, generator = torch.tensor(case.prompts), torch.Generator()

    def texts() -> tuple[tuple[int, ...], ...]:
        ids = decoder(
            target,
            draft,
            prompts,
            max_new_tokens=case.max_new_tokens,
            generator=generator,
        )
        return tuple(
            tuple(token for token in row if token != _PLACEHOLDER)
            for row in ids.tolist()
        )

    return exact_law(
        texts, max_branches=max_branches, seconds=seconds, generators=[generator]
    )
