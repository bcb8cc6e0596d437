# SPDX-License-Identifier: Apache-2.0
"""Calls of the core that tests start from, and ways of spoiling them."""

import torch

from specverify.core import draw_drafts, inverse_cdf

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
LENGTHS = [0, 1, 2, 3, 4, 2, 0]  # drafts of the rows of a ragged `random_chain`


def seeded(seed, device="cpu"):
    return torch.Generator(device).manual_seed(seed)


def global_state(device):
    if device == "cuda":
        return torch.cuda.get_rng_state()
    return torch.random.get_rng_state()


def _rows(*shape, generator):
    """Rows with different entries, some of them zero."""
    weights = torch.rand(*shape, dtype=torch.float64, generator=generator)
    weights = weights * (torch.rand(*shape, generator=generator) < 0.8)
    weights[..., 0] += 0.01
    return weights / weights.sum(-1, keepdim=True)


def random_chain(seed, *, batch=7, k=4, vocab=6, device="cpu"):
    """Drafts, q, p and uniforms of one step on chains, all rows different."""
    generator = seeded(seed)
    q = _rows(batch, k, vocab, generator=generator)
    p = _rows(batch, k + 1, vocab, generator=generator)
    u = torch.rand(batch, 2 * k + 1, dtype=torch.float64, generator=generator)
    ids = inverse_cdf(q.flatten(0, 1), u[:, :k].flatten()).view(batch, k)
    return tuple(x.to(device) for x in (ids, q, p, u[:, k:]))


def random_slots(seed, *, drafts="iid", batch=40, n=3, vocab=6, device="cpu"):
    """Drafts, q, p and uniforms of one position with several drafts."""
    generator = seeded(seed)
    q, p = (_rows(batch, vocab, generator=generator) for _ in range(2))
    ids = draw_drafts(q, n, drafts=drafts, generator=generator)
    u = torch.rand(batch, n + 1, dtype=torch.float64, generator=generator)
    return tuple(x.to(device) for x in (ids, q, p, u))


def random_tree(seed, parents, *, drafts, batch=40, vocab=4, device="cpu"):
    """Tokens, q, p and uniforms of one step on trees; q may leave nodes unused.

    The rows do not depend on the tokens, except that there are as many as nodes.
    """
    generator = seeded(seed)
    nodes = len(parents)
    q, p = (_rows(batch, nodes, vocab, generator=generator) for _ in range(2))
    ids = torch.full((batch, nodes), -1)
    for node in range(nodes):
        below = [child for child in range(nodes) if parents[child] == node]
        if below:
            how = {"drafts": drafts, "generator": generator}
            slots = draw_drafts(q[:, node], len(below), **how)
            used = ids[:, node : node + 1] >= 0 if node else True
            ids[:, below] = torch.where(torch.as_tensor(used), slots, -1)
    u = torch.rand(batch, nodes, dtype=torch.float64, generator=generator)
    return tuple(x.to(device) for x in (ids, q, p, u))


def shortened(step, row, length):
    """A row of a ragged chain as a step of its own."""
    ids, q, p, u = (x[row : row + 1] for x in step)
    uniforms = torch.cat([u[:, :length], u[:, -1:]], dim=1)
    return ids[:, :length], q[:, :length], p[:, : length + 1], uniforms


def padded(step, *, ids=None, probs=None, uniforms=None):
    """The same step with other values wherever a ragged row should not look."""
    new = [x.clone() for x in step]
    fills, bonus = (ids, probs, probs, uniforms), (0, 0, 1, 0)
    for tensor, fill, skip in zip(new, fills, bonus, strict=True):
        for row, length in enumerate(LENGTHS):
            if fill is not None:
                tensor[row, length + skip : 4 + skip] = fill
    return new


#: What a ragged row may hold behind its drafts.
PADDINGS = [
    {"ids": -1},
    {"ids": 6},
    {"ids": 2**62},
    {"probs": 0.0},
    {"probs": float("nan")},
    {"ids": -1, "probs": float("nan")},
]


def spoilt(tensor, where, value):
    """A tensor with one place changed."""
    changed = tensor.clone()
    changed[where] = value
    return changed


def same(first, second):
    """Whether two results are equal in all parts."""
    return all(map(torch.equal, first, second))


def chain_call(**changes):
    """A valid call with batch 2, k 2, vocab 4, and some arguments replaced."""
    valid = {
        "draft_token_ids": torch.tensor([[0, 1], [2, 3]]),
        "draft_probs": torch.full((2, 2, 4), 0.25),
        "target_probs": torch.full((2, 3, 4), 0.25),
        "num_draft_tokens": torch.tensor([2, 1]),
    }
    return {**valid, **changes}


