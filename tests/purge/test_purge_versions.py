"""Purges in a bucket with versions: what they say, and which versions they delete."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from ebbtide.documents import document_of
from ebbtide.errors import InvalidInput
from ebbtide.purge.purger import Purges
from ebbtide.purge.verifying import verify
from ebbtide.settings import Settings
from ebbtide.store.embedded import Store
from ebbtide.store.repository import Repository
from tests.support.clock import ManualClock
from tests.support.purging import address_of, purge, request, save
from tests.support.versioned import VersionedBucket
from tests.support.world import collector_of


class World:
    """A store whose repository `lake` is in a bucket with versions, below `lake/`."""

    def __init__(self, directory: Path, bucket: VersionedBucket, **settings: Any) -> None:
        self.bucket = bucket
        self.clock = ManualClock(datetime.now(UTC))
        chosen = Settings(
            lease_ttl=timedelta(0), trash_time=timedelta(0), share_max=1.0, **settings
        )
        self.store = Store.init(directory, settings=chosen, clock=self.clock)
        self.lake: Repository = self.store.create_repository(
            "lake", storage_url=f"{bucket.url}/lake"
        )

    def left(self, address: str) -> dict[str, tuple[int, int]]:
        """Versions and markers of all keys of the repository that end in `address`."""
        found = self.bucket.left("lake/").items()
        return {key: counts for key, counts in found if key.endswith(address)}

    def collect(self, **options: Any) -> None:
        # All files are older than the clock then, however long this took.
        self.clock.advance(datetime.now(UTC) + timedelta(seconds=2) - self.clock.now)
        report = collector_of(self.store, self.lake, **options).run()
        assert report.state == "swept", report.error


@pytest.fixture
def world(s3_url: str, tmp_path: Path) -> Iterator[World]:
    del s3_url
    made = World(tmp_path / "store", VersionedBucket.made())
    with made.store:
        yield made


def test_versions_stay_unless_their_end_is_asked_for(world: World) -> None:
    save(world.lake, "a", "b", "kept")
    stays, address, kept = (address_of(world.lake, "main", path) for path in ("a", "b", "kept"))
    report = purge(world.store, "main:a")
    assert report.row.state == "done"
    (warning,) = report.figures.warnings
    assert "--delete-versions" in warning
    document = document_of(report)
    assert document["retained"]["state"] == "versions" and document["warnings"] == [warning]
    assert report.record is not None and report.record["retained"]["state"] == "versions"
    assert list(world.left(stays).values()) == [(1, 1)]
    assert verify(world.store, report.row.purge_id).differences == ()
    # A neighbour, whose key begins with that of the purged object.
    neighbour = f"lake/{address}0"
    world.bucket.client.put_object(Bucket=world.bucket.name, Key=neighbour, Body=b"x")
    world.bucket.client.delete_object(Bucket=world.bucket.name, Key=neighbour)
    report = purge(world.store, "main:b", delete_versions=True)
    assert report.row.state == "done" and report.figures.warnings == ()
    assert world.left(address) == {}
    assert world.left(neighbour) and list(world.left(kept).values()) == [(1, 0)]
    assert verify(world.store, report.row.purge_id).differences == ()
    # Verification names versions that came back.
    world.lake.storage.put(address, b"again")
    world.lake.storage.delete([address])
    (difference,) = verify(world.store, report.row.purge_id).differences
    assert difference.kind == "versions_left" and address in difference.text


def test_copies_in_quarantines_lose_their_versions(world: World) -> None:
    """One is in quarantine, of another only a version is left, and a third is not named."""
    for path in ("held", "ended", "other"):
        world.lake.objects.put("main", path, path.encode())
    addresses = {path: address_of(world.lake, "main", path) for path in ("held", "ended", "other")}
    world.lake.commits.commit("main", "all")
    first = world.lake.commits.log("main")[0].commit_id
    storage = world.lake.storage
    world.lake.objects.put("main", "unused", b"unused")
    unused = address_of(world.lake, "main", "unused")
    world.lake.commits.reset("main")
    world.collect(quarantine=timedelta(days=1))
    ((held_key, _),) = (pair for pair in world.left(unused).items() if "/quarantine/" in pair[0])
    prefix = held_key.removeprefix("lake/").removesuffix(unused)
    storage.put(prefix + addresses["held"], b"held")
    for path in ("ended", "other"):
        storage.put(f"_ebbtide/gc/runs/earlier/quarantine/{addresses[path]}", path.encode())
        storage.delete([f"_ebbtide/gc/runs/earlier/quarantine/{addresses[path]}"])
    report = purge(world.store, f"{first}:held", f"{first}:ended", delete_versions=True)
    assert report.row.state == "done", report.row.error
    assert world.left(addresses["held"]) == world.left(addresses["ended"]) == {}
    assert set(world.left(addresses["other"]).values()) == {(1, 0), (1, 1)}
    assert world.left(unused)[held_key] == (1, 0)


def test_a_whole_repository_leaves_no_version(world: World) -> None:
    """Also none of files that a run deleted before. What is foreign stays."""
    save(world.lake, "a", "b")
    world.lake.objects.put("main", "unused", b"unused")
    swept = address_of(world.lake, "main", "unused")
    world.lake.commits.reset("main")
    world.collect()
    assert list(world.left(swept).values()) == [(1, 1)]
    foreign = "lake/somebody/else's"
    world.bucket.client.put_object(Bucket=world.bucket.name, Key=foreign, Body=b"x")
    world.bucket.client.delete_object(Bucket=world.bucket.name, Key=foreign)
    report = purge(world.store, whole=True, delete_versions=True)
    assert report.row.state == "done", report.row.error
    assert world.bucket.left("lake/").keys() == {foreign, "lake/_ebbtide/OWNER"}
    assert verify(world.store, report.row.purge_id).differences == ()


def test_a_locked_version_makes_a_purge_incomplete(s3_url: str, tmp_path: Path) -> None:
    """The setting is the default of purges."""
    del s3_url
    world = World(tmp_path / "store", VersionedBucket.with_lock(None), delete_versions=True)
    with world.store:
        save(world.lake, "a")
        address = address_of(world.lake, "main", "a")
        world.bucket.hold("ON")
        report = purge(world.store, "main:a")
        assert report.row.request["delete_versions"] is True
        assert report.row.state == "incomplete"
        assert report.figures.outcomes == {"failed": 1}
        assert {each.kind for each in verify(world.store, report.row.purge_id).differences} == {
            "state",
            "outcome",
            "versions_left",
        }
        world.bucket.hold("OFF")
        again = Purges(world.store).carry_out(report.row.purge_id)
        assert again.row.state == "done", again.row.error
        assert world.left(address) == {}
        assert verify(world.store, report.row.purge_id).differences == ()


def test_azure_is_refused(azure_url: str, tmp_path: Path) -> None:
    with Store.init(tmp_path / "store") as store:
        lake = store.create_repository("lake", storage_url=f"{azure_url}/purged")
        save(lake, "a")
        purges = Purges(store)
        with pytest.raises(InvalidInput, match="only those of S3"):
            purges.begin("lake", request("main:a", delete_versions=True))
        assert purges.list("lake") == []
        assert lake.objects.get("main", "a") == b"a"


def test_a_directory_has_no_versions(store: Store, repository: Repository) -> None:
    save(repository, "a")
    report = purge(store, "main:a", delete_versions=True)
    assert report.row.state == "done" and report.figures.warnings == ()
    assert (report.figures.retained or {})["state"] == "no"
