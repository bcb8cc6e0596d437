# SPDX-License-Identifier: Apache-2.0
"""What a script, a notebook or another test runner meets; and what README shows."""

import contextlib
import inspect
import io
import random
import re
import shlex
import signal
import subprocess
import sys
import unittest
import warnings
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import hypothesis
import numpy as np
import pytest
import torch

import specverify
from specverify import (
    InconclusiveError,
    LosslessnessError,
    UsageError,
    check_lossless,
)
from specverify.checks.plan import PROFILES
from specverify.checks.registry import checks_for
from specverify.options import parser
from specverify.subjects.resolve import BUILTIN

README = Path(__file__).parent.with_name("README.md").read_text(encoding="utf-8")
QUICK = {"profile": "quick", "max_seconds": 600}  # a busy machine changes no draw
SUPPORT = {**QUICK, "checks": "support"}


def always_accept(draft_token_ids, draft_probs, target_probs, *, generator):
    bonus = torch.multinomial(target_probs[:, -1], 1, generator=generator)
    return torch.cat([draft_token_ids, bonus], dim=1)


def always_accept_from_global_state(draft_token_ids, draft_probs, target_probs):
    np.random.rand(3)  # noqa: NPY002 - engines do so
    random.random()
    bonus = torch.multinomial(target_probs[:, -1], 1)
    return torch.cat([draft_token_ids, bonus], dim=1)


# Answers


def test_a_lossless_subject_gives_its_evidence():
    assert check_lossless("reference:chain", **SUPPORT).verdict == "lossless"


def test_a_lossy_subject_raises():
    with pytest.raises(LosslessnessError, match="always_accept: LOSSY"):
        check_lossless(always_accept, **SUPPORT)


def test_a_violation_is_an_assertion_error():
    with pytest.raises(AssertionError):
        check_lossless(always_accept, **SUPPORT)


def test_the_error_holds_the_evidence():
    with pytest.raises(LosslessnessError) as caught:
        check_lossless(always_accept, **SUPPORT)

    assert caught.value.evidence["support"].status == "violation"


def test_the_message_says_what_was_found_and_on_which_input():
    with pytest.raises(LosslessnessError, match=r"(?s)p = 0 were emitted.*smallest"):
        check_lossless(always_accept, **SUPPORT)


def test_a_broken_subject_raises():
    with pytest.raises(LosslessnessError, match="BROKEN"):
        check_lossless(lambda ids, q, p: p, **{**QUICK, "checks": "output-contract"})


def test_a_run_that_tests_no_law_is_inconclusive():
    with pytest.raises(InconclusiveError, match="INCONCLUSIVE"):
        check_lossless("reference:chain", **{**QUICK, "checks": "output-contract"})


def test_an_inconclusive_run_is_no_pass_for_code_that_catches_violations():
    assert issubclass(InconclusiveError, LosslessnessError)


def test_an_expected_failure_raises_nothing():
    evidence = check_lossless(
        always_accept,
        **{**QUICK, "checks": "[bs]*u*"},
        expected_failures={"support": "typical acceptance, #12"},
    )

    assert evidence["support"].status == "expected_failure"


def test_an_expected_failure_that_passes_raises():
    with pytest.raises(LosslessnessError, match="expected to fail"):
        check_lossless("reference:chain", **SUPPORT, expected_failures={"support": "x"})


def test_a_solution_of_the_exercise_is_judged_as_one():
    evidence = check_lossless("reference:exercise", **QUICK, checks="*-law")

    assert evidence.subject.kind == "exercise"


def test_a_function_is_judged_as_what_it_is_declared():
    with pytest.raises(LosslessnessError, match="goes on after a rejection"):
        check_lossless(
            lambda q, p, tokens: tokens.tolist(),
            kind="exercise",
            **{**QUICK, "checks": "*-stop"},
        )


