"""The question before something is destroyed."""

from __future__ import annotations

import sys

from ebbtide.errors import InvalidInput
from ebbtide.escaping import escaped_lines


def require_answerable(*, yes: bool) -> None:
    """InvalidInput `invalid_argument` where nobody can be asked and nobody said `--yes`.

    Called before any work, so that a forgotten `--yes` in a script costs nothing.
    """
    # A process may have been started without a stdin at all.
    if not yes and (sys.stdin is None or not sys.stdin.isatty()):
        raise InvalidInput(
            "invalid_argument",
            "this asks before it goes on, and there is no terminal to ask at: add --yes to "
            "answer every question with yes. Nothing was changed",
        )


def confirm(question: str, *, yes: bool) -> bool:
    """Ask on stderr, so that stdout stays the answer's; `yes` has answered already."""
    require_answerable(yes=yes)
    if yes:
        return True
    print(f"{escaped_lines(question)} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def confirm_name(what: str, name: str, *, given: str | None, option: str) -> bool:
    """Ask for `name` to be typed in, before what no answer of `yes` is enough for.

    `given` was typed on the command line, by `option`. InvalidInput `invalid_argument` where it is
    another, or nobody can be asked.
    """
    if given is not None:
        if given != name:
            raise InvalidInput(
                "invalid_argument",
                f"{option} has to be followed by the name of the repository, {name!r}. Nothing was "
                "changed",
            )
        return True
    if sys.stdin is None or not sys.stdin.isatty():
        raise InvalidInput(
            "invalid_argument",
            f"this cannot be taken back, and there is no terminal to ask at: add {option} {name}. "
            "Nothing was changed",
        )
    print(f"{escaped_lines(what)}\ntype {name} to go on: ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip() == name
