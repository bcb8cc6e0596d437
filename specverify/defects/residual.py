# SPDX-License-Identifier: Apache-2.0
"""R: the law of the recovered token is not ``(p - q)+``."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from specverify.defects.entry import Defect
from specverify.defects.verifier import (
    Arguments,
    Verifier,
    from_cdf,
    positive_part,
)
from specverify.inputs import witnesses
from specverify.inputs.cases import Case
from specverify.inputs.models import ToyModel

#: A deterministic draft, handed over as a row.
_ONE_HOT: Final = witnesses.O1.with_(deterministic=False)
#: Target and draft keep different tokens.
_KEPT: Final = Case(
    ToyModel.from_positions([(".6", "0", ".4"), (".4", ".6", "0")]),
    ToyModel.from_positions([("0", ".7", ".3")]),
    k=1,
    name="kept",
)


# --- another function of p and q ------------------------------------------------------


def _of_target(p: Tensor, _q: Tensor, _ids: Tensor) -> Tensor:
    return p


def _of_draft(p: Tensor, q: Tensor, _ids: Tensor) -> Tensor:
    return torch.cat([q[:, :-1], p[:, -1:]], dim=1)


def _softmax(p: Tensor, q: Tensor, ids: Tensor) -> Tensor:
    weights = positive_part(p, q, ids).softmax(dim=-1)
    weights[:, -1] = p[:, -1]  # the bonus token is drawn elsewhere
    return weights


def _absolute(p: Tensor, q: Tensor, _ids: Tensor) -> Tensor:
    return (p - q).abs()


def _reversed(p: Tensor, q: Tensor, _ids: Tensor) -> Tensor:
    return (q - p).clamp_min(0)  # behind the last draft 0, and so p


def _ratio(p: Tensor, q: Tensor, ids: Tensor) -> Tensor:
    weights = torch.where(q > 0, p / q - 1, p).clamp_min(0)
    return torch.cat([weights[:, :-1], p[:, -1:]], dim=1)


def _without_draft(p: Tensor, _q: Tensor, ids: Tensor) -> Tensor:
    weights = p.clone()
    weights[:, :-1].scatter_(2, ids[..., None], 0.0)
    return weights


def _unmasked(p: Tensor, q: Tensor, ids: Tensor) -> Tensor:
    one_hot = q.amax(dim=-1, keepdim=True) == 1
    return torch.where(one_hot, p, positive_part(p, q, ids))


def _floored(p: Tensor, q: Tensor, ids: Tensor) -> Tensor:
    drafted = positive_part(p, q, ids)[:, :-1]
    return torch.cat([drafted.clamp_min(1e-3), p[:, -1:]], dim=1)


def _top_of_target(p: Tensor, _q: Tensor, _ids: Tensor) -> Tensor:
    top = torch.zeros_like(p).scatter(2, p.argmax(dim=-1, keepdim=True), 1.0)
    return torch.cat([top[:, :-1], p[:, -1:]], dim=1)


def _by_rank(p: Tensor, q: Tensor, _ids: Tensor) -> Tensor:
    """Subtract the n-th kept token of q from the n-th kept token of p."""
    kept_p = (p == 0).to(torch.int8).argsort(dim=-1, stable=True)
    kept_q = (q == 0).to(torch.int8).argsort(dim=-1, stable=True)
    left = (p.gather(2, kept_p) - q.gather(2, kept_q)).clamp_min(0)
    return torch.zeros_like(p).scatter(2, kept_p, left)


# --- p or q is not what it should be --------------------------------------------------


def _zero_q(ids: Tensor, q: Tensor, p: Tensor) -> Arguments:
    return ids, torch.zeros_like(q), p


def _holes(ids: Tensor, q: Tensor, p: Tensor) -> Arguments:
    p = p.clone()
    p[:, :-1].scatter_(2, ids[..., None], 0.0)
    return ids, q, p


def _hole_in_place(p: Tensor, q: Tensor, ids: Tensor) -> Tensor:
    weights = positive_part(p, q, ids)
    p[:, :-1].scatter_(2, ids[..., None], 0.0)
    return weights


# --- the row that it is taken from ----------------------------------------------------


def _first_row(p: Tensor, q: Tensor, ids: Tensor) -> Tensor:
    first = positive_part(p, q, ids)[:, [0] * ids.shape[1]]
    return torch.cat([first, p[:, :1]], dim=1)


def _last_row(p: Tensor, _q: Tensor, _ids: Tensor) -> Tensor:
    return p[:, -1:].expand_as(p)


def _row_before(p: Tensor, q: Tensor, ids: Tensor) -> Tensor:
    k = ids.shape[1]
    return positive_part(p, q, ids)[:, [*[max(i - 1, 0) for i in range(k)], k]]


def _row_behind(p: Tensor, q: Tensor, ids: Tensor) -> Tensor:
    return positive_part(torch.cat([p[:, 1:], p[:, -1:]], dim=1), q, ids)


def _next_q(p: Tensor, q: Tensor, ids: Tensor) -> Tensor:
    k = ids.shape[1]
    return positive_part(p, q[:, [*[min(i + 1, k - 1) for i in range(k)], k]], ids)


# --- how it is drawn ------------------------------------------------------------------


def _likeliest(weights: Tensor, v: Tensor) -> Tensor:
    drawn = from_cdf(weights, v)  # the bonus token
    return torch.cat([weights[:, :-1].argmax(dim=-1), drawn[:, -1:]], dim=1)


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
        blind_on="inputs with p = q",
    ),
    Defect(
        id="residual-absolute",
        sentence="The residual is |p - q|, not (p - q)+.",
        sources=("mutant",),
        make=lambda: Verifier(weights=_absolute),
        shown_on=witnesses.C1,
        bias=0.2,
        blind_on="inputs with p = q",
    ),
    Defect(
        id="residual-reversed",
        sentence="The residual is (q - p)+, not (p - q)+.",
        sources=("mutant",),
        make=lambda: Verifier(weights=_reversed),
        shown_on=witnesses.C1,
        bias=0.4,
        blind_on="inputs with p = q",
    ),
    Defect(
        id="residual-without-draft-only",
        sentence="The residual is p without the rejected token, whatever q is.",
        sources=("mutant",),
        make=lambda: Verifier(weights=_without_draft),
        shown_on=witnesses.S1,
        bias=0.125,
        blind_on="vocab 2, and one-hot drafts, for which it is right",
    ),
    Defect(
        id="residual-unmasked-one-hot",
        sentence="A rejected deterministic draft is not taken out of p.",
        sources=("mutant",),
        make=lambda: Verifier(weights=_unmasked),
        shown_on=_ONE_HOT,
        bias=0.25,
        blind_on="drafts that are sampled, q not one-hot",
    ),
    Defect(
        id="residual-hole-before-test",
        sentence="p is set to 0 at the draft before the test has read it.",
        sources=("vllm-project/vllm#23829", "vllm-project/vllm-ascend#4673"),
        make=lambda: Verifier(reads=_holes, weights=_of_target),
        shown_on=_ONE_HOT,
        bias=0.5,
        blind_on="vocabularies of one block, where the order of writes and reads is fixed",
    ),
    Defect(
        id="residual-hole-left-in-target",
        sentence='p is set to 0 at the draft in the caller"s tensor, and left so.',
        sources=("vllm-project/vllm-ascend#2881",),
        make=lambda: Verifier(weights=_hole_in_place),
        shown_on=_ONE_HOT,
        bias=0.0,
        blind_on="callers that read p once",
        effect="contract",
    ),
    Defect(
        id="residual-row-first",
        sentence=(
            "The recovered and the bonus token are drawn from the rows of the first "
            "draft."
        ),
        sources=("flashinfer-ai/flashinfer#425",),
        make=lambda: Verifier(weights=_first_row),
        shown_on=witnesses.J1,
        bias=0.196,
        blind_on="rows that are all alike",
    ),
    Defect(
        id="residual-row-last",
        sentence=(
            "The recovered token is drawn from the last target row, that of the bonus "
            "token."
        ),
        sources=("romsto/Speculative-Decoding 53922df",),
        make=lambda: Verifier(weights=_last_row),
        shown_on=witnesses.J1,
        bias=0.254,
        blind_on="acceptance of all drafts",
    ),
    Defect(
        id="residual-row-before",
        sentence="p and q of the recovered token are those of one position before.",
        sources=("mutant",),
        make=lambda: Verifier(weights=_row_before),
        shown_on=witnesses.J1,
        bias=0.18,
        blind_on="a single draft, and rows that are all alike",
    ),
    Defect(
        id="residual-row-behind",
        sentence="p of the recovered token is that of one position behind, q is right.",
        sources=("mutant",),
        make=lambda: Verifier(weights=_row_behind),
        shown_on=witnesses.C1,
        bias=0.3,
        blind_on="rows that are all alike",
    ),
    Defect(
        id="residual-by-rank",
        sentence=(
            "p and q are subtracted place by place in lists of kept tokens, not token "
            "by token."
        ),
        sources=("ggml-org/llama.cpp#5625",),
        make=lambda: Verifier(weights=_by_rank),
        shown_on=_KEPT,
        bias=0.6,
        blind_on="rows of full support",
    ),
    Defect(
        id="residual-floored",
        sentence=(
            "Residual weights below 1e-3 are raised to 1e-3 (1e-5 in the report, over "
            "128k tokens)."
        ),
        sources=("vllm-project/vllm#13933",),
        make=lambda: Verifier(weights=_floored),
        shown_on=witnesses.C5,
        bias=0.00298,
        blind_on="small vocabularies, where tokens with p < q are few",
    ),
    Defect(
        id="residual-argmax",
        sentence="The likeliest token of (p - q)+ is taken, not a draw.",
        sources=("mutant",),
        make=lambda: Verifier(draws=_likeliest),
        shown_on=witnesses.C1,
        bias=0.1,
        blind_on="residuals of one token, so all of vocab 2",
    ),
    Defect(
        id="recovers-argmax-of-p",
        sentence="After a rejection the likeliest token of p is taken.",
        sources=("ml-explore/mlx-lm#990",),
        make=lambda: Verifier(weights=_top_of_target),
        shown_on=witnesses.C1,
        bias=0.1,
        blind_on="residuals of one token that is the likeliest of p",
    ),
    Defect(
        id="draft-probs-never-written",
        sentence="The buffer of q is never filled and holds zeros.",
        sources=("sgl-project/sglang#12561",),
        make=lambda: Verifier(reads=_zero_q),
        shown_on=witnesses.C1,
        bias=0.4,
        blind_on="inputs with p = q",
    ),
    Defect(
        id="residual-uses-next-draft",
        sentence="q of the residual is that of the next draft, p is right.",
        sources=("mutant",),
        make=lambda: Verifier(weights=_next_q),
        shown_on=witnesses.J1,
        bias=0.1,
        blind_on="a single draft, and rows of q that are all alike",
    ),
    Defect(
        id="residual-ratio",
        sentence="The residual is p/q - 1 where that is positive, not p - q.",
        sources=("mutant",),
        make=lambda: Verifier(weights=_ratio),
        shown_on=witnesses.W,
        bias=0.149,
        blind_on="uniform q, for which it is right",
    ),
    Defect(
        id="recovers-from-q",
        sentence="After a rejection the token is drawn from q again.",
        sources=("mutant",),
        make=lambda: Verifier(weights=_of_draft),
        shown_on=witnesses.C1,
        bias=0.24,
        blind_on="inputs with p = q",
    ),
)
