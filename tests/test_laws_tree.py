# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: N802 - the laws are called L13 to L25 wherever they are written down
"""The laws of draft trees, with exact fractions on both sides."""

from fractions import Fraction
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specverify.inputs import WITNESSES, ToyModel
from specverify.inputs.strategies import cases, distributions, model_pairs
from specverify.laws import block, chain, multidraft, ranks, steps, tree
from specverify.laws.distributions import law_distance
from specverify.laws.proposals import NO_TOKEN, children, path_to, tree_drafts
from specverify.laws.tree import RULES

REPEATABLE = settings(max_examples=60, derandomize=True, deadline=None, database=None)

#: Root only; a chain; children at different depths, given breadth and depth first.
SHAPES = [
    (-1,),
    (-1, 0, 1),
    (-1, 0, 0),
    (-1, 0, 0, 0),
    (-1, 0, 0, 1, 1, 2),
    (-1, 0, 1, 1, 0),
]
#: Chains of one length below the root: independent paths.
PATHS = [(-1, 0), (-1, 0, 1), (-1, 0, 0), (-1, 0, 0, 1, 2), (-1, 0, 1, 0, 3)]
WAYS = ["iid", "without_replacement", "deterministic", "greedy"]

shapes, paths = st.sampled_from(SHAPES), st.sampled_from(PATHS)
small_cases = cases(max_vocab=3, max_k=3, max_cells=81)


@st.composite
def any_models(draw, vocab=3):
    """Target and draft with zeros, ties and one-hot rows, by the last token."""
    one_hot = st.integers(0, vocab - 1).map(
        lambda x: tuple(Fraction(x == y) for y in range(vocab))
    )
    row = st.one_of(distributions(vocab), one_hot)
    rows = st.lists(row, min_size=vocab + 1, max_size=vocab + 1)
    return tuple(ToyModel(tuple(draw(rows)), memory=1) for _ in range(2))


models = st.one_of(any_models(), any_models(4), model_pairs(3), model_pairs(2))


def depth(parents):
    return max(
        len(path_to(parents, (0,) * len(parents), i)) for i in range(len(parents))
    )


def bias(rule, pair, parents, drafts):
    """Total variation of one completed step from the target (L13)."""
    length = depth(parents) + 1
    law = tree.output_law(rule, *pair, parents, drafts)
    completed = steps.completed_law(law, pair[0], length)
    return law_distance(completed, steps.autoregressive_law(pair[0], length))


# --- drafts ---------------------------------------------------------------------------


@REPEATABLE
@given(pair=models, parents=shapes, drafts=st.sampled_from(WAYS))
def test_the_drafts_of_a_tree_have_a_law(pair, parents, drafts):
    drawn = list(tree_drafts(pair[1], parents, drafts))

    assert sum(mass for _, mass in drawn) == 1
    assert min(mass for _, mass in drawn) > 0
    assert len({tokens for tokens, _ in drawn}) == len(drawn)


@REPEATABLE
@given(pair=models, parents=shapes, drafts=st.sampled_from(WAYS))
def test_below_an_empty_node_all_nodes_are_empty(pair, parents, drafts):
    for tokens, _ in tree_drafts(pair[1], parents, drafts):
        empty = [i for i in range(1, len(parents)) if tokens[i] == NO_TOKEN]
        below = [child for i in empty for child in children(parents, i)]
        assert set(below) <= set(empty)


def test_a_draft_model_with_one_token_fills_one_node_of_a_level():
    sure = ToyModel(((Fraction(0), Fraction(1), Fraction(0)),))

    drawn = dict(tree_drafts(sure, (-1, 0, 0, 1, 2, 2), "without_replacement"))
    assert drawn == {(-1, 1, -1, 1, -1, -1): 1}


@REPEATABLE
@given(case=small_cases)
def test_on_a_chain_the_drafts_follow_the_draft_model(case):
    parents = tuple(range(-1, case.k))
    law = {tokens[1:]: m for tokens, m in tree_drafts(case.draft, parents, "iid")}

    assert law == steps.autoregressive_law(case.draft, case.k)


@pytest.mark.parametrize(
    ("parents", "message"),
    [
        ((), r"^parents is \(\); it must begin with -1, the root$"),
        ((0, 0), r"^parents is \(0, 0\); it must begin with -1, the root$"),
        ((-1, 0, 2), r"^parents\[2\] is 2; allowed are 0 to 1$"),
        ((-1, -1), r"^parents\[1\] is -1; allowed are 0 to 0$"),
    ],
)
def test_what_is_no_tree_is_refused_with_found_and_allowed(parents, message):
    with pytest.raises(ValueError, match=message):
        list(tree_drafts(WITNESSES["M1"].draft, parents, "iid"))


