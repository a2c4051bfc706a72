"""Transactions, locks, errors, clocks and full disks, on both databases."""

from __future__ import annotations

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import make_url
from sqlalchemy.engine.default import DefaultDialect

from ebbtide.clock import SystemClock
from ebbtide.errors import Failed, InvalidInput, NotFound
from ebbtide.store.database import engine
from ebbtide.store.database.dialects import open_engine
from ebbtide.store.database.engine import LockMode, Metadata
from ebbtide.store.database.schema import store_info
from ebbtide.store.embedded import Store
from ebbtide.store.repository import Repository
from tests.support.locks import waits_for_a_lock


def _stores(tx_or_metadata: Metadata) -> int:
    with tx_or_metadata.snapshot() as tx:
        return len(tx.execute(sa.select(store_info)).all())


def test_a_database_of_another_encoding_is_refused(postgres: str) -> None:
    """A server whose locale was "C" when it was made has SQL_ASCII."""
    server = sa.create_engine(postgres, isolation_level="AUTOCOMMIT")
    with server.connect() as connection:
        connection.exec_driver_sql(
            "CREATE DATABASE ascii ENCODING 'SQL_ASCII' LOCALE 'C' TEMPLATE template0"
        )
    url = make_url(postgres).set(database="ascii").render_as_string(hide_password=False)
    engine = open_engine(url)
    try:
        with pytest.raises(InvalidInput, match="encoding SQL_ASCII, and must have UTF8") as caught:
            engine.connect()
        assert caught.value.kind == "invalid_setting"
    finally:
        engine.dispose()
        with server.connect() as connection:
            connection.exec_driver_sql("DROP DATABASE ascii")
        server.dispose()


@pytest.mark.twins
def test_an_interrupted_statement_holds_no_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C comes before the statement's rows are read. What handles it can write."""
    monkeypatch.setattr("ebbtide.store.database.dialects.LOCK_TIMEOUT_SECONDS", 0)
    execute = DefaultDialect.do_execute

    def interrupted(dialect: DefaultDialect, cursor: Any, statement: str, *arguments: Any) -> None:
        execute(dialect, cursor, statement, *arguments)  # type: ignore[no-untyped-call]
        if "store_info" in statement:
            raise KeyboardInterrupt

    with Store.init(tmp_path / "store") as store:
        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt) as caught:
            patched.setattr(DefaultDialect, "do_execute", interrupted)
            with store.metadata.transaction() as tx:
                tx.execute(sa.select(store_info))
        with store.metadata.transaction() as tx:
            tx.execute(sa.update(store_info).values(store_id=store_info.c.store_id))
        # The interrupt and its trace, in which the cursor is, are still there.
        assert caught.traceback


@pytest.mark.twins
def test_a_transaction_is_undone_by_an_exception(store: Store) -> None:
    """Errors of the database show neither values nor the statement."""
    with pytest.raises(ZeroDivisionError), store.metadata.transaction() as tx:
        tx.execute(sa.insert(store_info).values(store_id="x", created_at=tx.now()))
        raise ZeroDivisionError
    assert _stores(store.metadata) == 1
    with pytest.raises(Failed) as caught, store.metadata.transaction() as tx:
        tx.execute(sa.insert(store_info).values(store_id="x", created_at=tx.now()))
        tx.execute(sa.insert(store_info).values(store_id=store.store_id, created_at=tx.now()))
    assert caught.value.kind == "database_error"
    assert store.store_id not in caught.value.message
    assert "INSERT" not in caught.value.message
    assert _stores(store.metadata) == 1
    with pytest.raises(NotFound), store.metadata.transaction() as tx:
        tx.lock_repository("nobody")


@pytest.mark.twins
def test_a_snapshot_sees_one_state(store: Store) -> None:
    with store.metadata.snapshot() as tx:
        before = len(tx.execute(sa.select(store_info)).all())
        with store.metadata.transaction() as writer:
            writer.execute(sa.insert(store_info).values(store_id="x", created_at=writer.now()))
        assert len(tx.execute(sa.select(store_info)).all()) == before
    assert _stores(store.metadata) == before + 1
    if store.metadata.engine.dialect.name == "sqlite":
        return  # it has no transactions that may only read
    with pytest.raises(Failed, match="read-only"), store.metadata.snapshot() as tx:
        tx.execute(sa.insert(store_info).values(store_id="y", created_at=tx.now()))


@pytest.mark.twins
def test_a_single_statement_has_no_transaction(store: Store) -> None:
    """Each statement sees a state of its own, and the connection can be used as before."""
    with store.metadata.statement() as tx:
        before = len(tx.execute(sa.select(store_info)).all())
        with store.metadata.transaction() as writer:
            writer.execute(sa.insert(store_info).values(store_id="x", created_at=writer.now()))
        assert len(tx.execute(sa.select(store_info)).all()) == before + 1
    with pytest.raises(Failed) as caught, store.metadata.statement() as tx:
        tx.execute(sa.text("SELECT nothing FROM nowhere"))
    assert caught.value.kind == "database_error"
    assert _stores(store.metadata) == before + 1


def test_a_server_that_is_not_there_leaks_no_password() -> None:
    metadata = Metadata(
        open_engine("postgresql://u:hunter2@127.0.0.1:1/db?connect_timeout=2"), SystemClock()
    )
    with pytest.raises(Failed) as caught, metadata.transaction():
        pass
    assert caught.value.kind == "database_error"
    assert "hunter2" not in caught.value.message
    metadata.close()


