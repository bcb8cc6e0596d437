# SPDX-License-Identifier: Apache-2.0
"""Several drafts at one position: rules whose steps a defect may replace."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from specverify.core.multidraft import token_masses
from specverify.core.residual import residual_weights
from specverify.core.sampling import inverse_cdf
from specverify.core.steps import MultidraftResult, MultidraftStep
from specverify.defects.drafter import normalised
from specverify.defects.verifier import below_ratio


def residual(p: Tensor, q: Tensor, token: Tensor) -> Tensor:
    """What is left of p behind a rejection, normalised."""
    return normalised(residual_weights(p, q))


def as_before(q: Tensor, token: Tensor) -> Tensor:
    """Law of the next draft when drafts are independent."""
    return q


def what_is_left(p: Tensor, left: Tensor) -> Tensor:
    """Weights of the recovered token: what the tests have left of p."""
    return left


@dataclass(frozen=True)
class Siblings:
    """Recursive rejection, each step of which a defect may replace.

    Left as it is, it is lossless for independent drafts.

    Attributes
    ----------
    accepts
        Tests drafts, from uniforms, p and q at the draft.
    next_p, next_q
        Laws that the next draft is tested with, from those before and the token.
    slots
        Order of the tests, from the number of drafts.
    recovers
        Weights of the recovered token, from p and what is left of it.
    """

    accepts: Callable[[Tensor, Tensor, Tensor], Tensor] = below_ratio
    next_p: Callable[[Tensor, Tensor, Tensor], Tensor] = residual
    next_q: Callable[[Tensor, Tensor], Tensor] = as_before
    slots: Callable[[int], Iterable[int]] = range
    recovers: Callable[[Tensor, Tensor], Tensor] = what_is_left

    def __call__(
        self,
        draft_token_ids: Tensor,
        draft_probs: Tensor,
        target_probs: Tensor,
        *,
        generator: torch.Generator,
    ) -> MultidraftResult:
        """Verify one position."""
        step = MultidraftStep.open(
            draft_token_ids, draft_probs, target_probs, generator=generator
        )
        p, q = step.p, step.q
        accepted = torch.full_like(draft_token_ids[:, 0], -1)
        for slot in self.slots(step.n):
            token = step.token(slot)
            passed = self.accepts(step.uniforms[:, slot], *token_masses(p, q, token))
            open_ = (accepted < 0) & step.filled(slot)
            accepted = torch.where(open_ & passed, slot, accepted)
            rejected = (open_ & ~passed)[:, None]
            left = self.next_p(p, q, token)
            q = torch.where(rejected, self.next_q(q, token), q)
            p = torch.where(rejected, left, p)
        return step.finish(accepted, self.recovers(step.p, p))


class Drafted:
    """A rule for several drafts, with a drafter of its own.

    Parameters
    ----------
    drafts
        Draws slots [batch, n] from q and a generator.
    rule
        Verifies them.
    """

    def __init__(
        self, drafts: Callable[[Tensor, torch.Generator], Tensor], rule: Any
    ) -> None:
        self._drafts, self._rule = drafts, rule

    def draft(
        self, draft_probs: Tensor, *, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Draft the slots of each row, and declare the law that was given."""
        return self._drafts(draft_probs, generator), draft_probs

    def __call__(
        self,
        draft_token_ids: Tensor,
        draft_probs: Tensor,
        target_probs: Tensor,
        *,
        generator: torch.Generator,
    ) -> MultidraftResult:
        """Verify one position."""
        result: MultidraftResult = self._rule(
            draft_token_ids, draft_probs, target_probs, generator=generator
        )
        return result


def masked(q: Tensor, token: Tensor) -> Tensor:
    """Set one token a row to zero."""
    return q.scatter(1, token[:, None], 0)


def redraws(
    draft_token_ids: Tensor,
    draft_probs: Tensor,
    target_probs: Tensor,
    *,
    generator: torch.Generator,
) -> MultidraftResult:
    """Compare each draft with a draw of its own; of no match the last draw is emitted."""
    step = MultidraftStep.open(
        draft_token_ids, draft_probs, target_probs, generator=generator
    )
    accepted = torch.full_like(draft_token_ids[:, 0], -1)
    drawn = accepted
    for slot in range(step.n):
        drawn = inverse_cdf(step.p, step.uniforms[:, slot])
        hit = (accepted < 0) & (drawn == draft_token_ids[:, slot])
        accepted = torch.where(hit, slot, accepted)
    token = draft_token_ids.gather(1, accepted.clamp_min(0)[:, None])[:, 0]
    return MultidraftResult(torch.where(accepted >= 0, token, drawn), accepted)


def accumulates(
    draft_token_ids: Tensor,
    draft_probs: Tensor,
    target_probs: Tensor,
    *,
    generator: torch.Generator,
    threshold: float = 1.0,
    single: float = 2.0,
    coin_again: bool = False,
) -> MultidraftResult:
    """One coin against the added p of the drafts so far: lossless for distinct ones.

    Parameters
    ----------
    draft_token_ids, draft_probs, target_probs, generator
        As for every rule.
    threshold, single
        What the sum is divided by; a p that is accepted by itself.
    coin_again
        Whether the coin also draws the recovered token.
    """
    step = MultidraftStep.open(
        draft_token_ids, draft_probs, target_probs, generator=generator
    )
    coin, added = step.uniforms[:, 0], torch.zeros_like(step.p[:, 0])
    accepted = torch.full_like(draft_token_ids[:, 0], -1)
    left = step.p
    for slot in range(step.n):
        mass = step.p.gather(1, step.token(slot)[:, None])[:, 0] * step.filled(slot)
        added = added + mass
        passed = (coin * threshold < added) | (mass >= single)
        accepted = torch.where(
            (accepted < 0) & step.filled(slot) & passed, slot, accepted
        )
        left = torch.where(
            step.filled(slot)[:, None], masked(left, step.token(slot)), left
        )
    left = torch.where(left.sum(dim=1, keepdim=True) > 0, left, step.p)
    result = step.finish(accepted, left)
    if not coin_again:
        return result
    again = inverse_cdf(left, coin)
    return MultidraftResult(
        torch.where(accepted < 0, again, result.token_ids), accepted
    )
