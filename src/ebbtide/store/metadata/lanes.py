"""Several readers of one state of the database, each with a connection and a thread of its own.

SQLite works without the interpreter: what one reader asks for comes while another's rows are made
use of. Not for: PostgreSQL, whose rows are made in Python, by one thread at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Final, TypeVar

import sqlalchemy as sa

LANES: Final = 2
_Item = TypeVar("_Item")


class Lane:
    """One reader. Whoever opened it closes it: what is under way then is waited for."""

    def __init__(self, connection: sa.Connection, pool: ThreadPoolExecutor) -> None:
        self._connection = connection
        self._pool = pool

    def ahead(self, read: Callable[[sa.Connection], Iterator[_Item]]) -> Iterator[_Item]:
        """What `read` yields, each item read while its caller works on the one before."""
        items = read(self._connection)
        coming: Future[_Item | None] = self._pool.submit(next, items, None)

        def each() -> Iterator[_Item]:
            nonlocal coming
            while (item := coming.result()) is not None:
                coming = self._pool.submit(next, items, None)
                yield item

        return each()


@contextmanager
def open_lanes(connections: Sequence[sa.Connection]) -> Iterator[tuple[Lane, ...]]:
    """A lane for each connection, all of which see one state, and nobody else uses."""
    with ExitStack() as stack:
        pools = [stack.enter_context(ThreadPoolExecutor(1, "lane")) for _ in connections]
        yield tuple(map(Lane, connections, pools))


def in_turn(streams: Sequence[Iterator[_Item]]) -> Iterator[_Item]:
    """One item of each stream, until none has any."""
    left = list(streams)
    while left:
        for stream in list(left):
            item = next(stream, None)
            if item is None:
                left.remove(stream)
            else:
                yield item
