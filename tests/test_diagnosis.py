# SPDX-License-Identifier: Apache-2.0
"""Causes are named where they are known, and nothing is forced into a known one."""

import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from specverify.checks.diagnose import diagnosed
from specverify.checks.observations import observe, settings, single_cases
from specverify.checks.plan import make_plan
from specverify.checks.run import run_checks
from specverify.cli import main
from specverify.defects import CATALOGUE
from specverify.defects.diagnosis import Cause, diagnose, in_words
from specverify.defects.laws import key_of, load
from specverify.errors import EvidenceError
from specverify.evidence.files import save
from specverify.subjects.resolve import resolve
from specverify.subjects.rig import Rig

FILE = Path(__file__).with_name("planted.py")
PLAN = make_plan("quick", max_seconds=600)
RIGHT = {"a": {"0": 0.5, "1": 0.3, "2": 0.2}}
KNOWN = {
    "more-of-0": {"a": {"0": 0.6, "1": 0.24, "2": 0.16}},
    "no-2": {"a": {"0": 0.625, "1": 0.375}},
    "no-2-again": {"a": {"0": 0.625, "1": 0.375}},
}
SENTENCES = {name: f"sentence of {name}." for name in KNOWN}


def drawn(law, n=4000):
    rng = np.random.default_rng(7)
    counts = rng.multinomial(n, list(law.values()))
    return {"a": dict(zip(law, counts.tolist(), strict=True))}


def first(law):
    return diagnose(drawn(law), KNOWN, RIGHT)[0]


# --- by likelihood --------------------------------------------------------------------


def test_a_known_defect_is_named_first():
    assert first(KNOWN["more-of-0"]["a"]).ids == ("more-of-0",)


def test_defects_with_one_law_are_named_together():
    assert first(KNOWN["no-2"]["a"]).ids == ("no-2", "no-2-again")


def test_a_defect_that_is_not_known_is_not_forced_into_one_that_is():
    causes = diagnose(drawn({"0": 0.2, "1": 0.2, "2": 0.6}), KNOWN, RIGHT)

    assert causes[0].ids == ()
    assert causes[0].weight > 0.99


def test_where_the_law_holds_no_defect_is_named():
    causes = diagnose(drawn(RIGHT["a"]), KNOWN, RIGHT)

    assert causes[0].ids == ("lossless",)
    assert in_words(causes, SENTENCES).startswith("not shown")


TWO = RIGHT | {"b": RIGHT["a"]}


def on_both(on_a, on_b):
    return drawn(on_a) | {"b": drawn(on_b)["a"]}


def test_a_new_defect_that_shows_on_one_input_only_is_not_called_lossless():
    """A law of its own on the other input would be too much to fit for so small a bias."""
    observed = {
        "a": {"0": 2000, "1": 1200, "2": 800},
        "b": {"0": 2120, "1": 1200, "2": 680},
    }

    assert diagnose(observed, {}, TWO)[0].ids == ()


def test_a_defect_that_shows_on_one_input_only_is_named():
    more = KNOWN["more-of-0"]["a"]
    known = KNOWN | {"on-b-only": {"a": RIGHT["a"], "b": more}}

    assert diagnose(on_both(RIGHT["a"], more), known, TWO)[0].ids == ("on-b-only",)


def test_a_law_that_is_not_known_on_an_input_is_no_merit():
    """It explains what was seen there as well as an unknown defect does."""
    more = KNOWN["more-of-0"]["a"]
    known = {"b-unknown": {"a": RIGHT["a"]}, "on-b-only": {"a": RIGHT["a"], "b": more}}

    assert diagnose(on_both(RIGHT["a"], more), known, TWO)[0].ids == ("on-b-only",)


def test_weights_sum_to_one():
    causes = diagnose(drawn(RIGHT["a"], 50), KNOWN, RIGHT)

    assert sum(cause.weight for cause in causes) == pytest.approx(1)


def test_few_draws_leave_the_question_open():
    assert diagnose(drawn(KNOWN["more-of-0"]["a"], 20), KNOWN, RIGHT)[0].weight < 0.9


