"""Repositories that other versions of Icechunk wrote, collected by Ebbtide and by Icechunk."""

from __future__ import annotations

import hashlib
import itertools
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from icechunk import IcechunkError

from ebbtide.gc.report import RunReport
from tests.support.fixtures import copy_fixture, fixture_names
from tests.support.icechunk import backdate, collect_with_icechunk, listing, open_repository
from tests.support.icechunk_lake import LONG_AGO, IcechunkLake, candidates

KNOWN = ("expire-repo-v1-by-1.1.21", "expire-repo-v2-by-2.0.5", "test-repo-v1", "test-repo-v2")

pytestmark = pytest.mark.parametrize("name", fixture_names("icechunk", KNOWN))


@pytest.fixture
def lake(tmp_path: Path, name: str) -> IcechunkLake:
    copy_fixture("icechunk", name, tmp_path / "lake")
    backdate(tmp_path / "lake", LONG_AGO)
    return IcechunkLake(tmp_path / "lake")


def check_run(lake: IcechunkLake) -> RunReport:
    """What Icechunk deletes goes, and all that a ref reaches reads as before."""
    theirs = lake.path.with_name("theirs")
    shutil.copytree(lake.path, theirs)
    expected = collect_with_icechunk(theirs).deleted
    refs, before = ancestries(lake.path), everything(lake.path)
    report = lake.swept()
    assert {each for each in candidates(report) if not each.startswith("overwritten/")} == expected
    assert ancestries(lake.path) == refs
    assert everything(lake.path) == before
    return report


def test_what_icechunk_deletes_goes_and_all_else_stays(lake: IcechunkLake) -> None:
    """Every file is accounted for."""
    files = listing(lake.path)
    assert any("values" in each for each in everything(lake.path).values())
    report = check_run(lake)
    planned = candidates(report)
    assert all(files[address] == size for address, size in planned.items())
    assert "foreign" not in report.kinds
    assert sum(count.objects for count in report.kinds.values()) == len(files)
    assert listing(lake.path).keys() >= files.keys() - planned.keys()
    assert not listing(lake.path).keys() & planned.keys()
    assert not collect_with_icechunk(lake.path).deleted
    assert lake.collector().plan().counts["candidate"].objects == 0


def test_what_refs_let_go_is_what_icechunk_deletes(lake: IcechunkLake) -> None:
    """As they are, some of these have nothing to collect."""
    repository = open_repository(lake.path)
    for branch in repository.list_branches() - {"main"}:
        repository.delete_branch(branch)
    for tag in repository.list_tags():
        repository.delete_tag(tag)
    line = list(repository.ancestry(branch="main"))
    repository.reset_branch("main", line[len(line) // 2].id)
    backdate(lake.path, LONG_AGO)
    assert candidates(check_run(lake))


def ancestries(path: Path) -> dict[str, list[str]]:
    repository = open_repository(path)
    refs = {("branch", name) for name in repository.list_branches()}
    refs |= {("tag", name) for name in repository.list_tags()}
    return {
        f"{kind}/{name}": [found.id for found in repository.ancestry(**{kind: name})]
        for kind, name in sorted(refs)
    }


def everything(path: Path) -> dict[str, str]:
    """All nodes of all snapshots that refs reach, block by block: virtual ones lie elsewhere."""
    repository = open_repository(path)
    found: dict[str, str] = {}
    for snapshot_id in sorted({each for ids in ancestries(path).values() for each in ids}):
        store = repository.readonly_session(snapshot_id=snapshot_id).store
        try:
            root = zarr.open_group(store, mode="r")
        except zarr.errors.GroupNotFoundError:
            continue
        for node_path, node in [("", root), *root.members(max_depth=None)]:
            found[f"{snapshot_id} {node_path}"] = f"{node.attrs.asdict()} {blocks(node)}"
    return found


def blocks(node: zarr.Array[Any] | zarr.Group) -> str:
    if isinstance(node, zarr.Group):
        return "group"
    found = []
    for place in itertools.product(*map(range, node.cdata_shape)):
        try:
            values = np.asarray(node.blocks[place])
            found.append(f"values {hashlib.sha256(values.tobytes()).hexdigest()}")
        except IcechunkError:
            found.append("elsewhere")
    return f"{node.dtype} {node.shape} {found}"
