# SPDX-License-Identifier: Apache-2.0
"""The options of the command line; what they do is in `specverify.cli`."""

from __future__ import annotations

import argparse
from typing import Any, Final

import specverify

#: Options of ``run`` that are fields of the plan: type, placeholder, help.
PLAN: Final[dict[str, tuple[type, str, str]]] = {
    "seed": (int, "N", "salt of every draw (default 0)"),
    "device": (str, "D", "cpu (default), cuda, cuda:1"),
    "error_rate": (float, "A", "false-alarm rate of the whole run"),
    "detect_tv": (float, "E", "total variation that must be seen"),
    "power": (float, "P", "probability of seeing it"),
    "examples": (int, "N", "generated inputs a check"),
    "max_seconds": (float, "S", "time for the run"),
    "call_seconds": (float, "S", "time for one call"),
    "strict_efficiency": (bool, "", "fail when less is accepted than the rule could"),
}
_KINDS: Final = ("chain", "multidraft", "tree", "exercise")


def parser() -> argparse.ArgumentParser:
    """Build the parser of all commands; ``command`` is the one that was given."""
    whole = argparse.ArgumentParser(
        prog="specverify",
        description="Prove, at stated error rates, that speculative decoding is lossless.",
        epilog="Exit codes: 0 lossless, 1 violation, 2 usage, 3 internal error, "
        "4 inconclusive.",
    )
    whole.add_argument("--version", action="version", version=specverify.__version__)
    commands = whole.add_subparsers(required=True, metavar="COMMAND", dest="command")
    for add in _COMMANDS:
        _add_format(add(commands))
    return whole


def _add_run(commands: Any) -> argparse.ArgumentParser:
    run: argparse.ArgumentParser = commands.add_parser(
        "run",
        help="put an implementation to the test",
        description="Run the checks on TARGET and conclude.",
    )
    run.add_argument(
        "target",
        nargs="?",
        metavar="TARGET",
        help="pkg.module:verify, path/to/file.py:verify, or a built-in name "
        "(specverify list --subjects); default from [tool.specverify]",
    )
    run.add_argument("--kind", choices=_KINDS, help="contract of a function")
    run.add_argument("--profile", metavar="P", help="quick, ci (default) or nightly")
    run.add_argument("--checks", metavar="GLOB", help="only checks whose id matches")
    for name, (kind, metavar, words) in PLAN.items():
        flag = f"--{name.replace('_', '-')}"
        if kind is bool:
            run.add_argument(flag, action=argparse.BooleanOptionalAction, help=words)
        else:
            run.add_argument(flag, type=kind, metavar=metavar, help=words)
    run.add_argument("--html", metavar="F", help="write the report")
    run.add_argument("--json", metavar="F", help="write the evidence")
    run.add_argument("--md", metavar="F", help="write a summary in Markdown")
    return run


def _add_list(commands: Any) -> argparse.ArgumentParser:
    listing: argparse.ArgumentParser = commands.add_parser(
        "list",
        help="print the checks with their claims",
        description="Print the checks.",
    )
    what = listing.add_mutually_exclusive_group()
    what.add_argument("--subjects", action="store_true", help="built-in subject names")
    what.add_argument(
        "--defects", action="store_true", help="the catalogue of known defects"
    )
    listing.add_argument("--kind", choices=_KINDS, help="only one contract")
    return listing


def _add_report(commands: Any) -> argparse.ArgumentParser:
    report: argparse.ArgumentParser = commands.add_parser(
        "report",
        help="show evidence files again",
        description="Show evidence files; exit as the run did (the worst of several).",
    )
    report.add_argument("evidence", nargs="+", metavar="EVIDENCE", help="JSON of a run")
    report.add_argument("--html", metavar="F", help="write the report (one file only)")
    report.add_argument("--md", metavar="F", help="write a summary (one file only)")
    return report


def _add_power(commands: Any) -> argparse.ArgumentParser:
    power: argparse.ArgumentParser = commands.add_parser(
        "power",
        help="how many draws see how small a bias",
        description="Plan a decision: draws for a bias, or the bias that draws can see.",
    )
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
    return power


def _add_diagnose(commands: Any) -> argparse.ArgumentParser:
    diagnose: argparse.ArgumentParser = commands.add_parser(
        "diagnose",
        help="name the likely cause of a broken law",
        description="Compare what a run observed with the laws of all known defects.",
    )
    diagnose.add_argument("evidence", metavar="EVIDENCE", help="JSON of a run")
    return diagnose


def _add_selftest(commands: Any) -> argparse.ArgumentParser:
    selftest: argparse.ArgumentParser = commands.add_parser(
        "selftest",
        help="see planted defects caught and correct forms let through",
        description="Run checks on a part of the catalogue of known defects.",
    )
    selftest.add_argument(
        "pattern",
        nargs="?",
        metavar="GLOB",
        help="entries by id, such as 'batch-*' (specverify list --defects); default: a few "
        "of every family, and all correct forms",
    )
    return selftest


_COMMANDS: Final = (
    _add_run,
    _add_list,
    _add_report,
    _add_power,
    _add_diagnose,
    _add_selftest,
)


def _add_format(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--format", choices=("text", "json"), default="text", help="what is printed"
    )
