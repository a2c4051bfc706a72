"""What a command prints: its answer on stdout, everything else on stderr.

With `--json` stdout gets exactly one JSON document. Without it, tables are drawn for a terminal
and are plain columns where the output goes to a file or another program.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final

from ebbtide.errors import Failed
from ebbtide.escaping import escaped, escaped_lines

WIDTH_MAX: Final = 80
"""Characters that a column of a plain table is padded to."""


class Output:
    """The two streams of one command."""

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json
        self._has_answered = False

    def answer(self, document: Mapping[str, Any], show: Callable[[], None]) -> None:
        """The command's answer: `document` (JSON-ready) with `--json`, else whatever `show`
        prints."""
        self._has_answered = True
        if self.as_json:
            with answering():
                print(json.dumps(document, indent=2))
        else:
            show()

    def line(self, text: str = "", *, style: str = "") -> None:
        """A line of the answer for people."""
        with answering():
            if style and sys.stdout.isatty():
                _console().print(escaped_lines(text), style=style, soft_wrap=True)
            else:
                print(escaped_lines(text))

    def fields(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Names and values, one a line, the values below each other."""
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
        """A table; `right` names the columns of figures. `none` is said where there is no row."""
        cells = [[escaped(cell) for cell in row] for row in rows]
        with answering():
            if not cells and none:
                print(none)
            elif sys.stdout.isatty():
                _print_drawn(headers, cells, right)
            else:
                _print_plain(headers, cells, right)

    def say(self, text: str) -> None:
        """A message about the work, on stderr; left out with `--json`."""
        if not self.as_json:
            print(escaped_lines(text), file=sys.stderr, flush=True)

    def error(self, text: str) -> None:
        """An error that the answer tells of too, on stderr."""
        print(f"error: {escaped_lines(text)}", file=sys.stderr)

    def interrupted(self, told: str) -> None:
        """The command was interrupted: what state things are in, and how to go on."""
        if self._has_answered:
            print(escaped_lines(told), file=sys.stderr)
        else:
            # A terminal has shown ^C where the line begins.
            lead = "\n" if sys.stderr.isatty() else ""
            print_error("interrupted", told, as_json=self.as_json, lead=lead)

    def warn(self, text: str) -> None:
        """A warning, on stderr; a `--json` document carries its warnings itself."""
        self.say(f"warning: {text}")


def print_error(
    kind: str, message: str, *, as_json: bool, hint: str = "", lead: str = "error: "
) -> None:
    """An error: a line on stderr, and with `--json` the document on stdout."""
    print(escaped_lines(f"{lead}{message}" + (f"\n{hint}" if hint else "")), file=sys.stderr)
    if as_json:
        # Perhaps stdout is what failed. Then stderr has said so.
        with suppress(OSError):
            print(json.dumps({"error": {"kind": kind, "message": message}}, indent=2))


@contextmanager
def answering() -> Iterator[None]:
    """Writes to stdout in the block. Failed `answer_lost` where they fail; BrokenPipeError where
    nobody reads any more, which is no failure of anybody's."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise Failed(
            "answer_lost",
            f"the answer could not be written to stdout ({error.strerror or error}). What the "
            "command had done by then stays done: look at what is there before it is asked for "
            "again",
        ) from error


def drop_output() -> None:
    """Lead stdout nowhere: what is still in its buffer cannot be written, and Python would try."""
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
    # What is wider sticks out, instead of moving every other row.
    widths = [min(max(map(len, column)), WIDTH_MAX) for column in zip(headers, *rows, strict=True)]
    for row in (headers, *rows):
        cells = [
            cell.rjust(width) if header in right else cell.ljust(width)
            for cell, width, header in zip(row, widths, headers, strict=True)
        ]
        print("  ".join(cells).rstrip())
