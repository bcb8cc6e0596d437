# SPDX-License-Identifier: Apache-2.0
"""X: where a text ends, when several tokens come at once."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from specverify.core.residual import residual_weights
from specverify.core.sampling import inverse_cdf
from specverify.core.steps import ChainResult
from specverify.defects.caches import to_text
from specverify.defects.decoder import (
    Decoder,
    Step,
    Text,
    places,
    token_by_token,
    up_to_the_end,
)
from specverify.defects.entry import DecoderDefect
from specverify.defects.requests import Request
from specverify.inputs import generation

# --- stop sequences -------------------------------------------------------------------


def _stopped(text: Text, request: Request) -> Tensor:
    """Rows that end with a stop sequence: bool [batch]."""
    found = [text.ends_with(sequence) for sequence in request.stop]
    return torch.stack(found).any(dim=0) if found else torch.zeros_like(text.open)


def _write_all(text: Text, output: Tensor) -> None:
    """Write a whole run, as far as there is room."""
    for token in output.unbind(dim=1):
        text.write(token, text.open & (token >= 0) & (text.room > 0))


def _behind_the_run(text: Text, output: Tensor, request: Request) -> None:
    _write_all(text, output)
    text.open = text.open & ~_stopped(text, request) & (text.room > 0)


def _cap_first(text: Text, output: Tensor, request: Request) -> None:
    """A run that reaches the cap is cut there, and nobody looks for a stop in it."""
    capped = text.open & ((output >= 0).sum(dim=1) >= text.room)
    going = text.open & ~capped
    text.open = capped
    _write_all(text, output)
    text.open = going
    up_to_the_end(text, output, request)


def _within_the_run(text: Text, output: Tensor, request: Request) -> None:
    """A sequence that began in the step before is not found."""
    start = text.length
    for token in output.unbind(dim=1):
        text.write(token, text.open & (token >= 0))
        for sequence in request.stop:
            inside = text.length - start >= len(sequence)
            text.open = text.open & ~(text.ends_with(sequence) & inside)
        text.open = text.open & (text.room > 0)


def _first_listed(text: Text, output: Tensor, request: Request) -> None:
    """Of several sequences in a run the first of the list cuts it, wherever it stands."""
    length, ids, going = text.length, text.ids, text.open
    cut = torch.full_like(length, output.shape[1])
    for sequence in reversed(request.stop):
        text.length, text.ids, text.open = length, ids, going
        end = torch.full_like(length, output.shape[1] + 1)
        for i, token in enumerate(output.unbind(dim=1)):
            text.write(token, going & (token >= 0))
            here = text.ends_with(sequence) & (token >= 0) & (end > i + 1)
            end = end.masked_fill(here, i + 1)
        cut = torch.where(end <= output.shape[1], end, cut)
    text.length, text.ids, text.open = length, ids, going
    place = places(output)
    _behind_the_run(text, output.masked_fill(place >= cut[:, None], -1), request)


def _all_together(text: Text, output: Tensor, request: Request) -> None:
    up_to_the_end(text, output, request)
    text.open = text.open & text.open.all()


# --- length ---------------------------------------------------------------------------


def _no_cap_in_the_run(text: Text, output: Tensor, request: Request) -> None:
    for token in output.unbind(dim=1):
        text.write(token, text.open & (token >= 0))
        text.open = text.open & ~_stopped(text, request)
    text.open = text.open & (text.room > 0)


def _cap_redraws(step: Step, lengths: Tensor | None) -> ChainResult:
    """The token at the cap is drawn as if the draft there had been rejected."""
    result = token_by_token(step, lengths)
    k = step.ids.shape[1]
    capped = (step.text.room <= result.num_accepted) & step.text.open
    place = (step.text.room - 1).clamp(0, k - 1)[:, None]
    rows = place[..., None].expand(-1, -1, step.p.shape[2])
    weights = residual_weights(
        step.p.gather(1, rows).squeeze(1), step.q.gather(1, rows).squeeze(1)
    )
    token = inverse_cdf(weights, step.uniforms[:, -1])[:, None]
    output = result.output_token_ids
    redrawn = output.scatter(1, place, token)
    return ChainResult(
        torch.where(capped[:, None], redrawn, output), result.num_accepted
    )


# --- runs -----------------------------------------------------------------------------


def _drop_recovered(step: Step, output: Tensor) -> Tensor:
    """The token behind a rejection is lost, where a draft stands before it."""
    place = places(output)
    k, accepted = step.ids.shape[1], step.accepted[:, None]
    lost = (place == accepted) & (accepted > 0) & (accepted < k)
    return output.masked_fill(lost, -1)


def _repeat_accepted(step: Step, output: Tensor) -> Tensor:
    """The last accepted draft is written once more in place of the token behind it."""
    place = places(output)
    again = output.roll(1, dims=1)
    accepted = step.accepted[:, None]
    return torch.where((place == accepted) & (accepted > 0), again, output)


_EOS: Final = Request(stop=((1,),))
_PAIR: Final = Request(stop=((0, 1),))
_TWO: Final = Request(stop=((1, 1), (0,)))

DEFECTS: Final = (
    DecoderDefect(
        id="stop-at-last-of-run-only",
        sentence="The end is looked for at the last token of a step, not inside.",
        sources=(
            "huggingface/transformers#47912",
            "huggingface/transformers#31301",
            "openvinotoolkit/openvino.genai#1951",
        ),
        make=lambda: Decoder(k=1, request=_EOS, ends=_behind_the_run),
        shown_on=generation.G2,
        request=_EOS,
        bias=0.19,
        blind_on="one token a step",
    ),
    DecoderDefect(
        id="stop-after-cap",
        sentence="A run that reaches the length cap is cut there, past a stop inside it.",
        sources=("sgl-project/sglang#30291", "sgl-project/sglang#33758"),
        make=lambda: Decoder(k=1, request=_EOS, ends=_cap_first),
        shown_on=generation.G2,
        request=_EOS,
        bias=0.09,
        blind_on="texts that end before the cap",
    ),
    DecoderDefect(
        id="stop-sequence-split-over-steps",
        sentence="A stop sequence that began in the step before is not found.",
        sources=("sgl-project/sglang#25980", "PaddlePaddle/FastDeploy#7121"),
        make=lambda: Decoder(k=1, request=_PAIR, ends=_within_the_run),
        shown_on=generation.G2,
        request=_PAIR,
        bias=0.15,
        blind_on="stop sequences of one token",
    ),
    DecoderDefect(
        id="stop-first-listed-wins",
        sentence="Of two stop sequences in a run the first listed cuts, not the earliest.",
        sources=("vllm-project/vllm#49391",),
        make=lambda: Decoder(request=_TWO, ends=_first_listed),
        shown_on=generation.G2,
        request=_TWO,
        bias=0.153,
        blind_on="one stop sequence, one token a step",
    ),
    DecoderDefect(
        id="stop-ends-whole-batch",
        sentence="When one row has ended, all end.",
        sources=("mutant",),
        make=lambda: Decoder(k=1, request=_EOS, ends=_all_together),
        shown_on=generation.G2_PAIR,
        request=_EOS,
        bias=0.853,
        blind_on="one row a call",
    ),
    DecoderDefect(
        id="cap-exceeded",
        sentence="The length cap is looked at between steps, so the last run goes past it.",
        sources=("romsto/Speculative-Decoding",),
        make=lambda: Decoder(k=1, ends=_no_cap_in_the_run),
        shown_on=generation.G2,
        bias=0.0,
        blind_on="one token a step",
        effect="contract",
    ),
    DecoderDefect(
        id="cap-taken-for-rejection",
        sentence="The token at the length cap is drawn as if its draft were rejected.",
        sources=("huggingface/transformers#28508",),
        make=lambda: Decoder(k=1, verifies=_cap_redraws),
        shown_on=generation.G2,
        bias=0.257,
        blind_on="texts that end before the cap",
    ),
    DecoderDefect(
        id="run-loses-recovered",
        sentence="Behind accepted drafts, the token that a rejection draws is lost.",
        sources=("openvinotoolkit/openvino.genai#4190", "vllm-project/vllm#8562"),
        make=lambda: Decoder(
            writes=_drop_recovered, rolls_back=to_text, draft_rolls_back=to_text
        ),
        shown_on=generation.G2,
        bias=0.0645,
        blind_on="one draft a step",
    ),
    DecoderDefect(
        id="run-repeats-accepted",
        sentence="The last accepted draft is written twice.",
        sources=("kekzl/imp#667",),
        make=lambda: Decoder(k=1, writes=_repeat_accepted),
        shown_on=generation.G2,
        bias=0.315,
        blind_on="drafts that are never accepted",
    ),
)
CONTROLS: Final = (
    DecoderDefect(
        id="control-drafts-past-the-end",
        sentence="Drafting and testing go on behind a stop, and what comes is cut.",
        sources=("mutant",),
        make=lambda: Decoder(request=_EOS),
        shown_on=generation.G2,
        request=_EOS,
        effect="none",
    ),
)
