"""Online reclaim: what is released by which operation, and when it is deleted."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import sqlalchemy as sa

from ebbtide.errors import Failed
from ebbtide.settings import Settings
from ebbtide.storage import DeleteOutcome
from ebbtide.store.content.layout import DATA_PREFIX, TREES_PREFIX
from ebbtide.store.database.schema import dropped_tokens, pending, released, staged, upload_tokens
from ebbtide.store.embedded import Store
from ebbtide.store.gc.run_metadata import drop_ended
from ebbtide.store.reclaimer import Backlog, Reclaimed, Reclaimer, ReclaimThread
from ebbtide.store.repository import Repository
from ebbtide.store.staging.staged_rows import find_staged, write_staged
from ebbtide.store.staging.uploads import NewObject
from tests.support.clock import ManualClock
from tests.support.collections import raises
from tests.support.faulty import FaultyStorage, with_storage
from tests.support.lakes import contents, count, link, meanwhile, seal
from tests.support.locks import waits_for_a_lock
from tests.support.reachable import stored
from tests.support.versioned import VersionedBucket

LEASE = timedelta(hours=1)
TRASH = timedelta(days=7)
MOMENT = timedelta(microseconds=1)


def released_addresses(repository: Repository) -> set[str]:
    """Of objects: what failed commits wrote and deleted is looked for once more, too."""
    with repository.context.metadata.snapshot() as tx:
        addresses = set(tx.execute(sa.select(released.c.address)).scalars())
    return {address for address in addresses if address.startswith(DATA_PREFIX)}


def reclaim(store: Store, clock: ManualClock, after: timedelta = LEASE) -> Reclaimed:
    clock.advance(after)
    return Reclaimer(store).once()


DROPS: dict[str, Callable[[Repository, str], object]] = {
    "overwritten": lambda lake, path: lake.objects.put("main", path, b"2"),
    "overwritten with others": lambda lake, path: lake.objects.put_many(
        "main", [NewObject(path, b"2"), NewObject(path, b"3")]
    ),
    "overwritten by a copy": lambda lake, path: lake.objects.copy("main", path, "main", "kept"),
    "overwritten by an import": lambda lake, path: lake.addresses.stage(
        "main", path, "s3://b/k", size_bytes=1
    ),
    "overwritten by a link": lambda lake, path: link(lake, "main", path),
    "deleted": lambda lake, path: lake.objects.delete("main", path),
    "a path reset": lambda lake, path: lake.commits.reset_path("main", path),
    "a prefix reset": lambda lake, path: lake.commits.reset_prefix("main", path),
}


def test_what_is_dropped_goes_a_lease_later(
    store: Store, repository: Repository, clock: ManualClock
) -> None:
    kept = repository.objects.put("main", "kept", b"kept")
    dropped: set[str] = set()
    for how, drop in DROPS.items():
        dropped.add(repository.objects.put("main", how, b"1").address)
        drop(repository, how)
    reclaim(store, clock, LEASE - MOMENT)
    assert dropped <= stored(repository), "somebody may be reading them"
    reclaim(store, clock, MOMENT)
    assert not dropped & stored(repository)
    shown = {entry.address for entry in repository.objects.walk("main")} - {"s3://b/k"}
    assert kept.address in shown
    assert stored(repository) == shown
    repository.commits.reset("main")
    Reclaimer(store).once()
    reclaim(store, clock, LEASE - MOMENT)
    assert stored(repository) == shown
    reclaim(store, clock, MOMENT)
    assert stored(repository) == set()
    assert count(repository, released) == 0


def test_what_newer_sealed_tokens_hide_goes_with_the_commit(
    store: Store, repository: Repository, clock: ManualClock
) -> None:
    hidden = [repository.objects.put("main", path, b"1") for path in ("a", "b")]
    repository.objects.put("main", "c", b"1")
    seal(repository)
    repository.objects.put("main", "a", b"2")
    repository.objects.delete("main", "b")
    seal(repository)
    assert released_addresses(repository) == set(), "a reset may bring them back to light"
    repository.commits.commit("main", "")
    assert released_addresses(repository) == {entry.address for entry in hidden}
    reclaim(store, clock)
    assert not stored(repository) & {entry.address for entry in hidden}
    assert contents(repository, "main") == {"a": b"2", "c": b"1"}


@pytest.mark.parametrize("by", ["reclaimer", "fence"])
def test_a_branch_that_is_gone(
    store: Store, repository: Repository, clock: ManualClock, by: str
) -> None:
    repository.branches.create("dev", "main")
    repository.objects.put("dev", "a", b"1")
    seal(repository, "dev")
    repository.objects.put("dev", "a", b"2")
    repository.branches.delete("dev")
    reclaim(store, clock, TRASH - MOMENT)
    assert len(stored(repository)) == 2, "it can be restored"
    clock.advance(MOMENT)
    if by == "fence":
        with repository.context.metadata.transaction() as tx:
            tx.lock_repository(repository.info.repository_id, "exclusive")
            drop_ended(tx, repository.info.repository_id, lease_ttl=LEASE, trash_time=TRASH)
        assert count(repository, staged) == 2, "left to the reclaimer"
    assert Reclaimer(store).once().dropped_count == 2
    assert reclaim(store, clock).deleted_count == 2
    assert stored(repository) == set()
    assert [count(repository, table) for table in (staged, released, dropped_tokens)] == [0, 0, 0]


def test_a_reset_is_taken_apart_in_parts(
    store: Store, repository: Repository, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(7):
        repository.objects.put("main", f"{number}", b"1")
    repository.commits.reset("main")
    assert contents(repository, "main") == {}
    monkeypatch.setattr("ebbtide.store.reclaimer.BATCH_ADDRESSES", 3)
    seen: list[Reclaimed] = []
    stopping = Event()

    def stop(done: Reclaimed) -> None:
        seen.append(done)
        stopping.set()

    Reclaimer(store).once(stop, stopping)
    assert [done.dropped_count for done in seen] == [3]
    assert count(repository, staged) == 4
    assert Reclaimer(store).once().dropped_count == 4
    assert count(repository, dropped_tokens) == 0
    assert reclaim(store, clock).deleted_count == 7
    assert stored(repository) == set()


def test_an_upload_whose_clean_up_failed(
    store: Store, repository: Repository, clock: ManualClock
) -> None:
    def fail(method: str, _address: str) -> None:
        if method == "delete":
            raise Failed("storage_error", "made to fail")

    def fail_when_written(method: str, address: str) -> None:
        fail("delete" if method == "put" else method, address)

    storage = FaultyStorage(repository.storage, before=fail, after=fail_when_written)
    with raises("storage_error"):
        with_storage(repository, storage).objects.put("main", "a", b"1")
    assert len(stored(repository)) == 1
    assert reclaim(store, clock).deleted_count == 1
    assert stored(repository) == set()


def test_tokens_that_end_and_are_used(
    store: Store, repository: Repository, clock: ManualClock
) -> None:
    """What was begun before a token's end may be uploaded again, which linking does not change."""
    unused, used = (repository.addresses.get("main", path) for path in "ab")
    for given in (unused, used):
        repository.storage.put(given.address, b"1")
    entry = repository.addresses.link("main", "b", used.token)
    reclaim(store, clock, store.settings.upload_ttl - MOMENT)
    assert count(repository, upload_tokens) == 1
    repository.storage.put(used.address, b"again")
    assert reclaim(store, clock, MOMENT).ended_count == 1
    assert stored(repository) == {unused.address, used.address, entry.address}
    reclaim(store, clock)
    assert stored(repository) == {entry.address}


