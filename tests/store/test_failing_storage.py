"""A storage that fails at any one call, before or after doing it: nothing is lost or half done."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import sqlalchemy as sa

from ebbtide.errors import Failed, Gone, Refused
from ebbtide.ids import new_id
from ebbtide.settings import Settings
from ebbtide.store.database.schema import commits, staged
from ebbtide.store.embedded import Store
from ebbtide.store.repository import Repository
from ebbtide.store.staging.uploads import NewObject
from tests.support.clock import ManualClock
from tests.support.faulty import FailNth, FaultyStorage, with_storage
from tests.support.lakes import contents, every_file, pending_addresses


@pytest.fixture
def lake(database_url: str, clock: ManualClock) -> Iterator[Repository]:
    settings = Settings(database_url=database_url, range_entries_target=2)
    with Store.init(None, settings=settings, clock=clock) as store:
        yield store.create_repository("lake", storage_url=f"memory:{new_id()}")


def each_failure(
    lake: Repository, operation: Callable[[Repository], object], after_failure: Callable[[], None]
) -> int:
    """Run the operation with its n-th call failing, for n = 0, 1, … until it passes; then n."""
    for nth in range(100):
        for when in ("before", "after"):
            hook = FailNth(nth)
            faulty = with_storage(lake, FaultyStorage(lake.storage, **{when: hook}))
            try:
                operation(faulty)
            except Failed as error:
                assert error.kind == "storage_error"
                after_failure()
            else:
                assert hook.count <= nth
                return nth
    raise AssertionError("it never passed")


def test_put(lake: Repository) -> None:
    lake.objects.put("main", "a", b"old")
    before = every_file(lake)

    def check() -> None:
        assert contents(lake, "main") == {"a": b"old"}
        assert every_file(lake) == before
        assert pending_addresses(lake) == []

    calls = each_failure(lake, lambda faulty: faulty.objects.put("main", "a", b"new"), check)
    assert calls >= 1
    assert contents(lake, "main") == {"a": b"new"}


def test_put_many(lake: Repository) -> None:
    before = every_file(lake)

    def check() -> None:
        assert every_file(lake) == before
        assert pending_addresses(lake) == []

    items = [NewObject(name, name.encode()) for name in "abcde"]
    calls = each_failure(lake, lambda faulty: faulty.objects.put_many("main", items), check)
    assert calls >= 5
    assert contents(lake, "main") == {name: name.encode() for name in "abcde"}


def test_commit(lake: Repository) -> None:
    for name in "abcdefgh":
        lake.objects.put("main", name, b"1")
    lake.commits.commit("main", "first")
    for name in "bdxyz":
        lake.objects.put("main", name, b"2")
    lake.objects.delete("main", "c")
    shown = contents(lake, "main")
    head = lake.commits.resolve("main")
    before = every_file(lake)

    def check() -> None:
        assert contents(lake, "main") == shown
        assert lake.commits.resolve("main") == head
        assert every_file(lake) == before, "what was written is deleted again"
        assert pending_addresses(lake) == []

    calls = each_failure(lake, lambda faulty: faulty.commits.commit("main", "second"), check)
    assert calls >= 5, "reads, ranges, tree, date"
    assert contents(lake, "main@") == shown
    with lake.context.metadata.snapshot() as tx:
        assert tx.execute(sa.select(sa.func.count()).select_from(staged)).scalar_one() == 0


def test_writes_during_interrupted_commits_are_taken_up(lake: Repository) -> None:
    expected: dict[str, bytes] = {}
    for round_number in range(4):
        for name in (f"own {round_number}", "shared"):
            expected[name] = f"{round_number}".encode()
            lake.objects.put("main", name, expected[name])
        faulty = with_storage(lake, FaultyStorage(lake.storage, before=FailNth(2)))
        with pytest.raises(Failed):
            faulty.commits.commit("main", "")
        assert contents(lake, "main") == expected
    lake.objects.delete("main", "own 0")
    del expected["own 0"]
    lake.commits.commit("main", "")
    assert contents(lake, "main@") == expected


def test_merge_and_revert(lake: Repository) -> None:
    lake.objects.put("main", "a", b"1")
    lake.commits.commit("main", "")
    lake.branches.create("dev", "main")
    lake.objects.put("dev", "b", b"2")
    lake.commits.commit("dev", "")
    lake.objects.put("main", "c", b"3")
    head = lake.commits.commit("main", "").commit_id
    before = every_file(lake)

    def check() -> None:
        assert lake.commits.resolve("main") == head
        assert every_file(lake) == before
        assert pending_addresses(lake) == []

    each_failure(lake, lambda faulty: faulty.commits.merge("dev", "main"), check)
    assert contents(lake, "main") == {"a": b"1", "b": b"2", "c": b"3"}
    head = lake.commits.resolve("main")
    before = every_file(lake)
    each_failure(lake, lambda faulty: faulty.commits.revert("main", "main~1"), check)
    assert contents(lake, "main") == {"a": b"1", "b": b"2"}


def test_what_cannot_be_cleared_away_is_left_to_the_collector(lake: Repository) -> None:
    """The put is done but not acknowledged, and the delete fails."""

    def refuse(method: str, address: str) -> None:
        if method == "delete":
            raise Failed("storage_error", f"{method} {address} was made to fail")

    faulty = with_storage(lake, FaultyStorage(lake.storage, before=refuse, after=FailNth(0)))
    before = every_file(lake)
    with pytest.raises(Failed, match="put"):
        faulty.objects.put("main", "a", b"1")
    assert contents(lake, "main") == {}
    assert len(every_file(lake) - before) == 1
    assert pending_addresses(lake) == [], "garbage from now on"


def test_a_commit_whose_parent_was_collected_meanwhile_says_so(lake: Repository) -> None:
    """One that slept for days finds ranges of its parent gone: they are not missing."""
    lake.objects.put("main", "a", b"1")
    parent = lake.commits.commit("main", "first")
    lake.objects.put("main", "b", b"2")
    ranges = [info.address for info in lake.context.tree_of(parent).ranges]

    def collect(method: str, address: str) -> None:
        if method == "get" and address in ranges and lake.storage.head(address) is not None:
            with lake.context.metadata.transaction() as tx:
                mine = commits.c.commit_id == parent.commit_id
                tx.execute(sa.update(commits).where(mine).values(tombstoned_by="run7"))
            lake.storage.delete(ranges)

    with pytest.raises(Gone) as caught:
        with_storage(lake, FaultyStorage(lake.storage, before=collect)).commits.commit("main", "")
    assert caught.value.kind == "commit_expired"
    assert not lake.storage.head(ranges[0])


def test_a_commit_whose_parent_is_damaged_says_so(lake: Repository) -> None:
    lake.objects.put("main", "a", b"1")
    parent = lake.commits.commit("main", "first")
    lake.objects.put("main", "b", b"2")
    lake.storage.delete([info.address for info in lake.context.tree_of(parent).ranges])
    faulty = with_storage(lake, FaultyStorage(lake.storage))
    with pytest.raises(Refused) as caught:
        faulty.commits.commit("main", "")
    assert caught.value.kind == "missing_node"
