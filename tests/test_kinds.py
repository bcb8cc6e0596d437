# SPDX-License-Identifier: Apache-2.0
"""Several drafts, trees, own drafters, greedy and ragged rows: right or caught."""

import json
import os
import re
import subprocess
import sys
from functools import cache, partial
from pathlib import Path

import pytest

from specverify.checks.plan import make_plan
from specverify.checks.registry import checks_for
from specverify.checks.run import make_rig, run_check, run_checks
from specverify.core import lossy as core_lossy
from specverify.errors import UsageError
from specverify.inputs.cases import Case
from specverify.laws import chain, lossy, matching, steps
from specverify.laws.distributions import law_distance
from specverify.subjects.protocol import subject
from specverify.subjects.resolve import BUILTIN, resolve

FILE = Path(__file__).with_name("several.py")
PLAN = make_plan("quick", max_seconds=600)  # a busy machine changes no draw
REFERENCES = [name for name in BUILTIN if name.startswith("reference:")]
LOSSY = [name for name in BUILTIN if name.startswith("lossy:")]


def several(name):
    return resolve(f"{FILE}:{name}")


@cache
def quick(name, pattern="*"):
    found = resolve(name) if ":" in name else several(name)
    return run_checks(found, PLAN, pattern=pattern)


def record(found, check):
    """What one check says, without a search for a smaller input."""
    (chosen,) = checks_for(found.kind, check)
    return run_check(chosen, make_rig(found, PLAN), PLAN, shrink=False, explain=False)


# --- the reference algorithms ---------------------------------------------------------


@pytest.mark.parametrize("name", REFERENCES)
def test_every_reference_algorithm_is_lossless_and_accepts_what_it_claims(name):
    """One test, so that no two workers make the same run."""
    run = quick(name)

    assert run.verdict == "lossless", run.with_status("violation")
    assert not run.with_status("violation")


@pytest.mark.parametrize("name", ["reference:block", "reference:tree-traversal"])
def test_a_rule_that_claims_another_law_of_acceptance_is_less_efficient(name):
    """So the checks of acceptance can fail."""
    weaker = {"reference:block": "reference:chain"}.get(
        name, "reference:tree-recursive"
    )
    claims = resolve(name).capabilities.to_json()
    run = run_checks(
        subject(resolve(weaker).fn, kind=resolve(name).kind, **claims),
        PLAN,
        pattern="*accepted*",
    )

    assert run.with_status("violation")
    assert run.verdict != "lossy"


# --- rules that are lossy by design ---------------------------------------------------


@cache
def joint(name):
    return quick(name, "joint-law")["joint-law"]


def closed_form(name, data):
    """Distance of the rule's joint law of k + 1 tokens from the target's, on a case."""
    case = Case.from_json(data)
    rule = partial(chain.emissions, rule=lossy.RULES[name.partition(":")[2]])
    emitted = steps.output_law(rule, case.target, case.draft, case.k)
    law = steps.completed_law(emitted, case.target, case.k + 1)
    return float(law_distance(law, steps.autoregressive_law(case.target, case.k + 1)))


@pytest.mark.parametrize("name", LOSSY)
def test_a_lossy_rule_is_lossy(name):
    assert joint(name).status == "violation"


@pytest.mark.parametrize("name", LOSSY)
def test_the_bias_of_a_lossy_rule_is_within_its_certificate(name):
    found = joint(name)
    due = closed_form(name, found.counterexample.case)

    assert due <= found.tv_upper
    assert found.tv_estimate == pytest.approx(due, abs=0.03)


def test_the_closed_form_of_one_rule_is_not_that_of_another():
    case = joint("lossy:lenient").counterexample.case
    biases = {name: round(closed_form(name, case), 3) for name in LOSSY}

    assert len(set(biases.values())) > 1


def test_a_lossy_run_says_by_how_much_acceptance_rose():
    (line,) = quick("lossy:synthetic", "acceptance-bound").checks[0].observations

    assert "(+" in line


def test_no_default_leads_to_a_lossy_rule():
    import specverify.core

    exported = {getattr(specverify.core, name) for name in specverify.core.__all__}
    rules = {getattr(core_lossy, n) for n in dir(core_lossy) if n.startswith("verify_")}

    assert rules
    assert not exported & rules


# --- wrong declarations and wrong rules -----------------------------------------------

