# SPDX-License-Identifier: Apache-2.0
"""A: tests that are right and not acted upon, in a row, in a batch and at temperature 0."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from specverify.defects.acceptance import at_ids, testing
from specverify.defects.entry import Defect
from specverify.defects.verifier import Verifier, below_ratio, cut
from specverify.inputs import witnesses

# --- which tests count ----------------------------------------------------------------


def _together(u: Tensor, p_x: Tensor, q_x: Tensor) -> Tensor:
    return below_ratio(u, p_x, q_x).all(dim=0, keepdim=True).expand_as(p_x)


# --- what is kept ---------------------------------------------------------------------


def _last_drafts(ids: Tensor, tokens: Tensor, accepted: Tensor) -> Tensor:
    """Keep the last n drafts where n were accepted."""
    n, k = accepted.cumprod(dim=1).sum(dim=1, keepdim=True), ids.shape[1]
    place = (torch.arange(k, device=ids.device) + k - n) % max(k, 1)
    return cut(ids.gather(1, place), tokens, n[:, 0])


def _counted(ids: Tensor, tokens: Tensor, accepted: Tensor) -> Tensor:
    return cut(ids, tokens, accepted.sum(dim=1))


def _went_on(ids: Tensor, tokens: Tensor, accepted: Tensor) -> Tensor:
    kept = torch.where(accepted, ids, tokens[:, :-1])
    return torch.cat([kept, tokens[:, -1:]], dim=1)


def _rejected_too(ids: Tensor, tokens: Tensor, accepted: Tensor) -> Tensor:
    """Keep the first rejected draft as well."""
    n = accepted.cumprod(dim=1).sum(dim=1)
    return cut(ids, tokens, (n + 1).clamp_max(ids.shape[1]))


def _uncleared(ids: Tensor, tokens: Tensor, accepted: Tensor) -> Tensor:
    n = accepted.cumprod(dim=1).sum(dim=1)
    return cut(ids, tokens, n).clamp_min(0)


def _first_place_only(ids: Tensor, tokens: Tensor, accepted: Tensor) -> Tensor:
    length = accepted.cumprod(dim=1).sum(dim=1)
    output, k = cut(ids, tokens, length), ids.shape[1]
    inner = (length > 0) & (length < k)
    place = torch.arange(k + 1, device=ids.device) == length[:, None]
    return output.masked_fill(inner[:, None] & place, -1)


# --- greedy ---------------------------------------------------------------------------


def _of_target(p: Tensor, _q: Tensor, _ids: Tensor) -> Tensor:
    return p


def _likeliest(weights: Tensor, _v: Tensor) -> Tensor:
    return weights.argmax(dim=-1)


def _last_likeliest(weights: Tensor, _v: Tensor) -> Tensor:
    return weights.shape[-1] - 1 - weights.flip(-1).argmax(dim=-1)


def _is_last_top(_u: Tensor, p: Tensor, _q: Tensor, ids: Tensor) -> Tensor:
    return ids == p.shape[-1] - 1 - p.flip(-1).argmax(dim=-1)


def _is_a_top(_u: Tensor, p: Tensor, _q: Tensor, ids: Tensor) -> Tensor:
    return at_ids(p, ids) == p.amax(dim=-1)


_GREEDY: Final = {"greedy": True}


def _is_top(_u: Tensor, p: Tensor, _q: Tensor, ids: Tensor) -> Tensor:
    return ids == p.argmax(dim=-1)


DEFECTS: Final = (
    Defect(
        id="accept-all-rows-or-none",
        sentence="A draft is kept only if every row of the batch accepts its own.",
        sources=("waybarrios/vllm-mlx#662",),
        make=lambda: Verifier(accepts=_together),
        shown_on=witnesses.M1,
        bias=0.25,
        blind_on="one row a call",
    ),
    Defect(
        id="keeps-last-drafts",
        sentence="Where n drafts were accepted, the last n are emitted, not the first.",
        sources=("huggingface/transformers#28508",),
        make=lambda: Verifier(writes=_last_drafts),
        shown_on=witnesses.J1,
        bias=0.12,
        blind_on="a single draft; and accepts-all, which makes n always k",
    ),
    Defect(
        id="counts-behind-rejection",
        sentence="Acceptances behind a rejection are counted too.",
        sources=("mutant",),
        make=lambda: Verifier(writes=_counted),
        shown_on=witnesses.J1,
        bias=0.28,
        blind_on="a single draft",
    ),
    Defect(
        id="goes-on-behind-rejection",
        sentence=(
            "A rejected draft is replaced where it stands, and the drafts behind it "
            "stay."
        ),
        sources=("mutant",),
        make=lambda: Verifier(writes=_went_on),
        shown_on=witnesses.M1,
        bias=0.195,
        blind_on="rows that do not depend on the text, and the first token alone",
    ),
    Defect(
        id="keeps-rejected",
        sentence="The first rejected draft is emitted as well.",
        sources=("mutant",),
        make=lambda: Verifier(writes=_rejected_too),
        shown_on=witnesses.C1,
        bias=0.4,
        blind_on="inputs with p = q",
    ),
    Defect(
        id="tail-not-cleared",
        sentence="Behind the last token stands what was in the buffer, zeros, not -1.",
        sources=("vllm-project/vllm#37238",),
        make=lambda: Verifier(writes=_uncleared),
        shown_on=witnesses.C1,
        bias=0.2,
        blind_on="callers that read a count of tokens, and full acceptance",
    ),
    Defect(
        id="greedy-accepts-by-ratio",
        sentence="At temperature 0 drafts are accepted by the ratio of the sampled rows.",
        sources=("waybarrios/vllm-mlx 15062db",),
        make=lambda: Verifier(weights=_of_target, draws=_likeliest),
        shown_on=witnesses.C1.with_(greedy=True),
        bias=0.4,
        blind_on="drafts that are the likeliest token of p",
        capabilities=_GREEDY,
    ),
    Defect(
        id="greedy-samples",
        sentence="At temperature 0 the random verification is used.",
        sources=("alibaba/rtp-llm#1187",),
        make=Verifier,
        shown_on=witnesses.C1.with_(greedy=True),
        bias=0.6,
        blind_on="targets that are one-hot",
        capabilities=_GREEDY,
    ),
    Defect(
        id="greedy-last-of-ties",
        sentence=(
            "At temperature 0 the last of equally likely tokens is taken, decoding "
            "takes the first."
        ),
        sources=("ohdearquant/lattice#280",),
        make=lambda: testing(_is_last_top, weights=_of_target, draws=_last_likeliest),
        shown_on=witnesses.T1.with_(greedy=True),
        bias=1,
        blind_on="rows without ties",
        capabilities=_GREEDY,
    ),
    Defect(
        id="greedy-accepts-ties",
        sentence=(
            "At temperature 0 every draft passes that is as likely as the first of "
            "the likeliest."
        ),
        sources=("ohdearquant/lattice#280",),
        make=lambda: testing(_is_a_top, weights=_of_target, draws=_likeliest),
        shown_on=witnesses.T1.with_(greedy=True),
        bias=0.62,
        blind_on="rows without ties",
        capabilities=_GREEDY,
    ),
    Defect(
        id="recovered-at-first-place-only",
        sentence=(
            "The recovered token is written behind a rejection of the first draft only."
        ),
        sources=("vllm-project/vllm#8562",),
        make=lambda: Verifier(writes=_first_place_only),
        shown_on=witnesses.J1,
        bias=0.09,
        blind_on="a single draft",
    ),
)
CONTROLS: Final = (
    Defect(
        id="control-greedy-match",
        sentence=(
            "At temperature 0 a draft passes if it is the likeliest token; no seed "
            "has an effect."
        ),
        sources=("vllm-project/vllm#13196",),
        make=lambda: testing(_is_top, weights=_of_target, draws=_likeliest),
        shown_on=witnesses.T1.with_(greedy=True),
        bias=0.0,
        effect="none",
        capabilities=_GREEDY,
    ),
)
