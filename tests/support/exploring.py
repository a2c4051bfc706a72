"""Every order in which the steps of concurrent operations can follow one another, on the real code.

An operation is a thread, of which one runs at a time: it hands the baton over before each of its
transactions, and each call of the storage that others can notice. A schedule is the list of who got
the baton. Schedules are gone through depth first, each from the start. A state consists of the
database, the objects, the clock, and all that each thread has read. If a schedule reaches a state
that was met before, the rest of it is left out. Database and objects are in memory.

Not for: what is inside a transaction, which SQLite runs alone. Those of PostgreSQL real threads
meet.
"""

from __future__ import annotations

import hashlib
import math
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from random import Random
from typing import Any, Final

import pytest
import sqlalchemy as sa
from sqlalchemy.pool import StaticPool

from ebbtide import ids
from ebbtide.errors import EbbtideError
from ebbtide.settings import Settings
from ebbtide.store.access.signed_tokens import SigningKey, insert_signing_key
from ebbtide.store.content.layout import DATA_PREFIX
from ebbtide.store.content.trees import iterate_entries
from ebbtide.store.database.commit_rows import find_commits
from ebbtide.store.database.dialects import BEGIN_OPTION
from ebbtide.store.database.engine import Metadata
from ebbtide.store.database.migrate import upgrade_schema
from ebbtide.store.embedded import Store
from ebbtide.store.reclaimer import Reclaimer
from ebbtide.store.repositories.owner import Ownership
from ebbtide.store.repositories.repository_rows import insert_store
from ebbtide.store.repository import Repository
from tests.support.boundaries import SteppingMetadata
from tests.support.clock import ManualClock
from tests.support.faulty import FaultyStorage
from tests.support.memory import Bucket, Stored, Watcher, opened_in_memory
from tests.support.memory_world import TruthfulClock
from tests.support.world import START

LEASE: Final = timedelta(hours=1)
BUCKET: Final = "explored"
ROOT: Final = "lake/"
ROUNDS_MAX: Final = 10
TABLES: Final = (
    "branches",
    "commits",
    "copies",
    "dropped_tokens",
    "released",
    "staged",
)
"""What an operation's outcome can depend on, of what the operations change."""
NOTICED: Final = frozenset({"transaction", "snapshot", "delete", "stream", "time"})
"""Before what the baton is handed over. Other calls of the storage read what never changes, or
write to an address that nobody else knows."""


class Violation(AssertionError):
    """What must not happen did."""


class _Stop(BaseException):
    """Ends a thread whose schedule is of no interest any more."""


@dataclass(frozen=True, slots=True)
class Actor:
    """What an operation works with: a store, and its repository, as a process of its own has."""

    store: Store
    lake: Repository
    clock: ManualClock
    step: Callable[[str], None]

    def wait(self, time: timedelta) -> None:
        self.step("time")
        self.clock.advance(time)


Operation = Callable[[Actor], object]


class _Clock(TruthfulClock):
    """A clock whose readings are part of what a thread knows."""

    def __init__(self, note: Callable[[object], None]) -> None:
        super().__init__(START)
        self._note = note

    def database_now(self, tx: Any) -> datetime:  # see `Clock`
        now = super().database_now(tx)
        self._note(now)
        return now


class _Ids:
    """Random ids, of each thread its own: they do not depend on who came before."""

    def __init__(self) -> None:
        self.by_thread: dict[str, Random] = {}

    def token_hex(self, length: int) -> str:
        name = threading.current_thread().name
        return self.by_thread.setdefault(name, Random(name)).randbytes(length).hex()


class _Bucket(Bucket):
    step: Callable[[str], None] = staticmethod(lambda _method: None)

    def storage(self, url: str) -> Any:  # a storage, which the caller takes as it is
        return FaultyStorage(super().storage(url), before=lambda method, _: self.step(method))


class _Thread(threading.Thread):
    """A thread of a schedule. `known` is a digest of all that it has read, and in which steps."""

    def __init__(self, number: int, body: Callable[[_Thread], None]) -> None:
        super().__init__(name=f"operation {number}", daemon=True)
        self._body = body
        self.go = threading.Semaphore(0)
        self.known = hashlib.blake2b(digest_size=16)
        self.done = False
        self.stopping = False
        self.error: BaseException | None = None

    def run(self) -> None:
        self._body(self)


