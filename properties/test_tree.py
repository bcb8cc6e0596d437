# SPDX-License-Identifier: Apache-2.0
"""Trees of drafts: lossless from the root down and from the leaves up.

Laws are exact, over all trees that may be drawn; the law of the code comes from injected
uniforms, see `injected`. A chain and a star are trees, and there every rule is one of
those for chains and for several drafts.
"""

from fractions import Fraction
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from injected import (
    after,
    law_of_code,
    loop_law,
    repeatable,
    same_law,
)
from offers import chain_step, slot_step, tree_offers, tree_step

from specverify import core
from specverify.inputs import WITNESSES, Case, ToyModel
from specverify.inputs.strategies import (
    cases,
    model_pairs,
    multidraft_cases,
    tree_cases,
)
from specverify.inputs.trees import tree_case
from specverify.laws import (
    block,
    bounds,
    chain,
    matching,
    multidraft,
    ranks,
    steps,
    tree,
)
from specverify.laws.proposals import (
    NO_TOKEN,
    children,
    draft_law,
    path_to,
    tree_drafts,
)
from specverify.laws.tree import RULES

CODE = {
    "target_only": core.verify_tree_target_only,
    "recursive": core.verify_tree_recursive,
    "traversal": core.verify_tree_traversal,
    "multipath": core.verify_tree_paths,
}
every_rule = pytest.mark.parametrize("name", RULES)
with_a_draft_law = pytest.mark.parametrize("name", ["recursive", "traversal"])
seeds = st.integers(0, 2**32 - 1)
chains = cases(max_vocab=3, max_k=3, max_cells=27)

M1, FORK = WITNESSES["M1"], (-1, 0, 0)


def cases_of(name, max_nodes=5, max_cells=27):
    drafts = "paths" if name == "multipath" else RULES[name][1]
    return tree_cases(drafts=drafts, max_nodes=max_nodes, max_cells=max_cells)


def emitted_law(rule, case):
    return tree.output_law(rule, case.target, case.draft, case.parents, case.drafts)


def completed(rule, case):
    law = emitted_law(rule, case)
    return steps.completed_law(law, case.target, case.k + 1)


def is_lossless(rule, case):
    return completed(rule, case) == steps.autoregressive_law(case.target, case.k + 1)


# --- the joint law --------------------------------------------------------------------


@every_rule
@repeatable(max_examples=40)
@given(data=st.data())
def test_a_step_emits_the_joint_law_of_the_target(name, data):
    """L13, for as many tokens as the deepest path and one more."""
    assert is_lossless(RULES[name][0], data.draw(cases_of(name)))


@pytest.mark.parametrize("drafts", ["iid", "without_replacement", "greedy"])
@repeatable(max_examples=25)
@given(data=st.data())
def test_the_target_alone_is_lossless_for_drafts_of_any_kind(drafts, data):
    """L18: no draft law enters, and equal siblings do no harm."""
    case = data.draw(tree_cases(drafts=drafts, max_nodes=4, max_cells=27))

    assert is_lossless(tree.target_only, case)


@pytest.mark.parametrize("name", ["with_replacement", "kseq", "selection"])
@repeatable(max_examples=20)
@given(data=st.data())
def test_a_lossless_rule_for_one_position_is_one_for_trees(name, data):
    """L13: applied from the root down."""
    rule, drafts = multidraft.RULES[name]
    case = data.draw(tree_cases(drafts=drafts, max_nodes=4, max_cells=27))

    assert is_lossless(tree.top_down(rule), case)


shapes = st.sampled_from([(-1,), (-1, 0, 1), (-1, 0, 0), (-1, 0, 0, 1)])
forests = st.lists(shapes, min_size=1, max_size=4)


@with_a_draft_law
@repeatable(max_examples=15)
@given(pair=model_pairs(2), other=model_pairs(2), trees=forests)
def test_a_loop_may_choose_its_trees_by_what_is_committed(name, pair, other, trees):
    """L16: their shape, and the draft model too."""
    target = pair[0]
    rule, drafts = RULES[name]

    def step(prefix):
        parents = trees[(2 * sum(prefix) + len(prefix)) % len(trees)]
        draft = (pair, other)[len(prefix) % 2][1]
        return tree.output_law(
            rule, after(target, prefix), after(draft, prefix), parents, drafts
        )

    assert loop_law(step, 4) == steps.autoregressive_law(target, 4)


