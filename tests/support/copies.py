"""Copies of a store for tests that each spoil one of their own, and what is on its disk."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pyarrow.parquet as pq

from ebbtide.arrow import texts
from ebbtide.settings import Settings
from ebbtide.store.content.layout import range_address
from ebbtide.store.content.ranges import read_range
from ebbtide.store.content.trees import read_tree
from ebbtide.store.database.commit_rows import find_commits
from ebbtide.store.database.schema import commits
from ebbtide.store.embedded import Store
from ebbtide.store.repositories.repository_rows import times_of
from tests.support.clock import ManualClock
from tests.support.lakes import contents
from tests.support.world import World, aged

SETTINGS: Final[dict[str, Any]] = {
    "lease_ttl": timedelta(0),
    "trash_time": timedelta(0),
    "share_max": 1.0,
    "run_heartbeat": timedelta(hours=1),
}
"""Settings of worlds that are opened again: nothing lingers, and no heartbeat interferes."""


class OpenedWorld(World):
    def __init__(self, directory: Path, *, now: datetime, **settings: Any) -> None:
        self.clock = ManualClock(now)
        self.settings = Settings(**(SETTINGS | settings))
        self.directory = directory
        place = directory / "store"
        with Store.open(place, settings=self.settings, clock=self.clock) as store:
            store.promise(times_of(self.settings))
        self.store = Store.open(place, settings=self.settings, clock=self.clock)
        self.lake = aged(self.store.repository("lake"))
        self.root = directory / "store" / "storage" / "lake"


def listing(root: Path) -> dict[str, bytes]:
    """Every file under `root` with its bytes: without the collector's own, and OWNER's bytes."""
    found = {}
    for path in root.rglob("*"):
        address = str(path.relative_to(root))
        if path.is_file() and not address.startswith("_ebbtide/gc/"):
            found[address] = b"" if address == "_ebbtide/OWNER" else path.read_bytes()
    return found


def contents_of(world: World, ref: str) -> dict[str, bytes]:
    return contents(world.lake, ref)


def verify(world: World) -> None:
    """Every record has its tree and ranges, and every intact one its objects, on the disk; so has
    every tree its ranges, whether a record leads to it or not."""
    context = world.lake.context
    with context.metadata.snapshot() as tx:
        ids = tx.execute(commits.select().with_only_columns(commits.c.commit_id)).scalars().all()
        records = find_commits(tx, context.repository_id, ids)
    for record in records.values():
        if record.forgotten_by is not None:
            continue
        tree = read_tree(context.storage, *record.require_tree())
        for info in tree.ranges:
            for entry in read_range(context.storage, info):
                there = (world.root / entry.address).is_file()
                assert there or not record.is_intact, f"{entry.path} of {record.message}"
    for tree_address in world.files("_ebbtide/trees"):
        for range_id in texts(pq.read_table(world.root / tree_address).column("range_id")):
            assert (world.root / range_address(range_id)).is_file(), tree_address


def tombstoned(world: World) -> set[str]:
    with world.lake.context.metadata.snapshot() as tx:
        rows = tx.execute(
            commits.select()
            .with_only_columns(commits.c.commit_id)
            .where(commits.c.tombstoned_by.is_not(None))
        )
        return set(rows.scalars())
