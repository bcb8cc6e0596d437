# SPDX-License-Identifier: Apache-2.0
"""The command line: ``run``, ``list``, ``report``, ``power``, ``diagnose``, ``selftest``.

Exit codes: 0 lossless, 1 violation (lossy or broken), 2 usage, 3 internal error,
4 inconclusive. Heavy modules are imported by the command that needs them.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import sys
import tempfile
import traceback
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, get_args

from specverify.config import load_settings
from specverify.errors import EvidenceError, SpecverifyError, UsageError
from specverify.options import PLAN, parser

if TYPE_CHECKING:
    from specverify.evidence.records import Evidence

EXIT_CODES: Final = {"lossless": 0, "lossy": 1, "broken": 1, "inconclusive": 4}
_USAGE, _INTERNAL, _INTERRUPTED = 2, 3, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    options = parser().parse_args(argv)
    commands = {
        "run": _run,
        "list": _list,
        "report": _report,
        "power": _power,
        "diagnose": _diagnose,
        "selftest": _selftest,
    }
    try:
        code = commands[options.command](options)
    except (UsageError, EvidenceError) as error:
        print(f"specverify: error: {error}", file=sys.stderr)
        return _USAGE
    except SpecverifyError as error:
        print(f"specverify: {error}", file=sys.stderr)
        return _INTERNAL
    except KeyboardInterrupt:
        print("specverify: interrupted; nothing was concluded", file=sys.stderr)
        return _INTERRUPTED
    except BrokenPipeError:
        sys.stderr.close()  # the reader went away, as `| head` does
        return _INTERRUPTED
    except Exception as error:  # noqa: BLE001 - the boundary: a bug of ours, said as one
        _report_internal(error)
        return _INTERNAL
    return code


def _report_internal(error: Exception) -> None:
    """Say in one line that specverify itself failed; the traceback on request."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    print(
        f"specverify: internal error: {type(error).__name__}: {error} "
        f"({Path(place.filename).name}:{place.lineno}); this is a bug of specverify, no "
        "finding about the subject. Set SPECVERIFY_TRACEBACK=1 to see where.",
        file=sys.stderr,
    )
    if os.environ.get("SPECVERIFY_TRACEBACK"):
        traceback.print_exception(error)


def _run(options: argparse.Namespace) -> int:
    from specverify.checks.plan import make_plan
    from specverify.checks.run import run_checks
    from specverify.subjects.resolve import resolve
    from specverify.terminal import Progress

    # Keep the constants that Hypothesis collects out of the user's folder; under a name
    # that a script beside it cannot import.
    os.environ.setdefault(
        "HYPOTHESIS_STORAGE_DIRECTORY",
        str(Path(tempfile.gettempdir()) / "specverify-hypothesis"),
    )
    settings = load_settings()
    given = {k: v for k, v in vars(options).items() if v is not None}
    chosen = {**settings, **given}
    if "target" not in chosen:
        raise UsageError("TARGET is missing, and [tool.specverify] names none")
    profile = chosen.get("profile", "ci")
    if profile == "nightly":
        chosen.setdefault("seed", secrets.randbits(32))  # explore; printed below
    for name in ("html", "json", "md"):
        _check_writable(given.get(name))
    plan = make_plan(profile, **{name: chosen.get(name) for name in PLAN})
    subject = resolve(chosen["target"], kind=chosen.get("kind"))
    pattern = chosen.get("checks", "*")
    _leave_cores_to_others()
    progress = Progress(quiet=options.format == "json")
    progress.begin(subject, plan)
    evidence = run_checks(
        subject,
        plan,
        pattern=pattern,
        expected_failures=settings.get("expected_failures"),
        listener=progress.show,
    )
    _write(evidence, given.get("html"), given.get("json"), given.get("md"))
    _say([evidence], options.format)
    _add_step_summary(evidence)
    return EXIT_CODES[evidence.verdict]