@pytest.mark.parametrize("url", ["mysql://u:hunter2@host/db", "hunter2", "sqlite://", ""])
def test_other_databases_are_refused(url: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        open_engine(url)
    assert caught.value.kind == "invalid_setting"
    assert "hunter2" not in caught.value.message


def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    (tmp_path / "metadata.db").write_bytes(b"something else " * 100)
    with pytest.raises(Failed, match="file is not a database") as caught:
        Store.open(tmp_path)
    assert caught.value.kind == "database_error"


def test_sqlite_settings(tmp_path: Path) -> None:
    with Store.init(tmp_path / "store") as store, store.metadata.snapshot() as tx:
        pragmas = {
            name: tx.execute(sa.text(f"PRAGMA {name}")).scalar_one()
            for name in ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
        }
    assert pragmas == {
        "journal_mode": "wal",
        "synchronous": 2,
        "foreign_keys": 1,
        "busy_timeout": 30_000,
    }
    file = tmp_path / "store" / "metadata.db"
    assert file.stat().st_mode & 0o777 == 0o600


@pytest.mark.twins
def test_real_clocks_agree_and_count_microseconds(database_url: str) -> None:
    clock = SystemClock()
    engine = open_engine(database_url)
    metadata = Metadata(engine, clock)
    with metadata.snapshot() as tx:
        seen = [tx.now() for _ in range(20)]
    engine.dispose()
    assert all(each.tzinfo is UTC for each in seen)
    assert abs(seen[0] - clock.host_now()) < timedelta(minutes=1)
    assert seen == sorted(seen)
    assert any(each.microsecond % 1000 for each in seen), "finer than milliseconds"
    assert clock.storage_time(datetime(2026, 1, 1, tzinfo=UTC)) == datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.twins
def test_locks_of_a_repository(repository: Repository) -> None:
    metadata = repository.context.metadata

    def lock(mode: LockMode) -> None:
        with metadata.transaction() as tx:
            tx.lock_repository(repository.info.repository_id, mode)

    modes: tuple[LockMode, ...] = ("share", "exclusive")
    for held, wanted in product(modes, modes):
        # On SQLite, whoever writes is alone.
        waits = "exclusive" in (held, wanted) or metadata.engine.dialect.name == "sqlite"
        with ThreadPoolExecutor(1) as pool:
            with metadata.transaction() as tx:
                tx.lock_repository(repository.info.repository_id, held)
                locked = pool.submit(lock, wanted)
                assert waits_for_a_lock(metadata, locked) is waits, (held, wanted)
            locked.result(10)


PAGES_MORE = 4


@pytest.mark.parametrize("database_kind", ["sqlite"], indirect=True)
def test_sqlite_that_may_not_grow(store: Store) -> None:
    with store.metadata.snapshot() as tx:
        pages = tx.connection.exec_driver_sql("PRAGMA page_count").scalar() or 0
    with pytest.raises(Failed) as caught, store.metadata.transaction() as tx:
        tx.connection.exec_driver_sql(f"PRAGMA max_page_count = {pages + PAGES_MORE}").close()
        tx.execute(sa.text("CREATE TABLE filler (data BLOB)"))
        tx.execute(sa.text("INSERT INTO filler VALUES (zeroblob(10000000))"))
    assert caught.value.kind == "disk_full"
    assert "metadata database is full" in caught.value.message
    with store.metadata.snapshot() as tx:
        assert "filler" not in sa.inspect(tx.connection).get_table_names()


@pytest.mark.parametrize("database_kind", ["postgres"], indirect=True)
def test_postgresql_whose_server_has_no_room(store: Store) -> None:
    with pytest.raises(Failed) as caught, store.metadata.transaction() as tx:
        tx.execute(sa.text("DO $$ BEGIN RAISE 'no space' USING ERRCODE = '53100'; END $$"))
    assert caught.value.kind == "disk_full"


@pytest.mark.parametrize(
    ("free", "kind"), [(engine.ROOM_BYTES_MIN - 1, "disk_full"), (1 << 30, "database_error")]
)
@pytest.mark.parametrize("database_kind", ["sqlite"], indirect=True)
def test_sqlite_cannot_tell_a_full_disk_from_a_broken_one(
    store: Store, monkeypatch: pytest.MonkeyPatch, free: int, kind: str
) -> None:
    """Where its shared memory cannot grow: so the disk is looked at."""
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = sqlite3.SQLITE_IOERR_SHMSIZE
    disk = SimpleNamespace(disk_usage=lambda _: SimpleNamespace(free=free))
    monkeypatch.setattr(engine, "shutil", disk)
    with pytest.raises(Failed) as caught, engine.translated_errors(store.metadata.engine):
        raise error
    assert caught.value.kind == kind


def test_connections_that_are_in_use_at_the_end_close_when_they_are_given_back(
    tmp_path: Path,
) -> None:
    metadata = Metadata(open_engine(f"sqlite:///{tmp_path}/metadata.db"), SystemClock())
    with metadata.statement() as tx:
        used = tx.connection.connection.dbapi_connection
        assert used is not None
        metadata.close()
        assert tx.execute(sa.text("SELECT 1")).scalar() == 1
    with pytest.raises(Exception, match="closed"):
        used.cursor()
