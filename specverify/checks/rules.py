# SPDX-License-Identifier: Apache-2.0
"""Laws of the rules that a subject can claim to follow, on a case.

The names are the values of the capability ``efficiency``. A rule decides how much is
accepted; what comes out is the target's law under each of them.
"""

from __future__ import annotations

from typing import Final

from specverify.inputs.cases import Case
from specverify.inputs.trees import MultidraftCase, TreeCase
from specverify.laws import (
    block,
    bounds,
    chain,
    coupling,
    matching,
    multidraft,
    proposals,
    steps,
    tree,
)
from specverify.laws.distributions import Law, Number, Prefix

CHAIN_RULES: Final = {
    "token": chain.emissions,
    "block": block.emissions,
    "match": matching.emissions,
    "coupling": coupling.emissions,
}


def emitted_law(case: Case, rule: str) -> Law[Prefix]:
    """Law of the tokens that a step on a chain or a tree emits, before completion."""
    if isinstance(case, TreeCase):
        law = tree.RULES[rule][0]
        return tree.output_law(law, case.due, case.draft, case.parents, case.drafts)
    return steps.output_law(CHAIN_RULES[rule], case.due, case.draft, case.k)


def token_slot_law(case: MultidraftCase, rule: str) -> Law[tuple[int, int]]:
    """Law of the token and the accepted slot, -1 for none, of several drafts."""
    p, q = case.due(()), case.draft(())
    return multidraft.joint_law(multidraft.RULES[rule][0], p, q, case.n, case.drafts)


def accepted_law(case: Case, rule: str) -> list[Number]:
    """Law of the number of accepted drafts: entry i is ``P(accepted = i)``."""
    law: list[Number] = [0] * (case.k + 1)
    if isinstance(case, MultidraftCase):
        for (_, slot), mass in token_slot_law(case, rule).items():
            law[int(slot >= 0)] += mass
        return law
    for tokens, mass in emitted_law(case, rule).items():
        law[len(tokens) - 1] += mass
    return law


def acceptance_bounds(case: Case) -> list[float]:
    """Bounds on ``P(accepted >= i)``, i from 1, that no lossless rule can pass.

    Chains: L11, for every i up to k. Several drafts and trees: the optimum of one position
    (L20), for i = 1; beyond that no bound is known for trees.
    """
    if not isinstance(case, TreeCase):
        positions = range(1, case.k + 1)
        tails = (bounds.acceptance_bound(case.due, case.draft, i) for i in positions)
        return [min(1.0, float(tail)) for tail in tails]
    first = len(case.children[0])
    if not first:
        return []
    slots = proposals.draft_law(case.draft(()), first, case.drafts)
    return [min(1.0, float(bounds.optimum(case.due(()), slots)))]
