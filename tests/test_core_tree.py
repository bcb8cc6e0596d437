# SPDX-License-Identifier: Apache-2.0
"""What the rules promise that walk down a tree of drafts: target-only and recursive."""

import itertools

import pytest
import torch
from branches import (
    LARGEST_UNIFORM,
    ROUNDING,
    chain_law,
    farthest,
    tree_law,
)
from calls import (
    DTYPES,
    random_tree,
    same,
    seeded,
    spoilt,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from specverify.core import (
    Topology,
    tree,
    verify_block,
    verify_chain,
    verify_target_only,
    verify_tree_recursive,
    verify_tree_target_only,
    verify_tree_traversal,
    verify_without_replacement,
)
from specverify.inputs import WITNESSES
from specverify.inputs.strategies import tree_cases
from specverify.laws import tree as laws

REPEATABLE = settings(max_examples=12, derandomize=True, deadline=None, database=None)
CODE = {
    "target_only": verify_tree_target_only,
    "recursive": verify_tree_recursive,
    "traversal": verify_tree_traversal,
}
SHAPES = [(-1,), (-1, 0, 1), (-1, 0, 0), (-1, 0, 0, 0), (-1, 0, 1, 1), (-1, 0, 0, 1)]
BUSH = (-1, 0, 0, 1, 1, 2, 4)
every_rule = pytest.mark.parametrize("name", CODE)

M1, W2, C5 = WITNESSES["M1"], WITNESSES["W2"], WITNESSES["C5"]


def miss(name, case, parents, *, verify=None, drafts=None, **options):
    """How far the law of the code lies from the stated one."""
    law, way = laws.RULES[name]
    way = drafts or way
    rounds = len(parents) if name == "target_only" else 1
    options = {"rounds": rounds, **options}
    found = tree_law(verify or CODE[name], case, parents, way, **options)
    stated = laws.output_law(law, case.target, case.draft, parents, way)
    return farthest(found, stated)


# --- the law --------------------------------------------------------------------------


@every_rule
@pytest.mark.parametrize("parents", SHAPES, ids=str)
def test_the_law_of_the_emitted_tokens_is_the_stated_one(name, parents, device):
    assert miss(name, M1, parents, device=device) <= ROUNDING


@every_rule
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_law_is_the_same_in_every_dtype(name, dtype, device):
    options = {"dtype": dtype, "device": device}

    assert miss(name, W2, (-1, 0, 0, 1), **options) <= ROUNDING


@every_rule
@REPEATABLE
@given(data=st.data())
def test_the_law_of_any_tree_is_the_stated_one(name, data):
    """With nodes that are not used, where q has fewer tokens than a node children."""
    way = laws.RULES[name][1]
    case = data.draw(tree_cases(drafts=way, max_nodes=4, max_cells=27))

    assert miss(name, case, case.parents) <= ROUNDING


@pytest.mark.parametrize("drafts", ["iid", "without_replacement", "greedy"])
def test_target_only_follows_the_target_for_drafts_from_anywhere(drafts, device):
    """Also with equal siblings."""
    options = {"drafts": drafts, "device": device}

    assert miss("target_only", M1, (-1, 0, 0, 1), **options) <= ROUNDING


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("recursive", "target_only"),
        ("recursive", "traversal"),
        ("traversal", "recursive"),
        ("traversal", "target_only"),
    ],
)
def test_another_rule_has_another_law(name, other):
    assert miss(name, M1, (-1, 0, 0, 1, 2), verify=CODE[other]) > 1e-3


BROKEN = {
    "q keeps a rejected token": ("without", lambda q, t: q),
    "a residual is p": ("residual_weights", lambda p, q: p),
    "every draft is accepted": ("accept_tokens", lambda p, q, u: u < 1),
    "the last token is the most likely": (
        "inverse_cdf",
        lambda weights, u: weights.argmax(dim=1),
    ),
}


@pytest.mark.parametrize("defect", BROKEN)
def test_a_broken_part_has_another_law(defect, monkeypatch):
    monkeypatch.setattr(tree, *BROKEN[defect])

    assert miss("recursive", M1, (-1, 0, 0, 1)) > 1e-3


def test_a_target_only_walk_that_forgets_to_stop_has_another_law(monkeypatch):
    """Its walk then draws below the last accepted node again."""
    draw = tree.inverse_cdf
    monkeypatch.setattr(tree, "inverse_cdf", lambda p, u: draw(p, u**2))

    assert miss("target_only", M1, (-1, 0, 0)) > 1e-3


# --- what a tree reduces to -----------------------------------------------------------


