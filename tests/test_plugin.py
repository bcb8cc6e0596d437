# SPDX-License-Identifier: Apache-2.0
"""What a host project meets when its pytest run proves verifiers."""

import json
import os
import re
import subprocess
import sys

import pytest

from specverify import check_lossless, collect, recorder
from specverify.checks.registry import checks_for
from specverify.errors import SubjectUnavailable
from specverify.evidence.files import load
from specverify.subjects.resolve import BUILTIN

pytest_plugins = ["pytester"]

ALWAYS_ACCEPT = """
import torch


def verify(draft_token_ids, draft_probs, target_probs, *, generator):
    bonus = torch.multinomial(target_probs[:, -1], 1, generator=generator)
    return torch.cat([draft_token_ids, bonus], dim=1)
"""
#: Cheap, and a busy machine changes no draw.
EFFORT = 'profile="quick", examples=0, max_seconds=600'
SHARED = f"""
import specverify
from mine import verify


@specverify.parametrize(["reference:chain", verify], checks="[os]*", {EFFORT})
def test_shared(subject, check):
    check(subject)
"""
CRASHING = f"""
import os

import specverify


@specverify.parametrize(["reference:chain"], checks="[os]u*", {EFFORT})
def test_crash(subject, check):
    if check.check.id == "output-contract":
        os._exit(1)
    check(subject)
"""


@pytest.fixture(scope="module", autouse=True)
def everything_is_imported(tmp_path_factory):
    """Use every door once: pytester forgets what a run inside this process imports.

    Neither torch nor the checks, which register themselves, can be imported twice.
    """
    evidence = check_lossless("reference:chain", profile="quick", checks="support")
    pattern = str(tmp_path_factory.mktemp("warm") / "{}.html")
    collect.write(evidence, "html", pattern, "warm")


@pytest.fixture(autouse=True)
def no_options_of_runs_before(monkeypatch):
    monkeypatch.setattr(recorder, "overrides", {})


@pytest.fixture
def suite(pytester):
    """Write a test module that embeds specverify, with a wrong verifier beside it."""
    pytester.makepyfile(mine=ALWAYS_ACCEPT)

    def write(targets, arguments, *, name="test_it", setup=""):
        lines = [
            "import specverify",
            "from mine import verify",
            setup,
            f"@specverify.parametrize({targets}, {arguments})",
            f"def {name}(subject, check):",
            "    check(subject)",
        ]
        pytester.makepyfile(**{name: "\n".join(lines)})
        return pytester

    return write


def embedded(checks, more=EFFORT):
    return f"checks={checks!r}, {more}"


def verdicts(text):
    """Lines that specverify adds to the output of pytest, without their times."""
    section = re.search(r"^=+ specverify =+\n(.*?)^=", text, re.DOTALL | re.MULTILINE)
    return re.sub(r"\d+(\.\d)? s\b", "a while", section[1])


# Items


def test_node_ids_are_subject_and_check(suite):
    host = suite("['reference:chain', verify]", embedded("[os]u*"))
    result = host.runpytest("--collect-only", "-q")

    assert [line for line in result.outlines if "::" in line] == [
        "test_it.py::test_it[reference:chain-output-contract]",
        "test_it.py::test_it[reference:chain-support]",
        "test_it.py::test_it[verify-output-contract]",
        "test_it.py::test_it[verify-support]",
    ]


def test_every_check_of_the_kind_is_one_item(suite):
    host = suite("['reference:chain']", "profile='quick'")
    listed = host.runpytest("--collect-only", "-q").outlines

    assert sum("::" in line for line in listed) == len(checks_for("chain"))


def test_a_keyword_selects_checks(suite):
    host = suite("['reference:chain', verify]", embedded("[os]u*"))

    host.runpytest("-k", "chain and support").assert_outcomes(passed=1, deselected=3)


def test_a_lossless_subject_passes(suite):
    host = suite("['reference:chain']", embedded("[os]*"))

    host.runpytest().assert_outcomes(passed=3)


