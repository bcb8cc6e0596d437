# SPDX-License-Identifier: Apache-2.0
"""The exact law of the texts that a decoder writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from specverify.exact.enumeration import ExactLaw, exact_law
from specverify.inputs.generation import Generation
from specverify.subjects.faults import SubjectFault
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
    SubjectFault
        An answer that is no int64 [batch, tokens], or has a token behind a -1.
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
        return tuple(_text(row) for row in _checked(ids, len(prompts)).tolist())

    return exact_law(
        texts, max_branches=max_branches, seconds=seconds, generators=[generator]
    )


def _checked(ids: Any, batch: int) -> Tensor:
    if not isinstance(ids, Tensor) or ids.dtype != torch.int64 or ids.ndim != 2:
        found = f"{ids.dtype} {list(ids.shape)}" if isinstance(ids, Tensor) else ids
        msg = f"the decoder returned {found}; due is a tensor int64 [batch, tokens]"
        raise SubjectFault(msg)
    if len(ids) != batch:
        msg = f"the decoder returned {len(ids)} rows for {batch} prompts"
        raise SubjectFault(msg)
    return ids


def _text(row: list[int]) -> tuple[int, ...]:
    """Tokens up to the first placeholder, behind which nothing may stand."""
    end = row.index(_PLACEHOLDER) if _PLACEHOLDER in row else len(row)
    if any(token != _PLACEHOLDER for token in row[end:]):
        msg = f"the decoder returned {row}; due is -1 from the first one to the end"
        raise SubjectFault(msg)
    return tuple(row[:end])
