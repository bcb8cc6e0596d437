# SPDX-License-Identifier: Apache-2.0
"""What a user of the command line meets: exit codes, words, files, settings."""

import contextlib
import io
import json
import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from specverify import cli
from specverify.checks.registry import checks_for
from specverify.evidence.files import load, validate
from specverify.subjects.resolve import BUILTIN

#: Recovers from the target itself; otherwise right.
RESIDUAL_FROM_P = """
import torch


def verify(draft_token_ids, draft_probs, target_probs, *, generator):
    batch, k = draft_token_ids.shape
    u = torch.rand(batch, k, dtype=torch.float64, generator=generator)
    p = target_probs[:, :k].gather(2, draft_token_ids[..., None]).squeeze(-1)
    q = draft_probs.gather(2, draft_token_ids[..., None]).squeeze(-1)
    accepted = (u * q < p).cumprod(dim=1).sum(dim=1)[:, None]
    rows = target_probs.flatten(0, 1)
    fresh = torch.multinomial(rows, 1, generator=generator).view(batch, k + 1)
    drafts = torch.cat([draft_token_ids, fresh[:, -1:]], dim=1)
    position = torch.arange(k + 1)
    output = torch.where(position < accepted, drafts, fresh)
    return output.masked_fill(position > accepted, -1)
"""
#: Emits impossible tokens, yet its bonus token is right.
ALWAYS_ACCEPT = """
import torch


def verify(draft_token_ids, draft_probs, target_probs, *, generator):
    bonus = torch.multinomial(target_probs[:, -1], 1, generator=generator)
    return torch.cat([draft_token_ids, bonus], dim=1)
"""
SLOW = """
import time

import specverify
from specverify.subjects.resolve import resolve

reference = resolve("reference:chain")


def crawl(ids, q, p, *, generator):
    time.sleep(0.02)
    return reference(ids, q, p, generator=generator)


verify = specverify.subject(crawl, max_batch=1)
"""
QUICK = ("--profile", "quick", "--max-seconds", "600")  # a busy machine changes no draw
SUPPORT = ("run", "reference:chain", *QUICK, "--checks", "support")


@dataclass(frozen=True)
class Outcome:
    """What a command left: exit code and both streams."""

    code: int
    out: str
    err: str


def run_main(argv):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = cli.main(argv)
    return Outcome(code, out.getvalue(), err.getvalue())


