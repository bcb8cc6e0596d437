# SPDX-License-Identifier: Apache-2.0
"""Defects of the verify step: they are biased as stated, hidden as stated, and found."""

import numpy as np
import pytest

from specverify.checks import exact, tabulate
from specverify.checks.plan import make_plan
from specverify.checks.registry import checks_for
from specverify.checks.run import make_rig, run_check
from specverify.core import verify_chain
from specverify.defects.catalogue import CATALOGUE, CONTROLS
from specverify.exact.stepping import step_law
from specverify.inputs import witnesses
from specverify.inputs.cases import Case
from specverify.inputs.models import ToyModel
from specverify.laws import steps
from specverify.laws.distributions import law_distance
from specverify.subjects.protocol import subject
from specverify.subjects.rig import Rig

FAMILIES = {
    "acceptance",
    "rejection",
    "residual",
    "bonus",
    "numerics",
    "layout",
    "batches",
    "blocks",
}
ENTRIES = {id_: d for id_, d in CATALOGUE.items() if d.family in FAMILIES}
RIGHT = {id_: d for id_, d in CONTROLS.items() if d.family in FAMILIES | {"controls"}}
LAWS = [id_ for id_, d in ENTRIES.items() if d.effect == "law"]
PLAN = make_plan("ci", max_seconds=600)  # a busy machine changes no draw
QUICK = make_plan("quick", max_seconds=600)

#: What one row a call does not show, or chance that is not followed: how it is drawn.
DRAWN = {
    "accept-all-rows-or-none": tabulate.mixed_batch,
    "numerics-offset-overflows": tabulate.mixed_batch,
    "numerics-rows-past-chunk": tabulate.mixed_batch,
    "batch-targets-in-other-order": tabulate.mixed_batch,
    "batch-target-of-first-row": tabulate.mixed_batch,
    "batch-q-of-neighbour": tabulate.mixed_batch,
    "batch-drafts-by-column": tabulate.mixed_batch,
    "batch-answers-shifted": tabulate.mixed_batch,
    "batch-rows-kept-by-place": tabulate.rounds,
    "batch-lengths-ignored": tabulate.ragged,
    "batch-lengths-of-neighbour": tabulate.ragged,
    "batch-bonus-at-end": tabulate.ragged,
    "block-lengths-ignored": tabulate.ragged,
    "block-products-of-uniforms": tabulate.joint,
}
BY_TABLE = {
    tabulate.mixed_batch: "batch-composition",
    tabulate.rounds: "rounds",
    tabulate.ragged: "ragged-rows",
}
#: The check that must find a defect, where it is not joint-law.
CHECK = {
    "accept-zero-ratio": "support",
    "residual-floored": "support",
    "residual-unmasked-one-hot": "one-hot-draft",
    "residual-hole-before-test": "one-hot-draft",
    "residual-hole-left-in-target": "inputs-unchanged",
    "greedy-last-of-ties": "greedy-ties",
    "greedy-accepts-ties": "greedy-ties",
    "bonus-row-before": "bonus-law",
    "bonus-row-first": "bonus-law",
    "bonus-from-draft": "bonus-law",
    "bonus-minus-last-q": "bonus-law",
    "bonus-at-another-temperature": "bonus-law",
    "bonus-argmax": "bonus-law",
    "bonus-unmasked": "support",
    "numerics-epsilon-in-ratio": "exact-law",
    "numerics-epsilon-in-logs": "exact-law",
    "numerics-test-in-bfloat16": "exact-law",
    "numerics-small-residual-accepts": "exact-law",
    "numerics-small-residual-from-p": "exact-law",
    "numerics-epsilon-in-residual": "exact-law",
    "numerics-rows-in-half": "exact-law",
    "numerics-q-underflows": "exact-law",
    "numerics-p-in-sixteenths": "exact-law",
    "numerics-zero-draws-first-id": "support",
    "numerics-one-draws-last-id": "support",
    "numerics-one-leaves-vocab": "support",
    "layout-padding-drawn": "vocab-padding",
    "bonus-missing": "output-contract",
    "layout-answer-int32": "output-contract",
    "layout-answer-too-short": "output-contract",
    "layout-answer-padding": "output-contract",
} | {id_: BY_TABLE[table] for id_, table in DRAWN.items() if table in BY_TABLE}


def chain(*rows, k=None):
    """A case of k drafts from the rows of p and then those of q."""
    k = (len(rows) - 1) // 2 if k is None else k
    p, q = ([row.split() for row in part] for part in (rows[: k + 1], rows[k + 1 :]))
    return Case(ToyModel.from_positions(p), ToyModel.from_positions(q), k)


