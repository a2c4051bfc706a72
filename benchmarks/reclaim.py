"""Measures online reclaim: the cost for uploads and commits, and the delay until the deletion.

    python -m benchmarks.reclaim [--database-url URL] [--releases-seconds S]
        [--objects memory|directory]

The cost is measured against the same code without the release, and with the earlier statement that
stages entries. The delay is the time from the instant at which an object becomes due, one lease
after its release, to its deletion. Each released object must be deleted, and no other one.
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

from benchmarks import results
from ebbtide.arrow import texts
from ebbtide.ids import new_id
from ebbtide.settings import Settings
from ebbtide.storage import RemoteStorage
from ebbtide.store.commits import publication
from ebbtide.store.content.layout import DATA_PREFIX
from ebbtide.store.database.dialects import InsertOn, insert_on
from ebbtide.store.database.schema import staged as table
from ebbtide.store.embedded import Store
from ebbtide.store.reclaimer import ReclaimThread
from ebbtide.store.repository import Repository
from ebbtide.store.staging import staged_rows as staged
from ebbtide.store.staging.uploads import NewObject

RELEASES_PER_SECOND = 100
LATE_SECONDS_MAX = 60.0
"""How long after the last release and its lease the last object may still be there."""


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    """Returns the options."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--database-url", default=None)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--uploads", type=int, default=40, help="of one round")
    parser.add_argument("--entries", type=int, default=1000, help="of a batch, and of a commit")
    parser.add_argument("--releases-seconds", type=float, default=30)
    parser.add_argument("--lease-seconds", type=float, default=5)
    parser.add_argument("--objects", choices=["memory", "directory"], default="memory")
    results.option(parser)
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    """Measures and prints."""
    given = parsed(arguments)
    lease = timedelta(seconds=given.lease_seconds)
    with tempfile.TemporaryDirectory() as directory:
        settings = Settings(database_url=given.database_url, lease_ttl=lease)
        with Store.init(Path(directory), settings=settings) as store:
            name = store.metadata.engine.dialect.name
            print(f"database: {name}")
            found = {
                "database": name,
                "costs": costs(store, given),
                "delays": delays(store, given.releases_seconds, given.lease_seconds),
            }
    results.save(given, found)


def costs(store: Store, given: argparse.Namespace) -> dict[str, Any]:
    """Measures rounds with and without the release, in pairs, so that the machine's speed is the
    same for both. Returns the median seconds."""
    measured: dict[str, Callable[[Repository], float]] = {
        "new paths": lambda lake: uploads(
            lake, given.uploads, lambda number: f"{new_id()}/{number}"
        ),
        "overwrites": lambda lake: uploads(lake, given.uploads, lambda number: f"{number % 10}"),
        "batches": lambda lake: batches(lake, given.entries),
        "commits": lambda lake: commits(lake, given.entries),
    }
    found = {}
    for name, measure in measured.items():
        url = f"memory:{new_id()}" if given.objects == "memory" else None
        lake = store.create_repository(f"lake-{new_id()[:8]}", storage_url=url)
        measure(lake)
        kept: list[float] = []
        without: list[float] = []
        for _ in range(given.rounds):
            # In random order: one round may leave work, such as a checkpoint, to the next.
            for is_kept in random.sample([True, False], 2):
                with nullcontext() if is_kept else references_not_kept():
                    (kept if is_kept else without).append(measure(lake))
        ours, limit = statistics.median(kept), statistics.median(without)
        print(f"{name}: {ours * 1e3:.3f} ms with, {limit * 1e3:.3f} ms without, {ours / limit:.3f}")
        found[name] = {"with_ms": ours * 1e3, "without_ms": limit * 1e3, "ratio": ours / limit}
    return found


def uploads(lake: Repository, count: int, path: Callable[[int], str]) -> float:
    """Returns the seconds of one upload."""
    started = time.perf_counter()
    for number in range(count):
        lake.objects.put("main", path(number), b"1")
    return (time.perf_counter() - started) / count


def entries(lake: Repository, count: int) -> None:
    """Stages many entries, at new paths."""
    prefix = new_id()
    new = (NewObject(f"{prefix}/{number}", b"1") for number in range(count))
    lake.objects.put_many("main", new)


def batches(lake: Repository, count: int) -> float:
    """Returns the seconds of staging many entries at once."""
    started = time.perf_counter()
    entries(lake, count)
    return time.perf_counter() - started


def commits(lake: Repository, count: int) -> float:
    """Returns the seconds of a commit of many entries."""
    entries(lake, count)
    started = time.perf_counter()
    lake.commits.commit("main", "")
    return time.perf_counter() - started


@cache
def plain_upsert(insert: InsertOn) -> sa.Insert:
    """Returns the earlier statement that stages entries. It is made once, as today's is."""
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
        statement = plain_upsert(insert_on(tx.connection))
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
        patch.object(publication, "take_up_staged", take_up),
    ):
        yield


def delays(store: Store, seconds: float, lease_seconds: float) -> dict[str, Any]:
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

    count = max(1, int(RELEASES_PER_SECOND * seconds))
    new = (NewObject(f"{number:08}", b"1") for number in range(count + 1))
    lake.objects.put_many("main", new)
    addresses = {entry.path: entry.address for entry in lake.objects.walk("main")}
    _, kept = addresses.popitem()
    wanted = set(addresses.values())
    done = threading.Event()
    thread = ReclaimThread(store, lambda _done: None)
    with patch.object(RemoteStorage, "delete", delete):
        thread.start()
        try:
            started = time.monotonic()
            for number, path in enumerate(sorted(addresses)):
                done.wait(max(0.0, started + number / RELEASES_PER_SECOND - time.monotonic()))
                lake.commits.reset_path("main", path)
                released[addresses[path]] = time.monotonic()
            pace = count / (time.monotonic() - started)
            ends = time.monotonic() + lease_seconds + LATE_SECONDS_MAX
            while len(deleted) < count and time.monotonic() < ends:
                done.wait(0.1)
        finally:
            thread.stop()
    check(lake, {kept})
    late = sorted(deleted[address] - at - lease_seconds for address, at in released.items())
    median, most = statistics.median(late), late[int(len(late) * 0.99)]
    print(
        f"{count} releases at {pace:.0f}/s: from release and lease to deletion "
        f"{median:.2f} s (median), {most:.2f} s (99 %)"
    )
    return {"count": count, "median_seconds": median, "seconds_of_99_percent": most}


def check(lake: Repository, kept: set[str]) -> None:
    """Ends the program unless the objects that are there are those that are still needed."""
    storage = lake.context.storage
    there = {each for batch in storage.list(DATA_PREFIX) for each in texts(batch.column("address"))}
    if there != kept:
        raise SystemExit(f"{len(there - kept)} not reclaimed, {len(kept - there)} lost")


if __name__ == "__main__":
    main()
