"""Turns come in order, and none is lost; readings of one state beside each other."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from random import Random

import pytest
import sqlalchemy as sa

from ebbtide.errors import Failed
from ebbtide.store.database import engine
from ebbtide.store.database.concurrency import READERS, WriteQueue
from ebbtide.store.database.dialects import open_engine, unmapped
from ebbtide.store.database.engine import Metadata
from ebbtide.store.database.schema import staged
from ebbtide.store.embedded import Store
from ebbtide.store.repository import Repository
from tests.conftest import START
from tests.support.clock import ManualClock
from tests.support.databases import SqliteDatabases
from tests.support.randomized import randomized


def waiting(queue: WriteQueue, count: int) -> None:
    for _ in range(1000):
        if len(queue._waiting) == count:
            return
        time.sleep(0.01)
    raise AssertionError(f"{len(queue._waiting)} wait, not {count}")


def test_first_come_first_served() -> None:
    """Whoever comes back at once waits behind those who wait."""
    queue, order = WriteQueue(), list[int]()

    def take(number: int) -> None:
        with queue.turn(10):
            order.append(number)

    with ThreadPoolExecutor(8) as pool:
        with queue.turn(10):
            for number in range(8):
                pool.submit(take, number)
                waiting(queue, number + 1)
        take(8)
    assert order == list(range(9))


def test_a_turn_that_does_not_come_in_time() -> None:
    queue = WriteQueue()
    with queue.turn(10), pytest.raises(TimeoutError), queue.turn(0.01):
        raise AssertionError("two at a time")
    # An exception passes the turn on.
    with pytest.raises(ZeroDivisionError), queue.turn(1):
        raise ZeroDivisionError
    with queue.turn(0.01):
        pass


class Broken:
    """A lock whose `acquire` is interrupted the second time: before it was released, or after."""

    is_late = False

    def __init__(self) -> None:
        self.inner, self.calls = threading.Lock(), 0

    def acquire(self, *, timeout: float = -1) -> bool:
        self.calls += 1
        if self.calls == 1:
            return self.inner.acquire()
        if self.is_late:
            self.inner.acquire(timeout=timeout)
        raise KeyboardInterrupt

    def release(self) -> None:
        self.inner.release()


class BrokenLate(Broken):
    is_late = True


@pytest.mark.parametrize("lock", [Broken, BrokenLate])
def test_an_interrupt_while_waiting_keeps_nobody_waiting(
    lock: type[Broken], monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = WriteQueue()

    def wait() -> None:
        with pytest.raises(KeyboardInterrupt), queue.turn(10):
            raise AssertionError("the turn came")

    with ThreadPoolExecutor(1) as pool:
        with queue.turn(10):
            monkeypatch.setattr("ebbtide.store.database.concurrency.Lock", lock)
            waited = pool.submit(wait)
            if lock.is_late:
                waiting(queue, 1)
            else:
                waited.result(10)
        waited.result(10)
    monkeypatch.undo()
    with queue.turn(0.01):
        pass


@randomized("turns of threads")
def test_many_threads_are_alone_in_their_turns(seed: int) -> None:
    """Also where some give up, and where the block fails."""
    queue, inside, entered = WriteQueue(), list[int](), [0] * 6

    def work(number: int) -> None:
        random = Random(f"{seed} {number}")
        for _ in range(300):
            try:
                with queue.turn(random.choice((0, 0.0005, 10))):
                    inside.append(number)
                    assert inside == [number]
                    if random.random() < 0.05:
                        time.sleep(0.001)
                    inside.remove(number)
                    entered[number] += 1
                    if random.random() < 0.1:
                        raise ValueError
            except (TimeoutError, ValueError):
                continue

    with ThreadPoolExecutor(6) as pool:
        for future in [pool.submit(work, number) for number in range(6)]:
            future.result()
    assert min(entered) > 50
    with queue.turn(0.01):
        pass


@pytest.mark.twins
def test_transactions_take_turns(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """On SQLite; a reading transaction waits for nobody, and PostgreSQL does without."""
    monkeypatch.setattr(engine, "LOCK_TIMEOUT_SECONDS", 0.05)
    metadata: Metadata = store.metadata
    outcomes = list[object]()

    def attempt(begin: Callable[[], object]) -> None:
        try:
            outcomes.append(begin())
        except Failed as error:
            outcomes.append(error)

    def write() -> str:
        with metadata.transaction():
            return "wrote"

    def read() -> str:
        with metadata.snapshot():
            return "read"

    with metadata.transaction():
        for begin in (write, read):
            thread = threading.Thread(target=attempt, args=(begin,))
            thread.start()
            thread.join(20)
    refused, seen = outcomes
    assert seen == "read"
    if metadata.engine.dialect.name == "postgresql":
        assert refused == "wrote"
    else:
        assert isinstance(refused, Failed)
        assert refused.kind == "database_error"
        assert "other threads were writing" in refused.message
    assert write() == "wrote"


def test_the_file_is_locked_before_the_first_read(tmp_path: Path) -> None:
    """What the transaction reads then is what it decides on."""
    path = SqliteDatabases(tmp_path).template
    with (
        closing(Metadata(open_engine(f"sqlite:///{path}"), ManualClock(START))) as metadata,
        closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as other,
    ):
        with metadata.transaction(), pytest.raises(sqlite3.OperationalError, match="locked"):
            other.execute("BEGIN IMMEDIATE")
        with metadata.snapshot():
            other.execute("BEGIN IMMEDIATE")
            other.execute("ROLLBACK")


@pytest.fixture
def files(tmp_path: Path) -> Iterator[Store]:
    with Store.init(tmp_path / "readers") as store:
        yield store


def _paths(connection: sa.Connection, *, behind: str) -> Iterator[str]:
    query = sa.select(staged.c.path).where(staged.c.path > behind).order_by(staged.c.path)
    yield from connection.execute(query).scalars()


def _lake(store: Store, count: int) -> Repository:
    lake = store.create_repository("lake")
    for number in range(count):
        lake.objects.put("main", f"{number}", b"1")
    return lake


def test_all_see_one_state_from_the_beginning(files: Store) -> None:
    lake = _lake(files, 3)
    with files.metadata.snapshot(scans=True) as tx:
        assert tx.reader_count == READERS
        lake.objects.put("main", "3", b"1")
        found = tx.read([partial(_paths, behind=behind) for behind in ("", "0", "1")])
        assert sorted(found) == ["0", "1", "1", "2", "2", "2"]
        assert len(tx.execute(sa.select(staged.c.path)).all()) == 3


def test_a_reading_is_ahead_by_one_in_a_thread_of_its_own(files: Store) -> None:
    threads: list[int] = []

    def numbers(connection: sa.Connection) -> Iterator[int]:
        for number in range(10):
            threads.append(threading.get_ident())
            yield connection.execute(sa.select(sa.literal(number))).scalar_one()

    with files.metadata.snapshot(scans=True) as tx:
        found = tx.read([numbers])
        assert next(found) == 0
    # Closed with what was under way, though nobody went on to read it.
    assert len(threads) <= 3
    assert threading.get_ident() not in threads


def test_who_writes_for_long_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "LOCK_TIMEOUT_SECONDS", 0)
    with Store.init(tmp_path / "readers") as store:
        _lake(store, 3)
        with store.metadata.transaction(), store.metadata.snapshot(scans=True) as tx:
            assert tx.reader_count == 1
            assert list(tx.read([partial(_paths, behind="0")] * 2)) == ["1", "2", "1", "2"]


def test_errors_reach_who_reads(files: Store) -> None:
    def broken(connection: sa.Connection) -> Iterator[int]:
        yield 1
        connection.exec_driver_sql("SELECT * FROM nowhere")

    with (
        pytest.raises(Failed, match="no such table"),
        files.metadata.snapshot(scans=True) as tx,
    ):
        list(tx.read([broken]))


def test_scattered_rows_are_read_page_by_page(files: Store) -> None:
    """Of which few are kept; and what comes after them as before."""
    with files.metadata.snapshot(scans=True) as tx:
        mapped, kept = _mapped_bytes(tx.connection), _cache_size(tx.connection)
        assert mapped > 0
        with unmapped(tx.connection):
            assert _mapped_bytes(tx.connection) == 0
            assert kept < _cache_size(tx.connection) < 0, "kibibytes, as a negative number"
        assert (_mapped_bytes(tx.connection), _cache_size(tx.connection)) == (mapped, kept)
    with ExitStack() as stack:
        # Connections go back as they were.
        for _ in range(READERS + 2):
            tx = stack.enter_context(files.metadata.snapshot())
            assert _mapped_bytes(tx.connection) == 0
        with unmapped(tx.connection):
            assert _mapped_bytes(tx.connection) == 0


def _mapped_bytes(connection: sa.Connection) -> int:
    return int(connection.exec_driver_sql("PRAGMA mmap_size").scalar() or 0)


def _cache_size(connection: sa.Connection) -> int:
    return int(connection.exec_driver_sql("PRAGMA cache_size").scalar() or 0)
