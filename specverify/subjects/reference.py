# SPDX-License-Identifier: Apache-2.0
"""The core's own algorithms as subjects: the first thing that specverify proves."""

from __future__ import annotations

import torch
from torch import Tensor

import specverify
from specverify.core import speculative_verify, verify_chain
from specverify.subjects.protocol import Subject, subject


def chain() -> Subject:
    """Token-level verification, `specverify.core.verify_chain`."""

    def verify(
        draft_token_ids: Tensor,
        draft_probs: Tensor | None,
        target_probs: Tensor,
        *,
        generator: torch.Generator,
    ) -> Tensor:
        result = verify_chain(
            draft_token_ids, draft_probs, target_probs, generator=generator
        )
        return result.output_token_ids

    return subject(
        verify,
        source="specverify.core.chain.verify_chain",
        version=specverify.__version__,
        draft_probs="optional",
        efficiency="token",
        dtypes=("float32", "float64", "bfloat16", "float16"),
    )


def exercise() -> Subject:
    """The tutorial's exercise, `specverify.core.speculative_verify`."""
    return subject(
        speculative_verify,
        kind="exercise",
        source="specverify.core.exercise.speculative_verify",
        version=specverify.__version__,
        efficiency="token",
    )