def pruned(rule, keep):
    """The rule on a tree of which some drawn nodes, and what is below, were dropped."""

    def verify(target, draft, parents, tokens):
        kept = list(tokens)
        for node in range(1, len(parents)):
            parent = parents[node]
            path = path_to(parents, kept, parent)
            slot = children(parents, parent).index(node)
            if NO_TOKEN in path or not keep(path, slot, tokens[node]):
                kept[node] = NO_TOKEN
        yield from rule(target, draft, parents, tuple(kept))

    return verify


@with_a_draft_law
@repeatable(max_examples=25)
@given(data=st.data(), widths=st.lists(st.integers(0, 2), min_size=1, max_size=4))
def test_a_tree_may_grow_by_the_path_that_leads_to_a_node(name, data, widths):
    """L18: how many children are drawn is decided before they are seen."""
    rule = pruned(
        RULES[name][0], lambda path, slot, _: slot < widths[sum(path) % len(widths)]
    )

    assert is_lossless(rule, data.draw(cases_of(name, max_nodes=4)))


@with_a_draft_law
def test_dropping_a_drawn_child_for_its_own_token_is_lossy(name):
    """L18: reranking a sampled tree by what was sampled."""
    rule = pruned(RULES[name][0], lambda _path, _slot, token: token != 0)
    case = tree_case(M1, FORK, "without_replacement")

    assert not is_lossless(rule, case)


def merged(parents, tokens):
    """Empty every node that equals a sibling before it, and what is below."""
    kept = list(tokens)
    for node in range(1, len(parents)):
        parent = parents[node]
        elder = [kept[x] for x in children(parents, parent) if x < node]
        if kept[node] in elder or (parent and kept[parent] == NO_TOKEN):
            kept[node] = NO_TOKEN
    return tuple(kept)


@with_a_draft_law
@repeatable(max_examples=25)
@given(data=st.data())
def test_independent_children_without_duplicates_count_as_successive(name, data):
    """L26."""

    def rule(target, draft, parents, tokens):
        return RULES[name][0](target, draft, parents, merged(parents, tokens))

    case = data.draw(tree_cases(drafts="iid", max_nodes=4, max_cells=27))
    assert is_lossless(rule, case)


def test_without_duplicates_they_do_not_count_as_independent():
    """L26: the draft law must lose what was rejected."""
    top_down = tree.top_down(multidraft.with_replacement)

    def rule(target, draft, parents, tokens):
        return top_down(target, draft, parents, merged(parents, tokens))

    assert not is_lossless(rule, tree_case(M1, FORK, "iid"))


def test_traversal_that_leaves_a_deleted_token_in_the_draft_law_is_lossy(monkeypatch):
    monkeypatch.setattr(tree, "removed", lambda q, _tokens: q)

    assert not is_lossless(tree.traversal, tree_case(M1, FORK, "without_replacement"))


def test_choosing_the_best_path_by_other_ties_than_its_law_has_is_lossy(monkeypatch):
    """As a published port does, which ranks by p/q capped at 1."""

    def capped(p, q):
        possible = [x for x, mass in enumerate(q) if mass]
        return sorted(possible, key=lambda x: (min(1, p[x] / q[x]), x))

    def lowest_first(target, draft, path):
        caps = (
            min(1, target(path[:i])[x] / draft(path[:i])[x]) for i, x in enumerate(path)
        )
        return [(cap, -x) for cap, x in zip(caps, path, strict=True)]

    case = tree_case(WITNESSES["W2"], FORK, "iid")
    monkeypatch.setattr(ranks, "ranked", capped)
    assert is_lossless(tree.multipath, case)

    monkeypatch.setattr(ranks, "path_ranks", lowest_first)
    assert not is_lossless(tree.multipath, case)


# --- a chain and a star are trees -----------------------------------------------------

ON_A_CHAIN = {
    "target_only": (matching, core.verify_match),
    "recursive": (chain, core.verify_chain),
    "traversal": (block, core.verify_block),
    "multipath": (block, core.verify_block),
}


