# SPDX-License-Identifier: Apache-2.0
"""Subjects of the kinds multidraft and tree, and with drafters of their own; most wrong."""

import torch

import specverify
from specverify import core
from specverify.core.coupling import race, race_noise
from specverify.core.multidraft import token_masses
from specverify.core.residual import residual_weights
from specverify.core.steps import PLACEHOLDER_TOKEN_ID, ChainStep, MultidraftStep


def _pair(fn, drafts, **more):
    if "draft" in more:
        more |= {"min_draft_tokens": 3, "max_draft_tokens": 3}
    return specverify.subject(fn, kind="multidraft", drafts=drafts, ragged=True, **more)


# --- right rule, wrong drafts ---------------------------------------------------------

successive_rule_on_independent_drafts = _pair(core.verify_without_replacement, "iid")
independent_rule_on_successive_drafts = _pair(
    core.verify_with_replacement, "without_replacement"
)
independent_rule_on_fixed_drafts = _pair(core.verify_with_replacement, "deterministic")
hub_rule_on_independent_drafts = _pair(core.verify_hub, "iid", max_draft_tokens=2)
tree_rule_on_independent_drafts = specverify.subject(
    core.verify_tree_traversal, kind="tree", drafts="deterministic", ragged=True
)


# --- wrong rules ----------------------------------------------------------------------


def undamped(draft_token_ids, draft_probs, target_probs, *, generator):
    """K-SEQ that forgets its rho."""
    step = MultidraftStep.open(
        draft_token_ids, draft_probs, target_probs, generator=generator
    )
    accepted = torch.full_like(draft_token_ids[:, 0], PLACEHOLDER_TOKEN_ID)
    for slot in range(step.n):
        p, q = token_masses(step.p, step.q, step.token(slot))
        passed = (accepted < 0) & (step.uniforms[:, slot] * q < p)
        accepted = torch.where(passed, slot, accepted)
    return step.finish(accepted, residual_weights(step.p, step.q))


undamped = _pair(undamped, "iid")


def best_as_if_only(draft_token_ids, draft_probs, target_probs, *, generator):
    """Choose the draft with the largest p/q, then test it as if it were the only one."""
    step = MultidraftStep.open(
        draft_token_ids, draft_probs, target_probs, generator=generator
    )
    ratio = (step.p / step.q).gather(1, draft_token_ids.clamp_min(0))
    slot = ratio.nan_to_num(0).argmax(dim=1)
    p, q = token_masses(
        step.p, step.q, draft_token_ids.gather(1, slot[:, None])[:, 0].clamp_min(0)
    )
    passed = step.uniforms[:, 0] * q < p
    accepted = torch.where(passed, slot, PLACEHOLDER_TOKEN_ID)
    return step.finish(accepted, residual_weights(step.p, step.q))


best_as_if_only = _pair(best_as_if_only, "iid")


def says_it_accepted(draft_token_ids, draft_probs, target_probs, *, generator):
    """Name a slot that does not hold the emitted token."""
    result = core.verify_target_only(
        draft_token_ids, draft_probs, target_probs, generator=generator
    )
    return result.token_ids, result.accepted.clamp_min(0)


says_it_accepted = _pair(says_it_accepted, "iid")


def no_pair(draft_token_ids, draft_probs, target_probs, *, generator):
    """Return the tokens alone."""
    return core.verify_target_only(
        draft_token_ids, draft_probs, target_probs, generator=generator
    ).token_ids


no_pair = _pair(no_pair, "iid")


def leaves_the_tree(token_ids, parents, draft_probs, target_probs, *, generator):
    """Sample the target all the way down, wherever the tree ends."""
    result = core.verify_tree_target_only(
        token_ids, parents, draft_probs, target_probs, generator=generator
    )
    ids, depth = result.output_token_ids.clone(), result.accepted_nodes.shape[1]
    if depth:
        ids[:, depth] = torch.where(ids[:, depth] < 0, 0, ids[:, depth])
        ids[:, :depth] = torch.where(ids[:, :depth] < 0, 0, ids[:, :depth])
    return ids


leaves_the_tree = specverify.subject(
    leaves_the_tree, kind="tree", drafts="without_replacement", ragged=True
)


def counts_duplicates_twice(
    token_ids, parents, draft_probs, target_probs, *, generator
):
    """Accept a child with the accumulated p of its elder siblings, duplicates included."""
    del draft_probs
    topology = core.Topology.of(parents)
    batch, rows = len(token_ids), []
    for row in range(batch):
        node, emitted = 0, []
        while True:
            p = target_probs[row, node].double()
            coin, sum_, below = torch.rand(1, generator=generator).item(), 0.0, None
            left = p.clone()
            for child in topology.children[node]:
                token = int(token_ids[row, child])
                sum_ += float(p[token])
                if coin < sum_:
                    below = child
                    break
                left[token] = 0
            if below is None:
                weights = left if left.sum() > 0 else p
                emitted.append(int(torch.multinomial(weights, 1, generator=generator)))
                break
            emitted.append(int(token_ids[row, below]))
            node = below
        rows.append(emitted + [-1] * (topology.depth + 1 - len(emitted)))
    return torch.tensor(rows)


