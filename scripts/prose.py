"""Measures the prose of the project: words in a sentence, by file.

Run it through `scripts/prose`. It reads what a reader reads: the paragraphs of documents,
docstrings, comments, and the help texts of options. Code, tables, headings and addresses of links
are left out; a piece of code within a sentence is one word.
"""

from __future__ import annotations

import argparse
import ast
import io
import random
import re
import subprocess
import sys
import textwrap
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT: Final = Path(__file__).resolve().parents[1]
AVERAGE_WORDS_MAX: Final = 16.0
SENTENCE_WORDS_MAX: Final = 35
SENTENCES_MIN: Final = 5
"""An average of fewer says little of a file."""
DRAWN: Final = 20
"""How many texts of each kind `--draw` shows."""

GENERATED: Final = frozenset({"docs/cli.md", "docs/settings.md"})
"""Made of texts that are measured where they stand in the code."""

DOCUMENT: Final = "paragraph"
DOCSTRING: Final = "docstring"
COMMENT: Final = "comment"
HELP: Final = "help text"

_MARKDOWN: Final = MarkdownIt("commonmark").enable("table")
_SENTENCE_END: Final = re.compile(r"(?<=[.!?])[\"')\]]*\s+")
_WORD: Final = re.compile(r"`[^`]*`|\w[\w'./+%-]*")


@dataclass(frozen=True, slots=True)
class Text:
    """One piece of prose: a paragraph, a docstring, a block of comments or a help text. `code` is
    what stands before a comment on its line."""

    file: str
    line: int
    kind: str
    content: str
    code: str = ""

    def sentences(self) -> Iterator[str]:
        """The sentences, each on one line, without code blocks, tables and headings."""
        for _, paragraph in _paragraphs(self.content):
            yield from filter(None, _SENTENCE_END.split(paragraph))


@dataclass(frozen=True, slots=True)
class Measured:
    """What the prose of one file comes to. Lengths are in words."""

    file: str
    sentence_count: int
    average: float
    longest: tuple[int, Text, str]
    too_long: list[tuple[int, Text, str]]

    @property
    def is_fine(self) -> bool:
        """Whether the file keeps both limits."""
        is_short = self.average < AVERAGE_WORDS_MAX or self.sentence_count < SENTENCES_MIN
        return is_short and not self.too_long


def texts_of(file: str, content: str) -> list[Text]:
    """All prose of a file, by what its name ends in."""
    if file.endswith(".md"):
        return [Text(file, line, DOCUMENT, said) for line, said in _paragraphs(content) if said]
    return [*_strings(file, content), *_comments(file, content)]


def measure(file: str, texts: list[Text]) -> Measured | None:
    """The lengths of a file's sentences; None where it has none."""
    lengths = [
        (len(_WORD.findall(sentence)), text, sentence)
        for text in texts
        for sentence in text.sentences()
    ]
    lengths = [each for each in lengths if each[0]]
    if not lengths:
        return None
    return Measured(
        file,
        len(lengths),
        sum(length for length, _, _ in lengths) / len(lengths),
        max(lengths, key=lambda each: each[0]),
        [each for each in lengths if each[0] > SENTENCE_WORDS_MAX],
    )


def project_files() -> list[str]:
    """The documents and Python files that belong to the project, as paths from its root."""
    command = ["git", "-C", str(ROOT), "ls-files", "--", "*.md", "*.py"]
    listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split("\n")
    return [file for file in listed if file and file not in GENERATED]


def _paragraphs(markdown: str) -> Iterator[tuple[int, str]]:
    """Each paragraph and list item on one line, with the number of its first line."""
    tokens = _MARKDOWN.parse(markdown)
    for opening, token in pairwise(tokens):
        if opening.type == "paragraph_open":
            pieces = (_plain(child) for child in token.children or [])
            yield (token.map or [0])[0] + 1, " ".join("".join(pieces).split())


