# SPDX-License-Identifier: Apache-2.0
"""L: drafts and random numbers that a decoder carries from step to step."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from specverify.defects.decoder import Decoder, Step, fresh
from specverify.defects.drafter import powered
from specverify.defects.entry import DecoderDefect
from specverify.defects.requests import Request
from specverify.inputs import generation

# --- drafts ---------------------------------------------------------------------------


def _drafts_before(step: Step) -> tuple[Tensor, Tensor]:
    return step.earlier.drafted[0], step.drafted[1]


def _laws_before(step: Step) -> tuple[Tensor, Tensor]:
    return step.drafted[0], step.earlier.drafted[1]


def _argmax(law: Tensor, u: Tensor) -> Tensor:
    return law.argmax(dim=-1)


def _certain(law: Tensor) -> Tensor:
    return one_hot(law.argmax(dim=-1), law.shape[-1]).double()


def _confident(step: Step) -> Tensor:
    """Drafts [batch] before the first one that its own law thinks unlikely."""
    likely = step.q.gather(2, step.ids[..., None]).squeeze(2) >= 0.5
    return likely.cumprod(dim=1).sum(dim=1)


def _confident_and_one(step: Step) -> Tensor:
    return (_confident(step) + 1).clamp_max(step.ids.shape[1])


def _in_turn(step: Step) -> Tensor:
    return step.text.length % (step.ids.shape[1] + 1)


# --- random numbers -------------------------------------------------------------------


def _again(step: Step, width: int, generator: torch.Generator) -> Tensor:
    before = step.before
    return fresh(step, width, generator) if before is None else before.uniforms


def _shared(step: Step, width: int, generator: torch.Generator) -> Tensor:
    return fresh(step, width, generator)[:1].expand(len(step.text.ids), -1)


def _of_drafts(step: Step, width: int, generator: torch.Generator) -> Tensor:
    return torch.cat([step.draft_uniforms, fresh(step, 1, generator)], dim=1)


_COLD: Final = Request(temperature=0.5)

DEFECTS: Final = (
    DecoderDefect(
        id="drafts-of-step-before",
        sentence="The drafts of the step before are verified again.",
        sources=("vllm-project/vllm#39833", "romsto/Speculative-Decoding"),
        make=lambda: Decoder(k=1, proposes=_drafts_before),
        shown_on=generation.G2,
        bias=0.165,
        blind_on="a single step",
    ),
    DecoderDefect(
        id="draft-laws-of-step-before",
        sentence="New drafts are verified with the laws that the last ones had.",
        sources=("NVIDIA/TensorRT-LLM#15775", "vllm-project/vllm#41044"),
        make=lambda: Decoder(k=1, proposes=_laws_before),
        shown_on=generation.G2,
        bias=0.0602,
        blind_on="a single step, drafts that do not look back",
    ),
    DecoderDefect(
        id="drafts-argmax-declared-as-drawn",
        sentence="Drafts are the most likely tokens; the softmax is declared as their law.",
        sources=("huggingface/transformers#28166", "huggingface/transformers#32867"),
        make=lambda: Decoder(k=1, draws=_argmax),
        shown_on=generation.G2,
        bias=0.25,
        blind_on="draft models that are certain",
    ),
    DecoderDefect(
        id="drafts-declared-without-temperature",
        sentence="Drafts are drawn at the request's temperature and declared at 1.",
        sources=("huggingface/transformers#47932",),
        make=lambda: Decoder(
            k=1, request=_COLD, declares=lambda law: powered(law, 0.5)
        ),
        shown_on=generation.G2,
        request=_COLD,
        bias=0.0519,
        blind_on="temperature 1",
    ),
    DecoderDefect(
        id="drafts-dropped-by-value",
        sentence="A draft that its own law thinks unlikely is dropped before the test.",
        sources=("mutant",),
        make=lambda: Decoder(k=1, lengths=_confident),
        shown_on=generation.G2,
        bias=0.11,
        blind_on="drafts that are all likely",
    ),
    DecoderDefect(
        id="uniforms-of-first-step",
        sentence="Every step tests with the uniforms of the first: it is seeded anew.",
        sources=("feifeibear/LLMSpeculativeSampling", "NVIDIA/Megatron-LM#5697"),
        make=lambda: Decoder(k=1, uniforms=_again),
        shown_on=generation.G2,
        bias=0.0505,
        blind_on="a single step",
    ),
    DecoderDefect(
        id="uniforms-of-other-row",
        sentence="All rows of a batch are verified with the same uniforms.",
        sources=("PaddlePaddle/FastDeploy#5568", "PaddlePaddle/FastDeploy#7946"),
        make=lambda: Decoder(k=1, uniforms=_shared),
        shown_on=generation.G2_PAIR,
        bias=0.545,
        blind_on="one row a call, and the law of each row by itself",
    ),
    DecoderDefect(
        id="uniforms-of-drafts",
        sentence="The uniform that drew a draft also tests it.",
        sources=("mutant",),
        make=lambda: Decoder(k=1, uniforms=_of_drafts),
        shown_on=generation.G2,
        bias=0.181,
        blind_on="tests that draw the drafts themselves",
    ),
)
CONTROLS: Final = (
    DecoderDefect(
        id="control-drafts-argmax-declared-certain",
        sentence="Drafts are the most likely tokens and are declared as certain.",
        sources=("vllm-project/vllm#40269",),
        make=lambda: Decoder(draws=_argmax, declares=_certain),
        shown_on=generation.G2,
        effect="none",
    ),
    DecoderDefect(
        id="control-drafts-at-own-temperature",
        sentence="Drafts are drawn, and declared, at another temperature than the text's.",
        sources=("z-lab/dflash#74",),
        make=lambda: Decoder(k=1, request=_COLD, draft_request=Request()),
        shown_on=generation.G2,
        request=_COLD,
        effect="none",
    ),
    DecoderDefect(
        id="control-drafting-stops-behind-unlikely",
        sentence="An unlikely draft is tested, and those behind it are dropped.",
        sources=("ipex-llm#10041",),
        make=lambda: Decoder(lengths=_confident_and_one),
        shown_on=generation.G2,
        effect="none",
    ),
    DecoderDefect(
        id="control-number-of-drafts-by-length",
        sentence="How many drafts are tested depends on the length of the text.",
        sources=("mutant",),
        make=lambda: Decoder(k=1, lengths=_in_turn),
        shown_on=generation.G2,
        effect="none",
    ),
)