class Ground(Watcher):
    """The database and the objects, and how they come back to where each schedule begins."""

    def __init__(
        self,
        seeded: _Ids,
        buckets: dict[str, Bucket],
        prepare: Callable[[Repository], object],
    ) -> None:
        self._baton = threading.Semaphore(0)
        self.clock = _Clock(self._note)
        self.ids = seeded
        self.bucket = _Bucket(BUCKET, self.clock.host_now)
        buckets[BUCKET] = self.bucket
        self._connection = _connect(self._note)
        self._metadata = Metadata(_engine(self._connection), self.clock)
        self._settings = Settings(lease_ttl=LEASE, trash_time=timedelta(0), range_entries_target=4)
        self._trees: dict[str, frozenset[str]] = {}
        self._needed_at: dict[str, datetime] = {}
        self._digest: tuple[object, bytes] = (None, b"")
        self._shared = b""
        upgrade_schema(self._metadata.engine)
        with self._metadata.transaction() as tx:
            insert_store(tx, "s" * 32)
            insert_signing_key(tx, SigningKey("k" * 32, b"k" * 32))
        store = self._store(self._metadata)
        self.lake = store.create_repository("lake", storage_url=f"{self.bucket.url}/lake")
        prepare(self.lake)
        self._database = self._connection.serialize()
        self._objects = dict(self.bucket.objects)
        self._settled: set[bytes] = set()
        self.bucket.watcher = self
        self.bucket.step = self.step

    def _store(self, metadata: Metadata) -> Store:
        return Store(directory=None, settings=self._settings, metadata=metadata, store_id="s" * 32)

    def actor(self) -> Actor:
        store = self._store(SteppingMetadata(self._metadata, self.step))
        return Actor(store, store.repository("lake"), self.clock, self.step)

    def close(self) -> None:
        self._metadata.close()
        self._connection.close()

    # Threads

    def step(self, method: str) -> None:
        """Hand the baton over, unless a transaction is open: those are alone."""
        thread = threading.current_thread()
        if not isinstance(thread, _Thread) or self._connection.in_transaction:
            return
        if method not in NOTICED:
            return
        thread.known.update(method.encode())
        self._baton.release()
        thread.go.acquire()
        if thread.stopping:
            raise _Stop

    def _note(self, value: object) -> None:
        thread = threading.current_thread()
        if isinstance(thread, _Thread):
            thread.known.update(repr(value).encode())

    def start(self, operations: Sequence[Operation]) -> list[_Thread]:
        self._connection.deserialize(self._database)
        self.bucket.objects.clear()
        self.bucket.objects.update(self._objects)
        self.clock.now = START
        self.ids.by_thread.clear()
        self._digest = (None, b"")
        self._needed_at = {}
        self.look()
        threads = [
            _Thread(number, self._body(operation)) for number, operation in enumerate(operations)
        ]
        for thread in threads:
            thread.start()
            # To where it begins to do something.
            self._pass_on(thread)
        return threads

    def _body(self, operation: Operation) -> Callable[[_Thread], None]:
        actor = self.actor()

        def body(thread: _Thread) -> None:
            thread.go.acquire()
            try:
                if not thread.stopping:
                    operation(actor)
            except EbbtideError as error:
                thread.known.update(error.kind.encode())
            except _Stop:
                pass
            except BaseException as error:  # noqa: BLE001  raised again by whoever has the baton
                thread.error = error
            thread.done = True
            self._baton.release()

        return body

    def give(self, thread: _Thread) -> None:
        """Let a thread make its next step. Raises what it raised, and Violation."""
        self._pass_on(thread)
        if thread.error is not None:
            raise thread.error
        self.look()

    def _pass_on(self, thread: _Thread) -> None:
        thread.go.release()
        self._baton.acquire()

    def stop(self, threads: Sequence[_Thread]) -> None:
        for thread in threads:
            thread.stopping = True
            while not thread.done:
                self._pass_on(thread)
            thread.join()

    # What is needed, and what is there

    def look(self) -> None:
        """Note what is needed at this moment. Raises Violation when any of it is not there."""
        for address in self.needed():
            self._needed_at[address] = self.clock.now
            if ROOT + address not in self.bucket.objects:
                raise Violation(f"{address} is needed, and is not there")

    def needed(self) -> set[str]:
        cursor = self._cursor()
        tokens = {
            token
            for staging, sealed, expires_at in cursor.execute(
                "SELECT staging_token, sealed_tokens, expires_at FROM branches"
            ).fetchall()
            # The trash time is none: what has expired is gone.
            if expires_at is None
            for token in (staging, *sealed.split())
        }
        found = {
            address
            for token, address in cursor.execute("SELECT token, address FROM staged").fetchall()
            if address is not None and token in tokens
        }
        for commit_id, checksum in cursor.execute(
            "SELECT commit_id, tree_checksum FROM commits"
        ).fetchall():
            found |= self._committed(commit_id, checksum)
        return found

    def _committed(self, commit_id: str, checksum: str) -> frozenset[str]:
        """The addresses of a commit. Of two schedules' commits of one id the trees may differ."""
        key = commit_id + checksum
        if key not in self._trees:
            context = self.lake.context
            with self._metadata.snapshot() as tx:
                record = find_commits(tx, context.repository_id, [commit_id])[commit_id]
            entries = iterate_entries(context.storage, context.tree_of(record))
            self._trees[key] = frozenset(entry.address for entry in entries)
        return self._trees[key]

    def deleted(self, key: str, stored: Stored) -> None:
        del stored
        address = key.removeprefix(ROOT)
        if address in self.needed():
            raise Violation(f"{address} was deleted, and is needed")
        needed_at = self._needed_at.get(address)
        if needed_at is not None and self.clock.now - needed_at < LEASE:
            raise Violation(f"{address} was deleted, and was needed at {needed_at}")

    def settle(self) -> None:
        """Let time pass, and reclaim. Raises Violation when anything is left that nobody needs."""
        digest = self.digest()
        if digest in self._settled:
            return
        self._settled.add(digest)
        reclaimer = Reclaimer(self._store(self._metadata))
        for _ in range(ROUNDS_MAX):
            self.clock.advance(self._settings.write_ttl + LEASE)
            reclaimer.once()
            self.look()
            backlog, _now = reclaimer.backlog()
            if backlog.address_count == backlog.token_count == 0:
                break
        start = len(ROOT)
        there = {key[start:] for key in self.bucket.objects}
        left = {each for each in there if each.startswith(DATA_PREFIX)} - self.needed()
        if left:
            raise Violation(f"nobody needs {sorted(left)}, and nothing deletes it")

    def digest(self) -> bytes:
        """Of all that is there: rows, objects, the time, and when what was needed before was."""
        mark = (self._connection.total_changes, len(self.bucket.objects), self.clock.now)
        if self._digest[0] == mark:
            return self._digest[1]
        found = hashlib.blake2b(digest_size=16)
        cursor = self._cursor()
        for table in TABLES:
            rows = cursor.execute(f"SELECT * FROM {table}").fetchall()
            found.update(repr(sorted(rows, key=repr)).encode())
        found.update(repr((self.clock.now, sorted(self._needed_at.items()))).encode())
        self._shared = found.digest()
        found.update(repr(cursor.execute("SELECT * FROM pending").fetchall()).encode())
        found.update(repr(sorted(self.bucket.objects)).encode())
        self._digest = (mark, found.digest())
        return self._digest[1]

    def shared_digest(self) -> bytes:
        """As `digest`, without what only whoever writes it looks at."""
        self.digest()
        return self._shared

    def was_private(self, before: bytes) -> bool:
        """Whether the last step, before which the shared digest was `before`, changed nothing but
        registrations and new files: the steps of others neither see nor prevent that. A step that
        changed nothing at all has read something, which those of others may."""
        mark = self._digest[0]
        return self.shared_digest() == before and self._digest[0] != mark

    def _cursor(self) -> sqlite3.Cursor:
        cursor = self._connection.cursor()
        cursor.row_factory = None
        return cursor