def test_the_words_name_cause_weight_and_mechanism():
    causes = diagnose(drawn(KNOWN["more-of-0"]["a"]), KNOWN, RIGHT)

    assert in_words(causes, SENTENCES) == "more-of-0 (1.00): sentence of more-of-0."


def test_the_words_for_an_unknown_defect_give_the_nearest_known_one():
    causes = diagnose(drawn({"0": 0.7, "1": 0.2, "2": 0.1}), KNOWN, RIGHT)

    assert "none of the known defects; the nearest, more-of-0," in in_words(
        causes, SENTENCES
    )


def test_words_are_found_where_the_second_guess_is_that_nothing_shows():
    causes = [Cause(("no-2",), 0.6, 0.1), Cause(("lossless",), 0.4, 0.2)]

    assert in_words(causes, SENTENCES) == "no-2 (0.60): sentence of no-2."


# --- the laws that are kept -----------------------------------------------------------

BROKEN = {id_: d for id_, d in CATALOGUE.items() if d.effect == "law"}
KEPT = load()
#: The first of each whose rows, in a batch, are not all bound together.
ONE_OF_EACH_FAMILY = {
    d.family: id_
    for id_, d in reversed(BROKEN.items())
    if id_ != "accept-all-rows-or-none"
}


def laws_of(id_):
    subject = CATALOGUE[id_].subject()
    return KEPT[key_of(subject.kind, subject.declared())][id_]


@pytest.mark.parametrize("id_", BROKEN)
def test_every_broken_law_is_kept_for_all_inputs(id_):
    subject = CATALOGUE[id_].subject()
    inputs = {*single_cases(subject), *settings(subject)}

    assert laws_of(id_).keys() == inputs
    assert all(
        sum(law.values()) == pytest.approx(1, abs=1e-3) for law in laws_of(id_).values()
    )


def test_no_law_is_kept_of_what_is_gone():
    assert {id_ for of_key in KEPT.values() for id_ in of_key} == BROKEN.keys()


@pytest.mark.parametrize("id_", ONE_OF_EACH_FAMILY.values())
def test_the_laws_are_those_of_the_code(id_):
    """What was drawn is kept as shares of 200,000 draws."""
    for name, counts in observe(Rig(CATALOGUE[id_].subject()), seed=2).items():
        law = laws_of(id_)[name]
        cells = sorted(
            cell for cell in {*counts, *law} if counts.get(cell, law.get(cell))
        )
        table = [
            [counts.get(cell, 0) for cell in cells],
            [200_000 * law.get(cell, 0) for cell in cells],
        ]
        assert stats.chi2_contingency(table).pvalue > 1e-9


# --- in a run -------------------------------------------------------------------------


@cache
def run(name):
    return run_checks(resolve(f"{FILE}:{name}"), PLAN, pattern="joint-law")


@pytest.fixture
def evidence_file(tmp_path):
    path = tmp_path / "evidence.json"
    save(run("residual_from_p"), path)
    return path


def test_the_evidence_file_is_diagnosed_as_the_run_was(evidence_file, capsys):
    assert main(["diagnose", str(evidence_file)]) == 0
    assert (
        capsys.readouterr().out.strip()
        == run("residual_from_p")["joint-law"].likely_cause
    )


def test_a_diagnosis_can_be_had_as_json(evidence_file, capsys):
    main(["diagnose", str(evidence_file), "--format", "json"])

    assert "residual-from-p" in json.loads(capsys.readouterr().out)["likely_cause"]


def test_evidence_without_a_broken_law_cannot_be_diagnosed():
    with pytest.raises(EvidenceError, match="holds no draws for a diagnosis"):
        diagnosed(run("verify"))


@pytest.mark.parametrize(
    ("id_", "check"),
    [
        ("batch-answers-shifted", "batch-composition"),
        ("batch-rows-kept-by-place", "rounds"),
        ("batch-bonus-at-end", "ragged-rows"),
    ],
)
def test_a_defect_that_single_rows_do_not_show_is_named(id_, check, tmp_path):
    found = run_checks(CATALOGUE[id_].subject(), PLAN, pattern=check)

    assert found[check].likely_cause.startswith(f"{id_} (1.00)")
    assert diagnosed(found) == found[check].likely_cause
