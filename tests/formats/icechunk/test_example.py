"""The worked example of Icechunk's design document on expiration, on real repositories.

8, 9, 10 and 12 get the root as parent; 6 and 7 are released, without tag1 also 3, without tag2
also 4 and 5, without both all from 1 to 7. Icechunk 2.3 differs in version 2: there 12 keeps the
tagged 5 as its parent.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from ebbtide.retention.expiry import ExpiryRequest
from tests.support.icechunk import (
    SPEC_VERSIONS,
    DesignExample,
    collect_with_icechunk,
    contents,
    design_example,
    listing,
    open_repository,
)
from tests.support.icechunk_lake import IcechunkLake, candidates

pytestmark = pytest.mark.parametrize("spec_version", SPEC_VERSIONS)

CUT = {
    "branch/main": [14, 13, 12, 0],
    "branch/develop": [11, 10, 0],
    "branch/test": [9, 0],
    "branch/qa": [8, 0],
    "tag/tag1": [3, 2, 1, 0],
    "tag/tag2": [5, 4, 2, 1, 0],
}
"""The ancestry of each ref afterwards. Tags keep theirs: they point at what is older."""


def expire(lake: IcechunkLake, example: DesignExample) -> set[int]:
    """Expire what is older than 8; the numbers released."""
    request = ExpiryRequest(older_than=example.threshold, younger=example.threshold)
    _, expiry = lake.format().expire(request)
    numbers = {snapshot_id: number for number, snapshot_id in example.ids.items()}
    return {numbers[snapshot_id] for snapshot_id in expiry.released}


def ancestries(path: Path, example: DesignExample) -> dict[str, list[int]]:
    numbers = {snapshot_id: number for number, snapshot_id in example.ids.items()}
    return {
        ref: [numbers[snapshot_id] for snapshot_id in ids]
        for ref, ids in contents(path).refs.items()
    }


def collected(lake: IcechunkLake, example: DesignExample) -> set[int]:
    lake.age()
    report = lake.swept()
    gone = {address for address in candidates(report) if address.startswith("snapshots/")}
    return {number for number, name in example.ids.items() if f"snapshots/{name}" in gone}


def test_history_is_cut_as_the_example_says(tmp_path: Path, spec_version: int) -> None:
    """What a tag keeps goes once the tag does."""
    lake = IcechunkLake(tmp_path / "lake")
    example = design_example(lake.path, spec_version)
    before, files = contents(lake.path).snapshots, listing(lake.path)
    told = changes(lake, example)

    assert expire(lake, example) == {6, 7}

    assert ancestries(lake.path, example) == CUT
    after = contents(lake.path).snapshots
    assert after == {snapshot_id: before[snapshot_id] for snapshot_id in after}
    assert listing(lake.path).keys() >= files.keys(), "expiring deletes nothing"
    assert expire(lake, example) == set(), "a second time there is nothing to do"
    assert collected(lake, example) == {6, 7}
    assert ancestries(lake.path, example) == CUT
    assert not collect_with_icechunk(lake.path).deleted
    if spec_version == 2:
        # A survivor inherits the transaction logs of what was cut off below it.
        assert changes(lake, example) == told
    left = dict(CUT)
    for tag, more in (("tag1", {3}), ("tag2", {1, 2, 4, 5})):
        open_repository(lake.path).delete_tag(tag)
        del left[f"tag/{tag}"]
        assert collected(lake, example) == more
        assert ancestries(lake.path, example) == left


def changes(lake: IcechunkLake, example: DesignExample) -> str:
    repository = open_repository(lake.path)
    found = repository.diff(from_snapshot_id=example.ids[0], to_snapshot_id=example.ids[14])
    return str(found)
