# SPDX-License-Identifier: Apache-2.0
"""Forms of token-level verification that look wrong, or were reported, and are lossless."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from specverify.defects.entry import Defect
from specverify.defects.verifier import Verifier, cut, positive_part, up_to_rejection
from specverify.inputs import witnesses


def _by_p(u: Tensor, p_x: Tensor, _q_x: Tensor) -> Tensor:
    return u < p_x


def _without_draft(p: Tensor, _q: Tensor, ids: Tensor) -> Tensor:
    weights = p.clone()
    weights[:, :-1].scatter_(2, ids[..., None], 0.0)
    return weights


def _half_as_often(u: Tensor, p_x: Tensor, q_x: Tensor) -> Tensor:
    return 2 * u * q_x < p_x


def _left_of_half(p: Tensor, q: Tensor, _ids: Tensor) -> Tensor:
    return p - torch.minimum(q, p / 2)


def _matches(ids: Tensor, tokens: Tensor, _accepted: Tensor) -> Tensor:
    return up_to_rejection(ids, tokens, ids == tokens[:, :-1])


def _of_target(p: Tensor, _q: Tensor, _ids: Tensor) -> Tensor:
    return p


def _in_place(p: Tensor, q: Tensor, _ids: Tensor) -> Tensor:
    own = p.clone()
    own -= q
    own[own < 0] = 0.0
    return own


def _scaled(p: Tensor, q: Tensor, ids: Tensor) -> Tensor:
    return 7 * positive_part(p, q, ids)


def _of_minimum(p: Tensor, q: Tensor, _ids: Tensor) -> Tensor:
    return p - torch.minimum(p, q)


def _unverified_last(p: Tensor, q: Tensor, ids: Tensor) -> Tensor:
    weights, k = positive_part(p, q, ids), ids.shape[1]
    weights[:, max(k - 1, 0)] = p[:, max(k - 1, 0)]
    return weights


def _without_last(ids: Tensor, tokens: Tensor, accepted: Tensor) -> Tensor:
    length = accepted.cumprod(dim=1).sum(dim=1)
    return cut(ids, tokens, length.clamp_max(max(ids.shape[1] - 1, 0)))


CONTROLS: Final = (
    Defect(
        id="control-one-hot-for-sampled-draft",
        sentence=(
            "A sampled draft is verified as if it were deterministic: accept with p, "
            "or p without it."
        ),
        sources=(
            "vllm-project/vllm#40149",
            "vllm-project/vllm#40269",
            "sgl-project/sglang#9877",
        ),
        make=lambda: Verifier(accepts=_by_p, weights=_without_draft),
        shown_on=witnesses.M1,
        bias=0.0,
        effect="none",
    ),
    Defect(
        id="control-sample-and-match",
        sentence="A token is drawn from p; the draft is accepted where it is that token.",
        sources=("ml-explore/mlx-swift-lm#459", "lablup/mlxcel#902"),
        make=lambda: Verifier(weights=_of_target, writes=_matches),
        shown_on=witnesses.M1,
        bias=0.0,
        effect="none",
    ),
    Defect(
        id="control-accepts-half-as-often",
        sentence=(
            "Drafts are accepted with probability min(1, p/2q), and the residual "
            "makes up for it."
        ),
        sources=("mutant",),
        make=lambda: Verifier(accepts=_half_as_often, weights=_left_of_half),
        shown_on=witnesses.M1,
        bias=0.0,
        effect="none",
    ),
    Defect(
        id="control-residual-in-place",
        sentence="(p - q)+ is formed in place, in a copy of its own.",
        sources=("NJUNLP/MCSD#5",),
        make=lambda: Verifier(weights=_in_place),
        shown_on=witnesses.M1,
        bias=0.0,
        effect="none",
    ),
    Defect(
        id="control-residual-not-normalised",
        sentence=(
            "The weights of the residual sum to what they like, and the draw divides "
            "by the sum."
        ),
        sources=("mutant",),
        make=lambda: Verifier(weights=_scaled),
        shown_on=witnesses.M1,
        bias=0.0,
        effect="none",
    ),
    Defect(
        id="control-residual-of-minimum",
        sentence="The residual is written as p - min(p, q).",
        sources=("mutant",),
        make=lambda: Verifier(weights=_of_minimum),
        shown_on=witnesses.M1,
        bias=0.0,
        effect="none",
    ),
    Defect(
        id="control-last-draft-unused",
        sentence="The last draft is never emitted: its place holds a token drawn from p.",
        sources=("mlc-ai/mlc-llm#2206", "vllm-project/vllm#5765"),
        make=lambda: Verifier(weights=_unverified_last, writes=_without_last),
        shown_on=witnesses.M1,
        bias=0.0,
        effect="none",
    ),
)
