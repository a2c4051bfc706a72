"""Operations of which one runs at a time, and what disturbs each of them at its points.

An operation is a thread. It runs from one point to the next; a point is a place where others could
do something in between: before a transaction, before its COMMIT, before a call of the storage. At a
point the operation may be put to sleep, or end as a killed process does, or be told that its call
fails. All of that is in its disturbances, so that the same ones give the same history.

Not for: which points there are (`database`, `bucket`), or which disturbances (`histories`).
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache
from random import Random
from typing import Any, Final, Literal, TypeVar

from ebbtide.errors import EbbtideError, Failed
from tests.support.clock import ManualClock

TICK: Final = timedelta(milliseconds=1)
"""How much time passes from one point to the next."""
LOCK_WAIT: Final = timedelta(seconds=30)
"""As long as a database keeps a writer waiting."""

STUCK_SECONDS: Final = 600.0
"""Of real time: more than a step takes on the busiest machine."""

Fault = Literal["sleep", "kill", "fail", "lose", "part", "die"]
"""What happens at a point. `sleep`: the process is suspended. `kill`: it is gone before the call,
`die` behind it. `fail`: the call has no effect and fails. `lose`: it has its effect, and fails all
the same. `part`: a batch of deletes has half of its effect."""

_Answer = TypeVar("_Answer")


class Violation(AssertionError):
    """What must not happen did. `kind` says which check found it."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind = kind


class Died(BaseException):
    """The process is gone: nothing that it would do about an error is done any more."""


class _Stop(BaseException):
    """The history is over."""


@dataclass(frozen=True, slots=True)
class Disturbance:
    """A fault at the point with that `word` that comes behind `at` others with it, or at the first
    one after it that allows the fault. A sleep lasts until so many `slices` of others have been,
    and so much time passes with it."""

    fault: Fault
    word: str
    at: int = 0
    slices: int = 1
    lasts: timedelta = timedelta(0)

    def __str__(self) -> str:
        where = f"'{self.word}' number {self.at + 1}"
        if self.fault != "sleep":
            return f"{self.fault} at {where}"
        return f"sleep at {where} for {self.slices} slices and {self.lasts}"


@dataclass(frozen=True, slots=True)
class Line:
    """A step of a history."""

    time: datetime
    task: str
    text: str
    word: str
    """Of a point, what kind of one it is; empty for what is no point."""
    is_told: bool
    """Whether somebody who reads the history wants to know."""


@cache
def _place(address: str) -> str:
    """What kind of file an address is of: a name for those that there is one of."""
    parts = address.split("/")
    if parts[0] != "_ebbtide":
        return parts[0] or "root"
    if parts[1:3] == ["gc", "runs"]:
        return "/".join(["runs", *parts[4:5]])
    return "/".join(parts[1:3]) if parts[1] == "gc" else parts[1]


def word_of(text: str) -> str:
    """The kind of a point: statement and table, or method and kind of file."""
    method, _, rest = text.partition(" ")
    if not method.islower() or not rest or rest.startswith("of "):
        return text if method.isupper() else method
    return f"{method} {_place(rest.rpartition(' ')[2])}"


class Task(threading.Thread):
    """An operation. `answer` is what it returned, `refused` why it did not."""

    def __init__(
        self, number: int, kind: str, work: Callable[[], Any], disturbances: Sequence[Disturbance]
    ) -> None:
        super().__init__(name=f"simulated {number} {kind}", daemon=True)
        self.number = number
        self.kind = kind
        self.label = f"{number} {kind}"
        self.ids = Random(f"ids of {number} {kind}")
        self.waiting_for: Callable[[], bool] | None = None
        self.wakes_at = 0
        self.sleeps_for = timedelta(0)
        self.began = datetime.max.replace(tzinfo=UTC)
        self.is_over = False
        self.began_alone = False
        self.was_disturbed = False
        self.is_dead = False
        self.is_stopping = False
        self.answer: Any = None
        self.refused: EbbtideError | None = None
        self.broke: BaseException | None = None
        self.counts: Counter[str] = Counter()
        self.go = threading.Semaphore(0)
        self._work = work
        self._left = list(disturbances)
        self._scheduler: Scheduler | None = None

    def bind(self, scheduler: Scheduler) -> None:
        """Whose baton it takes."""
        self._scheduler = scheduler
        self.began = scheduler.clock.now

    def run(self) -> None:
        """The work, once the baton is here."""
        assert self._scheduler is not None
        self.go.acquire()
        try:
            if not self.is_stopping:
                self.answer = self._work()
        except EbbtideError as error:
            self.refused = error
        except (_Stop, Died):
            pass
        except BaseException as error:  # noqa: BLE001  raised again by whoever has the baton
            self.broke = error
        self.is_over = True
        self._scheduler.give_back()

    def next_fault(self, word: str, allowed: frozenset[Fault]) -> Disturbance | None:
        """What happens at the point that was just come to."""
        for disturbance in self._left:
            if (
                disturbance.word == word
                and self.counts[word] > disturbance.at
                and disturbance.fault in allowed
            ):
                self._left.remove(disturbance)
                self.was_disturbed = True
                return disturbance
        return None


ANY: Final[frozenset[Fault]] = frozenset({"sleep", "kill"})
CALL: Final[frozenset[Fault]] = ANY | {"fail", "lose", "die"}
READ: Final[frozenset[Fault]] = ANY | {"fail"}
BATCH: Final[frozenset[Fault]] = CALL | {"part"}


