"""Prints the output of a command: its answer on stdout, all other text on stderr. Asks questions.

With `--json`, stdout gets exactly one JSON document. Without it, tables are drawn on a terminal.
If the output goes to a file or another program, tables are plain columns.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final

from ebbtide.errors import Failed, InvalidInput
from ebbtide.text import escaped, escaped_lines

WIDTH_MAX: Final = 80
"""The most characters that a column of a plain table is padded to."""


class Output:
    """The two streams of one command."""

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json
        self._has_answered = False

    def answer(self, document: Mapping[str, Any], show: Callable[[], None]) -> None:
        """Gives the command's answer: `document` (JSON-ready) with `--json`, otherwise the text
        that `show` prints."""
        self._has_answered = True
        if self.as_json:
            with answering():
                print(json.dumps(document, indent=2))
        else:
            show()

    def line(self, text: str = "", *, style: str = "") -> None:
        """Prints a line of the answer for people."""
        with answering():
            if style and sys.stdout.isatty():
                _console().print(escaped_lines(text), style=style, soft_wrap=True)
            else:
                print(escaped_lines(text))

    def fields(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Prints names and values, one pair per line, with the values aligned."""
        listed = list(pairs)
        width = max((len(name) for name, _ in listed), default=0)
        with answering():
            for name, value in listed:
                print(escaped_lines(f"{name:<{width}}  {value}".rstrip()))

    def table(
        self,
        headers: Sequence[str],
        rows: Iterable[Sequence[str]],
        *,
        right: Collection[str] = (),
        none: str = "",
    ) -> None:
        """Prints a table, or `none` if it has no rows. `right` names the columns that are aligned
        right."""
        cells = [[escaped(cell) for cell in row] for row in rows]
        with answering():
            if not cells and none:
                print(none)
            elif sys.stdout.isatty():
                _print_drawn(headers, cells, right)
            else:
                _print_plain(headers, cells, right)

    def say(self, text: str) -> None:
        """Prints a message about the work on stderr. Prints nothing with `--json`."""
        if not self.as_json:
            print(escaped_lines(text), file=sys.stderr, flush=True)

    def error(self, text: str) -> None:
        """Prints an error on stderr. The answer contains the error, too."""
        print(f"error: {escaped_lines(text)}", file=sys.stderr)

    def interrupted(self, told: str) -> None:
        """Prints the text for an interrupt: the present state, and how to continue."""
        if self._has_answered:
            print(escaped_lines(told), file=sys.stderr)
        else:
            # A terminal has written ^C at the beginning of the line.
            lead = "\n" if sys.stderr.isatty() else ""
            print_error("interrupted", told, as_json=self.as_json, lead=lead)

    def warn(self, text: str) -> None:
        """Prints a warning on stderr. Prints nothing with `--json`: a document has its warnings."""
        self.say(f"warning: {text}")


def print_error(
    kind: str,
    message: str,
    *,
    as_json: bool,
    hint: str = "",
    lead: str = "error: ",
    more: Mapping[str, str] | None = None,
) -> None:
    """Prints an error: a line on stderr, and with `--json` the document on stdout, with the fields
    `more`."""
    print(escaped_lines(f"{lead}{message}" + (f"\n{hint}" if hint else "")), file=sys.stderr)
    if as_json:
        # The error can be a failed write to stdout. Then only stderr gets the message.
        with suppress(OSError):
            told = {"kind": kind, "message": message, **(more or {})}
            print(json.dumps({"error": told}, indent=2))


@contextmanager
def answering() -> Iterator[None]:
    """Handles failed writes to stdout in the block.

    Raises Failed `answer_lost`. Raises BrokenPipeError if the reader has closed the pipe, which is
    no failure.
    """
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise Failed(
            "answer_lost",
            f"the answer could not be written to stdout ({error.strerror or error}). The changes "
            "that the command had made by then remain: check them before you run it again",
        ) from error


def drop_output() -> None:
    """Redirects stdout to the null device. The rest of its buffer cannot be written, but Python
    would try to write it at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def _console() -> Any:  # rich.console.Console, imported only where it is used
    from rich.console import Console

    return Console(markup=False, highlight=False, emoji=False)


def _print_drawn(
    headers: Sequence[str], rows: Sequence[Sequence[str]], right: Collection[str]
) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, header_style="bold", pad_edge=False)
    for header in headers:
        table.add_column(header, justify="right" if header in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    _console().print(table)


def _print_plain(
    headers: Sequence[str], rows: Sequence[Sequence[str]], right: Collection[str]
) -> None:
    # A wider cell sticks out of its column, and the other rows stay aligned.
    widths = [min(max(map(len, column)), WIDTH_MAX) for column in zip(headers, *rows, strict=True)]
    for row in (headers, *rows):
        cells = [
            cell.rjust(width) if header in right else cell.ljust(width)
            for cell, width, header in zip(row, widths, headers, strict=True)
        ]
        print("  ".join(cells).rstrip())


def require_answerable(*, yes: bool) -> None:
    """Raises InvalidInput `invalid_argument` without `--yes` if there is no terminal to ask at.

    Called before any work, so that a forgotten `--yes` in a script costs nothing, and after the
    arguments are checked.
    """
    # A process may have no stdin at all.
    if not yes and (sys.stdin is None or not sys.stdin.isatty()):
        raise InvalidInput(
            "invalid_argument",
            "this command asks before it continues, and there is no terminal to ask at: add --yes "
            "to answer every question with yes. Nothing was changed",
        )


def confirm(question: str, *, yes: bool) -> bool:
    """Asks on stderr, because stdout is for the answer. Returns true at once if `yes` is set."""
    require_answerable(yes=yes)
    if yes:
        return True
    print(f"{escaped_lines(question)} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def confirm_name(what: str, name: str, *, given: str | None, option: str) -> bool:
    """Asks the user to type `name`, if a `yes` would not be enough. Returns whether it was typed.

    `given` is the value of the option `option`, or None. Raises InvalidInput `invalid_argument` if
    it is another name, or if there is no terminal to ask at.
    """
    if given is not None:
        if given != name:
            raise InvalidInput(
                "invalid_argument",
                f"{option} needs the name of the repository, {name!r}. Nothing was changed",
            )
        return True
    if sys.stdin is None or not sys.stdin.isatty():
        raise InvalidInput(
            "invalid_argument",
            f"this cannot be undone, and there is no terminal to ask at: add {option} {name}. "
            "Nothing was changed",
        )
    print(f"{escaped_lines(what)}\ntype {name} to continue: ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip() == name
