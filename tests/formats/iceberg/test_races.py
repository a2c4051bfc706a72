"""Other programs that are at work beside an expiry or a sweep, and processes that die in them."""

from __future__ import annotations

import gc
import shutil
import sqlite3
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch
from uuid import UUID

import pytest
from pyiceberg.table import Table
from sqlalchemy.engine.default import DefaultDialect

from ebbtide.errors import Failed
from ebbtide.formats.iceberg.reading import IcebergGuard
from ebbtide.storage.local import LocalStorage
from tests.formats.iceberg.histories import DiedError
from tests.formats.iceberg.warehouse import Warehouse, request, rows
from tests.support.icechunk_lake import candidates, told_of

KEPT = timedelta(days=7)


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Warehouse]:
    with closing(Warehouse(tmp_path)) as made:
        yield made


def make(lake: Warehouse, name: str = "events") -> Table:
    """A table of three snapshots, of which the rules keep the last."""
    table = lake.table(name, **{"history.expire.max-snapshot-age-ms": "0"})
    for number in range(3):
        table.append(rows(number))
    return table


def ids_of(table: Table) -> list[int]:
    return [each.snapshot_id for each in table.refresh().metadata.snapshots]


@contextmanager
def committing(
    before: Callable[[], None] | None, after: Callable[[], None] | None
) -> Iterator[None]:
    """Calls the functions around the commit of the transaction that moves a pointer."""
    commit: Any = DefaultDialect.do_commit

    def do_commit(dialect: DefaultDialect, connection: Any) -> None:
        is_it = connection.driver_connection.total_changes > 0
        if is_it and before is not None:
            before()
        commit(dialect, connection)
        if is_it and after is not None:
            after()

    with patch.object(DefaultDialect, "do_commit", do_commit):
        yield
    # SQLAlchemy and PyIceberg leave connections open whose database has failed.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


def die() -> None:
    raise DiedError


def break_connection() -> None:
    raise sqlite3.OperationalError("the connection is lost")


@contextmanager
def dying_behind_the_file() -> Iterator[None]:
    put = LocalStorage.put

    def written(storage: LocalStorage, address: str, *arguments: Any, **more: Any) -> None:
        put(storage, address, *arguments, **more)
        if address.endswith(".metadata.json"):
            raise DiedError

    with patch.object(LocalStorage, "put", written):
        yield


@pytest.mark.parametrize("when", ["file", "before", "after"])
def test_an_expiry_that_dies(lake: Warehouse, when: str) -> None:
    """It dies behind its metadata file, or just before or after the commit that moves the pointer.
    The table is as before or as after. The next expiry completes it. The rest is garbage."""
    table = make(lake)
    ids, pointer, before = ids_of(table), table.metadata_location, lake.files()
    dying = {
        "file": dying_behind_the_file(),
        "before": committing(die, None),
        "after": committing(None, die),
    }[when]
    with pytest.raises(DiedError), dying:
        lake.expire(request())
    [written] = lake.files() - before
    has_moved = when == "after"
    assert (lake.names()["db.events"] == pointer) is not has_moved
    assert ids_of(table) == (ids[2:] if has_moved else ids)
    contents = lake.contents()
    lake.age()
    # The file of a commit that never was is garbage; that of the other is the table's.
    assert (written in lake.planned()) is not has_moved
    if has_moved:  # there is a record of it, by which it can be undone
        assert [*lake.undo_expiry().values()] == [ids[:2]]
        assert lake.contents().items() > contents.items()
        return
    _, expiry = lake.expire(request())
    assert expiry.released == {f"{each}:db.events" for each in ids[:2]}
    lake.age()
    lake.swept()
    assert lake.files() == lake.needed()
    assert ids_of(table) == ids[2:]


@pytest.mark.parametrize("when", ["before", "after"])
def test_an_expiry_whose_answer_is_lost(lake: Warehouse, when: str) -> None:
    """The pointer is read, and tells whether the commit was made; if not, it is made again."""
    table, broken = make(lake), list[bool]()
    ids = ids_of(table)

    def lose() -> None:
        if not broken:
            broken.append(True)
            break_connection()

    with committing(lose, None) if when == "before" else committing(None, lose):
        _, expiry = lake.expire(request())
    assert broken
    assert expiry.released == {f"{each}:db.events" for each in ids[:2]}
    assert ids_of(table) == ids[2:]
    assert lake.needed() <= lake.files()
    lake.contents()


@pytest.mark.parametrize("has_moved", [True, False])
def test_an_expiry_of_an_unknown_outcome(lake: Warehouse, *, has_moved: bool) -> None:
    """There is no answer, and the pointer cannot be read either. The message says so. Nothing is
    deleted, and the next expiry finds what is left to do."""
    table, database = make(lake), lake.path.parent / "catalog.db"
    ids, before = ids_of(table), lake.files()
    other = make(lake, "other")

    def vanish() -> None:
        database.rename(database.with_suffix(".away"))
        database.write_text("no database")
        break_connection()

    arguments = (None, vanish) if has_moved else (vanish, None)
    with committing(*arguments), pytest.raises(Failed, match="is not known: run it again") as found:
        lake.expire(request())
    assert found.value.kind == "catalog_error"
    assert "db.events" in found.value.message
    database.with_suffix(".away").replace(database)
    assert before <= lake.files()
    assert ids_of(table) == (ids[2:] if has_moved else ids)
    lake.contents()
    lake.expire(request())
    assert ids_of(table) == ids[2:]
    assert len(ids_of(other)) == 1