def _connect(note: Callable[[object], None]) -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)

    def row(_cursor: sqlite3.Cursor, values: tuple[Any, ...]) -> tuple[Any, ...]:
        note(values)
        return values

    connection.row_factory = row
    connection.execute("PRAGMA foreign_keys = ON")
    return connection


def _engine(connection: sqlite3.Connection) -> sa.Engine:
    engine = sa.create_engine(
        "sqlite+pysqlite://", creator=lambda: connection, poolclass=StaticPool
    )

    @sa.event.listens_for(engine, "begin")
    def begin(connection: sa.Connection) -> None:
        statement = connection.get_execution_options().get(BEGIN_OPTION, "BEGIN")
        connection.exec_driver_sql(statement)

    return engine


@contextmanager
def ground(prepare: Callable[[Repository], object]) -> Iterator[Ground]:
    """A ground whose schedules begin where `prepare` leaves the repository."""
    seeded = _Ids()
    buckets: dict[str, Bucket] = {}
    with pytest.MonkeyPatch.context() as patch, opened_in_memory(buckets):
        patch.setattr(ids, "secrets", seeded)
        # Whose storage it is has tests of its own, and would double the steps.
        for name in ("touch", "require", "announce"):
            patch.setattr(Ownership, name, lambda _self: None)
        made = Ground(seeded, buckets, prepare)
        try:
            yield made
        finally:
            made.close()


