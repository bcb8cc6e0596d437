# SPDX-License-Identifier: Apache-2.0
"""Ways of counting what steps emit: each returns counts beside an exact law."""

from __future__ import annotations

import itertools

import numpy as np

from specverify.checks.comparison import Comparison
from specverify.checks.draws import complete, draw_step, draw_steps, encode, open_streams
from specverify.inputs.cases import Case
from specverify.inputs.models import IntArray, ToyModel
from specverify.laws import chain
from specverify.statistics.partitions import id_blocks, ratio_bins
from specverify.subjects.rig import Emission, Rig


def joint(rig: Rig, case: Case, rows: int, seed: int) -> Comparison:
    """Joint law of k + 1 tokens: emitted ones, completed by target sampling (L13)."""
    steps = draw_steps(rig, case, rows, seed)
    codes = [encode(step.completed, case.vocab) for step in steps]
    return _autoregressive(case, case.k + 1, np.concatenate(codes))


def joint_cells(case: Case) -> int:
    """Number of outcomes of `joint`."""
    return case.vocab ** (case.k + 1)


def emitted(rig: Rig, case: Case, rows: int, seed: int) -> Comparison:
    """Law of the emitted tokens before completion: tokens and acceptance together.

    For one position this is (token, accepted) of L3; the law is that of token-level
    verification.
    """
    law = chain.output_law(case.target, case.draft, case.k)
    outcomes = _emissions(case)
    base = case.vocab + 1  # -1 pads: shift by one
    index = np.full(base ** (case.k + 1), -1)
    padded = [(*o, *[-1] * (case.k + 1 - len(o))) for o in outcomes]
    index[encode(np.array(padded) + 1, base)] = np.arange(len(outcomes))
    cells = [
        index[encode(step.emission.token_ids + 1, base)]
        for step in draw_steps(rig, case, rows, seed)
    ]
    title = "emitted tokens and acceptance"
    return Comparison.of_law(title, law, outcomes, np.concatenate(cells))


def emitted_cells(case: Case) -> int:
    """Number of outcomes of `emitted`."""
    return len(_emissions(case))


def accepted_length(rig: Rig, case: Case, rows: int, seed: int) -> Comparison:
    """Law of the number of accepted drafts (L12)."""
    law = dict(enumerate(chain.accepted_law(case.target, case.draft, case.k)))
    lengths = [step.accepted for step in draw_steps(rig, case, rows, seed)]
    return Comparison.of_law(
        "accepted drafts",
        {(length,): mass for length, mass in law.items()},
        [(length,) for length in law],
        np.concatenate(lengths),
    )


def bonus(rig: Rig, case: Case, rows: int, seed: int) -> Comparison:
    """Law of the token behind k accepted drafts, on models that depend on position."""
    tokens = []
    for step in draw_steps(rig, case, rows, seed):
        tokens.append(step.completed[step.emission.num_emitted == case.k + 1, case.k])
    row = case.target((0,) * case.k)
    return Comparison.of_law(
        "bonus token",
        {(token,): mass for token, mass in enumerate(row)},
        [(token,) for token in range(case.vocab)],
        np.concatenate(tokens),
    )


def rounds(rig: Rig, case: Case, rows: int, seed: int) -> Comparison:
    """Joint law of the first tokens of a whole loop of steps (L16).

    Rows keep their place from round to round, and the subject keeps its stream of
    randomness, so state or noise that is carried over shows. The loop starts behind a
    prompt of zeros as long as the models look back.
    """
    length = rounds_length(case)
    stream, rng = open_streams(rig, seed)
    window = max(case.target.memory, case.draft.memory)
    codes = []
    for size in rig.chunks(case, rows):
        text = np.zeros((size, window), np.int64)
        done = np.full((size, length), -1)
        filled = np.zeros(size, np.int64)
        while (filled < length).any():
            step = draw_step(rig, case, text, stream, rng)
            text, filled = _append(text, done, filled, step.emission.token_ids)
        codes.append(encode(done, case.vocab))
    return _autoregressive(case, length, np.concatenate(codes), (0,) * window)


