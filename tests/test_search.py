# SPDX-License-Identifier: Apache-2.0
"""The search for the smallest violation: repeatable, memoised, and without traces."""

import os
import random
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from functools import cache

import hypothesis
import numpy as np
import planted
import pytest
import torch

from specverify.checks import tabulate
from specverify.checks.judge import judge_law
from specverify.checks.plan import make_plan
from specverify.checks.run import make_rig, run_checks
from specverify.checks.search import LawSearch, find_smallest
from specverify.checks.session import Session
from specverify.defects import CONTROLS
from specverify.errors import UsageError
from specverify.inputs import strategies, witnesses
from specverify.inputs.cases import Case
from specverify.laws.distributions import total_variation
from specverify.subjects.protocol import subject

PLAN = make_plan("quick", max_seconds=600)
SHARE = 1e-10
CORRECT = subject(planted.verify, name="correct")
LOSSY = subject(planted.residual_from_p, name="lossy")


def run(verifier, pattern, plan=PLAN, **options):
    return run_checks(verifier, plan, pattern=pattern, **options)


@cache
def searched(verifier):
    """One search, its result, and how often each input was drawn with each seed."""
    draws = Counter()

    def counting(case):
        tabulation = tabulate.joint(case)

        def count(rig, rows, seed):
            draws[case.key, seed] += 1
            return tabulation.count(rig, rows, seed)

        return replace(tabulation, count=count)

    rig = make_rig(verifier, PLAN)
    session = Session(rig, PLAN, "search", share=SHARE, seconds=600, limit=600)
    search = LawSearch(session, counting)
    smallest = search.run([witnesses.J1, witnesses.W], strategies.cases(max_cells=27))
    return search, smallest, draws


# Repeatable


def is_far(case):
    """A violation that needs no subject: some row of p far from that of q."""
    rows = zip(case.target.rows, case.draft.rows, strict=True)
    return max(total_variation(p, q) for p, q in rows) > 0.4 and case.k > 1


def smallest_far(seed):
    return find_smallest(strategies.cases(), is_far, examples=200, seed=seed)


def test_two_searches_with_one_seed_find_the_same_case():
    assert smallest_far(7) == smallest_far(7)


def test_what_is_found_violates():
    assert is_far(smallest_far(7))


def test_what_is_found_is_as_small_as_can_be():
    case = smallest_far(7)

    assert (case.vocab, case.k) == (2, 2)


def test_nothing_is_found_where_nothing_violates():
    found = find_smallest(strategies.cases(), lambda case: False, examples=20, seed=0)

    assert found is None


@pytest.mark.parametrize("verifier", [CORRECT, LOSSY], ids=lambda value: value.name)
def test_two_runs_give_equal_records_and_counterexamples(verifier):
    first, second = (run(verifier, "joint-law")["joint-law"] for _ in range(2))

    assert first.with_(duration_s=0) == second.with_(duration_s=0)


# Memoised


@pytest.mark.parametrize("verifier", [CORRECT, LOSSY], ids=lambda value: value.name)
def test_every_look_at_an_input_is_drawn_once(verifier):
    _, _, draws = searched(verifier)

    assert set(draws.values()) == {1}


def test_nothing_is_drawn_but_the_inputs_that_are_judged():
    search, _, draws = searched(LOSSY)

    assert {key for key, _ in draws} == search.evaluations.keys()


def test_asking_again_draws_nothing():
    search, smallest, draws = searched(LOSSY)
    before = draws.total()

    assert search.evaluate(smallest.case) is smallest
    assert draws.total() == before


def test_the_search_shrinks_past_the_witnesses():
    _, smallest, _ = searched(LOSSY)

    assert smallest.case.name == ""
    assert smallest.case.vocab ** (smallest.case.k + 1) < 9


def test_the_levels_of_a_search_add_up_to_its_share():
    """Whatever Hypothesis asks for: each input has a level of its own."""
    search, _, _ = searched(LOSSY)
    spent = sum(evaluation.limit for evaluation in search.evaluations.values())

    assert 0 < spent <= SHARE


# Without traces


def host_state():
    name, keys, *rest = np.random.get_state()  # noqa: NPY002 - of the host
    return (
        torch.random.get_rng_state().tolist(),
        (name, keys.tolist(), *rest),
        random.getstate(),
        hypothesis.settings.default,
        hypothesis.settings.get_current_profile_name(),
    )


def test_a_search_touches_no_profile_and_no_generator():
    before = host_state()
    run(LOSSY, "joint-law")

    assert host_state() == before


def test_a_profile_of_the_host_does_not_govern_the_search():
    """One example a test would leave nothing to shrink."""
    hypothesis.settings.register_profile("hasty", max_examples=1, phases=[])
    current = hypothesis.settings.get_current_profile_name()
    hypothesis.settings.load_profile("hasty")
    try:
        assert smallest_far(7) is not None
    finally:
        hypothesis.settings.load_profile(current)


