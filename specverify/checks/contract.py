# SPDX-License-Identifier: Apache-2.0
"""The contract of a verifier: what it may return, touch and draw from."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from specverify.checks.common import STEPS, allowed, default_case, shapes
from specverify.checks.draws import open_streams
from specverify.checks.registry import check
from specverify.checks.reproduce import counterexample
from specverify.checks.session import Finding, Session
from specverify.inputs import witnesses
from specverify.inputs.cases import Case
from specverify.inputs.models import IntArray
from specverify.inputs.trees import MultidraftCase, TreeCase
from specverify.subjects.exchange import Emission, Inputs
from specverify.subjects.faults import SubjectFault
from specverify.subjects.protocol import Subject


@check(
    "output-contract",
    "The output is int64 and holds accepted drafts, then one recovered or bonus token "
    "from the vocabulary, then -1; of several drafts, a token and the draft that it is.",
    law="contract",
    effect="contract",
    grade="structural",
    kinds=STEPS,
)
def output_contract(session: Session) -> Finding:
    """Several k and batch sizes, from one row to past 64."""
    examples = samples = 0
    for case, batch in _shapes(session):
        inputs, drafts = _inputs(session, case, batch)
        stream, _ = open_streams(session.rig, session.seed(case, f"batch {batch}"))
        examples, samples = examples + 1, samples + batch
        try:
            emission = session.rig.verify(inputs, stream)
        except SubjectFault as fault:
            return _broken(session, case, f"{fault} (batch of {batch})", samples)
        stray = _stray(case, drafts, emission)
        if stray is not None:
            row, column = stray
            reason = (
                f"row {row} emits {emission.token_ids[row].tolist()} for the drafts "
                f"{drafts[row].tolist()}: token {column} stands before the last emitted "
                "one, so it must be the accepted draft"
            )
            return _broken(session, case, reason, samples)
    return Finding(
        "pass", samples=samples, examples=examples, examples_planned=examples
    )


def _stray(case: Case, drafts: IntArray, emission: Emission) -> tuple[int, int] | None:
    """Row and position of a token that stands for an accepted draft and is none."""
    if isinstance(case, MultidraftCase):
        return None  # the answer names the draft, and has been checked against it
    if isinstance(case, TreeCase):
        reached = np.zeros(drafts.shape, bool)  # nodes that the tokens so far lead to
        reached[:, 0] = True
    for position in range(case.k):
        inner = position < emission.num_emitted - 1
        token = emission.token_ids[:, position]
        if isinstance(case, TreeCase):
            reached = _below(case, reached) & (drafts == token[:, None])
            found = reached.any(axis=1)
        else:
            found = drafts[:, position] == token
        if (inner & ~found).any():
            return int((inner & ~found).argmax()), position
    return None


def _below(case: TreeCase, nodes: np.ndarray) -> np.ndarray:
    """Children of a set of nodes a row: bool [batch, nodes]."""
    parents = np.array(case.parents)
    below = nodes[:, parents]
    below[:, 0] = False  # nothing leads to the root
    return below


@check(
    "inputs-unchanged",
    "No input tensor is changed, bit for bit.",
    law="contract",
    effect="contract",
    grade="structural",
    kinds=STEPS,
)
def inputs_unchanged(session: Session) -> Finding:
    """Compare every argument with a copy made before the call."""
    samples = examples = 0
    for case, batch in _shapes(session):
        inputs, _ = _inputs(session, case, batch)
        before = inputs.clone()
        stream, _ = open_streams(session.rig, session.seed(case, f"batch {batch}"))
        session.rig.verify(inputs, stream)
        examples, samples = examples + 1, samples + batch
        for name, tensor in inputs.tensors().items():
            if not torch.equal(tensor, before.tensors()[name]):
                return _broken(session, case, f"it changed {name} in place", samples)
    return Finding(
        "pass", samples=samples, examples=examples, examples_planned=examples
    )


def needs_seeding(subject: Subject) -> str:
    """Reason to skip a check that replays randomness."""
    if subject.capabilities.rng == "internal":
        return "its randomness cannot be set from outside (rng='internal')"
    return ""


@check(
    "randomness",
    "The same seed gives the same output, another seed another one, and nothing but the "
    "declared source is drawn from.",
    law="contract",
    effect="contract",
    grade="structural",
    kinds=STEPS,
    needs=needs_seeding,
)
def randomness(session: Session) -> Finding:
    """Replay one batch with equal and with different seeds."""
    case = default_case(session.subject)
    inputs, _ = _inputs(session, case, 64)
    seed = session.seed(case, "replay")

    rig = session.rig
    streams = [
        rig.stream(seed),
        rig.stream(seed),
        rig.stream(seed + 1),
        rig.stream(seed, host_seed=seed ^ 1),
    ]
    first, again, other, elsewhere = (
        rig.verify(inputs.clone(), stream).token_ids for stream in streams
    )
    samples = 4 * len(first)
    source = session.capabilities.rng
    if not (first == again).all():
        rows = int((first != again).any(axis=1).sum())
        reason = f"two calls with equal {source} state differ in {rows} of 64 rows"
        return _broken(session, case, reason, samples)
    if session.capabilities.greedy:
        if not (first == other).all():
            reason = "greedy decoding gives different outputs for two seeds"
            return _broken(session, case, reason, samples)
    elif (first == other).all():
        reason = f"64 rows come out the same for two different states of its {source}"
        return _broken(session, case, reason, samples)
    if source in ("generator", "uniforms", "seed") and streams[0].moved_globals:
        reason = (
            f"it draws from torch's global generator, though it was given {source}="
        )
        return _broken(session, case, reason, samples)
    if not (first == elsewhere).all():
        reason = (
            "its output depends on the global state of NumPy's or Python's generator, "
            f"though its source is {source}"
        )
        return _broken(session, case, reason, samples)
    return Finding("pass", samples=samples, examples=1, examples_planned=1)


def _shapes(session: Session) -> Iterator[tuple[Case, int]]:
    """Cases and batch sizes: all numbers of drafts, batches from 1 to past 64."""
    named = [witnesses.M1, witnesses.W, witnesses.C5]
    alone = session.capabilities.max_batch == 1
    for case in (*shapes(session), *allowed(session, named)):
        for batch in (1, 2) if alone else (1, 2, 65, 130):
            yield case, batch


def _inputs(session: Session, case: Case, batch: int) -> tuple[Inputs, IntArray]:
    rng = np.random.default_rng(session.seed(case, f"inputs {batch}"))
    none = np.empty((batch, 0), np.int64)
    drafts = case.draw_drafts(none, rng)
    return session.rig.inputs(case, none, drafts), drafts


def _broken(session: Session, case: Case, reason: str, samples: int) -> Finding:
    return Finding(
        "violation",
        reason=reason,
        samples=samples,
        counterexample=counterexample(session, case, reason),
    )
