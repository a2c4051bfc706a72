"""Moves within a branch: what moves without its bytes, and what is copied."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import sqlalchemy as sa

from ebbtide.store.content.layout import DATA_PREFIX
from ebbtide.store.database.schema import copies, released
from ebbtide.store.embedded import Store
from ebbtide.store.reclaim.reclaimer import Reclaimer
from ebbtide.store.repository import Repository
from ebbtide.store.staging.copies import begin_reading
from tests.support.boundaries import At, stepping
from tests.support.clock import ManualClock
from tests.support.collections import raises
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
