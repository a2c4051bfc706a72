"""A storage that fails at any one call, before or after doing it: nothing is lost or half done."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from ebbtide.ids import new_id
from ebbtide.settings import Settings
from ebbtide.store.database.schema import staged
from ebbtide.store.embedded import Store
from ebbtide.store.repository import Repository
from ebbtide.store.staging.uploads import NewObject
from tests.support.clock import ManualClock
from tests.support.collections import raises
from tests.support.faulty import FaultyStorage, with_storage
from tests.support.lakes import contents, each_failure, tombstone


@pytest.fixture
def lake(database_url: str, clock: ManualClock) -> Iterator[Repository]:
    settings = Settings(database_url=database_url, range_entries_target=2)
    with Store.init(None, settings=settings, clock=clock) as store:
        yield store.create_repository("lake", storage_url=f"memory:{new_id()}")


def test_puts(lake: Repository) -> None:
    items = [NewObject(name, name.encode()) for name in "abcde"]
    assert each_failure(lake, lambda faulty: faulty.objects.put_many("main", items)) >= 5
    assert contents(lake, "main") == {name: name.encode() for name in "abcde"}

    def check() -> None:
        assert contents(lake, "main")["a"] == b"a"

    assert each_failure(lake, lambda faulty: faulty.objects.put("main", "a", b"new"), check)
    assert contents(lake, "main")["a"] == b"new"


def test_commit(lake: Repository) -> None:
    for name in "abcdefgh":
        lake.objects.put("main", name, b"1")
    lake.commits.commit("main", "first")
    for name in "bdxyz":
        lake.objects.put("main", name, b"2")
    lake.objects.delete("main", "c")
    shown = contents(lake, "main")
    head = lake.commits.resolve("main")

    def check() -> None:
        assert contents(lake, "main") == shown
        assert lake.commits.resolve("main") == head

    calls = each_failure(lake, lambda faulty: faulty.commits.commit("main", "second"), check)
    assert calls >= 5, "reads, ranges, tree, date"
    assert contents(lake, "main@") == shown
    with lake.context.metadata.snapshot() as tx:
        assert tx.execute(sa.select(sa.func.count()).select_from(staged)).scalar_one() == 0


def test_merge_and_revert(lake: Repository) -> None:
    lake.objects.put("main", "a", b"1")
    lake.commits.commit("main", "")
    lake.branches.create("dev", "main")
    lake.objects.put("dev", "b", b"2")
    lake.commits.commit("dev", "")
    lake.objects.put("main", "c", b"3")
    head = lake.commits.commit("main", "").commit_id

    def check() -> None:
        assert lake.commits.resolve("main") == head

    each_failure(lake, lambda faulty: faulty.commits.merge("dev", "main"), check)
    assert contents(lake, "main") == {"a": b"1", "b": b"2", "c": b"3"}
    head = lake.commits.resolve("main")
    each_failure(lake, lambda faulty: faulty.commits.revert("main", "main~1"), check)
    assert contents(lake, "main") == {"a": b"1", "b": b"2"}


@pytest.mark.parametrize("is_collected", [True, False])
def test_a_commit_whose_parent_lacks_its_ranges(lake: Repository, is_collected: bool) -> None:
    """A commit that slept for days finds ranges of its parent gone: they are not missing. Without a
    run that collected the parent they are."""
    lake.objects.put("main", "a", b"1")
    parent = lake.commits.commit("main", "first")
    lake.objects.put("main", "b", b"2")
    ranges = [info.address for info in lake.context.tree_of(parent).ranges]

    def collect(method: str, address: str) -> None:
        if method == "get" and address in ranges and lake.storage.head(address) is not None:
            if is_collected:
                tombstone(lake, parent.commit_id)
            lake.storage.delete(ranges)

    with raises("commit_expired" if is_collected else "missing_node"):
        with_storage(lake, FaultyStorage(lake.storage, before=collect)).commits.commit("main", "")
    assert not lake.storage.head(ranges[0])
