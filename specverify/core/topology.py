# SPDX-License-Identifier: Apache-2.0
"""The shape of a draft tree, and the encodings of it that engines use.

A tree is given by `parents`: node 0 is the root, the last committed token, with parent -1;
every other node comes behind its parent. The other encodings are those of EAGLE and of
SGLang (`retrieve_index`; `next_token` and `next_sibling`) and of Medusa (`choices`).
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import torch
from torch import Tensor

_NONE = -1


@dataclass(frozen=True)
class Topology:
    """Shape of a tree.

    Attributes
    ----------
    parents
        Parent of every node, -1 for the root, node 0.
    """

    parents: tuple[int, ...]

    @classmethod
    def of(cls, parents: Sequence[int] | Tensor) -> Topology:
        """Read a shape, and check it.

        Parameters
        ----------
        parents
            [nodes], whole numbers; a tensor should be on the CPU, since reading it waits
            for its device.

        Raises
        ------
        ValueError
            No node, several roots, a cycle, or a node that comes before its parent.
        TypeError
            Something else than whole numbers.
        """
        try:
            values = parents.tolist() if isinstance(parents, Tensor) else list(parents)
            return _checked(tuple(map(operator.index, values)))
        except TypeError as error:
            msg = f"parents is {parents}; allowed are whole numbers, one for each node"
            raise TypeError(msg) from error

    @cached_property
    def children(self) -> tuple[tuple[int, ...], ...]:
        """Children of every node, in order."""
        found: list[list[int]] = [[] for _ in self.parents]
        for node, parent in enumerate(self.parents[1:], start=1):
            found[parent].append(node)
        return tuple(tuple(nodes) for nodes in found)

    @cached_property
    def depths(self) -> tuple[int, ...]:
        """Number of edges from the root to every node."""
        depths = [0]
        for parent in self.parents[1:]:
            depths.append(depths[parent] + 1)
        return tuple(depths)

    @property
    def nodes(self) -> int:
        """Number of nodes, root included."""
        return len(self.parents)

    @property
    def depth(self) -> int:
        """Largest depth: the most drafts that one step can accept."""
        return max(self.depths)

    @property
    def width(self) -> int:
        """Largest number of children of a node."""
        return max(len(nodes) for nodes in self.children)

    def path(self, node: int) -> tuple[int, ...]:
        """Nodes from below the root down to `node`."""
        nodes: list[int] = []
        while node:
            nodes.append(node)
            node = self.parents[node]
        return tuple(reversed(nodes))

    @property
    def leaves(self) -> tuple[int, ...]:
        """Nodes without children, in order."""
        return tuple(node for node in range(self.nodes) if not self.children[node])

    def child_table(self, device: torch.device) -> Tensor:
        """Children of every node, padded with -1: int64 [nodes, width]."""
        width = max(self.width, 1)
        rows = [[*nodes, *[_NONE] * (width - len(nodes))] for nodes in self.children]
        return on_device(rows, device)

    def path_table(self, device: torch.device) -> Tensor:
        """Path to every node, padded with -1: int64 [nodes, depth]."""
        paths = [self.path(node) for node in range(self.nodes)]
        rows = [[*path, *[_NONE] * (self.depth - len(path))] for path in paths]
        return on_device(rows, device).view(self.nodes, self.depth)

    def retrieve_index(self) -> list[list[int]]:
        """Write as EAGLE does: nodes of every path from root to leaf, padded with -1."""
        paths = [[0, *self.path(leaf)] for leaf in self.leaves]
        return [[*p, *[_NONE] * (self.depth + 1 - len(p))] for p in paths]

    def linked(self) -> tuple[list[int], list[int]]:
        """Write as SGLang does: first child and next sibling of every node, -1 for none."""
        next_token, next_sibling = [_NONE] * self.nodes, [_NONE] * self.nodes
        for parent, nodes in enumerate(self.children):
            if nodes:
                next_token[parent] = nodes[0]
            for node, sibling in itertools.pairwise(nodes):
                next_sibling[node] = sibling
        return next_token, next_sibling

    def choices(self) -> list[tuple[int, ...]]:
        """Write as Medusa does: for every node but the root, its ranks on the way down."""
        rank = {
            node: place for nodes in self.children for place, node in enumerate(nodes)
        }
        paths = (self.path(node) for node in range(1, self.nodes))
        return [tuple(rank[node] for node in path) for path in paths]


def on_device(rows: Sequence[object], device: torch.device) -> Tensor:
    """Put whole numbers on a device without waiting for it."""
    return torch.tensor(rows, dtype=torch.int64).to(device, non_blocking=True)


def parents_from_retrieve_index(rows: Iterable[Sequence[int]]) -> tuple[int, ...]:
    """Read EAGLE's encoding: node indices along every path, -1 behind the leaf.

    Raises
    ------
    ValueError
        A path that does not start at node 0 or has a gap, a node with two parents, or
        one left out.
    """
    parents: dict[int, int] = {0: _NONE}
    for row in rows:
        nodes = [int(node) for node in row]
        path = list(itertools.takewhile(lambda node: node >= 0, nodes))
        if path[:1] != [0] or max(nodes[len(path) :], default=_NONE) >= 0:
            msg = (
                f"retrieve_index holds the path {nodes}; every path starts at node 0 and "
                "has -1 behind its leaf only"
            )
            raise ValueError(msg)
        for parent, node in itertools.pairwise(path):
            _set_parent("retrieve_index", parents, node, parent)
    return _dense("retrieve_index", parents)


def parents_from_linked(
    next_token: Sequence[int], next_sibling: Sequence[int]
) -> tuple[int, ...]:
    """Read SGLang's encoding: first child and next sibling of every node, -1 for none.

    Raises
    ------
    ValueError
        Different lengths, an index out of range, a node with two parents, or one that
        the root does not reach.
    """
    nodes = len(next_token)
    if len(next_sibling) != nodes:
        msg = f"next_sibling has {len(next_sibling)} nodes, next_token {nodes}"
        raise ValueError(msg)
    parents: dict[int, int] = {0: _NONE}
    for parent in range(nodes):
        node = int(next_token[parent])
        while node != _NONE:
            if not 0 <= node < nodes:
                msg = (
                    f"next_token or next_sibling holds {node}; there are {nodes} nodes"
                )
                raise ValueError(msg)
            if node in parents:
                msg = f"next_token and next_sibling reach node {node} twice"
                raise ValueError(msg)
            parents[node] = parent
            node = int(next_sibling[node])
    found = _dense("next_token and next_sibling", parents)
    if len(found) != nodes:
        msg = f"next_token names {len(found)} of {nodes} nodes; the root reaches all"
        raise ValueError(msg)
    return found


def parents_from_choices(choices: Iterable[Sequence[int]]) -> tuple[int, ...]:
    """Read Medusa's encoding: each node by the ranks on its way, parents before children.

    Raises
    ------
    ValueError
        A node whose parent, or whose elder sibling, is not listed before it.
    """
    index: dict[tuple[int, ...], int] = {(): 0}
    parents = [_NONE]
    for choice in map(tuple, choices):
        elder = (*choice[:-1], choice[-1] - 1) if choice and choice[-1] else ()
        if (
            not choice
            or choice in index
            or choice[:-1] not in index
            or elder not in index
        ):
            msg = (
                f"choices holds {choice}; each node is listed once, behind its parent "
                "and its elder siblings"
            )
            raise ValueError(msg)
        index[choice] = len(parents)
        parents.append(index[choice[:-1]])
    return tuple(parents)


def parents_of_paths(paths: int, depth: int) -> tuple[int, ...]:
    """Shape of separate paths from the root: node ``1 + i depth`` begins path i."""
    return (_NONE, *(node if node % depth else 0 for node in range(paths * depth)))


@lru_cache(maxsize=256)
def _checked(parents: tuple[int, ...]) -> Topology:
    if not parents or parents[0] != _NONE:
        found = parents[0] if parents else "empty"
        msg = f"parents[0] is {found}; node 0 is the root, its parent -1"
        raise ValueError(msg)
    for node, parent in enumerate(parents[1:], start=1):
        if parent == _NONE:
            msg = f"parents[{node}] is -1; a tree has one root, node 0"
            raise ValueError(msg)
        if not 0 <= parent < node:
            msg = (
                f"parents[{node}] is {parent}; allowed is 0 to {node - 1}: a node comes "
                "behind its parent, which also rules out cycles"
            )
            raise ValueError(msg)
    return Topology(parents)


def _set_parent(name: str, parents: dict[int, int], node: int, parent: int) -> None:
    if parents.setdefault(node, parent) != parent:
        msg = f"{name} gives node {node} the parents {parents[node]} and {parent}"
        raise ValueError(msg)


def _dense(name: str, parents: dict[int, int]) -> tuple[int, ...]:
    missing = set(range(max(parents) + 1)) - set(parents)
    if missing:
        msg = f"{name} leaves out node {min(missing)}"
        raise ValueError(msg)
    return Topology.of([parents[node] for node in range(len(parents))]).parents
