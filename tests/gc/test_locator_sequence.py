"""Get A, let A go, collect, make B of A's locator: to the instant at which the locator ends.

Source: the Arvados wiki, "Expiring collections", whose example of lost blocks this is. Locators of
everything else, and beside runs: the simulation.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import pytest

from ebbtide.store.collections.contents import ContentChange, Files, Located
from ebbtide.store.staging.uploads import NewObject
from tests.support.collections import raises
from tests.support.world import World

LEASE: Final = timedelta(hours=1)
INSTANT: Final = timedelta(microseconds=1)
COLLECT: Final[dict[str, Any]] = {
    "grace": timedelta(seconds=1),
    "unsafe": True,
    "allow_share": True,
}


@pytest.mark.parametrize("trash", [timedelta(0), LEASE * 3])
def test_each_lasts_to_the_instant(tmp_path: Path, trash: timedelta) -> None:
    """Two of each: one is used just before its end, the other at it."""
    world = World(tmp_path, settings={"lease_ttl": LEASE, "trash_time": trash})
    world.keep(default="1h")
    lake = world.lake
    project_id = lake.projects.create("project").project_id
    old = world.save("main", days_ago=9, put=["c", "d"])
    world.save("main", days_ago=8, delete=["c", "d"])
    tokens = {data: lake.locators.sign_path(old, data).locator for data in "cd"}
    for data in "ab":
        content = ContentChange([Files([NewObject("file", data.encode())])])
        made = lake.collections.create(project_id, data, content)
        (signed,) = lake.collections.locators(made.collection_id).entries
        tokens[data] = signed.locator
        lake.collections.delete(made.collection_id)
    tokens |= {data: lake.locators.upload(data.encode()).locator for data in "ef"}
    end = world.now + LEASE

    def use(data: str) -> str:
        change = ContentChange([Located({"file": tokens[data]})])
        return lake.collections.create(project_id, f"B of {data}", change).collection_id

    world.swept(**COLLECT)
    world.clock.now = end - INSTANT
    world.swept(**COLLECT)
    used = {data: use(data) for data in "ace"}
    world.clock.now = end
    for data in "bdf":
        with raises("token_expired"):
            use(data)
    world.clock.advance(LEASE + trash + timedelta(days=2))
    world.swept(**COLLECT)
    for data, collection_id in used.items():
        assert b"".join(lake.collections.open(collection_id, "file").stream()) == data.encode()
    assert world.contents() == {*used}
    world.close()
