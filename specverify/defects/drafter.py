# SPDX-License-Identifier: Apache-2.0
"""Drafters that belong to a verifier: for defects in what the two of them share."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from specverify.core.coupling import race, race_noise, verify_coupled
from specverify.defects.verifier import Verifier, from_cdf

#: Changes laws [batch, vocab] into others.
Change = Callable[[Tensor], Tensor]


def as_it_is(q: Tensor) -> Tensor:
    """Change nothing."""
    return q


def normalised(weights: Tensor) -> Tensor:
    """Divide rows by their sums."""
    return weights / weights.sum(dim=-1, keepdim=True)


def powered(p: Tensor, power: float) -> Tensor:
    """Laws at temperature ``1 / power``."""
    return normalised(p.double() ** power)


def top(p: Tensor, count: int) -> Tensor:
    """Laws of the `count` most likely tokens, of equals the lowest ids; unnormalised."""
    order = p.argsort(dim=-1, descending=True, stable=True)[..., count:]
    return p.scatter(-1, order, 0)


class Drafter:
    """Drafts by one law, declares another one, and verifies by what was declared.

    Parameters
    ----------
    draws, declares
        The two laws, from that of the draft model.
    renames
        Changes the drafted ids [batch], from them and the law [batch, vocab].
    """

    def __init__(
        self,
        *,
        draws: Change = as_it_is,
        declares: Change = as_it_is,
        renames: Callable[[Tensor, Tensor], Tensor] = lambda ids, q: ids,
    ) -> None:
        self._draws, self._declares, self._renames = draws, declares, renames
        self._verify = Verifier()

    def draft(
        self, draft_probs: Tensor, *, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Draft one token a row: ids [batch], declared law [batch, vocab]."""
        law = self._draws(draft_probs)
        u = torch.rand(
            len(law), 1, dtype=torch.float64, generator=generator, device=law.device
        )
        ids = from_cdf(law[:, None], u)[:, 0]
        return self._renames(ids, draft_probs), self._declares(draft_probs)

    def __call__(
        self,
        draft_token_ids: Tensor,
        draft_probs: Tensor,
        target_probs: Tensor,
        *,
        generator: torch.Generator,
    ) -> Tensor:
        """Verify losslessly for drafts from the declared law."""
        return self._verify(
            draft_token_ids, draft_probs, target_probs, generator=generator
        )


class SharedNoise:
    """Drafter and verifier race on noise; which of it is used twice is the defect.

    Parameters
    ----------
    for_tokens
        From the noise of the drafts and new one, both [batch, k + 1, vocab], gives that
        of the tokens behind them. Of the former the last position repeats the one before.
    one_for_all
        Whether all drafts of a step race on the same noise.
    matches
        Whether to race the target itself, and to accept the drafts that win.
    """

    def __init__(
        self,
        for_tokens: Callable[[Tensor, Tensor], Tensor] = lambda seen, new: new,
        *,
        one_for_all: bool = False,
        matches: bool = False,
    ) -> None:
        self._for_tokens, self._one_for_all = for_tokens, one_for_all
        self._matches = matches
        self._seen: list[Tensor] = []

    def draft(
        self, draft_probs: Tensor, *, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Draft one token a row, and keep the noise."""
        shape = tuple(draft_probs.shape)
        if self._one_for_all and self._seen and self._seen[-1].shape == shape:
            noise = self._seen[-1]
        else:
            noise = race_noise(shape, device=draft_probs.device, generator=generator)
        self._seen.append(noise)
        return race(draft_probs, noise), draft_probs

    def __call__(
        self,
        draft_token_ids: Tensor,
        draft_probs: Tensor,
        target_probs: Tensor,
        *,
        generator: torch.Generator,
    ) -> Tensor:
        """Verify; the tokens behind the drafts race on what was chosen for them."""
        seen, self._seen = self._seen, []
        k = draft_token_ids.shape[1]
        new = race_noise(
            tuple(target_probs.shape), device=target_probs.device, generator=generator
        )
        noise = new
        if k and [len(each) for each in seen] == [len(new)] * k:
            noise = self._for_tokens(torch.stack([*seen, seen[-1]], dim=1), new)
        if self._matches:
            return verify_coupled(
                draft_token_ids, draft_probs, target_probs, noise=noise
            ).output_token_ids
        verify = Verifier(draws=lambda weights, v: race(weights, noise))
        return verify(draft_token_ids, draft_probs, target_probs, generator=generator)