accumulates = specverify.subject(
    counts_duplicates_twice,
    kind="tree",
    drafts="deterministic",
    draft_probs=False,
    name="accumulates",
)
counts_duplicates_twice = specverify.subject(
    counts_duplicates_twice, kind="tree", drafts="iid", draft_probs=False
)


# --- drafters of their own ------------------------------------------------------------


def _three_drafts(draft_probs, *, generator):
    return core.draw_drafts(draft_probs, 3, generator=generator), draft_probs


own_drafter = _pair(core.verify_with_replacement, "iid", draft=_three_drafts)


def _deduplicated(draft_probs, *, generator):
    """Put a token that is there already out of its slot."""
    ids = core.draw_drafts(draft_probs, 3, generator=generator)
    for slot in (1, 2):
        again = (ids[:, :slot] == ids[:, slot : slot + 1]).any(dim=1)
        ids[:, slot] = torch.where(again, -1, ids[:, slot])
    return ids, draft_probs


deduplicated = _pair(core.verify_with_replacement, "iid", draft=_deduplicated)


def _pruned(draft_probs, *, generator):
    """Drop sampled drafts of small probability: the law that is left is not q."""
    ids = core.draw_drafts(draft_probs, 3, generator=generator)
    kept = draft_probs.gather(1, ids) >= 0.25
    return torch.where(kept, ids, -1), draft_probs


pruned = _pair(core.verify_with_replacement, "iid", draft=_pruned)


def _tempered(draft_probs, *, generator):
    """Draw at another temperature than the declared rows."""
    hot = draft_probs.double().sqrt()
    return race(hot, race_noise(tuple(hot.shape), generator=generator)), draft_probs


tempered = specverify.subject(core.verify_chain, draft=_tempered, name="tempered")


def _tempered_and_said(draft_probs, *, generator):
    hot = draft_probs.double().sqrt()
    hot = hot / hot.sum(dim=1, keepdim=True)
    return race(hot, race_noise(tuple(hot.shape), generator=generator)), hot


tempered_and_said = specverify.subject(core.verify_chain, draft=_tempered_and_said)


class _Shared:
    """The recovered token races on the noise that the drafter has raced on."""

    def __init__(self):
        self.noise = []

    def draft(self, draft_probs, *, generator):
        noise = race_noise(tuple(draft_probs.shape), generator=generator)
        self.noise.append(noise)
        return race(draft_probs, noise), draft_probs

    def verify(self, draft_token_ids, draft_probs, target_probs, *, generator):
        noise, self.noise = self.noise, []
        step = ChainStep.open(
            draft_token_ids, draft_probs, target_probs, generator=generator
        )
        p, q = step.drafted()
        accepted = step.accepted_prefix(step.uniforms[:, : step.k] * q < p)
        result = step.emit(accepted, residual_weights(*step.rows(accepted)))
        if not noise or len(noise) != step.k:
            return result
        stacked = torch.stack([*noise, torch.rand_like(noise[0])], dim=1)
        mine = stacked[torch.arange(len(accepted)), accepted]
        token = race(residual_weights(*step.rows(accepted)), mine)
        ids = result.output_token_ids.clone()
        short = accepted < step.k
        place = accepted[:, None]
        ids.scatter_(
            1, place, torch.where(short[:, None], token[:, None], ids.gather(1, place))
        )
        return ids


def shares_noise():
    """A fresh one: it keeps state between drafting and verifying."""
    shared = _Shared()
    return specverify.subject(shared.verify, draft=shared.draft, name="shares_noise")


# --- greedy and ragged ----------------------------------------------------------------

sampled_as_greedy = specverify.subject(
    core.verify_match, greedy=True, name="sampled_as_greedy"
)


def last_of_ties(draft_token_ids, draft_probs, target_probs):
    """Greedy decoding that breaks ties towards the highest id."""
    flipped = core.verify_greedy(
        target_probs.shape[2] - 1 - draft_token_ids,
        None,
        target_probs.flip(2),
        validate=False,
    ).output_token_ids
    return torch.where(flipped < 0, -1, target_probs.shape[2] - 1 - flipped)


last_of_ties = specverify.subject(last_of_ties, greedy=True)


def ignores_lengths(
    draft_token_ids, draft_probs, target_probs, *, generator, num_draft_tokens=None
):
    """Take the number of drafts of each row, and verify all that stands there."""
    del num_draft_tokens
    return core.verify_chain(
        draft_token_ids, draft_probs, target_probs, generator=generator, validate=False
    )


ignores_lengths = specverify.subject(ignores_lengths, ragged=True)
