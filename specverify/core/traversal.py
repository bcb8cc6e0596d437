# SPDX-License-Identifier: Apache-2.0
"""Trees of drafts from the leaves up: traversal, and the best of several paths.

Both carry the weight of block verification along the tree, so that a path is judged as a
whole: on a chain they are block verification. Arguments and results are those of
`specverify.core.tree`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specverify.core.block import verify_opened_block
from specverify.core.multidraft import token_masses, without
from specverify.core.sampling import inverse_cdf
from specverify.core.selection import ranked
from specverify.core.steps import PLACEHOLDER_TOKEN_ID, ChainStep
from specverify.core.topology import on_device
from specverify.core.tree import TreeResult, TreeStep


def verify_tree_traversal(
    token_ids: Tensor,
    parents: Sequence[int] | Tensor,
    draft_probs: Tensor,
    target_probs: Tensor,
    *,
    generator: torch.Generator | None = None,
    uniforms: Tensor | None = None,
    validate: bool | None = None,
) -> TreeResult:
    """Traversal verification: accept a whole path, or cut off its last node.

    Parameters
    ----------
    token_ids, parents, draft_probs, target_probs, generator, uniforms, validate
        As in `specverify.core.tree.verify_tree_recursive`: children drawn without
        replacement, in order.

    Returns
    -------
    TreeResult
        Tokens, their number and the accepted nodes.

    Raises
    ------
    ValueError, TypeError
        A bad argument, siblings with equal tokens included: the message names it, what
        was found and what is allowed.

    Notes
    -----
    Every node has the weight ``min(1, w p(x)/q(x))`` with w, p and q those of its parent.
    The first leaf is accepted with its weight. Otherwise it is cut off and its parent goes
    on with ``S = sum (w p - q)+``, weight ``S / (S + 1 - w)``, p the normalised
    ``(w p - q)+`` and q without the token; without children, it is a leaf itself. The root
    accepts always. Takes O(nodes vocab) a sequence, one node after the other.

    References
    ----------
    Weng et al.: Traversal verification for speculative tree decoding, NeurIPS 2025.
    """
    step = TreeStep.open(
        token_ids,
        parents,
        draft_probs,
        target_probs,
        generator=generator,
        uniforms=uniforms,
        validate=validate,
        distinct=True,
    )
    return _Traversal(step).run()


class _Traversal:
    """One walk over the tree, for all rows at once: leaves first, in order."""

    def __init__(self, step: TreeStep) -> None:
        self.step = step
        first = step.token_ids[:, 0]
        self.stop = torch.full_like(first, PLACEHOLDER_TOKEN_ID)  # accepted node
        self.weights = torch.zeros_like(step.target_probs[:, 0], dtype=torch.float64)

    def run(self) -> TreeResult:
        """Visit all nodes and lay out the answer."""
        one = torch.ones_like(self.weights[:, 0])
        self._visit(0, one, torch.ones_like(self.stop, dtype=torch.bool))
        token = inverse_cdf(self.weights, self.step.uniforms[:, 0])
        return self.step.finish(self.stop, token)

    def _visit(self, node: int, w: Tensor, present: Tensor) -> None:
        """Judge the subtree of a node whose weight is w, in the rows that have it."""
        step = self.step
        p, q = self._rows(node)
        for child in step.topology.children[node]:
            used = present & (step.token_ids[:, child] >= 0)
            token = step.token_ids[:, child].clamp_min(0)
            mass, drafted = token_masses(p, q, token)
            self._visit(child, (w * mass / drafted).clamp_max(1), used)
            cut = used & (self.stop < 0)
            w, p, q = _cut_off(w, p, q, token, cut)
        passed = step.uniforms[:, node] < w if node else present
        here = present & (self.stop < 0) & passed
        self.stop = torch.where(here, node, self.stop)
        self.weights = torch.where(here.unsqueeze(1), p, self.weights)

    def _rows(self, node: int) -> tuple[Tensor, Tensor]:
        step = self.step
        p = step.target_probs[:, node].to(torch.float64)
        if not step.topology.children[node]:
            return p, p  # nothing was drawn behind a leaf
        assert step.draft_probs is not None  # noqa: S101 - checked on opening
        return p, step.draft_probs[:, node].to(torch.float64)


def _cut_off(
    w: Tensor, p: Tensor, q: Tensor, token: Tensor, cut: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Weight, p and q of a node behind the loss of a child, in the rows of `cut`."""
    left = (w.unsqueeze(1) * p - q).clamp_min(0)  # [batch, vocab]
    total = left.sum(dim=1)
    short = 1 - w
    weight = torch.where(short <= 0, 1.0, total / (total + short))
    rest = torch.where(total.unsqueeze(1) > 0, left / total.unsqueeze(1), p)
    rows = cut.unsqueeze(1)
    return (
        torch.where(cut, weight, w),
        torch.where(rows, rest, p),
        torch.where(rows, without(q, token), q),
    )


