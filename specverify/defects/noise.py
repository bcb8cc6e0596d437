# SPDX-License-Identifier: Apache-2.0
"""G: randomness that drafter and verifier share. Drafts from elsewhere do not show it."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from specverify.defects.drafter import SharedNoise
from specverify.defects.entry import Defect
from specverify.defects.verifier import Verifier, below_ratio, fresh, from_cdf
from specverify.inputs import witnesses


class _DraftUniform:
    """Tests each draft with the uniform that drew it."""

    def __init__(self) -> None:
        self._seen: list[Tensor] = []

    def draft(
        self, draft_probs: Tensor, *, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Draft one token a row, and keep the uniform."""
        u = fresh(len(draft_probs), 1, generator)
        self._seen.append(u)
        return from_cdf(draft_probs[:, None], u)[:, 0], draft_probs

    def __call__(
        self,
        draft_token_ids: Tensor,
        draft_probs: Tensor,
        target_probs: Tensor,
        *,
        generator: torch.Generator,
    ) -> Tensor:
        """Verify with what the drafter has used."""
        seen, self._seen = self._seen, []
        batch, k = draft_token_ids.shape

        def accepts(u: Tensor, p_x: Tensor, q_x: Tensor) -> Tensor:
            if not k or [len(each) for each in seen] != [batch] * k:
                return below_ratio(u, p_x, q_x)
            return below_ratio(torch.cat(seen, dim=1), p_x, q_x)

        verify = Verifier(accepts=accepts)
        return verify(draft_token_ids, draft_probs, target_probs, generator=generator)


def _for_recovered(seen: Tensor, new: Tensor) -> Tensor:
    return torch.cat([seen[:, :-1], new[:, -1:]], dim=1)


def _for_bonus(seen: Tensor, new: Tensor) -> Tensor:
    return torch.cat([new[:, :-1], seen[:, -1:]], dim=1)


DEFECTS: Final = (
    Defect(
        id="draft-uniform-tests-draft",
        sentence="A draft is tested with the uniform that drew it.",
        sources=("mutant",),
        make=_DraftUniform,
        shown_on=witnesses.C1,
        bias=0.133,
        blind_on="drafts that the test draws itself, p = q",
        draft=True,
    ),
    Defect(
        id="draft-noise-draws-recovered",
        sentence="The recovered token races on the noise that the draft has won.",
        sources=(
            "vllm-project/vllm#47386",
            "vllm-project/vllm#54282",
            "vllm-project/vllm-ascend#15739",
        ),
        make=lambda: SharedNoise(_for_recovered),
        shown_on=witnesses.W,
        bias=0.0612,
        blind_on="drafts that the test draws itself, a residual of one token",
        draft=True,
    ),
    Defect(
        id="draft-noise-draws-bonus",
        sentence="The bonus token races on the noise of the last draft.",
        sources=("mutant",),
        make=lambda: SharedNoise(_for_bonus),
        shown_on=witnesses.B1,
        bias=0.224,
        blind_on="drafts that the test draws itself, the law of the first token",
        draft=True,
    ),
    Defect(
        id="draft-noise-at-every-position",
        sentence="All drafts of a step race on the same noise.",
        sources=("PaddlePaddle/FastDeploy#5569", "PaddlePaddle/FastDeploy#7946"),
        make=lambda: SharedNoise(one_for_all=True),
        shown_on=witnesses.J1,
        bias=0.199,
        blind_on="k = 1, drafts that the test draws itself",
        draft=True,
    ),
)
CONTROLS: Final = (
    Defect(
        id="noise-shared-by-matching",
        sentence="Draft and target race on the same noise, and the target's token is kept.",
        sources=("mutant",),
        make=lambda: SharedNoise(_for_recovered, matches=True),
        shown_on=witnesses.J1,
        bias=0.0,
        effect="none",
        draft=True,
    ),
)
