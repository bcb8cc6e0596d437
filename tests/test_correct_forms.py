# SPDX-License-Identifier: Apache-2.0
"""Correct verifiers are lossless, in whatever form they are written."""

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


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("form", FORMS)
def test_a_correct_form_is_lossless(form, seed):
    run = run_checks(
        resolve(f"{FILE}:{form}"), make_plan("quick", seed=seed, max_seconds=600)
    )

    undecided = [*run.with_status("violation"), *run.with_status("inconclusive")]
    assert run.verdict == "lossless", [(r.id, r.reason) for r in undecided]


def accepted(verifier, pattern):
    """Status of the checks of acceptance that match a pattern."""
    run = run_checks(verifier, make_plan("quick", max_seconds=600), pattern=pattern)
    return {record.id: record.status for record in run.checks}


@pytest.mark.parametrize("form", TOKEN_RULES)
def test_a_token_level_form_accepts_what_token_level_verification_accepts(form):
    assert set(accepted(resolve(f"{FILE}:{form}"), "*accept*").values()) == {"pass"}


@pytest.mark.parametrize("form", TOKEN_RULES)
def test_a_token_level_form_accepts_every_draft_of_an_equal_model(form):
    verifier = resolve(f"{FILE}:{form}")

    assert accepted(verifier, "equal-models") == {"equal-models": "pass"}


def test_a_match_rule_that_declares_nothing_is_not_held_to_token_level_acceptance():
    verifier = resolve(f"{FILE}:sample_and_match")

    assert accepted(verifier, "accepted-length") == {"accepted-length": "skipped"}


def test_a_match_rule_that_claims_token_level_acceptance_is_found_out():
    """The same function, so that the check is seen to reject."""
    plain = resolve(f"{FILE}:sample_and_match")
    claiming = subject(plain.fn, efficiency="token")

    assert accepted(claiming, "accepted-length") == {"accepted-length": "violation"}
