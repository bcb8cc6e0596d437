# SPDX-License-Identifier: Apache-2.0
"""Every planted defect is found, and measured to be what it is.

A defect that is known in closed form is a function of one drafted path: it yields, for
each number of accepted drafts, the law of the token behind them and its weight. All
numbers are Fractions.
"""

import json
import os
import subprocess
import sys
from fractions import Fraction
from functools import cache
from itertools import accumulate, pairwise
from pathlib import Path

import pytest
from scipy import stats

from specverify.checks import tabulate
from specverify.checks.plan import make_plan
from specverify.checks.registry import checks_for
from specverify.checks.reproduce import script
from specverify.checks.run import make_rig, run_check, run_checks
from specverify.checks.search import LawSearch
from specverify.checks.session import Session
from specverify.evidence.records import conclude
from specverify.inputs import witnesses
from specverify.inputs.cases import Case
from specverify.laws import steps
from specverify.laws.distributions import accept_probability, law_distance, residual
from specverify.subjects.resolve import resolve

FILE = Path(__file__).with_name("planted.py")
PLAN = make_plan("quick", max_seconds=600)  # a busy machine changes no draw
ERROR_RATE = 1e-9  # of one comparison with a closed form
NOISE = 0.03  # of a distance that a script shows, from 20 000 draws: eight sigma
KNOWN = "known defect of specverify"

#: Defect, and the check that must see it.
LOSSY = {
    "residual_from_p": "joint-law",
    "absolute_residual": "joint-law",
    "reversed_residual": "joint-law",
    "softmax_residual": "joint-law",
    "zeroed_draft_residual": "joint-law",
    "unmasked_one_hot": "one-hot-draft",
    "floored_residual": "support",
    "residual_of_row_before": "joint-law",
    "residual_of_first_row": "joint-law",
    "bonus_of_row_before": "joint-law",
    "ratio_swapped": "joint-law",
    "always_accept": "joint-law",
    "lenience": "joint-law",
    "same_uniform": "joint-law",
    "counts_past_rejection": "joint-law",
    "goes_on": "joint-law",
    "argmax_recovered": "joint-law",
    "reused_uniform": "joint-law",
    "overwritten": "joint-law",
    "reseeded": "rounds",
    "tempered_draft": "joint-law",
}
#: Each row by itself is right: no law is broken, but rows depend on each other.
BROKEN = {
    "rows_share_uniforms": "row-independence",
    "first_target_for_all": "batch-composition",
}


def planted(name):
    return resolve(f"{FILE}:{name}")


@cache
def whole_run(name):
    return run_checks(planted(name), PLAN)


@cache
def record(name):
    """What the check that must see a defect says, without a search for a smaller input.

    The witness on which it fails was then not picked for what it showed.
    """
    (check,) = checks_for("chain", LOSSY[name])
    return run_check(
        check, make_rig(planted(name), PLAN), PLAN, shrink=False, explain=False
    )


def test_the_correct_verifier_is_lossless():
    run = whole_run("verify")

    assert run.verdict == "lossless", run.with_status("violation")


def test_the_correct_verifier_is_lossless_when_it_returns_a_count_too():
    assert (
        run_checks(planted("counting"), PLAN, pattern="joint-law").verdict == "lossless"
    )


@pytest.mark.parametrize("name", LOSSY)
def test_a_planted_defect_is_lossy(name):
    """Nothing outranks a broken law, so one check settles the verdict."""
    found = record(name)

    assert found.status == "violation"
    assert conclude([found], [found.id]) == "lossy"


def test_the_whole_suite_calls_a_planted_defect_lossy():
    """It also asks whether the rows of a batch are to blame."""
    assert whole_run("residual_from_p").verdict == "lossy"


@pytest.mark.parametrize(("name", "check"), BROKEN.items())
def test_rows_that_depend_on_each_other_are_broken_and_not_lossy(name, check):
    run = whole_run(name)

    assert (run[check].status, run.verdict) == ("violation", "broken")


@pytest.mark.parametrize("name", ["always_accept", "lenience"])
def test_accepting_more_than_any_lossless_rule_can_is_seen_by_itself(name):
    run = run_checks(planted(name), PLAN, pattern="acceptance-bound")

    assert "no lossless rule can" in run["acceptance-bound"].reason


def test_a_wrong_bonus_token_is_seen_by_itself():
    run = run_checks(planted("bonus_of_row_before"), PLAN, pattern="bonus-law")

    assert (run["bonus-law"].status, run.verdict) == ("violation", "lossy")


def test_a_sequence_that_goes_on_behind_a_rejection_breaks_the_contract():
    run = run_checks(planted("goes_on"), PLAN, pattern="output-contract")

    assert "must be the accepted draft" in run["output-contract"].reason


def test_a_verifier_that_reseeds_its_generator_breaks_the_contract():
    run = run_checks(planted("reseeded"), PLAN, pattern="randomness")

    assert "same for two different states" in run["randomness"].reason


