"""The house: no function that is too long to read, and no two classes of one name."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import pytest

from scripts import prose

pytestmark = pytest.mark.xdist_group("house")

LINES_MAX: Final = 60
"""Of a function, with its docstring. ruff limits branches and statements."""


@pytest.fixture(scope="module")
def modules() -> Mapping[str, ast.Module]:
    """All Python files but migrations, whose functions list the tables."""
    files = [each for each in prose.project_files() if each.endswith(".py")]
    return {
        file: ast.parse((prose.ROOT / file).read_text())
        for file in files
        if "/migrations/" not in file
    }


def functions(module: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def test_functions_are_short(modules: Mapping[str, ast.Module]) -> None:
    lengths = {
        f"{file}: {each.name}": (each.end_lineno or 0) - each.lineno + 1
        for file, module in modules.items()
        for each in functions(module)
    }
    assert len(lengths) > 1000
    assert {name: length for name, length in lengths.items() if length > LINES_MAX} == {}


def test_no_two_public_classes_have_one_name(modules: Mapping[str, ast.Module]) -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for file, module in modules.items():
        if not file.startswith("src/"):
            continue
        for node in module.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(file)
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
