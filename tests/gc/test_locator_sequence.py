"""Get A, let A go, collect, make B of A's locator: to the instant at which the locator ends,
whatever A is and however it is let go.

Source: the Arvados wiki, "Expiring collections", whose example of lost blocks this is. A locator
that is made while a run is under way: `test_suspended_work.py`, and the simulation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

import pytest
import sqlalchemy as sa

from ebbtide.store.collections.contents import ContentChange, Files, Located
from ebbtide.store.database.schema import collections, commits, pending
from ebbtide.store.staging.uploads import NewObject
from tests.gc.histories import fast_place
from tests.support.collections import raises
from tests.support.memory_world import MemoryWorld, Place
from tests.support.world import START

LEASE: Final = timedelta(hours=1)
EXPIRY: Final = timedelta(minutes=30)
"""In how long an A ends by itself, where it does."""
INSTANT: Final = timedelta(microseconds=1)
COLLECT: Final[dict[str, Any]] = {
    "grace": timedelta(seconds=1),
    "mode": "clean",
    "unsafe": True,
    "allow_share": True,
}


@dataclass(slots=True)
class Line:
    """One A. `token` is its locator, which ends at `until`."""

    name: str
    world: MemoryWorld
    target_id: str
    way: Way
    item_id: str = ""
    project_id: str = ""
    token: str = ""
    until: datetime = START

    @property
    def data(self) -> bytes:
        """What is in A's file."""
        return self.name.encode()

    def use(self) -> str:
        """Make a B of the locator; its id."""
        content = ContentChange([Located({"file": self.token})])
        made = self.world.lake.collections.create(self.target_id, f"B of {self.name}", content)
        return made.collection_id


@dataclass(frozen=True, slots=True)
class Way:
    """What an A is: how it is made, how a locator of it is got, and how it is let go."""

    make: Callable[[Line], None]
    sign: Callable[[Line], Any]
    let_go: Callable[[Line], object]


def counted(world: MemoryWorld) -> tuple[int, ...]:
    """How many collections, commits and registered writes there are."""
    with world.lake.context.metadata.snapshot() as tx:
        return tuple(
            tx.execute(sa.select(sa.func.count()).select_from(table)).scalar_one()
            for table in (collections, commits, pending)
        )


def make_collection(line: Line) -> None:
    lake = line.world.lake
    line.project_id = line.project_id or line.target_id
    made = lake.collections.create(line.project_id, line.name, one_file(line))
    line.item_id = made.collection_id


def make_in_project(line: Line) -> None:
    """In a project of its own."""
    line.project_id = line.world.lake.projects.create(line.name).project_id
    make_collection(line)


def make_version(line: Line) -> None:
    """The file is in a version that is kept, and no more in what there is now."""
    make_collection(line)
    line.world.lake.collections.update(
        line.item_id, ContentChange(replaces=True), keep_version=True
    )


def make_commit(line: Line) -> None:
    """The file is in the commit before the last, and nothing but a branch reaches that."""
    lake, branch = line.world.lake, line.name
    lake.branches.create(branch, "main")
    lake.objects.put(branch, "file", line.data)
    lake.commits.commit(branch, "")
    lake.objects.delete(branch, "file")
    lake.commits.commit(branch, "")


def one_file(line: Line) -> ContentChange:
    return ContentChange([Files([NewObject("file", line.data)])])


def sign_collection(line: Line, *, version: int | None = None) -> Any:
    (signed,) = line.world.lake.collections.locators(line.item_id, version=version).entries
    return signed


def replace_content(line: Line) -> object:
    return line.world.lake.collections.update(line.item_id, ContentChange(replaces=True))


def delete_collection(line: Line) -> object:
    return line.world.lake.collections.delete(line.item_id)


def release_data(line: Line) -> object:
    return line.world.lake.collections.update(line.item_id, replication_desired=0)


WAYS: Final[dict[str, Way]] = {
    "collection": Way(make_collection, sign_collection, delete_collection),
    "expiring": Way(make_collection, sign_collection, lambda _: None),
    "project above": Way(
        make_in_project,
        sign_collection,
        lambda line: line.world.lake.projects.delete(line.project_id),
    ),
    "data let go": Way(make_collection, sign_collection, release_data),
    "replaced": Way(make_collection, sign_collection, replace_content),
    "version dropped": Way(
        make_version,
        lambda line: sign_collection(line, version=1),
        lambda line: line.world.lake.collections.drop_version(line.item_id, 1),
    ),
    "version's data let go": Way(
        make_version, lambda line: sign_collection(line, version=1), release_data
    ),
    "older commit": Way(
        make_commit,
        lambda line: line.world.lake.locators.sign_path(f"{line.name}~1", "file"),
        lambda line: line.world.lake.branches.delete(line.name),
    ),
    "upload": Way(
        lambda _: None,
        lambda line: line.world.lake.locators.upload(line.data),
        lambda _: None,
    ),
}


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    """A database for all worlds."""
    with fast_place() as made:
        yield made


@pytest.mark.parametrize("trash", [timedelta(0), LEASE / 4, LEASE * 3])
def test_each_lasts_to_the_instant(place: Place, trash: timedelta) -> None:
    """Two of each: one is used just before its end, the other at it."""
    world = MemoryWorld(
        place, settings={"lease_ttl": LEASE, "trash_time": trash, "range_entries_target": 2}
    )
    # What a branch that is gone leaves behind has expired.
    world.keep(default="1h", branches={"older-*": "7d"})
    target_id = world.lake.projects.create("target").project_id
    lines = [
        Line(f"{name}-{number}".replace(" ", "-").replace("'", ""), world, target_id, way)
        for name, way in WAYS.items()
        for number in range(2)
    ]
    for line in lines:
        line.way.make(line)
    world.clock.advance(2 * LEASE)
    for line in lines:
        line.until = world.now + LEASE
        if line.way is WAYS["expiring"]:
            line.until = world.now + EXPIRY
            world.lake.collections.update(line.item_id, expires_at=line.until)
        signed = line.way.sign(line)
        assert signed.expires_at == line.until, line.name
        line.token = signed.locator
    for line in lines:
        line.way.let_go(line)
    world.swept(**COLLECT)

    made: dict[str, bytes] = {}
    for until in sorted({line.until for line in lines}):
        ending = [line for line in lines if line.until == until]
        world.clock.now = until - INSTANT
        world.swept(**COLLECT)
        made |= {line.use(): line.data for line in ending[::2]}
        world.clock.now = until
        before = counted(world)
        for line in ending[1::2]:
            with raises("token_expired"):
                line.use()
        assert counted(world) == before, "nothing is half made"
        world.swept(**COLLECT)

    world.clock.advance(LEASE + trash + timedelta(days=2))
    world.swept(**COLLECT)
    world.swept(**COLLECT)
    for collection_id, data in made.items():
        readable = world.lake.collections.open(collection_id, "file")
        assert b"".join(readable.stream()) == data
    kept = {
        world.bucket.objects[f"{world.prefix}{address}"].data for address in world.files("data/")
    }
    assert kept == {*made.values()}