def test_a_skipped_check_is_a_skip_with_its_reason(suite):
    host = suite("[verify]", embedded("accepted-length"))
    result = host.runpytest("-rs")

    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED*the subject declares none; specverify.sub*"])


def test_equal_names_of_subjects_give_unique_ids_and_no_warning(suite):
    host = suite("['reference:chain', 'reference:chain']", embedded("support"))
    flags = ("-W", "error", "--strict-markers", "-v")

    # In a process of its own: in this one, pytest warns that it came too late.
    host.runpytest_subprocess(*flags).stdout.fnmatch_lines(
        [
            "test_it.py::test_it[[]reference:chain-support[]] PASSED *",
            "test_it.py::test_it[[]reference:chain-2-support[]] PASSED *",
        ]
    )


def test_a_callable_that_cannot_be_hashed_is_a_subject(suite):
    engine = """
class Engine:
    __hash__ = None

    def __call__(self, ids, q, p, *, generator):
        return verify(ids, q, p, generator=generator)
"""
    host = suite("[Engine()]", embedded("output-contract"), setup=engine)

    assert host.runpytest().parseoutcomes().get("passed") == 1


def missing_engine():
    raise SubjectUnavailable("no_engine cannot be imported")


def test_an_engine_that_is_not_installed_is_one_skip(suite, monkeypatch):
    monkeypatch.setitem(BUILTIN, "no_engine", f"{__name__}:missing_engine")
    result = suite("['no_engine']", embedded("*")).runpytest("-rs")

    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED*no_engine cannot be imported"])


# Failures


@pytest.fixture
def failure(suite):
    return suite("[verify]", embedded("support")).runpytest("--tb=long")


def test_a_lossy_subject_fails(failure):
    failure.assert_outcomes(failed=1)


def test_a_failure_says_what_was_found(failure):
    failure.stdout.fnmatch_lines(
        [
            "E *LosslessnessError: verify: LOSSY",
            "E *support is violated: A token to which the target gives probability 0*",
            "E * found *tokens with p = 0 were emitted in * steps",
            "E * smallest *witness *: vocab *",
        ]
    )


def test_a_failure_shows_no_frame_of_specverify(failure):
    places = re.findall(r"^(\S+\.py):\d+: ", failure.stdout.str(), re.MULTILINE)

    assert places == ["test_it.py"]


def test_a_failure_of_an_imported_function_says_how_to_repeat_it(failure):
    assert "specverify run mine" in failure.stdout.str()


def test_a_run_that_falls_short_fails(pytester):
    pytester.makepyfile(
        """
        import time

        import specverify
        from specverify.subjects.resolve import resolve

        reference = resolve("reference:chain")

        def crawl(ids, q, p, *, generator):
            time.sleep(0.02)
            return reference(ids, q, p, generator=generator)

        slow = specverify.subject(crawl, max_batch=1)

        @specverify.parametrize([slow], checks="vocab-perm*", max_seconds=0.1)
        def test_slow(subject, check):
            check(subject)
        """
    )
    result = pytester.runpytest()

    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["E *InconclusiveError: crawl: INCONCLUSIVE"])


def test_an_expected_failure_is_an_xfail_with_its_reason(suite):
    declared = 'expected_failures={"support": "typical acceptance, #12"}'
    host = suite("[verify]", embedded("[os]u*", f"{EFFORT}, {declared}"))
    result = host.runpytest("-rx")

    result.assert_outcomes(passed=1, xfailed=1)
    result.stdout.fnmatch_lines(["XFAIL*expected: typical acceptance, #12 (tokens *"])


def test_an_expected_failure_that_passes_fails(suite):
    declared = 'expected_failures={"support": "typical acceptance, #12"}'
    host = suite("['reference:chain']", embedded("support", f"{EFFORT}, {declared}"))
    result = host.runpytest()

    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*expected to fail (typical acceptance, #12), but*"])


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ('expected_failures={"joint-lwa": "x"}', "did you mean 'joint-law'?"),
        ('expected_failures={"joint-law": ""}', "is empty; say why"),
        ('checks="joint-lwa"', "did you mean 'joint-law'?"),
    ],
)
def test_a_wrong_request_is_an_error_of_collection(suite, arguments, told):
    result = suite("[verify]", arguments).runpytest()

    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([f"E *UsageError: *{told}*"])