def verify_tree_paths(
    token_ids: Tensor,
    parents: Sequence[int] | Tensor,
    draft_probs: Tensor,
    target_probs: Tensor,
    *,
    generator: torch.Generator | None = None,
    uniforms: Tensor | None = None,
    validate: bool | None = None,
) -> TreeResult:
    """Greedy multi-path block verification: block-verify the best of independent paths.

    Parameters
    ----------
    token_ids, draft_probs, target_probs, generator, validate
        As in `specverify.core.tree.verify_tree_recursive`, except that paths are drawn
        independently and may share tokens.
    parents
        Separate paths of one length from the root: `parents_of_paths`.
    uniforms
        [batch, nodes] in [0, 1): entry 0 draws the last token, entries 1 to depth test
        the prefixes of the chosen path.

    Returns
    -------
    TreeResult
        Tokens, their number and the accepted nodes.

    Raises
    ------
    ValueError, TypeError
        A bad argument: the message names it, what was found and what is allowed.

    Notes
    -----
    Paths compete token by token: the larger p/q wins, of ties the lower id. That one
    strict order also gives the law of the winner: with A the mass of paths that lose to
    all of a prefix's, j the mass of the prefix and F(x) that of the tokens ranked below x,

        q'(x) = q(x) g(A + j F, j q) / g(A, j),   g(a, b) = sum_i (a + b)^i a^(K-1-i),

    summed over i < K for K paths; written so, nothing cancels. The winner is verified as
    a block against q'. An order that breaks ties in another way than the choice is lossy.

    References
    ----------
    Thomas, Pal: Greedy multi-path block verification, 2026.
    """
    step = TreeStep.open(
        token_ids,
        parents,
        draft_probs,
        target_probs,
        generator=generator,
        uniforms=uniforms,
        validate=validate,
    )
    _check_paths(step, validate=validate)
    depth = step.topology.depth
    if not depth:  # the root alone
        root = torch.zeros_like(step.rows)
        return step.finish(root, inverse_cdf(step.p(root), step.uniforms[:, 0]))
    nodes = _path_nodes(step)
    chosen, skewed = _best_path(step, nodes)
    along = torch.cat([torch.zeros_like(chosen[:, :1]), chosen], dim=1)
    tests, last = step.uniforms[:, 1 : depth + 1], step.uniforms[:, :1]
    block = ChainStep(
        draft_token_ids=token_ids.gather(1, chosen),
        draft_probs=skewed,
        target_probs=target_probs[step.rows.unsqueeze(1), along],
        uniforms=torch.cat([tests, last], dim=1),
        num_draft_tokens=torch.full_like(step.rows, depth),
        used=torch.ones_like(chosen, dtype=torch.bool),
    )
    result = verify_opened_block(block)
    place = torch.arange(depth, device=chosen.device)
    kept = torch.where(
        place < result.num_accepted.unsqueeze(1), chosen, PLACEHOLDER_TOKEN_ID
    )
    return TreeResult(result.output_token_ids, result.num_accepted, kept)


def _check_paths(step: TreeStep, *, validate: bool | None) -> None:
    """Refuse what other trees may have: no draft law, and nodes that are not used."""
    if step.draft_probs is None:
        msg = "draft_probs is None; this rule needs the law of the drafts"
        raise TypeError(msg)
    if not (validate if validate is not None else step.token_ids.device.type == "cpu"):
        return
    unused = step.token_ids[:, 1:] < 0
    if bool(unused.any()):
        row, node = unused.nonzero()[0].tolist()
        msg = (
            f"token_ids[{row}, {node + 1}] is {int(step.token_ids[row, node + 1])}; a "
            "path from an independent draw has a token at every node, 0 and more"
        )
        raise ValueError(msg)


def _path_nodes(step: TreeStep) -> Tensor:
    """Nodes of the separate paths of a tree: int64 [paths, depth]."""
    topology = step.topology
    paths = [topology.path(leaf) for leaf in topology.leaves if leaf]
    apart = all(len(nodes) == 1 for nodes in topology.children[1:] if nodes)
    if not apart or {len(path) for path in paths} - {topology.depth}:
        msg = (
            f"parents is {list(topology.parents)}; allowed are separate paths of one "
            "length from the root, see parents_of_paths"
        )
        raise ValueError(msg)
    table = on_device(paths, step.token_ids.device)
    return table.view(len(paths), topology.depth)


def _best_path(step: TreeStep, nodes: Tensor) -> tuple[Tensor, Tensor]:
    """Nodes [batch, depth] of the path that wins, and its law [batch, depth, vocab]."""
    paths, depth = nodes.shape
    batch = len(step.token_ids)
    running = torch.ones((batch, paths), dtype=torch.bool, device=nodes.device)
    node = torch.zeros_like(step.rows)
    below = torch.zeros_like(step.target_probs[:, 0, 0], dtype=torch.float64)
    mass = torch.ones_like(below)
    rows = [
        step.target_probs.new_empty((batch, 0, step.target_probs.shape[2])).double()
    ]
    for level in range(depth):
        p, q = step.p(node), step.q(node)
        rank, under = ranked(p, q)
        tokens = step.token_ids[:, nodes[:, level]].clamp_min(0)  # [batch, paths]
        place = torch.where(running, rank.gather(1, tokens), rank.shape[1])
        winner = place.argmin(dim=1, keepdim=True)  # [batch, 1]
        token = tokens.gather(1, winner)
        running = running & (tokens == token)
        node = nodes[winner.squeeze(1), level]
        a, j = below.unsqueeze(1), mass.unsqueeze(1)
        here = _difference(a + j * under, j * q, paths)
        rows.append((q * here / _difference(a, j, paths)).unsqueeze(1))
        below = below + mass * under.gather(1, token).squeeze(1)
        mass = mass * q.gather(1, token).squeeze(1)
    # All running paths share their tokens: the nodes of the last winner stand for them.
    return nodes[winner.squeeze(1)], torch.cat(rows, dim=1)


def _difference(a: Tensor, b: Tensor, n: int) -> Tensor:
    """``((a + b)^n - a^n) / b``, without the cancellation."""
    return sum(((a + b) ** i * a ** (n - 1 - i) for i in range(n)), torch.zeros_like(a))