# --- every rule -----------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in RULES if name != "multipath"])
@REPEATABLE
@given(pair=models, parents=shapes)
def test_L13_one_step_completed_by_the_target_is_the_target(name, pair, parents):
    rule, drafts = RULES[name]

    assert bias(rule, pair, parents, drafts) == 0


@REPEATABLE
@given(pair=models, parents=paths)
def test_L13_the_best_of_several_paths_emits_the_target(pair, parents):
    rule, drafts = RULES["multipath"]

    assert bias(rule, pair, parents, drafts) == 0


@REPEATABLE
@given(pair=models, parents=shapes, drafts=st.sampled_from(WAYS))
def test_L13_the_target_alone_is_lossless_for_any_drafts(pair, parents, drafts):
    assert bias(tree.target_only, pair, parents, drafts) == 0


@pytest.mark.parametrize("name", ["with_replacement", "kseq", "selection"])
@settings(REPEATABLE, max_examples=20)
@given(pair=models, parents=shapes)
def test_L13_a_lossless_rule_for_one_position_is_one_for_trees(name, pair, parents):
    rule, drafts = multidraft.RULES[name]

    assert bias(tree.top_down(rule), pair, parents, drafts) == 0


def without_duplicates(parents, tokens):
    """Empty every node that equals a sibling before it, and what is below."""
    kept = list(tokens)
    for node in range(len(parents)):
        seen = set()
        for child in children(parents, node):
            empty = kept[child] in seen or (node and kept[node] == NO_TOKEN)
            kept[child] = NO_TOKEN if empty else kept[child]
            seen.add(kept[child])
    return tuple(kept)


@pytest.mark.parametrize("name", ["recursive", "traversal"])
@REPEATABLE
@given(pair=models, parents=shapes)
def test_L26_independent_children_without_duplicates_count_as_successive(
    name, pair, parents
):
    def rule(target, draft, parents, tokens):
        kept = without_duplicates(parents, tokens)
        return RULES[name][0](target, draft, parents, kept)

    assert bias(rule, pair, parents, "iid") == 0


@pytest.mark.parametrize("name", RULES)
def test_floats_give_the_same_law(name):
    rule, drafts = RULES[name]
    case, parents = WITNESSES["M1"], (-1, 0, 0, 1, 2)

    def in_floats(model):
        return lambda prefix: [float(mass) for mass in model(prefix)]

    pair = in_floats(case.target), in_floats(case.draft)
    exact = tree.output_law(rule, case.target, case.draft, parents, drafts)
    rounded = tree.output_law(rule, *pair, parents, drafts)

    for outcome in exact.keys() | rounded.keys():  # rounding can add or lose one
        expected = pytest.approx(float(exact.get(outcome, 0)), abs=1e-12)
        assert rounded.get(outcome, 0) == expected
    assert {type(mass) for mass in exact.values()} == {Fraction}


# --- a chain is a tree ----------------------------------------------------------------

ON_A_CHAIN = {
    "target_only": chain.emissions,
    "recursive": chain.emissions,
    "traversal": block.emissions,
    "multipath": block.emissions,
}


@pytest.mark.parametrize("name", ["recursive", "traversal", "multipath"])
@REPEATABLE
@given(case=small_cases)
def test_on_a_chain_a_rule_is_that_for_chains(name, case):
    rule, drafts = RULES[name]
    parents = tuple(range(-1, case.k))
    law = tree.output_law(rule, case.target, case.draft, parents, drafts)

    expected = steps.output_law(ON_A_CHAIN[name], case.target, case.draft, case.k)
    assert law == expected


@REPEATABLE
@given(case=small_cases)
def test_on_a_chain_most_likely_drafts_are_tested_as_a_one_hot_draft_law(case):
    parents = tuple(range(-1, case.k))
    law = tree.output_law(
        tree.target_only, case.target, case.draft, parents, "deterministic"
    )

    def one_hot(prefix):
        row = case.draft(prefix)
        return [Fraction(x == row.index(max(row))) for x in range(len(row))]

    assert law == steps.output_law(chain.emissions, case.target, one_hot, case.k)


# --- the target alone -----------------------------------------------------------------


@REPEATABLE
@given(pair=models, parents=shapes)
def test_L25_a_node_is_reached_with_the_mass_of_its_path(pair, parents):
    """Of equal paths there is one, for the most likely children are all different."""
    target, draft = pair
    ((tokens, _),) = tree_drafts(draft, parents, "deterministic")
    law = tree.output_law(tree.target_only, *pair, parents, "deterministic")

    for node in range(len(parents)):
        path = path_to(parents, tokens, node)
        if NO_TOKEN not in path:
            reached = sum(m for x, m in law.items() if x[: len(path)] == path)
            below = sum(m for x, m in law.items() if x == path)
            joint = steps.autoregressive_law(target, len(path))
            assert (reached, below) == (joint.get(path, 0), 0)


