# SPDX-License-Identifier: Apache-2.0
"""What is particular to trees that are judged from the leaves: traversal and paths."""

import pytest
import torch
from branches import ROUNDING, chain_law, farthest, tree_law
from calls import (
    DTYPES,
    global_state,
    random_chain,
    random_tree,
    same,
    seeded,
    spoilt,
    tree_call,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from specverify.core import (
    traversal,
    verify_block,
    verify_selected,
    verify_tree_paths,
    verify_tree_recursive,
    verify_tree_traversal,
)
from specverify.core.topology import parents_of_paths
from specverify.inputs import WITNESSES
from specverify.inputs.strategies import tree_cases
from specverify.laws import tree as laws
from specverify.statistics.chisquare import goodness_of_fit

REPEATABLE = settings(max_examples=12, derandomize=True, deadline=None, database=None)
M1, W2, P2, J2 = (WITNESSES[name] for name in ("M1", "W2", "P2", "J2"))
LEVEL = 1e-9


def miss(verify, rule, case, parents, drafts, **options):
    """How far the law of the code lies from that of a rule."""
    found = tree_law(verify, case, parents, drafts, **options)
    stated = laws.output_law(rule, case.target, case.draft, parents, drafts)
    return farthest(found, stated)


def paths_miss(case, paths, depth, **options):
    parents = parents_of_paths(paths, depth)
    return miss(verify_tree_paths, laws.multipath, case, parents, "iid", **options)


# --- traversal ------------------------------------------------------------------------


def traversal_miss(case=M1, parents=(-1, 0, 0, 1), **options):
    way = "without_replacement"
    return miss(verify_tree_traversal, laws.traversal, case, parents, way, **options)


@pytest.mark.parametrize(
    "parents", [(-1, 0, 1, 1, 0), (-1, 0, 0, 2, 2), (-1, 0, 1, 2, 0)], ids=str
)
def test_leaves_at_different_depths_are_cut_off_in_order(parents, device):
    assert traversal_miss(P2, parents, device=device) <= ROUNDING


def cut(*, weight=None, rest=None, q=None):
    """The step behind a lost child, with a part of its answer exchanged."""
    right = traversal._cut_off

    def wrong(w, p, q_, token, lost):
        answer = list(right(w, p, q_, token, lost))
        for place, other in enumerate((weight, rest, q)):
            if other is not None:
                answer[place] = other(w, p, q_)
        return tuple(answer)

    return wrong


BROKEN = {
    "the weight stays": cut(weight=lambda w, p, q: w),
    "the weight is one": cut(weight=lambda w, p, q: torch.ones_like(w)),
    "p stays": cut(rest=lambda w, p, q: p),
    "q stays": cut(q=lambda w, p, q: q),
}


@pytest.mark.parametrize("defect", BROKEN)
def test_a_broken_cut_has_another_law(defect, monkeypatch):
    monkeypatch.setattr(traversal, "_cut_off", BROKEN[defect])

    assert traversal_miss(parents=(-1, 0, 1, 0)) > 1e-3


def test_traversal_accepts_more_than_recursive_rejection():
    def mean(verify):
        law = tree_law(verify, M1, (-1, 0, 0, 1), "without_replacement")
        return sum((len(tokens) - 1) * mass for tokens, mass in law.items())

    assert mean(verify_tree_traversal) > mean(verify_tree_recursive) + 0.01


def test_a_deep_tree_with_far_rows_gives_tokens_of_the_target(device):
    """Its weights run down to 2^-300; NaN would end on a token of probability zero."""
    nodes = 31
    parents = tuple(range(-1, nodes - 1))
    p = torch.tensor([2.0**-10, 1 - 2.0**-10, 0.0], dtype=torch.float64)
    q = torch.tensor([1 - 2.0**-5, 2.0**-6, 2.0**-6], dtype=torch.float64)
    ids = torch.zeros(50, nodes, dtype=torch.int64, device=device)
    q, p = (x.to(device).expand(50, nodes, 3) for x in (q, p))
    result = verify_tree_traversal(ids, parents, q, p, generator=seeded(1, device))
    last = result.output_token_ids.gather(1, result.num_accepted.unsqueeze(1))

    assert ((last >= 0) & (last <= 1)).all()


# --- the best of several paths --------------------------------------------------------


@pytest.mark.parametrize(("paths", "depth"), [(1, 1), (3, 1), (1, 2), (2, 2)], ids=str)
def test_the_law_of_the_best_path_is_the_stated_one(paths, depth, device):
    case = P2 if paths * depth > 3 else M1

    assert paths_miss(case, paths, depth, device=device) <= ROUNDING


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_law_is_the_same_in_every_dtype(dtype, device):
    assert paths_miss(W2, 2, 1, dtype=dtype, device=device) <= ROUNDING


@REPEATABLE
@given(data=st.data())
def test_the_law_of_any_paths_is_the_stated_one(data):
    """With ties between the ratios of tokens."""
    case = data.draw(tree_cases(drafts="paths", max_nodes=4, max_cells=27))
    parents = case.parents

    found = miss(verify_tree_paths, laws.multipath, case, parents, "iid")
    assert found <= ROUNDING


def test_a_choice_against_the_order_of_the_law_has_another_law(monkeypatch):
    """The law of the winner then is not that of the path that won."""
    ranked = traversal.ranked

    def turned(p, q):
        rank, under = ranked(p, q)
        return p.shape[1] - 1 - rank, under

    monkeypatch.setattr(traversal, "ranked", turned)
    assert paths_miss(P2, 2, 1) > 1e-3


def test_a_winner_that_is_judged_by_the_draft_law_has_another_law(monkeypatch):
    """The mistake that choosing invites: q in the place of the winner's law."""
    monkeypatch.setattr(
        traversal, "_difference", lambda a, b, n: torch.ones_like(a + b)
    )

    assert paths_miss(P2, 2, 2) > 1e-3


def test_one_path_is_verified_as_a_block(device):
    ids, q, p, u = random_chain(2, batch=300, k=3, device=device)
    tokens = torch.cat([torch.full_like(ids[:, :1], 99), ids], dim=1)
    rows = torch.cat([q, torch.full_like(q[:, :1], float("nan"))], dim=1)
    again = torch.cat([u[:, 3:], u[:, :3]], dim=1)
    result = verify_tree_paths(tokens, (-1, 0, 1, 2), rows, p, uniforms=again)

    assert same(result[:2], verify_block(ids, q, p, uniforms=u))


def test_on_a_chain_paths_have_the_law_of_blocks():
    def verify(ids, q, p, *, uniforms):
        tokens = torch.cat([torch.zeros_like(ids[:, :1]), ids], dim=1)
        rows = torch.cat([q, torch.zeros_like(q[:, :1])], dim=1)
        u = torch.cat([uniforms[:, 2:], uniforms[:, :2]], dim=1)
        return verify_tree_paths(tokens, (-1, 0, 1), rows, p, uniforms=u)[:2]

    law = chain_law(verify, J2)
    assert farthest(law, chain_law(verify_block, J2)) <= ROUNDING


def test_paths_of_one_token_are_a_selection(device):
    """With a bonus token behind the accepted draft."""
    ids, q, p, u = random_tree(3, (-1, 0, 0, 0), drafts="iid", device=device)
    token, slot = verify_selected(
        ids[:, 1:], q[:, 0], p[:, 0], uniforms=u[:, [1, 2, 3, 0]]
    )
    result = verify_tree_paths(ids, (-1, 0, 0, 0), q, p, uniforms=u)
    nodes = torch.where(slot >= 0, slot + 1, -1)

    assert torch.equal(result.output_token_ids[:, 0], token)
    assert torch.equal(result.accepted_nodes[:, 0], nodes)


def test_the_root_alone_draws_one_token_of_the_target(device):
    ids, q, p, u = random_tree(4, (-1,), drafts="iid", device=device)
    result = verify_tree_paths(ids, (-1,), q, p, uniforms=u)

    assert same(result, verify_tree_recursive(ids, (-1,), q, p, uniforms=u))


def test_accepted_nodes_carry_the_emitted_tokens(device):
    parents = parents_of_paths(3, 2)
    ids, q, p = path_step(5, 3, 2, batch=300, device=device)
    tokens, kept, nodes = verify_tree_paths(
        ids, parents, q, p, generator=seeded(5, device)
    )

    assert torch.equal((nodes >= 0).sum(dim=1), kept)
    held = ids.gather(1, nodes.clamp_min(0))
    assert torch.equal(held[nodes >= 0], tokens[:, :2][nodes >= 0])
    assert set(kept.tolist()) == {0, 1, 2}


# --- several paths by sampling --------------------------------------------------------


def path_step(seed, paths, depth, *, case=M1, batch=20_000, device="cpu"):
    """Independent paths from the draft model, and the rows behind their nodes."""
    parents = parents_of_paths(paths, depth)
    draw = seeded(seed)
    q0, p0 = (torch.from_numpy(m.matrix) for m in (case.draft, case.target))
    ids = torch.zeros(batch, 1 + paths * depth, dtype=torch.int64)
    q, p = (x[:1].repeat(batch * ids.shape[1], 1).view(batch, -1, 3) for x in (q0, p0))
    for node, parent in enumerate(parents[1:], start=1):
        ids[:, node] = torch.multinomial(q[:, parent], 1, generator=draw)[:, 0]
        q[:, node], p[:, node] = q0[1 + ids[:, node]], p0[1 + ids[:, node]]
    return tuple(x.to(device) for x in (ids, q, p))


def sampled_fit(verify, paths=3, depth=2, device="cpu"):
    """P-value of the tokens, carried on by the target itself, against the target."""
    ids, q, p = path_step(6, paths, depth, device=device)
    parents = parents_of_paths(paths, depth)
    result = verify(ids, parents, q, p, generator=seeded(7, device))
    tokens, draw = result.output_token_ids.cpu(), seeded(8)
    rows = torch.from_numpy(M1.target.matrix)
    for place in range(1, depth + 1):
        more = torch.multinomial(rows[1 + tokens[:, place - 1]], 1, generator=draw)
        tokens[:, place] = torch.where(
            tokens[:, place] < 0, more[:, 0], tokens[:, place]
        )
    cells = (tokens * torch.tensor([9, 3, 1])).sum(dim=1).bincount(minlength=27)
    first, then = rows[0], rows[1:]
    probs = first[:, None, None] * then[:, :, None] * then[None]
    return goodness_of_fit(cells, probs.flatten().tolist(), level=LEVEL).p_value


def test_three_paths_of_two_tokens_emit_the_joint_law_of_the_target(device):
    assert sampled_fit(verify_tree_paths, device=device) >= LEVEL


def test_the_best_path_as_a_block_against_q_does_not(monkeypatch):
    monkeypatch.setattr(
        traversal, "_difference", lambda a, b, n: torch.ones_like(a + b)
    )

    assert sampled_fit(verify_tree_paths) < LEVEL


# --- calls ----------------------------------------------------------------------------

PAIR = parents_of_paths(2, 2)


def test_inputs_are_left_bitwise_unchanged(device):
    step = random_tree(9, PAIR, drafts="iid", device=device)
    before = [x.clone() for x in step]
    verify_tree_paths(step[0], PAIR, *step[1:3], uniforms=step[3])

    assert same(before, step)


def test_a_given_generator_is_the_only_one_that_advances(device):
    ids, q, p, _ = random_tree(10, PAIR, drafts="iid", device=device)
    generator = seeded(0, device)
    before = generator.get_state(), global_state(device)
    verify_tree_paths(ids, PAIR, q, p, generator=generator)

    assert not torch.equal(generator.get_state(), before[0])
    assert torch.equal(global_state(device), before[1])


@pytest.mark.parametrize(("second", "equal"), [(13, True), (14, False)])
def test_the_output_is_a_function_of_the_generator_state(second, equal, device):
    ids, q, p, _ = random_tree(11, PAIR, drafts="iid", batch=200, device=device)
    first, again = (
        verify_tree_paths(ids, PAIR, q, p, generator=seeded(seed, device))
        for seed in (13, second)
    )

    assert same(first, again) == equal


@pytest.mark.parametrize("device", ["cuda"], indirect=True)
def test_the_host_never_waits_for_the_device(device):
    ids, q, p, _ = random_tree(12, PAIR, drafts="iid", device=device)
    generator = seeded(0, device)
    torch.cuda.set_sync_debug_mode("error")
    try:
        verify_tree_paths(ids, PAIR, q, p, generator=generator)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def paths_call(**changes):
    """A valid call on two paths, of one token and of two nodes each, batch 2."""
    ids = torch.tensor([[0, 1, 2, 1, 3], [9, 0, 3, 2, 1]])
    rows = {
        name: torch.full((2, 5, 4), 0.25) for name in ("draft_probs", "target_probs")
    }
    valid = {"token_ids": ids, "parents": PAIR, "uniforms": torch.full((2, 5), 0.5)}
    return tree_call(**{**valid, **rows, **changes})


def test_the_call_that_the_errors_start_from_is_valid():
    assert verify_tree_paths(**paths_call()).output_token_ids.shape == (2, 3)


@pytest.mark.parametrize(
    "parents",
    [(-1, 0, 1, 1, 0), (-1, 0, 1, 0, 0), (-1, 0, 0, 1, 1), (-1, 0, 1, 2, 0)],
    ids=str,
)
def test_another_shape_than_paths_of_one_length_is_refused(parents):
    message = r"^parents is \[-1, 0.*; allowed are separate paths of one length"
    with pytest.raises(ValueError, match=message):
        verify_tree_paths(**paths_call(parents=parents))


def test_a_node_that_is_not_used_is_refused():
    ids = spoilt(paths_call()["token_ids"], (1, 4), -1)

    with pytest.raises(ValueError, match=r"^token_ids\[1, 4\] is -1; .* 0 and more"):
        verify_tree_paths(**paths_call(token_ids=ids))


def test_paths_without_the_law_of_the_drafts_are_refused():
    with pytest.raises(TypeError, match=r"^draft_probs is None; this rule needs"):
        verify_tree_paths(**paths_call(draft_probs=None))


BAD = [
    ("target_probs", torch.ones(2, 5, 4), ValueError, r"\[0, 0\] sums to 4; .* within"),
    ("token_ids", torch.full((2, 5), 4), ValueError, "is 4; .* -1 to 3"),
    ("uniforms", torch.ones(2, 5), ValueError, r"from 1 to 1; .* \[0, 1\)"),
    ("parents", (-1, 0, 1), ValueError, "has 3 nodes, token_ids 5"),
    ("parents", (-1, 0, 3, 0, 3), ValueError, r"\[2\] is 3; allowed is 0 to 1"),
]


@pytest.mark.parametrize(("name", "value", "error", "says"), BAD)
def test_a_bad_argument_is_refused_by_name_with_found_and_allowed(
    name, value, error, says
):
    with pytest.raises(error, match=f"^{name}.*{says}"):
        verify_tree_paths(**paths_call(**{name: value}))


def test_values_are_not_looked_at_where_validation_is_off():
    bad = paths_call(target_probs=torch.full((2, 5, 4), float("nan")))

    assert verify_tree_paths(**bad, validate=False).num_accepted.shape == (2,)
