"""Readings of one state beside each other."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
import sqlalchemy as sa

from ebbtide.errors import Failed
from ebbtide.store.database import engine
from ebbtide.store.database.engine import unmapped
from ebbtide.store.database.parallel_reads import READERS
from ebbtide.store.database.schema import staged
from ebbtide.store.embedded import Store
from ebbtide.store.repository import Repository


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
