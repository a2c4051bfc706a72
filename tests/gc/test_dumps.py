"""Refs that are restored from a dump, at each place of a run that wants their commits."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Final

import pytest

from ebbtide.errors import EbbtideError
from ebbtide.store.gc.dumps import Dump
from tests.support.collections import raises
from tests.support.randomized import randomized
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
    """Restores the dump when the run enters its step of that number; whether it is refused."""

    def __init__(self, world: World, dump: Dump, number: int | None) -> None:
        self._world, self._dump, self._number = world, dump, number
        self.steps: list[tuple[str, object]] = []
        self.refused: str | None = None

    def __call__(self, step: str, event: object) -> None:
        if len(self.steps) == self._number:
            try:
                self._world.lake.dumps.restore(self._dump)
            except EbbtideError as error:
                self.refused = error.kind
        self.steps.append((step, event))


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, object]]:
    """The steps of a run during which nothing is restored."""
    world, dump, _ = world_of(tmp_path_factory.mktemp("steps"))
    observer = RestoringAt(world, dump, None)
    world.collector(observer=observer, **SHORT).run()
    world.close()
    return observer.steps


@randomized("restores beside runs")
def test_a_restored_ref_has_its_data_at_each_step_of_a_run(
    tmp_path: Path, steps: list[tuple[str, object]], seed: int
) -> None:
    """If the restore comes before the fence, the run keeps the data. Else it makes no ref."""
    number = Random(seed).randrange(len(steps))
    world, dump, old = world_of(tmp_path)
    observer = RestoringAt(world, dump, number)
    assert world.collector(observer=observer, **SHORT).run().state == "swept"
    names = {each.name for each in world.lake.tags.list()}
    names |= {each.name for each in world.lake.branches.list()}
    if number <= steps.index(("fence", "start")):
        assert observer.refused is None
        assert names == {"main", "old", "side"}
        assert world.lake.objects.get("old", "old") == b"old"
        assert world.lake.branches.get("side").commit_id == old
    else:
        assert observer.refused == "commit_expired"
        assert names == {"main"}
    world.close()


def test_after_a_run_nothing_is_restored(tmp_path: Path) -> None:
    world, dump, _old = world_of(tmp_path)
    world.collect(**SHORT)
    with raises("commit_expired"):
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
