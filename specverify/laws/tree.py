# SPDX-License-Identifier: Apache-2.0
"""Exact laws of rules that verify a tree of drafts, by enumeration.

A rule is the law of one verification given the models, the tree and the token of each
node: an iterator of (emitted tokens, probability). Trees are described in
`specverify.laws.proposals`. All rules are lossless with the drafts that `RULES` lists
beside them, and some with others.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from types import MappingProxyType
from typing import Final, TypeAlias

from specverify.laws import block, multidraft, ranks
from specverify.laws.distributions import (
    Distribution,
    Law,
    Model,
    Number,
    Prefix,
    excess,
    residual,
)
from specverify.laws.proposals import (
    NO_TOKEN,
    Parents,
    Slots,
    children,
    path_to,
    removed,
    tree_drafts,
)

#: Emitted tokens and probability; all of them but the last are accepted drafts.
Outcomes: TypeAlias = Iterator[tuple[Prefix, Number]]
#: The law of one verification, given target, draft, tree and the token of each node.
TreeRule: TypeAlias = Callable[[Model, Model, Parents, Slots], Outcomes]


# --- laws of a rule -------------------------------------------------------------------


def output_law(
    rule: TreeRule, target: Model, draft: Model, parents: Parents, drafts: str
) -> Law[Prefix]:
    """Law of the tokens that one step emits: accepted drafts, then one more.

    Parameters
    ----------
    rule
        The verification.
    target, draft
        Models p and q; prefixes are relative to the root.
    parents, drafts
        The tree and how children are drawn, see `tree_drafts`.
    """
    law: Law[Prefix] = {}
    for tokens, mass in tree_drafts(draft, parents, drafts):
        for emitted, share in rule(target, draft, parents, tokens):
            law[emitted] = law.get(emitted, 0) + mass * share
    return law


def expected_accepted(
    rule: TreeRule, target: Model, draft: Model, parents: Parents, drafts: str
) -> Number:
    """Mean number of accepted drafts; parameters as in `output_law`."""
    law = output_law(rule, target, draft, parents, drafts)
    return sum((len(emitted) - 1) * mass for emitted, mass in law.items())


# --- from the root down ---------------------------------------------------------------


def top_down(rule: multidraft.NodeRule) -> TreeRule:
    """Apply a rule for one position at the root, then below the accepted child."""

    def verify(
        target: Model, draft: Model, parents: Parents, tokens: Slots
    ) -> Outcomes:
        yield from _descend(rule, target, draft, parents, tokens, 0, 1)

    return verify


def _descend(
    rule: multidraft.NodeRule,
    target: Model,
    draft: Model,
    parents: Parents,
    tokens: Slots,
    node: int,
    weight: Number,
) -> Outcomes:
    prefix, below = path_to(parents, tokens, node), children(parents, node)
    slots = tuple(tokens[child] for child in below)
    live = any(token != NO_TOKEN for token in slots)
    q = draft(prefix) if live else []
    verify = rule if live else multidraft.target_only
    for token, slot, share in verify(target(prefix), q, slots):
        if slot == NO_TOKEN:
            yield (*prefix, token), weight * share
        else:
            yield from _descend(
                rule, target, draft, parents, tokens, below[slot], weight * share
            )


def target_only(
    target: Model, draft: Model, parents: Parents, tokens: Slots
) -> Outcomes:
    """Draw from p at every node and follow the child that holds the token.

    Lossless on any tree that is fixed before the draws. Of equal children the first is
    followed.
    """
    yield from top_down(multidraft.target_only)(target, draft, parents, tokens)


def recursive(target: Model, draft: Model, parents: Parents, tokens: Slots) -> Outcomes:
    """Test the children one after the other, drawn without replacement, from the root.

    References
    ----------
    Jeon et al.: Recursive speculative decoding, 2024. Chen et al.: Sequoia, NeurIPS 2024.
    """
    yield from top_down(multidraft.without_replacement)(target, draft, parents, tokens)


# --- from the leaves up ---------------------------------------------------------------


def traversal(target: Model, draft: Model, parents: Parents, tokens: Slots) -> Outcomes:
    """Test the leaves first, deleting those that fail; block verification on a chain.

    A node starts with weight ``w = min(1, w' p'(x) / q'(x))`` from its parent's current
    weight and laws, the root with 1. Nodes are tested in post-order, with their current
    weight: accepted, a node emits from its current p. Deleting child x changes its
    parent: with ``S = sum (w p - q)+``, w becomes ``S / (S + 1 - w)``, p the normalised
    ``(w p - q)+``, and x leaves q. Lossless for children drawn without replacement.

    References
    ----------
    Weng et al.: Traversal verification for speculative tree decoding, NeurIPS 2025,
    arXiv:2505.12398.
    """
    yield from _traverse(target, draft, parents, tokens, 0, 1, 1)


def _traverse(
    target: Model,
    draft: Model,
    parents: Parents,
    tokens: Slots,
    node: int,
    w: Number,
    reached: Number,
) -> Generator[tuple[Prefix, Number], None, Number]:
    """Test the subtree of `node`; return the probability that all of it is deleted."""
    prefix = path_to(parents, tokens, node)
    below = [c for c in children(parents, node) if tokens[c] != NO_TOKEN]
    p: Distribution = target(prefix)
    q: Distribution = draft(prefix) if below else []
    for child in below:
        if not reached:
            return 0
        token = tokens[child]
        start = min(1, w * p[token] / q[token])
        reached = yield from _traverse(
            target, draft, parents, tokens, child, start, reached
        )
        scaled = [w * mass for mass in p]
        p, gained = residual(scaled, q), sum(excess(scaled, q))
        w = block.accept_share(gained, w)
        q = removed(q, (token,))
    for token, mass in enumerate(p):
        if mass and w and reached:
            yield (*prefix, token), reached * w * mass
    return reached * (1 - w)


# --- the best of several paths --------------------------------------------------------


def multipath(target: Model, draft: Model, parents: Parents, tokens: Slots) -> Outcomes:
    """Take the best of K independent paths and verify it as a block (GBV).

    Paths are compared token by token, by the ranks of the tokens behind their common
    prefix. That is one strict order, so the law of the best path is known
    (`ranks.best_path`), and block verification with it in the place of q is lossless.

    Parameters
    ----------
    target, draft, parents, tokens
        As in every rule; the tree must be K chains of one length below the root, drawn
        "iid".

    Raises
    ------
    ValueError
        Another tree.

    References
    ----------
    Thomas, Pal: Greedy multi-path block verification, 2026, arXiv:2602.16961.
    """
    paths = _chains(parents, tokens)
    best = max(paths, key=lambda path: ranks.path_ranks(target, draft, path))
    law = ranks.best_path(target, draft, len(paths))
    for emitted, _, mass in block.path_emissions(target, law, best):
        yield emitted, mass


def _chains(parents: Parents, tokens: Slots) -> list[Prefix]:
    """Paths to the leaves, which must be chains of one length below the root."""
    leaves = [node for node in range(len(parents)) if node not in parents]
    paths = [path_to(parents, tokens, leaf) for leaf in leaves]
    inner = sum(len(path) for path in paths)
    if inner != len(parents) - 1 or len({len(path) for path in paths}) != 1:
        msg = f"parents is {parents}; allowed are chains of one length below the root"
        raise ValueError(msg)
    return paths


#: Lossless rules, each with a way of drawing the children that it is for.
RULES: Final[Mapping[str, tuple[TreeRule, str]]] = MappingProxyType(
    {
        "target_only": (target_only, "deterministic"),
        "recursive": (recursive, "without_replacement"),
        "traversal": (traversal, "without_replacement"),
        "multipath": (multipath, "iid"),
    }
)
