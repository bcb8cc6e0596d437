# SPDX-License-Identifier: Apache-2.0
"""B: the token behind accepted drafts, and stop tokens among them."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from specverify.defects.acceptance import testing
from specverify.defects.entry import Defect
from specverify.defects.verifier import (
    Verifier,
    below_ratio,
    cut,
    from_cdf,
    positive_part,
    up_to_rejection,
)
from specverify.inputs import witnesses
from specverify.inputs.cases import Case
from specverify.inputs.models import ToyModel

#: Token that ends a text.
_STOP: Final = 0
#: Nothing but the stop token follows the stop token.
_STOPPING: Final = Case(
    ToyModel.from_table(
        {
            (): (".4", ".3", ".3"),
            (0,): ("1", "0", "0"),
            (1,): (".5", ".2", ".3"),
            (2,): (".3", ".3", ".4"),
        },
        memory=1,
    ),
    ToyModel.from_table(
        {
            (): (".5", ".3", ".2"),
            (0,): (".2", ".5", ".3"),
            (1,): (".4", ".3", ".3"),
            (2,): (".3", ".4", ".3"),
        },
        memory=1,
    ),
    k=2,
    name="stopping",
)


# --- the row of the bonus token -------------------------------------------------------


def _with_bonus(weights: Tensor, row: Tensor) -> Tensor:
    return torch.cat([weights[:, :-1], row[:, None]], dim=1)


def _row_before(p: Tensor, q: Tensor, ids: Tensor) -> Tensor:
    return _with_bonus(positive_part(p, q, ids), p[:, max(ids.shape[1] - 1, 0)])


def _row_first(p: Tensor, q: Tensor, ids: Tensor) -> Tensor:
    return _with_bonus(positive_part(p, q, ids), p[:, 0])


def _of_draft(p: Tensor, q: Tensor, ids: Tensor) -> Tensor:
    row = q[:, max(ids.shape[1] - 1, 0)]  # without drafts zero, and so p
    return _with_bonus(positive_part(p, q, ids), row)


def _without_last_q(p: Tensor, q: Tensor, ids: Tensor) -> Tensor:
    row = (p[:, -1] - q[:, max(ids.shape[1] - 1, 0)]).clamp_min(0)
    return _with_bonus(positive_part(p, q, ids), row)


def _unmasked(p: Tensor, q: Tensor, ids: Tensor) -> Tensor:
    masked = p[:, -1] == 0
    return _with_bonus(positive_part(p, q, ids), p[:, -1] + 0.1 * masked)


def _flattened(p: Tensor, q: Tensor, ids: Tensor) -> Tensor:
    return _with_bonus(positive_part(p, q, ids), p[:, -1].sqrt())


def _likeliest(weights: Tensor, v: Tensor) -> Tensor:
    tokens = from_cdf(weights, v)
    return torch.cat([tokens[:, :-1], weights[:, -1:].argmax(dim=-1)], dim=1)


# --- where it is written --------------------------------------------------------------


def _length(accepted: Tensor) -> Tensor:
    return accepted.cumprod(dim=1).sum(dim=1)


def _capped(ids: Tensor, tokens: Tensor, accepted: Tensor) -> Tensor:
    """The cap leaves out the last draft; its residual stands behind the others."""
    return cut(ids, tokens, _length(accepted).clamp_max(max(ids.shape[1] - 1, 0)))


def _no_bonus(ids: Tensor, tokens: Tensor, accepted: Tensor) -> Tensor:
    output = up_to_rejection(ids, tokens, accepted)
    every = accepted.all(dim=1)
    return torch.cat(
        [output[:, :-1], output[:, -1:].masked_fill(every[:, None], -1)], 1
    )


def _again(ids: Tensor, tokens: Tensor, accepted: Tensor) -> Tensor:
    return cut(ids, torch.cat([tokens[:, :1], ids], dim=1), _length(accepted))


def _always_bonus(ids: Tensor, tokens: Tensor, accepted: Tensor) -> Tensor:
    """Take the bonus token for the recovered one."""
    return cut(ids, tokens[:, -1:].expand_as(tokens), _length(accepted))


# --- stop tokens ----------------------------------------------------------------------


def _redrawn(ids: Tensor, tokens: Tensor, accepted: Tensor) -> Tensor:
    length, k = _length(accepted), ids.shape[1]
    if k:
        length = length - ((length == k) & (ids[:, -1] == _STOP)).long()
    return cut(ids, tokens, length)


def _kept_behind_stop(u: Tensor, p: Tensor, q: Tensor, ids: Tensor) -> Tensor:
    p_x, q_x = (rows.gather(2, ids[..., None]).squeeze(-1) for rows in (p, q))
    accepted = below_ratio(u, p_x, q_x)
    stops = (ids == _STOP) & (accepted.cumprod(dim=1) > 0)
    return accepted | (stops.cumsum(dim=1) - stops.long() > 0)


def _dropped(ids: Tensor, tokens: Tensor, accepted: Tensor) -> Tensor:
    """Leave out a stop token that stands behind accepted drafts."""
    length = _length(accepted)
    last = tokens.gather(1, length[:, None])[:, 0]
    gone = (last == _STOP) & (length > 0)
    place = torch.arange(tokens.shape[1], device=ids.device) == length[:, None]
    return cut(ids, tokens, length).masked_fill(gone[:, None] & place, -1)


def _not_stopping(p: Tensor, q: Tensor, ids: Tensor) -> Tensor:
    weights = positive_part(p, q, ids)
    weights[:, -1, _STOP] = 0.0
    return weights


DEFECTS: Final = (
    Defect(
        id="bonus-row-before",
        sentence="The bonus token is drawn from the row of the last draft.",
        sources=("vllm-project/vllm-gaudi#609", "vllm-project/vllm-ascend#11458"),
        make=lambda: Verifier(weights=_row_before),
        shown_on=witnesses.B1,
        bias=0.5,
        blind_on="rows that are all alike, and the first token of a step",
    ),
    Defect(
        id="bonus-row-first",
        sentence="The bonus token is drawn from the first row.",
        sources=("mutant",),
        make=lambda: Verifier(weights=_row_first),
        shown_on=witnesses.B2,
        bias=0.5,
        blind_on="rows that are all alike",
    ),
    Defect(
        id="bonus-from-draft",
        sentence="The bonus token is drawn from the last row of q.",
        sources=("mutant",),
        make=lambda: Verifier(weights=_of_draft),
        shown_on=witnesses.B1,
        bias=0.5,
        blind_on="draft rows equal to the last target row",
    ),
    Defect(
        id="bonus-minus-last-q",
        sentence="q of the last draft is subtracted from the row of the bonus token.",
        sources=("mutant",),
        make=lambda: Verifier(weights=_without_last_q),
        shown_on=witnesses.B1,
        bias=0.3,
        blind_on="a last row that is equal to q of the last draft: the residual is zero",
    ),
    Defect(
        id="bonus-unmasked",
        sentence="A mask has set p to 0, and the bonus token is drawn without it.",
        sources=("vllm-project/vllm#44006", "vllm-project/vllm#44292"),
        make=lambda: Verifier(weights=_unmasked),
        shown_on=witnesses.Z2,
        bias=0.0227,
        blind_on="targets of full support",
    ),
    Defect(
        id="bonus-at-another-temperature",
        sentence="The bonus token is drawn at twice the temperature.",
        sources=("mutant",),
        make=lambda: Verifier(weights=_flattened),
        shown_on=witnesses.B1,
        bias=0.177,
        blind_on="uniform and one-hot last rows",
    ),
    Defect(
        id="bonus-argmax",
        sentence="The likeliest token is taken for the bonus token.",
        sources=("mutant",),
        make=lambda: Verifier(draws=_likeliest),
        shown_on=witnesses.B1,
        bias=0.3,
        blind_on="one-hot last rows",
    ),
    Defect(
        id="bonus-missing",
        sentence="When all drafts are accepted no bonus token comes.",
        sources=("mlc-ai/mlc-llm#2206", "vllm-project/vllm#5765"),
        make=lambda: Verifier(writes=_no_bonus),
        shown_on=witnesses.P2.with_(k=0),
        bias=0.0,
        blind_on="drafts that are never all accepted; the law is kept",
        effect="contract",
    ),
    Defect(
        id="bonus-after-rejection",
        sentence="The recovered token is replaced by the bonus token.",
        sources=("mutant",),
        make=lambda: Verifier(writes=_always_bonus),
        shown_on=witnesses.C1,
        bias=0.22,
        blind_on="inputs with p = q",
    ),
    Defect(
        id="bonus-cap-taken-for-rejection",
        sentence=(
            "A cap on the length leaves out the last draft, and its residual is drawn "
            "from."
        ),
        sources=("huggingface/transformers#28508",),
        make=lambda: Verifier(writes=_capped),
        shown_on=witnesses.C1,
        bias=0.25,
        blind_on="inputs with p = q, and lengths away from the cap",
    ),
    Defect(
        id="bonus-repeats-last-draft",
        sentence="Behind accepted drafts the last of them is emitted again.",
        sources=("kekzl/imp#667",),
        make=lambda: Verifier(writes=_again),
        shown_on=witnesses.C1,
        bias=0.4,
        blind_on="rejections of the first draft",
    ),
    Defect(
        id="stop-accepted-and-redrawn",
        sentence=(
            "An accepted stop token at the end of the drafts is redrawn from the "
            "residual."
        ),
        sources=("huggingface/transformers#28508",),
        make=lambda: Verifier(writes=_redrawn),
        shown_on=witnesses.C1,
        bias=0.2,
        blind_on="texts that do not end, and drafts that p likes more than q",
    ),
    Defect(
        id="stop-run-kept",
        sentence="Drafts behind an accepted stop token are kept untested.",
        sources=(
            "huggingface/transformers#47912",
            "huggingface/transformers#31301",
            "openvinotoolkit/openvino.genai#1951",
        ),
        make=lambda: testing(_kept_behind_stop),
        shown_on=_STOPPING,
        bias=0.32,
        blind_on="a single draft, and texts that do not end",
    ),
    Defect(
        id="stop-dropped",
        sentence="A stop token behind accepted drafts is left out, and the text goes on.",
        sources=("mutant",),
        make=lambda: Verifier(writes=_dropped),
        shown_on=witnesses.C1,
        bias=0.15,
        blind_on="rejections of the first draft, and texts that do not end",
    ),
    Defect(
        id="stop-not-a-bonus",
        sentence="The bonus token is never the stop token.",
        sources=("mutant",),
        make=lambda: Verifier(weights=_not_stopping),
        shown_on=witnesses.C1,
        bias=0.3,
        blind_on="last rows that give the stop token no mass",
    ),
)