def rounds_length(case: Case) -> int:
    """Tokens that `rounds` looks at: more than one step emits, in at most 81 cells."""
    length = case.k + 2
    while case.vocab ** (length + 1) <= 81:
        length += 1
    return length


def rounds_cells(case: Case) -> int:
    """Number of outcomes of `rounds`."""
    return int(case.vocab ** rounds_length(case))


def pairs(rig: Rig, case: Case, rows: int, seed: int) -> Comparison:
    """First tokens of two rows of one batch, beside the product of their margins.

    Whether the margins are right is another check's question.
    """
    rng = np.random.default_rng(seed)
    table = np.zeros((case.vocab, case.vocab), np.int64)
    for step in draw_steps(rig, case, 2 * rows, seed):
        first = rng.permutation(step.completed[:, 0])
        half = len(first) // 2
        np.add.at(table, (first[:half], first[half : 2 * half]), 1)
    return Comparison.of_independence("pair of rows", table)


def pairs_cells(case: Case) -> int:
    """Number of outcomes of `pairs`."""
    return case.vocab**2


def mixed_batch(rig: Rig, case: Case, rows: int, seed: int) -> Comparison:
    """Joint law of the rows of one case while rows of another one sit between them.

    The neighbours are the same case with its tokens renamed, and batches hold 97 rows:
    past 64, and no multiple of a warp.
    """
    turned = tuple((t + 1) % case.vocab for t in range(case.vocab))
    other = case.permuted(turned)
    stream, rng = open_streams(rig, seed)
    mine, others = np.empty((49, 0), np.int64), np.empty((48, 0), np.int64)
    codes = []
    for _ in range(0, rows, len(mine)):
        drafts = case.draft.extend(mine, case.k, rng)
        neighbours = other.draft.extend(others, case.k, rng)
        inputs = rig.inputs(case, mine, drafts)
        batch = inputs.interleaved(rig.inputs(other, others, neighbours))
        emission = rig.verify(batch, stream)
        own = Emission(emission.token_ids[::2], emission.num_emitted[::2])
        codes.append(encode(complete(case, mine, own, rng), case.vocab))
    return _autoregressive(case, case.k + 1, np.concatenate(codes))


def partitioned(rig: Rig, case: Case, rows: int, seed: int) -> Comparison:
    """First token of a large vocabulary, in cells of q/p crossed with id blocks."""
    cells = _large_cells(case)
    counts = np.zeros(cells.max() + 1, np.int64)
    for step in draw_steps(rig, case, rows, seed):
        counts += np.bincount(cells[step.completed[:, 0]], minlength=len(counts))
    probs = np.bincount(cells, weights=case.target.matrix[0])
    labels = tuple(f"cell {i}" for i in range(len(counts)))
    return Comparison(f"vocab {case.vocab} in {len(counts)} cells", labels, counts, probs)


def partitioned_cells(case: Case) -> int:
    """Number of cells of `partitioned`."""
    return int(_large_cells(case).max()) + 1


def _large_cells(case: Case) -> IntArray:
    p, q = case.target.matrix[0], case.draft.matrix[0]
    block = id_blocks(p, size=-(-case.vocab // 4))
    crossed = ratio_bins(p, q, bins=8) * 4 + block
    return np.unique(crossed, return_inverse=True)[1].astype(np.int64)


def _autoregressive(
    case: Case, length: int, codes: IntArray, prefix: tuple[int, ...] = ()
) -> Comparison:
    law = chain.autoregressive_law(case.target, length, prefix)
    outcomes = list(itertools.product(range(case.vocab), repeat=length))
    return Comparison.of_law(f"joint law of {length} tokens", law, outcomes, codes)


def _emissions(case: Case) -> list[tuple[int, ...]]:
    """Everything that one step can emit, possible or not: 1 to k + 1 tokens."""
    return [
        outcome
        for length in range(1, case.k + 2)
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
