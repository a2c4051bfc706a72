"""The claims of documents, and the proofs of them that the program itself gives.

Not for claims about other systems: these carry the date of their source.
"""

from __future__ import annotations

import ast
import contextlib
import io
import pkgutil
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Final

import ebbtide.formats
from ebbtide.program.app import run
from ebbtide.program.reference import commands
from ebbtide.server.app import TOPICS
from ebbtide.server.pages.app import page_routes
from ebbtide.settings import list_settings
from scripts.prose import ROOT, texts_of
from tests.support.commands import captured

README: Final = "README.md"
COMPARISON: Final = "docs/comparison.md"
ABSOLUTE: Final = re.compile(r"\b(?:not|never|only|no|nothing)\b", re.IGNORECASE)
WEAKER: Final = re.compile(
    r"^## Where Ebbtide is weaker\n(.*?)(?=^## |\Z)", re.DOTALL | re.MULTILINE
)
ITEM: Final = re.compile(r"^- .+(?:\n  .+)*", re.MULTILINE)
DATED: Final = re.compile(r".+ \((?:[\d.]+, )?[A-Z][a-z]+ 20\d\d\)")
"""The head of the column of another system: `Name (May 2026)`, perhaps with a version."""
Table = list[list[str]]


def tables(markdown: str) -> Iterator[Table]:
    """The tables of a document, each as its rows without the line below the head."""
    for block in re.findall(r"(?:^\|.*\n)+", markdown, re.MULTILINE):
        rows = [
            [cell.strip() for cell in row.strip("|").split(" | ")] for row in block.splitlines()
        ]
        yield [row for row in rows if not set("".join(row)) <= set("-| ")]


def claims_of_comparison(markdown: str) -> Iterator[str]:
    """Each cell of Ebbtide's column, each row of Ebbtide, and each item of the weaknesses."""
    for head, *rows in tables(markdown):
        for name, *cells in rows:
            if head[1] == "Ebbtide":
                yield f"{name}: {cells[0]}"
            elif name.startswith("Ebbtide"):
                yield f"{name}: {' | '.join(cells)}"
    for section in WEAKER.findall(markdown):
        yield from (" ".join(item[2:].split()) for item in ITEM.findall(section))


def claims_of_readme(markdown: str) -> Iterator[str]:
    """Each sentence, and each row of a table, that says something absolute. Code is left out."""
    sentences = [each for text in texts_of(README, markdown) for each in text.sentences()]
    rows = [" | ".join(row) for table in tables(markdown) for row in table]
    for each in [*sentences, *rows]:
        if ABSOLUTE.search(re.sub(r"`[^`]*`", "", each)):
            yield each.replace("·", " ")


def read_claims(text: str) -> dict[tuple[str, str], dict[str, list[str]]]:
    """The proofs of each claim of a file, by page and by the claim's text."""
    found: dict[tuple[str, str], dict[str, list[str]]] = {}
    for page, entries in tomllib.loads(text).items():
        for entry in entries:
            claim = " ".join(entry.pop("claim").split())
            assert (page, claim) not in found, f"twice: {claim}"
            found[page, claim] = {
                kind: [values] if isinstance(values, str) else values
                for kind, values in entry.items()
            }
    return found


@cache
def names(kind: str) -> frozenset[str]:
    """What the program has of a kind. Parameters of routes have no names."""
    return frozenset(_NAMES[kind]())


def _commands() -> Iterator[str]:
    yield from (path.removeprefix("ebbtide ") for path, _ in commands())


def _options() -> Iterator[str]:
    for path, node in commands():
        for name in (name for parameter in node.params for name in parameter.opts):
            yield f"{path.removeprefix('ebbtide ')} {name}"


def _settings() -> Iterator[str]:
    for setting in list_settings():
        yield from (setting.variable, f"{setting.variable}={setting.default}")


def _routes() -> Iterator[str]:
    for topic in TOPICS:
        for route in topic.routes.all:
            for method in route.methods or ():
                yield f"{method} {re.sub(r'{[^}]*}', '{}', route.path_format)}"
    for page in page_routes():
        yield f"{page.method} {re.sub(r'{[^}]*}', '{}', page.path_format)}"


def _formats() -> Iterator[str]:
    yield from (module.name for module in pkgutil.iter_modules(ebbtide.formats.__path__))


def _files() -> Iterator[str]:
    yield from captured(["git", "-C", ROOT, "ls-files"]).stdout.splitlines()


_NAMES: Final[Mapping[str, Callable[[], Iterator[str]]]] = {
    "command": _commands,
    "option": _options,
    "setting": _settings,
    "route": _routes,
    "format": _formats,
    "file": _files,
}


@cache
def _tests_in(file: str) -> frozenset[str]:
    """The names of its functions; it may have its tests in classes."""
    if not (ROOT / file).is_file():
        return frozenset()
    nodes = ast.walk(ast.parse((ROOT / file).read_text()))
    return frozenset(node.name for node in nodes if isinstance(node, ast.FunctionDef))


def _has_test(name: str) -> bool:
    file, _, test = name.partition("::")
    return test in _tests_in(file)


def anchors(document: Path) -> set[str]:
    """What the headings of a document are called in links, as code hosts make it of their text."""
    prose = re.sub(r"^```.*?^```$", "", document.read_text(), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.+)$", prose, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", each).lower().replace(" ", "-") for each in headings}


def _has_place(name: str) -> bool:
    file, _, anchor = name.partition("#")
    return (ROOT / file).is_file() and (not anchor or anchor in anchors(ROOT / file))


def _is_version(version: str) -> bool:
    """Whether this is the project's version. Claims that rest on it are read again at a release."""
    return bool(
        tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"] == version
    )


def _is_refused(case: str) -> bool:
    """`COMMAND => WORDS`: whether the program ends with an error of these words."""
    command, _, words = case.partition(" => ")
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run(command.split())
    return code != 0 and words in err.getvalue()


_CHECKS: Final[Mapping[str, Callable[[str], bool]]] = {
    "test": _has_test,
    "document": _has_place,
    "version": _is_version,
    "refused": _is_refused,
}


def holds(kind: str, value: str) -> bool:
    """Whether a proof holds. `no_command` and so on: the program has no name of this pattern.

    Raises KeyError for a kind that there is not.
    """
    if kind in _CHECKS:
        return _CHECKS[kind](value)
    pattern = re.compile(".*".join(map(re.escape, value.split("*"))))
    found = any(map(pattern.fullmatch, names(kind.removeprefix("no_"))))
    return found is not kind.startswith("no_")
