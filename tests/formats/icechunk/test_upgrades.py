"""Repositories that Icechunk upgraded from version 1 to 2: what version 1 had to remember holds,
and a client of version 1 that goes on writing is noticed."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from icechunk import Repository

from ebbtide.errors import Refused
from ebbtide.formats.icechunk.ids import ROOT_ID
from ebbtide.formats.icechunk.state import load_repo
from ebbtide.gc.report import RunReport
from ebbtide.gc.steps import Event
from ebbtide.ids import new_id
from ebbtide.retention.expiry import ExpiryRequest
from ebbtide.storage import open_storage
from tests.formats.icechunk.operations import commit_array
from tests.support.clock import ManualClock
from tests.support.icechunk import (
    SPEC_VERSIONS,
    contents,
    create_repository,
    listing,
    open_repository,
    read_snapshot,
    upgrade,
)
from tests.support.icechunk_lake import GRACE, IcechunkLake, candidates
from tests.support.refusals import check_refused

pytestmark = pytest.mark.skipif(2 not in SPEC_VERSIONS, reason="nothing can be upgraded here")

WEEK = timedelta(days=7)


class Lake(IcechunkLake):
    """A repository of version 1 with three commits on main, of which the branch `old` has the last;
    main is at the first of them. All files are old."""

    clock: ManualClock

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        repository = create_repository(path, 1)
        self.made = [commit_array(repository, "values", value + 1) for value in range(3)]
        repository.create_branch("old", self.made[-1])
        repository.reset_branch("main", self.made[0])
        self.age()
        self.clock = ManualClock(datetime.now(UTC))
        self.reads = {each: read_snapshot(repository, each) for each in self.made}
        self.gone = {f"snapshots/{each}" for each in self.made[1:]}

    def candidates(self) -> set[str]:
        return set(candidates(self.planned(quiet=False)))

    def sweep(self, **options: Any) -> RunReport:
        self.age()
        return self.swept(**options)

    def there(self) -> set[str]:
        return {*listing(self.path)}


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path / "lake")


def delete_branch(lake: Lake) -> None:
    open_repository(lake.path).delete_branch("old")


def expiry(lake: Lake) -> ExpiryRequest:
    rule = {"keep_last": 1}
    now = lake.format().now()
    return ExpiryRequest.of(now=now, sessions=timedelta(0), rule=rule, unsafe=True)


def expire(lake: Lake) -> None:
    _, found = lake.expire(expiry(lake), quiet=False)
    assert found.released == {lake.made[1]}


@pytest.mark.parametrize(
    ("lets_go", "seen"), [(delete_branch, False), (expire, False), (delete_branch, True)]
)
def test_what_was_let_go_before_stays_for_a_grace(
    lake: Lake, lets_go: Callable[[Lake], None], seen: bool
) -> None:
    """From the upgrade on, or since a plan of version 1 saw it."""
    lets_go(lake)
    if seen:
        assert lake.candidates() == set()
        lake.clock.advance(GRACE - timedelta(minutes=1))
    upgrade(lake.path)
    lake.age()
    assert lake.candidates() == set()
    if not seen:
        lake.clock.advance(GRACE - timedelta(minutes=1))
        assert lake.candidates() == set()
    lake.clock.advance(timedelta(minutes=2))
    gone = lake.gone if lets_go is delete_branch else {f"snapshots/{lake.made[1]}"}
    assert gone <= lake.candidates()


def test_with_nobody_there_only_age_counts(lake: Lake) -> None:
    delete_branch(lake)
    upgrade(lake.path)
    assert lake.gone <= candidates(lake.sweep()).keys()


def test_a_plan_of_before_takes_nothing_that_is_needed_now(lake: Lake) -> None:
    delete_branch(lake)
    planned = lake.collector().plan()
    assert f"snapshots/{lake.made[2]}" in candidates(planned)
    open_repository(lake.path).create_tag("back", lake.made[2])
    upgrade(lake.path)
    before = contents(lake.path)
    report = lake.collector().sweep(planned.run_id)
    assert (report.state, report.counts["deleted"].objects) == ("swept", 0), report.error
    assert contents(lake.path) == before


class TestUndoing:
    def swept(self, lake: Lake) -> str:
        """A run of version 1 that took what the branch had."""
        delete_branch(lake)
        run_id = lake.sweep(quarantine=WEEK).run_id
        assert f"snapshots/{lake.made[2]}" not in lake.there()
        return run_id

    def undo(self, lake: Lake, run_id: str, *, closed: int) -> RunReport:
        report = lake.collector().undo(run_id)
        assert report.state == "undone", report.error
        assert report.quarantine is not None
        assert report.quarantine["closed_commits"] == closed
        return report

    def test_a_run_of_before(self, lake: Lake) -> None:
        """Files come back, and Icechunk knows the snapshots again."""
        before = listing(lake.path)
        run_id = self.swept(lake)
        upgrade(lake.path)
        report = self.undo(lake, run_id, closed=0)
        assert report.quarantine is not None and report.quarantine["reopened_commits"] == 2
        back = {name for name in before if name.split("/")[0] not in ("refs", "config.yaml")}
        assert back <= lake.there()
        repository = open_repository(lake.path)
        assert {each: read_snapshot(repository, each) for each in lake.made} == lake.reads
        found = list(repository.ancestry(snapshot_id=lake.made[2]))
        assert [each.id for each in found] == [*reversed(lake.made), ROOT_ID]
        assert {each.message for each in found[:3]} == {"values"}
        # It is held for a week.
        lake.clock.advance(WEEK - 2 * GRACE)
        lake.sweep()
        repository = open_repository(lake.path)
        assert {each: read_snapshot(repository, each) for each in lake.made} == lake.reads

    def test_what_was_undone_before_is_held(self, lake: Lake) -> None:
        self.undo(lake, self.swept(lake), closed=0)
        upgrade(lake.path)
        lake.clock.advance(WEEK - 2 * GRACE)
        lake.sweep()
        assert lake.gone <= lake.there()
        lake.clock.advance(3 * GRACE)
        lake.sweep()
        assert not lake.gone & lake.there()

    def test_one_whose_parent_the_upgrade_did_not_take_over_stays_closed(self, lake: Lake) -> None:
        """It was out of reach, and in no list, as was what came of it."""
        open_repository(lake.path).create_tag("between", lake.made[1])
        run_id = self.swept(lake)
        open_repository(lake.path).delete_tag("between")
        upgrade(lake.path)
        self.undo(lake, run_id, closed=1)
        assert f"snapshots/{lake.made[2]}" in lake.there()
        assert lake.made[2] not in load_repo(open_storage(str(lake.path))).ids


@contextmanager
def old_client(lake: IcechunkLake) -> Iterator[Repository]:
    """The repository as a client of version 1 has it, which does not know of `repo`."""
    repo, away = lake.path / "repo", lake.path.with_name("repo-of-version-2")
    repo.rename(away)
    try:
        yield open_repository(lake.path)
    finally:
        away.rename(repo)


def write(repository: Repository, branch: str = "main") -> str:
    return commit_array(repository, "values", 99, branch=branch)


SINCE: dict[str, Callable[[Repository, str], object]] = {
    "branch": lambda repository, tip: repository.create_branch("since", tip),
    "tag": lambda repository, tip: repository.create_tag("since", tip),
    "reset": lambda repository, tip: repository.reset_branch("main", tip),
}
"""On what nothing reaches in version 2 any more."""


class TestMixed:
    """Refs of version 1 beside the file `repo`."""

    @pytest.fixture
    def lake(self, tmp_path: Path) -> Lake:
        """Upgraded, with its old files left, and old."""
        lake = Lake(tmp_path / "lake")
        upgrade(lake.path, keeps_old_files=True)
        lake.age()
        assert (lake.path / "refs" / "branch.main" / "ref.json").exists()
        return lake

    def refused(self, lake: IcechunkLake, *mentions: str) -> str:
        """The message with which a run is refused; it changes nothing."""
        lake.age()
        before = listing(lake.path)
        report = lake.collect()
        check_refused(report, "repository_mixed", *mentions)
        assert listing(lake.path) == before
        return str(report.error)

    def test_files_that_an_upgrade_left_are_no_matter(self, lake: Lake) -> None:
        """However version 2 goes on, and though it lets go what they point at."""
        for let_go in (
            lambda repository: write(repository, "old"),
            lambda repository: repository.create_tag("tag", ROOT_ID),
            lambda repository: repository.reset_branch("main", ROOT_ID),
            lambda repository: repository.delete_branch("old"),
            write,
        ):
            let_go(open_repository(lake.path))
            lake.sweep()
        assert not {f"snapshots/{each}" for each in lake.made} & lake.there()

    def test_files_of_a_bucket_that_was_copied_into_a_directory(
        self, s3_url: str, tmp_path: Path
    ) -> None:
        """There a name such as `50%25` is meant so, and here it would be the spelling of `50%`."""
        url, lake = f"{s3_url}/{new_id()}", IcechunkLake(tmp_path / "lake")
        repository = create_repository(url, 1)
        for name in ("50%25", "ä"):
            repository.create_branch(name, write(repository))
        repository.reset_branch("main", ROOT_ID)
        upgrade(url, keeps_old_files=True)
        target = open_storage(str(lake.path))
        for address in listing(url):
            target.put(address, open_storage(url).get(address))
        repository = open_repository(lake.path)
        for name in ("50%25", "ä"):
            repository.delete_branch(name)
        lake.age()
        report = lake.swept()
        assert [each for each in candidates(report) if each.startswith("snapshots/")]

    def test_the_copy_that_tells_stays_as_long_as_they_do(self, lake: Lake) -> None:
        for _ in range(3):
            write(open_repository(lake.path))
        lake.clock.advance(2 * GRACE)
        copies = {each for each in lake.there() if each.startswith("overwritten/")}
        assert len(copies) == 3
        for _ in range(2):
            lake.sweep()
            (kept,) = copies & lake.there()
        then = load_repo(open_storage(str(lake.path)), kept)
        assert next(then.updates).kind == "RepoMigrated"
        (lake.path / "refs" / "branch.main" / "ref.json").unlink()
        lake.sweep()  # as after an upgrade that died while it deleted them
        shutil.rmtree(lake.path / "refs")
        lake.sweep()
        assert kept not in lake.there()

    @pytest.mark.parametrize("since", ["commit", *SINCE])
    def test_what_an_old_client_wrote_since(self, lake: Lake, since: str) -> None:
        if since in SINCE:
            delete_branch(lake)
        with old_client(lake) as repository:
            tip = lake.made[2] if since in SINCE else write(repository)
            if since in SINCE:
                SINCE[since](repository, tip)
            reads = read_snapshot(repository, tip)
        self.refused(lake, tip, f"Then delete everything under file://{lake.path}/refs/")
        with old_client(lake) as repository:
            assert read_snapshot(repository, tip) == reads
        for step in (lake.expire, lake.format().plan_expiry):
            with pytest.raises(Refused, match="refs of version 1"):
                step(expiry(lake))
        shutil.rmtree(lake.path / "refs")  # as the message says
        assert f"snapshots/{tip}" in candidates(lake.sweep())

    def test_a_tag_that_the_upgrade_passed_over(self, tmp_path: Path) -> None:
        """Icechunk does not find tags of version 1 whose names the directory encodes: it takes them
        for deleted, and what they keep is in no list of version 2."""
        lake = Lake(tmp_path / "lake")
        repository = open_repository(lake.path)
        repository.create_tag("für später", lake.made[2])
        repository.create_tag("for later", lake.made[1])
        repository.delete_branch("old")
        assert upgrade(lake.path, keeps_old_files=True).list_tags() == {"for later"}
        told = self.refused(lake, f"tag für später at snapshot {lake.made[2]}")
        assert "for later" not in told

    def test_what_an_old_client_did_to_what_is_reached_is_no_matter(self, lake: Lake) -> None:
        """While it is: a reset that only version 1 knows of becomes one when version 2 moves on."""
        with old_client(lake) as repository:
            repository.reset_branch("main", lake.made[1])
        lake.sweep()
        delete_branch(lake)
        self.refused(lake, lake.made[1])

    @pytest.mark.parametrize("step", ["check", "forget"])
    def test_a_write_between_plan_and_sweep(self, lake: Lake, step: str) -> None:
        """Before the sweep looks again, and just before it drops anything."""
        delete_branch(lake)
        lake.age()
        planned = lake.collector().plan()
        assert candidates(planned)
        before = lake.there()
        made: list[str] = []

        def write_once(begun: str, event: Event) -> None:
            if (begun, event) == (step, "start") and not made:
                with old_client(lake) as repository:
                    made.append(write(repository, "old"))

        report = lake.collector(observer=write_once).sweep(planned.run_id)
        assert made
        check_refused(report, "repository_mixed")
        assert before <= lake.there()

    def test_an_undo_goes_on(self, lake: Lake) -> None:
        delete_branch(lake)
        run_id = lake.sweep(quarantine=WEEK).run_id
        assert f"snapshots/{lake.made[2]}" not in lake.there()
        with old_client(lake) as repository:
            write(repository)
        assert lake.collector().undo(run_id).state == "undone"
        assert f"snapshots/{lake.made[2]}" in lake.there()

    def test_a_repository_that_was_never_upgraded(self, lake: Lake, tmp_path: Path) -> None:
        """Somebody made one of version 1 where there was one of version 2 already."""
        other = IcechunkLake(tmp_path / "other")
        create_repository(other.path, 2)
        shutil.copytree(lake.path / "refs", other.path / "refs")
        shutil.copytree(lake.path / "snapshots", other.path / "snapshots", dirs_exist_ok=True)
        self.refused(other, "its operations log has no upgrade")

    def test_without_the_copy_that_tells_only_what_is_reached_is_no_matter(
        self, lake: Lake
    ) -> None:
        write(open_repository(lake.path))
        for each in (lake.path / "overwritten").iterdir():
            each.unlink()
        lake.sweep()
        delete_branch(lake)
        self.refused(lake, lake.made[2])