# Closed forms


def recovers(recovered=None, accept=accept_probability, bonus=None):
    """Law of one path under token-level verification, with some parts replaced."""

    def outcomes(path, p, q):
        reached = Fraction(1)
        for i, token in enumerate(path):
            kept = accept(p[i][token], q[i][token])
            row = (recovered or correct_row)(i, path, p, q)
            yield path[:i], row, reached * (1 - kept)
            reached *= kept
        yield path, bonus(p) if bonus else p[-1], reached

    return outcomes


def correct_row(i, path, p, q):
    return residual(p[i], q[i])


def weights(formula):
    """Recovered token by normalised `formula(p, q)`, token by token."""

    def row(i, path, p, q):
        masses = [formula(a, b) for a, b in zip(p[i], q[i], strict=True)]
        return normalised(masses) if any(masses) else p[i]

    return row


def normalised(masses):
    total = sum(masses)
    return [mass / total for mass in masses]


def zeroed(i, path, p, q):
    return normalised([0 if x == path[i] else a for x, a in enumerate(p[i])])


def unmasked(i, path, p, q):
    return p[i] if max(q[i]) == 1 else residual(p[i], q[i])


def likeliest(i, path, p, q):
    row = residual(p[i], q[i])
    return [Fraction(x == row.index(max(row))) for x in range(len(row))]


def floored(i, path, p, q):
    return weights(lambda a, b: max(a - b, 0) + (0 if a else Fraction(1, 1000)))(
        i, path, p, q
    )


def reused(i, path, p, q):
    """Law of the token at whose step the distribution function passes u >= a."""
    kept = accept_probability(p[i][path[i]], q[i][path[i]])
    steps = pairwise(accumulate(residual(p[i], q[i]), initial=Fraction(0)))
    lengths = [max(high - max(low, kept), 0) for low, high in steps]
    return normalised(lengths) if any(lengths) else p[i]


def same_uniform_law(path, p, q):
    """More than i drafts are accepted where u is below the first i + 1 ratios."""
    ratios = [
        accept_probability(a[x], b[x]) for x, a, b in zip(path, p, q, strict=False)
    ]
    reached = [Fraction(1), *accumulate(ratios, min)]
    for i in range(len(path)):
        yield path[:i], residual(p[i], q[i]), reached[i] - reached[i + 1]
    yield path, p[-1], reached[-1]


def counting_law(path, p, q):
    """Number of acceptances, wherever they are; the token is that of this position."""
    counts = [Fraction(1)]
    for x, a, b in zip(path, p, q, strict=False):
        kept = accept_probability(a[x], b[x])
        stay = [mass * (1 - kept) for mass in counts]
        move = [mass * kept for mass in counts]
        counts = [s + m for s, m in zip([*stay, 0], [0, *move], strict=True)]
    for i, mass in enumerate(counts):
        yield path[:i], residual(p[i], q[i]) if i < len(path) else p[-1], mass


def tempered_law(path, p, q):
    squares = [normalised([mass**2 for mass in row]) for row in q]
    yield from recovers()(path, p, squares)


#: Defects whose law is known, and the law.
CLOSED = {
    "residual_from_p": recovers(weights(lambda a, b: a)),
    "overwritten": recovers(weights(lambda a, b: a)),
    "absolute_residual": recovers(weights(lambda a, b: abs(a - b))),
    "reversed_residual": recovers(weights(lambda a, b: max(b - a, 0))),
    "zeroed_draft_residual": recovers(zeroed),
    "unmasked_one_hot": recovers(unmasked),
    "floored_residual": recovers(floored),
    "argmax_recovered": recovers(likeliest),
    "reused_uniform": recovers(reused),
    "residual_of_row_before": recovers(
        lambda i, path, p, q: residual(p[max(i - 1, 0)], q[max(i - 1, 0)])
    ),
    "residual_of_first_row": recovers(lambda i, path, p, q: residual(p[0], q[0])),
    "bonus_of_row_before": recovers(bonus=lambda p: p[-2]),
    "ratio_swapped": recovers(accept=lambda a, b: min(1, b / a) if a else 1),
    "always_accept": recovers(accept=lambda a, b: 1),
    "lenience": recovers(accept=lambda a, b: min(1, 2 * a / b)),
    "same_uniform": same_uniform_law,
    "counts_past_rejection": counting_law,
    "tempered_draft": tempered_law,
}

#: Total variation on witness W, from the tables of the literature.
PUBLISHED = {
    "residual_from_p": 0.130,
    "absolute_residual": 0.266,
    "reversed_residual": 0.531,
    "ratio_swapped": 0.531,
    "always_accept": 0.531,
    "lenience": 0.125,
    "reused_uniform": 0.096,
}


