# SPDX-License-Identifier: Apache-2.0
"""Shapes of draft trees, and the encodings that are read and written."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specverify.core.topology import (
    Topology,
    parents_from_choices,
    parents_from_linked,
    parents_from_retrieve_index,
    parents_of_paths,
)

REPEATABLE = settings(max_examples=80, derandomize=True, deadline=None, database=None)


@st.composite
def trees(draw, max_nodes=10):
    """Parents of any tree."""
    nodes = draw(st.integers(1, max_nodes))
    below = (draw(st.integers(0, node - 1)) for node in range(1, nodes))
    return (-1, *below)


#: Written out by hand: 0 - (1, 2, 5), 1 - (3, 4), 4 - 6.
TREE = Topology((-1, 0, 0, 1, 1, 0, 4))


# --- what a shape says of itself ------------------------------------------------------


def test_children_are_listed_in_order():
    assert TREE.children == ((1, 2, 5), (3, 4), (), (), (6,), (), ())


def test_depths_count_the_edges_from_the_root():
    assert TREE.depths == (0, 1, 1, 2, 2, 1, 3)


def test_size_depth_and_width_are_those_of_the_tree():
    assert (TREE.nodes, TREE.depth, TREE.width) == (7, 3, 3)


def test_leaves_are_the_nodes_without_children():
    assert TREE.leaves == (2, 3, 5, 6)


def test_a_path_leads_from_below_the_root_to_its_node():
    assert [TREE.path(node) for node in (0, 2, 6)] == [(), (2,), (1, 4, 6)]


def test_the_root_alone_is_a_leaf_of_depth_and_width_zero():
    root = Topology.of([-1])

    assert (root.leaves, root.depth, root.width, root.path(0)) == ((0,), 0, 0, ())


@REPEATABLE
@given(parents=trees())
def test_every_path_follows_the_parents(parents):
    tree = Topology.of(parents)

    for node in range(1, tree.nodes):
        assert tree.path(node) == (*tree.path(parents[node]), node)
        assert len(tree.path(node)) == tree.depths[node]


@REPEATABLE
@given(parents=trees())
def test_every_node_is_a_child_of_its_parent_and_of_no_other(parents):
    found = [
        (p, c) for p, nodes in enumerate(Topology.of(parents).children) for c in nodes
    ]

    assert sorted(found, key=lambda pair: pair[1]) == [
        (parent, node) for node, parent in enumerate(parents) if node
    ]


@REPEATABLE
@given(parents=trees())
def test_tables_are_children_and_paths_padded_with_minus_one(parents):
    tree, cpu = Topology.of(parents), torch.device("cpu")
    children, paths = tree.child_table(cpu), tree.path_table(cpu)

    assert children.shape == (tree.nodes, max(tree.width, 1))
    assert paths.shape == (tree.nodes, tree.depth)
    for node in range(tree.nodes):
        assert (
            tuple(x for x in children[node].tolist() if x >= 0) == tree.children[node]
        )
        assert tuple(x for x in paths[node].tolist() if x >= 0) == tree.path(node)


def test_tables_are_int64_on_the_device_asked_for(device):
    tables = [f(torch.device(device)) for f in (TREE.child_table, TREE.path_table)]

    assert {(x.dtype, x.device.type) for x in tables} == {(torch.int64, device)}


@pytest.mark.parametrize("device", ["cuda"], indirect=True)
def test_the_host_never_waits_for_the_device(device):
    torch.cuda.set_sync_debug_mode("error")
    try:
        TREE.child_table(torch.device(device))
        TREE.path_table(torch.device(device))
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_parents_may_be_a_tensor():
    assert Topology.of(torch.tensor(TREE.parents)) == TREE


# --- encodings ------------------------------------------------------------------------


def test_retrieve_index_lists_the_nodes_of_every_path():
    assert TREE.retrieve_index() == [
        [0, 2, -1, -1],
        [0, 1, 3, -1],
        [0, 5, -1, -1],
        [0, 1, 4, 6],
    ]


def test_linked_lists_name_the_first_child_and_the_next_sibling():
    next_token, next_sibling = TREE.linked()

    assert next_token == [1, 3, -1, -1, 6, -1, -1]
    assert next_sibling == [-1, 2, 5, 4, -1, -1, -1]


def test_choices_are_the_ranks_on_the_way_down():
    assert TREE.choices() == [(0,), (1,), (0, 0), (0, 1), (2,), (0, 1, 0)]


@REPEATABLE
@given(parents=trees())
def test_retrieve_index_is_read_back(parents):
    rows = Topology.of(parents).retrieve_index()

    assert parents_from_retrieve_index(rows) == parents


@REPEATABLE
@given(parents=trees())
def test_linked_lists_are_read_back(parents):
    assert parents_from_linked(*Topology.of(parents).linked()) == parents


@REPEATABLE
@given(parents=trees())
def test_choices_are_read_back(parents):
    assert parents_from_choices(Topology.of(parents).choices()) == parents


@REPEATABLE
@given(parents=trees(), order=st.randoms(use_true_random=False))
def test_the_order_of_the_paths_does_not_matter(parents, order):
    rows = Topology.of(parents).retrieve_index()
    order.shuffle(rows)

    assert parents_from_retrieve_index(rows) == parents


def test_another_tree_is_not_read_back_as_this_one():
    other = Topology.of((-1, 0, 0, 1, 1, 0, 3))

    assert parents_from_retrieve_index(other.retrieve_index()) != TREE.parents
    assert parents_from_linked(*other.linked()) != TREE.parents
    assert parents_from_choices(other.choices()) != TREE.parents


def test_tensors_are_read_like_lists():
    rows = torch.tensor(TREE.retrieve_index())
    linked = (torch.tensor(x) for x in TREE.linked())

    assert parents_from_retrieve_index(rows) == TREE.parents
    assert parents_from_linked(*linked) == TREE.parents


@pytest.mark.parametrize(
    ("paths", "depth", "parents"),
    [
        (1, 1, (-1, 0)),
        (2, 1, (-1, 0, 0)),
        (1, 3, (-1, 0, 1, 2)),
        (2, 3, (-1, 0, 1, 2, 0, 4, 5)),
        (0, 2, (-1,)),
        (2, 0, (-1,)),
    ],
)
def test_separate_paths_share_the_root_only(paths, depth, parents):
    assert parents_of_paths(paths, depth) == parents


# --- errors ---------------------------------------------------------------------------

BAD_PARENTS = [
    ((), ValueError, r"\[0\] is empty; node 0 is the root, its parent -1"),
    ((0,), ValueError, r"\[0\] is 0; node 0 is the root, its parent -1"),
    ((1, -1), ValueError, r"\[0\] is 1; node 0 is the root"),
    ((-1, -1), ValueError, r"\[1\] is -1; a tree has one root, node 0"),
    ((-1, 1), ValueError, r"\[1\] is 1; allowed is 0 to 0: .* cycles"),
    ((-1, 2, 1), ValueError, r"\[1\] is 2; allowed is 0 to 0"),
    ((-1, 0, 5), ValueError, r"\[2\] is 5; allowed is 0 to 1"),
    ((-1, 0, -2), ValueError, r"\[2\] is -2; allowed is 0 to 1"),
    ((-1, 0.5), TypeError, r" is \(-1, 0.5\); allowed are whole numbers"),
    (3, TypeError, " is 3; allowed are whole numbers"),
    (
        torch.zeros(2, 2).long(),
        TypeError,
        "(?s) is tensor.*; allowed are whole numbers",
    ),
]


@pytest.mark.parametrize(("parents", "error", "says"), BAD_PARENTS, ids=str)
def test_what_is_no_tree_is_refused_with_found_and_allowed(parents, error, says):
    with pytest.raises(error, match=says) as caught:
        Topology.of(parents)

    assert str(caught.value).startswith("parents")


BAD_ROWS = [
    ([[1, 2]], r"the path \[1, 2\]; every path starts at node 0"),
    ([[-1, -1]], r"the path \[-1, -1\]; every path starts at node 0"),
    ([[0, -1, 1]], r"the path \[0, -1, 1\]; .* -1 behind its leaf only"),
    ([[0, 1, 3], [0, 2, 3]], "gives node 3 the parents 1 and 2"),
    ([[0, 1, 0]], "gives node 0 the parents -1 and 1"),
    ([[0, 1, 3]], "leaves out node 2"),
    ([[0, 2, 1]], r"parents\[1\] is 2; allowed is 0 to 0"),
]


@pytest.mark.parametrize(("rows", "says"), BAD_ROWS)
def test_a_bad_retrieve_index_is_refused(rows, says):
    with pytest.raises(ValueError, match=says):
        parents_from_retrieve_index(rows)


BAD_LINKS = [
    ([1, -1], [-1], "next_sibling has 1 nodes, next_token 2"),
    ([2, -1], [-1, -1], "holds 2; there are 2 nodes"),
    ([-2, -1], [-1, -1], "holds -2; there are 2 nodes"),
    ([1, -1], [-1, 7], "holds 7; there are 2 nodes"),
    ([1, -1], [-1, 1], "reach node 1 twice"),
    ([1, 0], [-1, -1], "reach node 0 twice"),
    ([1, -1, -1], [-1, -1, -1], "names 2 of 3 nodes; the root reaches all"),
    ([2, -1, -1], [-1, -1, -1], "leaves out node 1"),
    ([2, -1, 1], [-1, -1, -1], r"parents\[1\] is 2; allowed is 0 to 0"),
    ([], [], "names 1 of 0 nodes"),
]


@pytest.mark.parametrize(("next_token", "next_sibling", "says"), BAD_LINKS)
def test_bad_links_are_refused(next_token, next_sibling, says):
    with pytest.raises(ValueError, match=says):
        parents_from_linked(next_token, next_sibling)


BAD_CHOICES = [
    ([(0, 0)], r"holds \(0, 0\); .* behind its parent"),
    ([(1,)], r"holds \(1,\); .* elder siblings"),
    ([(0,), (0,)], r"holds \(0,\); each node is listed once"),
    ([()], r"holds \(\); each node is listed once"),
    ([(-1,)], r"holds \(-1,\)"),
    ([(0,), (0, 1)], r"holds \(0, 1\); .* elder siblings"),
]


@pytest.mark.parametrize(("choices", "says"), BAD_CHOICES)
def test_bad_choices_are_refused(choices, says):
    with pytest.raises(ValueError, match=f"^choices {says}"):
        parents_from_choices(choices)
