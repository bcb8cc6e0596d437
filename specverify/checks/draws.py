# SPDX-License-Identifier: Apache-2.0
"""Draw from a subject: drafts along the draft model, one or more verification steps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from specverify.checks.session import Session
from specverify.inputs.cases import Case
from specverify.inputs.models import IntArray
from specverify.statistics.ledger import derive_seed
from specverify.subjects.exchange import Emission
from specverify.subjects.rig import Rig
from specverify.subjects.streams import RandomStream

#: Rows between two looks at the clock.
_BATCH: Final = 1024


@dataclass(frozen=True, slots=True)
class Step:
    """One verification step on many rows.

    Attributes
    ----------
    drafts
        int64 [batch, k], [batch, n] or [batch, nodes]: see `Case.draw_drafts`.
    emission
        What the subject emitted.
    completed
        int64 [batch, emits]: the emitted tokens, then plain target sampling. A lossless
        step makes this follow the target's autoregressive law.
    """

    drafts: IntArray
    emission: Emission
    completed: IntArray

    @property
    def accepted(self) -> IntArray:
        """Number of accepted drafts, int64 [batch]."""
        return self.emission.accepted


def draw_steps(
    rig: Rig, case: Case, rows: int, seed: int, *, batch: int | None = None
) -> Iterator[Step]:
    """Draw `rows` independent steps, in batches as large as memory allows.

    With `batch`, in batches of that size, the last one whole.

    The subject's randomness and the harness's own (drafts, completion) come from two
    streams derived from `seed`.
    """
    stream, rng = open_streams(rig, seed)
    sizes = [batch] * -(-rows // batch) if batch else rig.chunks(case, rows)
    for size in sizes:
        yield draw_step(rig, case, np.empty((size, 0), np.int64), stream, rng)


def steps_in_time(session: Session, case: Case, rows: int) -> Iterator[Step]:
    """Draw `rows` steps, or as many as the time of the check allows."""
    batch = min(rows, _BATCH if session.capabilities.max_batch != 1 else _BATCH // 16)
    steps = draw_steps(session.rig, case, rows, session.seed(case), batch=batch)
    for step in steps:
        yield step
        if session.late:
            return


def open_streams(rig: Rig, seed: int) -> tuple[RandomStream, np.random.Generator]:
    """The subject's stream and the harness's, from one seed."""
    harness = np.random.default_rng(derive_seed(seed, "harness"))
    return rig.stream(derive_seed(seed, "subject")), harness


def draw_step(
    rig: Rig,
    case: Case,
    prefixes: IntArray,
    stream: RandomStream,
    rng: np.random.Generator,
) -> Step:
    """Draft, verify and complete one step behind `prefixes` [batch, length]."""
    drafts, emission = rig.step(case, prefixes, stream, rng)
    return Step(drafts, emission, complete(case, prefixes, emission, rng))


def complete(
    case: Case, prefixes: IntArray, emission: Emission, rng: np.random.Generator
) -> IntArray:
    """Continue every row with target samples to as many tokens as a step can emit."""
    tokens: IntArray = emission.token_ids.copy()
    for position in range(tokens.shape[1]):
        short = emission.num_emitted <= position
        if short.any():
            path = np.concatenate([prefixes[short], tokens[short, :position]], axis=1)
            tokens[short, position] = case.due.sample(path, rng)
    return tokens


def encode(tokens: IntArray, vocab: int) -> IntArray:
    """Number every row of tokens [batch, length] in base `vocab`."""
    code = np.zeros(len(tokens), np.int64)
    for column in tokens.T:
        code = code * vocab + column
    return code