@dataclass(slots=True)
class Scheduler:
    """Runs tasks, one at a time. `after_slice` is called whenever one stopped."""

    clock: ManualClock
    after_slice: Callable[[Task], None]
    lines: list[Line] = field(default_factory=list)
    tasks: list[Task] = field(default_factory=list)
    slices: int = 0
    _baton: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))

    @property
    def current(self) -> Task | None:
        thread = threading.current_thread()
        return thread if isinstance(thread, Task) else None

    @property
    def is_alone(self) -> bool:
        """Whether this task was not disturbed, and nothing is or was under way beside it."""
        task, last = self.current, self.tasks[-1]
        return task is last and last.began_alone and not last.was_disturbed

    def tell(self, text: str, *, is_told: bool = True) -> None:
        """Write a line of the history."""
        task = self.current
        self.lines.append(
            Line(self.clock.now, "" if task is None else task.label, text, "", is_told)
        )

    def point(
        self, text: str, *, allowed: frozenset[Fault] = ANY, effect: bool = False
    ) -> Fault | None:
        """A point of the thread, if it is a task: the fault of the call behind it, or None."""
        task = self.current
        if task is None:
            return None
        if task.is_stopping:
            raise _Stop
        if task.is_dead:
            raise Died
        self.clock.now += TICK
        word = word_of(text)
        task.counts[word] += 1
        self.lines.append(Line(self.clock.now, task.label, text, word, effect))
        while (disturbance := task.next_fault(word, allowed)) is not None:
            self.tell(f"=== {disturbance}, before: {text}")
            if disturbance.fault == "kill":
                task.is_dead = True
                raise Died
            if disturbance.fault != "sleep":
                return disturbance.fault
            task.sleeps_for = disturbance.lasts
            task.wakes_at = self.slices + 1 + disturbance.slices
            self._hand_over(task)
            self.tell("=== wakes up")
        return None

    def require_alive(self) -> None:
        """Nothing happens here, but a process that is gone goes no further."""
        task = self.current
        if task is not None and task.is_dead:
            raise Died

    def call(
        self,
        text: str,
        work: Callable[[], _Answer],
        *,
        allowed: frozenset[Fault] = CALL,
        effect: bool = True,
    ) -> _Answer:
        """The answer of a call of the storage, which may fail or get lost."""
        fault = self.point(text, allowed=allowed, effect=effect)
        if fault == "fail":
            raise Failed("storage_error", f"{text} was made to fail")
        answer = work()
        self.end_call(text, fault)
        return answer

    def end_call(self, text: str, fault: Fault | None) -> None:
        """What becomes of an answer."""
        if fault == "lose":
            raise Failed("storage_error", f"the answer of {text} was lost")
        if fault == "die":
            self.die()

    def die(self) -> None:
        """The process of this task is gone."""
        task = self.current
        assert task is not None
        task.is_dead = True
        raise Died

    def wait_for(
        self, text: str, is_ready: Callable[[], bool], *, longest: timedelta = timedelta.max
    ) -> None:
        """Let others go on until it is ready; Failed `database_error` where that takes too long."""
        task = self.current
        if task is None or is_ready():
            return
        self.tell(f"=== waits for {text}")
        since = self.clock.now
        task.waiting_for = is_ready
        self._hand_over(task)
        task.waiting_for = None
        if not is_ready() or self.clock.now - since > longest:
            raise Failed("database_error", f"waited too long for {text}")

    def _hand_over(self, task: Task) -> None:
        self._baton.release()
        task.go.acquire()
        if task.is_stopping:
            raise _Stop

    def give_back(self) -> None:
        self._baton.release()

    # Whoever has the baton of the whole history

    def start(self, task: Task) -> None:
        """Run a new task up to where it stops first, then those that wake up."""
        task.bind(self)
        task.began_alone = all(each.is_over for each in self.tasks)
        self.tasks.append(task)
        task.start()
        self._slice(task)
        self.wake_due()

    def wake_due(self) -> None:
        """Run whoever slept for long enough."""
        while (task := self._due()) is not None:
            self._slice(task)

    def finish(self) -> None:
        """Wake everybody, in order, until all have come to their end."""
        while sleepers := [task for task in self.tasks if not task.is_over]:
            ready = [task for task in sleepers if task.waiting_for is None or task.waiting_for()]
            self._slice(min(ready or sleepers, key=lambda task: (task.wakes_at, task.number)))

    def stop(self) -> None:
        """End what has not ended, whatever it was about."""
        for task in self.tasks:
            task.is_stopping = True
            while not task.is_over:
                self._pass_on(task)
            task.join()

    def _due(self) -> Task | None:
        found = [
            task
            for task in self.tasks
            if not task.is_over
            and (task.wakes_at <= self.slices if task.waiting_for is None else task.waiting_for())
        ]
        return min(found, key=lambda task: (task.wakes_at, task.number), default=None)

    def _slice(self, task: Task) -> None:
        self._pass_on(task)
        self.slices += 1
        if task.broke is not None:
            raise task.broke
        self.after_slice(task)
        # What was deleted before it slept was judged by the time at which that was.
        self.clock.now += task.sleeps_for
        task.sleeps_for = timedelta(0)

    def _pass_on(self, task: Task) -> None:
        task.go.release()
        if not self._baton.acquire(timeout=STUCK_SECONDS):
            raise RuntimeError(f"{task.label} waits for something that is no point")
