"""How an operation takes its chances: from the numbers of its step, by what there is then.

So a history from which others were taken away still means something.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

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
