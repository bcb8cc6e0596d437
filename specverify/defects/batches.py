# SPDX-License-Identifier: Apache-2.0
"""S: rows of a batch that get the numbers of other rows, and rows of unequal lengths."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor

from specverify import core
from specverify.defects.entry import Defect
from specverify.defects.verifier import Arguments, Verifier, up_to_rejection
from specverify.inputs import witnesses

_RAGGED: Final = {"ragged": True}


# --- rows of a batch ------------------------------------------------------------------


def _other_order(ids: Tensor, q: Tensor, p: Tensor) -> Arguments:
    return ids, q, p.flip(0)


def _first_for_all(ids: Tensor, q: Tensor, p: Tensor) -> Arguments:
    return ids, q, p[:1].expand_as(p)


def _q_of_neighbour(ids: Tensor, q: Tensor, p: Tensor) -> Arguments:
    return ids, q.roll(1, dims=0), p


def _by_column(ids: Tensor, q: Tensor, p: Tensor) -> Arguments:
    return ids.T.reshape(ids.shape), q, p


def _answers_shifted(ids: Tensor, tokens: Tensor, accepted: Tensor) -> Tensor:
    return up_to_rejection(ids, tokens, accepted).roll(1, dims=0)


class _ByPlace:
    """Keeps p of the first position by place in the batch, from call to call."""

    def __init__(self) -> None:
        self._kept: Tensor | None = None

    def reads(self, ids: Tensor, q: Tensor, p: Tensor) -> Arguments:
        """Take the row that was last seen at this place."""
        old, self._kept = self._kept, p[:, 0].clone()
        if old is None or old.shape != self._kept.shape:
            return ids, q, p
        return ids, q, torch.cat([old[:, None], p[:, 1:]], dim=1)


# --- lengths --------------------------------------------------------------------------


def _ragged(lengths: Callable[[Tensor, int], Tensor]) -> Callable[..., Any]:
    """Verify with other lengths than those given: from lengths [batch] and k."""

    def verify(
        draft_token_ids: Tensor,
        draft_probs: Tensor,
        target_probs: Tensor,
        *,
        generator: torch.Generator,
        num_draft_tokens: Tensor | None = None,
    ) -> Tensor:
        k = draft_token_ids.shape[1]
        if num_draft_tokens is not None:
            num_draft_tokens = lengths(num_draft_tokens, k)
        return core.verify_chain(
            draft_token_ids,
            draft_probs,
            target_probs,
            generator=generator,
            num_draft_tokens=num_draft_tokens,
            validate=False,
        ).output_token_ids

    return verify


def _bonus_at_end(
    draft_token_ids: Tensor,
    draft_probs: Tensor,
    target_probs: Tensor,
    *,
    generator: torch.Generator,
    num_draft_tokens: Tensor | None = None,
) -> Tensor:
    """Read the bonus token of a shorter row where that of the longest stands."""
    if num_draft_tokens is not None:
        place = num_draft_tokens[:, None, None].expand(-1, 1, target_probs.shape[2])
        target_probs = target_probs.scatter(1, place, target_probs[:, -1:])
    return core.verify_chain(
        draft_token_ids,
        draft_probs,
        target_probs,
        generator=generator,
        num_draft_tokens=num_draft_tokens,
    ).output_token_ids


DEFECTS: Final = (
    Defect(
        id="batch-targets-in-other-order",
        sentence="Drafts stand in one order of the requests, target rows in another.",
        sources=("vllm-project/vllm#14645",),
        make=lambda: Verifier(reads=_other_order),
        shown_on=witnesses.M1,
        bias=0.131,
        blind_on="one row a call, and requests that are all alike",
    ),
    Defect(
        id="batch-target-of-first-row",
        sentence="Target rows of the first request serve the whole batch.",
        sources=("mutant",),
        make=lambda: Verifier(reads=_first_for_all),
        shown_on=witnesses.M1,
        bias=0.129,
        blind_on="one row a call, and requests that are all alike",
    ),
    Defect(
        id="batch-q-of-neighbour",
        sentence="After a request has left, q stands one row off.",
        sources=("vllm-project/vllm#41044", "sgl-project/sglang#9252"),
        make=lambda: Verifier(reads=_q_of_neighbour),
        shown_on=witnesses.M1,
        bias=0.406,
        blind_on="one row a call, and requests that are all alike",
    ),
    Defect(
        id="batch-drafts-by-column",
        sentence="Flat draft ids are cut into rows as if they lay column by column.",
        sources=("vllm-project/vllm-gaudi#609",),
        make=lambda: Verifier(reads=_by_column),
        shown_on=witnesses.M1,
        bias=0.179,
        blind_on="one row a call, and a single draft",
    ),
    Defect(
        id="batch-answers-shifted",
        sentence="Answers are handed to the next request.",
        sources=("vllm-project/vllm-gaudi#664",),
        make=lambda: Verifier(writes=_answers_shifted),
        shown_on=witnesses.M1,
        bias=0.356,
        blind_on="one row a call, and requests that are all alike",
    ),
    Defect(
        id="batch-rows-kept-by-place",
        sentence="A target row is kept by place in the batch and used in the next step.",
        sources=("waybarrios/vllm-mlx#662",),
        make=lambda: Verifier(reads=_ByPlace().reads),
        shown_on=witnesses.P2,
        bias=0.296,
        blind_on="single steps, and rows that do not depend on the text",
    ),
    Defect(
        id="batch-lengths-ignored",
        sentence="Placeholders behind the drafts of a shorter row are verified as drafts.",
        sources=("vllm-project/vllm#46533", "vllm-project/vllm#26231"),
        make=lambda: _ragged(torch.full_like),
        shown_on=witnesses.M1,
        bias=0.0983,
        blind_on="rows of equal lengths",
        capabilities=_RAGGED,
    ),
    Defect(
        id="batch-lengths-of-neighbour",
        sentence="Each row is verified with the number of drafts of the row before.",
        sources=("vllm-project/vllm#27629",),
        make=lambda: _ragged(lambda lengths, k: lengths.roll(1)),
        shown_on=witnesses.M1,
        bias=0.062,
        blind_on="rows of equal lengths",
        capabilities=_RAGGED,
    ),
    Defect(
        id="batch-bonus-at-end",
        sentence=(
            "The bonus token of a shorter row is drawn from the row behind the longest."
        ),
        sources=("mutant",),
        make=lambda: _bonus_at_end,
        shown_on=witnesses.M1,
        bias=0.0796,
        blind_on="rows of equal lengths",
        capabilities=_RAGGED,
    ),
)
