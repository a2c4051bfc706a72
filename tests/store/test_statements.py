"""Statements and commits of an upload and a read: each costs time, and is a decision."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pytest
import sqlalchemy as sa

from ebbtide.clock import SystemClock
from ebbtide.store.database.prepared import Prepared, Values
from ebbtide.store.embedded import Store
from ebbtide.store.repository import Repository
from tests.support.app import serving


@pytest.fixture(autouse=True)
def real_clock(store: Store) -> None:
    """On PostgreSQL it costs statements."""
    store.metadata.clock = SystemClock()


@contextmanager
def counted(store: Store) -> Iterator[list[str]]:
    """Gets the first word of each statement, and "commit" for each transaction's end."""
    found: list[str] = []
    engine = store.metadata.engine

    def note(word: str) -> None:
        if threading.current_thread().name not in ("reclaim", "schedules"):
            found.append(word)

    def executed(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        note("clock" if "clock_timestamp" in statement else statement.split()[0].lower())

    def committed(_connection: object) -> None:
        note("commit")

    def prepared(query: Prepared, values: Mapping[str, str]) -> Values | None:
        note("prepared")
        return first(query, values)

    first = Prepared.first
    sa.event.listen(engine, "before_cursor_execute", executed)
    sa.event.listen(engine, "commit", committed)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Prepared, "first", prepared)
            yield found
    finally:
        sa.event.remove(engine, "before_cursor_execute", executed)
        sa.event.remove(engine, "commit", committed)


def without_clock(statements: list[str], store: Store, count: int) -> list[str]:
    """The statements but those that read PostgreSQL's clock, which are `count` there."""
    is_postgresql = store.metadata.engine.dialect.name == "postgresql"
    assert statements.count("clock") == (count if is_postgresql else 0)
    return [each for each in statements if each != "clock"]


REGISTERED = ["select", "select", "insert", "commit"]
STAGED = ["select", "select", "delete", "insert", "commit"]
QUICK = ["prepared"]
LONG = QUICK + QUICK + ["select", "select", "commit"]


@pytest.mark.twins
def test_an_upload_and_reads(store: Store, repository: Repository) -> None:
    """Of an upload, one transaction registers the address, and one stages the object. The server
    adds one statement for the key and one for the repository, each without a transaction. A read
    is one statement, whether the object is staged or committed. The first one of a commit, whose
    tree is not in the cache, takes the long way, too."""
    name = repository.info.name
    upload, read = (
        f"/repositories/{name}/{part}/main/objects?path=a" for part in ("branches", "refs")
    )
    with serving(store) as client:
        client.post(upload, content=b"1").raise_for_status()
        with counted(store) as statements:
            client.post(upload.replace("path=a", "path=b"), content=b"2").raise_for_status()
        assert without_clock(statements, store, 2) == QUICK + QUICK + REGISTERED + STAGED
        for state in ("staged", "committed"):
            with counted(store) as statements:
                client.get(read).raise_for_status()
            is_known = state == "staged"
            assert without_clock(statements, store, 0) == QUICK + ([] if is_known else LONG)
            with counted(store) as statements:
                assert client.get(read).raise_for_status().content == b"1"
            assert without_clock(statements, store, 0) == QUICK
            repository.commits.commit("main", "change", allow_empty=True)