# Requests that are wrong


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"error_rate": 2}, r"error_rate is 2; allowed is the open interval \(0, 1\)"),
        ({"profile": "quik"}, "did you mean 'quick'"),
        ({"checks": "suport"}, "did you mean 'support'"),
        ({"expected_failures": {"suport": "x"}}, "did you mean 'support'"),
        ({"expected_failures": {"support": " "}}, "is empty; say why"),
        ({"kind": "chian", "target": always_accept}, "kind is 'chian'; allowed are"),
        ({"target": 3}, "fn is a int; a subject must be callable"),
        ({"device": "tpu"}, "device is 'tpu'; reference:chain runs on cpu, cuda"),
    ],
)
def test_a_wrong_request_is_a_usage_error(arguments, told):
    with pytest.raises(UsageError, match=told):
        check_lossless(**{"target": "reference:chain", **SUPPORT, **arguments})


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"error_rat": 1e-9}, "did you mean 'error_rate'"),
        ({"error_rate": "1e-9"}, "error_rate is '1e-9'"),
        ({"seed": "x"}, "seed is 'x'"),
    ],
)
def test_a_wrong_setting_is_a_usage_error(arguments, told):
    with pytest.raises(UsageError, match=told):
        check_lossless("reference:chain", **{**SUPPORT, **arguments})


# Beside other code


class UnderUnittest(unittest.TestCase):
    """What a project that has no pytest writes; collected here as well."""

    def test_the_reference_is_lossless(self):
        check_lossless("reference:chain", **SUPPORT)


def test_a_violation_under_unittest_is_a_failure_and_no_error():
    class Wrong(unittest.TestCase):
        def test_lossless(self):
            check_lossless(always_accept, **SUPPORT)

    result = unittest.TestResult()
    Wrong("test_lossless").run(result)

    assert (len(result.failures), len(result.errors)) == (1, 0)


def test_pytest_is_not_imported():
    code = """
import sys
import specverify
specverify.check_lossless("reference:chain", profile="quick", checks="support")
print("pytest" in sys.modules)
"""
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )

    assert found.stdout == "False\n"


HOST = {
    "torch's generator": lambda: torch.get_rng_state().tolist(),
    "NumPy's generator": lambda: str(np.random.get_state()),  # noqa: NPY002
    "Python's generator": random.getstate,
    "torch's default dtype": torch.get_default_dtype,
    "torch's threads": torch.get_num_threads,
    "torch's determinism": torch.are_deterministic_algorithms_enabled,
    "NumPy's handling of errors": np.geterr,
    "Hypothesis' settings": lambda: hypothesis.settings.default,
    "the alarm": lambda: (
        signal.getsignal(signal.SIGALRM),
        signal.getitimer(signal.ITIMER_REAL),
    ),
    "the warnings": lambda: list(warnings.filters),
    "the standard output": lambda: sys.stdout,
}


def seed_the_host(seed):
    torch.manual_seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - the state under test
    random.seed(seed)


@pytest.mark.parametrize("state", HOST)
def test_what_belongs_to_the_host_is_left_as_it_was(state):
    seed_the_host(1)
    before = HOST[state]()
    with contextlib.suppress(LosslessnessError):
        check_lossless(
            always_accept_from_global_state, **QUICK, checks="joint-law", examples=1
        )

    assert HOST[state]() == before


def test_the_state_of_the_host_changes_no_draw():
    found = []
    for seed in (1, 2):
        seed_the_host(seed)
        run = check_lossless(
            always_accept_from_global_state, **QUICK, checks="bonus-law", examples=0
        )
        found.append(run["bonus-law"].tables)

    assert found[0] == found[1]


# README


def fences(language):
    """Code blocks of README in one language, each with the plain block behind it."""
    block = r"^```{}\n(.*?)^```\n"
    pair = rf"{block.format(language)}(?:\n{block.format('')})?"
    return re.findall(pair, README, re.DOTALL | re.MULTILINE)


PYTHON = fences("python")


@pytest.fixture
def my_engine(monkeypatch):
    """The engine that README speaks of; the real one under the name of another."""

    def verify(draft_token_ids, draft_probs, target_probs, *, generator):
        return always_accept(
            draft_token_ids, draft_probs, target_probs, generator=generator
        )

    module = ModuleType("my_engine")
    module.verify = verify
    monkeypatch.setitem(sys.modules, "my_engine", module)
    monkeypatch.setitem(BUILTIN, "transformers", BUILTIN["reference:chain"])
    for name, plan in PROFILES.items():  # a busy machine changes no draw
        monkeypatch.setitem(PROFILES, name, replace(plan, max_seconds=600))
    return module


