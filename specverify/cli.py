# SPDX-License-Identifier: Apache-2.0
"""The command line: ``specverify run``, ``list``, ``report`` and ``power``.

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
from typing import TYPE_CHECKING, Any, Final

import specverify
from specverify.config import load_settings
from specverify.errors import EvidenceError, SpecverifyError, UsageError

if TYPE_CHECKING:
    from specverify.evidence.records import Evidence

EXIT_CODES: Final = {"lossless": 0, "lossy": 1, "broken": 1, "inconclusive": 4}
_USAGE, _INTERNAL, _INTERRUPTED = 2, 3, 130

#: Options of ``run`` that are fields of the plan.
_PLAN_OPTIONS: Final = (
    "seed",
    "device",
    "examples",
    "error_rate",
    "detect_tv",
    "power",
    "max_seconds",
    "call_seconds",
    "strict_efficiency",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    options = _parser().parse_args(argv)
    try:
        code: int = options.command(options)
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


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="specverify",
        description="Prove, at stated error rates, that speculative decoding is lossless.",
        epilog="Exit codes: 0 lossless, 1 violation, 2 usage, 3 internal error, "
        "4 inconclusive.",
    )
    parser.add_argument("--version", action="version", version=specverify.__version__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_run(commands)
    _add_list(commands)
    _add_report(commands)
    _add_power(commands)
    return parser


def _add_run(commands: Any) -> None:
    run = commands.add_parser(
        "run",
        help="put an implementation to the test",
        description="Run the checks on TARGET and conclude.",
    )
    run.set_defaults(command=_run)
    run.add_argument(
        "target",
        nargs="?",
        metavar="TARGET",
        help="pkg.module:verify, path/to/file.py:verify, or a built-in name "
        "(specverify list --subjects); default from [tool.specverify]",
    )
    run.add_argument(
        "--kind", choices=("chain", "exercise"), help="contract of a function"
    )
    run.add_argument("--profile", metavar="P", help="quick, ci (default) or nightly")
    run.add_argument(
        "--checks", metavar="GLOB", help="only the checks whose id matches"
    )
    run.add_argument(
        "--seed", type=int, metavar="N", help="salt of every draw (default 0)"
    )
    run.add_argument("--device", metavar="D", help="cpu (default), cuda, cuda:1")
    run.add_argument(
        "--error-rate",
        type=float,
        metavar="A",
        help="false-alarm rate of the whole run",
    )
    run.add_argument(
        "--detect-tv", type=float, metavar="E", help="total variation that must be seen"
    )
    run.add_argument(
        "--power", type=float, metavar="P", help="probability of seeing it"
    )
    run.add_argument(
        "--examples", type=int, metavar="N", help="generated inputs a check"
    )
    run.add_argument("--max-seconds", type=float, metavar="S", help="time for the run")
    run.add_argument(
        "--call-seconds", type=float, metavar="S", help="time for one call"
    )
    run.add_argument(
        "--strict-efficiency",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="fail when less is accepted than the declared rule could",
    )
    run.add_argument("--html", metavar="F", help="write the report")
    run.add_argument("--json", metavar="F", help="write the evidence")
    run.add_argument("--md", metavar="F", help="write a summary in Markdown")
    _add_format(run)


def _add_list(commands: Any) -> None:
    listing = commands.add_parser(
        "list",
        help="print the checks with their claims",
        description="Print the checks.",
    )
    listing.set_defaults(command=_list)
    listing.add_argument(
        "--subjects", action="store_true", help="built-in subject names"
    )
    listing.add_argument(
        "--kind", choices=("chain", "exercise"), help="only one contract"
    )
    _add_format(listing)


def _add_report(commands: Any) -> None:
    report = commands.add_parser(
        "report",
        help="show evidence files again",
        description="Show evidence files; exit as the run did (the worst of several).",
    )
    report.set_defaults(command=_report)
    report.add_argument("evidence", nargs="+", metavar="EVIDENCE", help="JSON of a run")
    report.add_argument("--html", metavar="F", help="write the report (one file only)")
    report.add_argument("--md", metavar="F", help="write a summary (one file only)")
    _add_format(report)


def _add_power(commands: Any) -> None:
    power = commands.add_parser(
        "power",
        help="how many draws see how small a bias",
        description="Plan a decision: draws for a bias, or the bias that draws can see.",
    )
    power.set_defaults(command=_power)
    power.add_argument(
        "--vocab", type=int, required=True, metavar="V", help="outcomes of the law"
    )
    what = power.add_mutually_exclusive_group(required=True)
    what.add_argument("--samples", type=int, metavar="N", help="draws there are")
    what.add_argument("--detect-tv", type=float, metavar="E", help="bias to see")
    power.add_argument(
        "--error-rate", type=float, default=1e-9, metavar="A", help="default 1e-9"
    )
    power.add_argument(
        "--power", type=float, default=0.99, metavar="P", help="default 0.99"
    )
    _add_format(power)


def _add_format(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--format", choices=("text", "json"), default="text", help="what is printed"
    )


def _run(options: argparse.Namespace) -> int:
    from specverify.checks.plan import make_plan
    from specverify.checks.registry import checks_for
    from specverify.checks.run import run_checks
    from specverify.subjects.resolve import resolve
    from specverify.terminal import Progress

    # Keep the constants that Hypothesis collects out of the user's folder.
    os.environ.setdefault(
        "HYPOTHESIS_STORAGE_DIRECTORY", str(Path(tempfile.gettempdir()) / "specverify")
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
    plan = make_plan(profile, **{name: chosen.get(name) for name in _PLAN_OPTIONS})
    subject = resolve(chosen["target"], kind=chosen.get("kind"))
    pattern = chosen.get("checks", "*")
    progress = Progress(quiet=options.format == "json")
    progress.begin(subject, plan, checks_for(subject.kind, pattern))
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
    from specverify.checks.registry import checks_for
    from specverify.terminal import print_checks

    kinds: list[Any] = [options.kind] if options.kind else ["chain", "exercise"]
    checks = [check for kind in kinds for check in checks_for(kind)]
    if options.format == "json":
        names = ("id", "kind", "claim", "law", "grade", "effect")
        print(json.dumps([{n: getattr(c, n) for n in names} for c in checks], indent=2))
    else:
        print_checks(checks)
    return 0


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
