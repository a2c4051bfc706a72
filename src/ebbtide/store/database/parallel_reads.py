"""Several readers of one state of the database, each with its own connection and thread.

SQLite releases Python's interpreter lock while it reads. One reader can therefore fetch rows while
the caller processes the rows of another. Not for: PostgreSQL, whose driver builds rows in Python,
in one thread at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Final, TypeVar

import sqlalchemy as sa

READERS: Final = 2
_Item = TypeVar("_Item")


class Reader:
    """One reader. `open_readers` closes it, and waits for a read that is under way."""

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
