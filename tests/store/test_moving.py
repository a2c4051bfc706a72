"""Moves, new metadata, traces of addresses, and what was purged: who may refer to an address."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
import sqlalchemy as sa

from ebbtide.errors import Gone
from ebbtide.formats.base import ExpiredCommit
from ebbtide.formats.embedded import EmbeddedRepository
from ebbtide.ids import new_id
from ebbtide.store.content.layout import DATA_PREFIX, TREES_PREFIX
from ebbtide.store.database import rows as batches
from ebbtide.store.database.schema import copies, released
from ebbtide.store.embedded import Store
from ebbtide.store.purge_records import SHOWN_MAX, find_purged, insert_purged, require_not_purged
from ebbtide.store.reclaimer import Reclaimer
from ebbtide.store.repository import Repository, address_at
from ebbtide.store.staging.staged_rows import begin_reading
from tests.support.boundaries import At, stepping
from tests.support.clock import ManualClock
from tests.support.collections import of, of_files, raises
from tests.support.lakes import (
    contents,
    count,
    mark_purged,
    meanwhile,
    pending_addresses,
    seal,
    tombstone,
)
from tests.support.reachable import stored

LEASE = timedelta(hours=1)


def settle(store: Store, clock: ManualClock) -> None:
    for _ in range(2):
        clock.advance(LEASE)
        Reclaimer(store).once()


def test_a_staged_entry_moves_without_its_bytes_and_a_committed_one_is_copied(
    store: Store, repository: Repository, clock: ManualClock
) -> None:
    source = repository.objects.put("main", "a", b"1", content_type="t", metadata={"k": "v"})
    repository.objects.put("main", "b", b"replaced")
    clock.advance(LEASE)
    moved = repository.objects.move("main", "b", "a")
    assert moved == replace(source, path="b") == repository.objects.stat("main", "b")
    settle(store, clock)
    repository.commits.commit("main", "")
    assert contents(repository, "main@") == {"b": b"1"}
    assert stored(repository) == {source.address}
    copied = repository.objects.move("main", "c", "b")
    assert copied == replace(source, path="c", address=copied.address)
    assert copied.address != source.address
    assert contents(repository, "main") == {"c": b"1"}
    assert contents(repository, "main@") == {"b": b"1"}
    repository.commits.reset("main")
    settle(store, clock)
    assert contents(repository, "main") == {"b": b"1"}
    assert stored(repository) == {source.address}


def test_imported_and_sealed_entries_move_as_they_are(
    store: Store, repository: Repository, clock: ManualClock
) -> None:
    repository.addresses.stage("main", "in", "s3://b/k", size_bytes=1)
    repository.commits.commit("main", "")
    assert repository.objects.move("main", "moved", "in").address == "s3://b/k"
    assert repository.objects.move("main", "again", "moved").address == "s3://b/k"
    repository.objects.delete("main", "again")
    source = repository.objects.put("main", "a", b"1")
    seal(repository)
    assert repository.objects.move("main", "b", "a").address == source.address
    assert repository.objects.move("main", "c", "b").address == source.address
    assert contents(repository, "main") == {"c": b"1"}
    repository.commits.commit("main", "")
    settle(store, clock)
    assert contents(repository, "main@") == {"c": b"1"}


def test_a_reading_under_way_finds_what_moved(repository: Repository) -> None:
    """Its pages may have passed the destination, and not come to the source."""
    with repository.context.metadata.transaction() as tx:
        begin_reading(tx, repository.info.repository_id, lasts=LEASE)
    moved = repository.objects.put("main", "b", b"1")
    repository.objects.move("main", "a", "b")
    with repository.context.metadata.snapshot() as tx:
        assert tx.execute(sa.select(copies.c.address)).scalars().all() == [moved.address]


def test_moves_that_are_refused(repository: Repository) -> None:
    purged = repository.objects.put("main", "purged", b"1").address
    repository.objects.put("main", "a", b"1")
    repository.commits.commit("main", "")
    staged = repository.objects.put("main", "staged", b"1").address
    mark_purged(repository, purged)
    mark_purged(repository, staged)
    before = [*repository.objects.walk("main")]
    for source, destination, kind in (
        ("a", "a", "invalid_argument"),
        ("a", "b\0", "invalid_path"),
        ("purged", "b", "purged"),
        ("staged", "b", "purged"),
    ):
        with raises(kind):
            repository.objects.move("main", destination, source)
        assert [*repository.objects.walk("main")] == before


def test_one_of_two_moves_of_an_entry_is_told_that_it_is_gone(repository: Repository) -> None:
    source = repository.objects.put("main", "a", b"1")
    meeting = At(1, lambda: repository.objects.move("main", "c", "a"))
    with raises("object_not_found"):
        stepping(repository, meeting).objects.move("main", "b", "a")
    assert {e.path: e.address for e in repository.objects.walk("main")} == {"c": source.address}


def test_a_committed_entry_that_is_let_go_while_it_is_copied(
    store: Store, repository: Repository, clock: ManualClock
) -> None:
    repository.objects.put("main", "a", b"1")
    head = repository.commits.commit("main", "").commit_id
    moving = meanwhile(repository, lambda: tombstone(repository, head), DATA_PREFIX)
    with raises("commit_expired"):
        moving.objects.move("main", "b", "a")
    assert pending_addresses(repository) == []
    settle(store, clock)
    assert count(repository, released) == 0


NEW = {"Key": "Value", "key": "value"}


def test_a_staged_object_keeps_its_bytes(
    store: Store, repository: Repository, clock: ManualClock
) -> None:
    first = repository.objects.put("main", "a", b"1", content_type="t", metadata={"old": "x"})
    clock.advance(LEASE)
    changed = repository.objects.set_metadata("main", "a", NEW)
    assert changed == replace(first, metadata=NEW) == repository.objects.stat("main", "a")
    settle(store, clock)
    repository.commits.commit("main", "")
    assert repository.objects.stat("main@", "a") == changed
    assert contents(repository, "main@") == {"a": b"1"}
    repository.objects.put("main", "b", b"2")
    repository.objects.set_metadata("main", "b", NEW)
    repository.commits.reset("main")
    settle(store, clock)
    assert stored(repository) == {first.address}, "an object that is only staged is given up"


def test_a_committed_object_is_never_given_up(
    store: Store, repository: Repository, clock: ManualClock
) -> None:
    first = {path: repository.objects.put("main", path, b"1") for path in "abcde"}
    head = repository.commits.commit("main", "").commit_id
    clock.advance(LEASE)
    for path, entry in first.items():
        changed = repository.objects.set_metadata("main", path, NEW)
        assert changed == replace(entry, metadata=NEW)
    assert [each.kind for each in repository.commits.diff_staged("main")] == ["changed"] * 5
    repository.objects.put("main", "a", b"2")
    repository.objects.delete("main", "b")
    repository.objects.set_metadata("main", "c", {})
    repository.commits.reset_path("main", "d")
    repository.commits.commit("main", "")
    settle(store, clock)
    assert contents(repository, head) == dict.fromkeys("abcde", b"1")
    assert contents(repository, "main") == {"a": b"2", **dict.fromkeys("cde", b"1")}


def test_an_object_that_is_being_committed(
    store: Store, repository: Repository, clock: ManualClock
) -> None:
    first = repository.objects.put("main", "a", b"1")
    describing = meanwhile(
        repository, lambda: repository.objects.set_metadata("main", "a", NEW), TREES_PREFIX
    )
    made = describing.commits.commit("main", "")
    assert repository.objects.stat(made.commit_id, "a") == first
    assert repository.objects.stat("main", "a") == replace(first, metadata=NEW)
    repository.commits.reset("main")
    settle(store, clock)
    assert contents(repository, "main") == {"a": b"1"}


def test_what_is_refused(repository: Repository) -> None:
    with raises("object_not_found"):
        repository.objects.set_metadata("main", "a", NEW)
    with raises("branch_not_found"):
        repository.objects.set_metadata("dev", "a", NEW)
    repository.objects.put("main", "a", b"1")
    with raises("invalid_argument"):
        repository.objects.set_metadata("main", "a", {"k": "v" * 16 * 1024})
    repository.protection.set(["main"])
    with raises("write_protected"):
        repository.objects.set_metadata("main", "a", NEW)
    repository.protection.set([])
    entry = repository.objects.stat("main", "a")
    assert entry.metadata == {}
    repository.commits.commit("main", "")
    tombstone(repository, repository.commits.resolve("main"))
    with raises("commit_expired"):
        repository.objects.set_metadata("main", "a", NEW)
    mark_purged(repository, repository.objects.put("main", "purged", b"1").address)
    with raises("purged"):
        repository.objects.set_metadata("main", "purged", NEW)


def test_an_imported_object(repository: Repository) -> None:
    repository.addresses.stage("main", "a", "s3://b/k", size_bytes=1)
    repository.objects.set_metadata("main", "a", {"k": "1"})
    repository.commits.commit("main", "")
    repository.objects.set_metadata("main", "a", NEW)
    found = repository.objects.stat("main", "a")
    assert (found.address, found.metadata) == ("s3://b/k", NEW)


def test_by_branch_tag_commit_and_collection(repository: Repository) -> None:
    lake = repository
    first = lake.objects.put("main", "a", b"1").address
    commit_id = lake.commits.commit("main", "one").commit_id
    lake.tags.create("v1", commit_id)
    second = lake.objects.put("main", "a", b"2").address
    project = lake.projects.create("p")
    lake.collections.create(project.project_id, "c", of(of_files({"x": b"3"})))
    context = lake.context
    assert address_at(context, "main", "a") == second
    assert address_at(context, "v1", "a") == first
    assert address_at(context, "main@", "a") == first
    assert address_at(context, commit_id[:8], "a") == first
    assert address_at(context, "p/c", "x") not in (first, second)
    for ref, path, kind in (
        ("main", "b", "object_not_found"),
        ("p/c", "a", "object_not_found"),
        ("p/d", "a", "ref_not_found"),
        ("main", "", "invalid_path"),
        ("ma\0in", "a", "invalid_argument"),
    ):
        with raises(kind):
            address_at(context, ref, path)


def test_a_branch_comes_before_a_collection_of_its_name(repository: Repository) -> None:
    project = repository.projects.create("p")
    repository.collections.create(project.project_id, "c", of(of_files({"x": b"1"})))
    repository.branches.create("p/c", "main")
    staged = repository.objects.put("p/c", "x", b"2").address
    assert address_at(repository.context, "p/c", "x") == staged


def test_commits_that_were_given_up(
    store: Store, repository: Repository, clock: ManualClock
) -> None:
    repository.objects.put("main", "a", b"1")
    lost = repository.commits.commit("main", "lost").commit_id
    repository.commits.commit("main", "next", allow_empty=True)
    found = EmbeddedRepository(repository.context, store_id=store.store_id)
    with found.reading() as reading:
        assert reading.expired_commit(lost) is reading.expired_commit("0" * 32) is None
    repository.give_up(lost, "a disk broke")
    reason = "given up as damaged: a disk broke"
    with found.reading() as reading:
        assert reading.expired_commit(lost) == ExpiredCommit(
            run_id=None, at=clock.now, reason=reason
        )


def test_a_purged_address_is_refused_with_the_purges_that_took_it(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "VALUES_PER_STATEMENT", 3)
    gone = [f"data/s/{number:02}" for number in range(12)]
    repository_id = repository.info.repository_id
    with repository.context.metadata.transaction() as tx:
        insert_purged(tx, repository_id, "p1", gone[:5])
        insert_purged(tx, repository_id, "p2", gone[5:])
        tx.lock_repository(repository_id)
        require_not_purged(tx, repository_id, ["data/s/kept", "s3://elsewhere/data/s/00"])
        with pytest.raises(Gone) as caught:
            require_not_purged(tx, repository_id, iter(["data/s/kept", *reversed(gone)]))
        assert find_purged(tx, repository_id, [*gone, "data/s/kept"]) == dict.fromkeys(
            gone[:5], "p1"
        ) | dict.fromkeys(gone[5:], "p2")
    assert caught.value.kind == "purged"
    assert caught.value.details == {
        "purge_ids": ["p1", "p2"],
        "address_count": 12,
        "addresses": gone[:SHOWN_MAX],
    }
    assert "data/s/00 and 11 more" in caught.value.message


def test_what_one_repository_purged_is_no_matter_of_another(
    store: Store, repository: Repository
) -> None:
    other = store.create_repository("other", storage_url=f"memory:{new_id()}")
    mark_purged(repository, "data/s/1")
    with other.context.metadata.transaction() as tx:
        require_not_purged(tx, other.info.repository_id, ["data/s/1"])
