# SPDX-License-Identifier: Apache-2.0
"""Rules that every file of the package keeps."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import specverify

PACKAGE = Path(specverify.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))
TREES = {path: ast.parse(path.read_text("utf-8")) for path in FILES}
HEAVY = {"torch", "scipy", "hypothesis", "numpy", "jinja2", "matplotlib"}


def label(path):
    return path.relative_to(PACKAGE).as_posix()


every_file = pytest.mark.parametrize("path", FILES, ids=label)


# --- imports point one way ------------------------------------------------------------


def imports(source):
    """Full names of all that a module imports, wherever in it the import stands."""
    for node in ast.walk(source):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative import"
            yield node.module
            if node.module == "specverify":
                yield from (f"specverify.{alias.name}" for alias in node.names)


def part(name):
    """The subpackage or module of specverify that a name belongs to, or None."""
    top, _, rest = name.partition(".")
    return rest.partition(".")[0] if top == "specverify" else None


def foreign(path):
    """Packages that a file imports from neither specverify nor the standard library."""
    tops = {name.partition(".")[0] for name in imports(TREES[path])}
    return tops - sys.stdlib_module_names - {"specverify"}


def ours(path):
    """Parts of specverify that a file imports."""
    return {part(name) for name in imports(TREES[path])} - {None, ""}


#: What each part may import of the others, besides itself and `errors`.
ARROWS = {
    "core": set(),
    "laws": set(),
    "statistics": set(),
    "evidence": set(),
    "inputs": {"laws"},
    "report": {"evidence", "statistics"},
    "subjects": {"core", "inputs", "laws"},
    "exact": {"core", "inputs", "laws", "subjects"},
    "defects": {"core", "exact", "inputs", "laws", "subjects", "statistics"},
    "errors": {"evidence"},
}
#: What each part may import from outside; parts that are not listed are free.
PACKAGES = {
    "core": {"torch"},
    "laws": {"numpy"},
    "inputs": {"numpy", "hypothesis"},
    "statistics": {"numpy", "scipy"},
    "evidence": {"jsonschema"},
    "report": {"jinja2", "markupsafe", "matplotlib", "numpy", "scipy"},
    "errors": set(),
    "pytest_plugin": {"pytest"},
}


def home(path):
    """The part of specverify that a file is or lies in."""
    first = path.relative_to(PACKAGE).parts[0]
    return first.removesuffix(".py")


@every_file
def test_a_part_imports_only_what_lies_below_it(path):
    allowed = ARROWS.get(home(path))
    if allowed is not None:
        assert ours(path) <= allowed | {home(path), "errors"}


@every_file
def test_a_part_imports_only_the_packages_it_is_for(path):
    allowed = PACKAGES.get(home(path))
    if allowed is not None:
        assert foreign(path) <= allowed


@every_file
def test_nothing_imports_the_command_line_or_the_plugin(path):
    """Save ``python -m specverify``, which is the command line."""
    doors = {"cli", "pytest_plugin"} - {home(path)}
    if home(path) == "__main__":
        doors.remove("cli")

    assert not ours(path) & doors


def test_an_arrow_against_the_direction_would_be_seen():
    """In a function, under TYPE_CHECKING, by module or by name."""
    source = ast.parse(
        "def f():\n    import specverify.checks.run\n"
        "if TYPE_CHECKING:\n    from specverify.subjects import rig\n"
        "from specverify import cli\n"
    )

    parts = {part(name) for name in imports(source)} - {""}
    assert parts == {"checks", "subjects", "cli"}


def test_every_part_of_the_house_is_there():
    assert {"core", "laws", "inputs", "statistics"} <= {home(path) for path in FILES}


# --- the cost of importing ------------------------------------------------------------


def loaded_by(module):
    """Top-level modules in a fresh interpreter after one import, and those before."""
    code = (
        f"import sys; before = set(sys.modules); import {module}; "
        "print(*{m.partition('.')[0] for m in set(sys.modules) - before})"
    )
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE.parent)}
    output = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    ).stdout
    return set(output.split()) - sys.stdlib_module_names


def test_importing_the_package_loads_nothing_else():
    assert loaded_by("specverify") == {"specverify"}


def test_the_laws_load_nothing_heavy():
    assert not loaded_by("specverify.laws.chain") & HEAVY


def test_a_heavy_import_would_be_seen():
    assert "numpy" in loaded_by("numpy")


@pytest.mark.skipif(
    not (PACKAGE / "pytest_plugin.py").exists(), reason="there is no plugin yet"
)
def test_importing_the_plugin_loads_pytest_and_the_standard_library_alone():
    of_pytest = loaded_by("pytest")

    assert loaded_by("specverify.pytest_plugin") <= of_pytest | {"specverify"}


# --- files ----------------------------------------------------------------------------


@every_file
def test_the_first_line_names_the_licence(path):
    first = path.read_text("utf-8").splitlines()[0]

    assert first == "# SPDX-License-Identifier: Apache-2.0"


@every_file
def test_a_module_has_at_most_350_lines(path):
    assert len(path.read_text("utf-8").splitlines()) <= 350


def definitions(tree):
    """Functions and classes of a module and of its classes; not those in functions."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node
        if isinstance(node, ast.ClassDef):
            yield from definitions(node)


def code_lines(function):
    """Lines of a function without its docstring."""
    lines = function.end_lineno - function.lineno + 1
    first = function.body[0]
    if ast.get_docstring(function) is not None:
        lines -= first.end_lineno - first.lineno + 1
    return lines


@every_file
def test_a_function_has_at_most_50_lines_besides_its_docstring(path):
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    functions = [n for n in ast.walk(TREES[path]) if isinstance(n, kinds)]

    assert [f.name for f in functions if code_lines(f) > 50] == []


def undocumented(tree):
    """Public functions and classes without a docstring, classes' own ones included."""
    return [
        node.name
        for node in definitions(tree)
        if not node.name.startswith("_") and not ast.get_docstring(node)
    ]


@every_file
def test_what_is_public_has_a_docstring(path):
    assert ast.get_docstring(TREES[path])
    assert undocumented(TREES[path]) == []


def test_a_missing_docstring_would_be_seen():
    source = 'class A:\n    "A."\n    def b(self): pass\n    def _c(self): pass\n'

    assert undocumented(ast.parse(source)) == ["b"]


# --- public names ---------------------------------------------------------------------


def test_every_public_name_has_a_home_that_exists():
    homes = {specverify._HOMES[name] for name in specverify._HOMES}
    names = {"specverify." + label(path)[:-3].replace("/", ".") for path in FILES}

    assert homes <= names


def test_an_unknown_public_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="'specverify' has no attribute 'nothing'"):
        _ = specverify.nothing


def test_the_package_says_that_it_is_typed():
    assert (PACKAGE / "py.typed").is_file()
