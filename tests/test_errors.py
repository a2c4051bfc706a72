"""Kinds of errors: who raises them, by what class, and that the documentation says so."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from ebbtide import errors
from ebbtide.errors import KINDS, EbbtideError
from ebbtide.server.errors import STATUS
from tests.support.documents import with_whole_items

ROOT = Path(__file__).parents[1]
DOCUMENT = ROOT / "docs" / "errors.md"
CLASSES = {
    each.__name__: each
    for each in (*EbbtideError.__subclasses__(), *errors.NotFound.__subclasses__())
    if each.__module__ == errors.__name__
}
DEFECT = "a defect"
ITEM = r"^- (`\w+`(?:, `\w+`)*) (\d+)(?:: (.+))?$"
"""One kind with its status, its meaning and what to do; or several with their status."""
TOLD = {
    # A purge keeps its refusal as a record, of which the command makes exit code 3.
    ("Refused", "purge_in_use"),
    ("Refused", "purge_held"),
    # The command line tells an interrupt so.
    ("Failed", "interrupted"),
    # Any other exception, wherever it was caught last.
    (DEFECT, "internal"),
}
"""What no place raises by a class of its own."""
Raised = set[tuple[str, str]]


def raised_in(source: str) -> tuple[Raised, Raised]:
    """Class and kind of each error that a module makes; and of those whose kind is put together
    there, such as `f"{what}_exists"`, the pattern in place of the kind."""
    exact: Raised = set()
    patterns: Raised = set()
    for name, kind in _made(ast.parse(source)):
        if isinstance(kind, ast.Constant):
            exact.add((name, str(kind.value)))
        elif isinstance(kind, ast.JoinedStr):
            parts = [
                re.escape(str(part.value)) if isinstance(part, ast.Constant) else r"\w+"
                for part in kind.values
            ]
            patterns.add((name, "".join(parts)))
    return exact, patterns


def _made(tree: ast.AST, derived_from: str = "") -> Iterator[tuple[str, ast.expr]]:
    """Class and first argument of each call that makes an error, by the named base class."""
    for node in ast.iter_child_nodes(tree):
        bases = [ast.unparse(b) for b in node.bases] if isinstance(node, ast.ClassDef) else []
        below = next((base for base in bases if base in CLASSES), derived_from)
        if isinstance(node, ast.Call) and node.args:
            called = ast.unparse(node.func)
            name = derived_from if called == "super().__init__" else called
            if name in CLASSES:
                yield name, node.args[0]
        yield from _made(node, below)


def everything_raised() -> Raised:
    exact: Raised = set()
    patterns: Raised = set()
    for path in (ROOT / "src").rglob("*.py"):
        found = raised_in(path.read_text())
        exact |= found[0]
        patterns |= found[1]
    known = {kind for _, kind in exact | TOLD}
    # Whatever is raised by its name somewhere is not looked for among those put together.
    rest = {
        (name, kind)
        for name, pattern in patterns
        for kind in set(KINDS) - known
        if re.fullmatch(pattern, kind)
    }
    return exact | rest | TOLD


def documented() -> dict[tuple[str, str], tuple[int, int, str]]:
    """By class and kind: exit code, status, and what to do. Each begins with the meaning of its
    kind. What to do can be missing where the section says it."""
    rows: dict[tuple[str, str], tuple[int, int, str]] = {}
    for section in with_whole_items(DOCUMENT).split("\n## ")[1:]:
        heading, text = section.split("\n", 1)
        named = re.search(r"`(\w+)`$", heading)
        code = re.search(r"[Ee]xit code (\d+)", text)
        assert code is not None, heading
        for names, status, told in re.findall(ITEM, text, re.MULTILINE):
            for kind in re.findall(r"\w+", names):
                place = (named[1] if named else DEFECT, kind)
                assert place not in rows, place
                meaning = f"{KINDS[kind][0].upper()}{KINDS[kind][1:]}."
                # The name of a kind in a group says what it means.
                assert told.startswith(meaning) or (not told and "," in names), (kind, told)
                rows[place] = (int(code[1]), int(status), told.removeprefix(meaning).strip())
    return rows


def test_every_kind_is_documented() -> None:
    """None of those registered or raised is missing, and each is raised somewhere."""
    assert {kind for _, kind in documented()} == set(KINDS)
    assert set(documented()) == everything_raised()


def test_what_the_documentation_says_of_each() -> None:
    for (name, kind), (code, status, advice) in documented().items():
        cls = CLASSES.get(name, EbbtideError)
        assert (code, status) == (cls.exit_code, STATUS[kind]), kind
        assert not advice or re.fullmatch(r"[A-Z`[].{10,}\.", advice), kind
        assert advice or name != "Refused" or kind == "purge_held", kind


def test_what_is_told_without_a_class_is_in_the_code() -> None:
    sources = [
        path.read_text() for path in (ROOT / "src").rglob("*.py") if path.name != "errors.py"
    ]
    for _, kind in TOLD:
        assert any(f'"{kind}"' in source for source in sources), kind


def test_an_unknown_kind_cannot_be_raised() -> None:
    with pytest.raises(ValueError, match="unknown error kind 'no_such_kind'"):
        EbbtideError("no_such_kind", "x")
