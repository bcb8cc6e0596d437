# SPDX-License-Identifier: Apache-2.0
"""Inputs with several drafts at one position, and with trees of drafts."""

import json
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st
from hypothesis.errors import NoSuchExample

from specverify.inputs import WITNESSES
from specverify.inputs.strategies import multidraft_cases, tree_cases
from specverify.inputs.trees import (
    DRAFTS,
    MultidraftCase,
    TreeCase,
    draw_slots,
    even_tree,
    multidraft_case,
    separate_paths,
    tree_case,
)
from specverify.laws.proposals import draft_law, tree_drafts
from specverify.statistics.chisquare import goodness_of_fit

REPEATABLE = settings(max_examples=50, derandomize=True, deadline=None, database=None)
LEVEL, DRAWS = 1e-9, 20_000
M1, W = WITNESSES["M1"], WITNESSES["W"]
SHAPE = (-1, 0, 0, 1, 2)
TREE = tree_case(M1, SHAPE, "without_replacement")
SLOTS = multidraft_case(W, 3, "iid")
SIZES = [(way, n) for way in DRAFTS for n in ((2,) if way == "hub" else (1, 2, 3))]
ROWS = {
    "full support": W.draft(()),
    "two tokens": (Fraction(0), Fraction(1, 4), Fraction(0), Fraction(3, 4)),
    "one token": (Fraction(0), Fraction(0), Fraction(1), Fraction(0)),
}
every_way = pytest.mark.parametrize("way", DRAFTS)


# --- drawing --------------------------------------------------------------------------


def p_value(drawn, stated):
    """Of rows against the law of their tuples."""
    found = Counter(map(tuple, drawn.tolist()))
    outcomes = [*stated, *(found.keys() - stated.keys())]
    counts = np.array([found[x] for x in outcomes])
    probs = [float(stated.get(x, 0)) for x in outcomes]
    return goodness_of_fit(counts, probs, level=LEVEL).p_value


def slots_fit(row, way, n, *, other=None):
    q = np.tile([float(x) for x in row], (DRAWS, 1))
    drawn = draw_slots(q, n, way, np.random.default_rng(1))
    return p_value(drawn, draft_law(row, n, other or way))


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize(("way", "n"), SIZES)
def test_the_slots_follow_the_law_of_their_way(way, n, name):
    assert slots_fit(ROWS[name], way, n) >= LEVEL


@pytest.mark.parametrize(
    ("way", "other"), [(a, b) for a in DRAFTS for b in DRAFTS if a != b]
)
def test_another_way_has_another_law(way, other):
    assert slots_fit(ROWS["full support"], way, 2, other=other) < LEVEL


@pytest.mark.parametrize("way", ["without_replacement", "deterministic", "greedy"])
def test_slots_beyond_the_tokens_of_q_are_empty(way):
    q = np.tile([0.25, 0.0, 0.75, 0.0], (50, 1))
    slots = draw_slots(q, 6, way, np.random.default_rng(2))

    assert slots.shape == (50, 6)
    assert ((slots >= 0).sum(axis=1) == 2).all()


@every_way
def test_each_row_is_drawn_from_its_own_q(way):
    slots = draw_slots(np.eye(4)[[2, 0, 3]], 2, way, np.random.default_rng(3))

    assert slots[:, 0].tolist() == [2, 0, 3]


@every_way
def test_drawing_leaves_q_unchanged_and_is_a_function_of_the_generator(way):
    q = np.random.default_rng(4).dirichlet(np.ones(5), size=200)
    before = q.copy()
    first, again = (
        draw_slots(q, 2, way, np.random.default_rng(5)).tolist() for _ in range(2)
    )

    assert first == again
    assert (q == before).all()


def tree_fit(case, way):
    """P-value of the tokens on a tree against their law."""
    drawn = case.draw_drafts(np.empty((DRAWS, 0), np.int64), np.random.default_rng(6))
    stated = {
        (0, *tokens[1:]): mass
        for tokens, mass in tree_drafts(case.draft, case.parents, way)
    }
    return p_value(drawn, stated)


@pytest.mark.parametrize(
    "way", ["iid", "without_replacement", "deterministic", "greedy"]
)
def test_the_tokens_of_a_tree_follow_their_law(way):
    """Each drawn behind the path to its parent."""
    assert tree_fit(tree_case(M1, SHAPE, way), way) >= LEVEL


