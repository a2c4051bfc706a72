"""Copies: what shares an address, what has bytes of its own, and who must know of it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from threading import Event
from typing import Any

import pytest
import sqlalchemy as sa

from ebbtide.errors import Conflict
from ebbtide.ids import new_id
from ebbtide.store.content.entries import Entry
from ebbtide.store.database.schema import branches, copies, pending, readings, staged
from ebbtide.store.embedded import Store
from ebbtide.store.objects import changes
from ebbtide.store.objects.changes import share_staged
from ebbtide.store.repository import Repository
from ebbtide.store.staging.staged_rows import begin_reading, end_reading, record_copy, write_staged
from tests.support.clock import ManualClock
from tests.support.collections import raises
from tests.support.lakes import contents, rows, seal
from tests.support.locks import waits_for_a_lock
from tests.support.reachable import stored

HOUR = timedelta(hours=1)
MOMENT = timedelta(microseconds=1)


def everything(repository: Repository) -> tuple[object, ...]:
    """What must not change when an operation is refused."""
    tables = (staged, pending, copies, branches)
    return *(rows(repository, table) for table in tables), stored(repository)


def recorded(repository: Repository) -> list[str]:
    with repository.context.metadata.snapshot() as tx:
        found = tx.execute(sa.select(copies.c.address).order_by(copies.c.made_at))
        return list(found.scalars())


def begin(repository: Repository, *, lasts: timedelta = HOUR) -> str:
    with repository.context.metadata.transaction() as tx:
        return begin_reading(tx, repository.context.repository_id, lasts=lasts)


def end(repository: Repository, reading_id: str) -> None:
    with repository.context.metadata.transaction() as tx:
        end_reading(tx, repository.context.repository_id, reading_id)


def goes_on(repository: Repository, reading_id: str) -> bool:
    """Whether a reading is registered and has not ended."""
    repository_id = repository.context.repository_id
    of_it = sa.and_(readings.c.repository_id == repository_id, readings.c.reading_id == reading_id)
    with repository.context.metadata.snapshot() as tx:
        ends_at = tx.execute(sa.select(readings.c.ends_at).where(of_it)).scalar_one_or_none()
        return ends_at is not None and ends_at > tx.now()


def test_a_copy_of_what_is_staged_shares_its_address(
    repository: Repository, clock: ManualClock
) -> None:
    source = repository.objects.put("main", "a", b"1", content_type="t", metadata={"k": "v"})
    clock.advance(HOUR)
    copy = repository.objects.copy("main", "b", "main", "a")
    assert copy == replace(source, path="b", mtime=clock.now)
    assert repository.objects.stat("main", "b") == copy
    assert repository.objects.stat("main", "a") == source
    assert repository.objects.get("main", "b") == b"1"
    assert stored(repository) == {source.address}
    repository.commits.commit("main", "both")
    assert [repository.objects.get("main@", path) for path in "ab"] == [b"1", b"1"]
    assert {repository.objects.stat("main@", path).address for path in "ab"} == {source.address}


def test_what_an_unfinished_commit_sealed_shares_its_address(repository: Repository) -> None:
    repository.objects.put("main", "a", b"older")
    seal(repository)
    source = repository.objects.put("main", "a", b"1")
    seal(repository)
    for path in "abc":
        assert repository.objects.copy("main", path, "main", "a").address == source.address
    repository.commits.commit("main", "")
    assert contents(repository, "main@") == dict.fromkeys("abc", b"1")
    assert repository.objects.copy("main", "a", "main", "a").address != source.address


def test_any_other_copy_has_bytes_of_its_own(repository: Repository) -> None:
    """Also one of what is committed on the branch: its commit may expire, and with it the bytes."""
    data = bytes(range(256)) * (17 << 12)  # more than a part of an upload
    source = repository.objects.put("main", "a", data, content_type="t", metadata={"k": "v"})
    repository.commits.commit("main", "")
    repository.branches.create("dev", "main")
    repository.tags.create("v1", "main")
    begin(repository)
    repository.objects.put("dev", "a", b"staged on dev", metadata={"k": "v"})
    for branch, ref in (("main", "main"), ("dev", "main"), ("main", "dev"), ("main", "v1")):
        expected, before = repository.objects.open(ref, "a").entry, stored(repository)
        copy = repository.objects.copy(branch, "b", ref, "a")
        assert stored(repository) == before | {copy.address}
        assert copy.address not in before, "the copy is new"
        assert (copy.checksum, copy.metadata) == (expected.checksum, {"k": "v"})
    assert repository.objects.get("main", "b") == data
    assert source.size_bytes == 17 << 20
    assert recorded(repository) == [], "nobody else has the address"
    assert rows(repository, pending) == []


def test_copies_that_are_refused(repository: Repository, clock: ManualClock) -> None:
    repository.objects.put("main", "a", b"1")
    repository.tags.create("v1", "main")
    before = everything(repository)
    for branch, destination, source, kind in (
        ("main", "b\0c", "a", "invalid_path"),
        ("v1", "b", "a", "branch_not_found"),
        ("main", "b", "absent", "object_not_found"),
    ):
        with raises(kind):
            repository.objects.copy(branch, destination, "main", source)
    repository.context.storage.delete(["_ebbtide/OWNER"])
    clock.advance(HOUR)
    with raises("storage_foreign"):
        repository.objects.copy("main", "b", "main", "a")
    assert everything(repository) == before


def test_the_condition_on_the_source_holds_for_what_is_copied(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The source changes once its condition was checked, each time that it is looked up."""
    source = repository.objects.put("main", "a", b"1")
    changes: list[Callable[[], object]] = []

    class Same:
        def check(self, path: str, found: Entry | None) -> None:
            if found != source:
                raise Conflict("precondition_failed", path)

    def share(*arguments: Any) -> object:
        changes[-1]()
        return share_staged(*arguments)

    monkeypatch.setattr("ebbtide.store.objects.objects.share_staged", share)
    changes.append(lambda: repository.commits.commit("main", "", allow_empty=True))
    copy = repository.objects.copy("main", "b", "main", "a", source_if=Same())
    assert (copy.checksum, copy.metadata) == (source.checksum, source.metadata)
    for change in (
        lambda: repository.objects.put("main", "a", b"2"),
        lambda: repository.objects.set_metadata("main", "a", {"k": "v"}),
    ):
        source = repository.objects.put("main", "a", b"1")
        changes.append(change)
        with raises("precondition_failed"):
            repository.objects.copy("main", "c", "main", "a", source_if=Same())


