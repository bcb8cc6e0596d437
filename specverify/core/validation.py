# SPDX-License-Identifier: Apache-2.0
"""Argument checks of the core: every message names argument, found and allowed."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

#: How far a row of probabilities may sum from 1: the rounding of its own dtype, with
#: room for a vocabulary of 256k.
SUM_TOLERANCE: Final = {
    torch.float64: 1e-6,
    torch.float32: 1e-4,
    torch.float16: 1e-2,
    torch.bfloat16: 5e-2,
}


def check_metadata(
    draft_token_ids: Tensor,
    draft_probs: Tensor | None,
    target_probs: Tensor,
    uniforms: Tensor | None,
    num_draft_tokens: Tensor | None,
) -> None:
    """Check types, shapes, dtypes and devices; looks at no value."""
    _check_tensor("target_probs", target_probs, 3, "[batch, k + 1, vocab]")
    _check_tensor("draft_token_ids", draft_token_ids, 2, "[batch, k]")
    batch, rows, vocab = target_probs.shape
    if rows == 0 or vocab == 0:
        msg = (
            f"target_probs has shape {list(target_probs.shape)}; "
            "it needs at least one row and one token: [batch, k + 1, vocab]"
        )
        raise ValueError(msg)
    _check_probs("target_probs", target_probs)
    _check_like("draft_token_ids", draft_token_ids, (batch, rows - 1), target_probs)
    _check_integer("draft_token_ids", draft_token_ids)
    if draft_probs is not None:
        _check_tensor("draft_probs", draft_probs, 3, "[batch, k, vocab]")
        _check_like("draft_probs", draft_probs, (batch, rows - 1, vocab), target_probs)
        _check_probs("draft_probs", draft_probs)
    if uniforms is not None:
        _check_tensor("uniforms", uniforms, 2, "[batch, k + 1]")
        _check_like("uniforms", uniforms, (batch, rows), target_probs)
        _check_floating("uniforms", uniforms)
    if num_draft_tokens is not None:
        _check_tensor("num_draft_tokens", num_draft_tokens, 1, "[batch]")
        _check_like("num_draft_tokens", num_draft_tokens, (batch,), target_probs)
        _check_integer("num_draft_tokens", num_draft_tokens)


def check_values(
    draft_token_ids: Tensor,
    draft_probs: Tensor | None,
    target_probs: Tensor,
    uniforms: Tensor | None,
    num_draft_tokens: Tensor | None,
) -> None:
    """Check the numbers themselves; on a CUDA tensor this waits for the device."""
    k = draft_token_ids.shape[1]
    used = torch.ones_like(draft_token_ids, dtype=torch.bool)  # [batch, k]
    if num_draft_tokens is not None:
        _check_range("num_draft_tokens", num_draft_tokens, 0, k)
        position = torch.arange(k, device=draft_token_ids.device)
        used = position.unsqueeze(0) < num_draft_tokens.unsqueeze(1)
    # Behind its drafts a row still needs the target row of its bonus token.
    first = torch.ones_like(target_probs[:, :1, 0], dtype=torch.bool)
    check_distributions("target_probs", target_probs, torch.cat([first, used], dim=1))
    ids = torch.where(used, draft_token_ids, 0)
    _check_range("draft_token_ids", ids, 0, target_probs.shape[-1] - 1)
    if uniforms is not None:
        _check_unit(uniforms[torch.cat([used, first], dim=1)])
    if draft_probs is not None:
        check_distributions("draft_probs", draft_probs, used)
        mass = draft_probs.gather(2, ids.unsqueeze(-1)).squeeze(-1)  # [batch, k]
        _check_offered(torch.where(used, ids, -1), mass)


def check_extra(
    name: str, value: object, shape: tuple[int, ...], words: str, target_probs: Tensor
) -> None:
    """Check type, shape and device of an argument that only one rule has."""
    _check_tensor(name, value, len(shape), words)
    assert isinstance(value, Tensor)  # noqa: S101 - just checked
    _check_like(name, value, shape, target_probs)


def check_multidraft(
    draft_token_ids: Tensor,
    draft_probs: Tensor | None,
    target_probs: Tensor,
    uniforms: Tensor | None,
    *,
    validate: bool | None,
) -> None:
    """Check the arguments of a rule for several drafts at one position.

    Values are looked at where `validate` says so, by default on the CPU.
    """
    _check_tensor("target_probs", target_probs, 2, "[batch, vocab]")
    _check_tensor("draft_token_ids", draft_token_ids, 2, "[batch, n]")
    batch, vocab = target_probs.shape
    n = draft_token_ids.shape[1]
    if vocab == 0 or n == 0:
        msg = (
            f"target_probs has shape {list(target_probs.shape)} and draft_token_ids "
            f"{list(draft_token_ids.shape)}; at least one token and one draft are needed"
        )
        raise ValueError(msg)
    _check_probs("target_probs", target_probs)
    _check_like("draft_token_ids", draft_token_ids, (batch, n), target_probs)
    _check_integer("draft_token_ids", draft_token_ids)
    if draft_probs is not None:
        _check_tensor("draft_probs", draft_probs, 2, "[batch, vocab]")
        _check_like("draft_probs", draft_probs, (batch, vocab), target_probs)
        _check_probs("draft_probs", draft_probs)
    if uniforms is not None:
        _check_tensor("uniforms", uniforms, 2, "[batch, n + 1]")
        _check_like("uniforms", uniforms, (batch, n + 1), target_probs)
        _check_floating("uniforms", uniforms)
    if not (validate if validate is not None else target_probs.device.type == "cpu"):
        return
    everywhere = torch.ones(batch, dtype=torch.bool, device=target_probs.device)
    check_distributions("target_probs", target_probs, everywhere)
    _check_range("draft_token_ids", draft_token_ids, -1, vocab - 1)
    if uniforms is not None:
        _check_unit(uniforms)
    if draft_probs is not None:
        check_distributions("draft_probs", draft_probs, everywhere)
        mass = draft_probs.gather(1, draft_token_ids.clamp_min(0))  # [batch, n]
        _check_offered(draft_token_ids, mass)


def check_tree(
    token_ids: Tensor,
    parents: tuple[int, ...],
    draft_probs: Tensor | None,
    target_probs: Tensor,
    uniforms: Tensor | None,
    *,
    validate: bool | None,
    distinct: bool,
) -> None:
    """Check the arguments of a rule for trees, whose shape has been checked before.

    Values are looked at where `validate` says so, by default on the CPU; `distinct`
    refuses siblings with equal tokens.
    """
    _check_tensor("target_probs", target_probs, 3, "[batch, nodes, vocab]")
    _check_tensor("token_ids", token_ids, 2, "[batch, nodes]")
    batch, nodes, vocab = target_probs.shape
    if vocab == 0:
        msg = f"target_probs has shape {list(target_probs.shape)}; it needs one token"
        raise ValueError(msg)
    if len(parents) != token_ids.shape[1]:
        msg = f"parents has {len(parents)} nodes, token_ids {token_ids.shape[1]}"
        raise ValueError(msg)
    _check_probs("target_probs", target_probs)
    _check_like("token_ids", token_ids, (batch, nodes), target_probs)
    _check_integer("token_ids", token_ids)
    if draft_probs is not None:
        _check_tensor("draft_probs", draft_probs, 3, "[batch, nodes, vocab]")
        _check_like("draft_probs", draft_probs, (batch, nodes, vocab), target_probs)
        _check_probs("draft_probs", draft_probs)
    elif distinct:
        msg = "draft_probs is None; this rule needs the law of the drafts"
        raise TypeError(msg)
    if uniforms is not None:
        _check_tensor("uniforms", uniforms, 2, "[batch, nodes]")
        _check_like("uniforms", uniforms, (batch, nodes), target_probs)
        _check_floating("uniforms", uniforms)
    if validate if validate is not None else target_probs.device.type == "cpu":
        _check_tree_values(
            token_ids, parents, draft_probs, target_probs, uniforms, distinct=distinct
        )


def _check_tree_values(
    token_ids: Tensor,
    parents: tuple[int, ...],
    draft_probs: Tensor | None,
    target_probs: Tensor,
    uniforms: Tensor | None,
    *,
    distinct: bool,
) -> None:
    vocab = target_probs.shape[2]
    _check_range("token_ids", token_ids[:, 1:], -1, vocab - 1)
    above = torch.tensor(parents[1:], device=token_ids.device, dtype=torch.int64)
    used = torch.cat([torch.ones_like(token_ids[:, :1]), token_ids[:, 1:] + 1], 1) > 0
    orphans = used[:, 1:] & ~used[:, above]
    if bool(orphans.any()):
        row, node = orphans.nonzero()[0].tolist()
        msg = (
            f"token_ids[{row}, {node + 1}] is a token and its parent is unused (-1); "
            "below an unused node all are unused"
        )
        raise ValueError(msg)
    check_distributions("target_probs", target_probs, used)
    if uniforms is not None:
        _check_unit(uniforms)
    if distinct:
        _check_siblings(token_ids, parents)
    if draft_probs is not None:
        asked = torch.zeros_like(used)  # nodes below which something was drafted
        for node, parent in enumerate(parents[1:], start=1):
            asked[:, parent] |= used[:, node]
        check_distributions("draft_probs", draft_probs, asked)
        ids = token_ids[:, 1:]
        rows = draft_probs[:, above]  # [batch, nodes - 1, vocab]
        mass = rows.gather(2, ids.clamp_min(0).unsqueeze(-1)).squeeze(-1)
        _check_offered(ids, mass, "token_ids", first=1)


def _check_siblings(token_ids: Tensor, parents: tuple[int, ...]) -> None:
    for node in range(1, len(parents)):
        for elder in range(1, node):
            if parents[elder] != parents[node]:
                continue
            same = (token_ids[:, node] == token_ids[:, elder]) & (
                token_ids[:, node] >= 0
            )
            if bool(same.any()):
                row = int(same.nonzero()[0])
                msg = (
                    f"token_ids[{row}] gives the siblings {elder} and {node} the same "
                    f"token {int(token_ids[row, node])}; this rule needs distinct ones"
                )
                raise ValueError(msg)


def _check_offered(
    ids: Tensor, mass: Tensor, name: str = "draft_token_ids", first: int = 0
) -> None:
    """Refuse drafts to which q gives no probability; -1 is no draft.

    `first` is the column of the argument at which `ids` begin.
    """
    outside = (ids >= 0) & (mass <= 0)
    if bool(outside.any()):
        row, column = outside.nonzero()[0].tolist()
        msg = (
            f"{name}[{row}, {column + first}] is {int(ids[row, column])}, to which "
            "draft_probs gives probability 0; a draft must be drawn from draft_probs"
        )
        raise ValueError(msg)


def _check_unit(uniforms: Tensor) -> None:
    if not bool(((uniforms >= 0) & (uniforms < 1)).all()):
        msg = (
            f"uniforms holds values from {uniforms.min().item():g} to "
            f"{uniforms.max().item():g}; allowed is the half-open interval [0, 1)"
        )
        raise ValueError(msg)


def check_distributions(name: str, probs: Tensor, used: Tensor) -> None:
    """Check that every used row is a distribution, within `SUM_TOLERANCE`.

    Parameters
    ----------
    name
        How the message calls the argument.
    probs
        Floating [..., vocab].
    used
        bool [...]: rows that count.
    """
    tolerance = SUM_TOLERANCE[probs.dtype]
    total, least = probs.sum(dim=-1, dtype=torch.float64), probs.amin(dim=-1)
    # Written so that NaN, which fails every comparison, counts as bad.
    fine = ((total - 1).abs() <= tolerance) & (least >= 0)
    bad = used & ~fine
    if not bool(bad.any()):
        return
    where = bad.nonzero()[0].tolist()
    row = probs[tuple(where)]
    if not bool(torch.isfinite(row).all()):
        found = "holds NaN or infinity"
    elif bool((row < 0).any()):
        found = f"holds the negative entry {row.min().item():g}"
    else:
        found = f"sums to {row.double().sum().item():.6g}"
    msg = (
        f"{name}{where} {found}; allowed are non-negative finite entries "
        f"that sum to 1 within {tolerance:g} ({probs.dtype})"
    )
    raise ValueError(msg)


def _check_tensor(name: str, value: object, ndim: int, shape: str) -> None:
    if not isinstance(value, Tensor):
        msg = f"{name} is a {type(value).__name__}; it must be a torch.Tensor {shape}"
        raise TypeError(msg)
    if value.ndim != ndim:
        msg = f"{name} has shape {list(value.shape)}; it must be {shape}"
        raise ValueError(msg)


def _check_like(
    name: str, value: Tensor, shape: tuple[int, ...], target_probs: Tensor
) -> None:
    if tuple(value.shape) != shape:
        msg = (
            f"{name} has shape {list(value.shape)}; target_probs of shape "
            f"{list(target_probs.shape)} asks for {list(shape)}"
        )
        raise ValueError(msg)
    if value.device != target_probs.device:
        msg = (
            f"{name} is on {value.device}; it must be on the device of target_probs, "
            f"{target_probs.device}"
        )
        raise ValueError(msg)


def _check_probs(name: str, value: Tensor) -> None:
    if value.dtype not in SUM_TOLERANCE:
        allowed = ", ".join(str(dtype) for dtype in SUM_TOLERANCE)
        msg = f"{name} has dtype {value.dtype}; allowed are {allowed}"
        raise TypeError(msg)


def _check_floating(name: str, value: Tensor) -> None:
    if value.dtype not in (torch.float32, torch.float64):
        msg = (
            f"{name} has dtype {value.dtype}; allowed are torch.float32, torch.float64"
        )
        raise TypeError(msg)


def _check_integer(name: str, value: Tensor) -> None:
    if value.dtype != torch.int64:
        msg = f"{name} has dtype {value.dtype}; allowed is torch.int64"
        raise TypeError(msg)


def _check_range(name: str, value: Tensor, low: int, high: int) -> None:
    bad = (value < low) | (value > high)
    if bool(bad.any()):
        where = bad.nonzero()[0].tolist()
        msg = f"{name}{where} is {int(value[tuple(where)])}; allowed is {low} to {high}"
        raise ValueError(msg)
