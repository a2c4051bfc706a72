"""The house: no function that is too long to read, and no two classes of one name."""

from __future__ import annotations

import ast
import re
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


def test_packages_keep_to_their_budgets() -> None:
    """Those of the table in ARCHITECTURE.md. A budget with much room is no budget."""
    source = prose.ROOT / "src" / "ebbtide"
    left = {file for file in source.rglob("*.py") if "migrations" not in file.parts}
    rows = re.findall(
        r"^\| (.+?) \| (\d+) \| ([\d,]+) \|", (prose.ROOT / "ARCHITECTURE.md").read_text(), re.M
    )
    over, loose = [], []
    for package, modules, lines in rows:
        places = [source / name for name in re.findall(r"`([\w.]+)`", package)]
        files = {each for each in left if not {each, *each.parents}.isdisjoint(places)}
        if not places:  # the modules at the root stand last
            files = {each for each in left if each.parent == source}
        left -= files
        length = sum(len(each.read_text().splitlines()) for each in files)
        most = int(lines.replace(",", ""))
        if len(files) > int(modules) or length > most:
            over.append((package, len(files), length))
        if len(files) < int(modules) * 0.9 or length < most * 0.9 - 50:
            loose.append((package, len(files), length))
    assert (over, loose, left) == ([], [], set())


def test_modules_that_documents_for_developers_name_are_there() -> None:
    """Paths in code marks: of the checkout, of the program's package, or of its tests."""
    root = prose.ROOT
    places = (root, root / "src" / "ebbtide")
    pages = [root / name for name in ("ARCHITECTURE.md", "CONTRIBUTING.md", "docs/testing.md")]
    pages += (root / "docs" / "design").glob("*.md")
    named = {
        (page.name, name)
        for page in pages
        for name in re.findall(r"`([\w/]+/\w+\.(?:py|toml|html))`", page.read_text())
    }
    assert len(named) > 40
    gone = {
        (page, name) for page, name in named if not any((place / name).exists() for place in places)
    }
    assert gone == set()
