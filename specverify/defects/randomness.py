# SPDX-License-Identifier: Apache-2.0
"""G: random numbers that are used twice, shared, frozen or taken from elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from specverify.defects.entry import Defect
from specverify.defects.verifier import (
    Arguments,
    Verifier,
    at,
    fresh,
)
from specverify.inputs import witnesses

#: Steps of one draft.
STEPS: Final = witnesses.M1.with_(k=1, name="M1, k = 1")
#: Gives uniforms [batch, width] from a generator.
Uniforms = Callable[[int, int, torch.Generator], Tensor]


def _tests_again(u: Tensor, v: Tensor) -> Tensor:
    return u


def _of_next_test(u: Tensor, v: Tensor) -> Tensor:
    """The uniform of the test behind each position, of the first behind the last."""
    return u.roll(-1, dims=1)


def _of_later_test(u: Tensor, v: Tensor) -> Tensor:
    return torch.cat([u[:, 1:], u[:, -1:]], dim=1)


def _one_hot(ids: Tensor, q: Tensor | None, p: Tensor) -> Arguments:
    del q
    return ids, one_hot(ids, p.shape[2]).to(p.dtype), p


def _same_at_every_position(
    batch: int, width: int, generator: torch.Generator
) -> Tensor:
    return fresh(batch, 1, generator).expand(batch, width)


def _same_in_every_row(batch: int, width: int, generator: torch.Generator) -> Tensor:
    return fresh(1, width, generator).expand(batch, width)


def _frozen(batch: int, width: int, generator: torch.Generator) -> Tensor:
    kept = torch.Generator(generator.device).manual_seed(0)
    return fresh(batch, width, kept)


def _global(batch: int, width: int, generator: torch.Generator) -> Tensor:
    return torch.rand(batch, width, dtype=torch.float64, device=generator.device)


def _lost_for_odd_rows(batch: int, width: int, generator: torch.Generator) -> Tensor:
    even = torch.arange(batch, device=generator.device)[:, None] % 2 == 0
    return fresh(batch, width, generator) * even


def _reseeded() -> Uniforms:
    """Every call of this gives the same uniforms within a step: tests and tokens."""
    kept: list[Tensor] = []

    def draw(batch: int, width: int, generator: torch.Generator) -> Tensor:
        if kept:
            return kept.pop()
        kept.append(fresh(batch, 1, generator).expand(batch, width))
        return kept[0]

    return draw


def _by_age() -> Uniforms:
    """Seeded by the number of calls so far, and not by the request."""
    calls = 0

    def draw(batch: int, width: int, generator: torch.Generator) -> Tensor:
        nonlocal calls
        calls += 1
        engine = torch.Generator(generator.device).manual_seed(calls)
        return fresh(batch, width, engine)

    return draw


def _for_two_steps() -> Uniforms:
    """What is drawn in one step serves the next one too."""
    new: list[Tensor] = []
    old: list[Tensor] = []

    def draw(batch: int, width: int, generator: torch.Generator) -> Tensor:
        if old and old[0].shape == (batch, width):
            return old.pop(0)
        new.append(fresh(batch, width, generator))
        drawn = new[-1]
        if len(new) == 2:  # for the tests and for the tokens of this step
            old[:] = new
            new.clear()
        return drawn

    return draw


def _rescaled(
    draft_token_ids: Tensor,
    draft_probs: Tensor,
    target_probs: Tensor,
    *,
    generator: torch.Generator,
) -> Tensor:
    """Stretch the uniform of a failed test from [p/q, 1) to [0, 1) to draw the token."""
    p_x = at(target_probs.double(), draft_token_ids)
    ratio = (p_x / at(draft_probs.double(), draft_token_ids)).clamp_max(0.999)

    def stretched(u: Tensor, v: Tensor) -> Tensor:
        rest = ((u[:, :-1] - ratio) / (1 - ratio)).clamp_max(1 - 2**-53)
        return torch.cat([rest, v[:, -1:]], dim=1)

    verify = Verifier(token_uniforms=stretched)
    return verify(draft_token_ids, draft_probs, target_probs, generator=generator)


DEFECTS: Final = (
    Defect(
        id="test-uniform-draws-token",
        sentence="The uniform of the failed test draws the recovered token too.",
        sources=("flashinfer-ai/flashinfer#424",),
        make=lambda: Verifier(token_uniforms=_tests_again),
        shown_on=witnesses.C1,
        bias=0.1,
        blind_on="a residual of one token, vocab 2",
    ),
    Defect(
        id="coin-draws-token-behind-given-draft",
        sentence="The coin that rejected a given draft draws the recovered token too.",
        sources=("sgl-project/sglang#7207",),
        make=lambda: Verifier(reads=_one_hot, token_uniforms=_tests_again),
        shown_on=witnesses.O1,
        bias=0.25,
        blind_on="a residual of one token, vocab 2",
        capabilities={"draft_probs": False},
    ),
    Defect(
        id="first-test-draws-bonus",
        sentence="The uniform of the first test draws the bonus token too.",
        sources=("mutant",),
        make=lambda: Verifier(token_uniforms=_of_next_test),
        shown_on=witnesses.C1,
        bias=0.1,
        blind_on="the law of the first token; drafts that are always rejected",
    ),
    Defect(
        id="same-uniform-at-every-position",
        sentence="All tests of a step see one uniform, all tokens another.",
        sources=(
            "feifeibear/LLMSpeculativeSampling",
            "PaddlePaddle/FastDeploy#5568",
            "PaddlePaddle/FastDeploy#7946",
        ),
        make=lambda: Verifier(uniforms=_same_at_every_position),
        shown_on=witnesses.J1,
        bias=0.06,
        blind_on="k = 1, the law of the first token",
    ),
    Defect(
        id="reseeded-before-every-draw",
        sentence="The generator is seeded before every draw: one uniform does all.",
        sources=("feifeibear/LLMSpeculativeSampling",),
        make=lambda: Verifier(uniforms=_reseeded()),
        shown_on=witnesses.J1,
        bias=0.19,
        blind_on="p = q with k = 1",
    ),
    Defect(
        id="noise-lost-for-some-rows",
        sentence="Noise of seeded rows is drawn into a copy; in place of it stand zeros.",
        sources=("vllm-project/vllm#9441", "vllm-project/vllm-ascend#13470"),
        make=lambda: Verifier(uniforms=_lost_for_odd_rows),
        shown_on=witnesses.C1,
        bias=0.275,
        blind_on="batches of one row",
    ),
    Defect(
        id="uniforms-serve-two-steps",
        sentence="The uniforms of a step are not dropped, and serve the next step too.",
        sources=("mutant",),
        make=lambda: Verifier(uniforms=_for_two_steps()),
        shown_on=STEPS,
        bias=0.284,
        blind_on="a single step",
    ),
    Defect(
        id="rows-share-uniforms",
        sentence="All rows of a batch see the same uniforms.",
        sources=("PaddlePaddle/FastDeploy#5568", "tenstorrent/tt-metal#53077"),
        make=lambda: Verifier(uniforms=_same_in_every_row),
        shown_on=witnesses.W,
        bias=0.0,
        effect="contract",
        blind_on="the law of one row",
    ),
    Defect(
        id="uniforms-frozen",
        sentence="The state of the generator is frozen: every call sees the same uniforms.",
        sources=("NVIDIA/Megatron-LM#5697", "flashinfer-ai/flashinfer#2132"),
        make=lambda: Verifier(uniforms=_frozen),
        shown_on=witnesses.W,
        bias=0.0,
        effect="contract",
        blind_on="a single call",
    ),
    Defect(
        id="generator-ignored",
        sentence="The request's generator is ignored and the global one drawn from.",
        sources=("vllm-project/vllm-ascend#8495",),
        make=lambda: Verifier(uniforms=_global),
        shown_on=witnesses.W,
        bias=0.0,
        effect="contract",
        blind_on="the law of any number of steps",
    ),
    Defect(
        id="seeded-by-age",
        sentence="Draws depend on how many calls the engine has served, not on the seed.",
        sources=("NVIDIA/TensorRT-LLM#17599",),
        make=lambda: Verifier(uniforms=_by_age()),
        shown_on=witnesses.W,
        bias=0.0,
        effect="contract",
        blind_on="the law of any number of steps",
    ),
)
CONTROLS: Final = (
    Defect(
        id="test-uniform-stretched",
        sentence="The uniform of the failed test, stretched to [0, 1), draws the token.",
        sources=("mutant",),
        make=lambda: _rescaled,
        shown_on=witnesses.W,
        bias=0.0,
        effect="none",
    ),
    Defect(
        id="later-test-draws-token",
        sentence="The uniform of the next test, which is not made then, draws the token.",
        sources=("mutant",),
        make=lambda: Verifier(token_uniforms=_of_later_test),
        shown_on=witnesses.J1,
        bias=0.0,
        effect="none",
    ),
)
