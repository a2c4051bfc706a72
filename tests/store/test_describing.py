"""New metadata of objects: which address the new entry has, and when that is given up."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from ebbtide.store.content.layout import TREES_PREFIX
from ebbtide.store.embedded import Store
from ebbtide.store.reclaim.reclaimer import Reclaimer
from ebbtide.store.repository import Repository
from tests.support.clock import ManualClock
from tests.support.collections import raises
from tests.support.lakes import contents, mark_purged, meanwhile, tombstone
from tests.support.reachable import stored

LEASE = timedelta(hours=1)
NEW = {"Key": "Value", "key": "value"}


def settle(store: Store, clock: ManualClock) -> None:
    for _ in range(2):
        clock.advance(LEASE)
        Reclaimer(store).once()


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
