"""Verification: each difference between a record, the database and the storage is named."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from ebbtide.gc.options import RunOptions
from ebbtide.gc.removal import Remover
from ebbtide.purge import record as records
from ebbtide.purge import verifying
from ebbtide.purge.deleting import outlast
from ebbtide.purge.plan import PurgeReport
from ebbtide.purge.purger import Purges
from ebbtide.purge.verifying import verify
from ebbtide.store.database.schema import purged, purges
from ebbtide.store.embedded import Store
from ebbtide.store.purge_records import insert_purged
from ebbtide.store.repository import Repository
from tests.support.clock import ManualClock
from tests.support.engines import INLINE
from tests.support.gone import gone_repository
from tests.support.purging import address_of, purge, save


def kinds(store: Store, report: PurgeReport) -> set[str]:
    return {each.kind for each in verify(store, report.row.purge_id).differences}


def edit(place: Path, change: Callable[[dict[str, Any]], object]) -> None:
    path = place / "record-1.json"
    content = json.loads(path.read_bytes())
    change(content)
    path.write_text(json.dumps(content, indent=1))


@pytest.fixture
def done(store: Store, repository: Repository) -> PurgeReport:
    save(repository, "a", "b", "kept")
    report = purge(store, "main:a", "main:b")
    assert verify(store, report.row.purge_id).differences == ()
    return report


def forge(content: dict[str, Any]) -> None:
    private = Ed25519PrivateKey.generate()
    content["reason"] = "another"
    content["key"]["public_key"] = private.public_key().public_bytes_raw().hex()
    content["signature"] = private.sign(records._signed_bytes(content)).hex()


PART: Final = "deleted/part-00000-000.parquet"
CHANGES: Final[dict[str, tuple[set[str], Callable[[Path], object]]]] = {
    "not made by a key of this store": ({"signature", "record"}, partial(edit, change=forge)),
    "fewer objects than the plan": (
        {"list"},
        lambda at: pq.write_table(pq.read_table(at / PART).slice(1), at / PART),
    ),
    "part-00009.parquet is not in the record": (
        {"list"},
        lambda at: (at / PART).rename(at / "deleted" / "part-00009.parquet"),
    ),
    "there is no record": ({"record"}, lambda at: (at / "record-1.json").unlink()),
    "plan.json": ({"record"}, lambda at: (at / "plan.json").unlink()),
}
"""By what verification says: the kinds of the differences, and the change."""


def test_files_that_were_changed(store: Store, done: PurgeReport, tmp_path: Path) -> None:
    place, whole = Path(done.row.record_url), tmp_path / "whole"
    shutil.copytree(place, whole)
    for says, (expected, change) in CHANGES.items():
        change(place)
        assert kinds(store, done) == expected, says
        differences = verify(store, done.row.purge_id).differences
        assert any(says in each.text for each in differences), says
        shutil.rmtree(place)
        shutil.copytree(whole, place)
    assert kinds(store, done) == set()


def test_a_record_that_was_changed(store: Store, done: PurgeReport) -> None:
    place = Path(done.row.record_url)
    whole = (place / "record-1.json").read_bytes()
    for field in ("reason", "who", "closed_at", "outcomes", "named", "list"):
        to: object = [] if field == "list" else {"x": 1}
        edit(place, partial(dict.update, **{field: to}))
        assert {"signature", "record"} <= kinds(store, done), field
        (place / "record-1.json").write_bytes(whole)


def test_a_genuine_record_of_another_purge(store: Store, repository: Repository) -> None:
    save(repository, "a", "b")
    first, second = purge(store, "main:a"), purge(store, "main:b")
    other = Path(first.row.record_url) / "record-1.json"
    (Path(second.row.record_url) / "record-1.json").write_bytes(other.read_bytes())
    found = kinds(store, second)
    assert "record" in found
    assert "signature" not in found


def test_an_object_that_is_back(
    store: Store, repository: Repository, done: PurgeReport, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = address_of(repository, "main", "a")
    repository.storage.put(address, b"restored from a backup")
    for heads_max in (verifying.HEADS_MAX, 0):
        monkeypatch.setattr(verifying, "HEADS_MAX", heads_max)
        (found,) = verify(store, done.row.purge_id).differences
        assert found.kind == "still_there"
        assert address in found.text


def test_an_address_that_was_opened_again(
    store: Store, repository: Repository, done: PurgeReport
) -> None:
    address = address_of(repository, "main", "a")
    with store.metadata.transaction() as tx:
        tx.execute(sa.delete(purged).where(purged.c.address == address))
    found = verify(store, done.row.purge_id).differences
    assert [each.kind for each in found] == ["not_closed"]
    assert address in found[0].text


def test_an_address_that_was_closed_and_is_not_in_the_list(
    store: Store, repository: Repository, done: PurgeReport
) -> None:
    with store.metadata.transaction() as tx:
        insert_purged(tx, repository.info.repository_id, done.row.purge_id, ["data/x/y"])
    assert kinds(store, done) == {"list"}


def test_a_row_that_was_changed(store: Store, done: PurgeReport) -> None:
    with store.metadata.transaction() as tx:
        request = done.row.request | {"reason": "a better one"}
        tx.execute(sa.update(purges).values(request=request))
    assert kinds(store, done) == {"record"}


def test_a_purge_that_has_not_ended(store: Store, repository: Repository) -> None:
    save(repository, "a")
    planned = purge(store, "main:a", dry_run=True)
    assert "state" in kinds(store, planned)


def test_a_file_in_a_repository_that_was_purged(store: Store, repository: Repository) -> None:
    save(repository, "a")
    address = address_of(repository, "main", "a")
    report = purge(store, whole=True)
    repository.storage.put(address, b"back")
    assert kinds(store, report) == {"still_there"}


def test_a_file_that_a_writer_left_after_a_purge(store: Store, repository: Repository) -> None:
    """It was under way longer than the purge. Files that are not the store's are no matter."""
    save(repository, "a")
    storage = repository.storage
    report = purge(store, whole=True)
    storage.put("notes.txt", b"of somebody")
    assert kinds(store, report) == set()
    late = "_ebbtide/trees/2240a160810862f9e257797ace3a680b.parquet"
    storage.put(late, b"late")
    (found,) = verify(store, report.row.purge_id).differences
    assert (found.kind, late in found.text) == ("left_behind", True)
    storage.delete([late, "notes.txt"])
    store.create_repository("other", storage_url=storage.url)
    storage.put(late, b"of the other one")
    assert kinds(store, report) == set()


def test_a_record_outlasts_the_repository_that_a_run_removes(
    store: Store, repository: Repository, done: PurgeReport, clock: ManualClock, tmp_path: Path
) -> None:
    """The purge was of a path; the repository is deleted later, and collected whole."""
    repository_id = repository.info.repository_id
    store.catalog.delete("lake")
    clock.advance(store.settings.trash_time + store.settings.lease_ttl)
    gone = gone_repository(store, repository_id)
    removing = Remover(
        gone,
        engine=INLINE,
        options=RunOptions.of(store.settings),
        preserve=lambda: outlast(store, gone.context),
    )
    assert removing.run().state == "swept"
    assert not list(Path(repository.info.storage_url).glob("_ebbtide/purges/**/*.json"))
    purge_id = done.row.purge_id
    moved = Purges(store).find(purge_id)
    assert moved.record_url.startswith(str(tmp_path / "store"))
    record = json.loads((Path(moved.record_url) / "record-1.json").read_bytes())
    assert record["reason"] == "a subject asked for it"
    assert verify(store, purge_id).differences == ()
