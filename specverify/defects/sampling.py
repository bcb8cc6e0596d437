# SPDX-License-Identifier: Apache-2.0
"""M: temperature, cuts, penalties and bans that reach a part of the target's rows only.

The p that is handed over is the transformed one, and so what is due. What an engine forgot
to do is undone here on the rows in question.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor

from specverify.defects.drafter import normalised, powered, top
from specverify.defects.entry import Defect
from specverify.defects.verifier import Arguments, Verifier, positive_part
from specverify.inputs import witnesses

#: Reads draft ids, q and p.
Reads = Callable[[Tensor, Tensor, Tensor], Arguments]
#: Changes rows of p: [batch, rows, vocab].
Change = Callable[[Tensor], Tensor]


def _hot(p: Tensor) -> Tensor:
    """What p was before a temperature of 1/2."""
    return powered(p, 0.5)


def _cold(p: Tensor) -> Tensor:
    return powered(p, 2)


def _greedy(p: Tensor) -> Tensor:
    return normalised(top(p, 1))


def _half(p: Tensor) -> Tensor:
    """The most likely tokens that together have at least 1/2."""
    ahead, order = p.double().sort(dim=-1, descending=True, stable=True)
    enough = ahead.cumsum(dim=-1) - ahead >= 0.5
    return normalised(p.double().scatter(-1, order, ahead.masked_fill(enough, 0)))


def uncut(p: Tensor) -> Tensor:
    """What p was before its excluded tokens, 1/10 together, were cut off."""
    excluded = (p == 0).double()
    share = excluded / excluded.sum(dim=-1, keepdim=True).clamp_min(1)
    tail = 0.1 * share.sum(dim=-1, keepdim=True)
    return (1 - tail) * p + 0.1 * share


def _unbiased(p: Tensor) -> Tensor:
    """What p was before token 0 was favoured by a logit bias of 1."""
    factor = torch.ones_like(p[0, 0], dtype=torch.float64)
    factor[0] = torch.e**-1
    return normalised(p * factor)


def _on_drafts(change: Change) -> Reads:
    def reads(ids: Tensor, q: Tensor, p: Tensor) -> Arguments:
        return ids, q, torch.cat([change(p[:, :-1]), p[:, -1:].double()], dim=1)

    return reads


def _on_bonus(change: Change) -> Reads:
    def reads(ids: Tensor, q: Tensor, p: Tensor) -> Arguments:
        return ids, q, torch.cat([p[:, :-1].double(), change(p[:, -1:])], dim=1)

    return reads


def _behind_first(change: Change) -> Reads:
    def reads(ids: Tensor, q: Tensor, p: Tensor) -> Arguments:
        return ids, q, torch.cat([p[:, :1].double(), change(p[:, 1:])], dim=1)

    return reads


def _everywhere(change: Change) -> Reads:
    return lambda ids, q, p: (ids, q, change(p))


def _top_k_of_q(ids: Tensor, q: Tensor, p: Tensor) -> Arguments:
    return ids, normalised(top(q, 2)), p


def _recovered_hot(p: Tensor, q: Tensor, ids: Tensor) -> Tensor:
    weights = positive_part(_hot(p), q, ids)
    weights[:, -1] = p[:, -1]
    return weights


def _tested_hot(p: Tensor, q: Tensor, ids: Tensor) -> Tensor:
    weights = positive_part(_cold(p), q, ids)  # what was read is p at temperature 1
    weights[:, -1] = p[:, -1]
    return weights


DEFECTS: Final = (
    Defect(
        id="temperature-on-bonus-only",
        sentence="The rows that test drafts are left at temperature 1.",
        sources=("vllm-project/vllm#10198",),
        make=lambda: Verifier(reads=_on_drafts(_hot)),
        shown_on=witnesses.C1,
        bias=0.0846,
        blind_on="temperature 1, uniform p",
    ),
    Defect(
        id="temperature-not-on-bonus",
        sentence="The bonus token is drawn at temperature 1.",
        sources=("mutant",),
        make=lambda: Verifier(reads=_on_bonus(_hot)),
        shown_on=witnesses.B1,
        bias=0.177,
        blind_on="temperature 1, a uniform last row, drafts that are always rejected",
    ),
    Defect(
        id="temperature-twice",
        sentence="The temperature is applied to the rows of drafts twice.",
        sources=("mutant",),
        make=lambda: Verifier(reads=_on_drafts(_cold)),
        shown_on=witnesses.W,
        bias=0.0913,
        blind_on="temperature 1, uniform p",
    ),
    Defect(
        id="temperature-not-on-recovered",
        sentence="The residual is formed from p at temperature 1.",
        sources=("mutant",),
        make=lambda: Verifier(weights=_recovered_hot),
        shown_on=witnesses.C1,
        bias=0.0445,
        blind_on="temperature 1, a residual of one token under both p",
    ),
    Defect(
        id="temperature-not-on-test",
        sentence="Drafts are tested with p at temperature 1; only the residual is right.",
        sources=("ml-explore/mlx-lm#990",),
        make=lambda: Verifier(reads=_on_drafts(_hot), weights=_tested_hot),
        shown_on=witnesses.C1,
        bias=0.0628,
        blind_on="temperature 1, uniform p",
    ),
    Defect(
        id="top-k-on-recorded-q-only",
        sentence="q is cut to two tokens for the test, but drafts come from all of it.",
        sources=("mutant",),
        make=lambda: Verifier(reads=_top_k_of_q),
        shown_on=witnesses.W,
        bias=0.0859,
        blind_on="q with two tokens",
    ),
    Defect(
        id="top-p-on-first-row-only",
        sentence="The tail that top_p cuts off is cut off in the first row only.",
        sources=("mlc-ai/mlc-llm#2940",),
        make=lambda: Verifier(reads=_behind_first(uncut)),
        shown_on=witnesses.Z2,
        bias=0.075,
        blind_on="k = 0, rows without a tail",
    ),
    Defect(
        id="top-p-twice",
        sentence="top_p is applied to rows that it has cut before, and cuts more.",
        sources=("mutant",),
        make=lambda: Verifier(reads=_on_drafts(_half)),
        shown_on=witnesses.C1,
        bias=0.5,
        blind_on="rows whose most likely tokens reach top_p no sooner than before",
    ),
    Defect(
        id="min-p-on-bonus-only",
        sentence="Unlikely tokens are cut off for the bonus token, not for drafts.",
        sources=("vllm-project/vllm#31982",),
        make=lambda: Verifier(reads=_on_drafts(uncut)),
        shown_on=witnesses.Z2,
        bias=0.15,
        blind_on="rows without a tail",
    ),
    Defect(
        id="drafts-verified-greedily",
        sentence="Drafts are verified against the argmax; only the bonus token is sampled.",
        sources=("ROCm/ATOM#2318",),
        make=lambda: Verifier(reads=_on_drafts(_greedy)),
        shown_on=witnesses.C1,
        bias=0.5,
        blind_on="one-hot p",
    ),
    Defect(
        id="sampler-ignored",
        sentence="The speculative path decodes greedily, whatever the temperature is.",
        sources=(
            "sgl-project/sglang#9127",
            "ml-explore/mlx-lm#1485",
            "google-ai-edge/LiteRT-LM#3017",
        ),
        make=lambda: Verifier(reads=_everywhere(_greedy)),
        shown_on=witnesses.C1,
        bias=0.5,
        blind_on="one-hot p",
    ),
    Defect(
        id="logit-bias-on-bonus-only",
        sentence="A logit bias is not repeated for the rows of drafts.",
        sources=("sgl-project/sglang#7749", "alibaba/rtp-llm#1115"),
        make=lambda: Verifier(reads=_on_drafts(_unbiased)),
        shown_on=witnesses.C1,
        bias=0.116,
        blind_on="no bias, or p without the token",
    ),
)
