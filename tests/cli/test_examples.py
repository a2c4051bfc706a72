"""What the documents show: command lines that the program takes, and YAML, JSON and Python that
parse. What is tested by running it stands in `test_docs.py`."""

from __future__ import annotations

import ast
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import typer
import yaml

from docs.pictures.draw import PICTURES, PLACE
from ebbtide.program.reference import Node, commands
from tests.cli.test_docs import DOCUMENTS, ROOT

GENERATED = ROOT / "docs" / "cli.md"
"""Made from the program itself, with words such as [OPTIONS] in it."""

WRITTEN = [document for document in DOCUMENTS if document != GENERATED]
NAMED = [str(document.relative_to(ROOT)) for document in WRITTEN]
COMMANDS = dict(commands())
ELLIPSES = ("…", "...")
CRON_FIELD = re.compile(r"(\*|\d+(-\d+)?(,\d+(-\d+)?)*)(/\d+)?")
FENCED = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)
PROGRAM = re.compile(
    r"(?P<quote>[\"'`]?)(?:[\w./$-]*/bin/)?(?:(?<=/bin/)|(?<![\w./-]))ebbtide +(?=[a-z-])"
)


class Block(NamedTuple):
    language: str
    text: str


def blocks(text: str) -> Iterator[Block]:
    for found in FENCED.finditer(text):
        yield Block(found[1], found[2])


def command_lines(text: str) -> Iterator[list[str]]:
    """What follows the program's name, wherever it is called: a quote ends a call that began in it,
    and so does whatever ends a command in a shell."""
    for line in text.replace("\\\n", " ").splitlines():
        for found in PROGRAM.finditer(line):
            rest = line[found.end() :]
            if found["quote"]:
                rest = rest.partition(found["quote"])[0]
            words = list(_words(rest))
            if words:
                yield words


def _words(text: str) -> Iterator[str]:
    reader = shlex.shlex(text, posix=True, punctuation_chars=True)
    reader.whitespace_split = True
    try:
        for word in reader:
            if set(word) <= set("();<>|&"):
                return
            yield word
    except ValueError:
        # A quote of the prose around a command: what came before it is the command.
        return


def spans(text: str) -> Iterator[str]:
    """Code within the lines of a document, outside its blocks."""
    prose = FENCED.sub("", text)
    yield from (" ".join(found[1].split()) for found in re.finditer(r"`(ebbtide [^`]+)`", prose))


def listed_commands(value: Any) -> Iterator[list[str]]:
    """The same of YAML, where a container's `command` and `args` are lists."""
    if isinstance(value, dict):
        whole = [*(value.get("command") or ()), *(value.get("args") or ())]
        if whole and Path(str(whole[0])).name == "ebbtide":
            yield [str(word) for word in whole[1:]]
        for each in value.values():
            yield from listed_commands(each)
    elif isinstance(value, list):
        for each in value:
            yield from listed_commands(each)


def check(words: list[str]) -> None:
    """Raises typer.TyperException where the program would not take these arguments. An ellipsis
    stands for arguments that are left out."""
    path, rest = "ebbtide", words
    while hasattr(COMMANDS[path], "commands"):
        # `--store DIR` may stand before the command.
        rest = rest[2:] if rest[:1] == ["--store"] else rest
        if not rest or rest[0].startswith("-") or rest[0] in ELLIPSES:
            break
        if f"{path} {rest[0]}" not in COMMANDS:
            raise typer.BadParameter(f"{path} has no command {rest[0]!r}")
        path, rest = f"{path} {rest[0]}", rest[1:]
    # Options of the program itself are carried out as they are read: --install-completion is.
    if any(word in ELLIPSES for word in rest) or path == "ebbtide":
        _check_options(COMMANDS[path], rest)
    else:
        COMMANDS[path].make_context(path, list(rest))


def _check_options(command: Node, words: list[str]) -> None:
    known = {name for parameter in command.params for name in parameter.opts}
    for word in words:
        if word.startswith("-") and word.partition("=")[0] not in known:
            raise typer.BadParameter(f"no such option: {word}")


@pytest.mark.parametrize("document", WRITTEN, ids=NAMED)
def test_command_lines_are_the_programs(document: Path) -> None:
    """Those within a line may leave arguments out."""
    text = document.read_text()
    shown = [(words, words) for block in blocks(text) for words in command_lines(block.text)]
    for span in spans(text):
        shown += [(words, [*words, "…"]) for words in command_lines(span)]
    for words, checked in shown:
        try:
            check(checked)
        except typer.TyperException as error:
            pytest.fail(f"{document.name}: ebbtide {' '.join(words)}: {error}")


def test_command_lines_are_found_and_refused() -> None:
    """The tests above are as good as what finds the lines, and what tells right from wrong."""
    text = (
        'RUN=$(ebbtide gc runs lake --json | jq -r ".runs[0]")\n'
        "0 3 * * *  /opt/ebbtide/.venv/bin/ebbtide gc run lake \\\n    --yes > log\n"
        "bash_command=\"ebbtide gc plan '{{ name }}' --json\",\n"
        "to carry it out: ebbtide gc sweep lake f0  # later\n"
        "import ebbtide.store\ncp src/ebbtide there\n"
    )
    found = list(command_lines(text))
    assert found == [
        ["gc", "runs", "lake", "--json"],
        ["gc", "run", "lake", "--yes"],
        ["gc", "plan", "{{ name }}", "--json"],
        ["gc", "sweep", "lake", "f0"],
    ]
    for words in found:
        check(words)
    for wrong in (
        "gc collect lake",
        "gc run lake --now",
        "gc sweep",
        "gc runs … --now",
        "serve twice",
    ):
        with pytest.raises(typer.TyperException):
            check(wrong.split())


@pytest.mark.parametrize("document", WRITTEN, ids=NAMED)
def test_other_blocks_parse(document: Path) -> None:
    for block in blocks(document.read_text()):
        if block.language == "yaml":
            for each in yaml.safe_load_all(block.text):
                for words in listed_commands(each):
                    check(words)
        elif block.language == "json":
            json.loads(block.text)
        elif block.language == "python":
            ast.parse(block.text)
        elif block.language == "cron":
            for line in filter(None, block.text.replace("\\\n", " ").splitlines()):
                fields = line.split(maxsplit=5)
                is_variable = re.fullmatch(r"[A-Z_]+=.*", line) is not None
                assert (
                    is_variable
                    or line.startswith("#")
                    or (len(fields) == 6 and all(map(CRON_FIELD.fullmatch, fields[:5])))
                ), line


def test_pictures_are_as_drawn() -> None:
    """Each by its script (`python -m docs.pictures.draw`), and shown with a text for those who do
    not see it."""
    texts = [(ROOT / page).read_text() for page in ("docs/concepts.md", "ARCHITECTURE.md")]
    assert {file.stem for file in PLACE.glob("*.svg")} == set(PICTURES)
    for name, draw in PICTURES.items():
        assert (PLACE / f"{name}.svg").read_text() == draw().svg(), name
        shown = rf"!\[[^]]{{40,}}\]\((docs/)?pictures/{name}\.svg\)"
        assert any(re.search(shown, text) for text in texts), name