@REPEATABLE
@given(pair=models)
def test_L25_the_order_of_the_children_does_not_matter(pair):
    target, draft = pair
    parents, turned = (-1, 0, 0, 1, 2), (-1, 0, 0, 2, 1)
    ((tokens, _),) = tree_drafts(draft, parents, "deterministic")
    a, b, c, d = tokens[1:]

    first = dict(tree.target_only(target, draft, parents, tokens))
    assert first == dict(tree.target_only(target, draft, parents, (-1, b, a, d, c)))
    assert first == dict(tree.target_only(target, draft, turned, (-1, b, a, c, d)))


# --- the best of several paths --------------------------------------------------------


@REPEATABLE
@given(pair=models, parents=paths)
def test_the_best_path_has_the_stated_law(pair, parents):
    target, draft = pair
    law, n = {}, len(children(parents, 0))
    for tokens, mass in tree_drafts(draft, parents, "iid"):
        best = max(
            tree._chains(parents, tokens), key=partial(ranks.path_ranks, target, draft)
        )
        law[best] = law.get(best, 0) + mass

    stated = steps.autoregressive_law(ranks.best_path(target, draft, n), depth(parents))
    assert stated == law


def test_a_tree_that_branches_below_the_root_has_no_best_path():
    with pytest.raises(ValueError, match=r"allowed are chains of one length"):
        list(tree.multipath(*MARKOV, (-1, 0, 1, 1), (-1, 0, 1, 2)))


def test_paths_of_different_length_have_no_best_one():
    with pytest.raises(ValueError, match=r"allowed are chains of one length"):
        list(tree.multipath(*MARKOV, (-1, 0, 0, 1), (-1, 0, 1, 2)))


# --- controls: forms that are lossy ---------------------------------------------------

MARKOV = WITNESSES["M1"].target, WITNESSES["M1"].draft
PAIR = (-1, 0, 0)


def test_counting_the_mass_of_equal_children_twice_is_lossy():
    def accumulated(p, q, slots):
        """One coin against the sum of p over the children so far."""
        passed = Fraction(0)
        for slot, token in enumerate(slots):
            upto = min(1, passed + p[token])
            yield token, slot, upto - passed
            passed = upto
        rest = [0 if x in slots else mass for x, mass in enumerate(p)]
        for token, mass in enumerate(rest):
            if mass:
                yield token, NO_TOKEN, (1 - passed) * mass / sum(rest)

    assert bias(tree.top_down(accumulated), MARKOV, PAIR, "without_replacement") == 0
    assert bias(tree.top_down(accumulated), MARKOV, PAIR, "iid") > 0


def test_traversal_that_keeps_a_deleted_token_in_the_draft_law_is_lossy(monkeypatch):
    monkeypatch.setattr(tree, "removed", lambda q, tokens: q)

    assert bias(tree.traversal, MARKOV, PAIR, "without_replacement") > 0


def test_dropping_a_drawn_child_for_its_value_is_lossy():
    """A child that the draft thinks unlikely is not tested."""

    def pruned(target, draft, parents, tokens):
        kept = [-1 if t != -1 and draft(())[t] < Fraction(1, 2) else t for t in tokens]
        return tree.recursive(target, draft, parents, tuple(kept))

    assert bias(pruned, MARKOV, PAIR, "without_replacement") > 0


def capped(p, q):
    """Rank by p/q capped at 1, as a published port does; the lowest of ties is worst."""
    possible = [x for x, mass in enumerate(q) if mass]
    return sorted(possible, key=lambda x: (min(1, p[x] / q[x]), x))


@REPEATABLE
@given(pair=models, parents=paths)
def test_any_strict_order_of_paths_is_lossless(pair, parents):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranks, "ranked", capped)
        assert bias(tree.multipath, pair, parents, "iid") == 0


def test_choosing_a_path_by_other_ties_than_its_law_has_is_lossy(monkeypatch):
    def lowest_first(target, draft, path):
        caps = [
            min(1, target(path[:i])[x] / draft(path[:i])[x]) for i, x in enumerate(path)
        ]
        return [(cap, -x) for cap, x in zip(caps, path, strict=True)]

    monkeypatch.setattr(ranks, "ranked", capped)
    monkeypatch.setattr(ranks, "path_ranks", lowest_first)
    case = WITNESSES["W2"]

    assert bias(tree.multipath, (case.target, case.draft), PAIR, "iid") > 0