def _leave_cores_to_others() -> None:
    """Use half of the cores, unless the environment says how many.

    The tensors of a run are small. On a machine with other work, threads that wait for
    each other at every operation cost far more than the second half would bring.
    """
    if "OMP_NUM_THREADS" not in os.environ:
        import torch

        torch.set_num_threads(max(1, (os.cpu_count() or 2) // 2))


def _list(options: argparse.Namespace) -> int:
    load_settings()  # wrong settings are errors for every command
    from specverify.subjects.resolve import BUILTIN

    if options.subjects:
        subjects = list(BUILTIN)
        print(
            json.dumps(subjects, indent=2)
            if options.format == "json"
            else "\n".join(subjects)
        )
        return 0
    if options.defects:
        if options.kind:
            raise UsageError("--kind narrows the list of checks; --defects has none")
        return _list_defects(options.format)
    from specverify.checks.registry import checks_for
    from specverify.subjects.protocol import Kind
    from specverify.terminal import print_checks

    kinds: list[Any] = [options.kind] if options.kind else list(get_args(Kind))
    # A check that is for several kinds is listed once.
    checks = list({c.id: c for kind in kinds for c in checks_for(kind)}.values())
    if options.format == "json":
        names = ("id", "kinds", "claim", "law", "grade", "effect")
        print(json.dumps([{n: getattr(c, n) for n in names} for c in checks], indent=2))
    else:
        print_checks(checks)
    return 0


def _list_defects(form: str) -> int:
    from specverify.defects import CATALOGUE, CONTROLS, DECODER_CONTROLS, DECODERS
    from specverify.terminal import print_defects

    entries = [
        entry
        for part in (CATALOGUE, CONTROLS, DECODERS, DECODER_CONTROLS)
        for entry in part.values()
    ]
    if form == "json":
        names = ("id", "family", "sentence", "sources", "effect", "bias", "blind_on")
        rows = [{n: getattr(entry, n) for n in names} for entry in entries]
        print(json.dumps(rows, indent=2, ensure_ascii=False))
    else:
        print_defects(entries)
    return 0


def _diagnose(options: argparse.Namespace) -> int:
    from specverify.checks.diagnose import diagnosed
    from specverify.evidence.files import load

    words = diagnosed(load(options.evidence))
    print(json.dumps({"likely_cause": words}) if options.format == "json" else words)
    return 0


def _selftest(options: argparse.Namespace) -> int:
    from specverify.checks.selftest import chosen, selftest, tally
    from specverify.terminal import print_trial

    shown = print_trial if options.format == "text" else lambda trial: None
    trials = selftest(chosen(options.pattern), listener=shown)
    if options.format == "json":
        rows = [
            {
                "id": trial.defect.id,
                "outcome": trial.outcome,
                "caught_by": trial.caught_by,
                "right": trial.right,
                "draws": trial.draws,
                "seconds": trial.seconds,
            }
            for trial in trials
        ]
        print(json.dumps(rows, indent=2))
    else:
        print(tally(trials))
    return int(not all(trial.right for trial in trials))


def _report(options: argparse.Namespace) -> int:
    from specverify.evidence.files import load

    if len(options.evidence) > 1 and (options.html or options.md):
        raise UsageError("--html and --md take one evidence file at a time")
    load_settings()  # wrong settings are errors for every command
    for path in (options.html, options.md):
        _check_writable(path)
    found = [load(path) for path in options.evidence]
    for evidence in found:
        _write(evidence, options.html, None, options.md)
    _say(found, options.format)
    codes = [EXIT_CODES[evidence.verdict] for evidence in found]
    return 1 if 1 in codes else max(codes)


def _power(options: argparse.Namespace) -> int:
    from specverify.statistics.planning import min_detectable_tv, plan_samples
    from specverify.terminal import print_plan

    if options.vocab < 2:
        raise UsageError(f"--vocab is {options.vocab}; allowed is 2 or more")
    if options.samples is not None and options.samples < 1:
        raise UsageError(f"--samples is {options.samples}; allowed is 1 or more")
    rates = {
        "cells": options.vocab,
        "level": options.error_rate,
        "power": options.power,
    }
    try:
        tv = options.detect_tv
        if tv is None:
            tv = min_detectable_tv(samples=options.samples, **rates)
            if tv >= 1:
                raise UsageError(f"{options.samples} draws see no bias of any size")
        plan = plan_samples(tv=tv, **rates)
    except ValueError as error:
        raise UsageError(str(error)) from error
    if options.format == "json":
        found = {"tv": tv, "samples": options.samples, **asdict(plan)}
        print(json.dumps({**rates, **found}, indent=2))
    else:
        print_plan(plan, tv=tv, samples=options.samples, **rates)
    return 0


def _say(found: Sequence[Evidence], form: str) -> None:
    """Print verdicts; as JSON one document, a list where there are several."""
    from specverify.evidence.files import to_json
    from specverify.report.text import failure_text

    if form == "text":
        print("\n\n".join(failure_text(evidence) for evidence in found))
        return
    documents = [to_json(evidence) for evidence in found]
    whole = documents[0] if len(documents) == 1 else documents
    print(json.dumps(whole, indent=2, allow_nan=False))


def _write(
    evidence: Evidence, html: str | None, document: str | None, markdown: str | None
) -> None:
    """Write the files that were asked for."""
    if document:
        from specverify.evidence.files import save

        save(evidence, document)
    if html:
        from specverify.report.html import write_html

        write_html(evidence, html)
    if markdown:
        from specverify.report.markdown import render_markdown

        Path(markdown).write_text(render_markdown(evidence), encoding="utf-8")


def _add_step_summary(evidence: Evidence) -> None:
    """Append to the step summary where CI offers one; failing that costs no verdict."""
    summary = os.environ.get("GITHUB_STEP_SUMMARY")
    if not summary:
        return
    from specverify.report.markdown import render_markdown

    try:
        with Path(summary).open("a", encoding="utf-8") as file:
            file.write(render_markdown(evidence))
    except OSError as error:
        print(f"specverify: the step summary was not written: {error}", file=sys.stderr)


def _check_writable(path: str | None) -> None:
    """Refuse a bad path before the run, not after it."""
    if path is None:
        return
    folder = Path(path).resolve().parent
    if not folder.is_dir():
        try:
            folder.mkdir(parents=True)
        except OSError as error:
            raise UsageError(f"{path} cannot be written: {error}") from error
    if Path(path).is_dir() or not os.access(folder, os.W_OK):
        raise UsageError(f"{path} cannot be written")
