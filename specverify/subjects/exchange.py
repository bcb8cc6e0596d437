# SPDX-License-Identifier: Apache-2.0
"""What goes into one call of a subject, and what comes out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import Tensor

from specverify.inputs.models import IntArray


@dataclass(frozen=True, slots=True)
class Inputs:
    """The tensors of one call; see the contracts of the kinds for shapes.

    Attributes
    ----------
    draft_token_ids
        int64 [batch, k], [batch, n] or [batch, nodes].
    draft_probs, target_probs
        Rows of q, if any, and of p.
    emits
        Most tokens that a row of the answer holds.
    parents
        Shape of a tree, int64 [nodes], on the CPU; None for the other kinds.
    num_draft_tokens
        Drafts of each row where they differ, int64 [batch]; chains only.
    """

    draft_token_ids: Tensor
    draft_probs: Tensor | None
    target_probs: Tensor
    emits: int
    parents: Tensor | None = None
    num_draft_tokens: Tensor | None = None

    def rows(self, part: slice) -> Inputs:
        """A slice of the batch."""
        return replace(
            self,
            draft_token_ids=self.draft_token_ids[part],
            draft_probs=_map(self.draft_probs, lambda q: q[part]),
            target_probs=self.target_probs[part],
            num_draft_tokens=_map(self.num_draft_tokens, lambda n: n[part]),
        )

    def interleaved(self, other: Inputs) -> Inputs:
        """A batch whose rows come from here and from `other` in turn."""
        q = None
        if self.draft_probs is not None and other.draft_probs is not None:
            q = _interleave(self.draft_probs, other.draft_probs)
        return replace(
            self,
            draft_token_ids=_interleave(self.draft_token_ids, other.draft_token_ids),
            draft_probs=q,
            target_probs=_interleave(self.target_probs, other.target_probs),
        )

    def clone(self) -> Inputs:
        """A copy that nobody else can change."""
        return replace(
            self,
            draft_token_ids=self.draft_token_ids.clone(),
            draft_probs=_map(self.draft_probs, Tensor.clone),
            target_probs=self.target_probs.clone(),
            parents=_map(self.parents, Tensor.clone),
            num_draft_tokens=_map(self.num_draft_tokens, Tensor.clone),
        )

    def arguments(self) -> tuple[Tensor | None, ...]:
        """Positional arguments of the call, in the order of the contract."""
        if self.parents is None:
            return self.draft_token_ids, self.draft_probs, self.target_probs
        return (
            self.draft_token_ids,
            self.parents,
            self.draft_probs,
            self.target_probs,
        )

    def options(self) -> dict[str, Tensor]:
        """Keyword arguments of the call."""
        if self.num_draft_tokens is None:
            return {}
        return {"num_draft_tokens": self.num_draft_tokens}

    @property
    def uniforms_shape(self) -> tuple[int, int]:
        """Shape of injected uniforms: one column more than drafts, or one a node."""
        batch, drafts = self.draft_token_ids.shape
        return batch, drafts if self.parents is not None else drafts + 1

    def tensors(self) -> dict[str, Tensor]:
        """The tensors by argument name."""
        named = {
            "draft_token_ids": self.draft_token_ids,
            "draft_probs": self.draft_probs,
            "target_probs": self.target_probs,
            "parents": self.parents,
            "num_draft_tokens": self.num_draft_tokens,
        }
        return {name: value for name, value in named.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Emission:
    """What a step emitted.

    Attributes
    ----------
    token_ids
        int64 [batch, k + 1]; behind the emitted tokens stands -1.
    num_emitted
        int64 [batch], 1 to k + 1; one less where the engine leaves out the bonus token.
    accepted
        int64 [batch]: accepted drafts.
    slot
        int64 [batch], of several drafts at one position: the slot that the subject says
        it accepted, -1 where it recovered a token, -2 where it accepted and names none.
    """

    token_ids: IntArray
    num_emitted: IntArray
    accepted: IntArray
    slot: IntArray | None = None

    def every(self, step: int) -> Emission:
        """Every `step`-th row, from the first on."""
        slot = None if self.slot is None else self.slot[::step]
        return Emission(
            self.token_ids[::step],
            self.num_emitted[::step],
            self.accepted[::step],
            slot,
        )


def _map(value: Tensor | None, change: Callable[[Tensor], Tensor]) -> Tensor | None:
    return None if value is None else change(value)


def _interleave(even: Tensor, odd: Tensor) -> Tensor:
    rows = even.new_empty((len(even) + len(odd), *even.shape[1:]))
    rows[::2], rows[1::2] = even, odd
    return rows
