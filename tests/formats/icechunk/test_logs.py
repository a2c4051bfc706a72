"""Transaction logs: those that readers of what stays need are there after a run, and before one."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import zarr
from icechunk import IcechunkError, Repository

from ebbtide.formats.icechunk.ids import ROOT_ID
from ebbtide.formats.icechunk.layout import LOGS_PREFIX
from ebbtide.formats.icechunk.relations import IcechunkReading, companions, loose_logs
from ebbtide.formats.icechunk.state import SnapshotHistory, State, read_state
from ebbtide.model import Commit
from ebbtide.storage import open_storage
from tests.support.clock import ManualClock
from tests.support.icechunk import (
    SPEC_VERSIONS,
    collect_with_icechunk,
    create_repository,
    instant_between,
    listing,
    open_repository,
    upgrade,
)
from tests.support.icechunk_lake import IcechunkLake, candidates
from tests.support.refusals import check_refused

needs_v2 = pytest.mark.skipif(2 not in SPEC_VERSIONS, reason="writes no version 2")
each_version = pytest.mark.parametrize("version", SPEC_VERSIONS)
DAY = datetime(2026, 6, 1, tzinfo=UTC)
CHUNKS = 8


def write(repository: Repository, place: int) -> str:
    session = repository.writable_session("main")
    root = zarr.open_group(session.store, mode="a")
    root.require_array("a", shape=(CHUNKS,), chunks=(1,), dtype="int32")[place] = place + 1
    return session.commit(f"chunk {place}")


def changed(path: Path, snapshot_id: str, since: str = ROOT_ID) -> list[int]:
    found = open_repository(path).diff(from_snapshot_id=since, to_snapshot_id=snapshot_id)
    return sorted(place for chunks in found.updated_chunks.values() for (place,) in chunks)


def logs_of(path: Path) -> set[str]:
    return {name[len(LOGS_PREFIX) :] for name in listing(path) if name.startswith(LOGS_PREFIX)}


class Lake(IcechunkLake):
    """A repository with a commit for each of so many chunks, the oldest first in `made`."""

    def __init__(self, path: Path, version: int, count: int) -> None:
        super().__init__(path)
        self.repository = create_repository(path, version)
        self.made = [write(self.repository, place) for place in range(count)]

    def age_all_but(self, *snapshot_ids: str) -> None:
        self.age()
        for each in snapshot_ids:
            os.utime(self.path / "snapshots" / each)

    def plan(self) -> dict[str, int]:
        return candidates(self.planned())

    def sweep(self, **options: Any) -> set[str]:
        return set(candidates(self.swept(**options)))


@needs_v2
class TestInherited:
    def test_what_those_between_had_inherited_stays(self, tmp_path: Path) -> None:
        lake = Lake(tmp_path / "lake", 2, 5)
        third, young = lake.made[2], lake.made[4]
        lake.repository.expire_snapshots(lake.repository.lookup_snapshot(third).written_at)
        repository = open_repository(lake.path)
        assert [each.id for each in repository.ancestry(snapshot_id=third)] == [third, ROOT_ID]
        repository.reset_branch("main", ROOT_ID)
        lake.age_all_but(young)
        assert changed(lake.path, young) == [0, 1, 2, 3, 4]
        assert f"snapshots/{third}" in lake.sweep()
        assert changed(lake.path, young) == [0, 1, 2, 3, 4]

    def test_what_goes_and_stays_is_as_icechunk_has_it(self, tmp_path: Path) -> None:
        lake = Lake(tmp_path / "lake", 2, 3)
        cutoff = instant_between(lake.path)
        lake.made += [write(lake.repository, place) for place in (3, 4)]
        lake.repository.reset_branch("main", lake.made[0])
        theirs = tmp_path / "theirs"
        shutil.copytree(lake.path, theirs)
        expected = collect_with_icechunk(theirs, delete_older_than=cutoff).deleted
        assert f"snapshots/{lake.made[1]}" in expected
        lake.clock = ManualClock(datetime.now(UTC))
        gone = lake.sweep(grace=lake.clock.host_now() - cutoff)
        assert {each for each in gone if "overwritten" not in each} == expected
        for path in (lake.path, theirs):
            assert changed(path, lake.made[4]) == [0, 1, 2, 3, 4]

    def test_what_an_undo_holds_will_inherit_stays(self, tmp_path: Path) -> None:
        lake = Lake(tmp_path / "lake", 2, 4)
        lake.repository.reset_branch("main", lake.made[0])
        lake.age()
        now = datetime.now(UTC)
        state = read_state(open_storage(str(lake.path)), cutoff=now, quiet=True, first_seen={})
        back = {lake.made[3]: now + timedelta(days=1)}
        reading = IcechunkReading(state, now, timedelta(hours=1), back)
        logs = {f"{LOGS_PREFIX}{each}" for each in lake.made[1:]}
        assert set(reading.roots().companions[lake.made[3]]) == logs

    def test_a_snapshot_between_that_stays_has_the_rest(self) -> None:
        """So each log has one heir, however many stay in a row. Version 1 inherits nothing."""
        parents = {"A": None, "B": "A", "C": "B", "D": "C", "E": "D"}
        state = made_state(parents, {"B": ("0",), "E": ("9",)}, logs={*"ABCDE", "0", "9"})
        found = companions(state, ["A", "C", "E"], {"A", "C", "E"})
        named = {
            name: {each[len(LOGS_PREFIX) :] for each in each_of} for name, each_of in found.items()
        }
        assert named == {"A": {"A"}, "C": {"C", "B", "0"}, "E": {"E", "D", "9"}}
        state = made_state({"A": None, "B": "A", "C": "B"}, {}, logs=set("ABC"), inherits=False)
        assert companions(state, ["C"], {"A", "C"}) == {"C": (f"{LOGS_PREFIX}C",)}


def made_state(
    parents: Mapping[str, str | None],
    inherited: Mapping[str, tuple[str, ...]],
    *,
    logs: set[str],
    inherits: bool = True,
) -> State:
    commits = {
        name: Commit(name, () if parent is None else (parent,), DAY, name)
        for name, parent in parents.items()
    }
    return State(
        SnapshotHistory((), commits, inherited), {}, {}, frozenset(), set(), {}, logs, inherits
    )


class TestMissing:
    @each_version
    def test_the_own_log_of_what_a_ref_reaches(self, tmp_path: Path, version: int) -> None:
        """That of what nothing reaches matters to nobody."""
        lake = Lake(tmp_path / "lake", version, 4)
        lake.repository.reset_branch("main", lake.made[0])
        lake.repository.create_tag("tag", lake.made[2])
        (lake.path / LOGS_PREFIX / lake.made[3]).unlink()
        lake.age_all_but(lake.made[3])
        lake.sweep()
        for each in lake.made[:3]:
            away = (lake.path / LOGS_PREFIX / each).rename(tmp_path / "away")
            with pytest.raises(IcechunkError):
                changed(lake.path, lake.made[2])
            before = listing(lake.path)
            check_refused(lake.collect(), "missing_object")
            assert listing(lake.path) == before
            away.rename(lake.path / LOGS_PREFIX / each)

    @needs_v2
    @pytest.mark.parametrize("upgraded", [False, True])
    def test_the_first_snapshot_may_have_none(self, tmp_path: Path, upgraded: bool) -> None:
        """That of version 1 never had one."""
        lake = Lake(tmp_path / "lake", 1 if upgraded else 2, 2)
        if upgraded:
            upgrade(lake.path)
        else:
            (lake.path / LOGS_PREFIX / ROOT_ID).unlink()
        assert ROOT_ID not in logs_of(lake.path)
        assert changed(lake.path, lake.made[1]) == [0, 1]
        lake.age()
        lake.swept()

    @needs_v2
    def test_while_an_inherited_one_is_not_there_no_log_goes(self, tmp_path: Path) -> None:
        """Icechunk before 2.1 deletes them, and goes on without; or the list is damaged."""
        lake = Lake(tmp_path / "lake", 2, 3)
        last = lake.made[2]
        lake.repository.expire_snapshots(lake.repository.lookup_snapshot(last).written_at)
        repository = open_repository(lake.path)
        garbage = write(repository, 3)
        repository.reset_branch("main", last)
        lake.age()
        planned = lake.plan()
        assert {f"{LOGS_PREFIX}{garbage}", f"snapshots/{garbage}"} <= planned.keys()
        away = (lake.path / LOGS_PREFIX / lake.made[0]).rename(tmp_path / "away")
        assert changed(lake.path, last) == [1, 2]
        others = {each for each in planned if not each.startswith(LOGS_PREFIX)}
        assert lake.plan().keys() == others
        away.rename(lake.path / LOGS_PREFIX / lake.made[0])
        assert lake.plan() == planned

    def test_one_that_goes_and_is_not_there_makes_all_of_them_stay(self) -> None:
        state = made_state({"A": None, "B": "A", "C": "B"}, {}, logs={"A", "C"})
        assert loose_logs(state, {"A", "C"}) == [f"{LOGS_PREFIX}A", f"{LOGS_PREFIX}C"]
        assert loose_logs(state, {"A"}) == []
