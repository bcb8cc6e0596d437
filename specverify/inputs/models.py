# SPDX-License-Identifier: Apache-2.0
"""Toy autoregressive models, small enough to know everything about."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

Row = tuple[Fraction, ...]
Context = tuple[int, ...]
IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class ToyModel:
    """A next-token law given as a table over the last few tokens.

    Because the law depends on what came before, p and q differ from position to position
    and from row to row, which is what makes indexing mistakes visible.

    Attributes
    ----------
    rows
        One distribution for each context, in the order of `contexts`.
    memory
        How many tokens back the law looks; shorter prefixes have rows of their own.
    groups
        Tokens enter a context modulo this number, so that a large vocabulary needs few
        rows; the vocabulary size where it is not given.
    """

    rows: tuple[Row, ...]
    memory: int = 0
    groups: int = 0

    def __post_init__(self) -> None:
        """Check the table, and say precisely what is wrong with it."""
        if not self.rows:
            msg = "rows is empty; a model needs at least the row of the empty prefix"
            raise ValueError(msg)
        object.__setattr__(self, "groups", self.groups or self.vocab)
        need = sum(self.groups**length for length in range(self.memory + 1))
        if len(self.rows) != need:
            msg = (
                f"rows has {len(self.rows)} entries; memory {self.memory} over "
                f"{self.groups} token groups asks for {need}"
            )
            raise ValueError(msg)
        for context, row in zip(self.contexts, self.rows, strict=True):
            if len(row) != self.vocab or min(row) < 0 or sum(row) != 1:
                msg = (
                    f"row of context {context} is {[str(x) for x in row]}; allowed are "
                    f"{self.vocab} non-negative fractions that sum to 1"
                )
                raise ValueError(msg)

    @classmethod
    def from_table(
        cls, table: Mapping[Context, Sequence[Fraction | float | str]], *, memory: int
    ) -> ToyModel:
        """Build a model from a mapping of contexts (up to `memory` tokens) to rows."""
        vocab = len(table[()])
        missing = [c for c in _contexts(vocab, memory) if c not in table]
        if missing:
            msg = (
                f"table has no row for context {missing[0]}; memory {memory} over "
                f"{vocab} tokens asks for every context of up to {memory} tokens"
            )
            raise ValueError(msg)
        rows = tuple(
            tuple(Fraction(value) for value in table[context])
            for context in _contexts(vocab, memory)
        )
        return cls(rows, memory)

    @classmethod
    def from_positions(
        cls, rows: Iterable[Sequence[Fraction | float | str]]
    ) -> ToyModel:
        """Build a model whose law depends on the position only, one row a position.

        Behind the last given position the last row holds.
        """
        exact = [tuple(Fraction(value) for value in row) for row in rows]
        if not exact:
            msg = "rows is empty; a model needs the row of one position or more"
            raise ValueError(msg)
        memory = len(exact) - 1
        table = {c: exact[len(c)] for c in _contexts(len(exact[0]), memory)}
        return cls.from_table(table, memory=memory)

    @property
    def vocab(self) -> int:
        """Number of tokens."""
        return len(self.rows[0])

    @property
    def contexts(self) -> Iterator[Context]:
        """The contexts in the order of `rows`: by length, then in counting order."""
        return _contexts(self.groups, self.memory)

    def __call__(self, prefix: Sequence[int]) -> Row:
        """Next-token law behind `prefix`, in Fractions."""
        return self.rows[
            self.context_index(np.array([prefix], np.int64).reshape(1, -1))[0]
        ]

    def probs(self, prefixes: IntArray) -> FloatArray:
        """Next-token laws behind many prefixes of one length.

        Parameters
        ----------
        prefixes
            int64 [batch, length].

        Returns
        -------
        ndarray
            float64 [batch, vocab].
        """
        return self.matrix[self.context_index(prefixes)]

    def sample(self, prefixes: IntArray, rng: np.random.Generator) -> IntArray:
        """Draw the next token behind each prefix: int64 [batch]."""
        index = self.context_index(prefixes)
        uniforms = rng.random(len(index))
        tokens = np.empty(len(index), np.int64)
        for context in np.unique(index):
            here = index == context
            tokens[here] = _inverse_cdf(self.matrix[context], uniforms[here])
        return tokens

    def extend(
        self, prefixes: IntArray, length: int, rng: np.random.Generator
    ) -> IntArray:
        """Sample every prefix on to `length` tokens: int64 [batch, length]."""
        while prefixes.shape[1] < length:
            token = self.sample(prefixes, rng)
            prefixes = np.concatenate([prefixes, token[:, None]], axis=1)
        return prefixes

    def greedy(self) -> ToyModel:
        """One-hot at the most likely token of each row, of ties the lowest id."""
        best = [row.index(max(row)) for row in self.rows]
        rows = tuple(
            tuple(Fraction(int(token == top)) for token in range(self.vocab))
            for top in best
        )
        return ToyModel(rows, self.memory, self.groups)

    def permuted(self, order: Sequence[int]) -> ToyModel:
        """Rename token t to ``order[t]`` everywhere."""
        self._refuse_groups("permuted")
        if sorted(order) != list(range(self.vocab)):
            last = self.vocab - 1
            msg = f"order is {list(order)}; allowed is a permutation of 0 to {last}"
            raise ValueError(msg)
        back = np.argsort(order)
        table = {
            tuple(order[t] for t in context): [row[back[t]] for t in range(self.vocab)]
            for context, row in zip(self.contexts, self.rows, strict=True)
        }
        return ToyModel.from_table(table, memory=self.memory)

    def padded(self, extra: int) -> ToyModel:
        """Add `extra` tokens of probability zero at the end of the vocabulary."""
        self._refuse_groups("padded")
        if extra < 0:
            msg = f"extra is {extra}; allowed is 0 or more"
            raise ValueError(msg)
        zeros = (Fraction(0),) * extra
        table = dict(zip(self.contexts, self.rows, strict=True))
        rows = tuple(
            (*table.get(tuple(t % self.vocab for t in context), ()), *zeros)
            for context in _contexts(self.vocab + extra, self.memory)
        )
        return ToyModel(rows, self.memory)

    def to_json(self) -> dict[str, Any]:
        """Write as JSON data; `from_json` reads it back exactly."""
        rows = [[str(value) for value in row] for row in self.rows]
        return {"rows": rows, "memory": self.memory, "groups": self.groups}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ToyModel:
        """Read what `to_json` wrote."""
        rows = tuple(tuple(Fraction(v) for v in row) for row in data["rows"])
        return cls(rows, int(data["memory"]), int(data["groups"]))

    def _refuse_groups(self, verb: str) -> None:
        if self.groups != self.vocab:
            msg = f"a model over {self.groups} token groups cannot be {verb}"
            raise ValueError(msg)

    @cached_property
    def matrix(self) -> FloatArray:
        """All rows as float64 [contexts, vocab]."""
        return np.array([[float(value) for value in row] for row in self.rows])

    def context_index(self, prefixes: IntArray) -> IntArray:
        """Index into `rows` for each prefix: int64 [batch] from int64 [batch, length]."""
        length = min(self.memory, prefixes.shape[1])
        offset = sum(self.groups**shorter for shorter in range(length))
        index: IntArray = np.zeros(len(prefixes), np.int64)
        for token in prefixes[:, prefixes.shape[1] - length :].T:
            index = index * self.groups + token % self.groups
        index += offset
        return index


def check_one_vocab(target: ToyModel, draft: ToyModel) -> None:
    """Raise `ValueError` unless both models have one vocabulary."""
    if target.vocab != draft.vocab:
        msg = f"draft has vocab {draft.vocab}, target {target.vocab}; they must agree"
        raise ValueError(msg)


def _contexts(groups: int, memory: int) -> Iterator[Context]:
    for length in range(memory + 1):
        yield from itertools.product(range(groups), repeat=length)


def _inverse_cdf(row: FloatArray, uniforms: FloatArray) -> IntArray:
    cdf = row.cumsum()
    tokens = np.searchsorted(cdf, uniforms * cdf[-1], side="right")
    last = int(np.flatnonzero(row)[-1])
    return np.asarray(np.minimum(tokens, last), dtype=np.int64)
