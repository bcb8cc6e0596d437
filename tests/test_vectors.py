# SPDX-License-Identifier: Apache-2.0
"""The laws of a chain step agree with vectors from an independent implementation."""

import json
from fractions import Fraction
from pathlib import Path

import pytest

from specverify.laws.chain import accepted_law, expected_accepted, output_law

VECTORS = json.loads(
    Path(__file__).with_name("data").joinpath("chain.json").read_text()
)
CASES = VECTORS["cases"]


def prefix(text):
    return tuple(int(token) for token in text.split(",") if token)


def model(table, number):
    """A table of the file as a function from prefix to distribution."""
    rows = {
        prefix(text): [number(Fraction(mass)) for mass in row]
        for text, row in table.items()
    }
    return rows.__getitem__


def step(case, number):
    return model(case["target"], number), model(case["draft"], number), case["k"]


def law(table):
    return {prefix(text): Fraction(mass) for text, mass in table.items()}


def near(value):
    """The agreement that the vectors ask of float64."""
    return pytest.approx(value, abs=1e-12, rel=0)


def lengths(case):
    """Law of the number of accepted drafts as a list."""
    table = case["token"]["accepted_law"]
    return [Fraction(table.get(str(n), 0)) for n in range(case["k"] + 1)]


@pytest.mark.parametrize("case", CASES)
def test_the_output_law_is_reproduced_exactly(case):
    assert output_law(*step(case, Fraction)) == law(case["token"]["output_law"])


@pytest.mark.parametrize("case", CASES)
def test_the_output_law_is_reproduced_in_float64(case):
    """An outcome that float64 adds or loses has a mass of at most 1e-12."""
    got, expected = output_law(*step(case, float)), law(case["token"]["output_law"])

    for outcome in got.keys() | expected.keys():
        assert got.get(outcome, 0) == near(float(expected.get(outcome, 0)))


@pytest.mark.parametrize("case", CASES)
def test_the_accepted_law_is_reproduced_exactly(case):
    assert accepted_law(*step(case, Fraction)) == lengths(case)


@pytest.mark.parametrize("case", CASES)
def test_the_accepted_law_is_reproduced_in_float64(case):
    expected = [float(mass) for mass in lengths(case)]

    assert accepted_law(*step(case, float)) == near(expected)


@pytest.mark.parametrize("case", CASES)
def test_the_expected_acceptance_is_reproduced_exactly(case):
    expected = Fraction(case["token"]["expected_accepted"])

    assert expected_accepted(*step(case, Fraction)) == expected


def test_the_vectors_refuse_a_law_that_recovers_from_the_target(monkeypatch):
    monkeypatch.setattr("specverify.laws.chain.residual", lambda p, q: list(p))

    laws = [output_law(*step(case, Fraction)) for case in CASES]
    assert laws != [law(case["token"]["output_law"]) for case in CASES]
