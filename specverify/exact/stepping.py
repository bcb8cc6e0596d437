# SPDX-License-Identifier: Apache-2.0
"""The exact law of one step of a subject: all drafts, all branches behind each."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Final

import numpy as np
import torch

from specverify.exact.enumeration import ExactLaw, exact_law, freeze
from specverify.exact.injection import box_law
from specverify.exact.variables import Unfollowed
from specverify.inputs.cases import Case
from specverify.inputs.models import IntArray
from specverify.inputs.trees import MultidraftCase, TreeCase
from specverify.laws import proposals, steps
from specverify.laws.distributions import Prefix
from specverify.subjects.answers import read, receive
from specverify.subjects.exchange import Inputs
from specverify.subjects.faults import SubjectFault, SubjectHung
from specverify.subjects.rig import Rig

#: Drafts, emitted tokens, number of accepted drafts.
Outcome = tuple[Prefix, Prefix, int]

_MOST_BRANCHES: Final = 5_000
#: Drafts behind which the first branch is run again, to see whether it repeats.
_REPEATED: Final = 3
#: Given to subjects that take a seed; none that a subject would choose itself.
_SEED: Final = 0x2F8B_61D7_C39A_4E15


@dataclass(frozen=True)
class StepLaw:
    """Joint law of drafts, emitted tokens and acceptance of one step on one case.

    Attributes
    ----------
    outcomes
        Probability of each (drafts, emitted tokens, accepted drafts).
    branches
        Runs of the subject that it took.
    unfollowed
        Probability that limits on runs or time cut off.
    """

    outcomes: dict[Outcome, Fraction]
    branches: int
    unfollowed: Fraction

    def emitted(self) -> dict[Prefix, Fraction]:
        """Law of the emitted tokens."""
        law: dict[Prefix, Fraction] = {}
        for (_, tokens, _), mass in self.outcomes.items():
            law[tokens] = law.get(tokens, Fraction(0)) + mass
        return law


def step_law(
    rig: Rig,
    case: Case,
    *,
    max_branches: int = _MOST_BRANCHES,
    seconds: float = 30.0,
) -> StepLaw:
    """Compute the exact law of one step of a subject on one case, one row a call.

    Parameters
    ----------
    rig
        Calls the subject.
    case
        The input; its drafts are enumerated, with their exact law.
    max_branches, seconds
        Limits for all of them together.

    Returns
    -------
    StepLaw
        The law, with the probability that limits cut off.

    Raises
    ------
    Unfollowed
        Randomness that cannot be followed.
    SubjectFault
        An answer that breaks the contract.
    """
    if rig.subject.capabilities.rng == "internal":
        raise Unfollowed("its randomness cannot be seen from outside (rng='internal')")
    limits = _Limits(max_branches, time.monotonic() + seconds)
    parts = _own_drafts if rig.subject.draft is not None else _given_drafts
    return _added(rig, limits, parts(rig, case, limits))


def injected_step_law(rig: Rig, case: Case, *, seed: int = 0) -> StepLaw:
    """Compute the same for a subject that takes ``uniforms=``, by choosing them.

    Nothing is intercepted and rows are put many to a call, so it serves compiled kernels;
    `branches` counts the rows.

    Raises
    ------
    Unfollowed
        Another source of randomness, or outcomes that fill no boxes of the uniforms.
    SubjectFault
        An answer that breaks the contract, an exception or a hang.
    """
    if rig.subject.capabilities.rng != "uniforms":
        raise Unfollowed("it takes no uniforms of our choice (rng is not 'uniforms')")
    paths = list(draft_paths(case))
    drafts = np.array([path for path, _ in paths], np.int64).reshape(len(paths), -1)
    known: dict[tuple[Prefix, int], int] = {}
    limits = _Limits(0, math.inf)

    def outcomes(group: IntArray, positions: IntArray) -> IntArray:
        none = np.empty((len(group), 0), np.int64)
        inputs = rig.inputs(case, none, drafts[group])
        uniforms = torch.from_numpy(positions).to(rig.device).float() * 2.0**-24
        limits.used += len(group)
        emission = rig.verify_with(inputs, uniforms)
        pairs = zip(
            map(tuple, emission.token_ids.tolist()),
            emission.accepted.tolist(),
            strict=True,
        )
        return np.array([known.setdefault(pair, len(known)) for pair in pairs])

    columns = rig.inputs(case, _nothing(), drafts[:1]).uniforms_shape[1]
    laws = box_law(outcomes, groups=len(paths), dims=columns, seed=seed)
    names = {number: pair for pair, number in known.items()}
    law: dict[Outcome, Fraction] = {}
    for (path, weight), found in zip(paths, laws, strict=True):
        for number, mass in found.items():
            ids, accepted = names[number]
            tokens = tuple(token for token in ids if token >= 0)
            law[path, tokens, accepted] = weight * mass
    return StepLaw(law, limits.used, Fraction(0))


def _added(rig: Rig, limits: _Limits, parts: Iterator[_Part]) -> StepLaw:
    """Add up what was followed."""
    law: dict[Outcome, Fraction] = {}
    followed = Fraction(0)
    for inputs, drafts, answer, mass in parts:
        tokens, accepted = _emission(rig, inputs, answer)
        key = (drafts, tokens, accepted)
        law[key] = law.get(key, Fraction(0)) + mass
        followed += mass
    return StepLaw(law, limits.used, 1 - followed)


@dataclass
class _Limits:
    """Runs and time that are left."""

    branches: int
    deadline: float
    used: int = 0
    calls: int = 0

    @property
    def reached(self) -> bool:
        """Whether either has run out."""
        return self.used >= self.branches or time.monotonic() >= self.deadline


#: Arguments, drafts, frozen answer, probability.
_Part = tuple[Inputs, Prefix, Any, Fraction]


def _given_drafts(rig: Rig, case: Case, limits: _Limits) -> Iterator[_Part]:
    """Follow the verifier behind every draft, with the draft's exact probability."""
    for drafts, weight in draft_paths(case):
        if limits.reached:
            return
        inputs = rig.inputs(case, _nothing(), np.array([drafts], np.int64))

        def verify(inputs: Inputs = inputs, **source: Any) -> Any:
            given = inputs.clone()  # a subject may change what it was given
            raw = rig.subject.fn(*given.arguments(), **_source(rig, given, **source))
            return receive(raw, given, rig.subject)

        for answer, mass in _followed(rig, verify, limits).outcomes.items():
            yield inputs, drafts, answer, weight * mass


