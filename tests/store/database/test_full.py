"""A database whose disk has no room says so, whichever it is."""

from __future__ import annotations

import sqlite3
from types import SimpleNamespace

import pytest
import sqlalchemy as sa

from ebbtide.errors import Failed
from ebbtide.store.database import engine
from ebbtide.store.embedded import Store

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