def _plain(token: Token) -> str:
    """What a reader sees of a part of a paragraph. Code is one word, and pictures are left out."""
    match token.type:
        case "text":
            return token.content
        case "code_inline":
            return "`" + re.sub(r"\s", "·", token.content) + "`"
        case "softbreak" | "hardbreak":
            return " "
    return ""


def _strings(file: str, content: str) -> Iterator[Text]:
    """Docstrings, also of attributes, and what is given as `help`."""
    for node in ast.walk(ast.parse(content)):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield Text(file, node.lineno, DOCSTRING, _unwrapped(text))
            case ast.keyword(arg="help", value=ast.Constant(value=str(text))):
                yield Text(file, node.lineno, HELP, text)


def _unwrapped(text: str) -> str:
    first, _, rest = text.partition("\n")
    return f"{first}\n{textwrap.dedent(rest)}"


def _comments(file: str, content: str) -> Iterator[Text]:
    """Comments; those on consecutive lines are one. Not what tools read (`noqa`, `type:`)."""
    lines: list[str] = []
    first, code = 0, ""
    for token in tokenize.generate_tokens(io.StringIO(content).readline):
        if token.type == tokenize.COMMENT:
            said = token.string.lstrip("#!").strip()
            if re.match(r"(noqa|type:|pragma:|mypy:|ruff:)", said):
                continue
            if lines and token.start[0] != first + len(lines):
                yield Text(file, first, COMMENT, " ".join(lines), code)
                lines = []
            if not lines:
                first, code = token.start[0], token.line[: token.start[1]].strip()
            lines.append(said)
    if lines:
        yield Text(file, first, COMMENT, " ".join(lines), code)


def read(files: list[str]) -> dict[str, list[Text]]:
    """The prose of files, which are paths from the root, by file."""
    return {file: texts_of(file, (ROOT / file).read_text()) for file in files}


def _report(measured: list[Measured], *, each_sentence: bool) -> None:
    for found in sorted(measured, key=lambda each: (each.is_fine, -each.longest[0])):
        print(f"{found.average:5.1f} {found.longest[0]:4d}  {found.file}")
        if each_sentence:
            for length, text, sentence in found.too_long:
                print(f"            line {text.line}, {length} words: {sentence}")
    bad = sum(not found.is_fine for found in measured)
    print(
        f"{bad} of {len(measured)} files are above an average of {AVERAGE_WORDS_MAX:.0f} words or "
        f"have a sentence above {SENTENCE_WORDS_MAX}"
    )


def _draw(texts: dict[str, list[Text]], seed: int) -> None:
    """Prints some texts of each kind, of the program itself and of its documents."""
    chances = random.Random(seed)
    pools: dict[str, list[Text]] = {}
    for file, found in texts.items():
        for text in found if file.startswith(("src/", "docs/", "README", "ARCH")) else []:
            pools.setdefault(text.kind, []).append(text)
    for kind, pool in sorted(pools.items()):
        for text in chances.sample(pool, min(DRAWN, len(pool))):
            before = f"{text.code}  # " if text.code else ""
            print(f"[{kind}] {text.file}:{text.line}\n{before}{text.content.strip()}\n")
    print(f"drawn by seed {seed}")


def main() -> int:
    """What `scripts/prose` does; its exit code."""
    parser = argparse.ArgumentParser(prog="scripts/prose")
    parser.add_argument("files", nargs="*", metavar="FILE")
    parser.add_argument("--draw", type=int, metavar="SEED")
    arguments = parser.parse_args()
    texts = read(arguments.files or project_files())
    if arguments.draw is not None:
        _draw(texts, arguments.draw)
        return 0
    measured = [found for file, each in texts.items() if (found := measure(file, each))]
    _report(measured, each_sentence=bool(arguments.files))
    return 0 if all(found.is_fine for found in measured) else 1


if __name__ == "__main__":
    sys.exit(main())