#: Bad arguments of a call on chains: name, value, error, what the message says.
CHAIN_ERRORS = [
    ("target_probs", [[[1.0]]], TypeError, "is a list; .* torch.Tensor"),
    ("target_probs", torch.ones(3, 4), ValueError, r"shape \[3, 4\]; .* k \+ 1, vocab"),
    ("target_probs", torch.ones(2, 3, 4).int(), TypeError, "int32; .* torch.float16"),
    ("draft_token_ids", torch.ones(2, 3).long(), ValueError, r"\[2, 3\]; .* \[2, 2\]"),
    ("draft_token_ids", torch.ones(2, 2).int(), TypeError, "int32; .* torch.int64"),
    ("draft_token_ids", torch.tensor([[0, 4], [2, 3]]), ValueError, "is 4; .* 0 to 3"),
    ("num_draft_tokens", torch.tensor([3, 1]), ValueError, "is 3; .* 0 to 2"),
    (
        "num_draft_tokens",
        torch.tensor([2, 1], device="meta"),
        ValueError,
        "meta; .*cpu",
    ),
    ("target_probs", torch.ones(2, 3, 4), ValueError, "sums to 4; .* sum to 1"),
]
#: Bad arguments of rules that ask for the law of the drafts.
Q_ERRORS = [
    ("draft_probs", torch.ones(2, 2, 5), ValueError, r"\[2, 2, 5\]; .* \[2, 2, 4\]"),
    ("draft_probs", torch.full((2, 2, 4), 0.5), ValueError, "sums to 2; .* sum to 1"),
    (
        "draft_probs",
        torch.tensor([0.5, 0.5, 0, 0]).expand(2, 2, 4),
        ValueError,
        "probability 0; a draft must be drawn from draft_probs",
    ),
]
#: Bad uniforms.
U_ERRORS = [
    ("uniforms", torch.ones(2, 3), ValueError, r"from 1 to 1; .* \[0, 1\)"),
    ("uniforms", torch.full((2, 3), -0.5), ValueError, r"-0.5 .*; .* \[0, 1\)"),
    ("uniforms", torch.ones(2, 2), ValueError, r"\[2, 2\]; .* \[2, 3\]"),
    ("uniforms", torch.ones(2, 3).half(), TypeError, "float16; .* torch.float32"),
    ("uniforms", torch.ones(2, 3, device="meta"), ValueError, "on meta; .* cpu"),
]


def slots_call(**changes):
    """A valid call for two drafts at one position, with batch 2 and vocab 4."""
    valid = {
        "draft_token_ids": torch.tensor([[0, 1], [2, 3]]),
        "draft_probs": torch.full((2, 4), 0.25),
        "target_probs": torch.full((2, 4), 0.25),
        "uniforms": torch.full((2, 3), 0.5),
    }
    return {**valid, **changes}


#: Bad arguments of a call with several drafts at one position.
SLOTS_ERRORS = [
    (
        "target_probs",
        [[1.0]],
        TypeError,
        r"is a list; .* torch.Tensor \[batch, vocab\]",
    ),
    (
        "target_probs",
        torch.ones(2, 1, 4),
        ValueError,
        r"\[2, 1, 4\]; .* \[batch, vocab\]",
    ),
    ("target_probs", torch.ones(2, 0), ValueError, r"\[2, 0\] .* at least one token"),
    ("target_probs", torch.ones(2, 4).int(), TypeError, "int32; .* torch.float16"),
    (
        "target_probs",
        torch.full((2, 4), 0.5),
        ValueError,
        r"\[0\] sums to 2; .* 1 within",
    ),
    ("target_probs", torch.full((2, 4), float("nan")), ValueError, "NaN .* finite"),
    ("draft_token_ids", None, TypeError, r"a NoneType; .* torch.Tensor \[batch, n\]"),
    ("draft_token_ids", torch.ones(2).long(), ValueError, r"\[2\]; .* \[batch, n\]"),
    ("draft_token_ids", torch.ones(3, 2).long(), ValueError, r"\[3, 2\]; .* \[2, 2\]"),
    ("draft_token_ids", torch.ones(2, 2).int(), TypeError, "int32; .* torch.int64"),
    ("draft_token_ids", torch.tensor([[0, 1], [4, 3]]), ValueError, "is 4; .* -1 to 3"),
    ("draft_token_ids", torch.tensor([[0, -2], [2, 3]]), ValueError, "-2; .* -1 to 3"),
    ("draft_token_ids", torch.ones(2, 2).long().to("meta"), ValueError, "meta; .* cpu"),
    ("draft_probs", 0.5, TypeError, r"is a float; .* torch.Tensor \[batch, vocab\]"),
    ("draft_probs", torch.ones(2, 5), ValueError, r"\[2, 5\]; .* \[2, 4\]"),
    ("draft_probs", torch.ones(2, 4).long(), TypeError, "int64; .* torch.float16"),
    (
        "draft_probs",
        torch.full((2, 4), 0.5),
        ValueError,
        r"\[0\] sums to 2; .* 1 within",
    ),
    ("draft_probs", torch.ones(2, 4).to("meta"), ValueError, "on meta; .* cpu"),
    ("uniforms", [0.5], TypeError, r"is a list; .* torch.Tensor \[batch, n \+ 1\]"),
    ("uniforms", torch.zeros(2, 2), ValueError, r"\[2, 2\]; .* \[2, 3\]"),
    ("uniforms", torch.zeros(2, 3).half(), TypeError, "float16; .* torch.float32"),
    ("uniforms", torch.ones(2, 3), ValueError, r"from 1 to 1; .* \[0, 1\)"),
    ("uniforms", torch.full((2, 3), float("nan")), ValueError, r"nan.*; .* \[0, 1\)"),
    ("uniforms", torch.zeros(2, 3).to("meta"), ValueError, "on meta; .* cpu"),
]


