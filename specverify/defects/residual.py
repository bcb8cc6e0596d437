# SPDX-License-Identifier: Apache-2.0
"""R: the law of the recovered token is not ``(p - q)+``."""

from __future__ import annotations

from typing import Final

from torch import Tensor

from specverify.defects.entry import Defect
from specverify.defects.verifier import Verifier, positive_part
from specverify.inputs import witnesses


def _of_target(p: Tensor, _q: Tensor, _ids: Tensor) -> Tensor:
    return p


def _softmax(p: Tensor, q: Tensor, ids: Tensor) -> Tensor:
    weights = positive_part(p, q, ids).softmax(dim=-1)
    weights[:, -1] = p[:, -1]  # the bonus token is drawn elsewhere
    return weights


DEFECTS: Final = (
    Defect(
        id="residual-from-p",
        sentence="After a rejection the token is drawn from p, not from (p - q)+.",
        sources=("ml-explore/mlx-lm#990", "ShopeeLLM/Spec-RL#14"),
        make=lambda: Verifier(weights=_of_target),
        shown_on=witnesses.C1,
        bias=0.1,
        blind_on="inputs with p = q",
    ),
    Defect(
        id="residual-softmax",
        sentence="(p - q)+ is normalised by a softmax instead of its sum.",
        sources=("huggingface/transformers#28508",),
        make=lambda: Verifier(weights=_softmax),
        shown_on=witnesses.C1,
        bias=0.144,
        blind_on="vocab 2 with equal residuals",
    ),
)
