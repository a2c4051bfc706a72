"""What a purge deletes, what it is refused for, and what it leaves alone."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from ebbtide.gc import quarantine
from ebbtide.gc.quarantine import Quarantine
from ebbtide.purge.plan import PurgeReport
from ebbtide.purge.purger import Purges
from ebbtide.purge.request import Request
from ebbtide.purge.verifying import verify
from ebbtide.settings import Settings
from ebbtide.storage import LocalStorage
from ebbtide.store.collections.contents import ContentChange, Located
from ebbtide.store.embedded import Store
from ebbtide.store.repository import Repository
from tests.conftest import START
from tests.support.clock import ManualClock
from tests.support.collections import raises
from tests.support.purging import (
    SECRET_KEY,
    WHO,
    address_of,
    data_files,
    in_the_way,
    purge,
    request,
    save,
)


def test_a_plan_that_is_interrupted_leaves_no_local_files(
    store: Store, repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(repository, "a")
    local = tmp_path / "local"
    local.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(local))

    def interrupt(*_given: object, **_named: object) -> None:
        assert [*local.iterdir()]
        raise KeyboardInterrupt

    monkeypatch.setattr("ebbtide.purge.objects.write_objects", interrupt)
    with pytest.raises(KeyboardInterrupt):
        purge(store, "main:a", all_history=True)
    assert [*local.iterdir()] == []


def test_a_commit_without_its_branch_is_named_with_an_at(
    store: Store, repository: Repository
) -> None:
    save(repository, "a")
    repository.objects.put("main", "a", b"newer")

    assert purge(store, "main@:a").row.state == "done"
    assert repository.objects.get("main", "a") == b"newer"


def test_a_hold_is_not_gone_past(store: Store, repository: Repository) -> None:
    commit_id = save(repository, "a")
    repository.retention.hold("main", "a court")

    refused = purge(store, "main:a")

    assert refused.row.error is not None and refused.row.error["kind"] == "purge_held"
    assert in_the_way(refused) == {("hold", commit_id, ("a court",))}
    refused = purge(store, commits=("main",))
    assert refused.row.error is not None and refused.row.error["kind"] == "purge_held"
    assert in_the_way(refused) == {("hold", commit_id, ("a court",))}
    assert repository.objects.get("main", "a") == b"a"
    repository.retention.release("main")
    assert purge(store, "main:a").row.state == "done"


def test_an_object_uploaded_for_a_locator_goes_though_its_lease_has_not_ended(
    store: Store, repository: Repository
) -> None:
    project = repository.projects.create("p").project_id
    signed = repository.locators.upload(b"private")
    change = ContentChange([Located({"x": signed.locator})])
    made = repository.collections.create(project, "c", change)
    repository.addresses.get("main", "b")  # another upload, which has nothing to do with it

    assert purge(store, collections=(made.collection_id,)).row.state == "done"
    assert data_files(repository) == set()
    with raises("purged"):
        repository.locators.read(signed.locator)
    with raises("purged"):
        repository.collections.create(project, "again", change)


def test_a_plan_says_how_long_a_signed_url_would_last(
    store: Store, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a staged object, too. The purge does not wait for it."""
    monkeypatch.setattr(LocalStorage, "sign_get", lambda *_given, **_named: "https://signed")
    repository.objects.put("main", "a", b"a")
    assert planned_until(purge(store, "main:a", dry_run=True)) is None
    expires_at = repository.signed_reads.sign("main", "a").expires_at
    until = planned_until(purge(store, "main:a", dry_run=True))
    assert until is not None and until >= expires_at
    assert purge(store, "main:a").row.state == "done"


def planned_until(report: PurgeReport) -> datetime | None:
    assert report.plan is not None
    return report.plan.promised_until


