# SPDX-License-Identifier: Apache-2.0
"""Cases with several drafts at one position, and with trees of drafts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np

from specverify.inputs.cases import Case
from specverify.inputs.models import FloatArray, IntArray
from specverify.laws.proposals import DRAFTS, NO_TOKEN, check_tree, children, depth

_NONE: Final = NO_TOKEN
_PAIR: Final = 2


@dataclass(frozen=True)
class TreeCase(Case):
    """A tree of drafts.

    Attributes
    ----------
    parents
        Shape: node 0 is the root, every other node comes behind its parent. k is the
        depth.
    drafts
        How the children of a node are drawn: one of `DRAFTS`.
    """

    parents: tuple[int, ...] = (_NONE, 0)
    drafts: str = "iid"

    def __post_init__(self) -> None:
        """Refuse what no implementation could be blamed for."""
        Case.__post_init__(self)
        check_tree(self.parents)
        if self.drafts not in DRAFTS:
            msg = f"drafts is {self.drafts!r}; allowed are {', '.join(DRAFTS)}"
            raise ValueError(msg)
        odd = [len(nodes) for nodes in self.children if len(nodes) not in (0, _PAIR)]
        if self.drafts == "hub" and odd:
            msg = f"drafts is 'hub' and a node has {odd[0]} children; allowed are pairs"
            raise ValueError(msg)
        if self.k != depth(self.parents):
            msg = f"k is {self.k}; the tree {self.parents} has depth {depth(self.parents)}"
            raise ValueError(msg)

    @cached_property
    def children(self) -> tuple[tuple[int, ...], ...]:
        """Children of every node, in order."""
        nodes = range(len(self.parents))
        return tuple(tuple(children(self.parents, node)) for node in nodes)

    @cached_property
    def paths(self) -> tuple[tuple[int, ...], ...]:
        """Nodes from below the root down to every node."""
        paths: list[tuple[int, ...]] = [()]
        for node, parent in enumerate(self.parents[1:], start=1):
            paths.append((*paths[parent], node))
        return tuple(paths)

    @property
    def width(self) -> int:
        """Largest number of children of a node."""
        return max(len(nodes) for nodes in self.children)

    @property
    def columns(self) -> int:
        """Rows of probabilities that a step reads."""
        return 2 * len(self.parents)

    def behind(self, tokens: IntArray, prefixes: IntArray, node: int) -> IntArray:
        """Text behind which a node's children stand: int64 [batch, length].

        Tokens of unused nodes read as 0: no law is asked for there.
        """
        path = tokens[:, list(self.paths[node])]
        return np.concatenate([prefixes, np.maximum(path, 0)], axis=1)

    def draw_drafts(self, prefixes: IntArray, rng: np.random.Generator) -> IntArray:
        """Draw a tree: int64 [batch, nodes], -1 for unused nodes.

        Entry 0, the root, is the last committed token, or 0 where there is none.
        """
        tokens = np.full((len(prefixes), len(self.parents)), _NONE, np.int64)
        tokens[:, 0] = prefixes[:, -1] if prefixes.shape[1] else 0
        for node, below in enumerate(self.children):
            if below:
                q = self.draft.probs(self.behind(tokens, prefixes, node))
                slots = draw_slots(q, len(below), self.drafts, rng)
                used = tokens[:, node, None] >= 0
                tokens[:, list(below)] = np.where(used, slots, _NONE)
        return tokens

    @property
    def shape(self) -> str:
        """The drafts in words."""
        return f"tree {list(self.parents)}, drafts {self.drafts.replace('_', ' ')}"

    def to_json(self) -> dict[str, Any]:
        """Write as JSON data."""
        return {
            **Case.to_json(self),
            "parents": list(self.parents),
            "drafts": self.drafts,
        }

    @classmethod
    def _fields(cls, data: Mapping[str, Any]) -> dict[str, Any]:
        return {
            **Case._fields(data),
            "parents": tuple(data["parents"]),
            "drafts": str(data["drafts"]),
        }


@dataclass(frozen=True)
class MultidraftCase(TreeCase):
    """Several drafts at one position: the leaves of a tree of depth 1.

    A step emits one token, and there is no bonus token.
    """

    @property
    def n(self) -> int:
        """Number of drafts."""
        return len(self.parents) - 1

    @property
    def emits(self) -> int:
        """Most tokens that a step emits."""
        return 1

    @property
    def columns(self) -> int:
        """Rows of probabilities that a step reads."""
        return 2

    def draw_drafts(self, prefixes: IntArray, rng: np.random.Generator) -> IntArray:
        """Draw the slots: int64 [batch, n], -1 for an empty one."""
        return draw_slots(self.draft.probs(prefixes), self.n, self.drafts, rng)

    @property
    def shape(self) -> str:
        """The drafts in words."""
        return f"n = {self.n} drafts, {self.drafts.replace('_', ' ')}"


def tree_case(case: Case, parents: tuple[int, ...], drafts: str) -> TreeCase:
    """The models of a case, with a tree of drafts."""
    return TreeCase(
        target=case.target,
        draft=case.draft,
        k=depth(parents),
        dtype=case.dtype,
        name=case.name,
        parents=parents,
        drafts=drafts,
    )


def multidraft_case(case: Case, n: int, drafts: str) -> MultidraftCase:
    """The first position of a case, with n drafts."""
    return MultidraftCase(
        target=case.target,
        draft=case.draft,
        k=1,
        dtype=case.dtype,
        name=case.name,
        parents=(_NONE, *[0] * n),
        drafts=drafts,
    )


def even_tree(widths: tuple[int, ...]) -> tuple[int, ...]:
    """Shape in which every node of depth d has ``widths[d]`` children."""
    parents, level = [_NONE], [0]
    for width in widths:
        below = [node for node in level for _ in range(width)]
        level = list(range(len(parents), len(parents) + len(below)))
        parents += below
    return tuple(parents)


def separate_paths(paths: int, depth: int) -> tuple[int, ...]:
    """Shape of paths that share the root only."""
    return (_NONE, *(n if n % depth else 0 for n in range(paths * depth)))


def draw_slots(
    q: FloatArray, n: int, drafts: str, rng: np.random.Generator
) -> IntArray:
    """Draw n drafts a row from q, float64 [batch, vocab]: int64 [batch, n].

    The ways are those of `specverify.laws.proposals.draft_law`; -1 fills slots for which
    q has no token.
    """
    if drafts == "iid":
        cdf = q.cumsum(axis=1)
        u = rng.random((len(q), n)) * cdf[:, -1:]
        return np.stack([_inverse_cdf(q, cdf, u[:, i]) for i in range(n)], axis=1)
    if drafts == "without_replacement":
        race = rng.exponential(size=q.shape)
        with np.errstate(divide="ignore"):
            return _lowest(np.where(q > 0, race / q, np.inf), n)
    if drafts == "deterministic":
        return _lowest(np.where(q > 0, -q, np.inf), n)
    fixed = _lowest(np.where(q > 0, -q, np.inf), n - 1 if drafts == "greedy" else 1)
    rest = q.copy()
    for slot in fixed.T:
        rest[np.arange(len(q))[slot >= 0], slot[slot >= 0]] = 0
    other = _draw(rest, rng)[:, None]
    if drafts == "greedy":
        return np.concatenate([fixed, other], axis=1)
    first = _draw(q, rng)[:, None]  # hub: q itself, then the hub or another token
    return np.concatenate([first, np.where(first == fixed, other, fixed)], axis=1)


def _draw(weights: FloatArray, rng: np.random.Generator) -> IntArray:
    cdf = weights.cumsum(axis=1)
    token = _inverse_cdf(weights, cdf, rng.random(len(cdf)) * cdf[:, -1])
    token[cdf[:, -1] <= 0] = _NONE
    return token


def _inverse_cdf(weights: FloatArray, cdf: FloatArray, u: FloatArray) -> IntArray:
    """First token whose cumulative weight exceeds u, never one of weight 0."""
    reached = (cdf > u[:, None]) & (weights > 0)
    last = weights.shape[1] - 1 - (weights > 0)[:, ::-1].argmax(axis=1)
    first = reached.argmax(axis=1)
    token: IntArray = np.where(reached.any(axis=1), first, last).astype(np.int64)
    return token


def _lowest(score: FloatArray, n: int) -> IntArray:
    """The n lowest finite scores a row, of ties the lowest ids; -1 where none is left."""
    order = np.argsort(score, axis=1, kind="stable")[:, :n]
    finite = np.isfinite(np.take_along_axis(score, order, axis=1))
    ids = np.where(finite, order, _NONE)
    slots: IntArray = np.full((len(ids), n), _NONE, np.int64)
    slots[:, : ids.shape[1]] = ids
    return slots
