"""Random real repositories: what Ebbtide lets go is what Icechunk's own collection deletes.

The repository is copied, Icechunk collects the copy, and both are compared. After Ebbtide's sweep
everything that a ref reaches reads as before, in Icechunk's own eyes.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest
import zarr

from ebbtide.gc.options import SIZES
from tests.support.engines import ENGINES
from tests.support.icechunk import (
    SPEC_VERSIONS,
    build_random,
    collect_with_icechunk,
    contents,
    listing,
    open_repository,
)
from tests.support.icechunk_lake import IcechunkLake, candidates, planned_rows
from tests.support.randomized import randomized

each_version = pytest.mark.parametrize("version", SPEC_VERSIONS)


@each_version
@randomized("Icechunk repositories, planned and swept")
def test_the_plan_names_what_icechunk_deletes(tmp_path: Path, version: int, seed: int) -> None:
    _check(tmp_path / "lake", seed, version, "inline")


@each_version
@pytest.mark.spark
@pytest.mark.drawn("engines on Spark")
@pytest.mark.parametrize("engine", ["spark", "joins"])
@randomized("Icechunk repositories on Spark")
def test_a_plan_of_spark_names_what_icechunk_deletes(
    tmp_path: Path, version: int, engine: str, seed: int
) -> None:
    _check(tmp_path / "lake", seed, version, engine)


def _check(path: Path, seed: int, version: int, engine: str) -> None:
    build_random(path, seed, version)
    lake = IcechunkLake(path)
    lake.engine = ENGINES[engine]
    lake.age()
    theirs = path.with_name(f"{path.name}-theirs")
    shutil.copytree(path, theirs)
    expected = collect_with_icechunk(theirs).deleted
    before, sizes = contents(path), listing(path)

    sizes_asked = random.Random(seed).choice(SIZES[:2])
    report = lake.collector(sizes=sizes_asked).plan()
    if engine != "inline":
        lake.engine = ENGINES["inline"]
        assert planned_rows(lake.collector(sizes=sizes_asked).plan()) == planned_rows(report)
        lake.engine = ENGINES[engine]

    planned = candidates(report)
    assert all(sizes[address] == size for address, size in planned.items())
    ours = {address for address in planned if not address.startswith("overwritten/")}
    assert ours == expected
    swept = lake.collector().sweep(report.run_id)
    assert swept.state == "swept", swept.error
    assert swept.counts["deleted"].objects == len(planned)
    assert listing(path).keys() >= sizes.keys() - planned.keys()
    assert not listing(path).keys() & planned.keys()

    assert contents(path) == before
    _check_usable(path)
    assert not collect_with_icechunk(path).deleted
    if version == 2:
        assert _operations(path) >= _operations(theirs)


def _operations(path: Path) -> int:
    return sum(1 for _ in open_repository(path).ops_log())


def _check_usable(path: Path) -> None:
    """Diffs along main can be told, and commits on every branch be made."""
    repository = open_repository(path)
    ancestry = [snapshot.id for snapshot in repository.ancestry(branch="main")]
    if len(ancestry) > 1:
        repository.diff(from_snapshot_id=ancestry[-1], to_snapshot_id=ancestry[0])
    for branch in sorted(repository.list_branches()):
        session = repository.writable_session(branch)
        root = zarr.open_group(session.store, mode="a")
        array = root.require_array("after", shape=(4,), chunks=(1,), dtype="float64")
        array[...] = 7
        session.commit("after the sweep")