def test_an_unknown_setting_is_an_error_with_the_nearest(suite):
    result = suite("[verify]", 'checks="support", error_rat=1e-9').runpytest()

    assert "did you mean 'error_rate'?" in result.stdout.str()


# Summary and reports


def test_the_summary_gives_one_verdict_for_each_subject(suite):
    host = suite("['reference:chain', verify]", embedded("[os]u*"))
    told = verdicts(host.runpytest().stdout.str())

    assert re.findall(r"^(\S+): ([A-Z]+)", told, re.MULTILINE) == [
        ("reference:chain", "LOSSLESS"),
        ("verify", "LOSSY"),
    ]


def test_checks_that_were_deselected_are_missing_from_the_verdict(suite):
    host = suite("['reference:chain']", embedded("[os]u*"))
    told = verdicts(host.runpytest("-k", "support").stdout.str())

    assert "reference:chain: INCONCLUSIVE" in told
    assert "promised, but not heard of: output-contract\n" in told


def test_a_run_without_checks_has_no_summary(pytester):
    pytester.makepyfile("def test_other(): pass")

    pytester.runpytest().stdout.no_fnmatch_line("*specverify =*")


def test_the_summary_tells_equal_names_apart(suite):
    host = suite("[verify, verify]", embedded("support"))

    assert "verify-2: LOSSY" in verdicts(host.runpytest().stdout.str())


def test_a_subject_of_the_same_name_in_another_test_hides_no_violation(suite):
    right = """
from specverify.subjects.resolve import resolve

verify = specverify.subject(resolve("reference:chain").fn, name="verify")
"""
    suite("[verify]", embedded("support"), name="test_a")
    host = suite("[verify]", embedded("support"), name="test_b", setup=right)

    assert "verify: LOSSY" in verdicts(host.runpytest().stdout.str())


@pytest.mark.parametrize("form", ["html", "json"])
def test_a_report_is_written_for_each_subject(suite, form):
    host = suite("['reference:chain', verify]", embedded("[os]u*"))
    host.runpytest(f"--specverify-{form}=new/{{}}.{form}")
    written = sorted(path.name for path in host.path.joinpath("new").iterdir())

    assert written == [f"reference-chain.{form}", f"verify.{form}"]


def test_a_written_evidence_holds_all_checks_of_its_subject(suite):
    host = suite("['reference:chain']", embedded("[os]*"))
    host.runpytest("--specverify-json={}.json")
    evidence = load(host.path / "reference-chain.json")

    assert [c.id for c in evidence.checks] == list(evidence.checks_promised)


def test_a_path_without_a_place_for_the_name_loses_no_subject(suite):
    host = suite("['reference:chain', verify]", embedded("support"))
    result = host.runpytest("--specverify-json=one.json")

    assert len(list(host.path.glob("*.json"))) == 2 or result.ret == 4


# Options


def test_the_profile_of_the_command_line_wins_over_the_code(suite):
    host = suite("['reference:chain']", 'checks="support", profile="nightly"')
    host.runpytest("--specverify-profile=quick", "--specverify-json={}.json")

    assert load(host.path / "reference-chain.json").profile == "quick"


def test_other_options_of_the_command_line_win_over_the_code(suite):
    host = suite("['reference:chain']", embedded("support", f"{EFFORT}, seed=1"))
    options = ("--specverify-seed=5", "--specverify-detect-tv=0.3")
    host.runpytest(*options, "--specverify-json={}.json")
    evidence = load(host.path / "reference-chain.json")

    assert (evidence.seed, evidence.claim.detect_tv) == (5, 0.3)


def test_the_header_names_what_was_set(suite):
    host = suite("['reference:chain']", embedded("support"))
    result = host.runpytest("--specverify-profile=quick", "--specverify-seed=5")

    result.stdout.fnmatch_lines(["specverify: profile=quick, seed=5"])


