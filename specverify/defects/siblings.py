# SPDX-License-Identifier: Apache-2.0
"""T: recursive rejection over several drafts with the wrong p or q for the next one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import torch
from torch import Tensor

from specverify.core.multidraft import without
from specverify.core.residual import residual_weights
from specverify.defects.drafter import normalised
from specverify.defects.entry import Defect
from specverify.defects.slots import Siblings, masked
from specverify.inputs import witnesses
from specverify.inputs.cases import Case
from specverify.inputs.models import ToyModel
from specverify.inputs.trees import multidraft_case

#: C1 with two drafts: independent, drawn without replacement, and fixed.
INDEPENDENT: Final = multidraft_case(witnesses.C1, 2, "iid")
SUCCESSIVE: Final = multidraft_case(witnesses.C1, 2, "without_replacement")
FIXED: Final = multidraft_case(witnesses.C1, 2, "deterministic")
#: The same with W: a residual of several tokens is left.
W_SUCCESSIVE: Final = multidraft_case(witnesses.W, 2, "without_replacement")
W_FIXED: Final = multidraft_case(witnesses.W, 2, "deterministic")
W_INDEPENDENT: Final = multidraft_case(witnesses.W, 2, "iid")
#: Two fixed drafts that have 0.7 of the target.
LIKELY: Final = multidraft_case(
    Case(
        ToyModel.from_positions([[".4", ".3", ".2", ".1"]] * 2),
        ToyModel.from_positions([[".5", ".3", ".1", ".1"]]),
        k=1,
        name="LIKELY",
    ),
    2,
    "deterministic",
)
INDEPENDENT_DRAFTS: Final[dict[str, Any]] = {"drafts": "iid", "ragged": True}
SUCCESSIVE_DRAFTS: Final[dict[str, Any]] = {
    "drafts": "without_replacement",
    "ragged": True,
}
FIXED_DRAFTS: Final[dict[str, Any]] = {"drafts": "deterministic", "ragged": True}


def _unchanged(p: Tensor, q: Tensor, token: Tensor) -> Tensor:
    return p


def _residual_unnormalised(p: Tensor, q: Tensor, token: Tensor) -> Tensor:
    return residual_weights(p, q)


def _token_removed(p: Tensor, q: Tensor, token: Tensor) -> Tensor:
    return without(p, token)


def _token_masked(p: Tensor, q: Tensor, token: Tensor) -> Tensor:
    return masked(p, token)


def _in_place(p: Tensor, q: Tensor, token: Tensor) -> Tensor:
    left = p.clone()
    left.sub_(q).clamp_min_(0)
    return torch.where(left.sum(dim=1, keepdim=True) > 0, normalised(left), p)


def _target(p: Tensor, left: Tensor) -> Tensor:
    return p


def _below_p(u: Tensor, p_x: Tensor, q_x: Tensor) -> Tensor:
    return u < p_x


def _backwards(n: int) -> Iterable[int]:
    return reversed(range(n))


DEFECTS: Final = (
    Defect(
        id="siblings-q-kept",
        sentence="Drafts drawn without replacement are all tested with q of the first.",
        sources=("SafeAILab/EAGLE#74",),
        make=Siblings,
        shown_on=SUCCESSIVE,
        bias=0.1,
        blind_on="one draft, p = q",
        kind="multidraft",
        capabilities=SUCCESSIVE_DRAFTS,
    ),
    Defect(
        id="siblings-q-masked-only",
        sentence="q loses the rejected token and is not normalised.",
        sources=("SafeAILab/EAGLE#74",),
        make=lambda: Siblings(next_q=masked),
        shown_on=SUCCESSIVE,
        bias=0.1,
        blind_on="one draft, p = q",
        kind="multidraft",
        capabilities=SUCCESSIVE_DRAFTS,
    ),
    Defect(
        id="siblings-q-narrowed",
        sentence="Independent drafts are tested as if drawn without replacement.",
        sources=("mutant",),
        make=lambda: Siblings(next_q=without),
        shown_on=INDEPENDENT,
        bias=0.06,
        blind_on="one draft, p = q",
        kind="multidraft",
        capabilities=INDEPENDENT_DRAFTS,
    ),
    Defect(
        id="siblings-p-kept",
        sentence="Every draft is tested with p, as if none had been rejected.",
        sources=("mutant",),
        make=lambda: Siblings(next_p=_unchanged, next_q=without),
        shown_on=SUCCESSIVE,
        bias=0.06,
        blind_on="one draft, p = q",
        kind="multidraft",
        capabilities=SUCCESSIVE_DRAFTS,
    ),
    Defect(
        id="siblings-p-unnormalised",
        sentence="The residual that the next draft is tested with is not normalised.",
        sources=("mutant",),
        make=lambda: Siblings(next_p=_residual_unnormalised, next_q=without),
        shown_on=W_SUCCESSIVE,
        bias=0.103,
        blind_on="one draft, p = q",
        kind="multidraft",
        capabilities=SUCCESSIVE_DRAFTS,
    ),
    Defect(
        id="siblings-recovered-from-p",
        sentence="When all drafts are rejected, the token is drawn from p.",
        sources=("mutant",),
        make=lambda: Siblings(next_q=without, recovers=_target),
        shown_on=W_SUCCESSIVE,
        bias=0.173,
        blind_on="as many drafts as tokens, p = q",
        kind="multidraft",
        capabilities=SUCCESSIVE_DRAFTS,
    ),
    Defect(
        id="siblings-in-reverse",
        sentence="Drafts drawn without replacement are tested in the reverse order.",
        sources=("mutant",),
        make=lambda: Siblings(next_q=without, slots=_backwards),
        shown_on=SUCCESSIVE,
        bias=0.1,
        blind_on="one draft, uniform q",
        kind="multidraft",
        capabilities=SUCCESSIVE_DRAFTS,
    ),
    Defect(
        id="fixed-siblings-p-masked-only",
        sentence="p loses the rejected draft and is not normalised for the next.",
        sources=("mutant",),
        make=lambda: Siblings(accepts=_below_p, next_p=_token_masked),
        shown_on=LIKELY,
        bias=0.12,
        blind_on="one draft",
        kind="multidraft",
        capabilities=FIXED_DRAFTS,
    ),
    Defect(
        id="fixed-siblings-p-kept",
        sentence="Fixed drafts are tested with all of p, which also draws the last token.",
        sources=("mutant",),
        make=lambda: Siblings(accepts=_below_p, next_p=_unchanged),
        shown_on=LIKELY,
        bias=0.174,
        blind_on="drafts without mass under p",
        kind="multidraft",
        capabilities=FIXED_DRAFTS,
    ),
)
CONTROLS: Final = (
    Defect(
        id="recursive-with-replacement",
        sentence="Independent drafts, each tested with q and what is left of p.",
        sources=("mutant",),
        make=Siblings,
        shown_on=INDEPENDENT,
        bias=0.0,
        kind="multidraft",
        capabilities=INDEPENDENT_DRAFTS,
        effect="none",
    ),
    Defect(
        id="recursive-without-replacement",
        sentence="Successive drafts, tested with q without the rejected ones.",
        sources=("mutant",),
        make=lambda: Siblings(next_q=without),
        shown_on=SUCCESSIVE,
        bias=0.0,
        kind="multidraft",
        capabilities=SUCCESSIVE_DRAFTS,
        effect="none",
    ),
    Defect(
        id="residual-in-place",
        sentence="p becomes its residual in place, in a copy.",
        sources=("NJUNLP/MCSD#5",),
        make=lambda: Siblings(next_p=_in_place),
        shown_on=INDEPENDENT,
        bias=0.0,
        kind="multidraft",
        capabilities=INDEPENDENT_DRAFTS,
        effect="none",
    ),
    Defect(
        id="fixed-siblings",
        sentence="Fixed drafts, tested with p without the rejected ones, normalised.",
        sources=("SafeAILab/EAGLE#183",),
        make=lambda: Siblings(accepts=_below_p, next_p=_token_removed),
        shown_on=LIKELY,
        bias=0.0,
        kind="multidraft",
        capabilities=FIXED_DRAFTS,
        effect="none",
    ),
    Defect(
        id="independent-drafts-in-reverse",
        sentence="Independent drafts are tested in the reverse order.",
        sources=("mutant",),
        make=lambda: Siblings(slots=_backwards),
        shown_on=INDEPENDENT,
        bias=0.0,
        kind="multidraft",
        capabilities=INDEPENDENT_DRAFTS,
        effect="none",
    ),
)
