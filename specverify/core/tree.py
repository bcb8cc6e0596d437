# SPDX-License-Identifier: Apache-2.0
"""Trees of drafts: each rule accepts a path from the root, and one token behind it.

A tree has one shape for the whole batch, `parents`, and one token a node and row; see
`specverify.core.topology`. Row ``i`` of `target_probs` is the target's law behind node i,
row ``i`` of `draft_probs` the law from which the *children* of node i were drawn. A token
id of -1 marks a node that a row does not use, with all that hangs below it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from specverify.core.chain import accept_tokens
from specverify.core.multidraft import token_masses, without
from specverify.core.residual import residual_weights
from specverify.core.sampling import draw_uniforms, inverse_cdf
from specverify.core.steps import PLACEHOLDER_TOKEN_ID, assemble
from specverify.core.topology import Topology, on_device
from specverify.core.validation import check_tree


class TreeResult(NamedTuple):
    """What one step on a tree emits.

    Attributes
    ----------
    output_token_ids
        int64 [batch, depth + 1]: tokens of the accepted path, one more token, then -1.
    num_accepted
        int64 [batch]: length of the accepted path.
    accepted_nodes
        int64 [batch, depth]: its nodes, then -1.
    """

    output_token_ids: Tensor
    num_accepted: Tensor
    accepted_nodes: Tensor


@dataclass(frozen=True, slots=True)
class TreeStep:
    """Checked arguments of one step, with defaults filled in.

    Attributes
    ----------
    token_ids
        int64 [batch, nodes]; -1 for an unused node, the root's is not looked at.
    topology
        Shape of the tree.
    draft_probs, target_probs
        [batch, nodes, vocab]; the former may be None.
    uniforms
        [batch, nodes] in [0, 1).
    """

    token_ids: Tensor
    topology: Topology
    draft_probs: Tensor | None
    target_probs: Tensor
    uniforms: Tensor

    @classmethod
    def open(
        cls,
        token_ids: Tensor,
        parents: Sequence[int] | Tensor,
        draft_probs: Tensor | None,
        target_probs: Tensor,
        *,
        generator: torch.Generator | None = None,
        uniforms: Tensor | None = None,
        validate: bool | None = None,
        distinct: bool = False,
    ) -> TreeStep:
        """Check the arguments; `distinct` refuses siblings with equal tokens."""
        topology = Topology.of(parents)
        check_tree(
            token_ids,
            topology.parents,
            draft_probs,
            target_probs,
            uniforms,
            validate=validate,
            distinct=distinct,
        )
        if uniforms is None:
            uniforms = draw_uniforms(
                tuple(token_ids.shape), device=target_probs.device, generator=generator
            )
        return cls(token_ids, topology, draft_probs, target_probs, uniforms)

    @property
    def rows(self) -> Tensor:
        """Index of every row: int64 [batch]."""
        return torch.arange(len(self.token_ids), device=self.token_ids.device)

    def p(self, node: Tensor) -> Tensor:
        """Target law behind one node a row: float64 [batch, vocab]."""
        return self.target_probs[self.rows, node].to(torch.float64)

    def q(self, node: Tensor) -> Tensor:
        """Law of the children of one node a row: float64 [batch, vocab]."""
        assert self.draft_probs is not None  # noqa: S101 - the rules that ask require it
        return self.draft_probs[self.rows, node].to(torch.float64)

    def finish(self, node: Tensor, token: Tensor) -> TreeResult:
        """Lay out the path to `node` [batch], then `token` [batch]."""
        device = self.token_ids.device
        paths = self.topology.path_table(device)[node]  # [batch, depth]
        num_accepted = on_device(self.topology.depths, device)[node]
        tokens = self.token_ids.gather(1, paths.clamp_min(0))
        return TreeResult(assemble(tokens, token, num_accepted), num_accepted, paths)


def verify_tree_target_only(
    token_ids: Tensor,
    parents: Sequence[int] | Tensor,
    draft_probs: Tensor | None,
    target_probs: Tensor,
    *,
    generator: torch.Generator | None = None,
    uniforms: Tensor | None = None,
    validate: bool | None = None,
) -> TreeResult:
    """Walk down the tree along samples of the target.

    Parameters
    ----------
    token_ids
        int64 [batch, nodes]: token of every node, -1 where a row does not use it; the
        root's is not looked at. Any tree that was fixed before this step.
    parents
        [nodes]: shape of the tree, see `specverify.core.topology`.
    draft_probs
        Checked and not used; may be None.
    target_probs
        p: floating [batch, nodes, vocab], the law behind every node.
    generator
        The only source of randomness; None is torch's global generator.
    uniforms
        In place of a generator: [batch, nodes] in [0, 1); entry i draws what follows
        node i.
    validate
        Whether to look at the values; by default on the CPU only.

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
    A node is accepted with probability p of its token, whatever its siblings are, so their
    order does not matter: the rule of EAGLE-2, EAGLE-3 and SGLang for deterministic
    trees, with thresholds of 1. Takes O(depth vocab) a sequence.
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
    table = step.topology.child_table(token_ids.device)
    node = torch.zeros_like(token_ids[:, 0])
    alive, token = node == 0, node
    for _ in range(step.topology.depth + 1):
        u = step.uniforms.gather(1, node.unsqueeze(1)).squeeze(1)
        token = torch.where(alive, inverse_cdf(step.p(node), u), token)
        children = table[node]  # [batch, width]
        ids = torch.where(children >= 0, token_ids.gather(1, children.clamp_min(0)), -1)
        here = ids == token.unsqueeze(1)
        alive = alive & here.any(dim=1)
        chosen = children.gather(1, here.to(torch.int8).argmax(dim=1, keepdim=True))
        node = torch.where(alive, chosen.squeeze(1), node)
    return step.finish(node, token)


