# SPDX-License-Identifier: Apache-2.0
"""What the wheel brings into another project's environment."""

import os
import shutil
import subprocess
import sys
import zipfile
from configparser import ConfigParser
from email import message_from_string
from importlib import metadata
from pathlib import Path

import pytest

import specverify

ROOT = Path(__file__).parents[1]
BUILT_FROM = ("specverify", "tests", "properties", "reports")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Build from a copy, as a build leaves folders beside its sources."""
    for name, oldest in (("setuptools", 77), ("pip", 0)):
        if major_version(name) < oldest:
            pytest.skip(f"the wheel is built with {name} {oldest} or newer")
    source = tmp_path_factory.mktemp("source")
    for name in BUILT_FROM:
        junk = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, source / name, ignore=junk)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    return build(source, tmp_path_factory.mktemp("wheel"))


def major_version(distribution):
    """Look it up without an import: setuptools changes the process that imports it."""
    try:
        return int(metadata.version(distribution).partition(".")[0])
    except metadata.PackageNotFoundError:
        return -1


def build(source, target):
    options = ("--no-deps", "--no-build-isolation", "--no-index", "-w", target)
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", ".", *options],
        cwd=source,
        env={**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
        check=True,
        capture_output=True,
        timeout=300,
    )
    (path,) = target.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def files(wheel):
    """Names in the wheel, its own metadata apart."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    return {name for name in names if ".dist-info/" not in name}


def read(wheel, name):
    with zipfile.ZipFile(wheel) as archive:
        (path,) = (n for n in archive.namelist() if n.endswith(f".dist-info/{name}"))
        return archive.read(path).decode()


def test_the_wheel_installs_one_name(files):
    assert {name.partition("/")[0] for name in files} == {"specverify"}


def test_the_wheel_has_every_file_of_the_package(files):
    written = (ROOT / "specverify").rglob("*.*")
    names = {p.relative_to(ROOT).as_posix() for p in written if p.suffix != ".pyc"}

    assert names <= files


@pytest.mark.parametrize(
    "name", ["specverify/py.typed", "specverify/evidence/schema.json"]
)
def test_the_wheel_has_its_data(files, name):
    assert name in files


def test_the_wheel_has_the_templates_of_the_reports(files):
    templates = {p.name for p in (ROOT / "specverify/report/templates").iterdir()}

    assert templates == {
        name.rpartition("/")[2] for name in files if "/report/templates/" in name
    }


def test_the_wheel_has_nothing_but_code_and_its_data(files):
    data = (
        "specverify/defects/laws.json",
        "specverify/evidence/",
        "specverify/report/templates/",
    )
    other = {n for n in files if not n.endswith(".py") and not n.startswith(data)}

    assert other == {"specverify/py.typed"}


def test_the_wheel_brings_the_command_and_the_plugin(wheel):
    points = ConfigParser()
    points.read_string(read(wheel, "entry_points.txt"))

    assert {name: dict(points[name]) for name in points.sections()} == {
        "console_scripts": {"specverify": "specverify.cli:main"},
        "pytest11": {"specverify": "specverify.pytest_plugin"},
    }


def test_the_version_of_the_wheel_is_that_of_the_package(wheel):
    assert message_from_string(read(wheel, "METADATA"))["Version"] == (
        specverify.__version__
    )


def test_the_wheel_carries_the_licence(wheel):
    assert read(wheel, "licenses/LICENSE") == (ROOT / "LICENSE").read_text()


def test_no_dependency_has_an_upper_cap(wheel):
    needed = message_from_string(read(wheel, "METADATA")).get_all("Requires-Dist")
    versions = [requirement.partition(";")[0] for requirement in needed]

    assert [version for version in versions if "<" in version or "==" in version] == []


def test_the_installed_distribution_has_the_name_that_reports_look_up():
    assert metadata.version("specverify-decoding") == specverify.__version__