@contextlib.contextmanager
def folder_of_its_own(folder):
    """Work in `folder`, with no CI around; imports from it end with the block."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.delenv("GITHUB_STEP_SUMMARY", raising=False)
        patch.setattr(sys, "path", list(sys.path))
        yield


@pytest.fixture(autouse=True)
def folder(tmp_path):
    with folder_of_its_own(tmp_path):
        yield tmp_path


@pytest.fixture
def run(capsys):
    """Run the command line in this process."""

    def command(*argv):
        try:
            code = cli.main([str(word) for word in argv])
        except SystemExit as stop:  # argparse leaves this way, as the program would
            code = stop.code
        return Outcome(code, *capsys.readouterr())

    return command


def run_program(*argv):
    return subprocess.run(
        [sys.executable, *argv],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def settings(folder, text):
    (folder / "pyproject.toml").write_text(f"[tool.specverify]\n{text}\n")


def settled(text):
    """Text of a run without the times in it."""
    return re.sub(r"(\d+ min )?\d+(\.\d)? s\b", "a while", text)


# A run of a correct verifier


def test_a_lossless_subject_exits_with_0(run):
    assert run(*SUPPORT).code == 0


def test_a_lossless_subject_is_called_lossless(run):
    assert "reference:chain: LOSSLESS at the tested resolution\n" in run(*SUPPORT).out


def test_the_three_reports_are_written(run, folder):
    run(*SUPPORT, "--html", "a.html", "--json", "b.json", "--md", "c.md")
    starts = [(folder / name).read_text()[:15] for name in ("a.html", "c.md")]

    assert starts[0].lower() == "<!doctype html>"
    assert starts[1].startswith("#")
    assert load("b.json").verdict == "lossless"


def test_what_hypothesis_keeps_hides_the_package_from_no_script(
    run, folder, monkeypatch
):
    """A script beside a folder called specverify would import that."""
    monkeypatch.setenv("HYPOTHESIS_STORAGE_DIRECTORY", "")  # so that it is put back
    monkeypatch.delenv("HYPOTHESIS_STORAGE_DIRECTORY")
    monkeypatch.setattr(cli.tempfile, "gettempdir", lambda: str(folder))
    run(*SUPPORT)

    kept = Path(os.environ["HYPOTHESIS_STORAGE_DIRECTORY"])
    assert kept.parent == folder
    assert not kept.name.isidentifier()


def test_folders_of_reports_are_made(run, folder):
    run(*SUPPORT, "--html", "new/er/a.html")

    assert (folder / "new/er/a.html").is_file()


def test_the_evidence_holds_the_seed(run):
    run(*SUPPORT, "--seed", "5", "--json", "e.json")

    assert load("e.json").seed == 5


def test_the_evidence_holds_the_environment(run):
    run(*SUPPORT, "--json", "e.json")

    assert {"torch", "numpy", "scipy", "python"} <= set(load("e.json").environment)


def test_the_same_command_prints_the_same_apart_from_times(run):
    command = ("run", "reference:chain", *QUICK, "--checks", "joint-law")

    assert settled(run(*command).out) == settled(run(*command).out)


def test_nightly_explores_another_seed_and_prints_it(run, monkeypatch):
    monkeypatch.setattr("secrets.randbits", lambda bits: 271828)

    result = run(*SUPPORT, "--profile", "nightly", "--json", "e.json")

    assert "profile nightly · seed 271828\n" in result.out
    assert load("e.json").seed == 271828


def test_a_given_seed_is_kept_by_nightly(run):
    result = run(*SUPPORT, "--profile", "nightly", "--seed", "3")

    assert "seed 3\n" in result.out


# A run of a wrong verifier


@dataclass(frozen=True)
class Lossy:
    """A run on `RESIDUAL_FROM_P`, and its folder."""

    folder: Path
    outcome: Outcome

    def line(self, head):
        """What stands behind `head` in the output."""
        return re.search(rf"^  {head} +(.*)$", self.outcome.out, re.MULTILINE)[1]


@pytest.fixture(scope="module")
def lossy(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lossy run")
    folder.joinpath("my verifier.py").write_text(RESIDUAL_FROM_P)
    target = "my verifier.py:verify"
    with folder_of_its_own(folder):
        command = ["run", target, "--profile", "quick", "--checks", "joint-law"]
        return Lossy(folder, run_main([*command, "--json", "evidence.json"]))


def test_a_lossy_subject_exits_with_1(lossy):
    assert lossy.outcome.code == 1


def test_a_lossy_subject_is_called_lossy(lossy):
    assert "verify: LOSSY\n" in lossy.outcome.out


def test_the_input_shown_is_small(lossy):
    vocab, k = re.match(r"vocab (\d+), k = (\d+)", lossy.line("smallest")).groups()

    assert (int(vocab) <= 3, int(k)) == (True, 1)


def test_a_violation_shows_no_traceback(lossy):
    assert "Traceback" not in lossy.outcome.out + lossy.outcome.err


def test_the_command_in_a_failure_fails_the_same_way(lossy):
    _, *argv = shlex.split(lossy.line("reproduce"))
    with folder_of_its_own(lossy.folder):
        again = Lossy(lossy.folder, run_main(argv))

    assert again.outcome.code == 1
    assert again.line("found") == lossy.line("found")


@pytest.fixture(scope="module")
def script(lossy):
    return load(lossy.folder / "evidence.json")["joint-law"].counterexample.script


def test_the_script_in_the_evidence_needs_no_specverify(script):
    assert "specverify" not in script


def test_the_script_in_the_evidence_shows_the_bias(lossy, script):
    with folder_of_its_own(lossy.folder):
        table = run_program("-c", script).stdout
    shares = re.findall(r"\) +([\d.]+) +([\d.]+)$", table, re.MULTILINE)

    assert max(abs(float(seen) - float(due)) for seen, due in shares) > 0.1


def test_the_command_in_a_failure_carries_what_was_set(run, folder):
    (folder / "mine.py").write_text(ALWAYS_ACCEPT)
    result = run(
        *("run", "mine.py:verify", *QUICK, "--checks", "support"),
        *("--error-rate", "1e-6", "--detect-tv", "0.1"),
    )

    command = re.search(r"reproduce +specverify (.*)", result.out)[1]

    assert {"--error-rate", "--detect-tv"} <= set(shlex.split(command))


def test_a_wrong_solution_of_the_exercise_can_be_run_again(run, folder):
    (folder / "mine.py").write_text("def verify(q, p, tokens): return tokens.tolist()")
    first = run("run", "mine.py:verify", "--kind", "exercise", *QUICK)
    command = re.search(r"reproduce +specverify (.*)", first.out)[1]

    assert (first.code, run(*shlex.split(command)).code) == (1, 1)


def test_a_broken_subject_exits_with_1(run, folder):
    (folder / "mine.py").write_text("def verify(ids, q, p): return p")

    assert run("run", "mine.py:verify", *QUICK, "--checks", "output-*").code == 1


def test_a_subject_that_raises_is_a_finding_and_no_traceback(run, folder):
    (folder / "mine.py").write_text("def verify(ids, q, p): return 1 / 0")
    result = run("run", "mine.py:verify", *QUICK, "--checks", "output-*")

    assert "it raised ZeroDivisionError: division by zero (mine.py:1 in" in result.out
    assert "Traceback" not in result.out + result.err


def test_a_subject_that_hangs_is_a_finding(run, folder):
    (folder / "mine.py").write_text("def verify(ids, q, p):\n    while True: pass")
    result = run("run", "mine.py:verify", *QUICK, "--call-seconds", "0.2")

    assert "a call did not return within 0.2 s" in result.out


# A run that falls short


@pytest.fixture(scope="module")
def slow(tmp_path_factory):
    folder = tmp_path_factory.mktemp("slow")
    folder.joinpath("slow.py").write_text(SLOW)
    with folder_of_its_own(folder):
        command = ["run", "slow.py:verify", "--checks", "vocab-perm*"]
        return run_main([*command, "--max-seconds", "0.1", "--profile", "quick"])


def test_a_subject_too_slow_for_its_time_exits_with_4(slow):
    assert slow.code == 4


def test_a_subject_too_slow_for_its_time_is_told_what_would_help(slow):
    assert "0.05 was promised; allow more with --max-seconds" in slow.out


def test_a_run_without_a_law_says_why_it_is_inconclusive(run):
    result = run("run", "reference:chain", *QUICK, "--checks", "output-contract")

    assert "()" not in result.out


# Requests that are wrong


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["no.such:thing"], "cannot import no.such: ModuleNotFoundError: No module"),
        (["nowhere.py:verify"], "nowhere.py is no file"),
        (["os:name"], "os:name is a str; a subject must be callable"),
        ([], "TARGET is missing"),
        (["transformrs"], "did you mean 'transformers'?"),
        (["os:getcwdd"], "os has no attribute 'getcwdd'; did you mean 'getcwd'?"),
        (["os:getcwd", "--checks", "joint-lwa"], "did you mean 'joint-law'?"),
        (["os:getcwd", "--profile", "nigthly"], "did you mean 'nightly'?"),
        (["os:getcwd", "--device", "tpu"], "device is 'tpu'; getcwd runs on cpu, cuda"),
        pytest.param(["reference:chian"], "did you mean 'reference:chain'?"),
        pytest.param(["os:getcwd", "--device", "cpu:x"], "device is 'cpu:x'"),
        pytest.param(["zzz"], "target is 'zzz'. Allowed"),
    ],
)
def test_a_wrong_request_exits_with_2_and_the_reason(run, argv, told):
    result = run("run", *argv)

    assert (result.code, told in result.err) == (2, True), result.err


@pytest.mark.parametrize(
    ("option", "value", "told"),
    [
        ("--error-rate", "2", "error_rate is 2.0; allowed is the open interval (0, 1)"),
        ("--error-rate", "nan", "error_rate is nan; allowed is the open interval"),
        ("--detect-tv", "0", "detect_tv is 0.0; allowed is the open interval (0, 1)"),
        ("--power", "1", "power is 1.0; allowed is the open interval (0, 1)"),
        ("--max-seconds", "0", "max_seconds is 0.0; allowed is more than 0"),
        ("--call-seconds", "-1", "call_seconds is -1.0; allowed is more than 0"),
        ("--examples", "-1", "examples is -1; allowed is 0 or more"),
        ("--seed", "x", "argument --seed: invalid int value: 'x'"),
    ],
)
def test_a_bad_number_is_refused_with_what_is_allowed(run, option, value, told):
    result = run("run", "reference:chain", option, value)

    assert (result.code, told in result.err) == (2, True), result.err


def test_a_name_that_a_file_lacks_is_refused_with_the_nearest(run, folder):
    (folder / "mine.py").write_text(RESIDUAL_FROM_P)
    result = run("run", "mine.py:verfy")

    assert result.code == 2
    assert "mine.py has no attribute 'verfy'; did you mean 'verify'?" in result.err


def test_a_file_that_cannot_be_imported_is_refused_with_the_reason(run, folder):
    (folder / "mine.py").write_text("import no_such_engine")
    result = run("run", "mine.py:verify")

    assert result.code == 2
    assert "ModuleNotFoundError: No module named 'no_such_engine'" in result.err


def test_a_file_that_exits_when_imported_is_refused(run, folder):
    (folder / "mine.py").write_text("import sys\n\nsys.exit(0)")

    assert run("run", "mine.py:verify").code == 2


@pytest.mark.parametrize("option", ["--html", "--json", "--md"])
def test_a_path_that_cannot_be_written_is_refused_before_the_run(run, folder, option):
    (folder / "file").touch()
    result = run(*SUPPORT, option, "file/report")

    assert (result.code, result.out) == (2, "")
    assert "file/report cannot be written" in result.err


def test_a_folder_in_place_of_a_report_is_refused_before_the_run(run, folder):
    result = run(*SUPPORT, "--html", folder)

    assert (result.code, result.out) == (2, "")


# Errors that are ours


@pytest.fixture
def failing(monkeypatch):
    """Let the run itself raise."""

    def fail(error):
        def raising(*args, **kwargs):
            raise error

        monkeypatch.setattr("specverify.checks.run.run_checks", raising)

    return fail


def test_an_internal_error_exits_with_3_and_one_line(run, failing):
    failing(ZeroDivisionError("oh"))
    result = run(*SUPPORT)

    assert (result.code, result.err.count("\n")) == (3, 1)
    assert "internal error: ZeroDivisionError: oh (test_cli.py:" in result.err


def test_an_internal_error_shows_its_traceback_on_request(run, failing, monkeypatch):
    failing(ZeroDivisionError("oh"))
    monkeypatch.setenv("SPECVERIFY_TRACEBACK", "1")

    assert "Traceback (most recent call last)" in run(*SUPPORT).err


def test_an_interrupted_run_concludes_nothing(run, failing):
    failing(KeyboardInterrupt())
    result = run(*SUPPORT)

    assert (result.code, "nothing was concluded" in result.err) == (130, True)


# list


@pytest.mark.parametrize("kind", ["chain", "exercise"])
def test_every_check_is_listed(run, kind):
    listed = {line.split(" ")[0] for line in run("list").out.splitlines()}

    assert {check.id for check in checks_for(kind)} <= listed


def test_built_in_subjects_are_listed_one_a_line(run):
    assert run("list", "--subjects").out.splitlines() == list(BUILTIN)


def test_the_list_as_json_has_a_claim_for_each_check(run):
    listed = json.loads(run("list", "--kind", "chain", "--format", "json").out)

    assert {c["id"]: c["claim"] for c in listed} == {
        c.id: c.claim for c in checks_for("chain")
    }


def test_the_list_of_subjects_as_json_is_a_list(run):
    assert json.loads(run("list", "--subjects", "--format", "json").out) == [*BUILTIN]


# report


def verdict_part(text):
    """Output from the verdict on, without the progress before it."""
    return text[text.index("verify: ") :]


def test_saved_evidence_is_reported_with_the_same_words(run, lossy):
    result = run("report", lossy.folder / "evidence.json")

    assert result.out == verdict_part(lossy.outcome.out)


def test_saved_evidence_is_reported_with_the_same_exit_code(run, lossy):
    assert run("report", lossy.folder / "evidence.json").code == 1


def test_of_several_files_the_worst_verdict_decides_the_exit_code(run, lossy):
    run(*SUPPORT, "--json", "fine.json")

    assert run("report", "fine.json", lossy.folder / "evidence.json").code == 1


def test_saved_evidence_is_rendered_again(run, lossy, folder):
    run("report", lossy.folder / "evidence.json", "--html", "a.html", "--md", "a.md")

    assert "LOSSY" in (folder / "a.html").read_text()
    assert "LOSSY" in (folder / "a.md").read_text()


def test_one_report_of_two_files_is_refused(run):
    assert run("report", "a.json", "b.json", "--html", "c.html").code == 2


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("{", "e.json: is not JSON: Expecting property name"),
        ("{}", "e.json: $: found no field"),
        (None, "e.json: cannot be read: No such file or directory"),
    ],
)
def test_a_file_that_is_no_evidence_is_refused_with_the_reason(
    run, folder, content, told
):
    if content is not None:
        (folder / "e.json").write_text(content)
    result = run("report", "e.json")

    assert told in result.err
    assert result.out == ""


def test_a_file_that_is_no_evidence_is_the_users_mistake(run, folder):
    (folder / "e.json").write_text("{}")

    assert run("report", "e.json").code == 2


def test_a_verdict_that_was_edited_is_refused(run, lossy, folder):
    text = (lossy.folder / "evidence.json").read_text()
    (folder / "e.json").write_text(text.replace('"lossy"', '"lossless"', 1))
    result = run("report", "e.json")

    assert "found 'lossless'; allowed: 'lossy'" in result.err
    assert result.code not in (0, 1)


def test_a_report_that_cannot_be_written_is_the_users_mistake(run, folder):
    run(*SUPPORT, "--json", "e.json")
    result = run("report", "e.json", "--html", "e.json/a.html")

    assert (result.code, "cannot be written" in result.err) == (2, True)


# --format json


def is_json(text):
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def test_a_run_as_json_prints_one_valid_document(run):
    document = json.loads(run(*SUPPORT, "--format", "json").out)

    validate(document)
    assert document["verdict"] == "lossless"


def test_a_lossy_run_as_json_keeps_its_exit_code(run, lossy):
    result = run("report", lossy.folder / "evidence.json", "--format", "json")

    assert (json.loads(result.out)["verdict"], result.code) == ("lossy", 1)


def test_several_files_as_json_are_one_document(run):
    run(*SUPPORT, "--json", "e.json")

    assert is_json(run("report", "e.json", "e.json", "--format", "json").out)


def test_what_a_target_prints_when_imported_is_no_part_of_the_json(run, folder):
    (folder / "mine.py").write_text(f"print('hello')\n{ALWAYS_ACCEPT}")
    command = ("run", "mine.py:verify", *QUICK, "--checks", "support")

    assert is_json(run(*command, "--format", "json").out)


# pyproject.toml


def test_settings_in_pyproject_are_honoured(run, folder):
    settings(folder, 'target = "reference:chain"\nchecks = "support"\nseed = 7')
    result = run("run", *QUICK)

    assert "reference:chain 0.1.0 · cpu · profile quick · seed 7\n" in result.out
    assert "1 of 1 promised checks ran" in result.out


def test_settings_of_a_folder_above_are_honoured(run, folder, monkeypatch):
    settings(folder, "seed = 7")
    (folder / "below").mkdir()
    monkeypatch.chdir(folder / "below")

    assert "seed 7\n" in run(*SUPPORT).out


def test_flags_win_over_pyproject(run, folder):
    settings(folder, "seed = 7")

    assert "seed 8\n" in run(*SUPPORT, "--seed", "8").out


def test_expected_failures_in_pyproject_fail_nobody(run, folder):
    (folder / "mine.py").write_text(ALWAYS_ACCEPT)
    settings(folder, 'expected_failures = { support = "typical acceptance, #12" }')
    run("run", "mine.py:verify", *QUICK, "--checks", "[bs]*u*", "--json", "e.json")

    assert load("e.json")["support"].reason.startswith("expected: typical acceptance")
    assert load("e.json").verdict == "lossless"


def test_a_verdict_says_which_failures_were_declared(run, folder):
    (folder / "mine.py").write_text(ALWAYS_ACCEPT)
    settings(folder, 'expected_failures = { support = "typical acceptance, #12" }')
    result = run("run", "mine.py:verify", *QUICK, "--checks", "[bs]*u*")

    assert "support" in verdict_part(result.out)


WRONG_SETTINGS = [
    ('profil = "quick"', "unknown key 'profil'; did you mean 'profile'?"),
    ("html = 'a.html'", "unknown key 'html'"),
    ("seed = '1'", "seed is '1'; it must be a"),
    ("seed = true", "seed is True; it must be a"),
    ("detect_tv = 'small'", "detect_tv is 'small'; it must be a float"),
    ("strict_efficiency = 1", "strict_efficiency is 1; it must be a bool"),
    ("detect_tv = 2.0", "detect_tv is 2.0; allowed is the open interval (0, 1)"),
    ("profile = 'quik'", "did you mean 'quick'?"),
    ("expected_failures = { suport = 'x' }", "did you mean 'support'?"),
    ("expected_failures = { support = '' }", "['support'] is empty; say why"),
    ("seed = ", "pyproject.toml cannot be read"),
    pytest.param("expected_failures = { support = 3 }", "support"),
]


@pytest.mark.parametrize(("text", "told"), WRONG_SETTINGS)
def test_wrong_settings_in_pyproject_are_errors(run, folder, text, told):
    settings(folder, text)
    result = run("run", "reference:chain", "--checks", "support")

    assert (result.code, told in result.err) == (2, True), result.err


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"[tool]\nspecverify = 1"),
        pytest.param(b"tool = 1"),
        pytest.param(b"# \xff"),
    ],
)
def test_a_pyproject_of_another_form_is_an_error(run, folder, content):
    (folder / "pyproject.toml").write_bytes(content)
    result = run(*SUPPORT)

    assert (result.code, "pyproject.toml" in result.err) == (2, True), result.err


# CI


def test_the_step_summary_of_a_ci_run_is_appended_to(run, folder, monkeypatch):
    (folder / "summary.md").write_text("before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(folder / "summary.md"))
    run(*SUPPORT)
    text = (folder / "summary.md").read_text()

    assert (text.startswith("before\n"), "LOSSLESS" in text) == (True, True)


def test_a_step_summary_that_cannot_be_written_costs_no_verdict(
    run, folder, monkeypatch
):
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(folder / "nowhere" / "summary.md"))

    assert "LOSSLESS" in run(*SUPPORT).out


# Processes of their own


def test_the_package_is_a_program():
    result = run_program("-m", "specverify", "--version")

    assert re.fullmatch(r"\d+\.\d+\.\d+\n", result.stdout)


def test_the_program_gives_its_exit_code_to_the_shell():
    result = run_program("-m", "specverify", "run", "no.such:thing")

    assert (result.returncode, "Traceback" in result.stderr) == (2, False)


HEAVY = ("torch", "numpy", "scipy", "hypothesis")


@pytest.mark.parametrize("module", ["specverify", "specverify.cli"])
def test_importing_loads_nothing_heavy(module):
    code = f"import sys, {module}; print(*sys.modules.keys() & {set(HEAVY)})"

    assert run_program("-c", code).stdout == "\n"
