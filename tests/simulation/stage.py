"""What histories happen on: a stage has a world, a vocabulary, and what was promised on it.

Not for: the order of what happens (`simulation`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

from tests.simulation.histories import Step, Vocabulary
from tests.simulation.scheduler import Scheduler, Task
from tests.support.memory_world import TruthfulClock


class Knowledge(Protocol):
    """What answers said so far."""

    def copy(self) -> Self:
        """One that goes on from here."""

    def end(self, number: int, now: datetime) -> None:
        """The step of that number is over, in whatever way."""

    def ends(self) -> Iterable[datetime]:
        """When something that was promised may end."""


K = TypeVar("K", bound=Knowledge)


class World(Protocol):
    """Where histories happen. It serves all of a process, one after the other."""

    clock: TruthfulClock
    scheduler: Scheduler
    """Of the history that is under way, or was last."""

    def remember(self) -> Any:
        """The state that it is in."""

    def begin(self, state: Any, after_slice: Callable[[Task], None]) -> Scheduler:
        """Bring a state back, for a history."""


class Stage(ABC, Generic[K]):
    """What goes on in a world."""

    vocabulary: ClassVar[Vocabulary]
    world: World

    def __init__(self, world: World) -> None:
        self.world = world

    @property
    @abstractmethod
    def empty(self) -> Any:
        """The state before anything happened."""

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
        """Let all times run out, and collect. Raises Violation for what is left or does not end."""
