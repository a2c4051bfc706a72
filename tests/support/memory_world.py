"""Worlds in memory, one after the other on one database: fast, for histories by the thousand.

Files are as old as the injected clock says. Ids come from a seed: what is read in the order of
random ids is read in the same order when a history is told again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest

from ebbtide import ids
from ebbtide.settings import Settings
from ebbtide.store.content.layout import COLLECTOR_PREFIX, OWNER_ADDRESS, PURGES_PREFIX
from ebbtide.store.database.schema import metadata as tables
from ebbtide.store.embedded import Store
from tests.support.clock import ManualClock
from tests.support.engines import INLINE
from tests.support.memory import Bucket, opened_in_memory
from tests.support.world import START, World

BUCKET: Final = "clocked"


class TruthfulClock(ManualClock):
    """A clock by which the storage dates its files, so that nothing has to be corrected."""

    def storage_time(self, last_modified: datetime) -> datetime:
        return last_modified


class SeededIds:
    def __init__(self) -> None:
        self.random = Random(0)

    def token_hex(self, length: int) -> str:
        return self.random.randbytes(length).hex()


@dataclass(slots=True)
class Place:
    """A database and a bucket, which worlds have one after the other."""

    store: Store
    clock: TruthfulClock
    ids: SeededIds
    buckets: dict[str, Bucket]

    def clear(self, seed: int) -> None:
        self.clock.now = START
        self.ids.random = Random(seed)
        with self.store.metadata.transaction() as tx:
            for table in reversed(tables.sorted_tables):
                # Promised times too: each world promises what its own settings say.
                if "repository_id" in table.c or table.name == "promised_times":
                    tx.execute(table.delete())


@contextmanager
def open_place(directory: Path) -> Iterator[Place]:
    clock, seeded = TruthfulClock(START), SeededIds()
    buckets: dict[str, Bucket] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ids, "secrets", seeded)
        with Store.init(directory, clock=clock) as store, opened_in_memory(buckets):
            yield Place(store, clock, seeded, buckets)


class MemoryWorld(World):
    """A store with an empty repository, `lake`; what was in the place before is gone."""

    engine = INLINE

    def __init__(
        self,
        place: Place,
        *,
        settings: dict[str, Any],
        seed: int = 0,
    ) -> None:
        place.clear(seed)
        self.place = place
        self.clock: TruthfulClock = place.clock
        self.bucket = Bucket(BUCKET, self.clock.host_now)
        place.buckets[BUCKET] = self.bucket
        self.settings = Settings(share_max=1.0, run_heartbeat="1h", **settings)
        self.store = Store(
            directory=None,
            settings=self.settings,
            metadata=place.store.metadata,
            store_id=place.store.store_id,
        )
        self.lake = self.store.create_repository("lake", storage_url=f"{self.bucket.url}/lake")

    @property
    def prefix(self) -> str:
        return "lake/"

    def files(self, kind: str = "") -> set[str]:
        whole, start = self.prefix + kind, len(self.prefix)
        addresses = (key[start:] for key in self.bucket.objects if key.startswith(whole))
        return {each for each in addresses if not is_of_system(each)}


def is_of_system(address: str) -> bool:
    """Whether it is OWNER, or a file of the collector's own or of a purge."""
    return address == OWNER_ADDRESS or address.startswith((COLLECTOR_PREFIX, PURGES_PREFIX))
