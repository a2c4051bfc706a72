"""Files that commits of the own store need, and that are not on the storage."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest

from ebbtide.errors import Refused
from ebbtide.gc import quarantine
from ebbtide.gc.candidates import check_presence
from ebbtide.gc.committed import HELD_SCHEMA
from ebbtide.gc.parts import PartRows
from ebbtide.gc.report import RunReport
from ebbtide.gc.runs import RunFolder
from ebbtide.ids import new_id
from ebbtide.storage import open_storage
from tests.support.world import DAY, World

HOUR = timedelta(hours=1)
SETTINGS = {"range_entries_target": 2, "slice_age_max": HOUR}
AGED_SLICES = False


@pytest.fixture
def world(world: World) -> World:
    """Slices last an hour, and commits are kept."""
    for number in range(5):
        world.lake.objects.put("main", f"{number}", b"%d" % number)
    world.lake.commits.commit("main", "")
    return world


def run(world: World, mode: str = "auto") -> RunReport:
    world.clock.advance(2 * HOUR)
    return world.swept(mode=mode)


def address_of(world: World, path: str) -> str:
    return world.format().address_at("main", path)


def test_a_lost_file_is_named_by_each_run_until_it_is_back_or_found(world: World) -> None:
    run(world, "clean")
    lost = address_of(world, "3")
    data = (world.root / lost).read_bytes()
    (world.root / lost).unlink()
    head = world.lake.branches.get("main").commit_id
    for _ in range(2):
        report = run(world, "clean")
        assert report.recovered is not None
        assert (report.recovered["restored"], report.recovered["lost_names"]) == (0, [lost])
        assert any(lost in each for each in report.warnings)
    plan = world.collector(mode="clean").plan()
    (warning,) = [each for each in plan.warnings if "is not at" in each]
    assert f"{lost} (commit {head}, branch main)" in warning
    (world.root / lost).write_bytes(data)
    assert run(world, "clean").recovered is None
    # An incremental run lists too little to find a file again.
    (world.root / address_of(world, "0")).unlink()
    run(world, "clean")
    report = run(world, "incremental")
    assert report.mode == "clean"
    assert report.mode_reason is not None
    assert "did not find files that commits need" in report.mode_reason
    (world.root / address_of(world, "0")).write_bytes(b"0")
    lost = address_of(world, "1")
    there = world.root / "_ebbtide/gc/runs" / ("f" * 32) / "quarantine" / lost
    there.parent.mkdir(parents=True)
    (world.root / lost).rename(there)
    report = run(world, "clean")
    assert report.recovered is not None
    assert report.recovered["restored_names"] == [lost], "from the quarantine of a run"
    assert (world.root / lost).read_bytes() == b"1"


def test_young_files_are_not_looked_up(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.clock.advance(DAY)
    world.lake.objects.put("main", "young", b"y")
    world.lake.commits.commit("main", "")
    looked: list[str] = []

    def noted(_storage: Any, addresses: list[str]) -> Any:
        looked.extend(addresses)
        raise AssertionError("a file is looked up")

    monkeypatch.setattr("ebbtide.gc.candidates.exists", noted)
    report = world.collect(mode="clean")
    assert report.state == "swept"
    assert not looked


def test_imported_objects_are_not_looked_up(world: World) -> None:
    """The index of nodes has their keys, but not what they are."""
    world.lake.addresses.stage("main", "in", "s3://elsewhere/in", size_bytes=1)
    world.lake.commits.commit("main", "")
    for mode in ("clean", "clean", "incremental", "incremental", "clean"):
        report = run(world, mode)
        assert report.recovered is None


def test_a_file_outside_the_root_is_in_no_quarantine() -> None:
    """Its URL is no address, which a bucket would refuse to look up."""
    storage = open_storage(f"memory:{new_id()}")
    run_id, inner, outer = new_id(), "data/a", "s3://other//b"
    storage.put(f"{quarantine.prefix_of(run_id)}{inner}", b"held")
    folder, answer = RunFolder.inside(storage, run_id), PartRows()
    for number, address in enumerate((inner, outer)):
        table = pa.table({"address": [address], "node_id": ["n"]}, schema=HELD_SCHEMA)
        answer.wrote(folder, f"absent/part-{number}.parquet", table, relation="absent")
    held, other = answer.parts()
    check_presence(folder, storage, [held])
    with pytest.raises(Refused, match=outer):
        check_presence(folder, storage, [held, other])
