"""Purges that an older program began: each is shown, resumed and verified.

`older.zip` has a store that the program wrote before its purges used the engine of runs. It has one
purge for each step at which a purge can stop, each of a repository of that name. Parts have two
objects, so that a purge can stop between two of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final
from zipfile import ZipFile

import pytest

from ebbtide.documents import document_of
from ebbtide.purge.purger import Purges
from ebbtide.purge.verifying import verify
from ebbtide.settings import Settings
from ebbtide.store.content.layout import OWNER_ADDRESS
from ebbtide.store.embedded import Store
from tests.support.collections import raises
from tests.support.memory import Bucket, opened_in_memory
from tests.support.memory_world import TruthfulClock
from tests.support.purging import SECRET_KEY

RECORDED: Final = Path(__file__).with_name("older.zip")
BUCKET: Final = "lakes"
STATES: Final = {
    "planning": ("planning", 3),
    "planned": ("planned", 3),
    "closed": ("deleting", 3),
    "midway": ("deleting", 3),
    "failed": ("incomplete", 3),
    "done": ("done", 4),
    "refused": ("refused", 3),
    "kept": ("planned", 2),
    "shared": ("done", 2),
    "whole-planned": ("planned", None),
    "whole-closed": ("deleting", None),
    "whole-midway": ("deleting", None),
    "whole-done": ("done", None),
}
"""The state of each purge, and the number of objects that it deletes. A whole repository has files
of other kinds too."""


@contextmanager
def opened(directory: Path) -> Iterator[tuple[Store, Bucket, dict[str, str]]]:
    """The recorded store, its bucket, and the ids of its purges by name."""
    with ZipFile(RECORDED) as recorded:
        files = {name: recorded.read(name) for name in recorded.namelist()}
    clock = TruthfulClock(datetime.fromisoformat(files.pop("now.txt").decode()))
    told = json.loads(files.pop("purges.json"))
    ids: dict[str, str] = {name: each["purge_id"] for name, each in told.items()}
    database = directory / "store.db"
    database.write_bytes(files.pop("store.db"))
    bucket = Bucket(BUCKET, lambda: clock.now)
    for name, data in files.items():
        bucket.store(name.removeprefix(f"{BUCKET}/"), data)
    settings = Settings(
        database_url=f"sqlite:///{database}",
        storage_url=bucket.url,
        secret_key=SECRET_KEY,
        range_entries_target=2,
        lease_ttl=timedelta(days=1),
    )
    clock.now += timedelta(hours=1)
    with (
        opened_in_memory({BUCKET: bucket}),
        Store.open(None, settings=settings, clock=clock) as store,
    ):
        yield store, bucket, ids


def under(bucket: Bucket, name: str) -> set[str]:
    """The addresses of the files of a repository."""
    return {key.removeprefix(f"{name}/") for key in bucket.objects if key.startswith(f"{name}/")}


@pytest.mark.parametrize("name", STATES)
def test_it_is_shown_resumed_and_verified(name: str, tmp_path: Path) -> None:
    state, count = STATES[name]
    with opened(tmp_path) as (store, bucket, ids):
        purges, purge_id = Purges(store), ids[name]
        shown = purges.show(purge_id)
        assert (shown.row.state, shown.row.repository_name) == (state, name)
        assert [row.purge_id for row in purges.list(name)] == [purge_id]
        assert (shown.plan is None) == (state == "planning")
        before = under(bucket, name)
        named = {row["address"] for row in purges.objects(shown, limit=99)}
        if count is not None and shown.plan is not None:
            assert (len(named), document_of(shown)["object_count"]) == (count, count)
        if state in ("done", "refused"):
            with raises("purge_ended"):
                purges.carry_out(purge_id)
            done = shown
        else:
            done = purges.carry_out(purge_id)
            named = {row["address"] for row in purges.objects(done, limit=99)}
        if state == "refused":
            assert named <= before == under(bucket, name)
            assert {each.kind for each in verify(store, purge_id).differences} >= {"state"}
            return
        assert done.row.state == "done"
        assert verify(store, purge_id).differences == ()
        left = under(bucket, name)
        assert not named & left
        if count is None:
            assert left == {OWNER_ADDRESS}
            return
        assert document_of(done)["object_count"] == count
        assert document_of(done)["outcomes"] == {"deleted": count}
        assert {each for each in before - left if each.startswith("data/")} <= named
        lake = store.repository(name)
        assert lake.objects.get("main", "kept") == b"kept"
        if name != "done":
            assert lake.objects.get("main", "staged") == b"staged"


def test_an_object_that_stays_is_still_read(tmp_path: Path) -> None:
    with opened(tmp_path) as (store, _, ids):
        planned = document_of(Purges(store).show(ids["kept"]))
        assert (planned["kept_count"], planned["kept_reference_counts"]) == (2, {"commit": 1})
        Purges(store).carry_out(ids["kept"])
        lake = store.repository("kept")
        assert lake.objects.get("main", "p/0") == lake.objects.get("other", "p/0") == b"kept 0"
        with raises("purged"):
            lake.objects.get("main", "p/1")