def tree_call(**changes):
    """A valid call on the tree 0 - (1, 2), 1 - 3, with batch 2 and vocab 4."""
    valid = {
        "token_ids": torch.tensor([[0, 1, 2, 3], [9, 0, 3, -1]]),
        "parents": (-1, 0, 0, 1),
        "draft_probs": torch.full((2, 4, 4), 0.25),
        "target_probs": torch.full((2, 4, 4), 0.25),
        "uniforms": torch.full((2, 4), 0.5),
    }
    return {**valid, **changes}


#: Bad arguments of a call on trees.
TREE_ERRORS = [
    ("target_probs", [[[1.0]]], TypeError, r"a list; .* \[batch, nodes, vocab\]"),
    ("target_probs", torch.ones(4, 4), ValueError, r"\[4, 4\]; .* nodes, vocab\]"),
    ("target_probs", torch.ones(2, 4, 0), ValueError, r"\[2, 4, 0\]; .* one token"),
    ("target_probs", torch.ones(2, 4, 4).int(), TypeError, "int32; .* torch.float16"),
    ("target_probs", torch.ones(2, 4, 4), ValueError, r"\[0, 0\] sums to 4; .* within"),
    ("token_ids", None, TypeError, r"a NoneType; .* torch.Tensor \[batch, nodes\]"),
    ("token_ids", torch.ones(2).long(), ValueError, r"\[2\]; .* \[batch, nodes\]"),
    ("token_ids", torch.ones(3, 4).long(), ValueError, r"\[3, 4\]; .* \[2, 4\]"),
    ("token_ids", torch.ones(2, 4).int(), TypeError, "int32; .* torch.int64"),
    ("token_ids", torch.ones(2, 4).long().to("meta"), ValueError, "on meta; .* cpu"),
    ("token_ids", torch.tensor([[0, 1, 2, 4]] * 2), ValueError, "is 4; .* -1 to 3"),
    ("token_ids", torch.tensor([[0, 1, -2, 3]] * 2), ValueError, "is -2; .* -1 to 3"),
    (
        "token_ids",
        torch.tensor([[0, -1, 2, 3]] * 2),
        ValueError,
        r"\[0, 3\] is a token and its parent is unused \(-1\); .* all are unused",
    ),
    ("draft_probs", 0.5, TypeError, r"a float; .* \[batch, nodes, vocab\]"),
    ("draft_probs", torch.ones(2, 4, 5), ValueError, r"\[2, 4, 5\]; .* \[2, 4, 4\]"),
    ("draft_probs", torch.ones(2, 4, 4).long(), TypeError, "int64; .* torch.float16"),
    ("draft_probs", torch.ones(2, 4, 4), ValueError, r"\[0, 0\] sums to 4; .* within"),
    ("draft_probs", torch.ones(2, 4, 4).to("meta"), ValueError, "on meta; .* cpu"),
    ("uniforms", [0.5], TypeError, r"a list; .* \[batch, nodes\]"),
    ("uniforms", torch.zeros(2, 3), ValueError, r"\[2, 3\]; .* \[2, 4\]"),
    ("uniforms", torch.zeros(2, 4).half(), TypeError, "float16; .* torch.float32"),
    ("uniforms", torch.ones(2, 4), ValueError, r"from 1 to 1; .* \[0, 1\)"),
    ("uniforms", torch.full((2, 4), -0.5), ValueError, r"-0.5 .*; .* \[0, 1\)"),
    ("uniforms", torch.zeros(2, 4).to("meta"), ValueError, "on meta; .* cpu"),
    ("parents", (-1, 0, 0), ValueError, "has 3 nodes, token_ids 4"),
    ("parents", (-1, 0, 0, 1, 1), ValueError, "has 5 nodes, token_ids 4"),
    ("parents", (-1, -1, 0, 1), ValueError, r"\[1\] is -1; a tree has one root"),
    ("parents", (-1, 2, 0, 1), ValueError, r"\[1\] is 2; allowed is 0 to 0: .* cycles"),
    ("parents", (-1, 1, 0, 1), ValueError, r"\[1\] is 1; allowed is 0 to 0"),
    ("parents", (0, 0, 0, 1), ValueError, r"\[0\] is 0; node 0 is the root"),
    ("parents", (), ValueError, r"\[0\] is empty; node 0 is the root"),
    ("parents", (-1, 0, 0, 0.5), TypeError, "0.5.*; allowed are whole numbers"),
]