#: p = q at the drafts, another row behind them.
EQUAL = chain(".5 .3 .2", ".1 .2 .7", ".5 .3 .2")
ALIKE = chain(".2 .3 .5", ".2 .3 .5", ".6 .2 .2")
APART = chain(".3 .7 0 0", "0 .4 0 .6", "0 0 .5 .5")
#: The residual has one token.
NARROW = chain(".5 .25 .25", ".25 .5 .25", ".34 .33 .33")
FLAT = chain(".5 .25 .25", ".25 .25 .5", "1/3 1/3 1/3")
ONE_HOT = witnesses.O1.with_(deterministic=False)
#: p and q are far apart and nowhere small, in sixteenths, and the first token is likely.
SIXTEENTHS = chain("4/16 4/16 8/16", "8/16 4/16 4/16", "8/16 4/16 4/16")
C1 = witnesses.C1
#: Inputs on which a defect has no bias.
BLIND = {
    "accepts-all": EQUAL,
    "accept-ratio-inverted": EQUAL,
    "accept-at-draft-argmax": ONE_HOT,
    "accept-by-stale-token": C1,
    "accept-without-q": ONE_HOT,
    "accept-by-q": chain("1/4 3/4", ".5 .5", ".5 .5"),
    "accept-against-top": chain("1/3 1/3 1/3", ".2 .3 .5", "1/3 1/3 1/3"),
    "accept-test-reversed": chain("1/4 1/4 1/2", ".2 .3 .5", "1/2 1/2 0"),
    "accept-without-chance": APART,
    "accept-at-threshold": APART,
    "accept-on-log-probs": APART,
    "accept-first-unchecked": EQUAL,
    "accept-last-unchecked": EQUAL,
    "accept-joint-ratio": C1,
    "accept-row-before": C1,
    "accept-argmax-match": chain("0 1 0", ".2 .3 .5", ".2 .6 .2"),
    "accept-all-rows-or-none": C1,
    "keeps-last-drafts": C1,
    "counts-behind-rejection": C1,
    "goes-on-behind-rejection": witnesses.J1,
    "keeps-rejected": EQUAL,
    "recovered-at-first-place-only": C1,
    "greedy-accepts-by-ratio": witnesses.O1.with_(greedy=True, deterministic=False),
    "greedy-samples": chain("0 1 0", "0 0 1", ".2 .6 .2").with_(greedy=True),
    "greedy-last-of-ties": C1.with_(greedy=True),
    "greedy-accepts-ties": C1.with_(greedy=True),
    "residual-from-p": EQUAL,
    "residual-softmax": EQUAL,
    "residual-absolute": EQUAL,
    "residual-reversed": EQUAL,
    "residual-without-draft-only": chain(".6 .4", ".3 .7", ".2 .8"),
    "residual-unmasked-one-hot": C1,
    "residual-row-before": C1,
    "residual-row-first": ALIKE,
    "residual-row-last": EQUAL,
    "residual-row-behind": ALIKE,
    "residual-by-rank": C1,
    "residual-argmax": NARROW,
    "recovers-argmax-of-p": NARROW,
    "draft-probs-never-written": EQUAL,
    "residual-uses-next-draft": C1,
    "residual-ratio": FLAT,
    "recovers-from-q": EQUAL,
    "bonus-row-before": ALIKE,
    "bonus-row-first": ALIKE,
    "bonus-minus-last-q": EQUAL.with_(target=EQUAL.draft),
    "bonus-from-draft": EQUAL.with_(target=EQUAL.draft),
    "bonus-unmasked": C1,
    "bonus-at-another-temperature": chain(".2 .3 .5", "1/3 1/3 1/3", ".6 .2 .2"),
    "bonus-argmax": chain(".2 .3 .5", "0 0 1", ".6 .2 .2"),
    "bonus-after-rejection": EQUAL,
    "bonus-cap-taken-for-rejection": EQUAL,
    "bonus-repeats-last-draft": APART,
    "stop-accepted-and-redrawn": chain(".5 .25 .25", ".2 .3 .5", ".25 .5 .25"),
    "stop-run-kept": C1,
    "stop-dropped": chain(".2 .3 .5", "0 .5 .5", ".6 .2 .2"),
    "stop-not-a-bonus": chain(".2 .3 .5", "0 .5 .5", ".6 .2 .2"),
    "numerics-small-residual-accepts": C1,
    "numerics-small-residual-from-p": EQUAL,
    "numerics-rows-in-half": SIXTEENTHS,
    "numerics-test-in-bfloat16": SIXTEENTHS,
    "numerics-q-underflows": C1,
    "numerics-p-in-sixteenths": SIXTEENTHS,
    "numerics-residual-as-probabilities": APART,
    "numerics-offset-overflows": C1,
    "numerics-rows-past-chunk": C1,
    "layout-q-one-late": C1,
    "layout-q-backwards": C1,
    "layout-p-one-early": ALIKE,
    "layout-p-one-late": ALIKE,
    "layout-q-ids-not-mapped": FLAT,
    "layout-last-id-missing": chain(".4 .6 0", ".3 .7 0", ".2 .5 .3"),
    "layout-last-block-missing": witnesses.W,
    "layout-padding-drawn": C1,
    "batch-targets-in-other-order": C1,
    "batch-target-of-first-row": C1,
    "batch-q-of-neighbour": C1,
    "batch-drafts-by-column": C1,
    "batch-answers-shifted": C1,
    "batch-lengths-ignored": C1,
    "batch-lengths-of-neighbour": C1,
    "batch-bonus-at-end": C1,
    **dict.fromkeys(
        (id_ for id_ in LAWS if id_.startswith("block-") and id_ not in DRAWN), C1
    ),
    "block-lengths-ignored": C1,
}


