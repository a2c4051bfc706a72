"""Short transactions of several threads have one commit on SQLite; it counts for all or none."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.engine.default import DefaultDialect

from ebbtide.errors import Failed
from ebbtide.store.database.concurrency import WriteQueue
from ebbtide.store.database.engine import Metadata, Transaction
from ebbtide.store.database.schema import store_info
from ebbtide.store.embedded import Store
from tests.store.database.test_write_queue import BrokenLate, waiting

Block = Callable[[Transaction], object]


@pytest.fixture
def metadata(tmp_path: Path) -> Iterator[Metadata]:
    with Store.init(tmp_path / "store") as store:
        with store.metadata.transaction() as tx:
            tx.execute(sa.delete(store_info))
        yield store.metadata


@pytest.fixture
def commits(metadata: Metadata) -> list[str]:
    """Gets one item for each commit from now on."""
    found: list[str] = []
    sa.event.listen(metadata.engine, "commit", lambda _connection: found.append("commit"))
    return found


def adding(name: str) -> Block:
    def add(tx: Transaction) -> None:
        tx.execute(sa.insert(store_info).values(store_id=name, created_at=tx.now()))

    return add


def names(metadata: Metadata) -> set[str]:
    with metadata.engine.connect() as connection:
        return set(connection.execute(sa.select(store_info.c.store_id)).scalars())


def in_one_queue(metadata: Metadata, *blocks: Block, joins: bool = True) -> list[Future[None]]:
    """Runs the blocks in transactions of threads in this order. Their ended futures."""

    def work(block: Block) -> None:
        with metadata.transaction(joins=joins) as tx:
            block(tx)

    with ThreadPoolExecutor(len(blocks)) as pool, metadata._writing.turn(10):
        futures = []
        for number, block in enumerate(blocks):
            futures.append(pool.submit(work, block))
            waiting(metadata._writing, number + 1)
    return futures


def test_threads_that_wait_share_one_commit(metadata: Metadata, commits: list[str]) -> None:
    """Others have commits of their own."""
    futures = in_one_queue(metadata, *map(adding, "abcdef"))
    assert [future.exception() for future in futures] == [None] * 6
    assert len(commits) == 1
    in_one_queue(metadata, *map(adding, "xyz"), joins=False)
    assert len(commits) == 4
    assert names(metadata) == set("abcdefxyz")


def test_nobody_sees_a_change_or_goes_on_before_the_commit(metadata: Metadata) -> None:
    ended = threading.Event()
    seen: list[object] = []

    def look(tx: Transaction) -> None:
        seen.extend((names(metadata), ended.is_set()))
        seen.append(set(tx.execute(sa.select(store_info.c.store_id)).scalars()))

    def work(block: Block) -> None:
        with metadata.transaction(joins=True) as tx:
            block(tx)
        ended.set()

    with ThreadPoolExecutor(2) as pool:
        with metadata._writing.turn(10):
            futures = []
            for number, block in enumerate((adding("a"), look), 1):
                futures.append(pool.submit(work, block))
                waiting(metadata._writing, number)
        for future in futures:
            future.result()
    assert seen == [set(), False, {"a"}]
    assert names(metadata) == {"a"}


def test_a_member_that_fails_is_undone_alone(metadata: Metadata, commits: list[str]) -> None:
    def fail(tx: Transaction) -> None:
        adding("x")(tx)
        raise ZeroDivisionError

    blocks = [fail, adding("a"), fail, adding("a"), adding("b"), fail]
    kinds = [type(future.exception()) for future in in_one_queue(metadata, *blocks)]
    none, failed = type(None), ZeroDivisionError
    assert kinds == [failed, none, failed, Failed, none, failed]
    assert names(metadata) == {"a", "b"}
    assert len(commits) == 1


def test_a_commit_that_fails_fails_for_all(
    metadata: Metadata, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> None:
        raise sqlite3.OperationalError("disk I/O error")

    with monkeypatch.context() as patched:
        patched.setattr(DefaultDialect, "do_commit", broken)
        futures = in_one_queue(metadata, *map(adding, "abc"))
    errors = [future.exception() for future in futures]
    assert [error.kind for error in errors if isinstance(error, Failed)] == ["database_error"] * 3
    assert names(metadata) == set()
    in_one_queue(metadata, adding("d"))
    assert names(metadata) == {"d"}


def test_a_transaction_that_sqlite_undoes_fails_for_all(metadata: Metadata) -> None:
    """A full disk, for instance: SQLite rolls back by itself."""

    def undone(tx: Transaction) -> None:
        tx.connection.connection.driver_connection.execute("ROLLBACK")  # type: ignore[union-attr]
        raise sqlite3.OperationalError("database or disk is full")

    futures = in_one_queue(metadata, adding("a"), undone, adding("b"))
    kinds = [getattr(future.exception(), "kind", None) for future in futures]
    assert kinds == ["database_error", "database_error", None]
    assert names(metadata) == {"b"}


def test_a_turn_that_does_not_come_in_time(
    metadata: Metadata, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ebbtide.store.database.engine.LOCK_TIMEOUT_SECONDS", 0.01)
    with (
        metadata.transaction(),
        pytest.raises(Failed, match="other threads were writing"),
        metadata.transaction(joins=True),
    ):
        raise AssertionError("two at a time")


def test_an_interrupted_thread_passes_on_what_it_got(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lock and the object come just before the interrupt."""
    queue, got = WriteQueue[str](), list[str]()

    def interrupted(carried: str) -> None:
        got.append(carried)
        queue.pass_on()

    def wait() -> None:
        with pytest.raises(KeyboardInterrupt):
            queue.join(10, interrupted)

    assert queue.join(10, interrupted) is None
    assert not queue.hand_over("nobody waits")
    monkeypatch.setattr("ebbtide.store.database.concurrency.Lock", BrokenLate)
    with ThreadPoolExecutor(1) as pool:
        waited = pool.submit(wait)
        waiting(queue, 1)
        assert queue.hand_over("group")
        waited.result()
    assert got == ["group"]
    with queue.turn(0.01):
        pass
