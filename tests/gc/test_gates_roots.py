"""Roots of repositories lie apart, however they are spelled."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from ebbtide.errors import Conflict
from ebbtide.store.embedded import Store
from tests.support.clock import ManualClock
from tests.support.world import World

PLACES = {
    "inside": "store/storage/lake/inner",
    "deep inside": "store/storage/lake/data/inner",
    "same": "store/storage/lake",
    "holding": "store/storage",
    "holding from afar": "",
}
SPELLINGS = ["plain", "slash", "dots", "link", "url"]


def spell(directory: Path, place: str, spelling: str) -> str:
    """One way to write the path of a place in `directory`."""
    path = f"{directory}/{place}".rstrip("/")
    if spelling == "slash":
        return f"{path}//"
    if spelling == "dots":
        return f"{directory}/store/../{place}/."
    if spelling == "link":
        return f"{directory.parent / 'link'}/{place}"
    return Path(path).as_uri() if spelling == "url" else path


def paths(directory: Path) -> set[Path]:
    """Everything there, directories too, but the databases' journals."""
    return {path for path in directory.rglob("*") if ".db-" not in path.name}


@pytest.mark.parametrize("store", ["same store", "another store"])
def test_roots_apart(tmp_path: Path, store: str) -> None:
    world = World(tmp_path / "world")
    (tmp_path / "link").symlink_to(world.directory)
    chosen = world.store
    if store == "another store":
        clock = ManualClock(world.now)
        chosen = Store.init(tmp_path / "other", settings=world.settings, clock=clock)
    before = paths(world.directory)
    for (place, path), spelling in product(PLACES.items(), SPELLINGS):
        with pytest.raises(Conflict) as refused:
            chosen.create_repository("second", storage_url=spell(world.directory, path, spelling))
        # Another store's repository shows only by its files.
        shows_by_files = store == "another store" and place not in ("inside", "deep inside")
        assert refused.value.kind == ("root_not_empty" if shows_by_files else "nested_root"), place
        assert "choose another root" in refused.value.message
        assert paths(world.directory) == before
        assert "second" not in {each.info.name for each in chosen.catalog.list()}
    world.lake.objects.put("main", "still", b"mine")
    chosen.close()
    world.close()


def test_root_beside_another(tmp_path: Path) -> None:
    """A name that begins like another's root is not inside it."""
    world = World(tmp_path)
    beside = world.store.create_repository("beside", storage_url=f"{world.root}2")
    beside.objects.put("main", "a", b"a")
    assert beside.objects.get("main", "a") == b"a"
    world.close()
