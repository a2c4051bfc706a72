"""Refs that are restored from a dump, at each place of a run that wants their commits."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Final

import pytest

from ebbtide.errors import EbbtideError
from ebbtide.store.collecting.dumping import Dump
from tests.support.world import World

SHORT: Final = {"grace": timedelta(seconds=1), "unsafe": True, "allow_share": True}


def world_of(directory: Path) -> tuple[World, Dump, str]:
    """A tag and a branch, dumped and then deleted, whose commit a run may expire."""
    world = World(directory)
    old = world.save("main", days_ago=30, put=["old"])
    world.lake.tags.create("old", old)
    world.lake.branches.create("side", old)
    dump = world.lake.dumps.dump()
    world.lake.tags.delete("old")
    world.lake.branches.delete("side")
    world.save("main", days_ago=1, put=["new"], delete=["old"])
    world.keep(default={"keep_last": 1})
    world.clock.advance(timedelta(seconds=5))
    return world, dump, old


class RestoringAt:
    """Restores the dump when the run enters its step of that number."""

    def __init__(self, world: World, dump: Dump, number: int) -> None:
        self._world, self._dump, self._number = world, dump, number
        self.count = 0
        self.refused: str | None = None

    def __call__(self, _step: str, _event: object) -> None:
        if self.count == self._number:
            try:
                self._world.lake.dumps.restore(self._dump)
            except EbbtideError as error:
                self.refused = error.kind
        self.count += 1


def test_a_restored_ref_has_its_data_at_each_step_of_a_run(tmp_path: Path) -> None:
    """If the restore comes first, the run keeps the data. Else it is refused, and makes no ref."""
    outcomes: set[str | None] = set()
    number, steps = 0, 1
    while number < steps:
        world, dump, old = world_of(tmp_path / str(number))
        observer = RestoringAt(world, dump, number)
        report = world.collector(observer=observer, **SHORT).run()
        assert report.state == "swept"
        names = {each.name for each in world.lake.tags.list()}
        names |= {each.name for each in world.lake.branches.list()}
        if observer.refused is None:
            assert names == {"main", "old", "side"}
            assert world.lake.objects.get("old", "old") == b"old"
            assert world.lake.branches.get("side").commit_id == old
        else:
            assert observer.refused == "commit_expired"
            assert names == {"main"}
        outcomes.add(observer.refused)
        number, steps = number + 1, observer.count
        world.close()
    assert outcomes == {None, "commit_expired"}


def test_after_a_run_nothing_is_restored(tmp_path: Path) -> None:
    world, dump, _old = world_of(tmp_path)
    world.collect(**SHORT)
    with pytest.raises(EbbtideError, check=lambda error: error.kind == "commit_expired"):
        world.lake.dumps.restore(dump)
    task = world.lake.dumps.begin()
    world.lake.dumps.carry_out_restore(task, dump)
    state = world.lake.dumps.state(task)
    assert state.done
    assert state.error is not None
    assert "expired" in state.error
    # Runs keep dumps. A new one has no tree of an expired commit.
    again = world.lake.dumps.dump()
    lines = world.root / "_ebbtide/gc/dumps" / f"{again.commits_id}.jsonl"
    assert '"tree_id":null' in lines.read_text()
    assert len(list(lines.parent.iterdir())) == 6
    world.close()
