# SPDX-License-Identifier: Apache-2.0
"""M in the loop: sampling parameters and grammars that some rows of a step do not get."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from specverify.defects.decoder import Decoder, Step, places
from specverify.defects.entry import DecoderDefect
from specverify.defects.requests import Known, Request
from specverify.inputs import generation

#: Asks for something of the rows of a step; the others get `changes` of it.
Process = Callable[[Request, Tensor, Known], Tensor]


def _without(*, last: bool, **changes: object) -> Process:
    """Leave settings out, on the last row of a step or on all others."""

    def process(request: Request, logits: Tensor, context: Known) -> Tensor:
        right = request.probs(logits, context)
        wrong = replace(request, **changes).probs(logits, context)  # type: ignore[arg-type]
        is_last = places(logits) == logits.shape[1] - 1
        return torch.where((is_last == last)[:, None], wrong, right)

    return process


def _min_tokens_first(request: Request, logits: Tensor, context: Known) -> Tensor:
    right = request.probs(logits, context)
    wrong = replace(request, min_new_tokens=0).probs(logits, context)
    return torch.cat([right[:, :1], wrong[:, 1:]], dim=1)


def _greedy(request: Request, logits: Tensor, context: Known) -> Tensor:
    probs = request.probs(logits, context)
    return one_hot(probs.argmax(dim=-1), probs.shape[-1]).double()


def _of_first_row(step: Step, rows: Known) -> Known:
    """All rows know what the first one knows: the text, and no drafts."""
    return Known(
        rows.seen[:, :1].expand_as(rows.seen),
        rows.state[:, :1].expand_as(rows.state),
        rows.new[:, :1].expand_as(rows.new),
    )


def _of_first_text(step: Step, rows: Known) -> Known:
    return replace(rows, state=rows.state[:1].expand_as(rows.state))


def _by_likeliest(request: Request) -> Callable[[Step, Known], Known]:
    """The grammar goes along the likeliest tokens, not along the drafts."""

    def contexts(step: Step, rows: Known) -> Known:
        likeliest = request.along(step.context, step.q.argmax(dim=-1))
        return replace(rows, state=likeliest.state)

    return contexts


def _rejected_too(request: Request) -> Callable[[Step, Known], Known]:
    """What drafts did to the context stays, whether they were accepted or not."""

    def remembers(step: Step, context: Known) -> Known:
        drafted = request.along(step.context, step.ids)
        last = drafted.at(torch.full_like(step.accepted, step.ids.shape[1]))
        behind = request.along(last, step.text.last())
        state = behind.at(torch.ones_like(step.accepted)).state
        return Known(context.seen | last.seen, state, context.new)

    return remembers


def _one_step_late(step: Step, rows: Known) -> Known:
    """Tokens of the text before the last step, and the drafts."""
    seen = _PENALTY.along(step.earlier.context, step.ids).seen
    return replace(rows, seen=seen)


_COLD: Final = Request(temperature=0.5)
_PENALTY: Final = Request(presence_penalty=1.0)
#: Token 2 opens, token 2 closes; inside, token 0 is forbidden; outside, token 1.
_GRAMMAR: Final = Request(grammar=((0, -1, 1), (-1, 1, 0)))
#: Token 1 may come once.
_PAIR_GRAMMAR: Final = Request(grammar=((0, 1), (1, -1)))
#: Token 2 ends the text, but not at once.
_MIN: Final = Request(stop=((2,),), min_new_tokens=2)

DEFECTS: Final = (
    DecoderDefect(
        id="loop-temperature-on-bonus-only",
        sentence="The rows at drafts are not divided by the temperature.",
        sources=("vllm-project/vllm#10198",),
        make=lambda: Decoder(
            k=1, request=_COLD, processes=_without(last=False, temperature=1.0)
        ),
        shown_on=generation.G2,
        request=_COLD,
        bias=0.137,
        blind_on="temperature 1",
    ),
    DecoderDefect(
        id="loop-temperature-not-on-bonus",
        sentence="The last row of a step is not divided by the temperature.",
        sources=("mutant",),
        make=lambda: Decoder(
            k=1, request=_COLD, processes=_without(last=True, temperature=1.0)
        ),
        shown_on=generation.G3,
        request=_COLD,
        bias=0.0681,
        blind_on="temperature 1, drafts that are never accepted",
    ),
    DecoderDefect(
        id="loop-greedy",
        sentence="The speculative path ignores the sampler and takes the likeliest token.",
        sources=("sgl-project/sglang#9127", "ml-explore/mlx-lm#1485"),
        make=lambda: Decoder(k=1, processes=_greedy),
        shown_on=generation.G2,
        bias=0.775,
        blind_on="targets that are certain",
    ),
    DecoderDefect(
        id="loop-penalty-not-on-drafts",
        sentence="Penalties are applied to the last row of a step only.",
        sources=("vllm-project/vllm#33251", "vllm-project/vllm#18902"),
        make=lambda: Decoder(
            k=1,
            request=_PENALTY,
            processes=_without(last=False, presence_penalty=0.0),
        ),
        shown_on=generation.G3,
        request=_PENALTY,
        bias=0.236,
        blind_on="texts that hold every token, penalty 0",
    ),
    DecoderDefect(
        id="loop-penalty-forgets-drafts",
        sentence="Penalties at each row count the text, not the drafts before it.",
        sources=("huggingface/text-generation-inference", "ml-explore/mlx-lm#990"),
        make=lambda: Decoder(k=1, request=_PENALTY, contexts=_of_first_row),
        shown_on=generation.G3,
        request=_PENALTY,
        bias=0.157,
        blind_on="penalty 0, drafts that are never accepted",
    ),
    DecoderDefect(
        id="loop-penalty-keeps-rejected",
        sentence="Rejected drafts stay counted and are penalised from then on.",
        sources=("vmlx-swift#357",),
        make=lambda: Decoder(k=1, request=_PENALTY, remembers=_rejected_too(_PENALTY)),
        shown_on=generation.G3,
        request=_PENALTY,
        bias=0.073,
        blind_on="a single step, penalty 0",
    ),
    DecoderDefect(
        id="loop-penalty-a-step-late",
        sentence="Penalties do not see the tokens that the step before has written.",
        sources=("ml-explore/mlx-lm#1157", "mlc-ai/mlc-llm#2949"),
        make=lambda: Decoder(k=1, request=_PENALTY, contexts=_one_step_late),
        shown_on=generation.G3,
        request=_PENALTY,
        bias=0.109,
        blind_on="a single step, penalty 0",
    ),
    DecoderDefect(
        id="grammar-state-of-first-row",
        sentence="All rows of a step are masked by the state behind the text.",
        sources=("dottxt-ai/outlines#845", "huggingface/text-generation-inference"),
        make=lambda: Decoder(k=1, request=_GRAMMAR, contexts=_of_first_row),
        shown_on=generation.G3,
        request=_GRAMMAR,
        bias=0.263,
        blind_on="grammars of one state",
    ),
    DecoderDefect(
        id="grammar-not-on-bonus",
        sentence="The row of the bonus token has no mask.",
        sources=("vllm-project/vllm#44006", "vllm-project/vllm#44292"),
        make=lambda: Decoder(
            k=1, request=_GRAMMAR, processes=_without(last=True, grammar=())
        ),
        shown_on=generation.G3,
        request=_GRAMMAR,
        bias=0.236,
        blind_on="drafts that are never accepted",
    ),
    DecoderDefect(
        id="grammar-keeps-rejected",
        sentence="The state of the grammar is not rolled back behind a rejection.",
        sources=("local-inference-lab/vllm#476", "sgl-project/sglang#17585"),
        make=lambda: Decoder(k=1, request=_GRAMMAR, remembers=_rejected_too(_GRAMMAR)),
        shown_on=generation.G3,
        request=_GRAMMAR,
        bias=0.189,
        blind_on="a single step, drafts that are always accepted",
    ),
    DecoderDefect(
        id="grammar-along-likeliest",
        sentence="The grammar is advanced with the likeliest tokens, not with the drafts.",
        sources=("InternLM/lmdeploy#4551",),
        make=lambda: Decoder(k=1, request=_GRAMMAR, contexts=_by_likeliest(_GRAMMAR)),
        shown_on=generation.G3,
        request=_GRAMMAR,
        bias=0.286,
        blind_on="drafts that are the likeliest tokens",
    ),
    DecoderDefect(
        id="grammar-state-of-first-text",
        sentence="All rows of a batch are masked by the states of the first.",
        sources=("vllm-project/vllm#30916", "vllm-project/vllm#52436"),
        make=lambda: Decoder(k=1, request=_PAIR_GRAMMAR, contexts=_of_first_text),
        shown_on=generation.G2_PAIR,
        request=_PAIR_GRAMMAR,
        bias=0.684,
        blind_on="one row a call",
    ),
    DecoderDefect(
        id="min-tokens-on-first-row-only",
        sentence="Only the first row of a step knows that the text may not end yet.",
        sources=("vllm-project/vllm#26317", "vllm-project/vllm#38202"),
        make=lambda: Decoder(k=1, request=_MIN, processes=_min_tokens_first),
        shown_on=generation.G3,
        request=_MIN,
        bias=0.143,
        blind_on="min_new_tokens 0 or 1",
    ),
)
CONTROLS: Final = (
    DecoderDefect(
        id="control-drafts-without-grammar",
        sentence="Drafts know nothing of the grammar, and are declared so.",
        sources=("vllm-project/vllm#14702",),
        make=lambda: Decoder(k=1, request=_GRAMMAR, draft_request=Request()),
        shown_on=generation.G3,
        request=_GRAMMAR,
        effect="none",
    ),
    DecoderDefect(
        id="control-drafts-without-penalty",
        sentence="Drafts know nothing of the penalty, and are declared so.",
        sources=("mutant",),
        make=lambda: Decoder(k=1, request=_PENALTY, draft_request=Request()),
        shown_on=generation.G3,
        request=_PENALTY,
        effect="none",
    ),
)
