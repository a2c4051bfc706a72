"""What a history happens in: a clock, a bucket, a database and its copy, and processes over them.

One world serves all histories of a process, one after the other: it is brought back to a state that
was remembered. Nothing in it depends on the time of the day, on the order of hashes, or on threads
that the scheduler does not know.
"""

from __future__ import annotations

import secrets
import sqlite3
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from itertools import count
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, Final, Self

import pytest

from ebbtide.formats import embedded
from ebbtide.formats.embedded import EmbeddedRepository
from ebbtide.formats.gone import GoneRepository
from ebbtide.gc import deletes
from ebbtide.gc import prefetch as ahead
from ebbtide.gc import uncommitted as protected
from ebbtide.gc.collector import Collector
from ebbtide.gc.options import RunOptions
from ebbtide.gc.removal import Remover
from ebbtide.settings import Settings
from ebbtide.store.access.signed_tokens import SigningKey, insert_signing_key
from ebbtide.store.collections import contents
from ebbtide.store.database import concurrency
from ebbtide.store.database.migrate import upgrade_schema
from ebbtide.store.embedded import Store
from ebbtide.store.repositories import owner
from ebbtide.store.repositories.repository_rows import insert_store, promise, times_of
from ebbtide.store.repository import Repository
from ebbtide.store.staging import uploads
from tests.simulation.asking import Asking, in_place, make_holders
from tests.simulation.bucket import SimulatedBucket
from tests.simulation.database import Database, SimulatedMetadata
from tests.simulation.scheduler import Scheduler, Task
from tests.support.engines import INLINE
from tests.support.memory import Stored, opened_in_memory
from tests.support.memory_world import TruthfulClock
from tests.support.purging import SECRET_KEY

START: Final = datetime(2030, 1, 1, tzinfo=UTC)
BUCKET: Final = "simulated"
URL: Final = f"s3://{BUCKET}"
STORE_ID: Final = "5" * 32
LAKE: Final = "lake"

HOUR: Final = timedelta(hours=1)
LEASE: Final = HOUR
TRASH: Final = 2 * HOUR
QUARANTINE: Final = 3 * HOUR
RUN_LEASE: Final = timedelta(seconds=30)
SETTLED: Final = timedelta(days=2)
"""Longer than anything lasts."""

_CHOSEN: Final[Mapping[str, Any]] = {
    "storage_url": URL,
    "secret_key": SECRET_KEY,
    "lease_ttl": LEASE,
    "trash_time": TRASH,
    "write_ttl": 3 * HOUR,
    "upload_ttl": HOUR,
    "prepare_ttl": 2 * HOUR,
    "reclaim_claim_ttl": timedelta(minutes=10),
    "run_lease_ttl": RUN_LEASE,
    "run_heartbeat": timedelta(seconds=10),
    "share_max": 1.0,
    "range_entries_target": 2,
}
SETTINGS: Final = Settings(**_CHOSEN)
SMALL_SLICES: Final[Mapping[str, Any]] = {"slice_objects_max": 3, "slice_age_max": HOUR}
"""Slices of data are closed after a few objects, and stay open for long otherwise."""
GRACES: Final = (LEASE, LEASE, LEASE * 3)
"""A shorter one than a lease is for repositories that nobody uses."""


def drawn_settings(random: Random) -> Settings:
    """Those of a beginning. Some have a trash that is shorter than a lease."""
    drawn = {
        "trash_time": random.choice((TRASH, TRASH, HOUR / 6)),
        "upload_ttl": random.choice((HOUR, HOUR * 2)),
        "write_ttl": random.choice((HOUR * 3, HOUR, HOUR * 24)),
        "clean_every": random.choice((timedelta(days=7), HOUR)),
        "grace": random.choice(GRACES),
        **random.choice(({}, {}, SMALL_SLICES)),
    }
    return Settings(**{**_CHOSEN, **drawn})


