# SPDX-License-Identifier: Apache-2.0
"""Defects of drafts, sampling, randomness, several drafts and trees are what is said."""

from dataclasses import replace

import pytest

from specverify.checks.plan import make_plan
from specverify.checks.registry import checks_for
from specverify.checks.run import make_rig, run_check
from specverify.defects import CATALOGUE, CONTROLS
from specverify.defects.siblings import FIXED, LIKELY, SUCCESSIVE
from specverify.defects.trees import WIDE, WIDE_FIXED
from specverify.defects.verifier import Verifier
from specverify.exact.stepping import step_law
from specverify.inputs import witnesses
from specverify.inputs.cases import Case
from specverify.inputs.models import ToyModel
from specverify.inputs.trees import MultidraftCase, TreeCase, multidraft_case, tree_case
from specverify.laws import steps
from specverify.laws.distributions import law_distance
from specverify.subjects.protocol import subject
from specverify.subjects.rig import Rig

FAMILIES = {
    "proposals",
    "sampling",
    "processors",
    "randomness",
    "noise",
    "siblings",
    "several",
    "trees",
}
ENTRIES = {i: d for i, d in CATALOGUE.items() if d.family in FAMILIES}
RIGHT = {i: d for i, d in CONTROLS.items() if d.family in FAMILIES}
LAW = [i for i, d in ENTRIES.items() if d.effect == "law"]
CONTRACT = [i for i, d in ENTRIES.items() if d.effect == "contract"]
PLAN = make_plan("ci", max_seconds=600)  # a busy machine changes no draw
QUICK = make_plan("quick", max_seconds=600)

#: The check that finds a defect where it is not joint-law.
CHECK = {
    "draft-drawn-in-bfloat16": "exact-law",
    "draft-looked-up-is-certain": "one-hot-draft",
    "coin-draws-token-behind-given-draft": "one-hot-draft",
    "temperature-not-on-bonus": "bonus-law",
    "top-p-on-first-row-only": "support",
    "min-p-on-bonus-only": "support",
    "mask-of-row-before": "support",
    "mask-of-first-row": "support",
    "penalty-keeps-rejected": "rounds",
    "uniforms-serve-two-steps": "rounds",
    "rows-share-uniforms": "row-independence",
    "uniforms-frozen": "randomness",
    "generator-ignored": "randomness",
    "seeded-by-age": "randomness",
    "names-another-slot": "output-contract",
    "tree-emits-past-the-leaf": "output-contract",
}
#: Show in batches only; one row at a time they are lossless.
BATCHES = {
    "draft-temperature-of-first-request",
    "draft-recorded-of-neighbour",
    "ban-of-other-request",
    "noise-lost-for-some-rows",
}
#: Keep something from step to step, or race twice on one noise.
UNFOLLOWED = {
    "penalty-keeps-rejected",
    "uniforms-serve-two-steps",
    "draft-noise-draws-recovered",
    "draft-noise-draws-bonus",
    "draft-noise-at-every-position",
    "noise-shared-by-matching",
}


def positions(target, draft, k=1):
    models = [ToyModel.from_positions([r.split() for r in m]) for m in (target, draft)]
    return Case(*models, k=k)


ROW = ".2 .3 .5"
ONE_HOT_Q = positions([ROW, ROW], ["1 0 0"])
TWO_OF_Q = positions([ROW, ROW], [".6 .4 0"])
UNIFORM_Q = witnesses.C5
ONE_HOT_P = positions(["0 1 0", "0 0 1"], [".6 .2 .2"])
UNIFORM_P = positions([".25 .25 .25 .25"] * 2, [".4 .3 .2 .1"])
WITHOUT_0 = positions(["0 .4 .6", "0 .5 .5"], [".3 .3 .4"])
WITHOUT_BOTH = positions(["0 0 .4 .6"] * 2, [".6 .4 0 0"])
EQUAL_ROWS = positions([ROW] * 3, [".6 .2 .2"] * 2, k=2)
GIVEN_OF_TWO = positions([".4 .6", ".3 .7"], ["1 0"]).with_(deterministic=True)
EQUAL = multidraft_case(witnesses.B1, 2, "iid")
EQUAL_SUCCESSIVE = multidraft_case(witnesses.B1, 2, "without_replacement")

