# SPDX-License-Identifier: Apache-2.0
"""S: right numbers at the wrong place: positions, token ids, the form of the answer."""

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
    up_to_rejection,
)
from specverify.inputs import witnesses

# --- positions ------------------------------------------------------------------------


def _q_one_late(ids: Tensor, q: Tensor, p: Tensor) -> Arguments:
    return ids, torch.cat([q[:, :1], q[:, :-1]], dim=1), p


def _q_backwards(ids: Tensor, q: Tensor, p: Tensor) -> Arguments:
    return ids, q.flip(1), p


def _p_one_early(ids: Tensor, q: Tensor, p: Tensor) -> Arguments:
    return ids, q, torch.cat([p[:, 1:], p[:, -1:]], dim=1)


def _p_one_late(ids: Tensor, q: Tensor, p: Tensor) -> Arguments:
    return ids, q, torch.cat([p[:, :1], p[:, :-1]], dim=1)


# --- token ids ------------------------------------------------------------------------


def _q_of_other_ids(ids: Tensor, q: Tensor, p: Tensor) -> Arguments:
    return ids, q.roll(1, dims=2), p


def _without_last_id(ids: Tensor, q: Tensor, p: Tensor) -> Arguments:
    whole = torch.cat([p[..., :-1], torch.zeros_like(p[..., -1:])], dim=2)
    return ids, q, torch.where(whole.sum(dim=2, keepdim=True) > 0, whole, p)


def _mapped_again(weights: Tensor, v: Tensor) -> Tensor:
    return (from_cdf(weights, v) + 1) % weights.shape[-1]


def _whole_blocks(p: Tensor, q: Tensor, ids: Tensor) -> Tensor:
    weights, vocab = positive_part(p, q, ids), p.shape[2]
    weights[:, :-1, vocab // 2 * 2 :] = 0.0
    return weights


def _padding_as_tokens(p: Tensor, q: Tensor, ids: Tensor) -> Tensor:
    padding = (p.flip(2).cumsum(dim=2).flip(2) == 0) & (q.sum(dim=2, keepdim=True) == 0)
    return positive_part(p, q, ids) + 0.05 * padding


# --- the form of the answer -----------------------------------------------------------


def _as_int32(ids: Tensor, tokens: Tensor, accepted: Tensor) -> Tensor:
    return up_to_rejection(ids, tokens, accepted).int()


def _one_column_short(ids: Tensor, tokens: Tensor, accepted: Tensor) -> Tensor:
    return up_to_rejection(ids, tokens, accepted)[:, : max(ids.shape[1], 1)]


def _padded_with_vocab(ids: Tensor, tokens: Tensor, accepted: Tensor) -> Tensor:
    output = up_to_rejection(ids, tokens, accepted)
    return output.masked_fill(output < 0, 1 << 20)


DEFECTS: Final = (
    Defect(
        id="layout-q-one-late",
        sentence="Drafts are verified with the row of q one position before theirs.",
        sources=("mutant",),
        make=lambda: Verifier(reads=_q_one_late),
        shown_on=witnesses.J1,
        bias=0.2,
        blind_on="a single draft, and rows of q that are all alike",
    ),
    Defect(
        id="layout-q-backwards",
        sentence="The rows of q stand in reverse order.",
        sources=("mutant",),
        make=lambda: Verifier(reads=_q_backwards),
        shown_on=witnesses.J1,
        bias=0.416,
        blind_on="a single draft, and rows of q that are all alike",
    ),
    Defect(
        id="layout-p-one-early",
        sentence="Target rows are read one position ahead.",
        sources=("NVIDIA/TensorRT-LLM#15098",),
        make=lambda: Verifier(reads=_p_one_early),
        shown_on=witnesses.C1,
        bias=0.3,
        blind_on="rows that are all alike",
    ),
    Defect(
        id="layout-p-one-late",
        sentence="Target rows are read one position behind.",
        sources=("mutant",),
        make=lambda: Verifier(reads=_p_one_late),
        shown_on=witnesses.C1,
        bias=0.18,
        blind_on="rows that are all alike",
    ),
    Defect(
        id="layout-q-ids-not-mapped",
        sentence="Draft ids are mapped to the target's, the columns of q are not.",
        sources=("alibaba/rtp-llm#1311", "alibaba/rtp-llm#1295"),
        make=lambda: Verifier(reads=_q_of_other_ids),
        shown_on=witnesses.C1,
        bias=0.4,
        blind_on="uniform q",
    ),
    Defect(
        id="layout-last-id-missing",
        sentence="The last id of the vocabulary is cut off p.",
        sources=("mutant",),
        make=lambda: Verifier(reads=_without_last_id),
        shown_on=witnesses.C1,
        bias=0.54,
        blind_on="targets that give the last id no mass",
    ),
    Defect(
        id="layout-tokens-mapped-again",
        sentence=(
            "Drawn tokens, which are ids of the target, go through the draft's map "
            "once more."
        ),
        sources=("vllm-project/vllm-ascend#16166",),
        make=lambda: Verifier(draws=_mapped_again),
        shown_on=witnesses.C1,
        bias=0.31,
        blind_on="accepted drafts, and maps that are the identity",
    ),
    Defect(
        id="layout-last-block-missing",
        sentence="The residual is formed in whole blocks of 2 tokens only.",
        sources=("mutant",),
        make=lambda: Verifier(weights=_whole_blocks),
        shown_on=witnesses.C1,
        bias=0.3,
        blind_on="vocabularies that fill whole blocks",
    ),
    Defect(
        id="layout-padding-drawn",
        sentence="Padding behind the vocabulary has weight in the draw of the bonus token.",
        sources=("mutant",),
        make=lambda: Verifier(weights=_padding_as_tokens),
        shown_on=witnesses.C1.padded(1),
        bias=0.0286,
        blind_on="vocabularies without padding",
    ),
    Defect(
        id="layout-answer-int32",
        sentence="The answer has dtype int32.",
        sources=("mutant",),
        make=lambda: Verifier(writes=_as_int32),
        shown_on=witnesses.C1,
        bias=0.0,
        blind_on="callers that convert",
        effect="contract",
    ),
    Defect(
        id="layout-answer-too-short",
        sentence="The answer has no column for the bonus token.",
        sources=("mutant",),
        make=lambda: Verifier(writes=_one_column_short),
        shown_on=witnesses.C1,
        bias=0.0,
        blind_on="rejections",
        effect="contract",
    ),
    Defect(
        id="layout-answer-padding",
        sentence="Behind the last token stands an id outside the vocabulary, not -1.",
        sources=("mutant",),
        make=lambda: Verifier(writes=_padded_with_vocab),
        shown_on=witnesses.C1,
        bias=0.0,
        blind_on="callers that read a count of tokens, and full acceptance",
        effect="contract",
    ),
)
