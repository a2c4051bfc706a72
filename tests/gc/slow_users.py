"""Users some of whom are slow: they stop in the middle of a put, in a thread of their own, while
others go on.

An act that writes is a generator: it yields what to call, and goes on with the answer, or the
error, when that is there. So the same act is done at once or slowly, and ends as the model says.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from concurrent.futures import Executor, Future
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from threading import get_ident
from typing import Any, ClassVar, Final

from hypothesis import event

from ebbtide.errors import Conflict, EbbtideError
from ebbtide.store.content.layout import DATA_PREFIX, RANGES_PREFIX, TREES_PREFIX
from ebbtide.store.repository import Repository
from tests.gc.lines import Contents
from tests.gc.suspended import Suspended, stop_here
from tests.gc.uncommitted_model import UncommittedModel
from tests.gc.users import Act, RefUsers
from tests.support.memory import Moment, Stored, Watcher
from tests.support.memory_world import MemoryWorld, is_of_system

Call = Callable[[], Any]  # whatever it answers goes to the act that asked for it
Steps = Generator[Call, Any, None]
KINDS_OF_FILES: Final = {DATA_PREFIX: "object", TREES_PREFIX: "tree", RANGES_PREFIX: "range"}
IN_OBJECT: Final = ("after object", "before object", "within object")
IN_COMMIT: Final = ("after tree", "before tree", "after range", "before range")
SLOW: Final = {
    "put": IN_OBJECT,
    "commit": IN_COMMIT,
    "link": IN_OBJECT,
    "copy_across": IN_OBJECT,
    "merge": IN_COMMIT,
}
"""Acts that may be slow, and where they stop."""
SLOW_MAX: Final = 3


@dataclass
class Witness(Watcher):
    """Tells the model what is written, has slow users stop, and asks about what is deleted."""

    world: MemoryWorld
    model: UncommittedModel
    at_listing: Callable[[], None] | None = None
    at_delete: Callable[[str, Stored], None] | None = None

    def putting(self, key: str, moment: Moment) -> None:
        """A write is registered before its first byte. Published after that has ended, it is
        nobody's."""
        address = key.removeprefix(self.world.prefix)
        if is_of_system(address):
            return
        now = self.world.now
        mine = self.model.writing.setdefault(get_ident(), {})
        # The objects of one act are registered together, before the first of them.
        batch = [until for each, until in mine.items() if _are_objects(each, address)]
        until = mine.setdefault(address, min([*batch, now + self.world.settings.write_ttl]))
        if moment == "after":
            self.model.files[address] = self.world.bucket.objects[key].data
            if now >= until:
                self.model.late.add(address)
        kinds = [kind for start, kind in KINDS_OF_FILES.items() if address.startswith(start)]
        stop_here(f"{moment} {kinds[0]}")

    def listing(self, prefix: str) -> None:
        """Trees and ranges have been listed when the first slice is."""
        if self.at_listing is not None and prefix.startswith(f"{self.world.prefix}{DATA_PREFIX}"):
            action, self.at_listing = self.at_listing, None
            action()

    def deleted(self, key: str, stored: Stored) -> None:
        """By whomever."""
        if self.at_delete is not None:
            self.at_delete(key.removeprefix(self.world.prefix), stored)


def _are_objects(*addresses: str) -> bool:
    return all(address.startswith(DATA_PREFIX) for address in addresses)


class OneThread(Executor):
    """A pool without threads: what a user has written stays with the thread that is the user."""

    def __init__(self, size: int) -> None:
        del size

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Do it at once."""
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except EbbtideError as error:  # told by the future, as a pool does
            future.set_exception(error)
        return future


@dataclass(slots=True)
class Slow:
    """An act that has stopped half-way."""

    steps: Steps
    suspended: Suspended
    thread_id: int = 0
    answer: Any = None


@dataclass
class SlowUsers(RefUsers[str]):
    """The users, in several processes. `mine` are the registrations of whoever goes on. The acts of
    `slow_kinds` may stop half-way."""

    slow_kinds: ClassVar[Mapping[str, tuple[str, ...]]] = SLOW
    world: MemoryWorld
    model: UncommittedModel
    processes: list[Repository] = field(default_factory=list)
    slow: list[Slow] = field(default_factory=list)
    mine: dict[str, datetime] = field(default_factory=dict)

    def do(self, act: Act) -> None:
        """Do it, in one of the processes."""
        self.world.lake = self.processes[(act.first + act.third) % len(self.processes)]
        try:
            steps = getattr(self, f"_{act.kind}")(act)
            if steps is not None:
                self.at_once(steps)
        except Conflict as error:
            assert error.kind in ("branch_protected", "branch_exists", "ref_ambiguous")
        self.done.append(act.kind)
        event(act.kind)

    def at_once(self, steps: Steps) -> None:
        """Do an act from its beginning to its end."""
        call = next(steps, None)
        if call is None:
            return
        error: EbbtideError | None = None
        answer: Any = None
        try:
            answer = call()
        except EbbtideError as raised:
            error = raised
        self._go_on(steps, get_ident(), answer, error)

    def finish_all(self) -> None:
        """Let everybody come to an end."""
        while self.slow:
            self._end(self.slow.pop())

    def _begin(self, act: Act) -> None:
        """Begin an act that stops half-way, if it comes to the place."""
        if len(self.slow) == SLOW_MAX:
            self._finish(act)
            return
        kinds = list(self.slow_kinds)
        kind = kinds[act.third % len(kinds)]
        places = self.slow_kinds[kind]
        place = places[act.second % len(places)]
        steps: Steps = getattr(self, f"_{kind}")(act)
        call = next(steps, None)
        if call is None:
            return

        def run() -> dict[str, Contents]:
            slow.thread_id = get_ident()
            slow.answer = call()
            return {}

        slow = Slow(steps, Suspended(place, run))
        if slow.suspended.begin():
            self.slow.append(slow)
            event(f"slow {kind}, {place}")
        else:
            self._end(slow)

    def _finish(self, act: Act) -> None:
        if self.slow:
            self._end(self.slow.pop(act.first % len(self.slow)))

    def _end(self, slow: Slow) -> None:
        error = slow.suspended.finish().error
        assert error is not None or slow.answer is not None
        self._go_on(slow.steps, slow.thread_id, slow.answer, error)

    def _go_on(
        self, steps: Steps, thread_id: int, answer: object, error: EbbtideError | None
    ) -> None:
        self.mine = self.model.writing.pop(thread_id, {})
        with suppress(StopIteration):
            if error is None:
                steps.send(answer)
            else:
                steps.throw(error)
            raise AssertionError("an act asks for one call")

    def _told(self, error: EbbtideError, **reasons: bool) -> None:
        """An error has one of the reasons that are given by their kinds."""
        assert reasons.get(error.kind), f"{error!r}, {reasons}"

    @property
    def _too_late(self) -> bool:
        """Whether a registration of whoever goes on has ended."""
        return any(until <= self.world.now for until in self.mine.values())
