# SPDX-License-Identifier: Apache-2.0
"""L: slots and positions of a cache, when drafts are rejected."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from specverify.defects.decoder import Cache, Decoder, Step, places, roll_back
from specverify.defects.entry import DecoderDefect
from specverify.defects.requests import Request
from specverify.inputs import generation


def _keep_everything(step: Step, cache: Cache) -> None:
    """Roll nothing back."""


def _one_too_far(step: Step, cache: Cache) -> None:
    roll_back(step, cache)
    cache.used = cache.used - (step.accepted < step.ids.shape[1]).long()


def _by_count_before(step: Step, cache: Cache) -> None:
    cache.used = cache.used - (step.ids.shape[1] - step.earlier.accepted)


def _in_common(step: Step, cache: Cache) -> None:
    cache.used = cache.used - (step.ids.shape[1] - step.accepted).max()


def _by_prefix(step: Step, cache: Cache) -> None:
    """Rows that go on get the slots of the first rows of the batch."""
    roll_back(step, cache)
    going = step.text.open.nonzero().squeeze(1)
    cache.ids = cache.ids.index_copy(0, going, cache.ids[: len(going)])


def to_text(step: Step, cache: Cache) -> None:
    """Keep the slots of the text but for its last token, which the next step reads."""
    cache.used = step.text.length - 1


class _Ring(Cache):
    """Holds two slots: what drafts have overwritten is gone when they are rejected."""

    lost: Tensor | int = 0

    def read(self, tokens: Tensor) -> Tensor:
        """Read tokens, over the oldest ones."""
        logits = super().read(tokens)
        self.lost = (self.used - 2).clamp_min(0)
        return logits

    def behind(self, slots: Tensor) -> Tensor:
        """Logits from what is left."""
        everything, kept = self.ids, places(self.ids)
        lost = torch.as_tensor(self.lost, device=slots.device).expand(len(slots))
        lost = lost[:, None]
        place = (kept + lost).clamp_max(len(kept) - 1)
        self.ids = everything.gather(1, place)
        logits = super().behind((slots - lost).clamp_min(0))
        self.ids = everything
        return logits


class _RowBefore(Cache):
    """Gives the logits behind the slot before."""

    def behind(self, slots: Tensor) -> Tensor:
        """Logits of the row before."""
        return super().behind((slots - 1).clamp_min(0))


class _PositionsGoOn(Cache):
    """Counts positions by what was read, rejected drafts included."""

    reached = 0

    def behind(self, slots: Tensor) -> Tensor:
        """Logits at the positions that the counter has reached."""
        here = self.reached + places(slots)
        self.reached += slots.shape[1]
        return super().behind(here.expand_as(slots))


def _without_bonus(step: Step, output: Tensor) -> Tensor:
    last = places(output) == step.ids.shape[1]
    return output.masked_fill(last, -1)


DEFECTS: Final = (
    DecoderDefect(
        id="cache-keeps-rejected",
        sentence="Rejected drafts stay in the target's cache.",
        sources=("ml-explore/mlx-lm#846", "lucidrains/speculative-decoding#3"),
        make=lambda: Decoder(k=1, rolls_back=_keep_everything),
        shown_on=generation.G2,
        bias=0.12,
        blind_on="a single step, drafts that are all accepted, models that look back one",
    ),
    DecoderDefect(
        id="cache-rolled-back-too-far",
        sentence="After a rejection one slot too many is given back.",
        sources=("ml-explore/mlx-examples#149",),
        make=lambda: Decoder(k=1, rolls_back=_one_too_far),
        shown_on=generation.G2,
        bias=0.12,
        blind_on="a single step, drafts that are always accepted",
    ),
    DecoderDefect(
        id="cache-rolled-back-by-count-before",
        sentence="The cache is rolled back by the rejections of the step before.",
        sources=("ml-explore/mlx-lm#1528", "vllm-project/vllm#36013"),
        make=lambda: Decoder(k=1, rolls_back=_by_count_before),
        shown_on=generation.G2.longer(4),
        bias=0.0488,
        blind_on="texts of two steps",
    ),
    DecoderDefect(
        id="cache-rolled-back-in-common",
        sentence="All rows are rolled back as far as the row that rejects most.",
        sources=("Blaizzy/mlx-vlm#1144",),
        make=lambda: Decoder(k=1, rolls_back=_in_common),
        shown_on=generation.G2_PAIR,
        bias=0.0751,
        blind_on="one row a call",
    ),
    DecoderDefect(
        id="cache-filtered-by-prefix",
        sentence=(
            "When a row has ended, the others go on with the slots of the first rows."
        ),
        sources=("sgl-project/sglang#9252", "waybarrios/vllm-mlx#662"),
        make=lambda: Decoder(k=1, request=Request(stop=((1,),)), rolls_back=_by_prefix),
        shown_on=generation.G2_PAIR,
        request=Request(stop=((1,),)),
        bias=0.434,
        blind_on="one row a call, rows that end together",
    ),
    DecoderDefect(
        id="cache-ring-overwritten",
        sentence="In a cache of fixed size, rejected drafts have overwritten the text.",
        sources=("ml-explore/mlx-lm#1423", "ml-explore/mlx-lm#1109"),
        make=lambda: Decoder(cache=_Ring),
        shown_on=generation.G2,
        bias=0.087,
        blind_on="texts shorter than the cache, drafts that are always accepted",
    ),
    DecoderDefect(
        id="cache-reads-last-draft-twice",
        sentence="Without a bonus token, the last accepted draft is read once more.",
        sources=("mutant",),
        make=lambda: Decoder(k=1, writes=_without_bonus),
        shown_on=generation.G2,
        bias=0.0925,
        blind_on="drafts that are never accepted, models that look back one token",
    ),
    DecoderDefect(
        id="positions-one-early",
        sentence="Each row of the target is read one position early.",
        sources=("vllm-project/vllm#29216",),
        make=lambda: Decoder(k=1, cache=_RowBefore),
        shown_on=generation.G2,
        bias=0.435,
        blind_on="models that do not look back",
    ),
    DecoderDefect(
        id="positions-count-rejected",
        sentence="The position counter is not rolled back with the cache.",
        sources=("huggingface/transformers#30068", "sgl-project/sglang#25015"),
        make=lambda: Decoder(k=1, cache=_PositionsGoOn),
        shown_on=generation.G2,
        bias=0.113,
        blind_on="a single step, drafts that are always accepted",
    ),
)
CONTROLS: Final = (
    DecoderDefect(
        id="control-draft-cache-keeps-rejected",
        sentence="Rejected drafts stay in the draft's cache: fewer are accepted.",
        sources=("mlc-ai/mlc-llm#2939",),
        make=lambda: Decoder(k=1, draft_rolls_back=_keep_everything),
        shown_on=generation.G2,
        effect="none",
    ),
    DecoderDefect(
        id="control-draft-cache-misses-last",
        sentence="The draft's cache loses a token after each rejection.",
        sources=("lablup/mlxcel#994",),
        make=lambda: Decoder(k=1, draft_rolls_back=_one_too_far),
        shown_on=generation.G2,
        effect="none",
    ),
    DecoderDefect(
        id="control-no-bonus",
        sentence="Accepted drafts are written without a bonus token.",
        sources=("vllm-project/vllm#5765", "mlc-ai/mlc-llm#2206"),
        make=lambda: Decoder(
            k=1,
            writes=_without_bonus,
            rolls_back=to_text,
            draft_rolls_back=to_text,
        ),
        shown_on=generation.G2,
        effect="none",
    ),
)