def _options_of(settings: Settings) -> RunOptions:
    return replace(RunOptions.of(settings, patience=timedelta(0), sizes="all"), undo_hold=TRASH)


class Process:
    """One process over a database: what it remembers of one call it has at the next."""

    def __init__(self, world: World, database: Database) -> None:
        self.world = world
        metadata = SimulatedMetadata(database, world.clock)
        settings = world.settings
        self.store = Store(directory=None, settings=settings, metadata=metadata, store_id=STORE_ID)

    @cached_property
    def asking(self) -> Asking:
        """Its interface for clients of Arvados."""
        return Asking(self.store, LAKE)

    def lake(self) -> Repository:
        return self.store.repository(LAKE)

    def collector(self, **options: Any) -> Collector:
        form = EmbeddedRepository(self.lake().context, store_id=STORE_ID)
        return Collector(form, engine=INLINE, options=replace(self.world.options, **options))

    def remover(self) -> Remover | None:
        """The collector of the one that is gone, if there is one."""
        gone = self.store.catalog.gone()
        if not gone:
            return None
        form = GoneRepository(self.store.context_of(gone[0].info), store_id=STORE_ID)
        return Remover(form, engine=INLINE, options=self.world.options)


@dataclass(frozen=True, slots=True)
class State:
    """What a world was at an instant."""

    now: datetime
    objects: dict[str, Stored]
    database: sqlite3.Connection


class BucketWorld:
    """What all worlds have: a clock, a bucket, and random bytes of their own."""

    def __init__(self) -> None:
        self.clock = TruthfulClock(START)
        self.scheduler = Scheduler(self.clock, lambda _task: None)
        self.bucket = SimulatedBucket(BUCKET, self.clock.host_now, scheduler=self.scheduler)
        self.outside = Random(0)

    def bring_back(
        self, now: datetime, objects: dict[str, Stored], after_slice: Callable[[Task], None]
    ) -> Scheduler:
        """What was at an instant, for a history."""
        self.clock.now = now
        self.bucket.objects = dict(objects)
        self.bucket.move_back()
        self.outside = Random(0)
        self.scheduler = self.bucket.scheduler = Scheduler(self.clock, after_slice)
        return self.scheduler

    def token(self, length: int) -> bytes:
        """Random bytes, of each task its own: they do not depend on who came before."""
        task = self.scheduler.current
        return (self.outside if task is None else task.ids).randbytes(length)

    def wait(self, seconds: float) -> None:
        """What a program does that waits for another one."""
        self.clock.now += timedelta(seconds=seconds)