def on_a_chain(verify):
    """A rule for trees, as one for chains."""

    def chain(ids, q, p, *, uniforms):
        batch, k = ids.shape
        root = torch.zeros_like(ids[:, :1]).expand(batch, 1)
        tokens = torch.cat([root, ids], dim=1)
        rows = torch.cat([q, torch.full_like(p[:, :1], float("nan"))], dim=1)
        u = torch.cat([uniforms[:, k:], uniforms[:, :k]], dim=1)
        return verify(tokens, tuple(range(-1, k)), rows, p, uniforms=u)[:2]

    return chain


TWINS = [("recursive", verify_chain), ("traversal", verify_block)]


@pytest.mark.parametrize(("name", "chain"), TWINS)
@pytest.mark.parametrize("case", [M1, W2, C5], ids=lambda case: case.name)
def test_on_a_chain_a_rule_has_the_law_of_its_twin(name, chain, case, device):
    """Recursive that of token-level verification, traversal that of blocks."""
    law = chain_law(on_a_chain(CODE[name]), case, device=device)

    assert farthest(law, chain_law(chain, case)) <= ROUNDING


@pytest.mark.parametrize(("name", "chain"), TWINS)
def test_on_a_chain_it_does_not_have_the_law_of_the_other(name, chain):
    other = verify_block if chain is verify_chain else verify_chain
    law = chain_law(on_a_chain(CODE[name]), M1)

    assert farthest(law, chain_law(other, M1)) > 0.01


def test_on_a_chain_recursive_takes_the_same_tests(device):
    """With the same uniforms it emits the same tokens."""
    ids, q, p, u = random_tree(1, (-1, 0, 1, 2), drafts="iid", batch=300, device=device)
    root, *tests = u.unbind(dim=1)
    again = torch.stack([*tests, root], dim=1)
    chain = verify_chain(ids[:, 1:], q[:, :3], p, uniforms=again)

    result = verify_tree_recursive(ids, (-1, 0, 1, 2), q, p, uniforms=u)
    assert same(result[:2], chain)


def test_on_a_star_recursive_is_recursive_rejection(device):
    """With a bonus token behind the accepted draft."""
    parents = (-1, 0, 0, 0)
    ids, q, p, u = random_tree(
        2, parents, drafts="without_replacement", batch=300, device=device
    )
    star = torch.cat([u[:, 1:], u[:, :1]], dim=1)
    token, slot = verify_without_replacement(
        ids[:, 1:], q[:, 0], p[:, 0], uniforms=star
    )
    result = verify_tree_recursive(ids, parents, q, p, uniforms=u)

    assert same(
        (result.output_token_ids[:, 0], result.num_accepted),
        (token, (slot >= 0).long()),
    )


def test_on_a_star_target_only_is_the_rule_for_one_position(device):
    parents = (-1, 0, 0)
    ids, _, p, u = random_tree(3, parents, drafts="iid", batch=300, device=device)
    token, slot = verify_target_only(
        ids[:, 1:], None, p[:, 0], uniforms=u[:, [1, 2, 0]]
    )
    result = verify_tree_target_only(ids, parents, None, p, uniforms=u)

    assert same(
        (result.output_token_ids[:, 0], result.accepted_nodes[:, 0]),
        (token, torch.where(slot >= 0, slot + 1, -1)),
    )


def test_as_many_children_as_tokens_are_surely_accepted(device):
    """Without replacement (L24)."""
    parents = (-1, 0, 0, 0, 0)
    q, p = (
        torch.randn(200, 5, 4, generator=seeded(seed)).double().softmax(-1).to(device)
        for seed in (1, 2)
    )
    ids = torch.tensor([[0, 2, 0, 3, 1]], device=device).expand(200, 5)
    u = torch.full((200, 5), LARGEST_UNIFORM, dtype=torch.float64, device=device)

    result = verify_tree_recursive(ids, parents, q, p, uniforms=u)
    assert (result.num_accepted == 1).all()


def test_the_order_of_children_does_not_matter_to_target_only(device):
    """With the same uniforms the same tokens come out (L25)."""
    ids, _, p, u = random_tree(
        4, (-1, 0, 0, 0), drafts="deterministic", batch=300, device=device
    )
    stated = verify_tree_target_only(ids, (-1, 0, 0, 0), None, p, uniforms=u)

    for order in itertools.permutations((1, 2, 3)):
        turn = [0, *order]
        result = verify_tree_target_only(
            ids[:, turn], (-1, 0, 0, 0), None, p[:, turn], uniforms=u[:, turn]
        )
        assert same(result[:2], stated[:2])


