"""Follows a document: runs its commands, and compares the output that it shows with theirs. Not for
the commands themselves.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Final

BLOCK: Final = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_ID: Final = re.compile(
    r"\b(?:[0-9a-f]{32}|[0-9a-f]{10}|(?=[A-Z]*[0-9])(?:[0-9A-HJKMNP-TV-Z]{10}){1,2})\b"
)
"""Of Ebbtide's own things and of Icechunk's, whole and short."""
_WORD: Final = re.compile(r"\b[0-9A-Za-z]{6,32}\b")
_CHANGING: Final = (
    (re.compile(r"\bEBBT[A-Z0-9]{16}\b"), "KEY"),
    (re.compile(r"(secret access key) +\S+"), r"\1 SECRET"),
    (re.compile(r"/\S*/(store|weather)\b"), r"\1"),
    (re.compile(r"\b[0-9a-f]{32}/[0-9a-f]{32}\b"), "ID"),
    (_ID, "ID"),
    (re.compile(r"\b[0-9a-f]{12}\b"), "CHECKSUM"),
    (re.compile(r"\b\d{4}-\d\d-\d\d \d\d:\d\d(:\d\d)?\b"), "TIME"),
    (re.compile(r"\b(now|\d+ (second|minute|hour|day|month|year)s?)\b"), "AGE"),
    (re.compile(r"\b\d+(\.\d+)? ([KMG]i)?B\b"), "SIZE"),
    (re.compile(r"\b\d+(,\d{3})*\b"), "N"),
    (re.compile(r"\s+"), " "),
)
_LAST: Final = "--- that was the command ---"


def masked(line: str) -> str:
    """A line without what differs in each run: identifiers, times, sizes and numbers."""
    for pattern, replacement in _CHANGING:
        line = pattern.sub(replacement, line)
    return line.strip()


def unprinted(document: str, output: str) -> list[str]:
    """The lines of the document's output, in blocks without a language, that are not in `output`.
    A line with an ellipsis stands for others."""
    printed = {masked(line) for line in output.splitlines()}
    shown = [
        line for language, block in BLOCK.findall(document) if not language for line in _told(block)
    ]
    return [line for line in shown if masked(line) not in printed]


def follow(document: str, directory: Path, environment: Mapping[str, str]) -> list[str]:
    """Runs the commands of a document in one shell, each after the other, and its Python.

    Returns the lines that it shows and no command before them printed. Identifiers in commands are
    those of the document: each is replaced by the one that stands in its place in what was printed.
    Blocks without a language are output, or commands after `$ ` with their output.
    """
    with _Shell(directory, environment) as shell:
        walk = _Walk(shell)
        steps = list(_steps(document))
        for place, (kind, text) in enumerate(steps):
            if kind == "shown":
                walk.compare(text)
            else:
                following = (each for each_kind, each in steps[place:] if each_kind == "shown")
                walk.run(text, shown=next(following, ""))
        return walk.missing


class _Walk:
    def __init__(self, shell: _Shell) -> None:
        self._shell = shell
        self._printed: list[str] = []
        self._ids: dict[str, str] = {}
        self.missing: list[str] = []

    def run(self, command: str, *, shown: str) -> None:
        self._printed += self._shell.run(_WORD.sub(self._present, command)).splitlines()
        for line in _told(shown):
            self._find(line)

    def compare(self, shown: str) -> None:
        printed = "\n".join(self._printed)
        self.missing += [
            f"{line}\n  is not in:\n{printed}" for line in _told(shown) if not self._find(line)
        ]
        self._printed = []

    def _find(self, line: str) -> bool:
        """Whether a line was printed. Its identifiers are known from then on."""
        wanted = masked(line)
        found = [each for each in self._printed if masked(each) == wanted]
        if found:
            # Of alike lines each shown one gets its own.
            free = [each for each in found if not set(_ID.findall(each)) & set(self._ids.values())]
            for old, new in zip(_ID.findall(line), _ID.findall((free or found)[0]), strict=True):
                self._ids.setdefault(old, new)
        return bool(found)

    def _present(self, word: re.Match[str]) -> str:
        """The present identifier for one of the document, or for how one begins."""
        found = (new for old, new in self._ids.items() if old.startswith(word[0]))
        return next(found, word[0])


class _Shell:
    """A shell that goes on from command to command. Commands read nothing."""

    def __init__(self, directory: Path, environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            ["bash"],
            cwd=directory,
            env={**environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def __enter__(self) -> _Shell:
        return self

    def __exit__(self, *_: object) -> None:
        self._pipe(self._process.stdin).close()
        self._process.wait()
        self._pipe(self._process.stdout).close()

    def run(self, command: str) -> str:
        written = self._pipe(self._process.stdin)
        written.write(f"{{\n{command}\n}} < /dev/null\necho\necho '{_LAST}'\n")
        written.flush()
        lines: list[str] = []
        for line in self._pipe(self._process.stdout):
            if line.strip() == _LAST:
                return "".join(lines)
            lines.append(line)
        raise AssertionError(f"the shell ended with {command!r}: {''.join(lines)}")

    @staticmethod
    def _pipe(pipe: IO[str] | None) -> IO[str]:
        assert pipe is not None
        return pipe


def _steps(document: str) -> Iterator[tuple[str, str]]:
    """The commands of a document, one by one, and the output that it shows behind them."""
    for language, block in BLOCK.findall(document):
        if language == "sh":
            yield from (("run", command) for command in _commands(block))
        elif language == "python":
            yield "run", f"{sys.executable} - <<'PYTHON'\n{block}PYTHON"
        elif not language and block.startswith("$ "):
            command, _, shown = block.removeprefix("$ ").partition("\n")
            yield "run", command
            yield "shown", shown
        elif not language:
            yield "shown", block


def _commands(block: str) -> Iterator[str]:
    if "<<" in block or "; do\n" in block:
        yield block
        return
    yield from filter(str.strip, block.replace("\\\n", " ").splitlines())


def _told(shown: str) -> list[str]:
    return [line for line in shown.splitlines() if line.strip() and "…" not in line]
