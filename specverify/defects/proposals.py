# SPDX-License-Identifier: Apache-2.0
"""Q: the recorded q is not the law that the drafts were drawn from.

Most of these bring their own drafter: with drafts drawn from the q that is handed over they
are lossless, which is how such defects have passed unit tests.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from specverify.defects.drafter import Drafter, normalised, powered, top
from specverify.defects.entry import Defect
from specverify.defects.verifier import Arguments, Verifier, at, positive_part
from specverify.inputs import witnesses


def _first(q: Tensor) -> Tensor:
    return top(q, 1)


def _two(q: Tensor) -> Tensor:
    return top(q, 2)


def _two_normalised(q: Tensor) -> Tensor:
    return normalised(top(q, 2))


def _squared(q: Tensor) -> Tensor:
    return powered(q, 2)


def _rooted(q: Tensor) -> Tensor:
    return powered(q, 0.5)


def _odd_rows_squared(q: Tensor) -> Tensor:
    odd = torch.arange(len(q), device=q.device)[:, None] % 2 == 1
    return torch.where(odd, _squared(q), q)


def _uniform(q: Tensor) -> Tensor:
    return torch.full_like(q, 1 / q.shape[1])


def _shifted(q: Tensor) -> Tensor:
    return q.roll(1, dims=1)


def _of_neighbour(q: Tensor) -> Tensor:
    return q.roll(1, dims=0)


def _in_bfloat16(q: Tensor) -> Tensor:
    return q.to(torch.bfloat16)


def _mirrored(ids: Tensor, q: Tensor) -> Tensor:
    return q.shape[1] - 1 - ids


def _one_position_late(ids: Tensor, q: Tensor, p: Tensor) -> Arguments:
    return ids, torch.cat([q[:, :1], q[:, :-1]], dim=1), p


def _as_one_hot(ids: Tensor, q: Tensor | None, p: Tensor) -> Arguments:
    del q  # what the drafts were drawn from does not matter, if they are fixed here
    return ids, one_hot(ids, p.shape[2]).to(p.dtype), p


def _always(u: Tensor, p_x: Tensor, q_x: Tensor) -> Tensor:
    return q_x > 0


def _if_likely(u: Tensor, p_x: Tensor, q_x: Tensor) -> Tensor:
    return (u * q_x < p_x) & (q_x >= 1 / 6)


def _target_where_dropped(p: Tensor, q: Tensor, ids: Tensor) -> Tensor:
    dropped = at(q, ids) < 1 / 6
    dropped = torch.nn.functional.pad(dropped, (0, 1), value=True)
    return torch.where(dropped[..., None], p, positive_part(p, q, ids))


DEFECTS: Final = (
    Defect(
        id="draft-argmax-recorded-softmax",
        sentence="The draft is the most likely token, but q is recorded as a full softmax.",
        sources=(
            "huggingface/transformers#32867",
            "huggingface/transformers#33534",
            "alibaba/rtp-llm#1295",
            "apple/ml-recurrent-drafter#6",
            "z-lab/dflash#74",
            "xLLM-AI/xllm#2175",
        ),
        make=lambda: Drafter(draws=_first),
        shown_on=witnesses.C1,
        bias=0.133,
        blind_on="one-hot q, and drafts that the test draws itself",
        draft=True,
    ),
    Defect(
        id="draft-top-k-recorded-raw",
        sentence="Drafts are drawn from the two most likely tokens; q is recorded uncut.",
        sources=("huggingface/transformers#47932",),
        make=lambda: Drafter(draws=_two),
        shown_on=witnesses.W,
        bias=0.102,
        blind_on="q with two tokens, and drafts that the test draws itself",
        draft=True,
    ),
    Defect(
        id="draft-top-k-unnormalised",
        sentence="q is recorded after top-k, but with the masses from before.",
        sources=("huggingface/transformers#47932", "mutant"),
        make=lambda: Drafter(draws=_two_normalised, declares=_two),
        shown_on=witnesses.C1,
        bias=0.0833,
        blind_on="q with two tokens; a check of drafts that normalises what is declared",
        draft=True,
    ),
    Defect(
        id="draft-temperature-not-recorded",
        sentence="Drafts are drawn at temperature 1/2; q is recorded at temperature 1.",
        sources=("vllm-project/vllm-ascend#9173", "mutant"),
        make=lambda: Drafter(draws=_squared),
        shown_on=witnesses.W,
        bias=0.128,
        blind_on="uniform and one-hot q",
        draft=True,
    ),
    Defect(
        id="draft-temperature-recorded-only",
        sentence="q is recorded at temperature 2; drafts are drawn at temperature 1.",
        sources=("vllm-project/vllm-ascend#9173", "mutant"),
        make=lambda: Drafter(declares=_rooted),
        shown_on=witnesses.W,
        bias=0.0927,
        blind_on="uniform and one-hot q",
        draft=True,
    ),
    Defect(
        id="draft-temperature-of-first-request",
        sentence="q of every row is recorded at the temperature of the first one.",
        sources=("vllm-project/vllm#45956",),
        make=lambda: Drafter(draws=_odd_rows_squared),
        shown_on=witnesses.W,
        bias=0.064,
        blind_on="batches of one row, and of one temperature",
        draft=True,
    ),
    Defect(
        id="draft-recorded-uniform",
        sentence="q is recorded as uniform, as a buffer that nobody filled.",
        sources=("mutant",),
        make=lambda: Drafter(declares=_uniform),
        shown_on=witnesses.C1,
        bias=0.16,
        blind_on="uniform q",
        draft=True,
    ),
    Defect(
        id="draft-recorded-at-wrong-stride",
        sentence="The columns of the recorded q are off by one token.",
        sources=("vllm-project/vllm#53017",),
        make=lambda: Drafter(declares=_shifted),
        shown_on=witnesses.C1,
        bias=0.4,
        blind_on="uniform q",
        draft=True,
    ),
    Defect(
        id="draft-ids-renamed-without-q",
        sentence="Drafts are mapped to the ids of the target's vocabulary, q is not.",
        sources=("alibaba/rtp-llm#1311", "xLLM-AI/xllm#2175"),
        make=lambda: Drafter(renames=_mirrored),
        shown_on=witnesses.C1,
        bias=0.2,
        blind_on="maps that keep ids, and q that the map leaves as it is",
        draft=True,
    ),
    Defect(
        id="draft-recorded-of-neighbour",
        sentence="The recorded q is that of another row of the batch.",
        sources=("vllm-project/vllm#47066",),
        make=lambda: Drafter(declares=_of_neighbour),
        shown_on=witnesses.M1,
        bias=0.11,
        blind_on="batches of one row, and of equal rows",
        draft=True,
    ),
    Defect(
        id="draft-drawn-in-bfloat16",
        sentence="Drafts are drawn from q in bfloat16 and tested with q in float32.",
        sources=("deepseek-ai/DeepSpec#31",),
        make=lambda: Drafter(draws=_in_bfloat16),
        shown_on=witnesses.J1,
        bias=0.000299,
        blind_on="q that bfloat16 holds exactly; samples: only exact laws see so little",
        draft=True,
    ),
    Defect(
        id="draft-recorded-one-position-late",
        sentence="Each draft but the first is tested with q of the position before.",
        sources=("mutant",),
        make=lambda: Verifier(reads=_one_position_late),
        shown_on=witnesses.J1,
        bias=0.2,
        blind_on="k = 1, and q that is the same at every position",
    ),
    Defect(
        id="draft-unlikely-dropped",
        sentence="A sampled draft of small q is dropped and the target sampled instead.",
        sources=("mutant",),
        make=lambda: Verifier(accepts=_if_likely, weights=_target_where_dropped),
        shown_on=witnesses.W,
        bias=0.0859,
        blind_on="q without small entries",
    ),
    Defect(
        id="draft-looked-up-is-certain",
        sentence="A draft that was looked up in the prompt gets the highest probability, "
        "and is accepted always.",
        sources=("openvinotoolkit/openvino.genai#2331",),
        make=lambda: Verifier(reads=_as_one_hot, accepts=_always),
        shown_on=witnesses.O1,
        bias=0.5,
        blind_on="greedy decoding of right drafts",
        capabilities={"draft_probs": False},
    ),
)
CONTROLS: Final = (
    Defect(
        id="draft-sampled-verified-one-hot",
        sentence="Drafts drawn from q are verified as given ones: with a one-hot q.",
        sources=("vllm-project/vllm#40149", "sgl-project/sglang#10308"),
        make=lambda: Verifier(reads=_as_one_hot),
        shown_on=witnesses.J1,
        bias=0.0,
        effect="none",
    ),
)
