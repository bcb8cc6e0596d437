# SPDX-License-Identifier: Apache-2.0
"""Laws of drafts: several at one position, and trees of them.

A draw at one position is a tuple of n slots with token ids, in the order in which they
were drawn; slots for which no token is left hold -1.

A tree is a tuple `parents`: node 0 is the root, the parent of node i is ``parents[i] < i``
and ``parents[0] = -1``. The root stands for the end of the prefix and holds no token;
every other node holds a draft. Children of a node are drawn together, in the order of
their numbers, given the path to the node. A node without a token (-1) has no descendants
with one.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Final, TypeAlias

from specverify.laws.distributions import Distribution, Law, Model, Number, Prefix

#: Tokens of the n slots, -1 where there is none.
Slots: TypeAlias = tuple[int, ...]
#: Parent of each node, -1 for the root.
Parents: TypeAlias = tuple[int, ...]
_Draws: TypeAlias = Iterator[tuple[Slots, Number]]

#: Stands in a slot that holds no token.
NO_TOKEN: Final = -1


def draft_law(q: Distribution, n: int, drafts: str) -> Law[Slots]:
    """Law of n drafts.

    Parameters
    ----------
    q
        Law of one draft.
    n
        Number of slots, at least 1.
    drafts
        How they are drawn. ``"iid"``: independently. ``"without_replacement"``: one
        after the other, q restricted to what is left. ``"deterministic"``: the n most
        likely tokens. ``"greedy"``: the n - 1 most likely ones, then one drawn from the
        rest (Hu et al. 2025). ``"hub"``: SpecHub's pairs, of which one is the most
        likely token a: (x, a) with mass q(x), (a, x) with ``q(a) q(x) / (1 - q(a))``.
        Ties go to the lowest id; tokens of probability 0 are never drafted.

    Returns
    -------
    dict
        Probability of each tuple of slots; none is 0.

    Raises
    ------
    ValueError
        Unknown way of drawing, n below 1, or not 2 for ``"hub"``.

    References
    ----------
    Hu et al.: Towards optimal multi-draft speculative decoding, ICLR 2025. Sun et al.:
    SpecHub, EMNLP 2024, arXiv:2411.05289.
    """
    if drafts not in _DRAWS:
        msg = f"drafts is {drafts!r}; allowed are {', '.join(sorted(_DRAWS))}"
        raise ValueError(msg)
    if n < 1 or (drafts == "hub" and n != 2):
        allowed = "2 for hub" if drafts == "hub" else "1 or more"
        msg = f"n is {n}; allowed is {allowed}"
        raise ValueError(msg)
    return {slots: mass for slots, mass in _DRAWS[drafts](q, n) if mass}


def removed(q: Distribution, tokens: Slots) -> list[Number]:
    """Restrict q to the tokens that are not in `tokens`; all zero where none is left."""
    kept = [mass if x not in tokens else mass - mass for x, mass in enumerate(q)]
    total = sum(kept)
    return [mass / total for mass in kept] if total else kept


def most_likely(q: Distribution, n: int) -> Slots:
    """Find the n most likely tokens, on ties the lowest ids; -1 where q has fewer."""
    possible = [x for x, mass in enumerate(q) if mass]
    best = sorted(possible, key=lambda x: (-q[x], x))[:n]
    return (*best, *[NO_TOKEN] * (n - len(best)))


def _iid(q: Distribution, n: int) -> _Draws:
    for slots in itertools.product(range(len(q)), repeat=n):
        yield slots, math.prod(q[x] for x in slots)


def _without_replacement(q: Distribution, n: int) -> _Draws:
    if n == 0 or not any(q):
        yield (NO_TOKEN,) * n, 1
        return
    for token, mass in enumerate(q):
        if mass:
            rest = _without_replacement(removed(q, (token,)), n - 1)
            yield from (((token, *slots), mass * share) for slots, share in rest)


def _deterministic(q: Distribution, n: int) -> _Draws:
    yield most_likely(q, n), 1


def _greedy(q: Distribution, n: int) -> _Draws:
    top = most_likely(q, n - 1)
    rest = removed(q, top)
    if any(rest):
        yield from (((*top, token), mass) for token, mass in enumerate(rest))
    else:
        yield (*top, NO_TOKEN), 1


def _hub(q: Distribution, _n: int) -> _Draws:
    (hub,) = most_likely(q, 1)
    rest = removed(q, (hub,))
    if not any(rest):
        yield (hub, NO_TOKEN), 1
        return
    for token, share in enumerate(rest):
        if token != hub:
            yield (token, hub), q[token]
            yield (hub, token), q[hub] * share


_DRAWS: Final[Mapping[str, Callable[[Distribution, int], _Draws]]] = MappingProxyType(
    {
        "iid": _iid,
        "without_replacement": _without_replacement,
        "deterministic": _deterministic,
        "greedy": _greedy,
        "hub": _hub,
    }
)


#: Ways of drawing several drafts, see `draft_law`.
DRAFTS: Final = tuple(_DRAWS)


# --- trees ----------------------------------------------------------------------------


def tree_drafts(
    draft: Model, parents: Parents, drafts: str
) -> Iterator[tuple[Slots, Number]]:
    """Enumerate the tokens that a draft model puts on a tree.

    Parameters
    ----------
    draft
        Model q; prefixes are relative to the root.
    parents
        The tree.
    drafts
        How the children of a node are drawn, see `draft_law`; "iid" allows equal ones.

    Yields
    ------
    tuple
        Token of every node (-1 at the root and where there is none), probability.

    Raises
    ------
    ValueError
        `parents` is not a tree in the order described above.
    """
    check_tree(parents)
    root = (NO_TOKEN,) * len(parents)
    yield from _grow(draft, parents, drafts, root, 0)


def _grow(
    draft: Model, parents: Parents, drafts: str, tokens: Slots, node: int
) -> Iterator[tuple[Slots, Number]]:
    """Draw the children of `node` and of all nodes behind it."""
    if node == len(parents):
        yield tokens, 1
        return
    below = children(parents, node)
    if not below or (node and tokens[node] == NO_TOKEN):
        yield from _grow(draft, parents, drafts, tokens, node + 1)
        return
    q = draft(path_to(parents, tokens, node))
    for slots, mass in draft_law(q, len(below), drafts).items():
        grown = list(tokens)
        for child, token in zip(below, slots, strict=True):
            grown[child] = token
        for drawn, share in _grow(draft, parents, drafts, tuple(grown), node + 1):
            yield drawn, mass * share


def children(parents: Parents, node: int) -> list[int]:
    """Children of a node, in the order in which their tokens are drawn."""
    return [child for child, parent in enumerate(parents) if parent == node]


def depth(parents: Parents) -> int:
    """Number of edges from the root to the deepest node."""
    depths = [0]
    for parent in parents[1:]:
        depths.append(depths[parent] + 1)
    return max(depths)


def path_to(parents: Parents, tokens: Slots, node: int) -> Prefix:
    """Tokens from the root, exclusive, to a node, inclusive."""
    path: Prefix = ()
    while node:
        path = (tokens[node], *path)
        node = parents[node]
    return path


def check_tree(parents: Parents) -> None:
    """Refuse what is not a tree in topological order.

    Raises
    ------
    ValueError
        The first parent is not -1, or a later one is not the number of an earlier node.
    """
    if not parents or parents[0] != NO_TOKEN:
        msg = f"parents is {parents}; it must begin with -1, the root"
        raise ValueError(msg)
    for node, parent in enumerate(parents[1:], 1):
        if not 0 <= parent < node:
            msg = f"parents[{node}] is {parent}; allowed are 0 to {node - 1}"
            raise ValueError(msg)
