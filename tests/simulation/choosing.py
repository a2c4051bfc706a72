"""How an operation takes its chances: from the numbers of its step, by what there is then.

So a history from which others were taken away still means something.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

_Item = TypeVar("_Item")


class Nothing(Exception):
    """There is nothing that the operation could be done to."""


@dataclass(slots=True, kw_only=True)
class Chances:
    """An operation's: its number in the history, and the numbers of its step."""

    number: int
    numbers: tuple[int, ...]

    def pick(self, choices: Sequence[_Item], place: int = 0) -> _Item:
        """One of the choices; Nothing where there are none."""
        if not choices:
            raise Nothing
        return choices[self.numbers[place] % len(choices)]

    def newest(self, choices: Sequence[_Item], place: int = 0) -> _Item:
        """One of the choices, more likely a late one."""
        if not choices:
            raise Nothing
        number = self.numbers[place] % 6
        return choices[-1 - (0 if number < 3 else number % len(choices))]


def named(*operations: Callable[[Any], object]) -> dict[str, Callable[[Any], object]]:
    """Operations by their names in histories: those of their functions, in words."""
    return {each.__name__.replace("_", " "): each for each in operations}
