# SPDX-License-Identifier: Apache-2.0
"""Put a case to a verifier and take back what it emits, contract checked.

The rig owns everything between a toy model and the subject: tensors on the right device
in the right dtype, calls no larger than the subject takes, time limits, and the one
reading of its answer that all checks share.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from specverify.inputs.cases import Case
from specverify.inputs.models import IntArray, ToyModel
from specverify.subjects.faults import SubjectFault, SubjectHung, guarded
from specverify.subjects.protocol import Subject
from specverify.subjects.streams import RandomStream

#: Largest number of probabilities in one call, and of rows: bounds the memory.
_MAX_ELEMENTS: Final = 2_000_000
_MAX_ROWS: Final = 4096
_MOST_TABLES: Final = 64


@dataclass(frozen=True, slots=True)
class Inputs:
    """The tensors of one call; see the verifier contract for shapes."""

    draft_token_ids: Tensor  # int64 [batch, k]
    draft_probs: Tensor | None  # [batch, k, vocab]
    target_probs: Tensor  # [batch, k + 1, vocab]

    def rows(self, part: slice) -> Inputs:
        """A slice of the batch."""
        q = self.draft_probs
        return Inputs(
            self.draft_token_ids[part],
            None if q is None else q[part],
            self.target_probs[part],
        )

    def interleaved(self, other: Inputs) -> Inputs:
        """A batch whose rows come from here and from `other` in turn."""
        q = None
        if self.draft_probs is not None and other.draft_probs is not None:
            q = _interleave(self.draft_probs, other.draft_probs)
        return Inputs(
            _interleave(self.draft_token_ids, other.draft_token_ids),
            q,
            _interleave(self.target_probs, other.target_probs),
        )

    def clone(self) -> Inputs:
        """A copy that nobody else can change."""
        q = self.draft_probs
        return Inputs(
            self.draft_token_ids.clone(),
            None if q is None else q.clone(),
            self.target_probs.clone(),
        )

    def tensors(self) -> dict[str, Tensor]:
        """The tensors by argument name."""
        named = {
            "draft_token_ids": self.draft_token_ids,
            "draft_probs": self.draft_probs,
            "target_probs": self.target_probs,
        }
        return {name: value for name, value in named.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Emission:
    """What a step emitted.

    Attributes
    ----------
    token_ids
        int64 [batch, k + 1]; behind the emitted tokens stands -1.
    num_emitted
        int64 [batch], 1 to k + 1; one less where the engine leaves out the bonus token.
    """

    token_ids: IntArray
    num_emitted: IntArray


class Rig:
    """Calls one subject on one device.

    Parameters
    ----------
    subject
        What is under test.
    device
        Where its tensors live.
    call_seconds
        Time limit of a single call.
    """

    def __init__(
        self, subject: Subject, *, device: str = "cpu", call_seconds: float = 60
    ) -> None:
        self.subject = subject
        self.device = torch.device(device)
        self.call_seconds = call_seconds
        self._hung = self._hung_before = ""
        self._tables: dict[tuple[int, str], tuple[ToyModel, Tensor]] = {}

    def single_rows(self) -> Rig:
        """The same subject, called with one row at a time."""
        capabilities = replace(self.subject.capabilities, max_batch=1)
        subject = replace(self.subject, capabilities=capabilities)
        return Rig(subject, device=str(self.device), call_seconds=self.call_seconds)

    def stream(self, seed: int, *, host_seed: int | None = None) -> RandomStream:
        """A stream of randomness of the kind that the subject takes."""
        rng = self.subject.capabilities.rng
        return RandomStream(rng, seed, self.device, host_seed=host_seed)

    def inputs(self, case: Case, prefixes: IntArray, drafts: IntArray) -> Inputs:
        """Build the tensors of a step.

        Parameters
        ----------
        case
            Models, k, dtype and form.
        prefixes
            Committed tokens, int64 [batch, length].
        drafts
            Draft tokens, int64 [batch, k].
        """
        path, start = np.concatenate([prefixes, drafts], axis=1), prefixes.shape[1]
        ids = torch.from_numpy(drafts.copy()).to(self.device)
        p = self._rows(case.target, case, path, range(start, start + case.k + 1))
        if case.deterministic:
            return Inputs(ids, None, p)
        return Inputs(
            ids, self._rows(case.draft, case, path, range(start, start + case.k)), p
        )

    def refuse_if_hung(self) -> None:
        """Raise `SubjectHung` if an earlier call never came back."""
        if self._hung:
            hung, self._hung = self._hung, self._hung_before
            raise SubjectHung(hung)

    def remember_hang(self, hung: SubjectHung) -> None:
        """Let the next call report a hang that nobody has reported yet."""
        self._hung = str(hung)

    def verify(self, inputs: Inputs, stream: RandomStream) -> Emission:
        """Call the subject on all rows, in calls as large as it takes.

        Raises
        ------
        SubjectFault
            It raised, hung, or broke the contract of its output.
        """
        self.refuse_if_hung()
        total = len(inputs.draft_token_ids)
        size = self.subject.capabilities.max_batch or total
        try:
            with stream.owning_globals():
                parts = [
                    self._call(inputs.rows(slice(i, i + size)), stream)
                    for i in range(0, total, size)
                ]
        except SubjectHung as hung:
            self._hung = self._hung_before = f"not called again, since earlier {hung}"
            raise
        ids = torch.cat([ids for ids, _ in parts]).cpu().numpy()
        counts = [count for _, count in parts if count is not None]
        emitted = torch.cat(counts).cpu().numpy() if counts else None
        return _read(ids, emitted, inputs, bonus=self.subject.capabilities.bonus)

    def chunks(self, case: Case, total: int) -> Iterator[int]:
        """Split `total` rows into batches that fit into memory."""
        rows = _MAX_ELEMENTS // (case.vocab * (2 * case.k + 1))
        size = max(1, min(_MAX_ROWS, rows))
        for start in range(0, total, size):
            yield min(size, total - start)

    def _call(
        self, inputs: Inputs, stream: RandomStream
    ) -> tuple[Tensor, Tensor | None]:
        batch, k = inputs.draft_token_ids.shape
        kwargs = stream.arguments(batch, k)
        raw = guarded(
            lambda: self.subject.fn(
                inputs.draft_token_ids,
                inputs.draft_probs,
                inputs.target_probs,
                **kwargs,
            ),
            self.call_seconds,
        )
        return _shaped(raw, inputs, bonus=self.subject.capabilities.bonus)

    def _rows(
        self, model: ToyModel, case: Case, path: IntArray, lengths: range
    ) -> Tensor:
        """Next-token rows behind the heads of every path: [batch, lengths, vocab]."""
        batch, vocab = len(path), model.vocab
        index = np.empty((batch, len(lengths)), np.int64)
        for column, length in enumerate(lengths):
            index[:, column] = model.context_index(path[:, :length])
        flat = torch.from_numpy(index.ravel()).to(self.device)
        table = self._table(model, case.dtype)
        return table.index_select(0, flat).view(batch, len(lengths), vocab)

    def _table(self, model: ToyModel, dtype: str) -> Tensor:
        """Rows of a model as a tensor, kept while the model is in use.

        Looked up by identity: hashing thousands of fractions takes milliseconds. The
        model is kept with the tensor, so that its identity is not used again.
        """
        key = (id(model), dtype)
        if key not in self._tables:
            if len(self._tables) >= _MOST_TABLES:
                self._tables.clear()
            rows = torch.tensor(model.matrix, dtype=getattr(torch, dtype))
            self._tables[key] = (model, rows.to(self.device))
        return self._tables[key][1]


def _interleave(even: Tensor, odd: Tensor) -> Tensor:
    rows = even.new_empty((len(even) + len(odd), *even.shape[1:]))
    rows[::2], rows[1::2] = even, odd
    return rows


def _shaped(raw: Any, inputs: Inputs, *, bonus: bool) -> tuple[Tensor, Tensor | None]:
    """Check what one call returned, as far as that needs no value."""
    ids, count = getattr(raw, "output_token_ids", raw), None
    if isinstance(ids, tuple) and len(ids) == 2:
        ids, count = ids
    batch, k = inputs.draft_token_ids.shape
    if not isinstance(ids, Tensor):
        msg = (
            f"it returned a {type(ids).__name__}; a tensor int64 [batch, k + 1] is due"
        )
        raise SubjectFault(msg)
    if not bonus and tuple(ids.shape) == (batch, k):
        ids = torch.cat([ids, torch.full_like(ids[:, :1], -1)], dim=1)
    if tuple(ids.shape) != (batch, k + 1):
        due = [batch, k + 1]
        msg = f"it returned shape {list(ids.shape)}; due is [batch, k + 1] = {due}"
        raise SubjectFault(msg)
    if ids.layout != torch.strided:
        msg = f"it returned a tensor of layout {ids.layout}; due is torch.strided"
        raise SubjectFault(msg)
    if ids.dtype != torch.int64:
        msg = f"it returned dtype {ids.dtype}; due is torch.int64"
        raise SubjectFault(msg)
    if ids.device.type != inputs.target_probs.device.type:
        msg = (
            f"it returned a tensor on {ids.device}; due is {inputs.target_probs.device}"
        )
        raise SubjectFault(msg)
    if count is not None and not _is_count(count, batch):
        msg = "the second value it returned is no integer tensor num_emitted [batch]"
        raise SubjectFault(msg)
    return ids, count


def _is_count(count: Any, batch: int) -> bool:
    """Whether a second value can be num_emitted [batch]."""
    whole = (torch.int64, torch.int32)
    return (
        isinstance(count, Tensor)
        and tuple(count.shape) == (batch,)
        and count.layout == torch.strided
        and count.dtype in whole
    )


def _read(
    ids: IntArray, emitted: IntArray | None, inputs: Inputs, *, bonus: bool
) -> Emission:
    """Check the values of an answer and bring it into one form."""
    slots = ids.shape[1]
    vocab = inputs.target_probs.shape[-1]
    if emitted is None:
        emitted = (ids != -1).cumprod(axis=1).sum(axis=1)
        padded = ids[np.arange(slots) >= emitted[:, None]]
        if (padded != -1).any():
            msg = f"it put {padded[padded != -1][0]} behind a -1; due is -1 to the end"
            raise SubjectFault(msg)
    least = 1 if bonus or slots > 1 else 0
    wrong = (emitted < least) | (emitted > slots)
    if wrong.any():
        row = int(wrong.argmax())
        msg = (
            f"row {row} emits {emitted[row]} tokens; due are {least} to {slots}: "
            "accepted drafts and one recovered or bonus token"
        )
        raise SubjectFault(msg)
    live = np.arange(slots) < emitted[:, None]  # [batch, k + 1]
    outside = live & ((ids < 0) | (ids >= vocab))
    if outside.any():
        row, position = np.argwhere(outside)[0]
        msg = (
            f"it emitted token {ids[row, position]} at row {row}, position {position}; "
            f"the vocabulary is 0 to {vocab - 1}"
        )
        raise SubjectFault(msg)
    return Emission(np.where(live, ids, -1), emitted.astype(np.int64))