def orphan_of(lake: Warehouse, table: Table, number: int) -> str:
    """A file of data that no table names, and that was written long ago."""
    made = f"{lake.relative(table.location())}/data/00000-0-{UUID(int=number)}.parquet"
    [file, *_] = [each.file.file_path for each in table.scan().plan_files()]
    shutil.copyfile(lake.path / lake.relative(file), lake.path / made)
    return made


def beside_batch(
    again: set[str], act: Callable[[], None], *, behind: bool
) -> AbstractContextManager[Any]:
    """Acts before or behind the check of the batch that has one of the files."""
    check = IcebergGuard.__call__

    def checked(guard: IcebergGuard, addresses: Any) -> Mapping[str, str]:
        is_it = not again.isdisjoint(addresses.to_pylist())
        if is_it and not behind:
            act()
        found = check(guard, addresses)
        if is_it and behind:
            act()
        return found

    return patch.object(IcebergGuard, "__call__", checked)


@pytest.mark.parametrize("point", ["before", "planned", "batch", "deleting", "end"])
@pytest.mark.parametrize("comes", ["adopted", "registered"])
def test_files_that_are_needed_again_beside_a_run(lake: Warehouse, comes: str, point: str) -> None:
    """Somebody adds an orphan to a table, or registers a table as it was before an expiry. That is
    before the plan or the sweep, before or behind the check of a batch, or at the end."""
    table = make(lake)
    old = table.metadata_location
    table.append(rows(5))
    lake.expire(request())
    orphan = orphan_of(lake, table.refresh(), 1)
    again = {orphan} if comes == "adopted" else lake.needed_by(old)
    lake.age()
    acted = list[bool]()

    def act() -> None:
        if acted or not again <= lake.files():
            return  # nobody can add a file that is gone
        acted.append(True)
        if comes == "adopted":
            table.refresh().add_files([f"file://{lake.path}/{orphan}"])
        else:
            lake.catalog.register_table("db.old", old)

    if point == "before":
        act()
    repository = lake.open()
    repository.batch_max = 1
    collector = lake.collector(repository=repository, quarantine=KEPT)
    run_id = collector.plan().run_id
    if point == "planned":
        act()
    with (
        beside_batch(again, act, behind=point == "deleting")
        if point in ("batch", "deleting")
        else nullcontext()
    ):
        report = collector.sweep(run_id)
    if point == "end":
        act()
    assert bool(acted) is (point != "end")
    assert report.state == ("incomplete" if point == "deleting" else "swept")
    if point in ("planned", "batch"):
        assert {*told_of(report, "revived")} >= again & {*candidates(report)} != set()
    if point == "deleting":
        assert report.error is not None
        assert "gc undo" in report.error["message"]
        assert not again <= lake.files()
        assert lake.collector().undo(report.run_id).state == "undone"
    if acted:
        assert again <= lake.files()
    lake.contents()
    lake.age()
    lake.swept()
    assert lake.files() == lake.needed()


@pytest.mark.parametrize("what", ["list", "manifest"])
@pytest.mark.parametrize("reads", [0, 1])
def test_a_list_that_cannot_be_read_for_a_moment(lake: Warehouse, what: str, reads: int) -> None:
    """A run fails, or has read it in another moment. It never takes it for an empty one. The list
    shares its manifests with expired snapshots."""
    table = make(lake)
    shared = lake.needed()
    snapshot = table.current_snapshot()
    assert snapshot is not None
    manifest = snapshot.manifests(table.io)[0].manifest_path
    chosen = lake.relative(snapshot.manifest_list if what == "list" else manifest)
    lake.expire(request())
    lake.age()
    get, count = LocalStorage.get, [0]

    def failing(storage: LocalStorage, address: str) -> bytes:
        if address == chosen:
            count[0] += 1
            if count[0] > reads:
                raise Failed("storage_error", f"{address} cannot be read")
        return get(storage, address)

    with patch.object(LocalStorage, "get", failing):
        if reads:
            lake.swept()
        else:
            with pytest.raises(Failed, match="cannot be read"):
                lake.collector().run()
            assert lake.files() >= shared
    assert count == [1]
    assert lake.needed() <= lake.files()
    assert lake.contents()


def test_an_expiry_of_a_table_that_is_registered_twice(lake: Warehouse) -> None:
    """Both names lose their snapshots, and have records of their own: an undo lists all again."""
    table = make(lake)
    twin = lake.catalog.register_table("db.twin", table.metadata_location)
    table.append(rows(7))
    both, contents = [ids_of(table), ids_of(twin)], lake.contents()
    lake.expire(request())
    assert [len(ids_of(table)), len(ids_of(twin))] == [1, 1]
    lake.undo_expiry()
    assert [ids_of(table), ids_of(twin)] == both
    assert lake.contents() == contents
