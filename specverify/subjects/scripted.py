# SPDX-License-Identifier: Apache-2.0
"""Run a solution of the tutorial's exercise with `torch.rand` replaced by a script."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from unittest import mock

import torch
from torch import Tensor

from specverify.subjects.faults import SubjectFault, guarded
from specverify.subjects.protocol import Subject
from specverify.subjects.streams import RandomStream

#: torch's float32 uniforms are multiples of this.
GRID: Final = 2**24
_ALMOST_ONE: Final = (GRID - 1) / GRID


@dataclass(frozen=True, slots=True)
class Answer:
    """What a solution did.

    Attributes
    ----------
    accepted
        The list it returned.
    draws
        How many uniforms it drew through `torch.rand`.
    """

    accepted: list[int]
    draws: int


@dataclass
class _Script:
    """Stands in for `torch.rand`; behind its end it repeats the last value."""

    uniforms: Sequence[float]
    drawn: int = field(default=0, init=False)

    def __call__(self, *size: Any, **options: Any) -> Tensor:
        shape = torch.Size(
            size[0] if size and isinstance(size[0], (tuple, list)) else size
        )
        values = [self._next() for _ in range(shape.numel())]
        dtype = options.get("dtype") or torch.float32
        return torch.tensor(values, dtype=dtype).reshape(shape)

    def _next(self) -> float:
        value = self.uniforms[min(self.drawn, len(self.uniforms) - 1)]
        self.drawn += 1
        return value


class Exercise:
    """Calls one solution of the exercise.

    Parameters
    ----------
    subject
        ``(draft_probs [k, vocab], target_probs [k, vocab], draft_tokens) -> list``.
    call_seconds
        Time limit of a call.
    """

    def __init__(self, subject: Subject, *, call_seconds: float = 60) -> None:
        self.subject = subject
        self.call_seconds = call_seconds
        # Randomness that a solution takes elsewhere is kept from the host's.
        self._stream = RandomStream("torch", 0, torch.device("cpu"))

    def run(
        self,
        draft_probs: Tensor,
        target_probs: Tensor,
        tokens: Sequence[int],
        uniforms: Sequence[float],
    ) -> Answer:
        """Call with scripted uniforms."""
        script = _Script(uniforms)
        with self._stream.owning_globals(), mock.patch.object(torch, "rand", script):
            accepted = self.call(draft_probs, target_probs, tokens)
        return Answer(accepted, script.drawn)

    def call(
        self, draft_probs: Tensor, target_probs: Tensor, tokens: Sequence[int]
    ) -> list[int]:
        """Call with whatever randomness is in force; the answer's form is checked.

        Raises
        ------
        SubjectFault
            It raised, changed its inputs, or returned no prefix of the drafts.
        """
        before = draft_probs.clone(), target_probs.clone()
        drafts = torch.tensor(list(tokens), dtype=torch.int64)
        raw = guarded(
            lambda: self.subject.fn(draft_probs, target_probs, drafts),
            self.call_seconds,
        )
        if not torch.equal(draft_probs, before[0]) or not torch.equal(
            target_probs, before[1]
        ):
            msg = "it changed its input probabilities in place"
            raise SubjectFault(msg)
        return _as_ids(raw)

    def hides_randomness(self, runs: int = 64) -> bool:
        """Whether answers vary although `torch.rand` is scripted.

        With acceptance 0.4, all of 64 free answers agree with probability 1e-14.
        """
        answers = {self.accepts(0.2, 0.5, 0.0) for _ in range(runs)}
        return len(answers) > 1

    def accepts(self, p: float, q: float, u: float) -> bool:
        """Whether it accepts one draft of target mass p and draft mass q at uniform u."""
        answer = self.run(*pair_rows([(p, q)]), tokens=[1], uniforms=[u])
        return answer.accepted == [1]

    def keeps_rejected(self) -> bool:
        """Whether an answer ends with the rejected token: then one draft tells nothing."""
        answer = self.run(*pair_rows([(0.0, 0.5)] * 3), [1, 2, 3], [_ALMOST_ONE])
        return answer.accepted == [1]

    def acceptance(self, p: float, q: float) -> float:
        """Share of torch's uniforms at which it accepts: its exact acceptance law.

        Found by bisection on the grid of float32 uniforms, so acceptance must be
        monotone in u; the sign is negative where large uniforms are accepted and small
        ones are not.
        """
        low, high = 0, GRID - 1
        at_zero = self.accepts(p, q, 0.0)
        if at_zero == self.accepts(p, q, high / GRID):
            return 1.0 if at_zero else 0.0
        while high - low > 1:
            middle = (low + high) // 2
            if self.accepts(p, q, middle / GRID) == at_zero:
                low = middle
            else:
                high = middle
        return high / GRID if at_zero else -(GRID - high) / GRID


def pair_rows(pairs: Sequence[tuple[float, float]]) -> tuple[Tensor, Tensor]:
    """Rows q and p, [k, k + 2] each, with masses (p, q) on token i + 1 of row i."""
    p, q = torch.tensor(pairs, dtype=torch.float64).unbind(1)  # [k], [k]
    return _spread(q), _spread(p)


def _spread(masses: Tensor) -> Tensor:
    """Put each mass on a token of its own and spread the rest over the other tokens."""
    k = len(masses)
    rows = ((1 - masses) / (k + 1)).unsqueeze(1).repeat(1, k + 2)
    rows[torch.arange(k), torch.arange(k) + 1] = masses
    return rows


def _as_ids(raw: Any) -> list[int]:
    if isinstance(raw, Tensor):
        raw = raw.tolist()
    if not isinstance(raw, (list, tuple)):
        msg = f"it returned a {type(raw).__name__}; due is a list of token ids"
        raise SubjectFault(msg)
    try:
        return [int(token) for token in raw]
    except (TypeError, ValueError):
        msg = f"it returned {raw!r}; due is a list of token ids"
        raise SubjectFault(msg) from None
