# SPDX-License-Identifier: Apache-2.0
"""Hugging Face transformers: the verification step of assisted generation.

The engine keeps the step in a private function that takes logits and one sequence
a call, and draws from torch's global generator. In ``generate`` both logits reach it
in float32, so half precision is not declared here.
"""

from __future__ import annotations

from functools import partial
from importlib import import_module
from inspect import signature
from typing import TYPE_CHECKING, Any

from torch.nn.functional import pad

from specverify.errors import SubjectUnavailable
from specverify.subjects.protocol import subject

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from specverify.subjects.protocol import Subject

__all__ = ["load"]

SOURCE = "transformers.generation.utils._speculative_sampling"


def load() -> Subject:
    """Adapt the installed transformers.

    Returns
    -------
    Subject
        A chain verifier named ``transformers``.

    Raises
    ------
    SubjectUnavailable
        If transformers is not installed, or has no such function.
    """
    try:
        engine = import_module("transformers")
        utils = import_module("transformers.generation.utils")
    except ImportError as error:
        message = (
            f"transformers cannot be imported ({error}); "
            "install it with: python -m pip install transformers"
        )
        raise SubjectUnavailable(message) from error
    step = getattr(utils, SOURCE.rpartition(".")[2], None)
    if step is None:
        message = (
            f"transformers {engine.__version__} has no {SOURCE}; install a version "
            "that has it: python -m pip install --upgrade transformers"
        )
        raise SubjectUnavailable(message)
    return subject(
        _verifier(step),
        name="transformers",
        version=engine.__version__,
        source=SOURCE,
        efficiency="token",
        max_batch=1,
        dtypes=("float32", "float64"),
    )


def _verifier(step: Callable[..., Any]) -> Callable[..., Tensor]:
    """Put the engine's step behind the signature of a verifier."""
    # Version 4 asks whether the drafts end the sequence, and then emits one token less.
    if "is_done_candidate" in signature(step).parameters:
        step = partial(step, is_done_candidate=False)

    def verify(
        draft_token_ids: Tensor,  # [1, k]
        draft_probs: Tensor,  # [1, k, vocab]
        target_probs: Tensor,  # [1, k + 1, vocab]
    ) -> Tensor:  # [1, k + 1]
        """Verify one sequence with transformers' speculative sampling."""
        num_draft_tokens = draft_token_ids.shape[1]
        emitted, _ = step(
            draft_token_ids, draft_probs.log(), num_draft_tokens, target_probs.log()
        )  # [1, accepted + 1]
        missing = num_draft_tokens + 1 - emitted.shape[1]
        return pad(emitted, (0, missing), value=-1)

    return verify