def test_a_write_that_was_never_finished(
    store: Store, repository: Repository, clock: ManualClock
) -> None:
    """Its process died: nobody gave the registration up."""

    def die(method: str, _address: str) -> None:
        if method == "put":
            raise KeyboardInterrupt

    dying = with_storage(repository, FaultyStorage(repository.storage, after=die))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ebbtide.store.staging.pending_writes.Writes._abandon", lambda *_: None)
        with pytest.raises(KeyboardInterrupt):
            dying.objects.put("main", "a", b"1")
    ttl = store.settings.write_ttl
    reclaim(store, clock, ttl - MOMENT)
    assert count(repository, pending) == 1
    assert reclaim(store, clock, MOMENT).ended_count == 1
    assert len(stored(repository)) == 1
    assert reclaim(store, clock).deleted_count == 1
    assert stored(repository) == set()


def test_the_address_of_a_copy_goes_with_its_last_path(
    store: Store, repository: Repository, clock: ManualClock
) -> None:
    shared = repository.objects.put("main", "a", b"1")
    repository.objects.copy("main", "b", "main", "a")
    repository.objects.delete("main", "a")
    assert reclaim(store, clock).deleted_count == 0
    assert contents(repository, "main") == {"b": b"1"}
    assert released_addresses(repository) == set(), "whoever drops the other releases it again"
    repository.objects.delete("main", "b")
    assert reclaim(store, clock).deleted_count == 1
    assert shared.address not in stored(repository)


def test_a_copy_of_what_a_commit_has(
    store: Store, repository: Repository, clock: ManualClock
) -> None:
    """One path is committed, the other is dropped before, or after, it was."""
    for path, drops_before in (("a", True), ("b", False)):
        repository.objects.put("main", path, path.encode())
        repository.objects.copy("main", "copy", "main", path)
        if drops_before:
            repository.objects.delete("main", "copy")
        repository.commits.commit("main", "")
        assert released_addresses(repository) == set()
    repository.objects.delete("main", "copy")
    repository.commits.commit("main", "")
    reclaim(store, clock, 10 * LEASE)
    assert contents(repository, "main") == {"a": b"a", "b": b"b"}