def test_it_matters_to_recursive():
    """There a child is tested against what its elders left."""
    parents, turn = (-1, 0, 0, 0), [0, 3, 1, 2]
    ids, q, p, u = random_tree(4, parents, drafts="deterministic", batch=300)
    stated = verify_tree_recursive(ids, parents, q, p, uniforms=u)
    turned = (x[:, turn] for x in (ids, q, p))
    ids, q, p = turned
    result = verify_tree_recursive(ids, parents, q, p, uniforms=u[:, turn])

    assert not torch.equal(result.num_accepted, stated.num_accepted)


# --- what is emitted ------------------------------------------------------------------


def bush(name, seed, device="cpu", batch=300):
    way = laws.RULES[name][1]
    return random_tree(seed, BUSH, drafts=way, batch=batch, device=device)


@every_rule
def test_accepted_nodes_are_a_path_from_the_root_and_carry_the_tokens(name, device):
    ids, q, p, u = bush(name, 5, device)
    tokens, kept, nodes = CODE[name](ids, BUSH, q, p, uniforms=u)
    topology = Topology.of(BUSH)

    for row in range(len(ids)):
        count = int(kept[row])
        path = nodes[row, :count].tolist()
        assert path == list(topology.path(path[-1] if path else 0))
        assert nodes[row, count:].tolist() == [-1] * (topology.depth - count)
        assert tokens[row, :count].tolist() == ids[row, path].tolist()
        assert tokens[row, count] >= 0
        assert tokens[row, count + 1 :].tolist() == [-1] * (topology.depth - count)


@every_rule
def test_paths_of_every_length_occur(name):
    ids, q, p, u = bush(name, 5, batch=2000)
    kept = CODE[name](ids, BUSH, q, p, uniforms=u).num_accepted

    assert set(kept.tolist()) == {0, 1, 2, 3}


@every_rule
def test_no_token_is_emitted_that_the_target_excludes(name, device):
    ids, q, p, u = bush(name, 6, device)
    for uniforms in (u, torch.zeros_like(u), torch.full_like(u, LARGEST_UNIFORM)):
        tokens, kept, nodes = CODE[name](ids, BUSH, q, p, uniforms=uniforms)
        node = torch.zeros_like(kept)
        for depth in range(tokens.shape[1]):
            live = kept >= depth
            row = p[torch.arange(len(p), device=p.device), node]
            mass = row.gather(1, tokens[:, depth : depth + 1].clamp_min(0)).squeeze(1)
            assert (mass[live] > 0).all()
            if depth < nodes.shape[1]:
                node = torch.where(kept > depth, nodes[:, depth], node)


@every_rule
def test_an_unused_node_is_as_good_as_none(name, device):
    """A leaf more that no row uses, with anything in its rows."""
    parents = (-1, 0, 0, 1)
    way = laws.RULES[name][1]
    ids, q, p, u = random_tree(7, parents, drafts=way, batch=300, device=device)
    nothing = torch.full_like(p[:, :1], float("nan"))
    wide = torch.nn.functional.pad(ids, (0, 1), value=-1)
    more = torch.cat([u, torch.zeros_like(u[:, :1])], dim=1)
    stated = CODE[name](ids, parents, q, p, uniforms=u)

    for parent in (0, 1, 2):
        result = CODE[name](
            wide,
            (*parents, parent),
            torch.cat([q, nothing], dim=1),
            torch.cat([p, nothing], dim=1),
            uniforms=more,
        )
        assert same(result, stated)


@every_rule
def test_what_stands_in_rows_that_nothing_asks_for_is_ignored(name, device):
    """Target rows of unused nodes, draft rows without a child, the root's token."""
    ids, q, p, u = bush(name, 8, device)
    unused = ids < 0
    unused[:, 0] = False
    childless = torch.ones_like(unused)
    for node, parent in enumerate(BUSH[1:], start=1):
        childless[:, parent] &= unused[:, node]
    other_p, other_q = (
        torch.where(mask.unsqueeze(-1), float("nan"), rows)
        for mask, rows in ((unused, p), (childless, q))
    )
    other_ids = spoilt(ids, (slice(None), 0), 2**40)

    assert unused[:, 1:].any()
    assert same(
        CODE[name](other_ids, BUSH, other_q, other_p, uniforms=u),
        CODE[name](ids, BUSH, q, p, uniforms=u),
    )


@every_rule
def test_the_root_alone_draws_one_token_of_the_target(name, device):
    ids, q, p, u = random_tree(9, (-1,), drafts="iid", device=device)
    rows = p.expand(-1, 1, -1)
    chain = verify_chain(ids[:, :0], q[:, :0], rows, uniforms=u)

    result = CODE[name](ids, (-1,), q, p, uniforms=u)
    assert same(result[:2], chain)
    assert result.accepted_nodes.shape == (40, 0)