def test_what_was_imported_stays(store: Store, repository: Repository, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_bytes(b"theirs")
    repository.addresses.stage("main", "b", outside.as_uri(), size_bytes=6)
    commit_id = save(repository, "a")

    done = purge(store, commits=(commit_id,))

    assert done.figures.object_count == 1
    assert outside.read_bytes() == b"theirs"
    assert repository.objects.get("main", "b") == b"theirs"


def test_a_dry_run_is_a_plan_that_can_be_carried_out(store: Store, repository: Repository) -> None:
    """An object is listed once with all its paths."""
    repository.objects.put("main", "b", b"1")
    repository.objects.copy("main", "a", "main", "b")
    repository.commits.commit("main", "two paths")
    before = data_files(repository)
    purges = Purges(store)

    planned = purge(store, commits=("main",), dry_run=True)

    assert planned.row.state == "planned"
    assert data_files(repository) == before
    assert purges.objects(planned, limit=5) == [
        {
            "address": address_of(repository, "main", "a"),
            "size_bytes": 1,
            "checksum": repository.objects.stat("main", "a").checksum,
            "paths": ["a", "b"],
        }
    ]
    assert repository.objects.get("main", "a") == b"1"
    assert purges.carry_out(planned.row.purge_id).row.state == "done"
    with raises("purge_ended"):
        purges.carry_out(planned.row.purge_id)


def test_all_that_is_in_the_way_is_in_a_file(store: Store, repository: Repository) -> None:
    save(repository, "a")
    commits = [save(repository, f"b{number}") for number in range(25)]

    refused = purge(store, "main:a")

    assert refused.plan is not None
    assert len(refused.plan.references) == 20
    assert refused.plan.reference_counts == {"commit": 25}
    table = pq.read_table(Path(refused.row.record_url) / "references.parquet")
    assert set(commits[:-1]) < set(table.column("id").to_pylist())
    assert table.num_rows == 25


def test_what_is_not_there_cannot_be_named(store: Store, repository: Repository) -> None:
    save(repository, "a")
    asked: tuple[tuple[str, Callable[[], Request]], ...] = (
        ("invalid_argument", lambda: request()),
        ("invalid_argument", lambda: request("main:a", repository=True)),
        ("invalid_argument", lambda: request("no colon")),
        ("invalid_path", lambda: request("main:a\0")),
        ("ref_not_found", lambda: request("nowhere:a")),
        ("object_not_found", lambda: request("main:nothing")),
        ("collection_not_found", lambda: request(collections=("nothing",))),
    )
    for kind, make in asked:
        with raises(kind):
            Purges(store).begin("lake", make())
    assert Purges(store).list("lake") == []


def test_the_record_says_who_when_why_and_what(
    store: Store, repository: Repository, clock: ManualClock
) -> None:
    save(repository, "a")
    entry = repository.objects.stat("main", "a")
    clock.now += timedelta(hours=1)

    done = purge(store, "main:a")

    assert done.record is not None
    assert done.record["who"] == WHO
    assert done.record["reason"] == "a subject asked for it"
    assert done.record["closed_at"] == clock.now.isoformat()
    assert done.record["request"]["paths"] == ["main:a"]
    (part,) = done.record["list"]
    rows = pq.read_table(Path(done.row.record_url) / part["name"]).to_pylist()
    assert rows == [
        {
            "address": entry.address,
            "size_bytes": 1,
            "checksum": entry.checksum,
            "paths": ["a"],
            "outcome": "deleted",
            "error": None,
        }
    ]


def test_a_whole_repository_goes_and_its_records_outlast_it(
    store: Store, repository: Repository, tmp_path: Path
) -> None:
    save(repository, "a", "b")
    repository.objects.put("main", "staged", b"s")
    earlier = purge(store, "main:a")
    root = tmp_path / "store" / "storage" / "lake"
    foreign = {"notes.txt", "_ebbtide/gc/notes.txt", "_ebbtide/gc/inner/_lakefs/dummy"}
    for name in foreign:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("not ours")
    assert repository.symlinks.write("main").file_count
    repository.retention.hold("main", "a court")
    assert purge(store, whole=True).row.state == "refused"
    repository.retention.release("main")

    done = purge(store, whole=True)

    assert done.row.state == "done"
    left = {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}
    assert left == foreign | {"_ebbtide/OWNER"}
    assert done.figures.foreign_count == len(foreign)
    with raises("repository_not_found"):
        store.repository("lake")
    paths = [path for each in Purges(store).objects(done, limit=99) for path in each["paths"]]
    assert paths == ["b"]
    for report in (earlier, done):
        assert Purges(store).show(report.row.purge_id).record == report.record
        assert verify(store, report.row.purge_id).differences == ()
    states = [row.state for row in Purges(store).list("lake")]
    assert sorted(states) == ["done", "done", "refused"]


def test_without_a_place_for_its_record_a_repository_is_not_purged(
    database_url: str, store: Store
) -> None:
    store.create_repository("lake")
    settings = Settings(database_url=database_url, secret_key=SECRET_KEY)
    with Store.open(None, settings=settings) as elsewhere, raises("invalid_argument"):
        purge(elsewhere, whole=True)


def test_a_copy_in_quarantine_goes_too(store: Store, repository: Repository) -> None:
    """A power cut during a move leaves two names."""
    save(repository, "a", "b")
    storage, run_id = repository.storage, "1" * 32
    quarantine.write(storage, Quarantine(run_id, "held", START + timedelta(days=1)))
    copies = {
        path: quarantine.prefix_of(run_id) + address_of(repository, "main", path) for path in "ab"
    }
    for path, copy in copies.items():
        storage.put(copy, path.encode())
    assert purge(store, "main:a").row.state == "done"
    assert storage.head(copies["a"]) is None
    assert storage.get(copies["b"]) == b"b"