def executed(source):
    """Names that a block defines, and what it prints."""
    names, out = {"__name__": "block"}, io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(source, "README.md", "exec"), names)  # noqa: S102 - our own text
    return names, out.getvalue()


def test_readme_has_a_block_for_each_door_in_python():
    assert [("parametrize" in b, "check_lossless" in b) for b, _ in PYTHON] == [
        (True, False),
        (False, True),
        (False, False),
        (False, False),
        (False, False),
    ]


def test_the_test_in_readme_has_an_item_for_each_subject_and_check(my_engine):
    names, _ = executed(PYTHON[0][0])
    (mark,) = names["test_lossless"].pytestmark
    checks = [check.id for check in checks_for("chain")]

    assert [param.id for param in mark.args[1]] == [
        f"{name}-{check}" for name in ("verify", "transformers") for check in checks
    ]


def test_the_script_in_readme_prints_what_it_says(my_engine):
    source, stated = PYTHON[1]

    assert executed(source)[1] == stated


def test_the_contract_in_readme_is_the_one_that_is_called(my_engine):
    names, _ = executed(PYTHON[2][0])
    shown = inspect.signature(names["verify"])

    assert shown == inspect.signature(always_accept)


def test_the_declaration_in_readme_is_accepted():
    (call,) = re.findall(r"^`specverify\.(subject\(.*\))`\.$", README, re.MULTILINE)
    declared = eval(call, {"subject": specverify.subject, "verify": always_accept})  # noqa: S307 - our own text

    assert declared.name == "engine-v2"


def labels(text):
    """What stands at the left of a failure, in order."""
    return re.findall(r"^  (\w+)  +\S", text, re.MULTILINE)


def test_the_failure_in_readme_has_the_labels_of_a_real_one(my_engine):
    stated = PYTHON[0][1]
    with pytest.raises(LosslessnessError) as caught:
        check_lossless("my_engine:verify", checks="joint-law", examples=0)
    real = [label for label in labels(str(caught.value)) if label in labels(stated)]

    assert real == labels(stated) != []


COMMANDS = [
    shlex.split(command, comments=True)
    for command in re.findall(
        r"specverify ((?:run|list|report|power|diagnose|selftest)\b[^`\n]*)", README
    )
]


def test_the_exact_law_in_readme_is_what_it_says():
    source, stated = PYTHON[4]

    assert executed(source)[1] == stated


def test_readme_shows_every_command():
    assert {command[0] for command in COMMANDS} == {
        "run",
        "list",
        "report",
        "power",
        "diagnose",
        "selftest",
    }


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_command_in_readme_is_understood(command):
    assert parser().parse_args(command).command == command[0]


def test_built_in_subjects_in_readme_exist():
    named = set(re.findall(r"(?:reference|lossy):[a-z-]+", README))

    assert named <= set(BUILTIN)


def test_readme_lists_every_algorithm_and_no_other():
    (table,) = re.findall(r"^\| rule \|.*?\n\n", README, re.DOTALL | re.MULTILINE)
    names = re.findall(r"^\|.*\| `([a-z-]+)` \|[^|]*\|$", table, re.MULTILINE)
    families = [name.split(":") for name in BUILTIN if ":" in name]

    assert sorted([*names, "exercise"]) == sorted(
        name for family, name in families if family == "reference"
    )


@pytest.mark.parametrize("option", sorted(set(re.findall(r"--specverify-\w+", README))))
def test_a_pytest_option_in_readme_exists(pytestconfig, option):
    assert pytestconfig.getoption(option, default="absent") != "absent"


def test_readme_lists_every_check_of_a_verifier_and_no_other():
    (table,) = re.findall(r"^\| check \|.*?\n\n", README, re.DOTALL | re.MULTILINE)
    cells = re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)

    assert sorted(re.findall(r"`(.*?)`", " ".join(cells))) == sorted(
        check.id for check in checks_for("chain")
    )
