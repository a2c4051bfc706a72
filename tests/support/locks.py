"""Whether a thread waits for a lock of the metadata database, for tests of locks.

A test that only sees that an operation has not ended cannot tell a lock from a slow machine.
"""

from __future__ import annotations

import time
from concurrent.futures import Future
from typing import Any, Final

import sqlalchemy as sa

from ebbtide.store.database.engine import Metadata

SECONDS_MAX: Final = 60

_WAITING: Final = sa.text(
    "SELECT count(*) FROM pg_stat_activity"
    " WHERE datname = current_database() AND wait_event_type = 'Lock'"
)


def waits_for_a_lock(metadata: Metadata, work: Future[Any], *, count: int = 1) -> bool:
    """Returns True once `count` transactions wait for others, False if `work` ends before that.

    On SQLite a transaction that writes waits for its turn; on PostgreSQL the server says who waits.
    """
    deadline = time.monotonic() + SECONDS_MAX
    while not work.done():
        if _waiting(metadata) >= count:
            return True
        assert time.monotonic() < deadline, "neither ended nor waiting for a lock"
        time.sleep(0.001)
    return False


def _waiting(metadata: Metadata) -> int:
    if metadata.engine.dialect.name == "sqlite":
        return len(metadata._writing._waiting)
    with metadata.engine.connect() as connection:
        return int(connection.execute(_WAITING).scalar_one())
