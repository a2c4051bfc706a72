"""An undo of a run that forgot a commit whose data an earlier run deleted for good."""

from __future__ import annotations

import pytest

from ebbtide.errors import Gone
from ebbtide.ids import new_id
from ebbtide.store.collecting.roots import lift_tombstones
from tests.support.world import DAY, World


def test_what_an_earlier_run_closed_stays_closed(world: World) -> None:
    world.keep(default="3d")
    world.lake.branches.create("side", "main")
    old = world.save("side", days_ago=30, put=["a"])
    world.save("side", days_ago=20, put=["b"], delete=["a"])
    first = world.collect()
    assert world.lake.commits.get(old).tombstoned_by == first.run_id
    world.lake.branches.delete("side")
    world.clock.advance(DAY)
    second = world.collect(quarantine=7 * DAY)
    assert world.lake.commits.get(old).forgotten_by == second.run_id

    undone = world.collector().undo(second.run_id)

    commit = world.lake.commits.get(old)
    assert (commit.tombstoned_by, commit.forgotten_by) == (first.run_id, second.run_id)
    with pytest.raises(Gone):
        world.lake.branches.create("again", old)
    assert undone.quarantine is not None
    assert undone.quarantine["closed_commits"] == 1


def test_a_run_opens_what_it_closed_itself_alone(world: World) -> None:
    """In the transaction that opens it, whatever was read before."""
    world.keep(default="3d")
    old = world.save("main", days_ago=30, put=["a"])
    world.save("main", days_ago=20, put=["b"], delete=["a"])
    world.save("main", days_ago=1, put=["c"])
    closed_by = world.collect().run_id
    context = world.lake.context
    for run_id, left in ((new_id(), closed_by), (closed_by, None)):
        with context.metadata.transaction() as tx:
            lift_tombstones(tx, context.repository_id, [old], run_id=run_id)
        assert world.lake.commits.get(old).tombstoned_by == left
