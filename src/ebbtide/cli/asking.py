"""Asks before data is destroyed."""

from __future__ import annotations

import sys

from ebbtide.errors import InvalidInput
from ebbtide.escaping import escaped_lines


def require_answerable(*, yes: bool) -> None:
    """Raises InvalidInput `invalid_argument` without `--yes` if there is no terminal to ask at.

    Called before any work, so that a forgotten `--yes` in a script costs nothing.
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