@every_rule
@repeatable(max_examples=30)
@given(case=chains)
def test_on_a_chain_a_rule_is_that_for_chains(name, case):
    """L3 and L14: n = 1; traversal is block verification, identically."""
    line = tree_case(case, tuple(range(-1, case.k)), "iid")
    law = emitted_law(RULES[name][0], line)

    due = ON_A_CHAIN[name][0].emissions
    assert law == steps.output_law(due, case.target, case.draft, case.k)


@every_rule
@repeatable(max_examples=30)
@given(case=chains, seed=seeds)
def test_on_a_chain_the_code_does_what_that_for_chains_does(name, case, seed):
    """L14: pathwise, on the same uniforms."""
    ids, q, p, uniforms = chain_step(case, seed)
    due = ON_A_CHAIN[name][1](ids, q, p, uniforms=uniforms)
    nodes = torch.cat([torch.zeros_like(ids[:, :1]), ids], dim=1)
    leaf = torch.cat([q, p[:, -1:]], dim=1)
    if name != "target_only":  # where the root has the uniform of the last token
        uniforms = uniforms.roll(1, dims=1)
    found = CODE[name](nodes, range(-1, case.k), leaf, p, uniforms=uniforms)

    assert found.output_token_ids.equal(due.output_token_ids)


STARS = {"recursive": "without_replacement", "target_only": "target_only"}


@pytest.mark.parametrize("name", STARS)
@repeatable(max_examples=30)
@given(data=st.data(), seed=seeds)
def test_on_a_star_the_code_does_what_that_for_several_drafts_does(name, data, seed):
    """Pathwise: the root draws with the last uniform."""
    drafts = RULES[name][1]
    case = data.draw(multidraft_cases(drafts=drafts, max_n=3, max_vocab=4))
    step = case.target(()), case.draft(()), case.n, drafts
    ids, q, p, uniforms = slot_step(*step, seed)
    verify = getattr(core, f"verify_{STARS[name]}")
    due = verify(ids, q, p, uniforms=uniforms)
    nodes = torch.cat([torch.zeros_like(ids[:, :1]), ids], dim=1)
    laws = (x.unsqueeze(1).expand(-1, case.n + 1, -1) for x in (q, p))
    found = CODE[name](nodes, case.parents, *laws, uniforms=uniforms.roll(1, dims=1))

    assert found.output_token_ids[:, 0].equal(due.token_ids)


# --- how much is accepted -------------------------------------------------------------


def mean_accepted(rule, case):
    return tree.expected_accepted(
        rule, case.target, case.draft, case.parents, case.drafts
    )


def test_from_the_leaves_up_a_tree_may_accept_fewer_drafts():
    """L15 holds on a chain, but not on every tree. Hypothesis found this one."""
    half, one, zero = Fraction(1, 2), Fraction(1), Fraction(0)
    target = ToyModel(((half, half), (half, half), (one, zero)), memory=1)
    draft = ToyModel(((zero, one), (one, zero), (half, half)), memory=1)
    case = tree_case(Case(target, draft, 1), (-1, 0, 1, 1, 3), "without_replacement")

    assert mean_accepted(tree.recursive, case) == Fraction(9, 8)
    assert mean_accepted(tree.traversal, case) == 1


@every_rule
@repeatable(max_examples=30)
@given(data=st.data())
def test_at_the_root_no_more_is_accepted_than_the_drafts_allow(name, data):
    """L20 and L22."""
    case = data.draw(cases_of(name, max_nodes=4))
    law = emitted_law(RULES[name][0], case)
    found = sum(mass for emitted, mass in law.items() if len(emitted) > 1)

    drafts = draft_law(case.draft(()), len(case.children[0]), case.drafts)
    assert found <= bounds.optimum(case.target(()), drafts)


@repeatable(max_examples=30)
@given(case=cases_of("target_only"))
def test_a_deterministic_node_is_reached_as_often_as_the_target_goes_there(case):
    """L25: the mass of its path, whatever its siblings are."""
    ((tokens, _),) = tree_drafts(case.draft, case.parents, "deterministic")
    law = emitted_law(tree.target_only, case)
    for node in range(1, len(case.parents)):
        path = path_to(case.parents, tokens, node)
        if NO_TOKEN not in path:
            accepted = sum(mass for x, mass in law.items() if x[: len(path)] == path)
            due = steps.autoregressive_law(case.target, len(path))
            assert accepted == due.get(path, 0)


