# SPDX-License-Identifier: Apache-2.0
"""Put a case to a subject and take back what it emits, contract checked.

The rig owns everything between a toy model and the subject: tensors on the right device
in the right dtype, calls no larger than the subject takes, time limits, and the drafter
where the subject brings its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Final, TypeVar

import numpy as np
import torch
from torch import Tensor

from specverify.inputs.cases import Case
from specverify.inputs.models import IntArray, ToyModel
from specverify.inputs.trees import MultidraftCase, TreeCase
from specverify.subjects.answers import Answer, read, receive
from specverify.subjects.exchange import Emission, Inputs
from specverify.subjects.faults import SubjectFault, SubjectHung, guarded
from specverify.subjects.protocol import Subject
from specverify.subjects.streams import RandomStream

#: Largest number of probabilities in one call, and of rows: bounds the memory.
_MAX_ELEMENTS: Final = 2_000_000
_MAX_ROWS: Final = 4096
_MOST_TABLES: Final = 64
_T = TypeVar("_T")


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
        rig = Rig(subject, device=str(self.device), call_seconds=self.call_seconds)
        rig._hung = rig._hung_before = self._hung
        return rig

    def stream(self, seed: int, *, host_seed: int | None = None) -> RandomStream:
        """A stream of randomness of the kind that the subject takes."""
        rng = self.subject.capabilities.rng
        return RandomStream(rng, seed, self.device, host_seed=host_seed)

    def inputs(self, case: Case, prefixes: IntArray, drafts: IntArray) -> Inputs:
        """Build the tensors of a step.

        Parameters
        ----------
        case
            Models, form of the drafts and dtype.
        prefixes
            Committed tokens, int64 [batch, length].
        drafts
            What `Case.draw_drafts` gives: int64 [batch, k], [batch, n] or
            [batch, nodes].
        """
        ids = torch.from_numpy(drafts.copy()).to(self.device)
        if isinstance(case, MultidraftCase):
            p = self.law(case.target, case, prefixes)
            q = self.law(case.draft, case, prefixes)
            return Inputs(ids, self._declared(q), p, 1)
        if isinstance(case, TreeCase):
            texts = [case.behind(drafts, prefixes, i) for i in range(len(case.parents))]
            p = torch.stack([self.law(case.target, case, t) for t in texts], dim=1)
            q = torch.stack([self.law(case.draft, case, t) for t in texts], dim=1)
            shape = torch.tensor(case.parents)
            return Inputs(ids, self._declared(q), p, case.emits, shape)
        path, start = np.concatenate([prefixes, drafts], axis=1), prefixes.shape[1]
        p = self._rows(case.target, case, path, range(start, start + case.k + 1))
        if case.deterministic:
            return Inputs(ids, None, p, case.emits)
        q = self._rows(case.draft, case, path, range(start, start + case.k))
        return Inputs(ids, q, p, case.emits)

    def step(
        self,
        case: Case,
        prefixes: IntArray,
        stream: RandomStream,
        rng: np.random.Generator,
    ) -> tuple[IntArray, Emission]:
        """Draft and verify one step; drafts come from the subject if it has a drafter.

        Returns
        -------
        tuple
            Drafts as in `Case.draw_drafts`, and what the subject emitted.
        """
        if self.subject.draft is None or case.deterministic:
            drafts = case.draw_drafts(prefixes, rng)
            return drafts, self.verify(self.inputs(case, prefixes, drafts), stream)
        size = self.subject.capabilities.max_batch or max(len(prefixes), 1)
        all_drafts, answers, inputs = [], [], []
        for start in range(0, len(prefixes), size):
            part = prefixes[start : start + size]
            # Drafter and verifier share a stream, so that they may share state.
            with stream.owning_globals():
                drafts, declared = self._draft(case, part, stream)
                given = self.inputs(case, part, drafts)
                given = replace(given, draft_probs=declared)
                answers.append(self._call(given, stream))
            all_drafts.append(drafts)
            inputs.append(given)
        whole = replace(
            inputs[0],
            draft_token_ids=torch.cat([given.draft_token_ids for given in inputs]),
        )
        return np.concatenate(all_drafts), read(answers, whole, self.subject)

    def declared(self, case: Case, text: IntArray, stream: RandomStream) -> list[float]:
        """The law that the subject's own drafter declares behind one text [1, length]."""
        many = (case.n,) if isinstance(case, MultidraftCase) else ()
        with stream.owning_globals():
            q = self.law(case.draft, case, text)
            _, declared = self._ask_drafter(q, (1, *many), stream)
        return [float(mass) for mass in declared[0]]

    def _draft(
        self, case: Case, prefixes: IntArray, stream: RandomStream
    ) -> tuple[IntArray, Tensor]:
        """Let the subject draft: tokens as in `Case.draw_drafts`, and the q it declares."""
        if isinstance(case, MultidraftCase):
            ids, declared = self._ask_drafter(
                self.law(case.draft, case, prefixes), (len(prefixes), case.n), stream
            )
            return ids, declared
        text, rows = prefixes, []
        for _ in range(case.k):
            q = self.law(case.draft, case, text)
            ids, declared = self._ask_drafter(q, (len(text),), stream)
            text = np.concatenate([text, ids[:, None]], axis=1)
            rows.append(declared)
        width = (len(text), 0, case.vocab)
        probs = torch.stack(rows, dim=1) if rows else torch.empty(width)
        return text[:, prefixes.shape[1] :], probs.to(self.device)

    def _ask_drafter(
        self, q: Tensor, shape: tuple[int, ...], stream: RandomStream
    ) -> tuple[IntArray, Tensor]:
        drafter = self.subject.draft
        assert drafter is not None  # noqa: S101 - asked for by step only
        raw = self.attempt(lambda: drafter(q, **stream.source()))
        if not isinstance(raw, tuple) or len(raw) != 2:
            msg = f"its drafter returned a {type(raw).__name__}; due is (token_ids, q)"
            raise SubjectFault(msg)
        ids, declared = raw
        for name, value, due in (
            ("token_ids", ids, shape),
            ("declared_probs", declared, tuple(q.shape)),
        ):
            if not isinstance(value, Tensor) or tuple(value.shape) != due:
                found = list(value.shape) if isinstance(value, Tensor) else value
                msg = f"its drafter returned {name} {found}; due is shape {list(due)}"
                raise SubjectFault(msg)
        tokens = ids.cpu().numpy().astype(np.int64)
        least = -1 if tokens.ndim > 1 else 0  # of several slots some may be empty
        if tokens.size and not least <= tokens.min() <= tokens.max() < q.shape[-1]:
            msg = (
                f"its drafter returned tokens from {tokens.min()} to {tokens.max()}; the "
                f"vocabulary is 0 to {q.shape[-1] - 1}"
            )
            raise SubjectFault(msg)
        return tokens, declared

    def _declared(self, q: Tensor) -> Tensor | None:
        """Rows of q, or None for a subject that takes deterministic drafts only."""
        return None if self.subject.capabilities.draft_probs is False else q

    def refuse_if_hung(self) -> None:
        """Raise `SubjectHung` if an earlier call never came back."""
        if self._hung:
            hung, self._hung = self._hung, self._hung_before
            raise SubjectHung(hung)

    def remember_hang(self, hung: SubjectHung) -> None:
        """Let the next call report a hang that nobody has reported yet."""
        self._hung = str(hung)

    def attempt(self, call: Callable[[], _T], seconds: float | None = None) -> _T:
        """Call code of the subject within its time, and never again once it has hung.

        Raises
        ------
        SubjectFault
            It raised or hung; or it hung in an earlier call.
        """
        self.refuse_if_hung()
        try:
            return guarded(call, self.call_seconds if seconds is None else seconds)
        except SubjectHung as hung:
            self._hung = self._hung_before = f"not called again, since earlier {hung}"
            raise

    def verify(self, inputs: Inputs, stream: RandomStream) -> Emission:
        """Call the subject on all rows, in calls as large as it takes.

        Raises
        ------
        SubjectFault
            It raised, hung, or broke the contract of its output.
        """
        total = len(inputs.draft_token_ids)
        size = self.subject.capabilities.max_batch or total
        with stream.owning_globals():
            parts = [
                self._call(inputs.rows(slice(i, i + size)), stream)
                for i in range(0, total, size)
            ]
        return read(parts, inputs, self.subject)

    def verify_with(self, inputs: Inputs, uniforms: Tensor) -> Emission:
        """Call the subject with uniforms of our choice [batch, columns]."""
        size = self.subject.capabilities.max_batch or _MAX_ROWS
        answers = []
        for i in range(0, len(uniforms), size):
            part, given = inputs.rows(slice(i, i + size)), uniforms[i : i + size]
            answers.append(self._ask(part, {"uniforms": given} | part.options()))
        return read(answers, inputs, self.subject)

    def chunks(self, case: Case, total: int) -> Iterator[int]:
        """Split `total` rows into batches that fit into memory."""
        rows = _MAX_ELEMENTS // (case.vocab * case.columns)
        size = max(1, min(_MAX_ROWS, rows))
        for start in range(0, total, size):
            yield min(size, total - start)

    def _call(self, inputs: Inputs, stream: RandomStream) -> Answer:
        options = stream.arguments(*inputs.uniforms_shape) | inputs.options()
        return self._ask(inputs, options)

    def _ask(self, inputs: Inputs, kwargs: dict[str, Any]) -> Answer:
        raw = self.attempt(lambda: self.subject.fn(*inputs.arguments(), **kwargs))
        return receive(raw, inputs, self.subject)

    def law(self, model: ToyModel, case: Case, texts: IntArray) -> Tensor:
        """Next-token rows behind whole texts: [batch, vocab]."""
        length = texts.shape[1]
        return self._rows(model, case, texts, range(length, length + 1))[:, 0]

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
