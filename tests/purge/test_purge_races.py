"""What happens between the steps of a purge: forced, one interleaving at a time."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from ebbtide.errors import NotFound
from ebbtide.gc.engines.base import Engine
from ebbtide.purge import purger
from ebbtide.purge.plan import PurgeReport
from ebbtide.purge.purger import Purges
from ebbtide.purge.references import ReferenceSearch
from ebbtide.purge.scanning import TreeScan
from ebbtide.purge.verifying import verify
from ebbtide.storage import LocalStorage
from ebbtide.store.collections.contents import ContentChange, FromRef
from ebbtide.store.commits import commits, publication
from ebbtide.store.commits.publication import Publication
from ebbtide.store.content.layout import OWNER_ADDRESS, RANGES_PREFIX
from ebbtide.store.embedded import Store
from ebbtide.store.objects import changes, objects
from ebbtide.store.purge_records import insert_purged
from ebbtide.store.repositories.leases import take_lease
from ebbtide.store.repository import Repository
from tests.support.clock import ManualClock
from tests.support.collections import raises
from tests.support.dying import Died
from tests.support.faulty import FaultyStorage, OncePut, fail_deletes, with_storage
from tests.support.lakes import every_file
from tests.support.purging import address_of, data_files, in_the_way, purge, request, save
from tests.support.world import collector_of


@contextmanager
def between_the_look_and_the_lock(action: Callable[[], object]) -> Iterator[None]:
    """`action` happens once, when a purge that is about to close has looked at all trees."""
    original = TreeScan.look_at
    done: list[bool] = []

    def look_at(self: TreeScan, trees: dict[str, str]) -> None:
        original(self, trees)
        if not done:
            done.append(True)
            action()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TreeScan, "look_at", look_at)
        yield


def planned(store: Store, *paths: str, all_history: bool = False) -> str:
    """The id of a purge whose plan nothing is in the way of."""
    report = purge(store, *paths, dry_run=True, all_history=all_history)
    assert report.row.state == "planned"
    return report.row.purge_id


def closing_after(store: Store, purge_id: str, action: Callable[[], object]) -> PurgeReport:
    with between_the_look_and_the_lock(action):
        return Purges(store).carry_out(purge_id)


def test_with_all_history_that_commit_is_named_too(store: Store, repository: Repository) -> None:
    save(repository, "a")
    purge_id = planned(store, "main:a", all_history=True)
    assert closing_after(store, purge_id, lambda: save(repository, "b")).row.state == "done"
    assert data_files(repository) == {address_of(repository, "main", "b")}


def collected(lake: Repository) -> object:
    project_id = lake.projects.create("p").project_id
    return lake.collections.create(project_id, "c", ContentChange([FromRef("main")]))


MEANWHILE: list[tuple[str, bool, Callable[[Repository], object]]] = [
    ("commit", False, lambda lake: save(lake, "b")),
    ("commit", True, lambda lake: lake.commits.commit("main", "quick")),
    ("staged", True, lambda lake: lake.objects.copy("main", "copy", "main", "a")),
    ("collection", False, collected),
    ("hold", False, lambda lake: lake.retention.hold("main", "court")),
]
"""What is in the way then, whether the object is staged alone, and what is done."""


@pytest.mark.parametrize(("kind", "is_staged", "act"), MEANWHILE)
def test_what_was_made_meanwhile_is_in_the_way(
    store: Store,
    repository: Repository,
    kind: str,
    is_staged: bool,
    act: Callable[[Repository], object],
) -> None:
    repository.objects.put("main", "a", b"a") if is_staged else save(repository, "a")
    purge_id = planned(store, "main:a", all_history=kind == "collection")
    report = closing_after(store, purge_id, lambda: act(repository))
    assert report.row.state == "refused"
    assert {found for found, _, _ in in_the_way(report)} == {kind}
    assert repository.objects.get("main", "a") == b"a"


def test_a_copy_whose_bytes_were_read_before_the_purge_is_refused(
    store: Store, repository: Repository
) -> None:
    save(repository, "a")
    action = OncePut("data/", lambda: purge(store, "main:a"))
    slow = with_storage(repository, FaultyStorage(repository.storage, after=action))
    with raises("purged"):
        slow.objects.copy("main", "copy", "main", "a")
    assert data_files(repository) == set()


def test_a_shared_copy_after_the_purge_finds_nothing(store: Store, repository: Repository) -> None:
    repository.objects.put("main", "a", b"a")
    original = changes.share_staged

    def late(*given: object) -> object:
        purge(store, "main:a")
        return original(*given)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(objects, "share_staged", late)
        with raises("object_not_found"):
            repository.objects.copy("main", "copy", "main", "a")
    assert data_files(repository) == set()


def test_a_commit_of_what_was_staged_and_purged_meanwhile_is_not_published(
    store: Store, repository: Repository
) -> None:
    repository.objects.put("main", "a", b"a")
    repository.objects.put("main", "b", b"b")
    original = publication.publish

    def late(context: object, publication: Publication) -> object:
        patch.undo()
        assert purge(store, "main:a").row.state == "done"
        return original(context, publication)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(commits, "publish", late)
        with raises("branch_moved"):
            repository.commits.commit("main", "slow")
    repository.commits.commit("main", "again")
    assert [entry.path for entry in repository.objects.walk("main")] == ["b"]


def test_a_collection_that_is_being_made_while_it_is_purged_is_refused(
    store: Store, repository: Repository
) -> None:
    save(repository, "a")
    project = repository.projects.create("p").project_id
    action = OncePut("_ebbtide/trees/", lambda: purge(store, "main:a"))
    slow = with_storage(repository, FaultyStorage(repository.storage, before=action))
    with raises("purged"):
        slow.collections.create(project, "c", ContentChange([FromRef("main", into="x/")]))


def test_a_link_of_an_address_that_was_purged_is_refused(
    store: Store, repository: Repository
) -> None:
    # No entry has such an address, so that only somebody at the database can do this.
    given = repository.addresses.get("main", "a")
    repository.storage.put(given.address, b"a")
    with store.metadata.transaction() as tx:
        insert_purged(tx, repository.info.repository_id, "p1", [given.address])
    with raises("purged"):
        repository.addresses.link("main", "a", given.token)


@contextmanager
def dying_at(place: object, name: str) -> Iterator[None]:
    def die(*_given: object, **_named: object) -> None:
        raise Died

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Died):
        patch.setattr(place, name, die)
        yield


STEPS: dict[str, tuple[object, str]] = {
    "before the plan is written": (purger, "write_plan"),
    "after the plan": (ReferenceSearch, "close"),
    "after the transaction": (purger, "delete_objects"),
    "before the first delete": (LocalStorage, "delete"),
    "before the record": (purger, "write_record"),
}


@pytest.mark.parametrize("step", STEPS)
def test_a_purge_that_was_killed_goes_on(
    store: Store, repository: Repository, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ebbtide.purge.objects.ROWS_PER_PART", 2)
    paths = [f"p{number}" for number in range(7)]
    save(repository, *paths, "kept")
    kept = address_of(repository, "main", "kept")
    purges = Purges(store)
    purge_id = purges.begin("lake", request(*(f"main:{path}" for path in paths))).purge_id

    with dying_at(*STEPS[step]):
        purges.carry_out(purge_id)
    before = purges.show(purge_id).row
    assert (before.closed_at is None) == (step in list(STEPS)[:2])
    assert purges.carry_out(purge_id).row.state == "done"
    assert data_files(repository) == {kept}
    assert verify(store, purge_id).differences == ()


def test_deletes_that_fail_leave_it_incomplete_until_they_succeed(
    store: Store, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(repository, "a", "b")
    stuck = address_of(repository, "main", "a")
    fail_deletes(monkeypatch, stuck.__eq__)
    report = purge(store, commits=("main",))
    assert report.row.state == "incomplete"
    assert report.figures.outcomes == {"deleted": 1, "failed": 1}
    kinds = {each.kind for each in verify(store, report.row.purge_id).differences}
    assert {"state", "still_there", "outcome"} <= kinds
    monkeypatch.undo()

    done = Purges(store).carry_out(report.row.purge_id)

    assert done.row.state == "done"
    assert done.record is not None and done.record["previous_record_sha256"] is not None
    assert verify(store, report.row.purge_id).differences == ()


@pytest.mark.parametrize("step", ["keep_records", "close_whole", "delete_whole", "write_record"])
def test_the_purge_of_a_repository_that_was_killed_goes_on(
    store: Store, repository: Repository, step: str
) -> None:
    save(repository, "a", "b")
    purges = Purges(store)
    purge_id = purges.begin("lake", request(repository=True)).purge_id

    with dying_at(purger, step):
        purges.carry_out(purge_id)
    assert purges.carry_out(purge_id).row.state == "done"
    assert data_files(repository, "") == {OWNER_ADDRESS}
    assert verify(store, purge_id).differences == ()


def test_a_write_that_ends_while_its_repository_is_purged_leaves_nothing(
    store: Store, repository: Repository
) -> None:
    save(repository, "a")
    late = f"data/{'0' * 32}/{'1' * 32}"
    original = LocalStorage.delete
    done: list[bool] = []

    def and_a_file(*given: object) -> object:
        found = original(*given)  # type: ignore[arg-type]
        if not done:
            done.append(True)
            repository.storage.put(late, b"late")
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalStorage, "delete", and_a_file)
        report = purge(store, whole=True)
    assert report.row.state == "done"
    assert data_files(repository, "") == {OWNER_ADDRESS}


def test_a_purge_waits_for_no_run_and_no_run_begins_beside_it(
    store: Store, repository: Repository
) -> None:
    save(repository, "a")
    lease = take_lease(
        store.metadata,
        repository_id=repository.info.repository_id,
        run_id="run",
        lease_ttl=store.settings.run_lease_ttl,
    )
    assert lease.run_epoch
    with raises("run_in_progress"):
        purge(store, "main:a")
    assert repository.objects.get("main", "a") == b"a"


def test_a_purge_that_lost_the_repository_closes_nothing(
    store: Store, repository: Repository, clock: ManualClock
) -> None:
    save(repository, "a")
    purge_id = planned(store, "main:a")

    def stolen() -> None:
        clock.now += timedelta(hours=2)
        take_lease(
            store.metadata,
            repository_id=repository.info.repository_id,
            run_id="run",
            lease_ttl=timedelta(0),
        )

    with raises("lease_lost"):
        closing_after(store, purge_id, stolen)
    assert repository.objects.get("main", "a") == b"a"
    assert Purges(store).find(purge_id).state == "planned"


def collect(store: Store, repository: Repository) -> dict[str, Any]:
    """A whole run of the collector, however young the files are."""
    return collector_of(store, repository, mode="auto", allow_share=True).run().to_json()


def test_no_run_takes_what_a_killed_purge_left_while_commits_refer_to_it(
    store: Store, repository: Repository, clock: ManualClock
) -> None:
    save(repository, "a", "b")
    kept = address_of(repository, "main", "b")
    clock.now += timedelta(days=1)
    assert collect(store, repository)["state"] == "swept"
    purges = Purges(store)
    purge_id = purges.begin("lake", request("main:a")).purge_id

    with dying_at(purger, "delete_objects"):
        purges.carry_out(purge_id)
    assert len(data_files(repository)) == 2
    clock.now += timedelta(days=1)

    report = collect(store, repository)

    assert (report["state"], report["deleted_count"]) == ("swept", 0)
    assert len(data_files(repository)) == 2
    assert [text for text in report["warnings"] if f"purge resume {purge_id}" in text]
    assert purges.carry_out(purge_id).figures.outcomes == {"deleted": 1}
    assert data_files(repository) == {kept}
    assert "purge resume" not in str(collect(store, repository)["warnings"])


def test_what_the_index_knows_is_not_read_and_nothing_is_overlooked(
    store: Store, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(12):
        save(repository, f"f{number:02}")
    first = repository.commits.log("main", amount=100)[-2].commit_id
    collect(store, repository)
    read: list[str] = []
    original = TreeScan._look_into

    def counted(self: TreeScan, engine: Engine, nodes: list[tuple[str, str, int]]) -> None:
        read.extend(node_id for node_id, _, _ in nodes)
        original(self, engine, nodes)

    monkeypatch.setattr(TreeScan, "_look_into", counted)

    report = purge(store, f"{first}:f00")

    assert report.plan is not None
    assert report.plan.reference_counts == {"commit": 11}
    with_it = set(read)
    monkeypatch.setattr("ebbtide.purge.scanning.TreeScan.recall", lambda *_given, **_named: None)
    read.clear()
    assert purge(store, f"{first}:f00").plan is not None
    assert with_it < set(read)


def test_a_range_that_was_written_after_the_index_is_read(
    store: Store, repository: Repository, clock: ManualClock
) -> None:
    """The index says that it has none of the addresses. The file may say something else by now."""
    save(repository, "a")
    collect(store, repository)
    (address,) = every_file(repository, RANGES_PREFIX)
    repository.storage.put(address, b"damaged")
    later = (clock.now + timedelta(seconds=1)).timestamp()
    os.utime(Path(repository.storage.url.removeprefix("file://")) / address, (later, later))
    repository.objects.put("main", "b", b"b")
    with raises("corrupt_node"):
        purge(store, "main:b")


@pytest.mark.parametrize(
    ("prefix", "write"),
    [
        (RANGES_PREFIX, lambda lake: lake.commits.commit("main", "")),
        ("data/", lambda lake: lake.objects.put("main", "a", b"1")),
    ],
)
def test_a_write_that_outlives_its_repository_leaves_no_file(
    store: Store, repository: Repository, prefix: str, write: Callable[[Repository], object]
) -> None:
    """The repository is purged meanwhile. Nobody would collect what it left."""
    repository.objects.put("main", "a", b"1")
    late = OncePut(prefix, lambda: purge(store, whole=True))
    with pytest.raises(NotFound):
        write(with_storage(repository, FaultyStorage(repository.storage, before=late)))
    assert data_files(repository, "") == {OWNER_ADDRESS}
