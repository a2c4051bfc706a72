"""The house: no function that is too long to read, and no two classes of one name."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from scripts import prose

pytestmark = pytest.mark.xdist_group("house")

LINES_MAX: Final = 60
"""Of a function, with its docstring. ruff limits branches and statements."""


@dataclass(frozen=True, slots=True)
class Found:
    """What a file has: its functions with their lines, and its public classes."""

    lengths: Sequence[tuple[str, int]]
    classes: Sequence[str]


def found_in(module: ast.Module) -> Found:
    # Several functions of a file may have one name.
    lengths = [
        (node.name, (node.end_lineno or 0) - node.lineno + 1)
        for node in ast.walk(module)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    classes = [node.name for node in module.body if isinstance(node, ast.ClassDef)]
    return Found(lengths, [name for name in classes if not name.startswith("_")])


@pytest.fixture(scope="module")
def modules() -> Mapping[str, Found]:
    """All Python files but migrations, whose functions list the tables. No tree is held: Python's
    search for cycles would go through all of them again and again."""
    files = [each for each in prose.project_files() if each.endswith(".py")]
    return {
        file: found_in(ast.parse((prose.ROOT / file).read_text()))
        for file in files
        if "/migrations/" not in file
    }


def test_functions_are_short(modules: Mapping[str, Found]) -> None:
    lengths = [
        (file, name, length) for file, found in modules.items() for name, length in found.lengths
    ]
    assert len(lengths) > 1000
    assert [each for each in lengths if each[-1] > LINES_MAX] == []


def test_no_two_public_classes_have_one_name(modules: Mapping[str, Found]) -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for file, found in modules.items():
        for name in found.classes if file.startswith("src/") else ():
            places[name].append(file)
    assert len(places) > 100
    assert {name: files for name, files in places.items() if len(files) > 1} == {}


def test_each_package_says_what_it_is_for() -> None:
    packages = sorted((prose.ROOT / "src/ebbtide").rglob("__init__.py"))
    silent = [
        str(Path(file).relative_to(prose.ROOT))
        for file in packages
        if "migrations" not in file.parts and not ast.get_docstring(ast.parse(file.read_text()))
    ]
    assert silent == []
