# SPDX-License-Identifier: Apache-2.0
"""The exact laws agree with vectors from an independent implementation."""

import json
from fractions import Fraction
from pathlib import Path

import pytest

from specverify.laws import block, bounds, chain, multidraft, tree
from specverify.laws.steps import accepted_law, expected_accepted, output_law


def vectors(name):
    file = Path(__file__).with_name("data") / f"{name}.json"
    return json.loads(file.read_text())["cases"]


CHAINS, DRAFTS, TREES = vectors("chain"), vectors("multidraft"), vectors("tree")
every_chain = pytest.mark.parametrize("case", CHAINS)
every_draft = pytest.mark.parametrize("case", DRAFTS)
every_tree = pytest.mark.parametrize("case", TREES)


def prefix(text):
    return tuple(int(token) for token in text.split(",") if token)


def row(masses, number):
    return [number(Fraction(mass)) for mass in masses]


def model(table, number):
    """A table of the file as a function from prefix to distribution."""
    rows = {prefix(text): row(masses, number) for text, masses in table.items()}
    return rows.__getitem__


def law(table):
    return {prefix(text): Fraction(mass) for text, mass in table.items()}


def near(value):
    """The agreement that the vectors ask of float64."""
    return pytest.approx(value, abs=1e-12, rel=0)


def assert_near(got, expected):
    """An outcome that float64 adds or loses has a mass of at most 1e-12."""
    for outcome in got.keys() | expected.keys():
        assert got.get(outcome, 0) == near(float(expected.get(outcome, 0)))


# --- one path of drafts ---------------------------------------------------------------

ONE_PATH = {"token": chain.emissions, "block": block.emissions}
one_path = pytest.mark.parametrize("rule", ONE_PATH)


def step(rule, case, number):
    models = model(case["target"], number), model(case["draft"], number)
    return ONE_PATH[rule], *models, case["k"]


def lengths(rule, case):
    """Law of the number of accepted drafts as a list."""
    table = case[rule]["accepted_law"]
    return [Fraction(table.get(str(n), 0)) for n in range(case["k"] + 1)]


@one_path
@every_chain
def test_the_output_law_is_reproduced_exactly(rule, case):
    assert output_law(*step(rule, case, Fraction)) == law(case[rule]["output_law"])


@one_path
@every_chain
def test_the_output_law_is_reproduced_in_float64(rule, case):
    got = output_law(*step(rule, case, float))

    assert_near(got, law(case[rule]["output_law"]))


@one_path
@every_chain
def test_the_accepted_law_is_reproduced_exactly(rule, case):
    assert accepted_law(*step(rule, case, Fraction)) == lengths(rule, case)


@one_path
@every_chain
def test_the_accepted_law_is_reproduced_in_float64(rule, case):
    expected = [float(mass) for mass in lengths(rule, case)]

    assert accepted_law(*step(rule, case, float)) == near(expected)


@one_path
@every_chain
def test_the_expected_acceptance_is_reproduced_exactly(rule, case):
    expected = Fraction(case[rule]["expected_accepted"])

    assert expected_accepted(*step(rule, case, Fraction)) == expected


def test_the_vectors_refuse_a_law_that_recovers_from_the_target(monkeypatch):
    monkeypatch.setattr("specverify.laws.chain.residual", lambda p, q: list(p))

    laws = [output_law(*step("token", case, Fraction)) for case in CHAINS]
    assert laws != [law(case["token"]["output_law"]) for case in CHAINS]


# --- several drafts at one position ---------------------------------------------------

#: Rule and way of drawing; "single_draft" has one draft whatever the case says.
ACCEPTANCE = {
    "single_draft": (multidraft.without_replacement, "iid"),
    "recursive_with_replacement": (multidraft.with_replacement, "iid"),
    "recursive_without_replacement": (
        multidraft.without_replacement,
        "without_replacement",
    ),
    "spechub": (multidraft.hub, "hub"),
    "target_only_top_n": (multidraft.target_only, "deterministic"),
    "sample_and_match_iid": (multidraft.target_only, "iid"),
}
OPTIMUM = {
    "iid": "iid",
    "without_replacement": "without_replacement",
    "top_n": "deterministic",
    "greedy_draft": "greedy",
    "spechub": "hub",
}


def acceptances(case, number):
    p, q = row(case["p"], number), row(case["q"], number)
    for name in case["acceptance"]:
        rule, drafts = ACCEPTANCE[name]
        n = 1 if name == "single_draft" else case["n"]
        yield name, multidraft.acceptance(rule, p, q, n, drafts)


@every_draft
def test_the_acceptance_of_several_drafts_is_reproduced_exactly(case):
    assert dict(acceptances(case, Fraction)) == {
        name: Fraction(mass) for name, mass in case["acceptance"].items()
    }


@every_draft
def test_the_acceptance_of_several_drafts_is_reproduced_in_float64(case):
    for name, mass in acceptances(case, float):
        assert mass == near(float(Fraction(case["acceptance"][name])))


@every_draft
def test_the_largest_acceptance_is_reproduced_exactly(case):
    p, q = row(case["p"], Fraction), row(case["q"], Fraction)

    assert {name: Fraction(mass) for name, mass in case["optimum"].items()} == {
        name: bounds.optimum(p, multidraft.draft_law(q, case["n"], OPTIMUM[name]))
        for name in case["optimum"]
    }


@every_draft
@pytest.mark.parametrize("drafts", ["iid", "without_replacement"])
def test_the_largest_acceptance_is_reproduced_from_sorted_tokens(case, drafts):
    p, q = row(case["p"], Fraction), row(case["q"], Fraction)
    expected = Fraction(case["optimum"][drafts])

    assert bounds.optimum_sorted(p, q, case["n"], drafts) == expected


def test_the_vectors_know_every_rule_and_every_way_of_drawing():
    """So none of the tables above is read for nothing."""
    assert {name for case in DRAFTS for name in case["acceptance"]} == set(ACCEPTANCE)
    assert {name for case in DRAFTS for name in case["optimum"]} == set(OPTIMUM)


# --- trees ----------------------------------------------------------------------------

BINARY = (-1, 0, 0, 1, 1, 2, 2)
TREE_RULES = {
    "recursive_without_replacement": tree.recursive,
    "traversal": tree.traversal,
}
tree_rules = pytest.mark.parametrize("rule", TREE_RULES)


def tree_step(rule, case, number):
    assert (case["depth"], case["children"]) == (2, 2)
    models = model(case["target"], number), model(case["draft"], number)
    return TREE_RULES[rule], *models, BINARY, "without_replacement"


@tree_rules
@every_tree
def test_the_output_law_of_a_tree_is_reproduced_exactly(rule, case):
    got = tree.output_law(*tree_step(rule, case, Fraction))

    assert got == law(case[rule]["output_law"])


@tree_rules
@every_tree
def test_the_output_law_of_a_tree_is_reproduced_in_float64(rule, case):
    got = tree.output_law(*tree_step(rule, case, float))

    assert_near(got, law(case[rule]["output_law"]))


@tree_rules
@every_tree
def test_the_expected_acceptance_of_a_tree_is_reproduced_exactly(rule, case):
    got = tree.expected_accepted(*tree_step(rule, case, Fraction))

    assert got == Fraction(case[rule]["expected_accepted"])
