"""From names and paths to addresses, and where an address is staged."""

from __future__ import annotations

from ebbtide.formats.base import ExpiredCommit, Protector
from ebbtide.formats.embedded import EmbeddedRepository
from ebbtide.store.collecting.tracing import address_at
from ebbtide.store.embedded import Store
from ebbtide.store.repository import Repository
from tests.support.clock import ManualClock
from tests.support.collections import of, of_files, raises


def protectors(store: Store, repository: Repository, address: str) -> list[Protector]:
    found = EmbeddedRepository(repository.context, store_id=store.store_id)
    with found.reading() as reading:
        return reading.protectors(address)


def expired(store: Store, repository: Repository, commit_id: str) -> ExpiredCommit | None:
    found = EmbeddedRepository(repository.context, store_id=store.store_id)
    with found.reading() as reading:
        return reading.expired_commit(commit_id)


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


def test_where_it_is_staged(store: Store, repository: Repository, clock: ManualClock) -> None:
    lake = repository
    lake.branches.create("side", "main")
    address = lake.objects.put("side", "b", b"1").address
    lake.objects.copy("side", "a", "side", "b")
    lake.branches.delete("side")
    gone_at = clock.now + store.settings.trash_time

    found = protectors(store, lake, address)
    places = [(each.where, each.until) for each in found if each.reason == "staged"]
    assert places == [("branch side, path a", gone_at), ("branch side, path b", gone_at)]
    assert protectors(store, lake, f"{address}0") == []
    clock.now = gone_at
    assert [each.reason for each in protectors(store, lake, address)] in ([], ["copy"])


def test_what_is_given_out(store: Store, repository: Repository, clock: ManualClock) -> None:
    given = repository.addresses.get("main", "a")
    expected = Protector(reason="upload token", since=clock.now, until=given.expires_at)
    assert protectors(store, repository, given.address) == [expected]
    clock.now = given.expires_at
    assert protectors(store, repository, given.address) == []


def test_commits_that_were_given_up(
    store: Store, repository: Repository, clock: ManualClock
) -> None:
    repository.objects.put("main", "a", b"1")
    lost = repository.commits.commit("main", "lost").commit_id
    repository.commits.commit("main", "next", allow_empty=True)
    assert expired(store, repository, lost) is None
    assert expired(store, repository, "0" * 32) is None
    repository.give_up(lost, "a disk broke")
    reason = "given up as damaged: a disk broke"
    assert expired(store, repository, lost) == ExpiredCommit(
        run_id=None, at=clock.now, reason=reason
    )