#: What hides a defect, where that is an input.
BLIND = {
    "draft-argmax-recorded-softmax": ONE_HOT_Q,
    "draft-top-k-recorded-raw": TWO_OF_Q,
    "draft-top-k-unnormalised": TWO_OF_Q,
    "draft-temperature-not-recorded": UNIFORM_Q,
    "draft-temperature-recorded-only": UNIFORM_Q,
    "draft-temperature-of-first-request": witnesses.W,
    "draft-recorded-uniform": UNIFORM_Q,
    "draft-recorded-at-wrong-stride": UNIFORM_Q,
    "draft-ids-renamed-without-q": UNIFORM_Q,
    "draft-recorded-of-neighbour": witnesses.M1,
    "draft-drawn-in-bfloat16": witnesses.W,
    "draft-recorded-one-position-late": witnesses.C1,
    "draft-unlikely-dropped": witnesses.C1,
    "temperature-on-bonus-only": UNIFORM_P,
    "temperature-not-on-bonus": witnesses.D1,
    "temperature-twice": UNIFORM_P,
    "temperature-not-on-recovered": witnesses.S1,
    "temperature-not-on-test": UNIFORM_P,
    "top-k-on-recorded-q-only": TWO_OF_Q,
    "top-p-on-first-row-only": witnesses.C1,
    "top-p-twice": ONE_HOT_P,
    "min-p-on-bonus-only": witnesses.C1,
    "drafts-verified-greedily": ONE_HOT_P,
    "sampler-ignored": ONE_HOT_P,
    "logit-bias-on-bonus-only": WITHOUT_0,
    "penalty-forgets-drafts": witnesses.C1.with_(k=0),
    "penalty-counts-all-drafts": witnesses.C1.with_(k=0),
    "ban-of-other-request": witnesses.C1,
    "mask-of-row-before": witnesses.C1,
    "mask-of-first-row": witnesses.C1,
    "random-filter-redrawn": WITHOUT_0,
    "test-uniform-draws-token": witnesses.S1,
    "coin-draws-token-behind-given-draft": GIVEN_OF_TWO,
    "first-test-draws-bonus": witnesses.D1,
    "same-uniform-at-every-position": witnesses.C1,
    "reseeded-before-every-draw": witnesses.B1,
    "draft-uniform-tests-draft": witnesses.B1,
    "noise-lost-for-some-rows": witnesses.C1,
    "siblings-q-kept": EQUAL_SUCCESSIVE,
    "siblings-q-masked-only": EQUAL_SUCCESSIVE,
    "siblings-q-narrowed": EQUAL,
    "siblings-p-kept": EQUAL_SUCCESSIVE,
    "siblings-p-unnormalised": EQUAL_SUCCESSIVE,
    "siblings-recovered-from-p": EQUAL_SUCCESSIVE,
    "siblings-in-reverse": multidraft_case(UNIFORM_Q, 2, "without_replacement"),
    "fixed-siblings-p-masked-only": multidraft_case(LIKELY, 1, "deterministic"),
    "fixed-siblings-p-kept": multidraft_case(WITHOUT_BOTH, 2, "deterministic"),
    "kseq-undamped": EQUAL,
    "best-draft-as-if-only": EQUAL,
    "hub-rule-on-independent-drafts": multidraft_case(ONE_HOT_Q, 2, "iid"),
    "successive-rule-on-fixed-drafts": SUCCESSIVE,
    "threshold-for-sum": multidraft_case(WITHOUT_BOTH, 2, "deterministic"),
    "threshold-for-one": multidraft_case(UNIFORM_P, 2, "deterministic"),
    "drawn-slot-with-all-of-q": multidraft_case(witnesses.W, 1, "greedy"),
    "target-redrawn-for-each-draft": multidraft_case(LIKELY, 1, "deterministic"),
    "duplicates-add-up": FIXED,
    "coin-draws-token-behind-siblings": FIXED,
    "tree-redrawn-for-each-path": tree_case(witnesses.C1, (-1, 0), "deterministic"),
    "tree-best-path-as-if-only": tree_case(witnesses.C1, (-1, 0), "iid"),
    "tree-recovers-from-p": tree_case(witnesses.B1, (-1, 0, 0), "without_replacement"),
    "tree-p-of-node-before": tree_case(
        EQUAL_ROWS, (-1, 0, 0, 1), "without_replacement"
    ),
    "tree-q-of-node-before": WIDE,
    "tree-traversal-of-fixed-drafts": WIDE,
    "tree-recursive-on-fixed-drafts": WIDE,
    "tree-duplicates-add-up": WIDE_FIXED,
}


