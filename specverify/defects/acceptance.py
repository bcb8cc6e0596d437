# SPDX-License-Identifier: Apache-2.0
"""A: drafts are not accepted with probability ``min(1, p/q)``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor

from specverify.defects.entry import Defect
from specverify.defects.verifier import (
    Arguments,
    Verifier,
    below_ratio,
)
from specverify.inputs import witnesses

#: Tests drafts, from uniforms, whole rows of p and q, and the drafts.
RowTest = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def testing(accepts: RowTest, **changes: Callable[..., Tensor]) -> Verifier:
    """Verifier whose test sees whole rows of p and q [batch, k, vocab]."""
    seen: list[Tensor] = []

    def reads(ids: Tensor, q: Tensor, p: Tensor) -> Arguments:
        seen[:] = p[:, : ids.shape[1]], q, ids
        return ids, q, p

    def test(u: Tensor, _p_x: Tensor, _q_x: Tensor) -> Tensor:
        p, q, ids = seen
        return accepts(u, p, q, ids)

    return Verifier(reads=reads, accepts=test, **changes)


def at_ids(rows: Tensor, ids: Tensor) -> Tensor:
    """Probability of every token of `ids`, from rows [batch, k, vocab]."""
    return rows.gather(2, ids[..., None]).squeeze(-1)


# --- the ratio ------------------------------------------------------------------------


def _always(u: Tensor, _p_x: Tensor, _q_x: Tensor) -> Tensor:
    return u < 1


def _inverted(u: Tensor, p_x: Tensor, q_x: Tensor) -> Tensor:
    return u * p_x < q_x


def _without_q(u: Tensor, p_x: Tensor, _q_x: Tensor) -> Tensor:
    return u < p_x


def _by_q(u: Tensor, _p_x: Tensor, q_x: Tensor) -> Tensor:
    return u < q_x


def _reversed(u: Tensor, p_x: Tensor, q_x: Tensor) -> Tensor:
    return u * q_x >= p_x


def _without_chance(_u: Tensor, p_x: Tensor, q_x: Tensor) -> Tensor:
    return q_x <= p_x


def _half_enough(_u: Tensor, p_x: Tensor, q_x: Tensor) -> Tensor:
    return q_x <= 2 * p_x


def _logs(u: Tensor, p_x: Tensor, q_x: Tensor) -> Tensor:
    return u * q_x < p_x.log()


def _first_unchecked(u: Tensor, p_x: Tensor, q_x: Tensor) -> Tensor:
    accepted = below_ratio(u, p_x, q_x)
    accepted[:, :1] = True
    return accepted


def _last_unchecked(u: Tensor, p_x: Tensor, q_x: Tensor) -> Tensor:
    accepted = below_ratio(u, p_x, q_x)
    accepted[:, -1:] = True
    return accepted


def _zero_below_p(u: Tensor, p_x: Tensor, q_x: Tensor) -> Tensor:
    return u * q_x <= p_x


def _of_eight_bits(batch: int, width: int, generator: torch.Generator) -> Tensor:
    """Uniforms of 8 bits: zero comes once in 256 draws."""
    u = torch.rand(batch, width, generator=generator, dtype=torch.float64)
    return (u * 256).floor() / 256


def _product(u: Tensor, p_x: Tensor, q_x: Tensor) -> Tensor:
    """Test every prefix by its joint ratio, with the uniform of its last draft."""
    return u * q_x.cumprod(dim=1) < p_x.cumprod(dim=1)


# --- whose ratio ----------------------------------------------------------------------


def _at_argmax(u: Tensor, p: Tensor, q: Tensor, _ids: Tensor) -> Tensor:
    top = q.argmax(dim=-1)
    return below_ratio(u, at_ids(p, top), at_ids(q, top))


def _of_first_draft(u: Tensor, p: Tensor, q: Tensor, ids: Tensor) -> Tensor:
    stale = ids[:, :1].expand_as(ids)
    return below_ratio(u, at_ids(p, stale), at_ids(q, stale))


def _of_row_before(u: Tensor, p: Tensor, q: Tensor, ids: Tensor) -> Tensor:
    rows = (torch.arange(ids.shape[1]) - 1).clamp_min(0)
    return below_ratio(u, at_ids(p[:, rows], ids), at_ids(q, ids))


def _against_top(u: Tensor, p: Tensor, q: Tensor, ids: Tensor) -> Tensor:
    return u * p.amax(dim=-1) < at_ids(q, ids)


def _is_argmax(_u: Tensor, p: Tensor, _q: Tensor, ids: Tensor) -> Tensor:
    return ids == p.argmax(dim=-1)


def _in_top_two(_u: Tensor, p: Tensor, _q: Tensor, ids: Tensor) -> Tensor:
    return (p > at_ids(p, ids)[..., None]).sum(dim=-1) < 2


DEFECTS: Final = (
    Defect(
        id="accepts-all",
        sentence="Every draft is accepted, whatever p says.",
        sources=("huggingface/transformers#28508", "vllm-project/vllm-ascend#13470"),
        make=lambda: Verifier(accepts=_always),
        shown_on=witnesses.C1,
        bias=0.4,
        blind_on=(
            "inputs with p = q, and the acceptance rate of an engine read as a success"
        ),
    ),
    Defect(
        id="accept-ratio-inverted",
        sentence="Drafts are accepted with probability q/p, not p/q.",
        sources=("feifeibear/LLMSpeculativeSampling 9f5d2e5",),
        make=lambda: Verifier(accepts=_inverted),
        shown_on=witnesses.C1,
        bias=0.4,
        blind_on="inputs with p = q",
    ),
    Defect(
        id="accept-at-draft-argmax",
        sentence="The ratio is looked up at the likeliest token of q, not at the draft.",
        sources=("jaymody/speculative-sampling 803de30",),
        make=lambda: testing(_at_argmax),
        shown_on=witnesses.C1,
        bias=0.0667,
        blind_on="drafts that are the likeliest token, so all deterministic ones",
    ),
    Defect(
        id="accept-by-stale-token",
        sentence="All positions are tested with the token of the first draft.",
        sources=("romsto/Speculative-Decoding 41668c8",),
        make=lambda: testing(_of_first_draft),
        shown_on=witnesses.J1,
        bias=0.156,
        blind_on="a single draft",
    ),
    Defect(
        id="accept-without-q",
        sentence="Drafts are accepted with probability p, not p/q.",
        sources=("mutant",),
        make=lambda: Verifier(accepts=_without_q),
        shown_on=witnesses.C1,
        bias=0.14,
        blind_on="one-hot drafts, where q is 1",
    ),
    Defect(
        id="accept-by-q",
        sentence="Drafts are accepted with probability q: the target is not asked.",
        sources=("mutant",),
        make=lambda: Verifier(accepts=_by_q),
        shown_on=witnesses.C1,
        bias=0.16,
        blind_on="inputs with p = q^2 where p is below q",
    ),
    Defect(
        id="accept-against-top",
        sentence="Drafts are accepted with probability q(x) / max p.",
        sources=("1bit-MONSTER/1bit-MONSTER#637",),
        make=lambda: testing(_against_top),
        shown_on=witnesses.C1,
        bias=0.4,
        blind_on="p = q, both uniform",
    ),
    Defect(
        id="accept-test-reversed",
        sentence="Drafts are rejected where they should be accepted.",
        sources=("mutant",),
        make=lambda: Verifier(accepts=_reversed),
        shown_on=witnesses.C1,
        bias=0.2,
        blind_on="inputs with p = q/2 at every draft",
    ),
    Defect(
        id="accept-without-chance",
        sentence="Drafts are accepted where p >= q and rejected elsewhere, without a draw.",
        sources=("mutant",),
        make=lambda: Verifier(accepts=_without_chance),
        shown_on=witnesses.C1,
        bias=0.2,
        blind_on="drafts with p >= q, and supports without a common token",
    ),
    Defect(
        id="accept-at-threshold",
        sentence="Drafts are accepted where p/q is at least 1/2, without a draw.",
        sources=("mutant",),
        make=lambda: Verifier(accepts=_half_enough),
        shown_on=witnesses.W,
        bias=0.125,
        blind_on="drafts with p >= q, and supports without a common token",
    ),
    Defect(
        id="accept-on-log-probs",
        sentence="The uniform is compared with the logarithm of p.",
        sources=("vllm-project/vllm-ascend#6685",),
        make=lambda: Verifier(accepts=_logs),
        shown_on=witnesses.C1,
        bias=0.25,
        blind_on="supports without a common token: all drafts are rejected anyway",
    ),
    Defect(
        id="accept-first-unchecked",
        sentence="The first draft is never tested.",
        sources=("ohdearquant/lattice#243", "ohdearquant/lattice#258"),
        make=lambda: Verifier(accepts=_first_unchecked),
        shown_on=witnesses.O1.with_(deterministic=False),
        bias=0.5,
        blind_on="inputs with p = q at the first position",
    ),
    Defect(
        id="accept-last-unchecked",
        sentence="The last draft is never tested.",
        sources=("mutant",),
        make=lambda: Verifier(accepts=_last_unchecked),
        shown_on=witnesses.J1,
        bias=0.18,
        blind_on="inputs with p = q at the last position",
    ),
    Defect(
        id="accept-zero-ratio",
        sentence=(
            "The test is u q <= p, and u is 0 once in 256 draws: drafts with p = 0 "
            "pass."
        ),
        sources=("sgl-project/sglang#35788", "Infini-AI-Lab/Sequoia 530d1bf"),
        make=lambda: Verifier(accepts=_zero_below_p, uniforms=_of_eight_bits),
        shown_on=witnesses.C5,
        bias=0.00211,
        blind_on="uniforms of more bits: 24, as in float32, make it 6e-8",
    ),
    Defect(
        id="accept-joint-ratio",
        sentence="A prefix is tested by its joint ratio, where each draft needs its own.",
        sources=("mutant",),
        make=lambda: Verifier(accepts=_product),
        shown_on=witnesses.J2,
        bias=0.107,
        blind_on="a single draft",
    ),
    Defect(
        id="accept-row-before",
        sentence="Drafts are tested with the target row one position before theirs.",
        sources=("mutant",),
        make=lambda: testing(_of_row_before),
        shown_on=witnesses.J1,
        bias=0.06,
        blind_on="a single draft, and rows that are all alike",
    ),
    Defect(
        id="accept-argmax-match",
        sentence=(
            "Drafts are accepted where they are the likeliest token of p, though it "
            "samples."
        ),
        sources=("vllm-project/vllm-gaudi#609",),
        make=lambda: testing(_is_argmax),
        shown_on=witnesses.C1,
        bias=0.3,
        blind_on="targets that are one-hot",
    ),
    Defect(
        id="accept-top-two",
        sentence="Drafts are accepted where they are among the two likeliest tokens of p.",
        sources=("mutant",),
        make=lambda: testing(_in_top_two),
        shown_on=witnesses.C1,
        bias=0.2,
        blind_on="drafts with p >= q inside the top two",
    ),
)
