"""Measures online reclaim: the cost for uploads and commits, and the delay until the deletion.

    python benchmarks/reclaim.py [--database-url URL] [--releases-seconds S]
        [--objects memory|directory]

The cost is measured against the same code without the release, and with the earlier statement that
stages entries. The delay is the time from the instant at which an object becomes due, one lease
after its release, to its deletion.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from ebbtide.ids import new_id
from ebbtide.settings import Settings
from ebbtide.storage import RemoteStorage
from ebbtide.store.commits import publishing
from ebbtide.store.database.schema import staged as table
from ebbtide.store.embedded import Store
from ebbtide.store.reclaim.reclaimer import ReclaimThread
from ebbtide.store.repository import Repository
from ebbtide.store.staging import queries as staged
from ebbtide.store.staging.uploads import NewObject

UPLOADS = 40
COMMIT_ENTRIES = 1000
ROUNDS = 40
RELEASES_PER_SECOND = 100
LEASE = timedelta(seconds=5)


def main(arguments: list[str] | None = None) -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--database-url", default=None)
    parser.add_argument("--releases-seconds", type=float, default=30)
    parser.add_argument("--objects", choices=["memory", "directory"], default="memory")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as directory:
        settings = Settings(database_url=given.database_url, lease_ttl=LEASE)
        with Store.init(Path(directory), settings=settings) as store:
            print(f"database: {store.metadata.engine.dialect.name}")
            costs(store, is_in_memory=given.objects == "memory")
            delays(store, given.releases_seconds)


def costs(store: Store, *, is_in_memory: bool) -> None:
    """Measures rounds with and without the release, in pairs, so that the machine's speed is the
    same for both."""
    measured: dict[str, Callable[[Repository], float]] = {
        "new paths": lambda lake: uploads(lake, lambda number: f"{new_id()}/{number}"),
        "overwrites": lambda lake: uploads(lake, lambda number: f"{number % 10}"),
        "batches": batches,
        "commits": commits,
    }
    for name, measure in measured.items():
        url = f"memory:{new_id()}" if is_in_memory else None
        lake = store.create_repository(f"lake-{new_id()[:8]}", storage_url=url)
        measure(lake)
        kept: list[float] = []
        without: list[float] = []
        for _ in range(ROUNDS):
            # In random order: one round may leave work, such as a checkpoint, to the next.
            for is_kept in random.sample([True, False], 2):
                with nullcontext() if is_kept else references_not_kept():
                    (kept if is_kept else without).append(measure(lake))
        more = statistics.median(kept) / statistics.median(without) - 1
        print(
            f"{name}: {statistics.median(kept) * 1e3:.3f} ms with, "
            f"{statistics.median(without) * 1e3:.3f} ms without, {more:+.1%}"
        )


def uploads(lake: Repository, path: Callable[[int], str]) -> float:
    """Returns the seconds of one upload."""
    started = time.perf_counter()
    for number in range(UPLOADS):
        lake.objects.put("main", path(number), b"1")
    return (time.perf_counter() - started) / UPLOADS


def entries(lake: Repository) -> None:
    """Stages many entries, at new paths."""
    prefix = new_id()
    new = (NewObject(f"{prefix}/{number}", b"1") for number in range(COMMIT_ENTRIES))
    lake.objects.put_many("main", new)


def batches(lake: Repository) -> float:
    """Returns the seconds of staging many entries at once."""
    started = time.perf_counter()
    entries(lake)
    return time.perf_counter() - started


def commits(lake: Repository) -> float:
    """Returns the seconds of a commit of many entries."""
    entries(lake)
    started = time.perf_counter()
    lake.commits.commit("main", "")
    return time.perf_counter() - started


@cache
def plain_upsert(dialect_name: str) -> sa.Insert:
    """Returns the earlier statement that stages entries. It is made once, as today's is."""
    insert = postgresql.insert if dialect_name == "postgresql" else sqlite.insert
    statement = insert(table)
    names = ["address", "size_bytes", "checksum", "mtime", "content_type", "metadata"]
    return statement.on_conflict_do_update(
        index_elements=["repository_id", "token", "path"],
        set_={name: statement.excluded[name] for name in names},
    )


@contextmanager
def references_not_kept() -> Iterator[None]:
    """In the block, rows are staged and committed without the work for reclaim."""

    def write(
        tx: Any, repository_id: str, token: str, changes: Any, **_options: Any
    ) -> None:  # as `write_staged`
        statement = plain_upsert(tx.dialect_name)
        tx.execute(
            statement,
            [
                {
                    "repository_id": repository_id,
                    "token": token,
                    **staged._values(path, changes[path]),
                }
                for path in sorted(changes)
            ],
        )

    def take_up(tx: Any, repository_id: str, tokens: Any, **_options: Any) -> None:
        tx.execute(
            sa.delete(table).where(
                table.c.repository_id == repository_id, table.c.token.in_(tokens)
            )
        )

    with (
        patch("ebbtide.store.staging.uploads.write_staged", write),
        patch.object(publishing, "take_up_staged", take_up),
    ):
        yield


def delays(store: Store, seconds: float) -> None:
    """Measures the delay from due to deleted, of objects that are released at a steady rate."""
    lake = store.create_repository(f"lake-{new_id()[:8]}", storage_url=f"memory:{new_id()}")
    released: dict[str, float] = {}
    deleted: dict[str, float] = {}
    original = RemoteStorage.delete

    def delete(storage: RemoteStorage, addresses: Any) -> Any:
        outcomes = original(storage, addresses)
        now = time.monotonic()
        deleted.update((each.address, now) for each in outcomes if each.address in wanted)
        return outcomes

    count = int(RELEASES_PER_SECOND * seconds)
    lake.objects.put_many("main", _objects(count))
    addresses = {entry.path: entry.address for entry in lake.objects.walk("main")}
    wanted = set(addresses.values())
    done = threading.Event()
    thread = ReclaimThread(store, lambda _done: None)
    with patch.object(RemoteStorage, "delete", delete):
        thread.start()
        started = time.monotonic()
        for number, path in enumerate(sorted(addresses)):
            done.wait(max(0.0, started + number / RELEASES_PER_SECOND - time.monotonic()))
            lake.commits.reset_path("main", path)
            released[addresses[path]] = time.monotonic()
        pace = count / (time.monotonic() - started)
        while len(deleted) < count:
            done.wait(0.1)
        thread.stop()
    late = sorted(deleted[address] - at - LEASE.total_seconds() for address, at in released.items())
    print(
        f"{count} releases at {pace:.0f}/s: from release and lease to deletion "
        f"{statistics.median(late):.2f} s (median), {late[int(len(late) * 0.99)]:.2f} s (99 %)"
    )


def _objects(count: int) -> Iterator[NewObject]:
    return (NewObject(f"{number:08}", b"1") for number in range(count))


if __name__ == "__main__":
    main()
