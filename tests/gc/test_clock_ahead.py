"""A clock that was ahead for a while: nothing dated in the future counts as the latest or last."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from ebbtide.errors import NotFound
from ebbtide.gc.index import UnchangedFiles
from ebbtide.gc.keys import keys_of
from ebbtide.gc.report import RunReport
from ebbtide.gc.runs import FENCE_FILE
from ebbtide.ids import CLOCKS_APART_MAX, descending_id, is_ahead, newest_first
from tests.support.world import DAY, START, World

HOUR = timedelta(hours=1)
AHEAD = 180 * DAY
MOMENT = timedelta(microseconds=1)

SETTINGS = {"slice_age_max": HOUR}
KEEP = {"default": {"keep_last": 1}}
AGED_SLICES = False


def run(world: World, mode: str = "auto") -> RunReport:
    """A whole run, after a commit, and an upload that was dropped."""
    world.lake.objects.put("main", "a", str(world.now).encode())
    world.lake.commits.commit("main", "")
    world.lake.objects.put("main", "dropped", b"dropped")
    world.lake.objects.delete("main", "dropped")
    world.clock.advance(2 * HOUR)
    return world.swept(mode=mode)


def run_ahead(world: World, mode: str = "auto") -> RunReport:
    world.clock.advance(AHEAD)
    report = run(world, mode)
    world.clock.advance(-AHEAD)
    return report


def test_no_run_continues_from_a_run_of_the_future(world: World) -> None:
    run(world, "clean")
    run(world)
    ahead = run_ahead(world)
    found = run(world)
    assert found.mode == "clean"
    assert found.mode_reason is not None
    assert found.mode_reason.startswith(f"run {ahead.run_id} is dated")
    assert any(ahead.run_id in warning for warning in found.warnings), "it is told"
    assert "dropped" not in world.contents()
    after = run(world)
    assert (after.mode, after.mode_reason) == ("incremental", None), "from the clean run after it"
    assert "dropped" not in world.contents()
    # A fence that cannot be read counts as the newest.
    assert run(world).mode == "incremental"
    (Path(ahead.run_path) / FENCE_FILE).write_bytes(b"{")
    assert run(world).mode == "clean"


def test_a_run_that_continued_from_the_future_is_not_continued(world: World) -> None:
    """The clean run on which it is based is dated in the future."""
    world.clock.advance(AHEAD)
    run(world, "clean")
    # As the clock goes back in the middle of a chain, whose ids are not all of the future.
    chained = run(world)
    assert chained.mode == "incremental"
    world.clock.advance(-HOUR / 2)
    collector = world.collector()
    plan = collector.plan_of(chained.run_id)
    assert plan.clean_at < world.now
    world.clock.advance(plan.clean_at - world.now - MOMENT)
    found = run(world, "incremental")
    assert found.mode == "clean"


def test_the_latest_run_is_not_of_the_future(world: World) -> None:
    ahead = run_ahead(world)
    with pytest.raises(NotFound, match=f"{ahead.run_id} is dated .* in the future"):
        world.collector().find_run("latest")
    with pytest.raises(NotFound, match="name it by its id"):
        world.collector().newest_unswept()
    assert world.collector().find_run(ahead.run_id[:20]) == ahead.run_id
    found = run(world)
    assert world.collector().find_run("latest") == found.run_id
    world.clock.advance(MOMENT)
    plan = world.collector().plan()
    assert world.collector().newest_unswept() == plan.run_id
    assert [each.run_id for each in world.collector().runs()] == [
        plan.run_id,
        found.run_id,
        ahead.run_id,
    ]


def test_ids_of_the_future_come_last() -> None:
    late, now, early = (
        descending_id(START + off) for off in (CLOCKS_APART_MAX + MOMENT, HOUR * 0, -DAY)
    )
    skewed = descending_id(START + CLOCKS_APART_MAX)
    assert newest_first([early, late, skewed, now], START) == [skewed, now, early, late]
    assert newest_first([early, late], START + DAY) == [late, early], "its time has come"
    assert [is_ahead(each, START) for each in (late, skewed, "no id")] == [True, False, False]


def test_a_file_that_was_read_in_the_future_is_read_again() -> None:
    """It may have been written since, however early the date of its file is."""
    names = pa.chunked_array([["a"]])
    files = UnchangedFiles(keys_of(names), np.array([5]), now=10)
    found = [bool(files.since(names, np.array([read_at]))[0]) for read_at in (5, 6, 10, 11)]
    assert found == [False, True, True, False]