def exact_bias(entry, case):
    """Total variation between what a step emits and what is due, computed exactly."""
    law = step_law(Rig(entry.subject()), case)
    assert law.unfollowed == 0
    found = steps.completed_law(law.emitted(), case.due, case.emits)
    return float(law_distance(found, steps.autoregressive_law(case.due, case.emits)))


def record(found, check, plan=PLAN):
    """What one check says, without a search for a smaller input."""
    (chosen,) = checks_for(found.kind, check)
    return run_check(chosen, make_rig(found, plan), plan, shrink=False, explain=False)


def other_cases(shown):
    """Named cases in the form of the one that a control is shown on."""
    for case in (witnesses.S1,):
        if isinstance(shown, MultidraftCase):
            yield multidraft_case(case, 2, shown.drafts)
        elif isinstance(shown, TreeCase):
            yield tree_case(case, (-1, 0, 0), shown.drafts)
        else:
            yield case


def test_there_are_as_many_as_promised():
    assert len(ENTRIES) >= 45


# --- how large a bias is, and what hides it -------------------------------------------


@pytest.mark.parametrize("name", [i for i in LAW if i not in UNFOLLOWED | BATCHES])
def test_the_stated_bias_is_that_of_the_exact_law(name):
    entry = ENTRIES[name]

    assert exact_bias(entry, entry.shown_on) == pytest.approx(entry.bias, abs=0.002)


def test_a_wrong_bias_would_be_seen():
    entry = ENTRIES["siblings-q-kept"]

    assert exact_bias(entry, entry.shown_on) != pytest.approx(0.103, abs=0.002)


@pytest.mark.parametrize("name", BLIND)
def test_what_is_said_to_be_blind_hides_the_defect(name):
    assert exact_bias(ENTRIES[name], BLIND[name]) < 1e-6


@pytest.mark.parametrize("name", [i for i, d in ENTRIES.items() if d.draft])
def test_drafts_that_the_test_draws_itself_hide_a_defect_of_the_drafter(name):
    entry = replace(ENTRIES[name], draft=False)

    assert exact_bias(entry, entry.shown_on) < 1e-6


def test_blind_inputs_belong_to_entries():
    assert BLIND.keys() <= ENTRIES.keys()


def test_an_input_that_shows_a_defect_is_not_blind():
    entry = ENTRIES["test-uniform-draws-token"]

    assert exact_bias(entry, witnesses.W) > 0.05


# --- who finds them -------------------------------------------------------------------


@pytest.mark.parametrize("name", LAW)
def test_a_defect_of_the_law_is_called_lossy(name):
    found = record(ENTRIES[name].subject(), CHECK.get(name, "joint-law"))

    assert (found.status, found.effect) == ("violation", "law"), found.reason


@pytest.mark.parametrize("name", CONTRACT)
def test_a_broken_contract_is_called_broken(name):
    found = record(ENTRIES[name].subject(), CHECK[name])

    assert (found.status, found.effect) == ("violation", "contract"), found.reason


@pytest.mark.parametrize("check", ["bonus-law", "support", "rounds", "randomness"])
def test_a_correct_verifier_is_called_neither(check):
    found = record(subject(Verifier()), check, QUICK)

    assert found.status == "pass", found.reason


# --- what looks like a defect and is none ---------------------------------------------


@pytest.mark.parametrize("name", RIGHT)
def test_a_control_passes_the_check_of_the_law(name):
    found = record(RIGHT[name].subject(), "joint-law", QUICK)

    assert found.status == "pass", found.reason


@pytest.mark.parametrize("name", [i for i in RIGHT if i not in UNFOLLOWED])
def test_a_control_follows_the_target_exactly(name):
    entry = RIGHT[name]
    cases = [entry.shown_on, *other_cases(entry.shown_on)]

    assert max(exact_bias(entry, case) for case in cases) < 1e-6


def test_a_defect_among_the_controls_would_be_seen():
    found = record(ENTRIES["duplicates-add-up"].subject(), "joint-law", QUICK)

    assert found.status == "violation"
