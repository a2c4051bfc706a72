"""The worked examples of lakeFS issue 1932, through the whole pipeline, with real files."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from tests.support.world import DAY, World


def kept(world: World, run_id: str) -> set[str]:
    """The ids of the commits that a run's plan keeps the data of."""
    return set(world.collector().reasons(run_id))


def two_branches(world: World, *, days_later: int = 0) -> dict[str, str]:
    """The history of the complex example, as it will be in so many days."""

    def ago(days: int) -> int:
        return days - days_later

    ids = {"A": world.save("main", days_ago=ago(12), put=["1"])}
    world.lake.branches.create("feature1", "main")
    ids["B"] = world.save("main", days_ago=ago(9), put=["2"], delete=["1"])
    ids["C"] = world.save("feature1", days_ago=ago(8), put=["3"])
    ids["D"] = world.save("feature1", days_ago=ago(5), delete=["3"])
    ids["E"] = world.save("main", days_ago=ago(2), delete=["2"])
    return ids


@pytest.mark.parametrize(("default", "in_trash", "after_it"), [("7d", "CD", "CD"), ("3d", "D", "")])
def test_a_deleted_branch_is_no_dangling_one_until_its_trash_time_has_ended(
    tmp_path: Path, default: str, in_trash: str, after_it: str
) -> None:
    """To the microsecond; from then on as the source has it of a branch that was deleted."""
    world = World(tmp_path, settings={"trash_time": DAY})
    world.keep(default=default, branches={"main": "7d"})
    ids = two_branches(world, days_later=1)
    world.lake.branches.delete("feature1")
    of_feature = {ids["C"], ids["D"]}
    world.clock.advance(DAY - timedelta(microseconds=1))
    report = world.collector().plan()
    assert kept(world, report.run_id) & of_feature == {ids[name] for name in in_trash}
    world.clock.advance(timedelta(microseconds=1))
    report = world.collect()
    assert kept(world, report.run_id) & of_feature == {ids[name] for name in after_it}
    assert world.contents() == {"7d": {"1", "2", "3"}, "3d": {"2"}}[default]
    world.close()
