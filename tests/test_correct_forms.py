# SPDX-License-Identifier: Apache-2.0
"""Correct verifiers are lossless, in whatever form they are written."""

from functools import cache
from pathlib import Path

import pytest

from specverify.checks.plan import make_plan
from specverify.checks.run import run_checks
from specverify.subjects.protocol import subject
from specverify.subjects.resolve import resolve

FILE = Path(__file__).with_name("correct_forms.py")
TOKEN_RULES = [
    "multinomial",
    "exponential_race",
    "gumbel_max",
    "inverse_cdf",
    "rescaled_uniform",
]
FORMS = [*TOKEN_RULES, "sample_and_match"]
SEEDS = [0, 20261130]


@cache
def evidence(form, seed):
    return run_checks(resolve(f"{FILE}:{form}"), make_plan("quick", seed=seed))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("form", FORMS)
def test_a_correct_form_is_lossless(form, seed):
    run = evidence(form, seed)

    assert run.verdict == "lossless", run.with_status("violation")


@pytest.mark.parametrize("form", TOKEN_RULES)
def test_a_token_level_form_accepts_what_token_level_verification_accepts(form):
    run = evidence(form, SEEDS[0])
    held = ["token-accepted-law", "accepted-length", "equal-models"]

    assert [run[check].status for check in held] == ["pass"] * 3


def test_a_match_rule_that_declares_nothing_is_not_held_to_token_level_acceptance():
    run = evidence("sample_and_match", SEEDS[0])

    assert run["accepted-length"].status == "skipped"


def test_a_match_rule_that_claims_token_level_acceptance_is_found_out():
    """The same function, so that the check is seen to reject."""
    plain = resolve(f"{FILE}:sample_and_match")
    claiming = subject(plain.fn, efficiency="token")
    run = run_checks(claiming, make_plan("quick"), pattern="accepted-length")

    assert run["accepted-length"].status == "violation"