def test_the_header_says_nothing_where_nothing_was_set(suite):
    result = suite("['reference:chain']", embedded("support")).runpytest()

    result.stdout.no_fnmatch_line("specverify: *")


def test_options_of_one_run_do_not_reach_the_next(suite):
    host = suite("['reference:chain']", embedded("support"))
    host.runpytest("--specverify-seed=5")
    host.runpytest("--specverify-json={}.json")

    assert load(host.path / "reference-chain.json").seed == 0


def test_a_bad_option_is_told_with_what_is_allowed(suite):
    host = suite("['reference:chain']", embedded("support"))
    result = host.runpytest("--specverify-profile=quik")

    told = result.stdout.str() + result.stderr.str()
    assert "profile is 'quik'; did you mean 'quick'?" in told


def test_a_bad_option_is_refused_before_the_tests(suite):
    host = suite("['reference:chain']", embedded("support"))

    assert (
        host.runpytest("--specverify-error-rate=2").ret == pytest.ExitCode.USAGE_ERROR
    )


def test_options_end_with_their_run(suite):
    host = suite("['reference:chain']", embedded("support"))
    host.runpytest("--specverify-seed=5")

    assert recorder.overrides == {}


# Beside other tests


def test_other_tests_run_without_the_plugin(pytester):
    pytester.makepyfile("def test_other(): pass")

    pytester.runpytest("-p", "no:specverify").assert_outcomes(passed=1)


def test_checks_decide_without_the_plugin(suite):
    host = suite("['reference:chain', verify]", embedded("support"))

    result = host.runpytest("-p", "no:specverify")
    recorder.take()  # or the plugin of this run would take it for ours

    result.assert_outcomes(passed=1, failed=1)


def test_loading_the_plugin_loads_pytest_and_the_standard_library_only():
    code = """
import json, sys
import pytest
before = set(sys.modules)
import specverify.pytest_plugin
fresh = {name.partition(".")[0] for name in set(sys.modules) - before}
print(json.dumps(sorted(fresh - sys.stdlib_module_names)))
"""
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )

    assert json.loads(result.stdout) == ["specverify"]


# Workers


def run_pytest(folder, *options):
    """Run pytest in a process of its own; what it wrote is in `folder`."""
    command = [sys.executable, "-m", "pytest", "--specverify-json={}.json", *options]
    host = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    return subprocess.run(
        command,
        cwd=folder,
        env={**host, "OMP_NUM_THREADS": "1"},  # the workers share the cores
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    ).stdout


def test_workers_change_no_verdict(tmp_path):
    (tmp_path / "mine.py").write_text(ALWAYS_ACCEPT)
    (tmp_path / "test_shared.py").write_text(SHARED)
    alone, shared = (verdicts(run_pytest(tmp_path, "-n", n)) for n in "02")

    assert sorted(shared.splitlines()) == sorted(alone.splitlines())


@pytest.fixture(scope="module")
def crashed(tmp_path_factory):
    """Output and evidence of a run in which one of two workers died."""
    folder = tmp_path_factory.mktemp("crash")
    (folder / "test_crash.py").write_text(CRASHING)
    output = run_pytest(folder, "-n", "2", "--specverify-seed=5")
    return output, load(folder / "reference-chain.json")


def test_what_finished_before_a_worker_crashed_is_kept(crashed):
    _, evidence = crashed

    assert [(c.id, c.status) for c in evidence.checks] == [("support", "pass")]


def test_what_was_lost_with_a_worker_is_named(crashed):
    output, evidence = crashed

    assert evidence.missing == ("output-contract",)
    assert "promised, but not heard of: output-contract\n" in verdicts(output)


def test_a_run_that_lost_a_worker_is_inconclusive(crashed):
    output, evidence = crashed

    assert evidence.verdict == "inconclusive"
    assert "reference:chain: INCONCLUSIVE\n" in output


def test_options_reach_workers(crashed):
    _, evidence = crashed

    assert evidence.seed == 5