class World(BucketWorld):
    """The world of the histories of one process. Made by `open_world`."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self.database = Database(directory / "store.db", self.scheduler)
        self.copied = Database(directory / "copy.db", self.scheduler)
        self.settings, self.options = SETTINGS, _options_of(SETTINGS)
        self.servers: list[Process] = []
        self.has_copy = False
        self._copies: list[sqlite3.Connection] = []
        upgrade_schema(self.database.engine)
        with SimulatedMetadata(self.database, self.clock).transaction() as tx:
            insert_store(tx, STORE_ID)
            promise(tx, times_of(SETTINGS))
            insert_signing_key(tx, SigningKey("e" * 32, b"k" * 32))
        make_holders(Process(self, self.database).store)
        self.empty = self.remember()

    @property
    def trash(self) -> timedelta:
        """How long what was deleted can be restored."""
        return self.settings.trash_time

    def remember(self) -> State:
        copied = self.database.copy()
        self._copies.append(copied)
        return State(self.clock.now, dict(self.bucket.objects), copied)

    def begin(self, state: State, after_slice: Callable[[Task], None]) -> Scheduler:
        """Bring back a state, for a history with servers that have just been started."""
        scheduler = self.bring_back(state.now, state.objects, after_slice)
        self.bucket.numbers = count(1)
        self.bucket.late, self.bucket.after_the_end = set(), {}
        # Both follow from the state alone, so that a seed gives the same history everywhere.
        self.bucket.dates_to_seconds = len(state.objects) % 2 == 1
        self.settings = drawn_settings(Random(len(state.objects)))
        self.options, self.bucket.grace = _options_of(self.settings), self.settings.grace
        self.database.bring_back(state.database)
        for name in ("trash_time", "upload_ttl"):
            self.database.plain.execute(
                "UPDATE promised_times SET microseconds = ? WHERE name = ?",
                (getattr(self.settings, name) // timedelta.resolution, name),
            )
        self.has_copy = False
        self.database.scheduler = self.copied.scheduler = scheduler
        self.servers = [Process(self, self.database) for _ in range(2)]
        return scheduler

    def copy_database(self) -> None:
        """A backup of this instant. It replaces the last one, unless a run over that may commit."""
        self.scheduler.wait_for("the writer of the last copy", lambda: self.copied.writer is None)
        with_now = self.database.copy()
        self.copied.bring_back(with_now)
        with_now.close()

    def close(self) -> None:
        self.database.close()
        self.copied.close()
        for copied in self._copies:
            copied.close()


class InPlace:
    """Does what others do in threads at once."""

    def __init__(self, *_arguments: Any, **_options: Any) -> None:
        """Takes what a pool takes."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        """Nothing is left to do."""

    def submit(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(function(*arguments, **options))
        except Exception as error:  # noqa: BLE001  it goes where the answer would
            future.set_exception(error)
        return future

    def map(self, function: Callable[..., Any], *items: Iterable[Any]) -> Iterator[Any]:
        return iter([function(*each) for each in zip(*items, strict=True)])

    def shutdown(self, **_options: Any) -> None:
        """Nothing to end."""


class _Lock:
    """A lock between threads of a process that others go on beside."""

    def __init__(self, scheduler: Callable[[], Scheduler]) -> None:
        self._scheduler = scheduler
        self._is_taken = False

    def acquire(self) -> None:
        if self._is_taken:
            self._scheduler().wait_for("a lock", lambda: not self._is_taken)
        self._is_taken = True

    def release(self) -> None:
        self._is_taken = False

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_error: object) -> None:
        self.release()


class NoHeart:
    """A heartbeat that is never due: hardly any time passes, and sleepers send none."""

    def __init__(self, **_options: Any) -> None:
        """Takes what a thread takes."""

    def start(self) -> None:
        """Nothing begins."""

    def join(self) -> None:
        """Nothing ends."""


NoThreads: Final = SimpleNamespace(Event=threading.Event, Thread=NoHeart)
"""What a module has in place of `threading` that knows no threads but heartbeats."""


def one_thread(patch: pytest.MonkeyPatch, token: Callable[[int], bytes], directory: Path) -> None:
    """Threads of runs work in place, random bytes and local files are a history's own."""
    patch.setattr(secrets, "token_bytes", lambda length=32: token(length))
    patch.setattr(secrets, "token_hex", lambda length=32: token(length).hex())
    for module in (ahead, contents, deletes, protected, uploads):
        patch.setattr(module, "ThreadPoolExecutor", InPlace)
    patch.setattr(tempfile, "tempdir", str(directory))


@contextmanager
def open_world(directory: Path) -> Iterator[World]:
    """A world with its databases in a directory, best one in memory."""
    with pytest.MonkeyPatch.context() as patch:
        made: list[World] = []
        one_thread(
            patch, lambda length: made[0].token(length) if made else bytes(length), directory
        )
        in_place(patch)
        patch.setattr(embedded, "threading", NoThreads)
        for module in (concurrency, owner):
            patch.setattr(module, "Lock", lambda: _Lock(lambda: made[0].scheduler))
        world = World(directory)
        made.append(world)
        with opened_in_memory({BUCKET: world.bucket}):
            try:
                yield world
            finally:
                world.close()
