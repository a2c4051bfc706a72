"""An undo that breaks off, and a run before it is asked for again."""

from __future__ import annotations

from datetime import timedelta

import pytest

from ebbtide.gc.collector import Collector
from ebbtide.gc.options import RunOptions
from tests.support.copies import contents_of, listing
from tests.support.dying import Died
from tests.support.faulty import SharedFaultyStorage
from tests.support.world import DAY, World


def die_after_a_move(method: str, _address: str) -> None:
    """A hook: the first files are back, and nothing else happens."""
    if method == "move":
        raise Died


def test_the_next_run_leaves_what_is_back(world: World) -> None:
    world.keep(default="3d")
    expired = world.save("main", days_ago=30, put=["a", "b"])
    world.save("main", days_ago=20, delete=["a", "b"])
    world.save("main", days_ago=1, put=["c"])
    before, known = listing(world.root), contents_of(world, expired)
    run_id = world.collect(quarantine=7 * DAY).run_id
    assert listing(world.root).keys() < before.keys()
    repository = world.format()
    repository.storage = SharedFaultyStorage(repository.storage, after=die_after_a_move)
    options = RunOptions.of(world.settings, grace=timedelta(hours=1), mode="clean")
    with pytest.raises(Died):
        Collector(repository, engine=world.engine, options=options).undo(run_id)
    assert listing(world.root).keys() == before.keys()

    assert world.collect().counts["candidate"].objects == 0

    assert world.collector().undo(run_id).state == "undone"
    assert listing(world.root).keys() == before.keys()
    assert contents_of(world, expired) == known
