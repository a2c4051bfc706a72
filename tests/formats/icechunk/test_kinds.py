"""Repositories of all kinds, written by Icechunk: what a plan names is what Icechunk deletes.

Where the two differ, each difference is one of those that docs/icechunk.md names, and is checked.
"""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from icechunk import IcechunkError

from ebbtide.errors import Failed
from ebbtide.formats.icechunk.ids import ROOT_ID
from ebbtide.formats.icechunk.repo import BACKUPS_PREFIX
from ebbtide.ids import new_id
from ebbtide.storage import open_storage
from tests.formats.icechunk.operations import commit_array
from tests.support.clock import wait_for_next_second
from tests.support.icechunk import (
    SPEC_VERSIONS,
    Place,
    collect_with_icechunk,
    contents,
    copy_repository,
    create_repository,
    listing,
    open_repository,
    upgrade,
)
from tests.support.icechunk_kinds import KINDS, HistoryOfAnyKind, is_encoded
from tests.support.icechunk_lake import GRACE, IcechunkLake, candidates
from tests.support.randomized import randomized

pytestmark = pytest.mark.skipif(2 not in SPEC_VERSIONS, reason="writes no version 2")

AT_ONCE = timedelta(microseconds=1)
NOT_FOUND = "ref not found|name too long"
ENCODED_NAMES = ("forschung-müller", "50%", "🧊" * 15)


@randomized("Icechunk repositories of all kinds")
def test_the_plan_names_what_icechunk_deletes(tmp_path: Path, seed: int) -> None:
    check(tmp_path, tmp_path / "lake", seed, steps=(5, 25))


@randomized("Icechunk repositories of all kinds on S3")
def test_on_s3_as_well(s3_url: str, tmp_path: Path, seed: int) -> None:
    """Of fewer operations: the server takes its time for each."""
    check(tmp_path, f"{s3_url}/{new_id()}", seed, steps=(2, 6))


def check(tmp_path: Path, place: Place, seed: int, *, steps: tuple[int, int]) -> None:
    choices = random.Random(seed)
    history = HistoryOfAnyKind(place, choices, choices.choice(KINDS))
    for _ in range(choices.randint(*steps)):
        history.step()
    history.finish()
    lake = IcechunkLake(tmp_path / "lake", url=str(place))
    if isinstance(place, Path):
        lake.age()
    else:
        wait_for_next_second()  # after it, all that was written before is old
    refs = history.refs()
    expected = deleted_by_icechunk(place, history)
    before, sizes = contents(place, refs), listing(place)
    grace = GRACE if isinstance(place, Path) else AT_ONCE

    report = lake.planned(grace=grace)
    planned = candidates(report)
    assert all(sizes[address] == size for address, size in planned.items())
    assert {each for each in planned if not each.startswith(BACKUPS_PREFIX)} == expected
    if not replaces(place):
        return
    swept = lake.collector(grace=grace).sweep(report.run_id)
    assert swept.state == "swept", swept.error
    assert swept.counts["deleted"].objects == len(planned)
    assert not listing(place).keys() & planned.keys()
    assert listing(place).keys() >= sizes.keys() - planned.keys()
    assert contents(place, refs) == before
    assert not deleted_by_icechunk(place, history)
    check_usable(place, history.branches())


def check_usable(place: Place, branches: list[str]) -> None:
    """Diffs along main can be told, and commits on every branch be made. In a directory Icechunk
    lists branches of version 1 as their folders are called, and opens none of them by that."""
    repository = open_repository(place)
    ancestry = [snapshot.id for snapshot in repository.ancestry(branch="main")]
    if len(ancestry) > 1:
        repository.diff(from_snapshot_id=ancestry[-1], to_snapshot_id=ancestry[0])
    for branch in branches:
        commit_array(repository, "after", 7, branch=branch)


def replaces(place: Place) -> bool:
    """Whether a run can hold the repository twice: Ceph 16 refuses writes that name a version."""
    storage = open_storage(str(place))
    storage.put("_ebbtide/probe", b"1")
    _, version = storage.get_versioned("_ebbtide/probe")
    try:
        storage.replace("_ebbtide/probe", b"2", version=version)
    except Failed as error:
        assert (error.kind, type(place)) == ("storage_unconditional", str)
        return False
    return True


def deleted_by_icechunk(place: Place, history: HistoryOfAnyKind) -> frozenset[str]:
    """What Icechunk's own collection deletes in a copy.

    In a directory it does not find branches and tags of version 1 whose names are encoded there: it
    fails over a branch, and takes a tag for deleted. So refs of the copy get plain names first.
    """
    copy: Place = f"{place}-{new_id()}" if isinstance(place, str) else place.with_name(new_id())
    copy_repository(place, copy)
    if not history.collectable:
        assert isinstance(copy, Path)
        check_that_icechunk_cannot(copy, history)
        give_plain_names(copy)
    return collect_with_icechunk(copy).deleted


def check_that_icechunk_cannot(path: Path, history: HistoryOfAnyKind) -> None:
    other = path.with_name(new_id())
    copy_repository(path, other)
    if any(is_encoded(name) for name in history.branches()):
        with pytest.raises(IcechunkError, match=NOT_FOUND):
            collect_with_icechunk(other)
        return
    plain = path.with_name(new_id())
    copy_repository(path, plain)
    give_plain_names(plain)
    assert collect_with_icechunk(other).deleted >= collect_with_icechunk(plain).deleted


def give_plain_names(path: Path) -> None:
    for number, folder in enumerate(sorted((path / "refs").iterdir())):
        kind, _, name = folder.name.partition(".")
        if "%" in name:
            folder.rename(folder.with_name(f"{kind}.plain-{number}"))


class TestDifferences:
    @pytest.fixture
    def lake(self, tmp_path: Path) -> IcechunkLake:
        """A repository of version 1 in which only a ref with an encoded name has a commit."""
        lake = IcechunkLake(tmp_path / "lake")
        repository = create_repository(lake.path, 1)
        self.made = commit_array(repository, "a", 7)
        repository.reset_branch("main", ROOT_ID)
        return lake

    def keeps_all(self, lake: IcechunkLake) -> None:
        lake.age()
        assert candidates(lake.swept()) == {}

    def test_a_tag_whose_name_a_directory_encodes(self, lake: IcechunkLake) -> None:
        repository, name = open_repository(lake.path), random.choice(ENCODED_NAMES)
        repository.create_tag(name, self.made)
        assert repository.list_tags() == set()
        self.keeps_all(lake)
        deleted = collect_with_icechunk(lake.path).deleted
        assert {f"snapshots/{self.made}", f"transactions/{self.made}"} < deleted
        assert [each for each in deleted if each.startswith("chunks/")]

    def test_a_branch_whose_name_a_directory_encodes(self, lake: IcechunkLake) -> None:
        open_repository(lake.path).create_branch(random.choice(ENCODED_NAMES), self.made)
        self.keeps_all(lake)
        for asks in (
            lambda: collect_with_icechunk(lake.path),
            lambda: open_repository(lake.path).expire_snapshots(datetime.now(UTC)),
            lambda: upgrade(lake.path),
        ):
            with pytest.raises(IcechunkError, match=NOT_FOUND):
                asks()
        assert "repo" not in listing(lake.path)
