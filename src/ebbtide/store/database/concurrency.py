"""The threads of one process on its database: the queue of writers, commits that several of them
share, and readers of one state.

A commit on SQLite waits for the disk, and only one transaction can write at a time. So threads that
wait for their turn continue the transaction of the thread before them, each in a savepoint. The
last one commits for all. No thread goes on before that, and no other connection sees any of the
changes before that. If the commit fails, it fails for all of them.

Not for: other processes, which poll for the write lock. Nor for transactions that read what must be
on the disk already: a member sees the changes of the members before it, which are not committed
yet.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from threading import Event, Lock
from typing import Any, Final, Generic, TypeVar

import sqlalchemy as sa

from ebbtide.errors import EbbtideError, Failed

Carried = TypeVar("Carried")


class TurnTimeout(TimeoutError):
    """The lock was not free in time."""


@dataclass(eq=False, slots=True)
class _Place(Generic[Carried]):
    """The place of a waiting thread. `called` is locked until its turn comes."""

    called: Lock
    joins: bool
    carried: Carried | None = None


class WriteQueue(Generic[Carried]):
    """A first-come, first-served lock for threads. It is not reentrant.

    SQLite has no queue for writers: a waiting connection polls, with pauses of up to a tenth of a
    second. While other threads wrote without a pause, one commit polled without success for most of
    a minute.

    A thread can pass the lock on together with an object, if the next thread joins.
    """

    def __init__(self) -> None:
        self._guard = Lock()
        self._taken = False
        self._waiting: deque[_Place[Carried]] = deque()

    @contextmanager
    def turn(self, seconds_max: float) -> Iterator[None]:
        """Holds the lock for the block. Raises TurnTimeout if the lock is not free in time."""
        self._take(seconds_max, None)
        try:
            yield
        finally:
            self.pass_on()

    def join(self, seconds_max: float, interrupted: Callable[[Carried], None]) -> Carried | None:
        """Takes the lock. Returns the object that the previous thread passed on with it, or None.

        The caller passes the lock on by `pass_on` or `hand_over`. If an interrupt ends the wait
        when the lock and an object were passed to this thread already, `interrupted` is called with
        the object, and has to pass the lock on. Raises TurnTimeout if the lock is not free in
        time.
        """
        return self._take(seconds_max, interrupted)

    def hand_over(self, carried: Carried) -> bool:
        """Passes the lock on with an object, if the next thread joins. Returns false, and keeps the
        lock, if no thread waits or the next one does not join."""
        with self._guard:
            if not self._waiting or not self._waiting[0].joins:
                return False
            place = self._waiting.popleft()
            place.carried = carried
            place.called.release()
            return True

    def pass_on(self) -> None:
        """Passes the lock to the next thread."""
        with self._guard:
            if self._waiting:
                self._waiting.popleft().called.release()
            else:
                self._taken = False

    def _take(
        self, seconds_max: float, interrupted: Callable[[Carried], None] | None
    ) -> Carried | None:
        with self._guard:
            if not self._taken:
                self._taken = True
                return None
            place = _Place[Carried](Lock(), joins=interrupted is not None)
            place.called.acquire()
            self._waiting.append(place)
        try:
            in_time = place.called.acquire(timeout=seconds_max)
        except BaseException:  # an interrupt; if the lock came meanwhile, it is passed on
            if not self._leave(place):
                if interrupted is None or place.carried is None:
                    self.pass_on()
                else:
                    interrupted(place.carried)
            raise
        if not in_time and self._leave(place):
            raise TurnTimeout
        return place.carried

    def _leave(self, place: _Place[Carried]) -> bool:
        """Leaves the queue. Returns false if the lock had been passed to this thread already."""
        with self._guard:
            if place not in self._waiting:
                return False
            self._waiting.remove(place)
            return True


MEMBERS_MAX: Final = 64

Begin = Callable[[], AbstractContextManager[sa.Connection]]
"""Opens a block with a transaction. Its end commits, or rolls back after an exception."""


class CommitGroup:
    """The members of one transaction. It belongs to the thread that has the write lock."""

    def __init__(self, begin: Begin) -> None:
        self._stack = ExitStack()
        self.connection = self._stack.enter_context(begin())
        self.member_count = 0
        self._ended = Event()
        self._error: BaseException | None = None

    @property
    def is_undone(self) -> bool:
        """Whether SQLite has rolled the whole transaction back. It does so by itself after some
        errors, such as a full disk."""
        return not self._driver.in_transaction

    @contextmanager
    def member(self) -> Iterator[None]:
        """A block with the changes of one more member. If the block fails, its changes are
        undone."""
        if self.member_count == 0:
            yield  # if this fails, the whole transaction is rolled back
        else:
            with self._savepoint():
                yield
        self.member_count += 1

    @contextmanager
    def _savepoint(self) -> Iterator[None]:
        self._driver.execute("SAVEPOINT member")
        try:
            yield
        except BaseException:
            if not self.is_undone:
                self._driver.execute("ROLLBACK TO member")
                self._driver.execute("RELEASE member")
            raise
        self._driver.execute("RELEASE member")

    @property
    def _driver(self) -> Any:  # the driver's own connection
        return self.connection.connection.driver_connection

    def end(self) -> None:
        """Commits the changes of all members. Rolls back if there are none, or if SQLite has undone
        some. Keeps the error for `wait`."""
        try:
            if self.member_count == 0 or self.is_undone:
                undone = Failed(
                    "database_error", "the database has undone a transaction: try again"
                )
                self._error = undone
                self._stack.__exit__(Failed, undone, None)
            else:
                self._stack.close()
        except BaseException as error:
            self._error = error
            if not isinstance(error, Exception):
                raise
        finally:
            self._ended.set()

    def wait(self) -> None:
        """Waits for the end. Raises Failed if nothing was committed, or if nobody knows."""
        self._ended.wait()
        error = self._error
        if isinstance(error, EbbtideError):
            raise Failed(error.kind, error.message) from error
        if error is not None:
            raise Failed("database_error", "a commit was interrupted: try again") from error


class SharedCommits:
    """The transactions of one database that may share a commit. `queue` gives the turns of all
    writers."""

    def __init__(self, queue: WriteQueue[CommitGroup], begin: Begin) -> None:
        self._queue = queue
        self._begin = begin

    @contextmanager
    def transaction(self, seconds_max: float) -> Iterator[sa.Connection]:
        """A block with a transaction, perhaps one that other threads began. After the block, its
        changes are committed.

        Raises TurnTimeout if the turn does not come in time, and the errors of `begin`.
        """
        group = self._queue.join(seconds_max, self._pass_on) or self._begun()
        try:
            with group.member():
                yield group.connection
        finally:
            self._pass_on(group)
        group.wait()

    def _begun(self) -> CommitGroup:
        try:
            return CommitGroup(self._begin)
        except BaseException:
            self._queue.pass_on()
            raise

    def _pass_on(self, group: CommitGroup) -> None:
        """Lets the next thread continue the transaction. If there is none, ends it."""
        is_open = 0 < group.member_count < MEMBERS_MAX and not group.is_undone
        if is_open and self._queue.hand_over(group):
            return
        try:
            group.end()
        finally:
            self._queue.pass_on()


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
