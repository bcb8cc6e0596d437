# SPDX-License-Identifier: Apache-2.0
"""What a request asks of a decoder, and the law that it then must follow.

`Request.probs` is the batched form that the decoder works with; `due_law` writes the same
down once more, prefix by prefix, and is what the decoder is held to.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from specverify.inputs.generation import Generation
from specverify.laws.distributions import Law, Model, Prefix


@dataclass(frozen=True)
class Known:
    """What the rules of a request depend on, for rows of every text.

    Attributes
    ----------
    seen
        Tokens that the text holds: bool [batch, rows, vocab].
    state
        State of the grammar: int64 [batch, rows].
    new
        Tokens behind the prompt: int64 [batch, rows].
    """

    seen: Tensor
    state: Tensor
    new: Tensor

    def at(self, row: Tensor) -> Known:
        """One row of each text: `row` int64 [batch]."""
        row = row[:, None]
        vocab = self.seen.shape[2]
        return Known(
            self.seen.gather(1, row[..., None].expand(-1, -1, vocab)),
            self.state.gather(1, row),
            self.new.gather(1, row),
        )


@dataclass(frozen=True)
class Request:
    """Sampling parameters of one request.

    Attributes
    ----------
    temperature
        Divides the logits, after the penalty.
    presence_penalty
        Is subtracted from the logit of each token that the text holds.
    grammar
        Next state of state s behind token t, -1 where s forbids t; starts in state 0
        behind the prompt. Empty: everything is allowed.
    stop
        Sequences behind which the text ends; it keeps them.
    min_new_tokens
        Stop sequences of one token are forbidden until so many tokens have come; longer
        ones are not.
    """

    temperature: float = 1.0
    presence_penalty: float = 0.0
    grammar: tuple[tuple[int, ...], ...] = ()
    stop: tuple[Prefix, ...] = ()
    min_new_tokens: int = 0

    def __post_init__(self) -> None:
        """Refuse what has no law."""
        if not self.temperature > 0:
            msg = f"temperature is {self.temperature}; allowed is more than 0"
            raise ValueError(msg)

    def opened(self, prompt_ids: Tensor, vocab: int) -> Known:
        """What is known behind the prompts [batch, n]: one row."""
        seen = one_hot(prompt_ids, vocab).sum(dim=1, keepdim=True) > 0
        zero = torch.zeros_like(prompt_ids[:, :1])
        return Known(seen, zero, zero)

    def along(self, context: Known, ids: Tensor) -> Known:
        """What is known before and behind each of `ids` [batch, m]: m + 1 rows."""
        rows = [context]
        for token in ids[..., None].unbind(dim=1):  # [batch, 1]
            last, vocab = rows[-1], context.seen.shape[2]
            state = last.state
            if self.grammar:
                table = torch.tensor(self.grammar, device=ids.device)
                behind = table[last.state, token]
                state = behind.where(behind >= 0, last.state)
            seen = last.seen | (one_hot(token, vocab) > 0)
            rows.append(Known(seen, state, last.new + 1))
        return Known(
            *(
                torch.cat([getattr(row, name) for row in rows], dim=1)
                for name in ("seen", "state", "new")
            )
        )

    def probs(self, logits: Tensor, context: Known) -> Tensor:
        """Law of the next token: float64 [batch, rows, vocab], from logits of one shape."""
        logits = logits.double() - self.presence_penalty * context.seen
        allowed = self._allowed(context) & logits.isfinite()
        # A row that forbids everything has lost its way; something has to come out.
        allowed |= ~allowed.any(dim=-1, keepdim=True) & logits.isfinite()
        logits = (logits / self.temperature).masked_fill(~allowed, -math.inf)
        return logits.softmax(dim=-1)

    def _allowed(self, context: Known) -> Tensor:
        allowed = torch.ones_like(context.seen)
        if self.grammar:
            table = torch.tensor(self.grammar, device=allowed.device)
            allowed &= table[context.state] >= 0
        for sequence in self.stop if self.min_new_tokens else ():
            if len(sequence) == 1:
                allowed[..., sequence[0]] &= context.new >= self.min_new_tokens
        return allowed

    def row(self, model: Model, prompt: Prefix, new: Prefix) -> list[float]:
        """Law of the next token behind `new`, in plain numbers."""
        text, weights = (*prompt, *new), []
        state = 0
        for token in new if self.grammar else ():
            state = self.grammar[state][token]
        for token, mass in enumerate(model(text)):
            penalty = math.exp(-self.presence_penalty) if token in text else 1.0
            barred = (token,) in self.stop and len(new) < self.min_new_tokens
            barred |= bool(self.grammar) and self.grammar[state][token] < 0
            weight = (float(mass) * penalty) ** (1 / self.temperature)
            weights.append(0.0 if barred else weight)
        if not sum(weights):
            msg = f"the request forbids every token behind {[*prompt, *new]}"
            raise ValueError(msg)
        return [weight / sum(weights) for weight in weights]

    def ended(self, new: Prefix) -> bool:
        """Whether a text ends here."""
        return any(new[-len(sequence) :] == sequence for sequence in self.stop)


def due_law(request: Request, case: Generation) -> Law[tuple[Prefix, ...]]:
    """Law of the texts behind all prompts: rows are independent."""
    law: Law[tuple[Prefix, ...]] = {(): 1.0}
    for prompt in case.prompts:
        mine = _text_law(request, case.target, prompt, case.max_new_tokens)
        law = {
            (*texts, text): weight * mass
            for texts, weight in law.items()
            for text, mass in mine.items()
        }
    return law


def _text_law(
    request: Request, model: Model, prompt: Prefix, most: int
) -> dict[Prefix, float]:
    done: dict[Prefix, float] = {}
    open_: dict[Prefix, float] = {(): 1.0}
    while open_:
        new, weight = open_.popitem()
        for token, mass in enumerate(request.row(model, prompt, new)):
            text = (*new, token)
            ended = len(text) == most or request.ended(text)
            if mass:
                (done if ended else open_)[text] = weight * mass
    return done