def exact_bias(found, case):
    """Total variation of the joint law that is emitted, each branch followed."""
    law = step_law(Rig(found), case, max_branches=100_000, seconds=600)
    completed = steps.completed_law(law.emitted(), case.due, case.emits)
    return float(
        law_distance(completed, steps.autoregressive_law(case.due, case.emits))
    )


def record(defect, check, plan=PLAN):
    found = defect.subject()
    (chosen,) = checks_for(found.kind, check)
    return run_check(chosen, make_rig(found, plan), plan, shrink=False, explain=False)


# --- what the catalogue says ----------------------------------------------------------


def test_the_catalogue_has_the_verify_step():
    assert len(ENTRIES) >= 50
    assert len(RIGHT) >= 8


@pytest.mark.parametrize("id_", [id_ for id_ in LAWS if id_ not in DRAWN])
def test_the_stated_bias_is_that_of_the_exact_law(id_):
    defect = ENTRIES[id_]
    bias = exact_bias(defect.subject(), defect.shown_on)

    assert bias == pytest.approx(defect.bias, rel=0.005, abs=0)  # three digits


@pytest.mark.parametrize("id_", DRAWN)
def test_the_stated_bias_is_that_of_the_draws(id_):
    defect = ENTRIES[id_]
    table = DRAWN[id_](defect.shown_on)
    counts = table.count(Rig(defect.subject()), 40_000, 0)
    bias = np.abs(counts / counts.sum() - table.probs).sum() / 2

    assert bias == pytest.approx(defect.bias, abs=0.01)  # four times its noise


@pytest.mark.parametrize("id_", [id_ for id_, d in ENTRIES.items() if d.bias == 0])
def test_only_a_broken_contract_has_no_bias(id_):
    assert ENTRIES[id_].effect == "contract"


@pytest.mark.parametrize("id_", BLIND)
def test_a_blind_input_shows_nothing(id_):
    assert exact_bias(ENTRIES[id_].subject(), BLIND[id_]) < 1e-6


@pytest.mark.parametrize("id_", ENTRIES)
def test_every_entry_says_what_hides_it(id_):
    assert ENTRIES[id_].blind_on


# --- what the checks find -------------------------------------------------------------


@pytest.mark.parametrize("id_", ENTRIES)
def test_the_check_that_is_meant_for_a_defect_finds_it(id_):
    found = record(ENTRIES[id_], CHECK.get(id_, "joint-law"))

    assert (found.status, found.effect) == ("violation", ENTRIES[id_].effect)


@pytest.fixture
def few_examples(monkeypatch):
    """Follow the witnesses, and one generated input: all 20 take seconds a subject."""
    monkeypatch.setattr(exact, "_LEAST_EXAMPLES", 1)


@pytest.mark.usefixtures("few_examples")
@pytest.mark.parametrize("check", ["joint-law", "exact-law"])
@pytest.mark.parametrize("id_", RIGHT)
def test_a_form_that_only_looks_wrong_passes(id_, check):
    assert record(RIGHT[id_], check, QUICK).status == "pass"


@pytest.mark.usefixtures("few_examples")
@pytest.mark.parametrize("check", sorted({*CHECK.values(), "joint-law"}))
def test_no_check_finds_anything_in_a_correct_verifier(check):
    chain_ = subject(verify_chain, ragged=True)
    if check == "greedy-ties":
        chain_ = RIGHT["control-greedy-match"].subject()
    (chosen,) = checks_for("chain", check)
    found = run_check(
        chosen, make_rig(chain_, QUICK), QUICK, shrink=False, explain=False
    )

    assert found.status == "pass"