def verify_tree_recursive(
    token_ids: Tensor,
    parents: Sequence[int] | Tensor,
    draft_probs: Tensor,
    target_probs: Tensor,
    *,
    generator: torch.Generator | None = None,
    uniforms: Tensor | None = None,
    validate: bool | None = None,
) -> TreeResult:
    """Recursive rejection without replacement at every node, from the root down.

    Parameters
    ----------
    token_ids
        int64 [batch, nodes]: the children of a node drawn one after the other, in order,
        from its row of `draft_probs` without replacement; -1 where a row does not use a
        node. The distinct tokens of independent paths, in order of first appearance, are
        such a tree too.
    draft_probs
        q: floating [batch, nodes, vocab]; row i is the law of the children of node i.
    uniforms
        In place of a generator: [batch, nodes] in [0, 1); entry i tests node i, entry 0
        draws the last token.
    parents, target_probs, generator, validate
        As in `verify_tree_target_only`.

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
    At each node the rule of `specverify.core.multidraft.verify_without_replacement`.
    Takes O(depth width vocab) a sequence.

    References
    ----------
    Chen et al.: Sequoia: Scalable and robust speculative decoding, NeurIPS 2024.
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
    node = torch.zeros_like(token_ids[:, 0])
    alive = node == 0
    weights = step.p(node)
    for _ in range(step.topology.depth):
        chosen, left = _descend(step, node, alive)
        weights = torch.where(alive.unsqueeze(1), left, weights)
        alive = alive & (chosen >= 0)
        node = torch.where(alive, chosen, node)
        weights = torch.where(alive.unsqueeze(1), step.p(node), weights)
    return step.finish(node, inverse_cdf(weights, step.uniforms[:, 0]))


def _descend(step: TreeStep, node: Tensor, alive: Tensor) -> tuple[Tensor, Tensor]:
    """Test the children of a node: the one accepted or -1, and what is left of p."""
    children = step.topology.child_table(node.device)[node]  # [batch, width]
    p, q = step.p(node), step.q(node)
    chosen = torch.full_like(node, PLACEHOLDER_TOKEN_ID)
    for child in children.unbind(dim=1):
        index = child.clamp_min(0).unsqueeze(1)
        token = step.token_ids.gather(1, index).squeeze(1)
        open_ = alive & (chosen < 0) & (child >= 0) & (token >= 0)
        token = torch.where(open_, token, 0)  # for a child that is none: the root's
        u = step.uniforms.gather(1, index).squeeze(1)
        passed = accept_tokens(*token_masses(p, q, token), u)
        chosen = torch.where(open_ & passed, child, chosen)
        rejected = (open_ & ~passed).unsqueeze(1)
        left = residual_weights(p, q)
        p = torch.where(rejected, left / left.sum(dim=1, keepdim=True), p)
        q = torch.where(rejected, without(q, token), q)
    return chosen, p
