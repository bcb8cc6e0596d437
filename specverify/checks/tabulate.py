# SPDX-License-Identifier: Apache-2.0
"""Ways of counting what steps emit: each gives, for a case, cells, their law, and draws."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch

from specverify.checks import rules
from specverify.checks.comparison import Tabulation
from specverify.checks.draws import (
    Step,
    complete,
    draw_step,
    draw_steps,
    encode,
    open_streams,
)
from specverify.inputs.cases import Case
from specverify.inputs.models import FloatArray, IntArray, ToyModel
from specverify.inputs.trees import MultidraftCase
from specverify.laws import steps
from specverify.laws.distributions import Model, Number, Prefix
from specverify.statistics.partitions import id_blocks, ratio_bins, totals
from specverify.subjects.rig import Rig


def joint(case: Case) -> Tabulation:
    """Joint law of all that a step can emit, completed by target sampling (L13)."""
    counted = _of_steps(case, lambda step: encode(step.completed, case.vocab))
    return _autoregressive(case, case.emits, counted)


def rounded_joint(case: Case) -> Tabulation:
    """Joint law of k + 1 tokens, with what rounding to the case's dtype can move.

    Each position adds at most the total variation between its rows and their rounding,
    for p and, where a draft is tested, for q.
    """
    tolerance = (case.k + 1) * _rounding(case.target, case.dtype)
    tolerance += case.k * _rounding(case.draft, case.dtype)
    return replace(joint(case), tolerance=tolerance)


def _rounding(model: ToyModel, dtype: str) -> float:
    """Largest total variation between a row and its rounding, sums included."""
    exact = torch.from_numpy(model.matrix)
    rounded = exact.to(getattr(torch, dtype)).double()
    return float((rounded - exact).abs().sum(dim=1).max())


def emitted(case: Case, rule: str) -> Tabulation:
    """Law of the emitted tokens before completion: tokens and acceptance together.

    The law is that of a rule of `rules`. Of several drafts at one position it is the law of
    (token, accepted).
    """
    if isinstance(case, MultidraftCase):
        return _token_accepted(case, rule)
    outcomes = _emissions(case)
    base = case.vocab + 1  # -1 pads: shift by one
    index = np.zeros(base**case.emits, np.int64)
    padded = [(*o, *[-1] * (case.emits - len(o))) for o in outcomes]
    index[encode(np.array(padded) + 1, base)] = np.arange(len(outcomes))

    def cells(step: Step) -> IntArray:
        return index[encode(step.emission.token_ids + 1, base)]

    law = rules.emitted_law(case, rule)
    return _tabulation(
        "emitted tokens and acceptance", law, outcomes, _of_steps(case, cells)
    )


def _token_accepted(case: MultidraftCase, rule: str) -> Tabulation:
    outcomes = [(token, hit) for token in range(case.vocab) for hit in (0, 1)]
    law: dict[Prefix, Number] = {}
    for (token, slot), mass in rules.token_slot_law(case, rule).items():
        cell = (token, int(slot >= 0))
        law[cell] = law.get(cell, 0) + mass
    cells = _of_steps(case, lambda s: 2 * s.completed[:, 0] + s.accepted)
    return _tabulation("token and acceptance", law, outcomes, cells)


def accepted_length(case: Case, rule: str) -> Tabulation:
    """Law of the number of accepted drafts under a rule of `rules` (L12, L14)."""
    law = dict(enumerate(rules.accepted_law(case, rule)))
    return _tabulation(
        "accepted drafts",
        {(length,): mass for length, mass in law.items()},
        [(length,) for length in law],
        _of_steps(case, lambda step: step.accepted),
    )


def bonus(case: Case) -> Tabulation:
    """Law of the token behind k accepted drafts, on models that depend on position."""
    row = case.due((0,) * case.k)
    return _tabulation(
        "bonus token",
        {(token,): mass for token, mass in enumerate(row)},
        [(token,) for token in range(case.vocab)],
        _of_steps(
            case,
            lambda s: s.completed[s.emission.num_emitted == case.k + 1, case.k],
        ),
    )


def rounds(case: Case) -> Tabulation:
    """Joint law of the first tokens of a whole loop of steps (L16).

    Rows keep their place from round to round, and the subject keeps its stream of
    randomness, so state or noise that is carried over shows. The loop starts behind a
    prompt of zeros as long as the models look back.
    """
    length = case.emits + 1  # more than one step emits
    while case.vocab ** (length + 1) <= 81:
        length += 1
    window = max(case.target.memory, case.draft.memory)

    def cells(rig: Rig, rows: int, seed: int) -> IntArray:
        stream, rng = open_streams(rig, seed)
        codes = []
        for size in rig.chunks(case, rows):
            text = np.zeros((size, window), np.int64)
            done, filled = np.full((size, length), -1), np.zeros(size, np.int64)
            while (filled < length).any():
                step = draw_step(rig, case, text, stream, rng)
                text, filled = _append(text, done, filled, step.emission.token_ids)
            codes.append(encode(done, case.vocab))
        return np.concatenate(codes)

    return _autoregressive(case, length, cells, (0,) * window)


def pairs(case: Case) -> Tabulation:
    """First tokens of two rows of one batch: independent, whatever their law is."""

    def count(rig: Rig, rows: int, seed: int) -> IntArray:
        rng = np.random.default_rng(seed)
        table = np.zeros((case.vocab, case.vocab), np.int64)
        for step in draw_steps(rig, case, 2 * rows, seed):
            first = rng.permutation(step.completed[:, 0])
            half = len(first) // 2
            np.add.at(table, (first[:half], first[half : 2 * half]), 1)
        return table.ravel()

    tokens = range(case.vocab)
    labels = tuple(f"{a},{b}" for a, b in itertools.product(tokens, repeat=2))
    return Tabulation("pair of rows", labels, None, count)


def mixed_batch(case: Case) -> Tabulation:
    """Joint law of the rows of one case while rows of another one sit between them.

    The neighbours are the same case with its tokens renamed, and batches hold 97 rows:
    past 64, and no multiple of a warp.
    """
    turned = tuple((t + 1) % case.vocab for t in range(case.vocab))
    other = case.permuted(turned)
    mine, others = np.empty((49, 0), np.int64), np.empty((48, 0), np.int64)

    def cells(rig: Rig, rows: int, seed: int) -> IntArray:
        stream, rng = open_streams(rig, seed)
        codes = []
        for _ in range(0, rows, len(mine)):
            drafts = case.draw_drafts(mine, rng)
            neighbours = other.draw_drafts(others, rng)
            inputs = rig.inputs(case, mine, drafts)
            batch = inputs.interleaved(rig.inputs(other, others, neighbours))
            own = rig.verify(batch, stream).every(2)
            codes.append(encode(complete(case, mine, own, rng), case.vocab))
        return np.concatenate(codes)

    return _autoregressive(case, case.emits, cells)


def ragged(case: Case) -> Tabulation:
    """Joint law of rows that have from 0 to k drafts, in turn, in one batch.

    Where a row has no draft, its place holds token 0 and rows as good as any.
    """

    def cells(rig: Rig, rows: int, seed: int) -> IntArray:
        stream, rng = open_streams(rig, seed)
        codes = []
        for size in rig.chunks(case, rows):
            none = np.empty((size, 0), np.int64)
            drafts = case.draw_drafts(none, rng)
            lengths = np.arange(size) % (case.k + 1)
            inputs = rig.inputs(case, none, drafts)
            unused = torch.arange(case.k) >= torch.from_numpy(lengths).unsqueeze(1)
            short = replace(
                inputs,
                draft_token_ids=inputs.draft_token_ids.masked_fill(
                    unused.to(rig.device), 0
                ),
                num_draft_tokens=torch.from_numpy(lengths).to(rig.device),
            )
            emission = rig.verify(short, stream)
            codes.append(encode(complete(case, none, emission, rng), case.vocab))
        return np.concatenate(codes)

    return _autoregressive(case, case.emits, cells)


def partitioned(case: Case) -> Tabulation:
    """First token of a large vocabulary, in cells of q/p crossed with id blocks."""
    p, q = case.due.matrix[0], case.draft.matrix[0]
    block = id_blocks(p, size=-(-case.vocab // 4))
    crossed = ratio_bins(p, q, bins=8) * 4 + block
    cells = np.unique(crossed, return_inverse=True)[1].astype(np.int64)
    probs = totals(cells, p)
    return Tabulation(
        f"vocab {case.vocab} in {len(probs)} cells",
        tuple(f"cell {i}" for i in range(len(probs))),
        probs,
        _counting(
            _of_steps(case, lambda step: cells[step.completed[:, 0]]), len(probs)
        ),
        draft=totals(cells, q),
    )


#: Draws rows and numbers the cell of each.
Cells = Callable[[Rig, int, int], IntArray]


def _of_steps(case: Case, cells: Callable[[Step], IntArray]) -> Cells:
    """Number the cell of each row of independent steps."""
    return lambda rig, rows, seed: np.concatenate(
        [cells(step) for step in draw_steps(rig, case, rows, seed)]
    )


def _counting(cells: Cells, size: int) -> Callable[[Rig, int, int], IntArray]:
    return lambda rig, rows, seed: np.bincount(cells(rig, rows, seed), minlength=size)


def _tabulation(
    title: str,
    law: Mapping[Prefix, Number],
    outcomes: Sequence[Prefix],
    cells: Cells,
    *,
    draft: FloatArray | None = None,
    alternatives: Mapping[str, FloatArray] | None = None,
) -> Tabulation:
    """Count cells, indices into `outcomes`, beside an exact law."""
    return Tabulation(
        title,
        tuple(",".join(map(str, outcome)) for outcome in outcomes),
        _vector(law, outcomes),
        _counting(cells, len(outcomes)),
        draft,
        alternatives or {},
    )


def _vector(law: Mapping[Prefix, Number], outcomes: Sequence[Prefix]) -> FloatArray:
    return np.array([float(law.get(outcome, 0)) for outcome in outcomes])


def _autoregressive(
    case: Case, length: int, cells: Cells, prefix: Prefix = ()
) -> Tabulation:
    """Joint law of `length` tokens of the target, and of the draft to bet on."""
    outcomes = list(itertools.product(range(case.vocab), repeat=length))
    law = steps.autoregressive_law(case.due, length, prefix)
    drafted = steps.autoregressive_law(_drafting(case, len(prefix)), length, prefix)
    return _tabulation(
        f"joint law of {length} tokens",
        law,
        outcomes,
        cells,
        draft=_vector(drafted, outcomes),
    )


def _drafting(case: Case, start: int) -> Model:
    """The model that emits every draft and then samples from the target."""
    return lambda prefix: (
        case.draft(prefix) if len(prefix) < start + case.k else case.due(prefix)
    )


def _emissions(case: Case) -> list[Prefix]:
    """Everything that one step can emit, possible or not: 1 to k + 1 tokens."""
    return [
        outcome
        for length in range(1, case.emits + 1)
        for outcome in itertools.product(range(case.vocab), repeat=length)
    ]


def _append(
    text: IntArray, done: IntArray, filled: IntArray, emitted_ids: IntArray
) -> tuple[IntArray, IntArray]:
    """Append what a round emitted: to the record `done`, and to the window `text`."""
    text, filled = text.copy(), filled.copy()
    for column in emitted_ids.T:
        live = column >= 0
        record = live & (filled < done.shape[1])
        done[record, filled[record]] = column[record]
        filled[live] += 1
        if text.shape[1]:
            text[live] = np.concatenate([text[live, 1:], column[live, None]], axis=1)
    return text, filled
