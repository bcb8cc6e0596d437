# SPDX-License-Identifier: Apache-2.0
"""M: penalties, bans, masks and random filters that see the wrong tokens or rows."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor
from torch.nn.functional import one_hot, pad

from specverify.defects.drafter import normalised
from specverify.defects.entry import Defect
from specverify.defects.sampling import uncut
from specverify.defects.verifier import Arguments, Verifier, positive_part
from specverify.inputs import witnesses


def _masked(p: Tensor, allowed: Tensor) -> Tensor:
    kept = uncut(p) * allowed
    return normalised(kept.where(kept.sum(dim=-1, keepdim=True) > 0, p))


def _mask_of_row_before(ids: Tensor, q: Tensor, p: Tensor) -> Arguments:
    return ids, q, _masked(p, torch.cat([p[:, :1], p[:, :-1]], dim=1) > 0)


def _mask_of_first_row(ids: Tensor, q: Tensor, p: Tensor) -> Arguments:
    return ids, q, _masked(p, p[:, :1] > 0)


def _ban_of_neighbour(ids: Tensor, q: Tensor, p: Tensor) -> Arguments:
    """Token 0 is banned for even requests; here rows of odd ones lose it."""
    allowed = torch.ones_like(p, dtype=torch.bool)
    allowed[1::2, :, 0] = False
    kept = p * allowed
    left = kept.sum(dim=-1, keepdim=True) > 0  # something has to come out
    return ids, q, normalised(kept.where(left, p))


def _drafted(ids: Tensor, vocab: int) -> tuple[Tensor, Tensor]:
    """How often drafts before and behind each row hold a token: [batch, k + 1, vocab]."""
    counts = pad(one_hot(ids, vocab), (0, 0, 1, 0)).cumsum(dim=1)
    return counts, counts[:, -1:] - counts


def _penalty_forgets_drafts(ids: Tensor, q: Tensor, p: Tensor) -> Arguments:
    before, _ = _drafted(ids, p.shape[2])
    return ids, q, normalised(p * torch.where(before > 0, torch.e, 1.0).double())


def _penalty_of_all_drafts(ids: Tensor, q: Tensor, p: Tensor) -> Arguments:
    _, behind = _drafted(ids, p.shape[2])
    return ids, q, normalised(p * torch.where(behind > 0, torch.e**-1, 1.0).double())


class _KeepsRejected:
    """Penalises drafts that were rejected in the step before."""

    def __init__(self) -> None:
        self._rejected = torch.zeros(0, 1)

    def __call__(
        self,
        draft_token_ids: Tensor,
        draft_probs: Tensor,
        target_probs: Tensor,
        *,
        generator: torch.Generator,
    ) -> Tensor:
        """Verify with penalties of 1 on what was rejected last."""
        p = target_probs.double()
        vocab = p.shape[2]
        if self._rejected.shape == p[:, 0].shape:
            p = normalised(p * (-self._rejected).exp()[:, None])
        output = Verifier()(draft_token_ids, draft_probs, p, generator=generator)
        place = torch.arange(draft_token_ids.shape[1], device=p.device)
        lost = place >= (output >= 0).sum(dim=1, keepdim=True) - 1  # [batch, k]
        seen = one_hot(draft_token_ids, vocab) * lost[..., None]
        self._rejected = seen.sum(dim=1).clamp_max(1).double()
        return output


class _RandomFilter:
    """A sampler that shifts mass between tokens 0 and 1 by a coin; p is the mean.

    Parameters
    ----------
    shared
        Whether test and recovery see the same coin.
    """

    def __init__(self, *, shared: bool) -> None:
        self._shared = shared

    def __call__(
        self,
        draft_token_ids: Tensor,
        draft_probs: Tensor,
        target_probs: Tensor,
        *,
        generator: torch.Generator,
    ) -> Tensor:
        """Verify with a filter drawn for the test and one for the recovered token."""
        p = target_probs.double()
        shape = (2, *p.shape[:2])
        coins = torch.randint(2, shape, generator=generator, device=p.device)
        signs = 2 * torch.tensor(coins.tolist(), device=p.device) - 1
        shift = torch.zeros_like(p)
        shift[..., 0] = p[..., :2].amin(dim=-1)
        shift[..., 1] = -shift[..., 0]
        tested = p + signs[0, ..., None] * shift
        other = tested if self._shared else p + signs[1, ..., None] * shift
        verify = Verifier(
            reads=lambda ids, q, p: (ids, q, tested),
            weights=lambda p, q, ids: positive_part(other, q, ids),
        )
        return verify(draft_token_ids, draft_probs, p, generator=generator)


DEFECTS: Final = (
    Defect(
        id="penalty-forgets-drafts",
        sentence="Penalties at each row count the committed text, not the drafts before.",
        sources=(
            "huggingface/text-generation-inference",
            "vllm-project/vllm#33251",
            "ml-explore/mlx-lm#990",
        ),
        make=lambda: Verifier(reads=_penalty_forgets_drafts),
        shown_on=witnesses.C1,
        bias=0.135,
        blind_on="the first token of a step",
    ),
    Defect(
        id="penalty-counts-all-drafts",
        sentence="Penalties at each row count all drafts, those that stand behind it too.",
        sources=("mlc-ai/mlc-llm#2810",),
        make=lambda: Verifier(reads=_penalty_of_all_drafts),
        shown_on=witnesses.C1,
        bias=0.136,
        blind_on="k = 0, and the bonus token",
    ),
    Defect(
        id="penalty-keeps-rejected",
        sentence="Rejected drafts stay counted, and are penalised in the next step.",
        sources=("vmlx-swift#357",),
        make=_KeepsRejected,
        shown_on=witnesses.P2,
        bias=0.14,
        blind_on="a single step",
    ),
    Defect(
        id="ban-of-other-request",
        sentence="A banned token is banned for the rows of another request.",
        sources=("vllm-project/vllm#31908",),
        make=lambda: Verifier(reads=_ban_of_neighbour),
        shown_on=witnesses.C1,
        bias=0.15,
        blind_on="batches of one row, and bans that all rows share",
    ),
    Defect(
        id="mask-of-row-before",
        sentence="Excluded tokens are those of the row before: off by one in the drafts.",
        sources=("vllm-project/vllm#52311",),
        make=lambda: Verifier(reads=_mask_of_row_before),
        shown_on=witnesses.Z2,
        bias=0.25,
        blind_on="rows that exclude nothing, or the same tokens",
    ),
    Defect(
        id="mask-of-first-row",
        sentence="The grammar's mask is that of the first row at every position.",
        sources=("huggingface/text-generation-inference",),
        make=lambda: Verifier(reads=_mask_of_first_row),
        shown_on=witnesses.Z2,
        bias=0.25,
        blind_on="rows that exclude nothing, or the same tokens; the first position",
    ),
    Defect(
        id="random-filter-redrawn",
        sentence="A random filter of the sampler is drawn anew for the recovered token.",
        sources=("ml-explore/mlx-lm#990",),
        make=lambda: _RandomFilter(shared=False),
        shown_on=witnesses.C1,
        bias=0.0375,
        blind_on="filters that are fixed, rows without one of the two tokens",
    ),
)
CONTROLS: Final = (
    Defect(
        id="random-filter-shared",
        sentence="A random filter is drawn once for each position, and its mean is due.",
        sources=("ml-explore/mlx-lm#990",),
        make=lambda: _RandomFilter(shared=True),
        shown_on=witnesses.C1,
        bias=0.0,
        effect="none",
    ),
)
