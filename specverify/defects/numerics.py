# SPDX-License-Identifier: Apache-2.0
"""N: the rule is right on paper, and its arithmetic is not.

Thresholds and formats are coarser than in the reports, so that four tokens show what takes
a hundred thousand there; where it is so, the sentence gives the number of the report.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from specverify.defects.acceptance import testing
from specverify.defects.entry import Defect
from specverify.defects.verifier import (
    Arguments,
    Verifier,
    below_ratio,
    positive_part,
)
from specverify.inputs import witnesses

_SMALL: Final = 1e-3
#: The first token must not come out.
_FIRST_IMPOSSIBLE: Final = witnesses.C5.permuted((3, 2, 1, 0))


# --- the test -------------------------------------------------------------------------


def _with_epsilon(u: Tensor, p_x: Tensor, q_x: Tensor) -> Tensor:
    return u < p_x / (q_x + 1e-5)


def _epsilon_in_logs(u: Tensor, p_x: Tensor, q_x: Tensor) -> Tensor:
    return u < ((p_x + 1e-5).log() - (q_x + 1e-5).log()).exp()


def _in_bfloat16(u: Tensor, p_x: Tensor, q_x: Tensor) -> Tensor:
    return u < p_x.bfloat16() / q_x.bfloat16()


def _accepts_if_close(u: Tensor, p: Tensor, q: Tensor, ids: Tensor) -> Tensor:
    p_x, q_x = (rows.gather(2, ids[..., None]).squeeze(-1) for rows in (p, q))
    left = (p - q[:, : ids.shape[1]]).clamp_min(0).sum(dim=-1)
    return below_ratio(u, p_x, q_x) | (left < _SMALL)


# --- the residual ---------------------------------------------------------------------


def _plus_epsilon(p: Tensor, q: Tensor, ids: Tensor) -> Tensor:
    return positive_part(p, q, ids) + 1e-5


def _p_if_small(p: Tensor, q: Tensor, ids: Tensor) -> Tensor:
    weights = positive_part(p, q, ids)
    return torch.where(weights.sum(dim=-1, keepdim=True) < _SMALL, p, weights)


# --- formats --------------------------------------------------------------------------


def _halves(ids: Tensor, q: Tensor, p: Tensor) -> Arguments:
    return ids, q.half().float(), p.half().float()


def _underflowed(ids: Tensor, q: Tensor, p: Tensor) -> Arguments:
    return ids, torch.where(q < 1 / 16, 0.0, q), p


def _in_sixteenths(ids: Tensor, q: Tensor, p: Tensor) -> Arguments:
    return ids, q, (p * 16).round() / 16


# --- the draw -------------------------------------------------------------------------


def _as_normalised(weights: Tensor, v: Tensor) -> Tensor:
    """Take weights for probabilities; the last id gets what is missing."""
    token = (weights.double().cumsum(dim=-1) <= v[..., None]).sum(dim=-1)
    return token.clamp_max(weights.shape[-1] - 1)


def _inclusive(weights: Tensor, v: Tensor) -> Tensor:
    """Search for ``cdf >= v`` with uniforms of 8 bits: zero gives the first id."""
    cdf = weights.double().cumsum(dim=-1)
    coarse = (v * 256).floor() / 256
    return (cdf < coarse[..., None] * cdf[..., -1:]).sum(dim=-1)


def _up_to_one(weights: Tensor, v: Tensor) -> Tensor:
    """Round uniforms to bfloat16, so that 1 comes out once in 512 draws."""
    cdf = weights.double().cumsum(dim=-1)
    rounded = v.bfloat16().double()
    return (cdf <= rounded[..., None] * cdf[..., -1:]).sum(dim=-1)


def _last_id(weights: Tensor, v: Tensor) -> Tensor:
    return _up_to_one(weights, v).clamp_max(weights.shape[-1] - 1)


# --- addresses ------------------------------------------------------------------------


def _wrapped(ids: Tensor, q: Tensor, p: Tensor) -> Arguments:
    """Read target rows at offsets of 8 bits."""
    batch, rows, vocab = p.shape
    start = (torch.arange(batch * rows, device=p.device) * vocab) % 256
    places = start[:, None] + torch.arange(vocab, device=p.device)
    flat = p.flatten()[places.clamp_max(p.numel() - 1)]
    return ids, q, flat.view(batch, rows, vocab)


def _past_chunk(ids: Tensor, q: Tensor, p: Tensor) -> Arguments:
    return ids, q, p[torch.arange(len(p), device=p.device).clamp_max(63)]


DEFECTS: Final = (
    Defect(
        id="numerics-epsilon-in-ratio",
        sentence="The ratio is p / (q + 1e-5): too small where q is.",
        sources=("mlc-ai/mlc-llm cpu_sampler",),
        make=lambda: Verifier(accepts=_with_epsilon),
        shown_on=witnesses.C5,
        bias=1.2e-05,
        blind_on="small vocabularies, where q is far from 1e-5",
    ),
    Defect(
        id="numerics-epsilon-in-logs",
        sentence="1e-5 is added to p and q before their logarithms are compared.",
        sources=("mutant",),
        make=lambda: Verifier(accepts=_epsilon_in_logs),
        shown_on=witnesses.C5,
        bias=1.8e-05,
        blind_on="drafts with p >= q, and masses far from 1e-5",
    ),
    Defect(
        id="numerics-test-in-bfloat16",
        sentence="The ratio is formed in bfloat16.",
        sources=("mutant",),
        make=lambda: Verifier(accepts=_in_bfloat16),
        shown_on=witnesses.C1,
        bias=0.000781,
        blind_on="ratios that bfloat16 can write",
    ),
    Defect(
        id="numerics-small-residual-accepts",
        sentence=(
            "Where (p - q)+ sums to less than 1e-3 (1e-7 in the report) every draft "
            "passes."
        ),
        sources=("mlc-ai/mlc-llm GPU verify kernel",),
        make=lambda: testing(_accepts_if_close),
        shown_on=witnesses.N1,
        bias=0.000244,
        blind_on="p = q, and rows further apart",
    ),
    Defect(
        id="numerics-small-residual-from-p",
        sentence="Where (p - q)+ sums to less than 1e-3 the token is drawn from p.",
        sources=("mutant",),
        make=lambda: Verifier(weights=_p_if_small),
        shown_on=witnesses.N1,
        bias=0.000183,
        blind_on="p = q, and rows further apart",
    ),
    Defect(
        id="numerics-epsilon-in-residual",
        sentence=(
            "1e-5 (1e-10 in the report, over 150k tokens) is added to every weight of "
            "a draw."
        ),
        sources=("ml-explore/mlx-lm#990",),
        make=lambda: Verifier(weights=_plus_epsilon),
        shown_on=witnesses.C5,
        bias=3.25e-05,
        blind_on="uniform rows, and tests of fewer than a million draws",
    ),
    Defect(
        id="numerics-rows-in-half",
        sentence="p and q are rounded to float16, whose rows do not sum to 1.",
        sources=("flashinfer-ai/flashinfer#429",),
        make=lambda: Verifier(reads=_halves),
        shown_on=witnesses.C1,
        bias=9.11e-05,
        blind_on="rows that float16 can write",
    ),
    Defect(
        id="numerics-q-underflows",
        sentence="q below 1/16 (6e-8 in float16) is stored as 0, so its drafts pass.",
        sources=("Infini-AI-Lab/Sequoia 530d1bf", "lablup/mlxcel#992"),
        make=lambda: Verifier(reads=_underflowed),
        shown_on=witnesses.W,
        bias=0.0122,
        blind_on="q that is nowhere small",
    ),
    Defect(
        id="numerics-p-in-sixteenths",
        sentence="p is rounded to multiples of 1/16, as a format of four bits would.",
        sources=("mutant",),
        make=lambda: Verifier(reads=_in_sixteenths),
        shown_on=witnesses.C1,
        bias=0.015,
        blind_on="rows of multiples of 1/16",
    ),
    Defect(
        id="numerics-residual-as-probabilities",
        sentence=(
            "Sums of (p - q)+ are compared with the uniform as if they reached 1; the "
            "last id takes the rest."
        ),
        sources=("mutant",),
        make=lambda: Verifier(draws=_as_normalised),
        shown_on=witnesses.C1,
        bias=0.06,
        blind_on="supports without a common token: the residual then sums to 1",
    ),
    Defect(
        id="numerics-zero-draws-first-id",
        sentence=(
            "The draw looks for a sum >= u, and u is 0 once in 256 draws: the first "
            "id comes out."
        ),
        sources=("mutant",),
        make=lambda: Verifier(draws=_inclusive),
        shown_on=_FIRST_IMPOSSIBLE,
        bias=0.0027,
        blind_on="uniforms of more bits, of which few are 0",
    ),
    Defect(
        id="numerics-one-draws-last-id",
        sentence="Uniforms are rounded to 8 bits and reach 1: the last id comes out.",
        sources=(
            "flashinfer-ai/flashinfer#923",
            "sgl-project/sglang#22643",
            "sgl-project/sglang#26312",
        ),
        make=lambda: Verifier(draws=_last_id),
        shown_on=witnesses.C5,
        bias=0.000938,
        blind_on="uniforms of more bits, of which few reach 1",
    ),
    Defect(
        id="numerics-one-leaves-vocab",
        sentence=(
            "Uniforms are rounded to 8 bits and reach 1: the id is the size of the "
            "vocabulary."
        ),
        sources=("vllm-project/vllm#45060", "flashinfer-ai/flashinfer#3624"),
        make=lambda: Verifier(draws=_up_to_one),
        shown_on=witnesses.C5,
        bias=0.0,
        blind_on="few draws",
        effect="contract",
    ),
    Defect(
        id="numerics-offset-overflows",
        sentence=(
            "Offsets of target rows have 8 bits (32 in the report) and wrap in large "
            "batches."
        ),
        sources=("vllm-project/vllm#46560", "vllm-project/vllm#47383"),
        make=lambda: Verifier(reads=_wrapped),
        shown_on=witnesses.M1,
        bias=0.156,
        blind_on="batches that fit",
    ),
    Defect(
        id="numerics-rows-past-chunk",
        sentence="Rows past a chunk of 64 read the target of its last row.",
        sources=("vllm-project/vllm#48630",),
        make=lambda: Verifier(reads=_past_chunk),
        shown_on=witnesses.M1,
        bias=0.118,
        blind_on="batches of up to 64 rows",
    ),
)