def _own_drafts(rig: Rig, case: Case, limits: _Limits) -> Iterator[_Part]:
    """Follow drafter and verifier of the subject together: they may share randomness."""

    def step(generator: torch.Generator) -> Any:
        drafts, declared = _drafted(rig, case, generator)
        given = replace(rig.inputs(case, _nothing(), drafts), draft_probs=declared)
        source = _source(rig, given, generator)
        raw = rig.subject.fn(*given.arguments(), **source)
        return tuple(drafts[0].tolist()), receive(raw, given, rig.subject)

    outcomes: Mapping[Any, Fraction] = _followed(rig, step, limits).outcomes
    for (drafts, answer), mass in outcomes.items():
        inputs = rig.inputs(case, _nothing(), np.array([drafts], np.int64))
        yield inputs, drafts, answer, mass


def _drafted(
    rig: Rig, case: Case, generator: torch.Generator
) -> tuple[np.ndarray, torch.Tensor]:
    """Let the subject draft, inside the interception; tokens are decided."""
    drafter = rig.subject.draft
    assert drafter is not None  # noqa: S101 - asked for by _own_drafts only
    uses = rig.subject.capabilities.rng == "generator"
    source = {"generator": generator} if uses else {}
    if isinstance(case, MultidraftCase):
        ids, declared = drafter(rig.law(case.draft, case, _nothing()), **source)
        return np.array(freeze(ids), np.int64), declared
    text, rows = _nothing(), []
    for _ in range(case.k):
        ids, declared = drafter(rig.law(case.draft, case, text), **source)
        text = np.concatenate([text, np.array([freeze(ids)], np.int64)], axis=1)
        rows.append(declared)
    width = (1, 0, case.vocab)
    return text, torch.stack(rows, dim=1) if rows else torch.empty(width)


def _nothing() -> np.ndarray:
    return np.empty((1, 0), np.int64)


def draft_paths(case: Case) -> Iterator[tuple[Prefix, Fraction]]:
    """Everything that can be drafted on a case, in the layout of `Case.draw_drafts`."""
    if isinstance(case, MultidraftCase):
        law = proposals.draft_law(case.draft(()), case.n, case.drafts)
        yield from ((slots, Fraction(mass)) for slots, mass in law.items())
    elif isinstance(case, TreeCase):
        trees = proposals.tree_drafts(case.draft, case.parents, case.drafts)
        for tokens, mass in trees:
            yield (0, *tokens[1:]), Fraction(mass)
    else:
        paths = steps.autoregressive_law(case.draft, case.k)
        yield from ((path, Fraction(mass)) for path, mass in paths.items())


def _followed(rig: Rig, step: Callable[..., Any], limits: _Limits) -> ExactLaw:
    """Follow a function of a generator, without a trace left in the host."""
    generator = torch.Generator(rig.device)
    seconds = max(limits.deadline - time.monotonic(), 0.1)

    def follow() -> ExactLaw | Unfollowed:
        try:
            return exact_law(
                lambda: step(generator=generator),
                max_branches=limits.branches - limits.used,
                seconds=seconds,
                generators=[generator],
                seeds=[_SEED] if rig.subject.capabilities.rng == "seed" else [],
                repeat=limits.calls < _REPEATED,
            )
        except Unfollowed as reason:
            return reason

    stream = rig.stream(0)
    try:
        with stream.owning_globals():
            found = rig.attempt(follow, rig.call_seconds + seconds)
    except SubjectHung:
        raise
    except SubjectFault as fault:
        # It may be at fault, or not stand being followed: the other checks will tell.
        msg = f"while its random calls were answered {fault}"
        raise Unfollowed(msg) from fault
    if isinstance(found, Unfollowed):
        raise found
    assert isinstance(found, ExactLaw)  # noqa: S101 - one or the other
    limits.used += found.branches
    limits.calls += 1
    return found


def _source(rig: Rig, inputs: Inputs, generator: torch.Generator) -> dict[str, Any]:
    """Randomness in the form that the subject takes; inside the interception."""
    rng = rig.subject.capabilities.rng
    if rng == "generator":
        return {"generator": generator}
    if rng == "seed":
        return {"seed": _SEED}
    if rng == "uniforms":
        return {"uniforms": torch.rand(inputs.uniforms_shape, device=rig.device)}
    return {}


def _emission(rig: Rig, inputs: Inputs, answer: Any) -> tuple[Prefix, int]:
    """Emitted tokens and accepted drafts of an answer, its values checked."""
    ids, second = answer  # what `receive` gives, frozen
    emission = read(
        [(torch.tensor(ids), None if second is None else torch.tensor(second))],
        inputs,
        rig.subject,
    )
    count = int(emission.num_emitted[0])
    tokens = tuple(int(token) for token in emission.token_ids[0, :count])
    return tokens, int(emission.accepted[0])
