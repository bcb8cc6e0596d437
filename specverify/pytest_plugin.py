# SPDX-License-Identifier: Apache-2.0
"""The pytest plugin: options, evidence across workers, summary and report.

Thin on purpose: loaded in every pytest run of a host project, it imports pytest and the
standard library only. Evidence travels as plain data on the test reports, so that what
finished before a worker crashed is kept.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Final

import pytest

from specverify import recorder

_ATTRIBUTE: Final = "specverify_evidence"
_STORE: Final = pytest.StashKey[list[dict[str, Any]]]()
_OPTIONS: Final = {
    "profile": (str, "P", "effort of the checks: quick, ci or nightly"),
    "seed": (int, "N", "salt of every draw"),
    "device": (str, "D", "where the tensors live: cpu, cuda, cuda:1"),
    "error-rate": (float, "A", "false-alarm rate of the whole run"),
    "detect-tv": (float, "E", "total variation that must be seen"),
    "max-seconds": (float, "S", "time for all checks of one subject"),
}
_FILES: Final = {
    "html": "write an HTML report for each subject, whose name replaces {} in the path",
    "json": "write the evidence of each subject, whose name replaces {} in the path",
}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--specverify-*`` options."""
    group = parser.getgroup("specverify", "losslessness of speculative decoding")
    for name, (kind, metavar, words) in _OPTIONS.items():
        group.addoption(f"--specverify-{name}", type=kind, metavar=metavar, help=words)
    for name, words in _FILES.items():
        group.addoption(f"--specverify-{name}", metavar="PATH", help=words)


def pytest_configure(config: pytest.Config) -> None:
    """Hand the options to the checks, here and in every worker."""
    config.stash[_STORE] = []
    values = {name: config.getoption(f"--specverify-{name}") for name in _OPTIONS}
    recorder.overrides.clear()
    recorder.overrides.update(
        {name.replace("-", "_"): v for name, v in values.items() if v is not None}
    )
    if recorder.overrides:
        _refuse_wrong_options()


def pytest_unconfigure() -> None:
    """Forget the options with the run that they were given to."""
    recorder.overrides.clear()


def _refuse_wrong_options() -> None:
    """Hold the options against a plan before any test runs."""
    from specverify.checks.plan import make_plan
    from specverify.errors import UsageError

    try:
        make_plan(**recorder.overrides)
    except UsageError as error:
        raise pytest.UsageError(f"--specverify: {error}") from error


def pytest_report_header(config: pytest.Config) -> str | None:
    """Name what was set on the command line, as it enters every verdict."""
    if not recorder.overrides:
        return None
    return "specverify: " + ", ".join(f"{k}={v}" for k, v in recorder.overrides.items())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Put the evidence of a check on the report of its test, as plain data."""
    report = yield
    documents = recorder.take() if call.when == "call" else []
    for document in documents:
        document["test"] = item.nodeid.split("[")[0]
    if documents:
        setattr(report, _ATTRIBUTE, documents)
    return report


@pytest.hookimpl
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Collect evidence; with xdist this runs in the controller."""
    _Session.reports.extend(getattr(report, _ATTRIBUTE, []))


class _Session:
    reports: list[dict[str, Any]] = []  # noqa: RUF012 - one list for the process


def pytest_terminal_summary(
    terminalreporter: Any, exitstatus: int, config: pytest.Config
) -> None:
    """Print one verdict for each subject, and write the reports asked for."""
    reports, _Session.reports = _Session.reports, []
    if not reports or hasattr(config, "workerinput"):
        return
    from specverify.collect import collect, write

    terminalreporter.section("specverify")
    for name, evidence in collect(reports).items():
        from specverify.report.text import verdict_text

        terminalreporter.line(verdict_text(evidence))
        if evidence.missing:
            missing = ", ".join(evidence.missing)
            terminalreporter.line(f"  promised, but not heard of: {missing}")
        for form in _FILES:
            pattern = config.getoption(f"--specverify-{form}")
            if pattern:
                path = write(evidence, form, pattern, name)
                terminalreporter.line(f"  {form}: {path}")