def law_of(name, case):
    """Joint law of k + 1 tokens that a defect emits on a case."""
    emitted = {}
    for path, drafted in steps.autoregressive_law(case.draft, case.k).items():
        p = [case.target(path[:i]) for i in range(case.k + 1)]
        q = [case.draft(path[:i]) for i in range(case.k)]
        for head, row, weight in CLOSED[name](path, p, q):
            for token, mass in enumerate(row):
                outcome = (*head, token)
                share = drafted * weight * mass
                emitted[outcome] = emitted.get(outcome, 0) + share
    return steps.completed_law(emitted, case.target, case.k + 1)


def counted(name):
    """Observed counts by outcome, on the witness on which the check failed."""
    table = record(name).tables[0]
    outcomes = [tuple(map(int, label.split(","))) for label in table.labels]
    return dict(zip(outcomes, table.observed, strict=True))


@pytest.mark.parametrize(("name", "published"), PUBLISHED.items())
def test_the_closed_form_has_the_published_distance(name, published):
    target = steps.autoregressive_law(witnesses.W.target, 2)
    found = law_distance(law_of(name, witnesses.W), target)

    assert float(found) == pytest.approx(published, abs=5e-4)


def violated(name):
    """The witness on which the check failed."""
    return Case.from_json(record(name).counterexample.case)


@pytest.mark.parametrize("name", CLOSED)
def test_the_observed_law_is_the_closed_form_of_the_defect(name):
    law, counts = law_of(name, violated(name)), counted(name)
    total = sum(counts.values())
    p_values = [
        stats.binomtest(count, total, float(law.get(outcome, 0))).pvalue
        for outcome, count in counts.items()
    ]

    assert min(p_values) > ERROR_RATE / len(p_values)


@pytest.mark.parametrize("name", [n for n in CLOSED if LOSSY[n] != "support"])
def test_the_estimated_distance_is_that_of_the_counts(name):
    case, counts = violated(name), counted(name)
    target = steps.autoregressive_law(case.target, case.k + 1)
    total = sum(counts.values())
    seen = {outcome: count / total for outcome, count in counts.items()}

    assert record(name).tv_estimate == pytest.approx(float(law_distance(seen, target)))


# Counterexamples


@cache
def smallest(name="residual_from_p"):
    return run_checks(planted(name), PLAN, pattern="joint-law")["joint-law"]


def test_the_counterexample_is_small():
    case = Case.from_json(smallest().counterexample.case)

    assert (case.vocab <= 3, case.k) == (True, 1)


def test_the_case_of_a_counterexample_survives_json():
    data = smallest().counterexample.case
    case = Case.from_json(json.loads(json.dumps(data)))

    assert case.to_json() == data


def test_the_case_of_a_counterexample_is_a_violation_again():
    case = Case.from_json(smallest().counterexample.case)
    rig = make_rig(planted("residual_from_p"), PLAN)
    share = PLAN.error_rate / 20
    session = Session(rig, PLAN, "another", share=share, seconds=60, limit=60)
    search = LawSearch(session, tabulate.joint)

    assert search.evaluate(case).violated


def printed_by(text, folder):
    """What a script prints by itself: no path to us, and in another folder."""
    path = folder / "counterexample.py"
    path.write_text(text, "utf-8")
    hidden = {name: value for name, value in os.environ.items() if "PYTHON" not in name}
    done = subprocess.run(
        [sys.executable, path],
        cwd=folder,
        env=hidden,
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout.splitlines()


def shown_distance(lines):
    """Total variation of the two columns that a script prints."""
    rows = [tuple(map(float, line.rsplit(maxsplit=2)[1:])) for line in lines[1:]]
    return sum(abs(observed - expected) for observed, expected in rows) / 2


@pytest.fixture(scope="module")
def printed(tmp_path_factory):
    text = smallest().counterexample.script
    return printed_by(text, tmp_path_factory.mktemp("script"))


def test_the_script_of_a_counterexample_prints_a_table(printed):
    case = Case.from_json(smallest().counterexample.case)

    assert printed[0].split() == ["tokens", "observed", "expected"]
    assert len(printed) == 1 + case.vocab ** (case.k + 1)


def test_the_script_of_a_counterexample_shows_the_bias(printed):
    case = Case.from_json(smallest().counterexample.case)
    target = steps.autoregressive_law(case.target, case.k + 1)
    due = float(law_distance(law_of("residual_from_p", case), target))

    assert shown_distance(printed) == pytest.approx(due, abs=NOISE)


def test_the_script_shows_no_bias_of_a_correct_verifier(tmp_path):
    lines = printed_by(script(planted("verify"), witnesses.C1, 0), tmp_path)

    assert shown_distance(lines) < NOISE


def test_the_script_shows_no_bias_of_a_correct_verifier_that_counts(tmp_path):
    lines = printed_by(script(planted("counting"), witnesses.C1, 0), tmp_path)

    assert shown_distance(lines) < NOISE


def test_a_large_vocabulary_has_no_script_to_read():
    run = run_checks(planted("residual_from_p"), PLAN, pattern="large-vocab")

    assert run["large-vocab"].counterexample.script == ""
