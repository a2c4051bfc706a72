"""The question before something is destroyed."""

from __future__ import annotations

import sys

from ebbtide.errors import InvalidInput


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
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")
