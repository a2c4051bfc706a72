"""What histories happen on: a stage has a world, a vocabulary, and what was promised on it.

Not for: the order of what happens (`simulation`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any, Generic, Protocol, Self, TypeVar

from tests.simulation.histories import Step, Vocabulary
from tests.simulation.scheduler import Scheduler, Task
from tests.support.clock import ManualClock


class Violation(AssertionError):
    """What must not happen did. `kind` says which check found it."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind = kind


class Knowledge(Protocol):
    """What answers said so far."""

    def copy(self) -> Self:
        """One that goes on from here."""

    def end(self, number: int, now: datetime) -> None:
        """The step of that number is over, in whatever way."""

    def ends(self) -> Iterable[datetime]:
        """When something that was promised may end."""


K = TypeVar("K", bound=Knowledge)


class Stage(ABC, Generic[K]):
    """A stage serves all histories of a process, one after the other."""

    vocabulary: Vocabulary
    clock: ManualClock

    @property
    @abstractmethod
    def scheduler(self) -> Scheduler:
        """Of the history that is under way, or was last."""

    @property
    @abstractmethod
    def empty(self) -> Any:
        """The state before anything happened."""

    @abstractmethod
    def remember(self) -> Any:
        """The state that it is in."""

    @abstractmethod
    def begin(self, state: Any, after_slice: Callable[[Task], None]) -> Scheduler:
        """Bring a state back, for a history."""

    @abstractmethod
    def knowing(self) -> K:
        """What is known when nothing happened."""

    @abstractmethod
    def perform(self, step: Step, known: K) -> object:
        """Do a step; what it answers. Raises EbbtideError."""

    @abstractmethod
    def check(self, known: K) -> None:
        """Whether all that was promised is kept. Raises Violation."""

    @abstractmethod
    def check_end(self, known: K) -> None:
        """What holds behind the last step. Raises Violation."""

    @abstractmethod
    def settle(self, known: K) -> None:
        """Let all times run out, and collect. Raises Violation for what is left, and for a run
        that does not come to its end."""