def test_a_copy_that_is_made_while_its_source_is_committed(
    store: Store, repository: Repository, clock: ManualClock
) -> None:
    """A staged entry with a committed address, which must not go with the entry."""
    committed = repository.objects.put("main", "a", b"1")
    late = meanwhile(
        repository, lambda: repository.objects.copy("main", "b", "main", "a"), TREES_PREFIX
    )
    late.commits.commit("main", "")
    assert repository.objects.stat("main", "b").address == committed.address
    assert repository.objects.copy("main", "c", "main", "b").address == committed.address
    repository.objects.put("main", "b", b"2")
    repository.commits.reset("main")
    reclaim(store, clock)
    reclaim(store, clock)
    assert repository.objects.get("main", "a") == b"1"


class Storage:
    """What happens to the deletes of a storage."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, repository: Repository) -> None:
        self.fails: set[str] = set()
        self.before: Callable[[], object] = lambda: None
        self.deletes: list[list[str]] = []
        kind = type(repository.storage)
        original = kind.delete

        def delete(storage: Any, addresses: list[str]) -> list[DeleteOutcome]:
            before, self.before = self.before, lambda: None
            before()
            self.deletes.append(list(addresses))
            failed = [each for each in addresses if each in self.fails]
            done = original(storage, [each for each in addresses if each not in self.fails])
            return [*done, *(DeleteOutcome(each, "failed", "made to fail") for each in failed)]

        monkeypatch.setattr(kind, "delete", delete)


@pytest.fixture
def storage(monkeypatch: pytest.MonkeyPatch, repository: Repository) -> Storage:
    return Storage(monkeypatch, repository)


def test_deletes_that_fail_are_tried_again_less_and_less_often(
    store: Store, repository: Repository, clock: ManualClock, storage: Storage
) -> None:
    kept, gone = (repository.objects.put("main", path, b"1").address for path in "ab")
    storage.fails = {kept}
    repository.commits.reset("main")
    Reclaimer(store).once()
    done = reclaim(store, clock)
    assert (done.deleted_count, done.failed_count) == (1, 1)
    assert stored(repository) == {kept}
    for waits in (1, 2, 4):
        wait_seconds = timedelta(seconds=waits)
        assert reclaim(store, clock, wait_seconds - MOMENT).failed_count == 0
        assert reclaim(store, clock, MOMENT).failed_count == 1
    storage.fails = set()
    assert reclaim(store, clock, timedelta(hours=1)).deleted_count == 1
    assert stored(repository) == set()
    assert count(repository, released) == 0
    assert storage.deletes[0] == sorted([kept, gone])


def test_the_claim_of_a_process_that_died_is_taken_up(
    store: Store, repository: Repository, clock: ManualClock, storage: Storage
) -> None:
    repository.objects.put("main", "a", b"1")
    repository.objects.delete("main", "a")

    def die() -> None:
        raise KeyboardInterrupt

    storage.before = die
    with pytest.raises(KeyboardInterrupt):
        reclaim(store, clock)
    ttl = store.settings.reclaim_claim_ttl
    assert reclaim(store, clock, ttl - MOMENT).deleted_count == 0
    assert reclaim(store, clock, MOMENT).deleted_count == 1
    assert count(repository, released) == 0


def test_a_claim_that_was_taken_over_is_not_forgotten_by_its_first_owner(
    store: Store, repository: Repository, clock: ManualClock, storage: Storage
) -> None:
    repository.objects.put("main", "a", b"1")
    repository.objects.delete("main", "a")
    seen: list[int] = []

    def another() -> None:
        clock.advance(store.settings.reclaim_claim_ttl)
        storage.fails = released_addresses(repository)
        seen.append(Reclaimer(store).once().failed_count)
        storage.fails = set()

    storage.before = another
    reclaim(store, clock)
    assert seen == [1]
    assert count(repository, released) == 1, "the other one tries again, and finds nothing"
    assert reclaim(store, clock, LEASE).failed_count == 0
    assert count(repository, released) == 0


def test_a_storage_of_somebody_else_is_left_alone(
    store: Store, repository: Repository, clock: ManualClock, storage: Storage
) -> None:
    repository.objects.put("main", "a", b"1")
    repository.objects.delete("main", "a")
    repository.storage.put("_ebbtide/OWNER", b"{}")
    assert reclaim(store, clock).failed_count == 1
    assert storage.deletes == []
    assert len(stored(repository)) == 1


@pytest.mark.parametrize("database_kind", ["postgres"], indirect=True)
def test_several_reclaimers_at_once_delete_each_object_once(
    store: Store, repository: Repository, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ebbtide.store.reclaimer.BATCH_ADDRESSES", 5)
    for number in range(40):
        repository.objects.put("main", f"{number}", b"1")
    repository.commits.reset("main")
    Reclaimer(store).once()
    clock.advance(LEASE)
    with ThreadPoolExecutor(4) as pool:
        done = [pool.submit(Reclaimer(store).once) for _ in range(4)]
        assert sum(each.result(120).deleted_count for each in done) == 40
    assert stored(repository) == set()
    assert count(repository, released) == 0


def test_the_backlog(store: Store, repository: Repository, clock: ManualClock) -> None:
    for path in ("a", "b"):
        repository.objects.put("main", path, b"1")
        repository.objects.delete("main", path)
        clock.advance(timedelta(minutes=1))
    repository.commits.reset("main")
    backlog, now = Reclaimer(store).backlog()
    assert backlog == Backlog(2, now - timedelta(minutes=2), 1)


def test_repositories_that_were_deleted(
    store: Store, repository: Repository, clock: ManualClock
) -> None:
    """In the trash, what was released is deleted; a gone one is collected by its own run."""
    kept, _, late = (repository.objects.put("main", path, b"1").address for path in "abc")
    repository.objects.delete("main", "b")
    clock.advance(TRASH / 2)
    repository.objects.delete("main", "c")
    store.catalog.delete("lake")
    Reclaimer(store).once()
    assert stored(repository) == {kept, late}
    clock.advance(TRASH)
    Reclaimer(store).once()
    assert stored(repository) == {kept, late}


def test_a_thread_reclaims_and_goes_on_after_a_defect(
    store: Store, repository: Repository, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    quick = Store(
        directory=store.directory,
        settings=Settings(reclaim_interval=timedelta(milliseconds=10)),
        metadata=store.metadata,
        store_id=store.store_id,
    )
    failed, seen = Event(), Event()

    def observe(_done: Reclaimed) -> None:
        if not failed.is_set():
            failed.set()
            raise ZeroDivisionError
        seen.set()

    thread = ReclaimThread(quick, observe)
    thread.start()
    for path, noticed in (("a", failed), ("b", seen)):
        repository.objects.put("main", path, b"1")
        repository.objects.delete("main", path)
        clock.advance(LEASE)
        assert noticed.wait(60)
    thread.stop()
    assert "ZeroDivisionError" in caplog.text
    assert stored(repository) == set()


@pytest.mark.twins
def test_two_who_write_to_one_path_at_once_release_what_each_replaced(
    repository: Repository,
) -> None:
    """On PostgreSQL the second waits for the row, and must find what the first wrote."""
    context = repository.context
    first, second, third = (
        replace(repository.objects.put("main", f"{number}", b"1"), path="a") for number in range(3)
    )
    written = Event()

    def stage(entry: Any, before_end: Callable[[], object]) -> None:
        with context.metadata.transaction() as tx:
            write_staged(tx, context.repository_id, "token", {"a": entry}, lease_ttl=LEASE)
            before_end()

    stage(first, lambda: None)
    with ThreadPoolExecutor(1) as pool:
        later: list[Any] = []

        def start_another() -> None:
            later.append(pool.submit(stage, third, written.set))
            assert waits_for_a_lock(context.metadata, later[0])

        stage(second, start_another)
        later[0].result(60)
    assert released_addresses(repository) == {first.address, second.address}
    with context.metadata.snapshot() as tx:
        assert find_staged(tx, context.repository_id, ["token"], ["a"])["token"]["a"] == third


@pytest.mark.parametrize("is_set", [True, False])
def test_versions_that_a_bucket_keeps(s3_url: str, tmp_path: Path, *, is_set: bool) -> None:
    del s3_url
    bucket, clock = VersionedBucket.with_lock(None), ManualClock(datetime.now(UTC))
    settings = Settings(lease_ttl=LEASE, delete_versions=is_set)
    with Store.init(tmp_path / "store", settings=settings, clock=clock) as store:
        lake = store.create_repository("lake", storage_url=f"{bucket.url}/lake")
        for content in (b"1", b"2"):
            lake.objects.put("main", "a", content)
        (old,) = released_addresses(lake)
        bucket.hold("ON")
        locked = reclaim(store, clock)
        assert (locked.deleted_count, locked.failed_count) == ((0, 1) if is_set else (1, 0))
        assert bucket.left(f"lake/{old}") == {f"lake/{old}": (1, 1)}
        bucket.hold("OFF")
        again = reclaim(store, clock)
        assert again.deleted_count + again.missing_count == int(is_set)
        assert bool(bucket.left(f"lake/{old}")) is not is_set
        assert released_addresses(lake) == set()
        assert contents(lake, "main") == {"a": b"2"}
