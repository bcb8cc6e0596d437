# SPDX-License-Identifier: Apache-2.0
"""What the rules share: arguments checked and made ready, answers laid out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

import torch
from torch import Tensor

from specverify.core.sampling import draw_uniforms, inverse_cdf
from specverify.core.validation import check_metadata, check_multidraft, check_values

#: Stands behind the last emitted token of a row.
PLACEHOLDER_TOKEN_ID: Final = -1


class ChainResult(NamedTuple):
    """What one verification step emits.

    Attributes
    ----------
    output_token_ids
        int64 [batch, k + 1]: accepted drafts, one recovered or bonus token, then -1.
    num_accepted
        int64 [batch]: accepted drafts; the emitted tokens are one more.
    """

    output_token_ids: Tensor
    num_accepted: Tensor


@dataclass(frozen=True, slots=True)
class ChainStep:
    """Checked arguments of one step, with defaults filled in.

    Attributes
    ----------
    draft_token_ids
        int64 [batch, k]; 0 where a shorter row holds padding.
    draft_probs
        [batch, k, vocab], or None for one-hot drafts.
    target_probs
        [batch, k + 1, vocab].
    uniforms
        [batch, k + 1] in [0, 1).
    num_draft_tokens
        int64 [batch].
    used
        bool [batch, k]: positions that hold a draft.
    """

    draft_token_ids: Tensor
    draft_probs: Tensor | None
    target_probs: Tensor
    uniforms: Tensor
    num_draft_tokens: Tensor
    used: Tensor

    @classmethod
    def open(
        cls,
        draft_token_ids: Tensor,
        draft_probs: Tensor | None,
        target_probs: Tensor,
        *,
        generator: torch.Generator | None = None,
        uniforms: Tensor | None = None,
        num_draft_tokens: Tensor | None = None,
        validate: bool | None = None,
    ) -> ChainStep:
        """Check the arguments of a verifier; see `verify_chain` for their meaning."""
        check_metadata(
            draft_token_ids, draft_probs, target_probs, uniforms, num_draft_tokens
        )
        device = target_probs.device
        if validate if validate is not None else device.type == "cpu":
            check_values(
                draft_token_ids, draft_probs, target_probs, uniforms, num_draft_tokens
            )
        batch, k = draft_token_ids.shape
        if uniforms is None:
            uniforms = draw_uniforms((batch, k + 1), device=device, generator=generator)
        if num_draft_tokens is None:
            num_draft_tokens = torch.full((batch,), k, device=device)
        used = _positions(draft_token_ids) < num_draft_tokens.unsqueeze(1)
        ids = torch.where(used, draft_token_ids, 0)  # padding may be any number
        return cls(ids, draft_probs, target_probs, uniforms, num_draft_tokens, used)

    @property
    def k(self) -> int:
        """Number of draft positions."""
        return self.draft_token_ids.shape[1]

    def drafted(self) -> tuple[Tensor, Tensor]:
        """Probabilities of the drafts under p and under q: float64 [batch, k]."""
        ids = self.draft_token_ids.unsqueeze(-1)
        p = self.target_probs[:, : self.k].gather(2, ids).squeeze(-1).to(torch.float64)
        if self.draft_probs is None:
            return p, torch.ones_like(p)
        return p, self.draft_probs.gather(2, ids).squeeze(-1).to(torch.float64)

    def accepted_prefix(self, accepted: Tensor) -> Tensor:
        """Number of drafts before the first rejection: int64 [batch]."""
        return (self.used & accepted).long().cumprod(dim=1).sum(dim=1)

    def rows(self, num_accepted: Tensor) -> tuple[Tensor, Tensor]:
        """The one row of p and of q that a sequence needs: float64 [batch, vocab].

        The q of a bonus token is zero, so that its residual is p.
        """
        batch = torch.arange(len(num_accepted), device=num_accepted.device)
        p = self.target_probs[batch, num_accepted].to(torch.float64)
        if self.k == 0:
            return p, torch.zeros_like(p)
        position = num_accepted.clamp_max(self.k - 1)
        if self.draft_probs is None:
            rejected = self.draft_token_ids[batch, position].unsqueeze(1)
            q = torch.zeros_like(p).scatter_(1, rejected, 1.0)
        else:
            q = self.draft_probs[batch, position].to(torch.float64)
        full = (num_accepted == self.num_draft_tokens).unsqueeze(1)  # [batch, 1]
        return p, torch.where(full, 0.0, q)

    def emit(self, num_accepted: Tensor, weights: Tensor) -> ChainResult:
        """Draw the last token by its weights [batch, vocab] and lay out the answer."""
        token = inverse_cdf(weights, self.uniforms[:, self.k])
        output = assemble(self.draft_token_ids, token, num_accepted)
        return ChainResult(output, num_accepted)


class MultidraftResult(NamedTuple):
    """What one position emits.

    Attributes
    ----------
    token_ids
        int64 [batch].
    accepted
        int64 [batch]: slot of the accepted draft, -1 where the token was recovered.
    """

    token_ids: Tensor
    accepted: Tensor


@dataclass(frozen=True, slots=True)
class MultidraftStep:
    """Checked arguments of one position, with defaults filled in.

    Attributes
    ----------
    draft_token_ids
        int64 [batch, n]; -1 is an empty slot.
    q, p
        Draft and target law, float64 [batch, vocab]. Without draft_probs q is zero.
    uniforms
        [batch, n + 1] in [0, 1): one for each draft, the last for the recovered token.
    """

    draft_token_ids: Tensor
    q: Tensor
    p: Tensor
    uniforms: Tensor

    @classmethod
    def open(
        cls,
        draft_token_ids: Tensor,
        draft_probs: Tensor | None,
        target_probs: Tensor,
        *,
        generator: torch.Generator | None = None,
        uniforms: Tensor | None = None,
        validate: bool | None = None,
        any_drafts: bool = False,
    ) -> MultidraftStep:
        """Check the arguments; see `verify_with_replacement` for their meaning.

        Rules for drafts from anywhere say `any_drafts`: they do without `draft_probs`.
        """
        if draft_probs is None and not any_drafts:
            msg = "draft_probs is None; this rule needs the law of the drafts"
            raise TypeError(msg)
        check_multidraft(
            draft_token_ids, draft_probs, target_probs, uniforms, validate=validate
        )
        batch, n = draft_token_ids.shape
        device = target_probs.device
        if uniforms is None:
            uniforms = draw_uniforms((batch, n + 1), device=device, generator=generator)
        p = target_probs.to(torch.float64)
        q = torch.zeros_like(p) if draft_probs is None else draft_probs.to(p.dtype)
        return cls(draft_token_ids, q, p, uniforms)

    @property
    def n(self) -> int:
        """Number of slots."""
        return self.draft_token_ids.shape[1]

    def token(self, slot: int) -> Tensor:
        """Draft in a slot, 0 where it is empty: int64 [batch]."""
        return self.draft_token_ids[:, slot].clamp_min(0)

    def filled(self, slot: int) -> Tensor:
        """Whether a slot holds a draft: bool [batch]."""
        return self.draft_token_ids[:, slot] >= 0

    def first_slot(self, token: Tensor) -> Tensor:
        """First slot that holds `token` [batch], -1 if none does: int64 [batch]."""
        here = self.draft_token_ids == token.unsqueeze(1)
        slot = here.to(torch.int8).argmax(dim=1)
        return torch.where(here.any(dim=1), slot, PLACEHOLDER_TOKEN_ID)

    def finish(self, accepted: Tensor, weights: Tensor) -> MultidraftResult:
        """Emit the draft of the accepted slot, or a token drawn by `weights`."""
        recovered = inverse_cdf(weights, self.uniforms[:, self.n])
        slot = accepted.clamp_min(0).unsqueeze(1)
        drafted = self.draft_token_ids.gather(1, slot).squeeze(1)
        return MultidraftResult(
            torch.where(accepted >= 0, drafted, recovered), accepted
        )


def assemble(draft_token_ids: Tensor, token: Tensor, num_accepted: Tensor) -> Tensor:
    """Lay out accepted drafts, then `token`, then placeholders: int64 [batch, k + 1]."""
    padded = torch.cat([draft_token_ids, token.unsqueeze(1)], dim=1)  # [batch, k + 1]
    position, last = _positions(padded), num_accepted.unsqueeze(1)
    output = torch.where(position < last, padded, PLACEHOLDER_TOKEN_ID)
    return torch.where(position == last, token.unsqueeze(1), output)


def _positions(table: Tensor) -> Tensor:
    return torch.arange(table.shape[1], device=table.device).unsqueeze(0)
