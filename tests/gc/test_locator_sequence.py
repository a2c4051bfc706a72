"""Get A, let A go, collect, make B of A's locator: to the instant at which the locator ends,
whatever A is and however it is let go.

Source: the Arvados wiki, "Expiring collections", whose example of lost blocks this is. A locator
that is made while a run is under way: `test_suspended_work.py`, and the simulation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any, Final

import pytest

from ebbtide.store.collections.contents import ContentChange, Files, Located
from ebbtide.store.objects.locators import Signed
from ebbtide.store.repository import Repository
from ebbtide.store.staging.uploads import NewObject
from tests.gc.histories import fast_place
from tests.support.collections import raises
from tests.support.memory_world import MemoryWorld, Place

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
EMPTY: Final = ContentChange(replaces=True)


class Line:
    """One A, whose file has its name as its content. `token` is its locator, which ends at
    `until`."""

    token: str
    until: datetime

    def __init__(self, lake: Repository, name: str) -> None:
        self.lake, self.name = lake, name
        self.project_id = lake.projects.create(name).project_id
        content = ContentChange([Files([NewObject("file", name.encode())])])
        made = lake.collections.create(self.project_id, name, content)
        self.collection_id = made.collection_id

    def replace(self, *, keep_version: bool = False) -> None:
        self.lake.collections.update(self.collection_id, EMPTY, keep_version=keep_version)

    def release(self) -> None:
        self.lake.collections.update(self.collection_id, replication_desired=0)

    def sign(self, version: int | None = None) -> Signed:
        (found,) = self.lake.collections.locators(self.collection_id, version=version).entries
        return found

    def commit(self) -> None:
        """The file is in the commit before the last, and nothing but a branch reaches that."""
        self.lake.branches.create(self.name, "main")
        self.lake.objects.put(self.name, "file", self.name.encode())
        self.lake.commits.commit(self.name, "")
        self.lake.objects.delete(self.name, "file")
        self.lake.commits.commit(self.name, "")


def version_of(line: Line) -> Signed:
    line.replace(keep_version=True)
    return line.sign(version=1)


def older_commit(line: Line) -> Signed:
    return line.lake.locators.sign_path(f"{line.name}~1", "file")


WAYS: Final[dict[str, tuple[Callable[[Line], Signed], Callable[[Line], object]]]] = {
    "collection": (Line.sign, lambda a: a.lake.collections.delete(a.collection_id)),
    "expiring": (Line.sign, lambda _: None),
    "project": (Line.sign, lambda a: a.lake.projects.delete(a.project_id)),
    "released": (Line.sign, Line.release),
    "replaced": (Line.sign, Line.replace),
    "version": (version_of, lambda a: a.lake.collections.drop_version(a.collection_id, 1)),
    "version-released": (version_of, Line.release),
    "older-commit": (older_commit, lambda a: a.lake.branches.delete(a.name)),
    "upload": (lambda a: a.lake.locators.upload(a.name.encode()), lambda _: None),
}
"""How a locator of A is got, and how A is let go."""


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
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

    def use(line: Line) -> str:
        content = ContentChange([Located({"file": line.token})])
        return world.lake.collections.create(target_id, f"B {line.name}", content).collection_id

    lines = {Line(world.lake, f"{name}-{n}"): name for name in WAYS for n in range(2)}
    for line, name in lines.items():
        if name == "older-commit":
            line.commit()
    world.clock.advance(2 * LEASE)
    for line, name in lines.items():
        line.until = world.now + (EXPIRY if name == "expiring" else LEASE)
        if name == "expiring":
            world.lake.collections.update(line.collection_id, expires_at=line.until)
        signed = WAYS[name][0](line)
        assert signed.expires_at == line.until, name
        line.token = signed.locator
    for line, name in lines.items():
        WAYS[name][1](line)
        if name in ("older-commit", "upload"):
            line.release()
    world.swept(**COLLECT)

    made: dict[str, bytes] = {}
    for until in sorted({line.until for line in lines}):
        ending = [line for line in lines if line.until == until]
        world.clock.now = until - INSTANT
        world.swept(**COLLECT)
        made |= {use(line): line.name.encode() for line in ending[::2]}
        world.clock.now = until
        for line in ending[1::2]:
            with raises("token_expired"):
                use(line)
        world.swept(**COLLECT)

    world.clock.advance(LEASE + trash + timedelta(days=2))
    world.swept(**COLLECT)
    for collection_id, data in made.items():
        assert b"".join(world.lake.collections.open(collection_id, "file").stream()) == data
    kept = {
        world.bucket.objects[f"{world.prefix}{address}"].data for address in world.files("data/")
    }
    assert kept == {*made.values()}
