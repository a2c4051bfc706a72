"""The threads of one process on its database: the queue of writers, work that several of them do
together, and readers of one state.

Not for: other processes, which poll for the write lock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from threading import Lock
from typing import Final, Generic, TypeVar

import sqlalchemy as sa

from ebbtide.errors import Failed


class TurnTimeout(TimeoutError):
    """The lock was not free in time."""


class WriteQueue:
    """A first-come, first-served lock for threads. It is not reentrant.

    SQLite has no queue for writers: a waiting connection polls, with pauses of up to a tenth of a
    second. While other threads wrote without a pause, one commit polled without success for most of
    a minute.
    """

    def __init__(self) -> None:
        self._guard = Lock()
        self._taken = False
        self._waiting: deque[Lock] = deque()

    @contextmanager
    def turn(self, seconds_max: float) -> Iterator[None]:
        """Holds the lock for the block. Raises TurnTimeout if the lock is not free in time."""
        self._take(seconds_max)
        try:
            yield
        finally:
            self._pass_on()

    def _pass_on(self) -> None:
        """Passes the lock to the next thread."""
        with self._guard:
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._taken = False

    def _take(self, seconds_max: float) -> None:
        with self._guard:
            if not self._taken:
                self._taken = True
                return
            called = Lock()
            called.acquire()
            self._waiting.append(called)
        try:
            in_time = called.acquire(timeout=seconds_max)
        except BaseException:  # an interrupt; if the lock came meanwhile, it is passed on
            if not self._leave(called):
                self._pass_on()
            raise
        if not in_time and self._leave(called):
            raise TurnTimeout

    def _leave(self, called: Lock) -> bool:
        """Leaves the queue. Returns false if the lock had been passed to this thread already."""
        with self._guard:
            if called not in self._waiting:
                return False
            self._waiting.remove(called)
            return True


MEMBERS_MAX: Final = 64
"""The most items of a group."""
_Key = TypeVar("_Key", bound=Hashable)
_Given = TypeVar("_Given")
_Made = TypeVar("_Made")


@dataclass(eq=False, slots=True)
class _Member(Generic[_Given, _Made]):
    """An item that a thread brought, and what became of it: the only element of `made`, or else
    `error`. `called` is locked until the item is done, or until it is the thread's turn to lead."""

    item: _Given
    called: Lock
    leads: bool = False
    made: Sequence[_Made] = ()
    error: BaseException | None = None


class GroupWork(Generic[_Key, _Given, _Made]):
    """Does the work of several threads together: all items of a key that arrived while the group
    before was under way. Nothing waits for a timer.

    `work` gets a key and items in the order of their arrival, and returns a result for each. It
    does all or nothing. The thread of the first item calls it for the whole group, since waking a
    thread for each item takes longer than most work.
    """

    def __init__(self, work: Callable[[_Key, Sequence[_Given]], Sequence[_Made]]) -> None:
        self._work = work
        self._guard = Lock()
        self._queues: dict[_Key, deque[_Member[_Given, _Made]]] = {}
        """Each key has a queue as long as a thread leads its groups."""

    def do(self, key: _Key, item: _Given) -> _Made:
        """Returns the result for an item. If its work fails, raises the error, whatever became of
        the others in its group."""
        member = _Member[_Given, _Made](item, Lock())
        member.called.acquire()
        with self._guard:
            queue = self._queues.get(key)
            if queue is None:
                queue = self._queues[key] = deque()
                member.leads = True
            queue.append(member)
        if not member.leads:
            self._wait(key, member)
        if member.leads:
            self._lead(key, queue)
        if member.error is not None:
            raise member.error
        return member.made[0]

    def _wait(self, key: _Key, member: _Member[_Given, _Made]) -> None:
        try:
            member.called.acquire()
        except BaseException:  # an interrupt: a group that has begun goes on without this thread
            with self._guard:
                queue = self._queues.get(key)
                if queue is not None and member in queue:
                    queue.remove(member)
                if member.leads:
                    self._call_next(key)
            raise

    def _lead(self, key: _Key, queue: deque[_Member[_Given, _Made]]) -> None:
        with self._guard:
            group = [queue.popleft() for _ in range(min(len(queue), MEMBERS_MAX))]
        try:
            self._carry_out(key, group)
        finally:
            with self._guard:
                self._call_next(key)
            for each in group:
                if not each.made and each.error is None:
                    each.error = Failed("database_error", "a commit was interrupted: try again")
                each.called.release()

    def _call_next(self, key: _Key) -> None:
        queue = self._queues[key]
        if queue:
            queue[0].leads = True
            queue[0].called.release()
        else:
            del self._queues[key]

    def _carry_out(self, key: _Key, group: Sequence[_Member[_Given, _Made]]) -> None:
        """Does the work of a group. A failure of the whole system fails for all: nobody knows what
        a commit without an answer has done. After any other error, each item is done alone."""
        try:
            results = self._work(key, [each.item for each in group])
        except Exception as error:  # noqa: BLE001 - raised again in the thread of the item
            if len(group) == 1:
                group[0].error = error
            elif isinstance(error, Failed):
                for each in group:
                    each.error = Failed(error.kind, error.message, **error.details)
            else:
                for each in group:
                    self._carry_out(key, [each])
        else:
            for each, made in zip(group, results, strict=True):
                each.made = (made,)


READERS: Final = 2
_Item = TypeVar("_Item")


class Reader:
    """One of several readers of one state of the database, with its own connection and thread.

    SQLite releases Python's interpreter lock while it reads, so that a reader can fetch rows while
    the caller processes the rows of another. PostgreSQL's driver builds rows in Python, in one
    thread at a time. `open_readers` closes the reader, and waits for a read that is under way.
    """

    def __init__(self, connection: sa.Connection, pool: ThreadPoolExecutor) -> None:
        self._connection = connection
        self._pool = pool

    def prefetch(self, read: Callable[[sa.Connection], Iterator[_Item]]) -> Iterator[_Item]:
        """Yields the items of `read`. Each item is fetched while the caller processes the one
        before."""
        items = read(self._connection)
        coming: Future[_Item | None] = self._pool.submit(next, items, None)

        def each() -> Iterator[_Item]:
            nonlocal coming
            while (item := coming.result()) is not None:
                coming = self._pool.submit(next, items, None)
                yield item

        return each()


@contextmanager
def open_readers(connections: Sequence[sa.Connection]) -> Iterator[tuple[Reader, ...]]:
    """Opens a reader for each connection. All connections must see one state, and have no other
    user."""
    with ExitStack() as stack:
        pools = [stack.enter_context(ThreadPoolExecutor(1, "reader")) for _ in connections]
        yield tuple(map(Reader, connections, pools))


def in_turn(streams: Sequence[Iterator[_Item]]) -> Iterator[_Item]:
    """Yields one item of each stream in turn, until all streams have ended."""
    left = list(streams)
    while left:
        for stream in list(left):
            item = next(stream, None)
            if item is None:
                left.remove(stream)
            else:
                yield item
