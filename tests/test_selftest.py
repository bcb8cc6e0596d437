# SPDX-License-Identifier: Apache-2.0
"""The instrument's own test: planted defects are caught, correct forms are let through."""

import json
from functools import cache

import pytest

from specverify.checks.plan import make_plan
from specverify.checks.registry import checks_for
from specverify.checks.selftest import Trial, chosen, selftest, tally, try_defect
from specverify.cli import main
from specverify.defects import CATALOGUE, CONTROLS, DECODER_CONTROLS, DECODERS

FEW = [CATALOGUE["residual-from-p"], CONTROLS["control-block"]]


@cache
def trials():
    return selftest(FEW)


def test_a_planted_defect_is_caught_and_a_correct_form_is_not():
    assert [trial.caught_by for trial in trials()] == ["joint-law", ""]
    assert all(trial.right for trial in trials())


def trial(defect, caught_by, *statuses):
    return Trial(defect, caught_by, "", 10, 0.1, frozenset(statuses))


def test_a_defect_that_is_missed_is_wrong():
    assert not trial(FEW[0], "", "pass").right


def test_a_correct_form_that_is_flagged_is_wrong():
    assert not trial(FEW[1], "joint-law", "pass", "violation").right


@pytest.mark.parametrize(
    ("statuses", "outcome"),
    [(["pass", "inconclusive"], "inconclusive"), (["skipped"], "none"), ([], "none")],
)
def test_a_correct_form_that_was_not_decided_is_not_let_through(statuses, outcome):
    undecided = trial(FEW[1], "", *statuses)

    assert undecided.outcome == outcome
    assert not undecided.right


def test_every_family_with_a_defect_has_one_in_the_choice():
    families = {defect.family for defect in CATALOGUE.values()}

    assert families <= {defect.family for defect in chosen()}


def test_all_correct_forms_are_in_the_choice():
    assert set(CONTROLS) <= {defect.id for defect in chosen()}


def test_the_command_tells_what_was_caught(monkeypatch, capsys):
    monkeypatch.setattr("specverify.checks.selftest.chosen", lambda pattern: FEW)

    assert main(["selftest"]) == 0
    assert (
        "caught 1 of 1 defects, flagged 0 of 1 correct forms" in capsys.readouterr().out
    )


def test_the_command_fails_where_a_defect_is_missed(monkeypatch):
    monkeypatch.setattr("specverify.checks.selftest.chosen", lambda pattern: FEW[:1])
    monkeypatch.setattr("specverify.checks.selftest._ORDER", ("support",))

    assert main(["selftest"]) == 1


def test_the_command_can_answer_in_json(monkeypatch, capsys):
    monkeypatch.setattr("specverify.checks.selftest.chosen", lambda pattern: FEW[:1])
    main(["selftest", "--format", "json"])

    assert json.loads(capsys.readouterr().out)[0]["caught_by"] == "joint-law"


def test_a_part_can_be_chosen_by_its_ids(capsys):
    assert main(["selftest", "residual-from-*"]) == 0
    assert "caught 1 of 1 defects" in capsys.readouterr().out


def test_an_entry_that_does_not_exist_is_a_usage_error(capsys):
    assert main(["selftest", "residual-from-q"]) == 2
    assert "did you mean 'residual-from-p'?" in capsys.readouterr().err


def test_what_was_not_decided_is_counted():
    assert tally([trial(FEW[1], "", "inconclusive")]) == (
        "caught 0 of 0 defects, flagged 0 of 1 correct forms; 1 not decided"
    )


def test_the_catalogue_can_be_listed(capsys):
    main(["list", "--defects"])
    lines = capsys.readouterr().out.splitlines()

    ids = {*CATALOGUE, *CONTROLS, *DECODERS, *DECODER_CONTROLS}
    assert ids <= {line.split()[0] for line in lines if line}


def test_the_catalogue_can_be_listed_as_json(capsys):
    main(["list", "--defects", "--format", "json"])
    (entry,) = (
        entry
        for entry in json.loads(capsys.readouterr().out)
        if entry["id"] == "stop-after-cap"
    )

    assert entry["sources"][0] == "sgl-project/sglang#30291"
    assert entry["bias"] == 0.09


def test_a_defect_of_a_decoder_is_not_for_the_selftest(capsys):
    assert main(["selftest", "cache-*"]) == 2
    assert "is a defect of a whole decoder" in capsys.readouterr().err


def test_the_catalogue_is_not_narrowed_by_kind(capsys):
    assert main(["list", "--defects", "--kind", "tree"]) == 2
    assert "--defects has none" in capsys.readouterr().err


def test_the_grade_is_that_of_the_evidence():
    """A contract that is broken while counting is a proof, and no statistics."""
    entry = CATALOGUE["layout-answer-int32"]
    (check,) = checks_for("chain", "joint-law")

    found = try_defect(entry, [check], make_plan("quick"))
    assert (found.caught_by, found.grade) == ("joint-law", "structural")
