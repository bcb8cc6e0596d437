# SPDX-License-Identifier: Apache-2.0
"""T: other rules for several drafts, and drafts that were not drawn as declared."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

from specverify.core.drafting import draw_drafts
from specverify.core.multidraft import (
    verify_target_only,
    verify_with_replacement,
    verify_without_replacement,
)
from specverify.core.residual import residual_weights
from specverify.core.selection import verify_hub
from specverify.core.steps import MultidraftResult
from specverify.defects.entry import Defect
from specverify.defects.siblings import (
    FIXED,
    FIXED_DRAFTS,
    INDEPENDENT,
    INDEPENDENT_DRAFTS,
    W_FIXED,
    W_INDEPENDENT,
)
from specverify.defects.slots import Drafted, Siblings, accumulates, redraws
from specverify.inputs import witnesses
from specverify.inputs.trees import multidraft_case

_OWN: Final[dict[str, Any]] = {
    **INDEPENDENT_DRAFTS,
    "min_draft_tokens": 2,
    "max_draft_tokens": 2,
}


def _unchanged(p: Tensor, q: Tensor, token: Tensor) -> Tensor:
    return p


def _first_only(n: int) -> Iterable[int]:
    return (0,)


# --- rules ----------------------------------------------------------------------------


def _with_larger_ratio(
    draft_token_ids: Tensor,
    draft_probs: Tensor,
    target_probs: Tensor,
    *,
    generator: torch.Generator,
) -> MultidraftResult:
    """Choose the draft with the largest p/q, then test it as if it were the only one."""
    ratio = (target_probs.double() / draft_probs).gather(
        1, draft_token_ids.clamp_min(0)
    )
    ratio = ratio.masked_fill(draft_token_ids < 0, -1)
    slot = ratio.argmax(dim=1, keepdim=True)
    result = Siblings()(
        draft_token_ids.gather(1, slot), draft_probs, target_probs, generator=generator
    )
    chosen = torch.where(result.accepted < 0, -1, slot[:, 0])
    return MultidraftResult(result.token_ids, chosen)


def _undamped(
    draft_token_ids: Tensor,
    draft_probs: Tensor,
    target_probs: Tensor,
    *,
    generator: torch.Generator,
) -> MultidraftResult:
    """K-SEQ with rho = 1: all drafts see one ratio, and the residual is that of one."""

    def recovers(p: Tensor, left: Tensor) -> Tensor:
        return residual_weights(p, draft_probs)

    rule = Siblings(next_p=_unchanged, recovers=recovers)
    return rule(draft_token_ids, draft_probs, target_probs, generator=generator)


def _drawn_with_all_of_q(
    draft_token_ids: Tensor,
    draft_probs: Tensor,
    target_probs: Tensor,
    *,
    generator: torch.Generator,
) -> MultidraftResult:
    """Test the drawn slot behind fixed ones with q, fixed tokens included."""
    last = draft_token_ids.shape[1] - 1
    rule = Siblings(slots=lambda n: (last,))
    return rule(draft_token_ids, draft_probs, target_probs, generator=generator)


def _names_another_slot(
    draft_token_ids: Tensor,
    draft_probs: Tensor,
    target_probs: Tensor,
    *,
    generator: torch.Generator,
) -> MultidraftResult:
    result = verify_target_only(
        draft_token_ids, draft_probs, target_probs, generator=generator
    )
    return MultidraftResult(result.token_ids, result.accepted.clamp_min(0))


# --- drafters -------------------------------------------------------------------------


def _twice(q: Tensor, generator: torch.Generator) -> Tensor:
    return draw_drafts(q, 1, generator=generator).repeat(1, 2)


def _once_each(q: Tensor, generator: torch.Generator) -> Tensor:
    ids = draw_drafts(q, 2, generator=generator)
    again = ids[:, :1] == ids[:, 1:]
    return torch.cat([ids[:, :1], ids[:, 1:].masked_fill(again, -1)], dim=1)


def _likely_ones(q: Tensor, generator: torch.Generator) -> Tensor:
    ids = draw_drafts(q, 2, generator=generator)
    return ids.masked_fill(q.gather(1, ids) < 0.25, -1)


def _most_likely(q: Tensor, generator: torch.Generator) -> Tensor:
    return draw_drafts(q, 2, drafts="deterministic")


DEFECTS: Final = (
    Defect(
        id="kseq-undamped",
        sentence="K-SEQ without its damping: rho = 1.",
        sources=("mutant",),
        make=lambda: _undamped,
        shown_on=INDEPENDENT,
        bias=0.1,
        blind_on="one draft, p = q",
        kind="multidraft",
        capabilities=INDEPENDENT_DRAFTS,
    ),
    Defect(
        id="best-draft-as-if-only",
        sentence="The draft with the largest p/q is tested with q, as if it were alone.",
        sources=("mutant",),
        make=lambda: _with_larger_ratio,
        shown_on=INDEPENDENT,
        bias=0.08,
        blind_on="one draft, p = q",
        kind="multidraft",
        capabilities=INDEPENDENT_DRAFTS,
    ),
    Defect(
        id="hub-rule-on-independent-drafts",
        sentence="SpecHub's rule gets two independent drafts.",
        sources=("mutant",),
        make=lambda: verify_hub,
        shown_on=INDEPENDENT,
        bias=0.24,
        blind_on="one-hot q",
        kind="multidraft",
        capabilities=_OWN,
    ),
    Defect(
        id="successive-rule-on-fixed-drafts",
        sentence="Drafts are the most likely tokens, tested as if drawn from q.",
        sources=("ggml-org/llama.cpp",),
        make=lambda: verify_without_replacement,
        shown_on=FIXED,
        bias=0.167,
        blind_on="drafts drawn without replacement",
        kind="multidraft",
        capabilities=FIXED_DRAFTS,
    ),
    Defect(
        id="drawn-slot-with-all-of-q",
        sentence="The drawn slot behind fixed ones is tested with q, uncut.",
        sources=("mutant",),
        make=lambda: _drawn_with_all_of_q,
        shown_on=multidraft_case(witnesses.W, 2, "greedy"),
        bias=0.378,
        blind_on="one slot",
        kind="multidraft",
        capabilities={"drafts": "greedy", "ragged": True},
    ),
    Defect(
        id="target-redrawn-for-each-draft",
        sentence="Each draft is compared with a target draw of its own.",
        sources=(
            "FasterDecoding/Medusa",
            "foundation-model-stack/fms-extras#12",
            "foundation-model-stack/fms-extras#17",
        ),
        make=lambda: redraws,
        shown_on=FIXED,
        bias=0.16,
        blind_on="one draft",
        kind="multidraft",
        capabilities=FIXED_DRAFTS,
    ),
    Defect(
        id="duplicates-add-up",
        sentence="A draft that stands in two slots adds its p twice.",
        sources=("mutant",),
        make=lambda: accumulates,
        shown_on=INDEPENDENT,
        bias=0.0606,
        blind_on="distinct drafts",
        kind="multidraft",
        capabilities=INDEPENDENT_DRAFTS,
    ),
    Defect(
        id="coin-draws-token-behind-siblings",
        sentence="The coin that rejected all drafts draws the recovered token too.",
        sources=("sgl-project/sglang#7207",),
        make=lambda: partial(accumulates, coin_again=True),
        shown_on=W_FIXED,
        bias=0.235,
        blind_on="a residual of one token",
        kind="multidraft",
        capabilities=FIXED_DRAFTS,
    ),
    Defect(
        id="threshold-for-sum",
        sentence="The added p of the drafts is divided by 1/2 before the test.",
        sources=("sgl-project/sglang#7702",),
        make=lambda: partial(accumulates, threshold=0.5),
        shown_on=FIXED,
        bias=0.5,
        blind_on="thresholds of 1, drafts without mass under p",
        kind="multidraft",
        capabilities=FIXED_DRAFTS,
    ),
    Defect(
        id="threshold-for-one",
        sentence="A draft whose p reaches 0.3 is accepted by itself.",
        sources=("sgl-project/sglang#7702",),
        make=lambda: partial(accumulates, single=0.3),
        shown_on=FIXED,
        bias=0.5,
        blind_on="thresholds of 1, drafts with less p",
        kind="multidraft",
        capabilities=FIXED_DRAFTS,
    ),
    Defect(
        id="duplicate-subtracted-twice",
        sentence="One drawn token stands on two branches, and q is subtracted for both.",
        sources=("ggml-org/llama.cpp",),
        make=lambda: Drafted(_twice, verify_with_replacement),
        shown_on=INDEPENDENT,
        bias=0.0667,
        blind_on="drafts that the test draws itself",
        kind="multidraft",
        capabilities=_OWN,
        draft=True,
    ),
    Defect(
        id="duplicates-dropped-with-fixed-q",
        sentence="Duplicates are dropped from independent drafts, q is not narrowed.",
        sources=("mutant",),
        make=lambda: Drafted(_once_each, verify_with_replacement),
        shown_on=W_INDEPENDENT,
        bias=0.0859,
        blind_on="drafts that the test draws itself, p = q",
        kind="multidraft",
        capabilities=_OWN,
        draft=True,
    ),
    Defect(
        id="unlikely-drafts-pruned",
        sentence="Drafts of small q are pruned after they were drawn.",
        sources=("mutant",),
        make=lambda: Drafted(_likely_ones, verify_with_replacement),
        shown_on=INDEPENDENT,
        bias=0.152,
        blind_on="drafts that the test draws itself, q without small entries",
        kind="multidraft",
        capabilities=_OWN,
        draft=True,
    ),
    Defect(
        id="top-drafts-recorded-as-samples",
        sentence="Drafts are the most likely tokens, q is recorded as if they were drawn.",
        sources=("ggml-org/llama.cpp",),
        make=lambda: Drafted(_most_likely, Siblings()),
        shown_on=INDEPENDENT,
        bias=0.5,
        blind_on="drafts that the test draws itself",
        kind="multidraft",
        capabilities=_OWN,
        draft=True,
    ),
    Defect(
        id="names-another-slot",
        sentence="Accepted is called a slot that does not hold the emitted token.",
        sources=("mutant",),
        make=lambda: _names_another_slot,
        shown_on=INDEPENDENT,
        bias=0.0,
        blind_on="checks of the tokens alone",
        kind="multidraft",
        capabilities=INDEPENDENT_DRAFTS,
        effect="contract",
    ),
)
CONTROLS: Final = (
    Defect(
        id="first-draft-only",
        sentence="Only the first draft is tested; the residual may be another one.",
        sources=("mutant",),
        make=lambda: Siblings(slots=_first_only),
        shown_on=INDEPENDENT,
        bias=0.0,
        kind="multidraft",
        capabilities=INDEPENDENT_DRAFTS,
        effect="none",
    ),
    Defect(
        id="distinct-drafts-add-up",
        sentence="One coin against the added p of distinct drafts.",
        sources=("sgl-project/sglang",),
        make=lambda: accumulates,
        shown_on=FIXED,
        bias=0.0,
        kind="multidraft",
        capabilities=FIXED_DRAFTS,
        effect="none",
    ),
    Defect(
        id="target-only-with-duplicates",
        sentence="The target is sampled; drafts may be equal.",
        sources=("mutant",),
        make=lambda: verify_target_only,
        shown_on=INDEPENDENT,
        bias=0.0,
        kind="multidraft",
        capabilities=INDEPENDENT_DRAFTS,
        effect="none",
    ),
)