def test_records_stay_as_long_as_a_reading_that_began_before(
    repository: Repository, clock: ManualClock
) -> None:
    """A copy in the instant in which it begins may be before it or after it: it is kept."""
    address = repository.objects.put("main", "a", b"").address
    repository.objects.copy("main", "b", "main", "a")
    reading = begin(repository)
    repository.objects.copy("main", "c", "main", "a")
    assert recorded(repository) == [address, address]
    end(repository, reading)

    def copy(name: str) -> str:
        clock.advance(MOMENT)
        address = repository.objects.put("main", name, b"").address
        assert repository.objects.copy("main", f"{name}'", "main", name).address == address
        clock.advance(2 * MOMENT)
        return address

    copy("before")
    first = begin(repository)
    one, two = copy("one"), copy("two")
    second = begin(repository)
    three = copy("three")
    assert recorded(repository) == [one, two, three], "what was copied before is staged for all"
    end(repository, first)
    assert recorded(repository) == [three]
    assert goes_on(repository, second)
    end(repository, second)
    assert recorded(repository) == []
    copy("after")
    begin(repository)
    copy("last")
    assert len(recorded(repository)) == 1


def test_a_reading_that_outlived_its_time_keeps_nothing(
    repository: Repository, clock: ManualClock
) -> None:
    repository.objects.put("main", "a", b"")
    reading = begin(repository, lasts=HOUR)
    clock.advance(MOMENT)
    repository.objects.copy("main", "b", "main", "a")
    clock.advance(HOUR - 2 * MOMENT)
    assert goes_on(repository, reading)
    repository.objects.copy("main", "c", "main", "a")
    assert len(recorded(repository)) == 2
    clock.advance(MOMENT)
    assert not goes_on(repository, reading), "it may have missed what came since"
    repository.objects.copy("main", "d", "main", "a")
    assert rows(repository, readings) == []
    assert len(recorded(repository)) == 1, "that of this instant"
    end(repository, reading)
    assert not goes_on(repository, reading)


def test_readings_of_other_repositories(
    store: Store, repository: Repository, clock: ManualClock
) -> None:
    other = store.create_repository("other", storage_url=f"memory:{new_id()}")
    reading = begin(other)
    assert not goes_on(repository, reading)
    for each in (repository, other):
        each.objects.put("main", "a", b"")
        for path in "bc":
            clock.advance(MOMENT)
            each.objects.copy("main", path, "main", "a")
    assert len(recorded(repository)) == 1 + 2, "its last, and all that the reading needs"
    end(repository, reading)
    assert goes_on(other, reading)


@pytest.mark.twins
def test_a_reading_waits_for_a_copy_that_is_being_made(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would neither see the copy nor find it recorded."""
    source = repository.objects.put("main", "a", b"")
    looked, go_on = Event(), Event()

    def write(*arguments: Any, **options: Any) -> None:
        looked.set()
        assert go_on.wait(60)
        write_staged(*arguments, **options)

    monkeypatch.setattr(changes, "write_staged", write)
    with ThreadPoolExecutor(2) as pool:
        copying = pool.submit(repository.objects.copy, "main", "b", "main", "a")
        assert looked.wait(60), "the source was found, and nothing is written yet"
        reading = pool.submit(begin, repository)
        waited = waits_for_a_lock(repository.context.metadata, reading)
        go_on.set()
        assert copying.result(timeout=60).address == source.address
        reading.result(timeout=60)
    assert waited
    assert repository.objects.stat("main", "b").address == source.address


@pytest.mark.twins
def test_a_copy_waits_for_a_reading_that_begins(repository: Repository) -> None:
    repository.objects.put("main", "a", b"")
    context = repository.context
    with ThreadPoolExecutor(1) as pool:
        with context.metadata.transaction() as tx:
            begin_reading(tx, context.repository_id, lasts=HOUR)
            copying = pool.submit(repository.objects.copy, "main", "b", "main", "a")
            assert waits_for_a_lock(context.metadata, copying)
        copying.result(timeout=60)
    assert len(recorded(repository)) == 1


@pytest.mark.parametrize("database_kind", ["postgres"], indirect=True)
def test_copies_do_not_wait_for_one_another(repository: Repository) -> None:
    """A reading that goes on stops nobody. SQLite has one writer at a time."""
    repository.objects.put("main", "a", b"")
    begin(repository)
    context = repository.context
    with ThreadPoolExecutor(1) as pool, context.metadata.transaction() as tx:
        tx.lock_repository(context.repository_id)
        record_copy(tx, context.repository_id, "address")
        pool.submit(repository.objects.copy, "main", "b", "main", "a").result(timeout=20)
