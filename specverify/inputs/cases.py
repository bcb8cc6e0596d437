# SPDX-License-Identifier: Apache-2.0
"""A case: one input that can be put to an implementation."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np

from specverify.inputs.models import IntArray, Row, ToyModel, check_one_vocab

DTYPES = ("float32", "float64", "bfloat16", "float16")


@dataclass(frozen=True)
class Case:
    """Target and draft model, draft length, and the form in which they are handed over.

    Attributes
    ----------
    target, draft
        Models p and q over one vocabulary.
    k
        Number of drafted tokens, 0 or more.
    deterministic
        Hand over ``draft_probs=None``: the draft model must then be one-hot everywhere.
    dtype
        Of the probabilities: one of `DTYPES`.
    greedy
        Whether the most likely path must come out, instead of a sample.
    name
        Name of a witness; does not enter identity, seeds or comparisons.
    """

    target: ToyModel
    draft: ToyModel
    k: int
    deterministic: bool = False
    dtype: str = "float32"
    greedy: bool = False
    name: str = ""

    def __post_init__(self) -> None:
        """Refuse what no implementation could be blamed for."""
        check_one_vocab(self.target, self.draft)
        if self.k < 0:
            msg = f"k is {self.k}; allowed is 0 or more"
            raise ValueError(msg)
        if self.dtype not in DTYPES:
            msg = f"dtype is {self.dtype!r}; allowed are {', '.join(DTYPES)}"
            raise ValueError(msg)
        spread = [row for row in self.draft.rows if max(row) < 1]
        if self.deterministic and spread:
            msg = (
                f"deterministic is set, but draft has the row {format_row(spread[0])}; "
                "allowed are one-hot rows"
            )
            raise ValueError(msg)

    @property
    def vocab(self) -> int:
        """Number of tokens."""
        return self.target.vocab

    @property
    def due(self) -> ToyModel:
        """The model whose law must come out."""
        return self._greedy_target if self.greedy else self.target

    @cached_property
    def _greedy_target(self) -> ToyModel:
        return self.target.greedy()

    @property
    def emits(self) -> int:
        """Most tokens that a step emits."""
        return self.k + 1

    @property
    def columns(self) -> int:
        """Rows of probabilities that a step reads: bounds the memory of a call."""
        return 2 * self.k + 1

    def draw_drafts(self, prefixes: IntArray, rng: np.random.Generator) -> IntArray:
        """Draw drafts behind committed tokens [batch, length]: int64 [batch, k]."""
        start = prefixes.shape[1]
        return self.draft.extend(prefixes, start + self.k, rng)[:, start:]

    @cached_property
    def key(self) -> bytes:
        """Canonical bytes: equal for equal inputs, the seed material of their draws."""
        data = {name: value for name, value in self.to_json().items() if name != "name"}
        return json.dumps(data, sort_keys=True, separators=(",", ":")).encode()

    def with_(self, **changes: Any) -> Case:
        """Copy with some fields changed."""
        return replace(self, **changes)

    def permuted(self, order: tuple[int, ...]) -> Case:
        """The same case with token t renamed to ``order[t]``."""
        return self.with_(
            target=self.target.permuted(order), draft=self.draft.permuted(order)
        )

    def padded(self, extra: int) -> Case:
        """The same case with `extra` impossible tokens behind the vocabulary."""
        return self.with_(
            target=self.target.padded(extra), draft=self.draft.padded(extra)
        )

    def describe(self) -> str:
        """Say in a few lines what the input is; long tables are cut."""
        head = f"vocab {self.vocab}, {self.shape}, {self.dtype}"
        if self.name:
            head = f"witness {self.name}: {head}"
        if self.deterministic:
            head += ", deterministic drafts (draft_probs=None)"
        if self.greedy:
            head += ", greedy decoding (the most likely path is due)"
        return "\n".join(
            [head, *_describe("p", self.target), *_describe("q", self.draft)]
        )

    @property
    def shape(self) -> str:
        """The drafts in words."""
        return f"k = {self.k}"

    def to_json(self) -> dict[str, Any]:
        """Write as JSON data."""
        return {
            "target": self.target.to_json(),
            "draft": self.draft.to_json(),
            "k": self.k,
            "deterministic": self.deterministic,
            "dtype": self.dtype,
            "greedy": self.greedy,
            "name": self.name,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Case:
        """Read what `to_json` wrote."""
        return cls(**cls._fields(data))

    @staticmethod
    def _fields(data: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "target": ToyModel.from_json(data["target"]),
            "draft": ToyModel.from_json(data["draft"]),
            "k": int(data["k"]),
            "deterministic": bool(data["deterministic"]),
            "dtype": str(data["dtype"]),
            "greedy": bool(data.get("greedy", False)),
            "name": str(data.get("name", "")),
        }


def _describe(symbol: str, model: ToyModel, limit: int = 8) -> list[str]:
    lines = []
    for context, row in list(zip(model.contexts, model.rows, strict=True))[:limit]:
        given = f" | {','.join(map(str, context))}" if context else ""
        lines.append(f"{symbol}(.{given}) = {format_row(row)}")
    hidden = len(model.rows) - limit
    if hidden > 0:
        lines.append(f"... and {hidden} more rows of {symbol}")
    return lines


def format_row(row: Row, limit: int = 12) -> str:
    """Write a distribution as short as it is exact: ``(1/4, 3/4)``."""
    shown = [_format(value) for value in row[:limit]]
    if len(row) > limit:
        shown.append(f"... {len(row) - limit} more")
    return f"({', '.join(shown)})"


def _format(value: Fraction) -> str:
    decimal = f"{float(value):.4g}"
    return decimal if Fraction(decimal) == value else str(value)
