"""The file `repo` of version 2 is an older copy, such as a restored backup."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from ebbtide.gc.report import RunReport
from tests.formats.icechunk.test_sessions import commit
from tests.support.clock import ManualClock
from tests.support.icechunk import create_repository, instant_between, open_repository
from tests.support.icechunk_lake import IcechunkLake
from tests.support.refusals import check_refused

LATER = timedelta(days=9)
"""More than a grace."""


def lake_of(path: Path) -> IcechunkLake:
    create_repository(path, 2)
    for value in range(3):
        commit(path, value)
    instant_between(path)
    return IcechunkLake(path)


def run(lake: IcechunkLake, **options: bool) -> RunReport:
    lake.clock = ManualClock(datetime.now(UTC) + LATER)
    return lake.collect(quiet=False, **options)


def test_a_restored_repo_refuses_the_run(tmp_path: Path) -> None:
    lake = lake_of(tmp_path / "lake")
    saved = (lake.path / "repo").read_bytes()
    head = commit(lake.path, 9)
    assert run(lake).state == "swept"
    (lake.path / "repo").write_bytes(saved)
    check_refused(run(lake), "lost_commits", f"{head} (branch main)")
    assert (lake.path / "snapshots" / head).exists()
    assert run(lake, accept_lost_commits=True).state == "swept"
    assert not (lake.path / "snapshots" / head).exists()


def test_a_branch_that_was_reset_or_deleted_is_no_loss(tmp_path: Path) -> None:
    lake = lake_of(tmp_path / "lake")
    head, below = list(open_repository(lake.path).ancestry(branch="main"))[:2]
    open_repository(lake.path).create_branch("side", head.id)
    lake.swept(quiet=False)
    open_repository(lake.path).delete_branch("side")
    open_repository(lake.path).reset_branch("main", below.id)
    assert run(lake).state == "swept"
    assert run(lake).state == "swept"