def test_a_search_leaves_no_database_behind(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run(LOSSY, "joint-law")

    assert not (tmp_path / ".hypothesis" / "examples").exists()


# Independent of what else runs


@cache
def whole_run(verifier):
    return run(verifier, "*")


@pytest.mark.parametrize("verifier", [CORRECT, LOSSY], ids=lambda value: value.name)
def test_a_record_does_not_depend_on_which_other_checks_run(verifier):
    alone, among = run(verifier, "joint-law")["joint-law"], whole_run(verifier)

    assert alone.with_(duration_s=0) == among["joint-law"].with_(duration_s=0)


# Seeds


@cache
def seeded(verifier, seed):
    return run(verifier, "dtypes", replace(PLAN, seed=seed))


def test_other_seeds_give_other_draws():
    draws = {seeded(CORRECT, seed)["dtypes"].tables[0].observed for seed in range(5)}

    assert len(draws) == 5


@pytest.mark.parametrize(
    ("verifier", "verdict"), [(CORRECT, "lossless"), (LOSSY, "lossy")]
)
def test_other_seeds_give_the_same_verdict(verifier, verdict):
    assert {seeded(verifier, seed).verdict for seed in range(2)} == {verdict}


# Expected failures


def test_an_expected_failure_is_reported_as_such():
    run_ = run(LOSSY, "joint-law", expected_failures={"joint-law": "known"})

    assert run_["joint-law"].status == "expected_failure"
    assert run_["joint-law"].reason.startswith("expected: known (")


def test_an_expected_failure_alone_is_no_proof_of_anything():
    run_ = run(LOSSY, "joint-law", expected_failures={"joint-law": "known"})

    assert run_.verdict == "inconclusive"


def test_an_expected_failure_that_passes_is_a_violation():
    run_ = run(CORRECT, "joint-law", expected_failures={"joint-law": "known"})

    assert run_["joint-law"].status == "violation"
    assert "it was expected to fail (known), but the check passed" in (
        run_["joint-law"].reason
    )


def test_an_expected_failure_that_passes_fails_the_run():
    run_ = run(CORRECT, "joint-law", expected_failures={"joint-law": "known"})

    assert run_.verdict == "broken"


def test_an_expected_failure_is_not_shrunk():
    """What is shown is a witness: inputs that were generated have no name."""
    run_ = run(LOSSY, "joint-law", expected_failures={"joint-law": "known"})
    case = Case.from_json(run_["joint-law"].counterexample.case)

    assert case.name in witnesses.WITNESSES


def test_an_unknown_expected_failure_suggests_the_nearest_id():
    with pytest.raises(UsageError, match="'joint-laws'; did you mean 'joint-law'"):
        run(LOSSY, "joint-law", expected_failures={"joint-laws": "known"})


def test_an_expected_failure_needs_a_reason():
    with pytest.raises(UsageError, match="say why the check must fail"):
        run(LOSSY, "joint-law", expected_failures={"joint-law": " "})


def test_a_pattern_that_matches_nothing_suggests_the_nearest_id():
    with pytest.raises(UsageError, match="'suport'; did you mean 'support'"):
        run(LOSSY, "suport")


IN_ANY_ORDER = """
import specverify.checks.joint
from specverify.checks.registry import checks_for
print(checks_for("chain")[0].id)
"""


def test_the_order_of_the_checks_does_not_depend_on_what_was_imported_first():
    path = os.pathsep.join(filter(None, sys.path))
    done = subprocess.run(
        [sys.executable, "-c", IN_ANY_ORDER],
        env={**os.environ, "PYTHONPATH": path},
        check=True,
        capture_output=True,
        text=True,
    )

    assert done.stdout.strip() == "output-contract"


# Without inputs


def test_a_check_without_an_input_for_the_subject_is_skipped():
    """Three distinct siblings do not fit where q has two tokens."""
    run_ = run(CONTROLS["tree-distinct-siblings-add-up"].subject(), "disjoint-supports")

    assert run_["disjoint-supports"].status == "skipped"
    assert run_["disjoint-supports"].reason == "no input of this check fits the subject"


def test_a_check_of_generated_inputs_only_is_skipped_where_none_is_asked_for():
    plan = make_plan("quick", max_seconds=600, examples=0)
    session = Session(make_rig(CORRECT, plan), plan, "x", SHARE, 600, 600)
    finding = judge_law(session, tabulate.joint, [], strategies.cases())

    assert finding.status == "skipped"


def test_a_law_whose_condition_never_comes_true_is_given_up_soon():
    def never(case):
        tabulation = tabulate.joint(case)
        return replace(
            tabulation, count=lambda rig, rows, seed: drawn.append(rows) or 0
        )

    drawn = []
    session = Session(make_rig(CORRECT, PLAN), PLAN, "x", SHARE, 600, 600)
    finding = judge_law(session, never, [witnesses.W])

    assert finding.status == "skipped"
    assert len(drawn) == 2
