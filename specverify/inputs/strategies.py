# SPDX-License-Identifier: Apache-2.0
"""Hypothesis strategies for inputs that can show defects.

An input with a one-token residual, or with equal rows, hides most known defects. So the
structure is built, not filtered: p and q share a common part m and differ by e on some
tokens and by f on others,

    p = m + e,    q = m + f,    e f = 0,    sum e = sum f,

which makes ``e = (p - q)+`` the residual, token by token. A zero in m is a token with
p = 0 or q = 0, a token in neither part is a tie. Everything shrinks towards few tokens,
few drafts and small whole-number weights.
"""

from __future__ import annotations

from fractions import Fraction

from hypothesis import strategies as st

from specverify.inputs.cases import Case
from specverify.inputs.models import Row, ToyModel
from specverify.inputs.trees import (
    MultidraftCase,
    TreeCase,
    multidraft_case,
    separate_paths,
    tree_case,
)

Pair = tuple[Row, Row]
_LARGEST_WEIGHT = 6
_UNBOUNDED = 10**6


@st.composite
def distributions(draw: st.DrawFn, vocab: int) -> Row:
    """Distributions over `vocab` tokens with small whole-number weights.

    Zeros, ties and one-hot rows occur. Shrinks towards the uniform distribution.

    Parameters
    ----------
    draw
        Supplied by Hypothesis.
    vocab
        Number of tokens, at least 1.
    """
    weight = st.integers(0, _LARGEST_WEIGHT)
    weights = draw(st.lists(weight, min_size=vocab, max_size=vocab))
    return normalised(weights if any(weights) else [1] * vocab)


@st.composite
def distribution_pairs(draw: st.DrawFn, vocab: int) -> Pair:
    """Pairs (p, q) with p != q and, from 3 tokens on, an informative residual.

    The residual ``(p - q)+`` then has at least two tokens, all of different mass, and at
    least one token has p < q.

    Parameters
    ----------
    draw
        Supplied by Hypothesis.
    vocab
        Number of tokens, at least 2.
    """
    if vocab < 2:
        msg = f"vocab is {vocab}; a pair of different distributions needs 2 or more"
        raise ValueError(msg)
    over, under = _roles(draw, vocab)
    size = len(over)
    masses = st.integers(1, 2 * size + 2)
    e = draw(st.lists(masses, min_size=size, max_size=size, unique=True))
    f = draw(st.lists(st.integers(1, 3), min_size=len(under), max_size=len(under)))
    weight = st.integers(0, _LARGEST_WEIGHT)
    common = draw(st.lists(weight, min_size=vocab, max_size=vocab))
    scale, total = sum(f), sum(e)
    p = [m * scale for m in common]
    q = list(p)
    for token, mass in zip(over, e, strict=True):
        p[token] += mass * scale
    for token, share in zip(under, f, strict=True):
        q[token] += share * total
    return normalised(p), normalised(q)


@st.composite
def model_pairs(
    draw: st.DrawFn, vocab: int, memory: int = 1
) -> tuple[ToyModel, ToyModel]:
    """Target and draft whose laws depend on the last `memory` tokens.

    Every row is rotated so that, in as many of the two models as can be, it differs from
    the rows before it.

    Parameters
    ----------
    draw
        Supplied by Hypothesis.
    vocab
        Number of tokens, at least 2.
    memory
        How many tokens back the laws look.
    """
    need = sum(vocab**length for length in range(memory + 1))
    pairs = draw(
        st.lists(distribution_pairs(vocab), min_size=need, max_size=need).map(_distinct)
    )
    target, draft = zip(*pairs, strict=True)
    return ToyModel(tuple(target), memory), ToyModel(tuple(draft), memory)


@st.composite
def cases(
    draw: st.DrawFn,
    *,
    min_vocab: int = 2,
    max_vocab: int = 8,
    min_k: int = 1,
    max_k: int = 5,
    max_cells: int = 81,
) -> Case:
    """Cases of one chain step whose joint law has at most `max_cells` outcomes.

    Parameters
    ----------
    draw
        Supplied by Hypothesis.
    min_vocab, max_vocab
        Range of the vocabulary.
    min_k, max_k
        Range of the draft length.
    max_cells
        Largest allowed ``vocab ** (k + 1)``; bounds the draws that a test needs.
    """
    if min_vocab ** (min_k + 1) > max_cells:
        msg = (
            f"max_cells is {max_cells}; vocab {min_vocab} with k = {min_k} needs "
            f"{min_vocab ** (min_k + 1)}"
        )
        raise ValueError(msg)
    while max_vocab ** (min_k + 1) > max_cells:
        max_vocab -= 1
    vocab = draw(st.integers(min_vocab, max_vocab))
    longest = min_k
    while longest < max_k and vocab ** (longest + 2) <= max_cells:
        longest += 1
    k = draw(st.integers(min_k, longest))
    target, draft = draw(model_pairs(vocab, memory=min(k, 1)))
    return Case(target, draft, k)