WRONG = {
    "successive_rule_on_independent_drafts": "joint-law",
    "independent_rule_on_successive_drafts": "joint-law",
    "independent_rule_on_fixed_drafts": "joint-law",
    "hub_rule_on_independent_drafts": "joint-law",
    "tree_rule_on_independent_drafts": "joint-law",
    "undamped": "joint-law",
    "best_as_if_only": "joint-law",
    "counts_duplicates_twice": "joint-law",
    "deduplicated": "declared-drafts",
    "pruned": "declared-drafts",
    "tempered": "declared-drafts",
    "sampled_as_greedy": "joint-law",
    "last_of_ties": "greedy-ties",
    "ignores_lengths": "ragged-rows",
}


@pytest.mark.parametrize(("name", "check"), WRONG.items())
def test_a_wrong_rule_or_declaration_breaks_a_law(name, check):
    found = record(several(name), check)

    assert (found.status, found.effect) == ("violation", "law")


@pytest.mark.parametrize("name", ["pruned", "tempered"])
def test_wrong_drafts_break_the_law_of_the_output_too(name):
    assert record(several(name), "joint-law").status == "violation"


@pytest.mark.parametrize("name", ["own_drafter", "tempered_and_said", "accumulates"])
def test_what_looks_alike_and_is_right_is_lossless(name):
    assert quick(name, "[dj][eo]*").verdict == "lossless"


def test_noise_shared_between_drafting_and_recovering_is_seen():
    from several import shares_noise

    assert record(shares_noise(), "joint-law").status == "violation"


def test_the_same_verifier_without_its_drafter_shows_nothing():
    """Drafts from outside hide the defect: that is what the drafter is for."""
    from several import shares_noise

    alone = subject(shares_noise().fn, name="alone")

    assert record(alone, "joint-law").status == "pass"


# --- the contracts of the kinds -------------------------------------------------------

BROKEN = {
    "says_it_accepted": r"emits \d as accepted \(slot 0\) of the drafts",
    "no_pair": r"returned a Tensor; due is the pair \(token_ids \[batch\], accepted",
    "leaves_the_tree": "must be the accepted draft",
}


@pytest.mark.parametrize(("name", "reason"), BROKEN.items())
def test_a_broken_answer_is_a_finding_that_says_what_is_due(name, reason):
    found = quick(name, "output-contract")["output-contract"]

    assert found.status == "violation"
    assert re.search(reason, found.reason)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"kind": "treee"}, "kind is 'treee'; allowed are chain, multidraft, tree"),
        ({"drafts": "guessed"}, "capability drafts is 'guessed'; allowed are 'iid'"),
        ({"kind": "tree", "efficiency": "token"}, "efficiency is 'token'; allowed are"),
        (
            {"kind": "tree", "draft": print},
            "draft is a .* for a subject of kind 'tree'",
        ),
    ],
)
def test_a_declaration_that_cannot_be_is_refused(given, message):
    with pytest.raises(UsageError, match=message):
        subject(print, **given)


# --- what a person gets ---------------------------------------------------------------


SHOWN = {
    "undamped": "joint-law",
    "counts_duplicates_twice": "joint-law",
    "last_of_ties": "greedy-ties",
}


@pytest.mark.parametrize("name", SHOWN)
def test_the_script_of_a_counterexample_shows_it(name):
    found = quick(name, SHOWN[name])[SHOWN[name]]
    env = dict(os.environ, OMP_NUM_THREADS="1")
    shown = subprocess.run(
        [sys.executable, "-c", found.counterexample.script],
        check=True,
        capture_output=True,
        text=True,
        env=env,
    ).stdout
    rows = [line.split() for line in shown.partition("expected\n")[2].splitlines()]
    distance = sum(abs(float(seen) - float(due)) for _, seen, due in rows) / 2

    assert distance == pytest.approx(found.tv_estimate, abs=0.03)


@pytest.mark.parametrize("name", SHOWN)
def test_a_counterexample_says_how_the_drafts_stand(name):
    words = {
        "undamped": "drafts, iid",
        "counts_duplicates_twice": "tree [-1, 0",
        "last_of_ties": "greedy decoding",
    }
    shown = quick(name, SHOWN[name])[SHOWN[name]].counterexample

    assert words[name] in shown.summary
    assert json.dumps(shown.case)


def test_greedy_decoding_is_due_the_path_of_the_most_likely_tokens():
    case = quick("sampled_as_greedy", "joint-law")["joint-law"].counterexample.case
    model = Case.from_json(case)

    assert model.greedy
    assert list(model.due(())) == matching.greedy(model.target)(())
