# SPDX-License-Identifier: Apache-2.0
"""Read the answer of a subject: one reading for all checks, contract checked."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from specverify.inputs.models import IntArray
from specverify.subjects.exchange import Emission, Inputs
from specverify.subjects.faults import SubjectFault
from specverify.subjects.protocol import Subject

#: Tokens, and the second value of the answer where there is one.
Answer = tuple[Tensor, Tensor | None]

_WHOLE: Final = (torch.int64, torch.int32)
#: Stands for a slot that is accepted and not named.
UNNAMED_SLOT: Final = -2
_FORMS: Final = {
    "chain": "[batch, k + 1]",
    "tree": "[batch, depth + 1]",
    "multidraft": "[batch]",
}

#: Said where the one token that is due behind no drafts, or behind all of them, is missing.
NO_BONUS: Final = (
    "the bonus token is missing (where the engine draws it elsewhere, "
    "specverify.subject(fn, bonus=False) says so)"
)


def receive(raw: Any, inputs: Inputs, subject: Subject) -> Answer:
    """Check what one call returned, as far as that needs no value.

    Raises
    ------
    SubjectFault
        Wrong type, shape, dtype, layout or device.
    """
    if subject.kind == "multidraft":
        return _receive_pair(raw, inputs)
    ids, count = getattr(raw, "output_token_ids", raw), None
    if isinstance(ids, tuple) and len(ids) == 2:
        ids, count = ids
    batch, form = len(inputs.draft_token_ids), _FORMS[subject.kind]
    bonus = subject.capabilities.bonus
    short = isinstance(ids, Tensor) and tuple(ids.shape) == (batch, inputs.emits - 1)
    if short and not bonus:
        ids = torch.cat([ids, torch.full_like(ids[:, :1], -1)], dim=1)
    _check_ids(ids, (batch, inputs.emits), form, inputs)
    if count is not None and not _is_row(count, batch, _WHOLE):
        msg = "the second value it returned is no integer tensor num_emitted [batch]"
        raise SubjectFault(msg)
    return ids, count


def read(answers: list[Answer], inputs: Inputs, subject: Subject) -> Emission:
    """Check the values of the answers to one batch and bring them into one form.

    Raises
    ------
    SubjectFault
        Token ids, lengths or slots that cannot be.
    """
    ids = torch.cat([ids for ids, _ in answers]).cpu().numpy()
    seconds = [second for _, second in answers if second is not None]
    second = torch.cat(seconds).cpu().numpy() if seconds else None
    if subject.kind == "multidraft":
        assert second is not None  # noqa: S101 - checked on receipt
        return _read_pair(ids, second, inputs)
    return _read_path(ids, second, inputs, bonus=subject.capabilities.bonus)


def _receive_pair(raw: Any, inputs: Inputs) -> Answer:
    batch = len(inputs.draft_token_ids)
    if not isinstance(raw, tuple) or len(raw) != 2:
        msg = (
            f"it returned a {type(raw).__name__}; due is the pair (token_ids [batch], "
            "accepted [batch])"
        )
        raise SubjectFault(msg)
    ids, accepted = raw
    _check_ids(ids, (batch,), _FORMS["multidraft"], inputs)
    if not _is_row(accepted, batch, (torch.bool, *_WHOLE)):
        msg = (
            "the second value it returned is no tensor accepted [batch], of bools or of "
            "slots with -1 for none"
        )
        raise SubjectFault(msg)
    return ids, accepted


def _check_ids(ids: Any, due: tuple[int, ...], form: str, inputs: Inputs) -> None:
    if not isinstance(ids, Tensor):
        msg = f"it returned a {type(ids).__name__}; a tensor int64 {form} is due"
        raise SubjectFault(msg)
    if tuple(ids.shape) != due:
        msg = f"it returned shape {list(ids.shape)}; due is {form} = {list(due)}"
        raise SubjectFault(msg)
    if ids.layout != torch.strided:
        msg = f"it returned a tensor of layout {ids.layout}; due is torch.strided"
        raise SubjectFault(msg)
    if ids.dtype != torch.int64:
        msg = f"it returned dtype {ids.dtype}; due is torch.int64"
        raise SubjectFault(msg)
    device = inputs.target_probs.device
    if ids.device.type != device.type:
        msg = f"it returned a tensor on {ids.device}; due is {device}"
        raise SubjectFault(msg)


def _is_row(value: Any, batch: int, dtypes: tuple[torch.dtype, ...]) -> bool:
    """Whether a second value is a strided tensor [batch] of one of the dtypes."""
    return (
        isinstance(value, Tensor)
        and tuple(value.shape) == (batch,)
        and value.layout == torch.strided
        and value.dtype in dtypes
    )


def _read_path(
    ids: IntArray, emitted: IntArray | None, inputs: Inputs, *, bonus: bool
) -> Emission:
    """Read accepted drafts and one more token, then -1."""
    slots = ids.shape[1]
    if emitted is None:
        emitted = (ids != -1).cumprod(axis=1).sum(axis=1)
        padded = ids[np.arange(slots) >= emitted[:, None]]
        if (padded != -1).any():
            msg = f"it put {padded[padded != -1][0]} behind a -1; due is -1 to the end"
            raise SubjectFault(msg)
    least = 1 if bonus or slots > 1 else 0
    wrong = (emitted < least) | (emitted > slots)
    if wrong.any():
        row = int(wrong.argmax())
        msg = (
            f"row {row} emits {emitted[row]} tokens; due are {least} to {slots}: "
            "accepted drafts and one recovered or bonus token"
        )
        if slots == 1 and emitted[row] == 0:
            msg = f"row {row} has no drafts and emits nothing: {NO_BONUS}"
        raise SubjectFault(msg)
    live = np.arange(slots) < emitted[:, None]  # [batch, emits]
    _check_range(ids, live, inputs)
    emitted = emitted.astype(np.int64)
    # The recovered token is the last one; without a bonus token nothing else tells.
    return Emission(np.where(live, ids, -1), emitted, emitted - 1)


def _read_pair(ids: IntArray, second: IntArray, inputs: Inputs) -> Emission:
    """Read one token and what is said of its acceptance."""
    tokens = ids[:, None].astype(np.int64)
    _check_range(tokens, np.ones_like(tokens, bool), inputs)
    drafts = inputs.draft_token_ids.cpu().numpy()
    if second.dtype == np.bool_:
        slot = np.where(second, UNNAMED_SLOT, -1)
        there = (drafts == tokens).any(axis=1)
    else:
        slot = second.astype(np.int64)
        wrong = (slot < -1) | (slot >= drafts.shape[1])
        if wrong.any():
            row = int(wrong.argmax())
            msg = (
                f"row {row} accepts slot {slot[row]}; allowed are -1, for none, and 0 "
                f"to {drafts.shape[1] - 1}"
            )
            raise SubjectFault(msg)
        there = drafts[np.arange(len(slot)), slot] == tokens[:, 0]
    odd = (slot != -1) & ~there
    if odd.any():
        row = int(odd.argmax())
        msg = (
            f"row {row} emits {tokens[row, 0]} as accepted (slot {slot[row]}) of the "
            f"drafts {drafts[row].tolist()}"
        ).replace(f" (slot {UNNAMED_SLOT})", "")
        raise SubjectFault(msg)
    return Emission(tokens, np.ones_like(slot), (slot != -1).astype(np.int64), slot)


def _check_range(ids: IntArray, live: np.ndarray, inputs: Inputs) -> None:
    vocab = inputs.target_probs.shape[-1]
    outside = live & ((ids < 0) | (ids >= vocab))
    if outside.any():
        row, position = np.argwhere(outside)[0]
        msg = (
            f"it emitted token {ids[row, position]} at row {row}, position {position}; "
            f"the vocabulary is 0 to {vocab - 1}"
        )
        raise SubjectFault(msg)
