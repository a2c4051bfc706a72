"""Tables that deltalake writes, with a writer at work during the sweep: every kept version reads
the same before and after."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError

from tests.formats.delta.replay import DAY, Replay
from tests.formats.delta.stand import NOW, DeltaLake, meanwhile, random_keeping
from tests.support.randomized import randomized

VALUES = ("a b", "x/y", "50%", "ü", "q=1", "c:d", "plain", None)
Rows = list[tuple[int, str | None]]


class Written:
    """A table of rows with a number and a partition. Its commits get dates of their own: those of
    the files say when all others were written."""

    def __init__(self, path: Path, rng: Random) -> None:
        self.path, self.rng, self.next = path, rng, 0
        self.parts = ["part"] if rng.random() < 0.6 else None
        self.head, self.dated = -1, set[Path]()
        self.cleans = rng.random() < 0.2
        self.configuration = {"delta.enableExpiredLogCleanup": str(self.cleans).lower()}
        self.now = NOW - rng.randrange(10, 40) * DAY
        self.append()
        self.date()

    def append(self) -> None:
        count = self.rng.randrange(1, 5)
        ids = range(self.next, self.next + count)
        rows = {
            "id": pa.array(ids, pa.int64()),
            "part": pa.array([self.rng.choice(VALUES) for _ in ids], pa.string()),
        }
        self.next += count
        write_deltalake(
            str(self.path),
            pa.table(rows),
            mode="append",
            partition_by=self.parts,
            configuration=self.configuration,
        )

    def change(self) -> None:
        """One random commit, or a checkpoint. What deltalake cannot do to the table is left out."""
        table, some = DeltaTable(str(self.path)), self.rng.randrange(max(1, self.next))
        source = pa.table({"id": pa.array([some, self.next], pa.int64()), "part": ["m", "n"]})
        merge: Any = table.merge(source, "t.id = s.id", source_alias="s", target_alias="t")
        actions: list[Callable[[], object]] = [
            self.append,
            self.append,
            lambda: table.delete(f"id = {some}"),
            lambda: table.update(predicate=f"id >= {some}", updates={"id": "id + 1000"}),
            table.optimize.compact,
            lambda: merge.when_matched_delete().when_not_matched_insert_all().execute(),
            lambda: table.restore(self.rng.randrange(table.version() + 1)),
            table.create_checkpoint,
        ]
        with suppress(DeltaError):
            self.rng.choice(actions)()
        self.date()

    def date(self) -> None:
        """Gives what was written since the last call dates: the files of a commit are older than
        the commit. A checkpoint of deltalake also cleans the log up."""
        for version in range(self.head + 1, DeltaTable(str(self.path)).version() + 1):
            self.head = version
            commit = self.path / "_delta_log" / f"{version:020d}.json"
            text = commit.read_text()
            new = [each for each in self.path.rglob("*.parquet") if each.name in text]
            for each in {*new} - self.dated:
                os.utime(each, ns=((self.now - 60_000) * 1_000_000,) * 2)
            self.dated |= {*new}
            os.utime(commit, ns=(self.now * 1_000_000,) * 2)
            self.now = min(self.now + self.rng.randrange(DAY // 8, 4 * DAY), NOW - 60_000)

    def read(self, version: int) -> Rows:
        rows = DeltaTable(str(self.path), version=version).to_pyarrow_table().to_pylist()
        return sorted(((row["id"], row["part"]) for row in rows), key=str)


@randomized("tables that deltalake writes")
def test_kept_versions_read_the_same(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = Random(seed)
    keeping = random_keeping(rng)
    table = Written(tmp_path / "lake", rng)
    for _ in range(rng.randrange(4, 14)):
        table.change()
    lake, replay = DeltaLake(table.path, keeping), Replay(table.path)
    wanted, before = replay.candidates(keeping, NOW), lake.files()
    kept = {each: table.read(each) for each in keeping.kept(replay.times, NOW)}
    repository = lake.open()
    collector = lake.collector(repository, quarantine=timedelta(days=7))
    plan = collector.plan()
    assert plan.state == "planned", plan.error
    assert lake.planned() == wanted
    changes = rng.randrange(3)

    def work() -> None:
        for _ in range(changes):
            table.change()

    moment = rng.choice(("before a batch", "in a batch", "after the last batch"))
    with monkeypatch.context() as patch:
        meanwhile(patch, moment, work, batch=rng.randrange(3))
        report = collector.sweep(plan.run_id)
    newest = DeltaTable(str(table.path)).version()
    needed = Replay(table.path).files(newest)
    if report.error is not None:
        # A restore made old files needed: the undo brings them back.
        assert changes
        assert "undo" in str(report.error) or needed <= lake.files(), report.error
        collector.undo(plan.run_id)
    assert needed <= lake.files()
    table.read(newest)
    if not changes:
        assert lake.files() == before - wanted
    # The writer's own cleanup of the log may have ended versions meanwhile.
    left = Replay(table.path).times
    assert (left.keys() >= kept.keys()) or (changes and table.cleans)
    assert {each: table.read(each) for each in kept if each in left} == {
        each: rows for each, rows in kept.items() if each in left
    }