def test_the_tokens_of_a_tree_drawn_in_another_way_do_not():
    assert tree_fit(tree_case(M1, SHAPE, "iid"), "without_replacement") < LEVEL


def test_below_an_unused_node_all_are_unused():
    case = tree_case(WITNESSES["D2"], (-1, 0, 0, 2, 1), "deterministic")
    drawn = case.draw_drafts(np.empty((3, 0), np.int64), np.random.default_rng(7))

    assert drawn.tolist() == [[0, 2, -1, -1, 0]] * 3


def test_the_root_holds_the_last_committed_token():
    prefixes = np.array([[1, 2], [0, 1]])
    drawn = TREE.draw_drafts(prefixes, np.random.default_rng(8))

    assert drawn[:, 0].tolist() == [2, 1]


def test_a_tree_is_drawn_behind_the_committed_tokens():
    """M1 looks back one token: behind 2 its draft law is another one."""
    case = multidraft_case(M1, 1, "iid")
    prefixes = np.full((DRAWS, 1), 2)
    drawn = case.draw_drafts(prefixes, np.random.default_rng(9))

    law = {(x,): mass for x, mass in enumerate(M1.draft((2,)))}
    other = {(x,): mass for x, mass in enumerate(M1.draft(()))}
    assert p_value(drawn, law) >= LEVEL
    assert p_value(drawn, other) < LEVEL


# --- shapes ---------------------------------------------------------------------------


def test_a_tree_knows_its_children_paths_and_sizes():
    assert TREE.children == ((1, 2), (3,), (4,), (), ())
    assert TREE.paths == ((), (1,), (2,), (1, 3), (2, 4))
    assert (TREE.k, TREE.width, TREE.columns, TREE.emits) == (2, 2, 10, 3)


def test_several_drafts_at_one_position_emit_one_token():
    assert (SLOTS.n, SLOTS.k, SLOTS.emits, SLOTS.columns) == (3, 1, 1, 2)


def test_text_behind_a_node_is_the_prefix_and_the_path():
    tokens = np.array([[9, 0, 1, 2, -1]])
    prefixes = np.array([[5, 6]])

    assert TREE.behind(tokens, prefixes, 3).tolist() == [[5, 6, 0, 2]]
    assert TREE.behind(tokens, prefixes, 4).tolist() == [[5, 6, 1, 0]]


@pytest.mark.parametrize(
    ("widths", "parents"),
    [
        ((), (-1,)),
        ((2,), (-1, 0, 0)),
        ((2, 1), (-1, 0, 0, 1, 2)),
        ((1, 2), (-1, 0, 1, 1)),
    ],
)
def test_an_even_tree_has_the_widths_asked_for(widths, parents):
    assert even_tree(widths) == parents


@pytest.mark.parametrize(
    ("paths", "depth", "parents"),
    [(1, 1, (-1, 0)), (2, 2, (-1, 0, 1, 0, 3)), (3, 1, (-1, 0, 0, 0))],
)
def test_separate_paths_share_the_root_only(paths, depth, parents):
    assert separate_paths(paths, depth) == parents


def test_models_name_and_dtype_of_a_case_are_kept():
    case = W.with_(dtype="bfloat16")

    for other in (tree_case(case, SHAPE, "iid"), multidraft_case(case, 2, "iid")):
        kept = other.target, other.draft, other.dtype, other.name
        assert kept == (case.target, case.draft, "bfloat16", "W")


# --- identity -------------------------------------------------------------------------


@pytest.mark.parametrize("case", [TREE, SLOTS, SLOTS.with_(dtype="float64", name="")])
def test_a_case_survives_json(case):
    data = json.loads(json.dumps(case.to_json()))

    assert type(case).from_json(data) == case


CHANGES = [
    {"parents": (-1, 0, 0, 1, 1)},
    {"drafts": "iid"},
    {"dtype": "float64"},
    {"target": M1.draft},
    {"draft": M1.target},
]


@pytest.mark.parametrize("changes", CHANGES, ids=lambda changes: next(iter(changes)))
def test_the_key_tells_trees_apart(changes):
    assert TREE.with_(**changes).key != TREE.key


def test_the_key_ignores_the_name():
    assert TREE.with_(name="other").key == TREE.key


def test_the_key_tells_a_chain_from_a_tree_and_numbers_of_drafts_apart():
    keys = {
        M1.with_(k=1).key,
        tree_case(M1, (-1, 0), "iid").key,
        *(multidraft_case(M1, n, "iid").key for n in (2, 3)),
    }

    assert len(keys) == 4