@st.composite
def multidraft_cases(
    draw: st.DrawFn,
    *,
    drafts: str,
    min_n: int = 1,
    max_n: int = 4,
    max_vocab: int = 6,
    unused: bool = True,
) -> MultidraftCase:
    """Cases of several drafts at one position.

    Parameters
    ----------
    draw
        Supplied by Hypothesis.
    drafts
        How they are drawn, see `specverify.inputs.trees.draw_slots`.
    min_n, max_n
        Range of the number of drafts; "hub" takes 2.
    max_vocab
        Largest vocabulary, at least 2.
    unused
        Whether q may have fewer tokens than there are slots.
    """
    vocab = draw(st.integers(2, max_vocab))
    p, q = draw(distribution_pairs(vocab))
    most = max_n if unused else min(max_n, _fewest(drafts, q))
    n = 2 if drafts == "hub" else draw(st.integers(min(min_n, most), most))
    return multidraft_case(Case(ToyModel((p,)), ToyModel((q,)), k=1), n, drafts)


@st.composite
def tree_cases(
    draw: st.DrawFn,
    *,
    drafts: str,
    max_nodes: int = 7,
    max_cells: int = 81,
    max_depth: int | None = None,
    unused: bool = True,
) -> TreeCase:
    """Cases of draft trees whose joint law has at most `max_cells` outcomes.

    Parameters
    ----------
    draw
        Supplied by Hypothesis.
    drafts
        How the children of a node are drawn, or "paths": independent paths that share
        the root only.
    max_nodes
        Largest tree, root included.
    max_cells
        Largest allowed ``vocab ** (depth + 1)``.
    max_depth
        Largest depth; None leaves it to `max_cells`.
    unused
        Whether q may have fewer tokens than a node has children.
    """
    vocab = draw(st.integers(2, 4))
    deepest = max(d for d in range(1, 6) if vocab ** (d + 1) <= max_cells)
    deepest = min(deepest, max_depth or deepest)
    target, draft = draw(model_pairs(vocab, memory=1))
    if drafts == "paths":
        depth = draw(st.integers(1, min(deepest, max_nodes - 1)))
        paths = draw(st.integers(1, (max_nodes - 1) // depth))
        return tree_case(Case(target, draft, 1), separate_paths(paths, depth), "iid")
    fewest = min(_fewest(drafts, row) for row in draft.rows)
    width = max_nodes if unused else fewest
    parents, depths, children = [-1], [0], [0]
    for _ in range(draw(st.integers(1, max_nodes - 1))):
        free = [
            node
            for node, depth in enumerate(depths)
            if depth < deepest and children[node] < width
        ]
        if not free:  # narrow rows and a small depth leave room for few nodes
            break
        parent = draw(st.sampled_from(free))
        parents.append(parent)
        depths.append(depths[parent] + 1)
        children.append(0)
        children[parent] += 1
    return tree_case(Case(target, draft, 1), tuple(parents), drafts)


def _fewest(drafts: str, q: Row) -> int:
    """Most drafts that a row can give without leaving a slot empty."""
    return _UNBOUNDED if drafts == "iid" else sum(mass > 0 for mass in q)


def normalised(weights: list[int]) -> Row:
    """Divide whole-number weights by their sum."""
    total = sum(weights)
    return tuple(Fraction(weight, total) for weight in weights)


def _roles(draw: st.DrawFn, vocab: int) -> tuple[list[int], list[int]]:
    """Tokens with p > q (two or more if there is room) and with p < q (one or more)."""
    fixed = ["over", "over", "under"] if vocab > 2 else ["over", "under"]
    rest = vocab - len(fixed)
    role = st.sampled_from(["tie", "under", "over"])
    roles = fixed + draw(st.lists(role, min_size=rest, max_size=rest))
    turn = draw(st.integers(0, vocab - 1))
    turned = roles[turn:] + roles[:turn]
    over = [token for token, name in enumerate(turned) if name == "over"]
    under = [token for token, name in enumerate(turned) if name == "under"]
    return over, under


def _distinct(pairs: list[Pair]) -> list[Pair]:
    """Rotate each pair so that both its rows, or one, differ from all rows before."""
    seen_p: set[Row] = set()
    seen_q: set[Row] = set()
    result = []
    for p, q in pairs:
        turns = [(p[t:] + p[:t], q[t:] + q[:t]) for t in range(len(p))]
        chosen = max(turns, key=lambda x: (x[0] not in seen_p) + (x[1] not in seen_q))
        seen_p.add(chosen[0])
        seen_q.add(chosen[1])
        result.append(chosen)
    return result
