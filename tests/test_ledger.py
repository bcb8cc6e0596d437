# SPDX-License-Identifier: Apache-2.0
"""The error ledger: no search, however long, spends more than its share."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specverify.statistics.ledger import Ledger, derive_seed

REPEATABLE = settings(max_examples=100, derandomize=True, deadline=None, database=None)
shares = st.floats(1e-12, 0.5)
plans = st.integers(1, 300)


def spent(ledger, examples):
    """Sum of the levels of so many examples, exactly."""
    return sum(Fraction(ledger.next_level()) for _ in range(examples))


# --- levels ---------------------------------------------------------------------------


@REPEATABLE
@given(share=shares, planned=plans, examples=st.integers(0, 3000))
def test_levels_sum_below_the_share_for_any_number_of_examples(
    share, planned, examples
):
    rounding = Fraction(1 + 2**-50)

    assert spent(Ledger(share, planned), examples) <= Fraction(share) * rounding


@REPEATABLE
@given(share=shares, planned=plans)
def test_the_planned_examples_spend_half_of_the_share_evenly(share, planned):
    ledger = Ledger(share, planned)
    levels = {ledger.next_level() for _ in range(planned)}

    assert levels == {ledger.planned_level}
    assert planned * ledger.planned_level == pytest.approx(share / 2, rel=1e-12)


def test_examples_beyond_the_plan_spend_towards_the_other_half():
    """A quarter, then half of the rest a third, ...: 1/(j (j + 1)) of it."""
    ledger = Ledger(0.1, planned=1)
    ledger.next_level()

    levels = [ledger.next_level() for _ in range(3)]
    assert levels == pytest.approx([0.05 / 2, 0.05 / 6, 0.05 / 12], rel=1e-12)


@REPEATABLE
@given(share=shares, planned=plans, examples=st.integers(1, 1000))
def test_every_level_is_positive(share, planned, examples):
    ledger = Ledger(share, planned)

    assert all(ledger.next_level() > 0 for _ in range(examples))


@REPEATABLE
@given(share=shares, planned=plans)
def test_the_level_of_an_example_depends_on_its_number_alone(share, planned):
    first, second = Ledger(share, planned), Ledger(share, planned)

    levels = [first.next_level() for _ in range(planned + 5)]
    assert levels == [second.next_level() for _ in range(planned + 5)]


class Careless:
    """Divides the share by the plan and never looks whether the plan is kept."""

    def __init__(self, share, planned):
        self.level = share / planned

    def next_level(self):
        return self.level


def test_a_level_that_relies_on_the_plan_overspends_beyond_it():
    """So the first claim can fail."""
    assert spent(Careless(0.01, 10), 11) > 0.01


@pytest.mark.parametrize(
    ("share", "planned", "pattern"),
    [
        (0, 5, r"^share is 0; allowed is the open interval \(0, 1\)"),
        (1.0, 5, r"^share is 1.0; allowed is the open interval \(0, 1\)"),
        (float("nan"), 5, r"^share is nan; allowed is the open interval \(0, 1\)"),
        (0.1, 0, r"^planned is 0; allowed is 1 or more"),
    ],
)
def test_a_plan_that_cannot_be_spent_is_refused_with_found_and_allowed(
    share, planned, pattern
):
    with pytest.raises(ValueError, match=pattern):
        Ledger(share, planned)


# --- seeds ----------------------------------------------------------------------------


def test_a_seed_is_a_function_of_salt_and_parts():
    assert derive_seed(1, "check", b"case") == derive_seed(1, "check", b"case")


@pytest.mark.parametrize(
    "other",
    [
        (2, "check", b"case"),
        (1, "check2", b"case"),
        (1, "check", b"case2"),
        (1, "checkc", b"ase"),
        (1, b"case", "check"),
        (1, "check", b"case", ""),
        (1, "checkcase"),
        (1,),
    ],
    ids=repr,
)
def test_seeds_differ_where_salt_or_any_part_does(other):
    """Moving a letter from one part to the next counts as a difference too."""
    assert derive_seed(*other) != derive_seed(1, "check", b"case")


def test_text_and_its_bytes_are_the_same_part():
    assert derive_seed(1, "é") == derive_seed(1, "é".encode())


@REPEATABLE
@given(salt=st.integers(), part=st.one_of(st.text(), st.binary()))
def test_seeds_have_63_bits(salt, part):
    assert 0 <= derive_seed(salt, part) < 2**63


def test_ten_thousand_seeds_are_all_different():
    assert len({derive_seed(0, str(i)) for i in range(10_000)}) == 10_000