@dataclass(slots=True)
class Search:
    """One search through the schedules of some operations. `preemptions_max` None: all of them;
    else those in which a thread that could go on is left so often at most. Of threads with the same
    operation the first begins first: the other schedules are these under other names."""

    ground: Ground
    operations: Mapping[str, Operation]
    preemptions_max: int | None = None
    _met: set[bytes] = field(default_factory=set)

    def run(self, *, until: float = math.inf) -> int:
        todo: list[tuple[int, ...]] = [()]
        while todo and time.monotonic() < until:
            todo += self._follow(todo.pop())
        return len(self._met)

    def random(self, random: Random) -> None:
        self._follow((), random)

    def _follow(
        self, prefix: tuple[int, ...], random: Random | None = None
    ) -> list[tuple[int, ...]]:
        """Follow a schedule to its end or a known state. What branches off behind `prefix`."""
        threads = self.ground.start(list(self.operations.values()))
        taken: list[int] = []
        found: list[tuple[int, ...]] = []
        preemptions = 0
        try:
            while enabled := self._enabled(threads, taken):
                last = taken[-1] if taken and taken[-1] in enabled else None
                others: list[tuple[int, ...]] = []
                if len(taken) < len(prefix):
                    choice = prefix[len(taken)]
                elif random is not None:
                    choice = random.choice(enabled)
                else:
                    if not self._is_new(threads, last, preemptions):
                        return found
                    choice = enabled[0] if last is None else last
                    most = self.preemptions_max
                    if last is None or most is None or preemptions < most:
                        others = [(*taken, each) for each in enabled if each != choice]
                # To leave a thread that could go on is a preemption.
                preemptions += last is not None and choice != last
                taken.append(choice)
                before = self.ground.shared_digest() if others else b""
                self.ground.give(threads[choice])
                # A step that others cannot notice is as good before theirs as after them.
                if others and not self.ground.was_private(before):
                    found += others
            self.ground.settle()
        except BaseException as error:
            names = list(self.operations)
            order = " ".join(f"{number}" for number in taken)
            error.add_note(f"operations {names}, schedule {order}")
            raise
        finally:
            self.ground.stop(threads)
        return found

    def _enabled(self, threads: Sequence[_Thread], taken: Sequence[int]) -> list[int]:
        found = [number for number, thread in enumerate(threads) if not thread.done]
        operations = list(self.operations.values())
        begun = set(taken)
        waiting: list[Operation] = []
        for number in list(found):
            if number in begun:
                continue
            if operations[number] in waiting:
                found.remove(number)
            waiting.append(operations[number])
        return found

    def _is_new(self, threads: Sequence[_Thread], last: int | None, preemptions: int) -> bool:
        found = hashlib.blake2b(self.ground.digest(), digest_size=16)
        for thread in threads:
            found.update(thread.known.digest())
            found.update(b"." if thread.done else b" ")
        if self.preemptions_max is not None:
            found.update(f"{last} {preemptions}".encode())
        digest = found.digest()
        if digest in self._met:
            return False
        self._met.add(digest)
        return True