@repeatable(max_examples=30)
@given(case=cases_of("target_only"), data=st.data())
def test_the_order_of_deterministic_children_does_not_matter(case, data):
    """L25: siblings may change places, with all that is below them."""
    ((tokens, _),) = tree_drafts(case.draft, case.parents, "deterministic")
    turned = list(tokens)
    node = data.draw(st.sampled_from(range(len(case.parents))))
    leaves = [x for x in case.children[node] if not case.children[x]]
    for x, y in zip(leaves, data.draw(st.permutations(leaves)), strict=True):
        turned[x] = tokens[y]
    rule = partial(tree.target_only, case.target, case.draft, case.parents)

    assert dict(rule(tokens)) == dict(rule(tuple(turned)))


@with_a_draft_law
@repeatable(max_examples=15)
@given(pair=model_pairs(2))
def test_a_tree_that_holds_every_text_is_accepted_to_its_depth(name, pair):
    """L24: as many children as tokens; q is mixed so that it can draw them all."""
    target, draft = pair

    def full(prefix):
        return [(mass + 1) / 3 for mass in draft(prefix)]

    parents = (-1, 0, 0, 1, 1, 2, 2)
    law = tree.output_law(RULES[name][0], target, full, parents, RULES[name][1])
    assert law == steps.autoregressive_law(target, 3)


# --- the code -------------------------------------------------------------------------


def found_law(name, case):
    """Law of the emitted tokens, from the code."""

    def verify(ids, q, p, *, uniforms):
        return CODE[name](ids, case.parents, q, p, uniforms=uniforms)

    law = {}
    for (emitted, *_), mass in law_of_code(verify, tree_offers(name, case)).items():
        law[emitted] = law.get(emitted, 0) + mass
    return law


@every_rule
@repeatable(max_examples=20)
@given(data=st.data())
def test_the_code_has_exactly_the_stated_law(name, data):
    """L13: tokens, and with their number how many of them were accepted drafts."""
    case = data.draw(cases_of(name, max_nodes=4, max_cells=16))

    assert same_law(found_law(name, case), emitted_law(RULES[name][0], case))


def test_code_that_leaves_a_deleted_token_in_the_draft_law_has_another(monkeypatch):
    case = tree_case(M1, FORK, "without_replacement")
    monkeypatch.setattr("specverify.core.traversal.without", lambda q, _token: q)

    assert not same_law(found_law("traversal", case), emitted_law(tree.traversal, case))


@every_rule
@repeatable(max_examples=20)
@given(data=st.data(), seed=seeds)
def test_what_is_accepted_is_a_path_from_the_root_with_its_tokens(name, data, seed):
    """L22."""
    case = data.draw(cases_of(name))
    ids, q, p, uniforms = tree_step(case, seed)
    answer = CODE[name](ids, case.parents, q, p, uniforms=uniforms)
    for i, (emitted, count, nodes) in enumerate(zip(*map(list, answer), strict=True)):
        path = nodes[: int(count)].tolist()
        assert [case.parents[x] for x in path] == [0, *path[:-1]][: len(path)]
        assert emitted[: int(count)].equal(ids[i, path])


@every_rule
@repeatable(max_examples=20)
@given(data=st.data(), seed=seeds)
def test_no_token_is_emitted_that_the_target_excludes(name, data, seed):
    """L9: not even at the ends of the interval of the uniforms."""
    case = data.draw(cases_of(name))
    ids, q, p, uniforms = tree_step(case, seed)
    answer = CODE[name](ids, case.parents, q, p, uniforms=uniforms)
    for tokens, count in zip(*(x.tolist() for x in answer[:2]), strict=True):
        for i in range(count + 1):
            assert case.target(tokens[:i])[tokens[i]] > 0


@with_a_draft_law
@repeatable(max_examples=20)
@given(data=st.data())
def test_renaming_tokens_renames_the_law(name, data):
    """L10."""
    case = data.draw(cases_of(name))
    order = data.draw(st.permutations(range(case.vocab)))

    assert emitted_law(RULES[name][0], case.permuted(tuple(order))) == {
        tuple(order[x] for x in emitted): mass
        for emitted, mass in emitted_law(RULES[name][0], case).items()
    }
