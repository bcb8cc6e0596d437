# SPDX-License-Identifier: Apache-2.0
"""A small speculative decoder with caches, as a row of parts that a defect may replace.

The loop of any engine: draft tokens, read them with the target, verify, write what came
out, roll both caches back, until each text has ended. Left as they are, the parts decode
losslessly.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from specverify import core
from specverify.core.sampling import draw_uniforms, inverse_cdf
from specverify.core.steps import ChainResult
from specverify.defects.requests import Known, Request


def places(like: Tensor) -> Tensor:
    """Columns of a tensor [batch, columns]: int64 [columns]."""
    return torch.arange(like.shape[1], device=like.device)


class Cache:
    """What a model has read, slot by slot.

    Keys and values of a causal model are a function of the tokens in the slots up to
    theirs, so the tokens stand for them.

    Parameters
    ----------
    model
        Maps ids [batch, n] to logits [batch, n, vocab].
    like
        Any int64 tensor with one row for each text.
    slots
        Most tokens that it can hold.
    """

    def __init__(self, model: nn.Module, like: Tensor, slots: int) -> None:
        self.model = model
        self.ids = like.new_zeros(len(like), slots)
        self.used = like.new_zeros(len(like))

    def read(self, tokens: Tensor) -> Tensor:
        """Read tokens [batch, m]: logits [batch, m, vocab] behind each."""
        slots = self.used[:, None] + places(tokens)
        self.ids = self.ids.scatter(1, slots, tokens)
        self.used = self.used + tokens.shape[1]
        return self.behind(slots)

    def behind(self, slots: Tensor) -> Tensor:
        """Logits behind slots [batch, m]: [batch, m, vocab]."""
        logits: Tensor = self.model(self.ids)
        return logits.gather(1, slots[..., None].expand(-1, -1, logits.shape[2]))


@dataclass
class Text:
    """What is written, row by row.

    Attributes
    ----------
    ids
        Prompt and new tokens, then 0: int64 [batch, slots].
    length
        Tokens written, those of the prompt included: int64 [batch].
    prompt
        Tokens of the prompt.
    most
        Most tokens behind it.
    open
        Rows that go on: bool [batch].
    """

    ids: Tensor
    length: Tensor
    prompt: int
    most: int
    open: Tensor

    @classmethod
    def opened(cls, prompt_ids: Tensor, most: int, slots: int) -> Text:
        """Behind the prompts [batch, n]."""
        batch, n = prompt_ids.shape
        ids = prompt_ids.new_zeros(batch, slots)
        ids[:, :n] = prompt_ids
        length = prompt_ids.new_full((batch,), n)
        return cls(ids, length, n, most, length < n + most)

    def last(self) -> Tensor:
        """The last token of each row: [batch, 1]."""
        return self.ids.gather(1, self.length[:, None] - 1)

    @property
    def room(self) -> Tensor:
        """Tokens that may still be written: int64 [batch]."""
        return self.prompt + self.most - self.length

    def write(self, token: Tensor, where: Tensor) -> None:
        """Write a token [batch] into the rows `where` [batch]."""
        place = self.length[:, None]
        old = self.ids.gather(1, place)
        new = torch.where(where[:, None], token[:, None], old)
        self.ids = self.ids.scatter(1, place, new)
        self.length = self.length + where

    def ends_with(self, sequence: tuple[int, ...]) -> Tensor:
        """Rows whose new tokens end with a sequence: bool [batch]."""
        n = len(sequence)
        back = torch.arange(-n, 0, device=self.ids.device)
        place = (self.length[:, None] + back).clamp_min(0)
        wanted = torch.tensor(sequence, device=self.ids.device)
        same = (self.ids.gather(1, place) == wanted).all(dim=1)
        return same & (self.length >= self.prompt + n)

    def new(self) -> Tensor:
        """All that is behind the prompts, -1 behind the end of a row: [batch, longest]."""
        longest = int(self.length.max()) - self.prompt
        ids = self.ids[:, self.prompt : self.prompt + longest]
        return ids.masked_fill(places(ids) >= (self.length - self.prompt)[:, None], -1)


@dataclass
class Step:
    """One turn of the loop, as its parts see it.

    Attributes
    ----------
    text
        Before the step; written on at its end.
    context
        Of the request behind the text: one row.
    before
        The step before it; None for the first one.
    drafted
        Drafts [batch, k] and their laws [batch, k, vocab], as they were drawn.
    ids, q, p
        What is verified: drafts, their laws, the target's laws [batch, k + 1, vocab].
    draft_uniforms, uniforms
        Of the drafts [batch, k]; of the tests and the token behind them [batch, k + 1].
    accepted
        Drafts accepted: int64 [batch].
    """

    text: Text
    context: Known
    before: Step | None
    drafted: tuple[Tensor, Tensor] = field(init=False)
    ids: Tensor = field(init=False)
    q: Tensor = field(init=False)
    p: Tensor = field(init=False)
    draft_uniforms: Tensor = field(init=False)
    uniforms: Tensor = field(init=False)
    accepted: Tensor = field(init=False)

    @property
    def earlier(self) -> Step:
        """The step before it, or this one where it is the first."""
        return self if self.before is None else self.before


def fresh(step: Step, width: int, generator: torch.Generator) -> Tensor:
    """Independent uniforms [batch, width]."""
    ids = step.text.ids
    return draw_uniforms((len(ids), width), device=ids.device, generator=generator)


def token_by_token(step: Step, lengths: Tensor | None) -> ChainResult:
    """Verify losslessly."""
    return core.verify_chain(
        step.ids,
        step.q,
        step.p,
        uniforms=step.uniforms,
        num_draft_tokens=lengths,
        validate=False,
    )


def up_to_the_end(text: Text, output: Tensor, request: Request) -> None:
    """Write tokens [batch, m] up to -1, a stop sequence or the most that is asked for."""
    for token in output.unbind(dim=1):
        text.write(token, text.open & (token >= 0))
        for sequence in request.stop:
            text.open = text.open & ~text.ends_with(sequence)
        text.open = text.open & (text.room > 0)


def roll_back(step: Step, cache: Cache) -> None:
    """Give back the slots of rejected drafts."""
    cache.used = cache.used - (step.ids.shape[1] - step.accepted)


@dataclass(frozen=True)
class Decoder:
    """Decodes speculatively.

    Called with target, draft and prompts as modules that map ids to logits and int64
    [batch, n], n >= 1, it returns int64 [batch, <= max_new_tokens]: the tokens behind each
    prompt, then -1.

    Attributes
    ----------
    k
        Drafts of a step, at least one.
    request, draft_request
        Sampling parameters, of the target and of the drafts.
    cache
        Makes the target's cache.
    uniforms
        Draws the uniforms of verification [batch, k + 1].
    draws
        Draws drafts [batch] from a law [batch, vocab] and uniforms [batch].
    declares
        Law that is declared of a draft, from the law that it was drawn from.
    proposes
        Chooses the drafts that are verified, and their laws.
    contexts
        Changes what the target's rows know of the text, from step and rows.
    processes
        Turns logits into laws.
    lengths, verifies
        Verify: how many drafts, and how.
    writes
        Changes the answer [batch, k + 1].
    ends
        Writes the answer into the text, up to its end.
    remembers
        What is known behind the step, from step and what was written.
    rolls_back, draft_rolls_back
        Give back slots of the caches behind the step.
    """

    k: int = 2
    request: Request = field(default_factory=Request)
    draft_request: Request | None = None
    cache: Callable[[nn.Module, Tensor, int], Cache] = Cache
    uniforms: Callable[[Step, int, torch.Generator], Tensor] = fresh
    draws: Callable[[Tensor, Tensor], Tensor] = inverse_cdf
    declares: Callable[[Tensor], Tensor] = lambda law: law
    proposes: Callable[[Step], tuple[Tensor, Tensor]] = lambda step: step.drafted
    contexts: Callable[[Step, Known], Known] = lambda step, rows: rows
    processes: Callable[[Request, Tensor, Known], Tensor] = Request.probs
    lengths: Callable[[Step], Tensor | None] = lambda step: None
    verifies: Callable[[Step, Tensor | None], ChainResult] = token_by_token
    writes: Callable[[Step, Tensor], Tensor] = lambda step, output: output
    ends: Callable[[Text, Tensor, Request], None] = up_to_the_end
    remembers: Callable[[Step, Known], Known] = lambda step, context: context
    rolls_back: Callable[[Step, Cache], None] = roll_back
    draft_rolls_back: Callable[[Step, Cache], None] = roll_back

    def __post_init__(self) -> None:
        """Refuse a decoder that drafts nothing."""
        if self.k < 1:
            msg = f"k is {self.k}; allowed is 1 or more"
            raise ValueError(msg)

    def __call__(
        self,
        target: nn.Module,
        draft: nn.Module,
        prompt_ids: Tensor,
        *,
        max_new_tokens: int,
        generator: torch.Generator,
    ) -> Tensor:
        """Write behind the prompts [batch, n]: int64 [batch, <= max_new_tokens]."""
        n = prompt_ids.shape[1]
        # A defect may keep every draft that it reads, and reads one token a turn or more.
        slots = n + (max_new_tokens + 1) * (self.k + 1)
        text = Text.opened(prompt_ids, max_new_tokens, slots)
        big = self.cache(target, prompt_ids, slots)
        small = Cache(draft, prompt_ids, slots)
        vocab = target(prompt_ids[:1]).shape[-1]
        step = Step(text, self.request.opened(prompt_ids, vocab), None)
        for cache in (big, small):
            cache.read(prompt_ids[:, :-1])
        while bool(text.open.any()):
            step = self._step(step, big, small, generator)
        return text.new()

    def _step(
        self, step: Step, big: Cache, small: Cache, generator: torch.Generator
    ) -> Step:
        text = step.text
        if step.before is not None:
            step.before.before = None  # parts look back one step, not at all of them
        self._draft(step, small, generator)
        step.ids, step.q = self.proposes(step)
        logits = big.read(torch.cat([text.last(), step.ids], dim=1))
        rows = self.request.along(step.context, step.ids)
        step.p = self.processes(self.request, logits, self.contexts(step, rows))
        step.uniforms = self.uniforms(step, self.k + 1, generator)
        output, step.accepted = self.verifies(step, self.lengths(step))
        output, start = self.writes(step, output), text.length
        self.ends(text, output, self.request)
        behind = self.request.along(step.context, output.clamp_min(0))
        context = self.remembers(step, behind.at(text.length - start))
        self.rolls_back(step, big)
        self.draft_rolls_back(step, small)
        return Step(text, context, step)

    def _draft(self, step: Step, cache: Cache, generator: torch.Generator) -> None:
        """Draft k tokens; the last one is read too, for the case that it is kept."""
        request = self.draft_request or self.request
        step.draft_uniforms = fresh(step, self.k, generator)
        token, context = step.text.last(), step.context
        ids, laws = [], []
        for u in step.draft_uniforms.unbind(dim=1):
            law = request.probs(cache.read(token), context)[:, 0]
            laws.append(self.declares(law))
            ids.append(self.draws(law, u))
            token = ids[-1][:, None]
            context = request.along(context, token).at(torch.ones_like(ids[-1]))
        cache.read(token)
        step.drafted = torch.stack(ids, dim=1), torch.stack(laws, dim=1)
