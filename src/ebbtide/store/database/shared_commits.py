"""One commit for the short transactions of several threads, on SQLite.

A commit on SQLite waits for the disk, and only one transaction can write at a time. So threads that
wait for their turn continue the transaction of the thread before them, each in a savepoint. The
last one commits for all. No thread goes on before that, and no other connection sees any of the
changes before that. If the commit fails, it fails for all of them.

Not for: transactions that read what must be on the disk already. A member sees the changes of the
members before it, which are not committed yet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from threading import Event
from typing import Any, Final

import sqlalchemy as sa

from ebbtide.errors import EbbtideError, Failed
from ebbtide.store.database.write_queue import WriteQueue

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