def test_a_description_names_the_drafts():
    assert TREE.describe().splitlines()[0] == (
        "witness M1: vocab 3, tree [-1, 0, 0, 1, 2], drafts without replacement, float32"
    )
    assert SLOTS.describe().splitlines()[0] == (
        "witness W: vocab 4, n = 3 drafts, iid, float32"
    )


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"parents": ()}, r"parents is \(\); it must begin with -1, the root"),
        ({"parents": (0, 0)}, r"parents is \(0, 0\); it must begin with -1, the root"),
        ({"parents": (-1, 2, 1)}, r"parents\[1\] is 2; allowed are 0 to 0"),
        ({"parents": (-1, -1)}, r"parents\[1\] is -1; allowed are 0 to 0"),
        ({"drafts": "best"}, "drafts is 'best'; allowed are iid, without_replacement"),
        ({"k": 3}, r"k is 3; the tree \(-1, 0, 0, 1, 2\) has depth 2"),
    ],
)
def test_a_bad_case_is_refused_with_found_and_allowed(changes, says):
    with pytest.raises(ValueError, match=f"^{says}"):
        TREE.with_(**changes)


def test_permuting_and_padding_keep_the_tree():
    for case in (TREE.permuted((1, 2, 0)), TREE.padded(2)):
        assert isinstance(case, TreeCase)
        assert (case.parents, case.drafts) == (SHAPE, "without_replacement")


# --- strategies -----------------------------------------------------------------------

SEARCH = settings(
    max_examples=300,
    derandomize=True,
    deadline=None,
    database=None,
    phases=[Phase.generate],  # the smallest example is of no interest here
)


@every_way
@REPEATABLE
@given(data=st.data())
def test_cases_of_several_drafts_stay_within_the_ranges(way, data):
    case = data.draw(multidraft_cases(drafts=way, min_n=2, max_n=3, max_vocab=5))

    assert isinstance(case, MultidraftCase)
    assert case.drafts == way
    assert 2 <= case.n <= (2 if way == "hub" else 3)
    assert 2 <= case.vocab <= 5


@pytest.mark.parametrize("way", ["without_replacement", "deterministic", "greedy"])
@REPEATABLE
@given(data=st.data())
def test_no_slot_is_empty_where_that_is_asked_for(way, data):
    case = data.draw(multidraft_cases(drafts=way, unused=False))

    assert all(min(slots) >= 0 for slots in draft_law(case.draft(()), case.n, way))


def has_unused(case):
    q = case.draft(())
    return sum(mass > 0 for mass in q) < case.n


def test_empty_slots_occur_where_nothing_is_asked_for():
    strategy = multidraft_cases(drafts="without_replacement")

    assert has_unused(find(strategy, has_unused, settings=SEARCH))
    with pytest.raises(NoSuchExample):
        find(
            multidraft_cases(drafts="without_replacement", unused=False),
            has_unused,
            settings=SEARCH,
        )


@pytest.mark.parametrize(
    "way", ["iid", "without_replacement", "deterministic", "paths"]
)
@REPEATABLE
@given(data=st.data())
def test_cases_of_trees_stay_within_the_ranges(way, data):
    limits = {"max_nodes": 6, "max_cells": 64, "max_depth": 3}
    case = data.draw(tree_cases(drafts=way, **limits))

    assert 2 <= len(case.parents) <= 6
    assert case.vocab ** (case.k + 1) <= 64
    assert case.k <= 3


@REPEATABLE
@given(case=tree_cases(drafts="paths"))
def test_paths_share_the_root_only_and_are_of_one_length(case):
    assert case.parents == separate_paths(len(case.children[0]), case.k)
    assert case.drafts == "iid"


@REPEATABLE
@given(case=tree_cases(drafts="without_replacement", unused=False))
def test_no_node_is_unused_where_that_is_asked_for(case):
    for tokens, _ in tree_drafts(case.draft, case.parents, case.drafts):
        assert min(tokens[1:]) >= 0


FEATURES = {
    "a node with two children": lambda case: case.width == 2,
    "a depth of three": lambda case: case.k == 3,
    "a child of another than the last node": lambda case: (
        len(case.parents) > 3 and case.parents[-1] == 1
    ),
}


@pytest.mark.parametrize("name", FEATURES)
def test_trees_reach(name):
    case = find(tree_cases(drafts="iid"), FEATURES[name], settings=SEARCH)

    assert FEATURES[name](case)
