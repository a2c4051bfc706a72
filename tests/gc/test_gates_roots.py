"""Roots of repositories lie apart, however they are spelled. Where each may lie:
`tests/store/test_store.py`."""

from __future__ import annotations

from pathlib import Path

from tests.support.collections import raises
from tests.support.world import World


def test_roots_apart(tmp_path: Path) -> None:
    world = World(tmp_path / "world")
    (tmp_path / "link").symlink_to(world.directory)
    path = "store/storage/lake/data/inner"
    before = {*world.directory.rglob("*")}
    for url in (
        f"{world.directory}/{path}//",
        f"{world.directory}/store/../{path}/.",
        f"{tmp_path}/link/{path}",
        (world.directory / path).as_uri(),
    ):
        with raises("nested_root"):
            world.store.create_repository("second", storage_url=url)
    assert {each for each in world.directory.rglob("*") if ".db-" not in each.name} <= before
    world.close()
