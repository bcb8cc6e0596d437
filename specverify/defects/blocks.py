# SPDX-License-Identifier: Apache-2.0
"""Block verification with one of its parts wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from specverify import core
from specverify.core.block import block_weights
from specverify.core.residual import residual_weights
from specverify.core.steps import ChainResult, ChainStep
from specverify.defects.entry import Defect
from specverify.inputs import witnesses
from specverify.inputs.cases import Case
from specverify.inputs.models import ToyModel

#: The same row of p, and of q, at every position.
_EXAMPLE: Final = Case(
    ToyModel.from_positions([("1/3", "2/3")] * 3),
    ToyModel.from_positions([("2/3", "1/3")] * 2),
    k=2,
    name="example",
)


def pass_rates(step: ChainStep, b: Tensor) -> Tensor:
    """Probability with which each prefix passes, from its weights: [batch, k]."""
    assert step.draft_probs is not None  # noqa: S101 - these subjects take rows of q
    inner, last = b[:, 1:-1], b[:, step.k :][:, : step.k]
    p, q = step.target_probs[:, 1 : step.k], step.draft_probs[:, 1:]
    left = (inner[..., None] * p - q).clamp_min(0).sum(dim=-1)
    rates = torch.where(inner < 1, left / (left + 1 - inner), 1.0)
    return torch.cat([rates, last], dim=1)


def longest(u: Tensor, rates: Tensor) -> Tensor:
    """Length of the longest prefix that passes: [batch]."""
    lengths = torch.arange(1, u.shape[1] + 1, device=u.device) * (u < rates)
    return torch.cat([lengths.new_zeros((len(u), 1)), lengths], dim=1).amax(dim=1)


def weight_behind(b: Tensor, length: Tensor) -> Tensor:
    """Weight of the accepted prefix, which scales p in the residual: [batch, 1]."""
    return b.gather(1, length[:, None])


@dataclass(frozen=True)
class Block:
    """Block verification as four steps; as they are, they are right.

    Attributes
    ----------
    weights
        Weights of the prefixes, from p and q at the drafts: [batch, k + 1].
    rates
        Probabilities of passing, from the step and the weights: [batch, k].
    accepts
        Accepted length, from uniforms and rates: [batch].
    scale
        What p is multiplied by in the residual, from weights and length: [batch, 1].
    """

    weights: Callable[[Tensor, Tensor], Tensor] = block_weights
    rates: Callable[[ChainStep, Tensor], Tensor] = pass_rates
    accepts: Callable[[Tensor, Tensor], Tensor] = longest
    scale: Callable[[Tensor, Tensor], Tensor] = weight_behind

    def __call__(
        self,
        draft_token_ids: Tensor,
        draft_probs: Tensor,
        target_probs: Tensor,
        *,
        generator: torch.Generator,
    ) -> ChainResult:
        """Verify one step."""
        step = ChainStep.open(
            draft_token_ids, draft_probs, target_probs, generator=generator
        )
        b = self.weights(*step.drafted())
        length = self.accepts(step.uniforms[:, : step.k], self.rates(step, b))
        p, q = step.rows(length)
        return step.emit(
            length, residual_weights(self.scale(b, length) * p, q, otherwise=p)
        )


# --- weights and rates ----------------------------------------------------------------


def _joint_ratios(p: Tensor, q: Tensor) -> Tensor:
    ratios = (p.log() - q.log()).cumsum(dim=1).exp()
    return torch.cat([p.new_ones((len(p), 1)), ratios], dim=1)


def _capped_at_end(p: Tensor, q: Tensor) -> Tensor:
    return _joint_ratios(p, q).clamp_max(1)


def _products_of_capped(p: Tensor, q: Tensor) -> Tensor:
    ratios = (p / q).clamp_max(1).cumprod(dim=1)
    return torch.cat([p.new_ones((len(p), 1)), ratios], dim=1)


def _uncapped_last(step: ChainStep, b: Tensor) -> Tensor:
    joint = _joint_ratios(*step.drafted())
    return torch.cat([pass_rates(step, b)[:, :-1], joint[:, 1:][:, -1:]], dim=1)


def _weights_themselves(step: ChainStep, b: Tensor) -> Tensor:
    return b[:, 1:]


def _own_ratios(step: ChainStep, _b: Tensor) -> Tensor:
    p, q = step.drafted()
    return p / q


def _all_or_nothing(step: ChainStep, _b: Tensor) -> Tensor:
    joint = _joint_ratios(*step.drafted())[:, 1:]
    return torch.where(torch.arange(step.k) == step.k - 1, joint, 0.0)


# --- which prefix, and what stands behind it ------------------------------------------


def _until_failure(u: Tensor, rates: Tensor) -> Tensor:
    return (u < rates).long().cumprod(dim=1).sum(dim=1)


def _one_uniform(u: Tensor, rates: Tensor) -> Tensor:
    return longest(u[:, :1].expand_as(u), rates)


def _products_of_uniforms(u: Tensor, rates: Tensor) -> Tensor:
    return longest(u.cumprod(dim=1), rates)


def _unscaled(b: Tensor, _length: Tensor) -> Tensor:
    return torch.ones_like(b[:, :1])


def _ignoring_lengths(
    draft_token_ids: Tensor,
    draft_probs: Tensor,
    target_probs: Tensor,
    *,
    generator: torch.Generator,
    num_draft_tokens: Tensor | None = None,
) -> ChainResult:
    """Verify placeholders behind a shorter row as if they were drafts."""
    return core.verify_block(
        draft_token_ids, draft_probs, target_probs, generator=generator, validate=False
    )


DEFECTS: Final = (
    Defect(
        id="block-early-exit",
        sentence="The search stops at the first prefix that does not pass.",
        sources=("vllm-project/vllm-ascend#11985",),
        make=lambda: Block(accepts=_until_failure),
        shown_on=_EXAMPLE,
        bias=0.333,
        blind_on="a single draft",
    ),
    Defect(
        id="block-residual-unscaled",
        sentence="The residual is (p - q)+, not (b p - q)+.",
        sources=("vllm-project/vllm-ascend#7808", "vllm-project/vllm-ascend#7807"),
        make=lambda: Block(scale=_unscaled),
        shown_on=witnesses.J2,
        bias=0.0133,
        blind_on="a single draft, and prefixes of weight 1",
    ),
    Defect(
        id="block-rate-is-weight",
        sentence="Every prefix passes with its weight b, as only the whole block may.",
        sources=("vllm-project/vllm-ascend#7808",),
        make=lambda: Block(rates=_weights_themselves),
        shown_on=_EXAMPLE,
        bias=0.167,
        blind_on="a single draft",
    ),
    Defect(
        id="block-last-uncapped",
        sentence=(
            "The whole block passes by the joint ratio P/Q, not by the one that was "
            "capped on the way."
        ),
        sources=("HSD b8575e2a",),
        make=lambda: Block(rates=_uncapped_last),
        shown_on=_EXAMPLE,
        bias=0.111,
        blind_on="a single draft, and ratios that are at most 1",
    ),
    Defect(
        id="block-capped-at-end",
        sentence="Weights are min(1, P/Q): the ratio is capped at the end, not on the way.",
        sources=("mutant",),
        make=lambda: Block(weights=_capped_at_end),
        shown_on=_EXAMPLE,
        bias=0.111,
        blind_on="a single draft, and ratios that are at most 1",
    ),
    Defect(
        id="block-product-of-capped",
        sentence="Weights are products of ratios that are each capped at 1.",
        sources=("mutant",),
        make=lambda: Block(weights=_products_of_capped),
        shown_on=_EXAMPLE,
        bias=0.111,
        blind_on="a single draft, and ratios that are all at most 1",
    ),
    Defect(
        id="block-all-or-nothing",
        sentence=(
            "The whole block passes with min(1, P/Q), or else the first draft is "
            "rejected."
        ),
        sources=("mutant",),
        make=lambda: Block(rates=_all_or_nothing),
        shown_on=_EXAMPLE,
        bias=0.111,
        blind_on="a single draft",
    ),
    Defect(
        id="block-own-ratios",
        sentence="The longest prefix is taken whose last draft passes its own test.",
        sources=("mutant",),
        make=lambda: Block(rates=_own_ratios, scale=_unscaled),
        shown_on=_EXAMPLE,
        bias=0.222,
        blind_on="a single draft",
    ),
    Defect(
        id="block-products-of-uniforms",
        sentence="The product of the ratios is compared with the product of the uniforms.",
        sources=("vllm-project/vllm-ascend#7808",),
        make=lambda: Block(
            weights=_products_of_capped,
            rates=_weights_themselves,
            accepts=_products_of_uniforms,
        ),
        shown_on=_EXAMPLE,
        bias=0.191,
        blind_on="a single draft",
    ),
    Defect(
        id="block-one-uniform",
        sentence="One uniform decides about all prefixes.",
        sources=("mutant",),
        make=lambda: Block(accepts=_one_uniform),
        shown_on=witnesses.J2,
        bias=0.0364,
        blind_on="a single draft",
    ),
    Defect(
        id="block-lengths-ignored",
        sentence="Placeholders behind the drafts of a shorter row are verified as drafts.",
        sources=("vllm-project/vllm#50939",),
        make=lambda: _ignoring_lengths,
        shown_on=witnesses.M1,
        bias=0.285,
        blind_on="rows of equal lengths",
        capabilities={"ragged": True},
    ),
)
CONTROLS: Final = (
    Defect(
        id="control-block",
        sentence="Whole prefixes are tested, and more drafts accepted than one by one.",
        sources=("vllm-project/vllm#46781", "ml-explore/mlx-lm#1709"),
        make=Block,
        shown_on=witnesses.M1,
        bias=0.0,
        effect="none",
    ),
)
