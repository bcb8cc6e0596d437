# SPDX-License-Identifier: Apache-2.0
"""T: trees of drafts, and the rules that are lossy by design."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor

from specverify.core import lossy
from specverify.core.chain import verify_chain
from specverify.core.topology import Topology
from specverify.core.traversal import verify_tree_traversal
from specverify.core.tree import (
    TreeResult,
    verify_tree_recursive,
    verify_tree_target_only,
)
from specverify.defects.entry import Defect
from specverify.defects.verifier import cut, from_cdf
from specverify.inputs import witnesses
from specverify.inputs.trees import even_tree, separate_paths, tree_case

#: Trees of depth 2 and 1, drawn without replacement or fixed.
DEEP: Final = tree_case(witnesses.J1, (-1, 0, 0, 1), "without_replacement")
WIDE: Final = tree_case(witnesses.S1, (-1, 0, 0), "without_replacement")
WIDE_FIXED: Final = tree_case(witnesses.C1, (-1, 0, 0), "deterministic")
DEEP_FIXED: Final = tree_case(witnesses.J1, even_tree((2, 2)), "deterministic")
#: Equal siblings, and two independent paths.
WIDE_EQUAL: Final = tree_case(witnesses.C1, (-1, 0, 0), "iid")
PATHS: Final = tree_case(witnesses.J1, separate_paths(2, 2), "iid")
_SUCCESSIVE: Final[dict[str, Any]] = {"drafts": "without_replacement", "ragged": True}
_FIXED: Final[dict[str, Any]] = {"drafts": "deterministic"}

#: One chain out of a tree: draft ids, rows of q and rows of p.
Chain = tuple[Tensor, Tensor, Tensor]


def _chains(ids: Tensor, parents: Any, q: Tensor, p: Tensor) -> list[Chain]:
    """The paths from the root to the leaves, each as a chain."""
    topology = Topology.of(parents)
    found = []
    for leaf in topology.leaves:
        nodes = list(topology.path(leaf))
        found.append((ids[:, nodes], q[:, [0, *nodes[:-1]]], p[:, [0, *nodes]]))
    return found


def _uniforms(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return torch.rand(
        shape, dtype=torch.float64, generator=generator, device=generator.device
    )


def _redrawn_for_each_path(
    ids: Tensor, parents: Any, q: Tensor, p: Tensor, *, generator: torch.Generator
) -> Tensor:
    """Sample the target along every path anew; keep the longest match, then one token."""
    depth = Topology.of(parents).depth
    best = torch.full((len(ids), depth + 1), -1, device=ids.device)
    longest = torch.full_like(ids[:, 0], -1)
    for drafts, _, rows in _chains(ids, parents, q, p):
        drawn = from_cdf(rows, _uniforms(tuple(rows.shape[:2]), generator))
        length = (drawn[:, :-1] == drafts).long().cumprod(dim=1).sum(dim=1)
        emitted = cut(drafts, drawn, length)
        spare = depth + 1 - emitted.shape[1]
        emitted = torch.nn.functional.pad(emitted, (0, spare), value=-1)
        longer = length > longest
        best = torch.where(longer[:, None], emitted, best)
        longest = torch.where(longer, length, longest)
    return best


def _best_path_as_if_only(
    ids: Tensor, parents: Any, q: Tensor, p: Tensor, *, generator: torch.Generator
) -> Tensor:
    """Verify the path with the largest p/q as if it were the only one."""
    chains = _chains(ids, parents, q, p)
    if not chains[0][0].shape[1]:
        return verify_chain(*chains[0], generator=generator).output_token_ids
    drafts, q_rows, p_rows = (torch.stack(parts) for parts in zip(*chains, strict=True))
    at = drafts[..., None]
    ratio = (p_rows[:, :, :-1].gather(3, at) / q_rows.gather(3, at)).squeeze(3)
    best = ratio.prod(dim=2).argmax(dim=0)  # [batch]
    row = torch.arange(len(best), device=best.device)
    chosen = (drafts[best, row], q_rows[best, row], p_rows[best, row])
    return verify_chain(*chosen, generator=generator).output_token_ids


def _recovers_from_target(
    ids: Tensor, parents: Any, q: Tensor, p: Tensor, *, generator: torch.Generator
) -> Tensor:
    """Draw the last token from p of the node where the path ends."""
    result = verify_tree_recursive(ids, parents, q, p, generator=generator)
    depth = result.num_accepted[:, None]  # [batch, 1]
    root = torch.zeros_like(ids[:, :1])
    node = torch.cat([root, result.accepted_nodes], dim=1).gather(1, depth)[:, 0]
    rows = p[torch.arange(len(node), device=p.device), node][:, None]
    token = from_cdf(rows, _uniforms((len(node), 1), generator))
    return result.output_token_ids.scatter(1, depth, token)


def _moved(rows: Tensor) -> Tensor:
    """Give every node but the root the row of the node before it."""
    return torch.cat([rows[:, :1], rows[:, :-1]], dim=1)


def _p_of_node_before(
    ids: Tensor, parents: Any, q: Tensor, p: Tensor, *, generator: torch.Generator
) -> TreeResult:
    return verify_tree_recursive(ids, parents, q, _moved(p), generator=generator)


def _q_of_node_before(
    ids: Tensor, parents: Any, q: Tensor, p: Tensor, *, generator: torch.Generator
) -> TreeResult:
    return verify_tree_recursive(ids, parents, _moved(q), p, generator=generator)


def _coins_added(
    ids: Tensor, parents: Any, q: Tensor, p: Tensor, *, generator: torch.Generator
) -> Tensor:
    """At each node one coin against the added p of its children, equal ones included."""
    topology = Topology.of(parents)
    table = topology.child_table(ids.device)
    row = torch.arange(len(ids), device=ids.device)
    node, alive = torch.zeros_like(row), row >= 0
    output = torch.full((len(ids), topology.depth + 1), -1, device=ids.device)
    for place in range(topology.depth + 1):
        coins = _uniforms((len(ids), 2), generator)
        left = p[row, node].double()
        added, chosen = torch.zeros_like(left[:, 0]), torch.full_like(node, -1)
        for child in table[node].unbind(dim=1):
            token = ids[row, child.clamp_min(0)]
            mass = p[row, node, token] * (child >= 0)
            added = added + mass
            passed = (chosen < 0) & (child >= 0) & (coins[:, 0] < added)
            chosen = torch.where(passed, child, chosen)
            gone = left.scatter(1, token[:, None], 0)
            left = torch.where((child >= 0)[:, None], gone, left)
        left = torch.where(left.sum(dim=1, keepdim=True) > 0, left, p[row, node])
        recovered = from_cdf(left[:, None], coins[:, 1:])[:, 0]
        token = torch.where(chosen >= 0, ids[row, chosen.clamp_min(0)], recovered)
        output[:, place] = torch.where(alive, token, -1)
        alive = alive & (chosen >= 0)
        node = torch.where(alive, chosen, node)
    return output


def _past_the_leaf(
    ids: Tensor, parents: Any, q: Tensor, p: Tensor, *, generator: torch.Generator
) -> Tensor:
    """Fill up with token 0 where nothing is emitted."""
    result = verify_tree_target_only(ids, parents, q, p, generator=generator)
    return result.output_token_ids.clamp_min(0)


def _lossy(name: str, rule: Callable[..., Any], said: str, *sources: str) -> Defect:
    return Defect(
        id=f"lossy-{name}",
        sentence=said,
        sources=sources,
        make=lambda: rule,
        shown_on=witnesses.W,
        bias=_LOSSY_BIAS[name],
        blind_on="settings that accept no more than p/q",
    )


_LOSSY_BIAS: Final = {
    "lenient": 0.125,
    "entropy-scaled": 0.0878,
    "typical": 0.531,
    "top-k-accepted": 0.126,
    "threshold": 0.0696,
    "synthetic": 0.334,
}

DEFECTS: Final = (
    Defect(
        id="tree-redrawn-for-each-path",
        sentence="The target is sampled anew along every path; the longest match is kept.",
        sources=(
            "FasterDecoding/Medusa",
            "foundation-model-stack/fms-extras#12",
            "foundation-model-stack/fms-extras#17",
        ),
        make=lambda: _redrawn_for_each_path,
        shown_on=WIDE_FIXED,
        bias=0.15,
        blind_on="a single path",
        kind="tree",
        capabilities=_FIXED,
    ),
    Defect(
        id="tree-best-path-as-if-only",
        sentence="Of independent paths the best by p/q is verified with q, as if it were "
        "the only one.",
        sources=("mutant",),
        make=lambda: _best_path_as_if_only,
        shown_on=PATHS,
        bias=0.0784,
        blind_on="a single path, p = q",
        kind="tree",
        capabilities={"drafts": "paths"},
    ),
    Defect(
        id="tree-recovers-from-p",
        sentence="When all children of a node are rejected, the token is drawn from p.",
        sources=("Infini-AI-Lab/Sequoia 2bee26a",),
        make=lambda: _recovers_from_target,
        shown_on=WIDE,
        bias=0.154,
        blind_on="as many children as tokens, p = q",
        kind="tree",
        capabilities=_SUCCESSIVE,
    ),
    Defect(
        id="tree-p-of-node-before",
        sentence="Every node but the root is verified with p of the node before it.",
        sources=("lablup/mlxcel#1214",),
        make=lambda: _p_of_node_before,
        shown_on=DEEP,
        bias=0.264,
        blind_on="rows that are equal",
        kind="tree",
        capabilities=_SUCCESSIVE,
    ),
    Defect(
        id="tree-q-of-node-before",
        sentence="Children of a node are tested with q of the node before it.",
        sources=("mutant",),
        make=lambda: _q_of_node_before,
        shown_on=DEEP,
        bias=0.2,
        blind_on="depth 1, rows that are equal",
        kind="tree",
        capabilities=_SUCCESSIVE,
    ),
    Defect(
        id="tree-traversal-of-fixed-drafts",
        sentence="Traversal verification gets the most likely tokens as if drawn.",
        sources=("mutant",),
        make=lambda: verify_tree_traversal,
        shown_on=WIDE_FIXED,
        bias=0.167,
        blind_on="drafts drawn without replacement",
        kind="tree",
        capabilities=_FIXED,
    ),
    Defect(
        id="tree-recursive-on-fixed-drafts",
        sentence="Recursive rejection gets the most likely tokens as if they were drawn.",
        sources=("ggml-org/llama.cpp",),
        make=lambda: verify_tree_recursive,
        shown_on=WIDE_FIXED,
        bias=0.167,
        blind_on="drafts drawn without replacement",
        kind="tree",
        capabilities=_FIXED,
    ),
    Defect(
        id="tree-duplicates-add-up",
        sentence="Siblings with equal tokens add their p twice.",
        sources=("sgl-project/sglang",),
        make=lambda: _coins_added,
        shown_on=WIDE_EQUAL,
        bias=0.0606,
        blind_on="distinct siblings",
        kind="tree",
        capabilities={"drafts": "iid"},
    ),
    Defect(
        id="tree-emits-past-the-leaf",
        sentence="Behind the last token stands token 0 instead of -1.",
        sources=("mutant",),
        make=lambda: _past_the_leaf,
        shown_on=WIDE_FIXED,
        bias=0.0,
        blind_on="rows whose path goes all the way down",
        effect="contract",
        kind="tree",
        capabilities=_FIXED,
    ),
    _lossy(
        "lenient",
        lossy.verify_lenient,
        "p/q is divided by a lenience of 1/2 before the test.",
        "lucidrains/speculative-decoding",
    ),
    _lossy(
        "entropy-scaled",
        lossy.verify_entropy_scaled,
        "The test is relaxed by the entropy of the target.",
        "vllm-project/vllm-ascend#9772",
    ),
    _lossy(
        "typical",
        lossy.verify_typical,
        "A draft is accepted where p is above a limit that falls with the entropy.",
        "FasterDecoding/Medusa",
        "vllm-project/vllm#5131",
    ),
    _lossy(
        "top-k-accepted",
        lossy.verify_top_k_accepted,
        "A draft is accepted where it is one of the two most likely tokens.",
        "mutant",
    ),
    _lossy(
        "threshold",
        lossy.verify_threshold,
        "Given drafts are accepted with p raised by two thresholds.",
        "sgl-project/sglang#7702",
    ),
    _lossy(
        "synthetic",
        lossy.verify_synthetic,
        "Drafts are accepted at a preset rate, whatever p and q are.",
        "vllm-project/vllm",
    ),
)
CONTROLS: Final = (
    Defect(
        id="tree-distinct-siblings-add-up",
        sentence="One coin a node against the added p of its distinct children.",
        sources=("sgl-project/sglang",),
        make=lambda: _coins_added,
        shown_on=DEEP_FIXED,
        bias=0.0,
        effect="none",
        kind="tree",
        capabilities=_FIXED,
    ),
    Defect(
        id="tree-target-only-with-duplicates",
        sentence="The target is sampled down the tree; siblings may be equal.",
        sources=("SafeAILab/EAGLE#183",),
        make=lambda: verify_tree_target_only,
        shown_on=WIDE_EQUAL,
        bias=0.0,
        effect="none",
        kind="tree",
        capabilities={"drafts": "iid"},
    ),
)
