# SPDX-License-Identifier: Apache-2.0
"""Solutions of the tutorial's exercise: right ones pass, wrong ones are told why."""

import random
from functools import cache

import pytest
import torch

from specverify.checks.plan import make_plan
from specverify.checks.run import run_checks
from specverify.subjects.protocol import subject
from specverify.subjects.resolve import resolve

PLAN = make_plan("quick", max_seconds=600)
KNOWN = "known defect of specverify"


def accepted(draft_probs, target_probs, draft_tokens, rule):
    """The drafts before the first one that `rule(p, q)` turns down."""
    output = []
    for position, token in enumerate(draft_tokens.tolist()):
        p = float(target_probs[position, token])
        q = float(draft_probs[position, token])
        if not rule(p, q):
            break
        output.append(token)
    return output


def uniform():
    return torch.rand(1).item()


def correct(q, p, tokens):
    return accepted(q, p, tokens, lambda p, q: p >= q or uniform() < p / q)


def correct_in_tensors(q, p, tokens):
    """Another style: look up all ratios first, return a tensor."""
    rows = torch.arange(len(tokens))
    ratios = p[rows, tokens] / q[rows, tokens]
    length = 0
    while length < len(tokens):
        if ratios[length] < 1 and torch.rand(()) >= ratios[length]:
            break
        length += 1
    return tokens[:length]


def inverted(q, p, tokens):
    return accepted(q, p, tokens, lambda p, q: q >= p or uniform() < q / p)


def goes_on(q, p, tokens):
    kept = []
    for position in range(len(tokens)):
        row = slice(position, position + 1)
        kept += correct(q[row], p[row], tokens[row])
    return kept


def always(q, p, tokens):
    return tokens.tolist()


def never(q, p, tokens):
    return []


def with_p(q, p, tokens):
    return accepted(q, p, tokens, lambda p, q: p >= q or uniform() < p)


def always_with_p(q, p, tokens):
    return accepted(q, p, tokens, lambda p, q: uniform() < p)


def without_chance(q, p, tokens):
    return accepted(q, p, tokens, lambda p, q: p >= q)


def draws_always(q, p, tokens):
    return accepted(q, p, tokens, lambda p, q: uniform() < p / q)


def python_random(q, p, tokens):
    return accepted(q, p, tokens, lambda p, q: p >= q or random.random() < p / q)


def rejects(q, p, tokens):
    return accepted(q, p, tokens, lambda p, q: p >= q or uniform() > p / q)


def rejects_always_drawing(q, p, tokens):
    return accepted(q, p, tokens, lambda p, q: uniform() > p / q)


def with_the_rejected(q, p, tokens):
    return tokens[: len(correct(q, p, tokens)) + 1].tolist()


def one_early(q, p, tokens):
    return correct(q, p, tokens)[:-1]


def changes_inputs(q, p, tokens):
    output = correct(q, p, tokens)
    p.div_(q)
    return output


def nothing(q, p, tokens):
    correct(q, p, tokens)


def raises(q, p, tokens):
    raise IndexError("row 3 of 3")


#: Solution, check that must find it, verdict, what the reason must say.
WRONG = {
    inverted: ("accept-law", "lossy", "it accepts with probability q/p instead of p/q"),
    goes_on: ("stop", "lossy", "it goes on after a rejection"),
    always: ("accept-law", "lossy", "it always accepts"),
    never: ("accept-law", "lossy", "it never accepts"),
    with_p: ("accept-law", "lossy", "it accepts with probability p instead of p/q"),
    always_with_p: ("accept-law", "lossy", "probability p instead of min(1, p/q)"),
    without_chance: ("accept-law", "lossy", "only where p >= q, without chance"),
    rejects: ("accept-law", "lossy", "it rejects with probability p/q instead"),
    draws_always: ("draws", "broken", "it draws 1 uniforms where p > q; due are 0"),
    python_random: ("draws", "broken", "randomness does not come from torch.rand"),
    with_the_rejected: ("stop", "lossy", "returns the rejected token too"),
    one_early: ("stop", "lossy", "it stops before a rejection"),
    changes_inputs: ("prefix", "broken", "it changed its input probabilities in place"),
    nothing: ("prefix", "broken", "it returned a NoneType; due is a list of token ids"),
    raises: ("prefix", "broken", "it raised IndexError: row 3 of 3 (test_exercise.py:"),
}


def by_name(function):
    return function.__name__


@cache
def run(solution):
    return run_checks(subject(solution, kind="exercise"), PLAN)


@pytest.mark.parametrize("solution", [correct, correct_in_tensors], ids=by_name)
def test_a_correct_solution_is_lossless(solution):
    assert run(solution).verdict == "lossless", run(solution).with_status("violation")


def test_the_reference_is_lossless():
    assert run_checks(resolve("reference:exercise"), PLAN).verdict == "lossless"


@pytest.mark.parametrize("solution", WRONG, ids=by_name)
def test_a_wrong_solution_is_told_in_plain_words_what_it_does(solution):
    check, _, words = WRONG[solution]
    record = run(solution)[f"exercise-{check}"]

    assert record.status == "violation"
    assert words in record.reason


@pytest.mark.parametrize("solution", WRONG, ids=by_name)
def test_a_wrong_solution_has_its_verdict(solution):
    assert run(solution).verdict == WRONG[solution][1]


def test_a_wrong_ratio_comes_with_numbers():
    shown = run(inverted)["exercise-accept-law"].counterexample.where

    assert shown == (
        "p = 0, q = 0.05: accepted with probability 1.000000, due is 0.000000"
    )


def test_the_size_of_a_wrong_ratio_is_its_total_variation():
    """Accepting with probability p where 0.5/1 is due, for a draft of mass q = 1."""
    record = run(with_p)["exercise-accept-law"]
    (p, q) = (record.counterexample.case[name][0][1] for name in ("p", "q"))

    assert record.tv_estimate == pytest.approx(abs(p - p / q) * q, abs=1e-6)


def test_a_solution_that_cannot_be_scripted_is_still_tested_by_drawing():
    assert run(python_random)["exercise-accepted-length"].status == "pass"


def test_the_script_of_a_counterexample_shows_the_mistake(capsys):
    script = run(with_the_rejected)["exercise-stop"].counterexample.script
    exec(script, {"verify": lambda q, p, t: with_the_rejected(q, p, torch.tensor(t))})  # noqa: S102 - it is ours

    assert capsys.readouterr().out == "[1]\n"


def test_a_solution_that_returns_the_rejected_token_is_not_said_to_accept_always():
    assert run(with_the_rejected)["exercise-accept-law"].reason != "it always accepts"


def test_a_solution_that_rejects_with_the_ratio_is_told_so_however_it_draws():
    reason = run(rejects_always_drawing)["exercise-accept-law"].reason

    assert "rejects with probability p/q instead" in reason


def test_a_solution_that_cannot_be_scripted_is_not_held_to_a_script():
    assert run(python_random)["exercise-prefix"].status == "inconclusive"


def test_a_run_leaves_the_generator_of_the_host_as_it_was():
    before = random.getstate()
    run_checks(subject(python_random, kind="exercise"), PLAN, pattern="exercise-draws")

    assert random.getstate() == before
