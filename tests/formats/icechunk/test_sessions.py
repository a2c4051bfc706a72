"""Sessions that nobody knows of: what they may be built on stays for the grace."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
import zarr

from ebbtide.errors import Refused
from ebbtide.formats.base import EPOCH_ADDRESS
from ebbtide.formats.icechunk.state import load_repo
from ebbtide.formats.icechunk.unreachable import UNREACHABLE_ADDRESS
from ebbtide.gc.steps import Event
from ebbtide.retention.expiry import ExpiryRequest
from ebbtide.storage import open_storage
from tests.support.clock import ManualClock
from tests.support.faulty import FaultyStorage
from tests.support.icechunk import (
    SPEC_VERSIONS,
    collect_with_icechunk,
    contents,
    create_repository,
    design_example,
    instant_between,
    listing,
    open_repository,
    read_snapshot,
)
from tests.support.icechunk_lake import LONG_AGO, IcechunkLake, candidates
from tests.support.randomized import choose

DATES_BEHIND_MAX = timedelta(milliseconds=20)
"""By how much a directory's dates are behind the time of day."""

each_version = pytest.mark.parametrize("spec_version", SPEC_VERSIONS)


@pytest.fixture
def spec_version(request: pytest.FixtureRequest) -> int:
    """One of them, where both see the same."""
    return choose(request.node.nodeid, SPEC_VERSIONS)


def commit(path: Path, value: float) -> str:
    """Write four chunks and commit them to main."""
    session = open_repository(path).writable_session("main")
    root = zarr.open_group(session.store, mode="a")
    array = root.require_array(
        "values", shape=(16,), chunks=(4,), dtype="float64", compressors=None
    )
    array[...] = value
    return session.commit(f"value {value}")


@pytest.fixture
def lake(tmp_path: Path, spec_version: int) -> IcechunkLake:
    """Four commits."""
    path = tmp_path / "lake"
    create_repository(path, spec_version)
    for value in range(1, 5):
        commit(path, value)
    return IcechunkLake(path)


@dataclass(frozen=True)
class Rewound:
    """The branch main was rewound from `head`, and the repository's time stands just after that.
    `grace` goes back to when all was written, and `head` still reachable."""

    lake: IcechunkLake
    clock: ManualClock
    head: str
    grace: timedelta


def rewind(lake: IcechunkLake) -> Rewound:
    """Rewind, after a moment."""
    middle = instant_between(lake.path)
    head, below = list(open_repository(lake.path).ancestry(branch="main"))[:2]
    open_repository(lake.path).reset_branch("main", below.id)
    clock = ManualClock(datetime.now(UTC))
    lake.clock = clock
    return Rewound(lake, clock, head.id, clock.now - middle)


@each_version
def test_what_was_reachable_within_the_grace_stays(lake: IcechunkLake) -> None:
    """A reader has the head open while somebody rewinds the branch and collects."""
    reader = open_repository(lake.path)
    rewound = rewind(lake)

    for _ in range(2):
        report = lake.collect(quiet=False, grace=rewound.grace)
        assert report.state == "swept", report.error

    assert read_snapshot(reader, rewound.head)
    assert read_snapshot(open_repository(lake.path), rewound.head)
    gone = candidates(lake.collect(quiet=True, grace=rewound.grace))
    assert f"snapshots/{rewound.head}" in gone


@each_version
def test_after_the_grace_it_goes(lake: IcechunkLake) -> None:
    """Version 2 knows when it was released; version 1 needs two plans a grace apart."""
    rewound = rewind(lake)

    def names_it() -> bool:
        report = lake.collector(quiet=False, grace=rewound.grace).plan()
        assert report.state == "planned", report.error
        return f"snapshots/{rewound.head}" in candidates(report)

    assert not names_it()
    rewound.clock.advance(rewound.grace / 4)
    assert not names_it()
    rewound.clock.advance(rewound.grace)
    assert names_it()


@each_version
@pytest.mark.parametrize("ran_before", [False, True], ids=["first", "behind a run"])
def test_an_expiry_frees_nothing_before_the_grace_is_over(
    tmp_path: Path, spec_version: int, ran_before: bool
) -> None:
    """Nor where a run of long ago left what tells its time."""
    lake = IcechunkLake(tmp_path / "lake")
    example = design_example(lake.path, spec_version)
    if ran_before:
        assert lake.collect().state == "swept"
        long_ago = time.time() - LONG_AGO
        os.utime(lake.path / EPOCH_ADDRESS, (long_ago, long_ago))
    middle = instant_between(lake.path)
    reader = open_repository(lake.path)
    request = ExpiryRequest(older_than=example.threshold, younger=example.threshold)
    began = datetime.now(UTC)
    _, expiry = lake.format().expire(request)
    if spec_version == 2:
        newest = next(load_repo(open_storage(str(lake.path))).updates)
        assert newest.at >= began - DATES_BEHIND_MAX, "its date is its own"
    lake.clock = ManualClock(datetime.now(UTC))

    for _ in range(2):
        lake.collect(quiet=False, grace=lake.clock.host_now() - middle)

    assert expiry.released
    assert all(read_snapshot(reader, snapshot_id) for snapshot_id in expiry.released)


@each_version
def test_an_expiry_that_was_suspended_holds_what_it_released(
    tmp_path: Path, spec_version: int
) -> None:
    """Its date is from before, by which the next run goes."""
    clock = ManualClock(datetime.now(UTC))
    lake = IcechunkLake(tmp_path / "lake", clock=clock)
    example = design_example(lake.path, spec_version)
    grace = lake.settings.icechunk_grace
    slept: list[str] = []

    def suspended(method: str, address: str) -> None:
        if method == "replace" and not slept and address.startswith(("repo", "snapshots/")):
            slept.append(address)
            clock.advance(2 * grace)

    repository = lake.format(quiet=False)
    repository.storage = FaultyStorage(repository.storage, before=suspended)
    request = ExpiryRequest(older_than=example.threshold, younger=example.threshold)
    _, expiry = repository.expire(request)
    reader = open_repository(lake.path)

    assert slept
    for later in (timedelta(0), grace - timedelta(minutes=1)):
        clock.advance(later)
        report = lake.collect(quiet=False, grace=grace, allow_share=True)
        assert report.state == "swept", report.error
        assert all(read_snapshot(reader, snapshot_id) for snapshot_id in expiry.released)
    clock.advance(2 * grace)
    gone = candidates(lake.collect(quiet=False, grace=grace, allow_share=True))
    assert {f"snapshots/{each}" for each in expiry.released} <= gone.keys()


@each_version
def test_an_expiry_by_a_wrong_clock_is_refused(tmp_path: Path, spec_version: int) -> None:
    """What it released would seem to have been released long ago."""
    lake = IcechunkLake(tmp_path / "lake", clock=ManualClock(datetime.now(UTC)))
    example = design_example(lake.path, spec_version)
    before = listing(lake.path)
    request = ExpiryRequest(older_than=example.threshold, younger=example.threshold)
    assert isinstance(lake.clock, ManualClock)
    lake.clock.host_offset = -timedelta(days=8)

    with pytest.raises(Refused) as refused:
        lake.format().expire(request)

    assert refused.value.kind == "clock_skew"
    assert listing(lake.path) == before
    assert not list(lake.path.glob("_ebbtide/expire/*"))
    lake.clock.host_offset = timedelta(0)
    _, expiry = lake.format().expire(request)
    assert expiry.released


@pytest.mark.parametrize("spec_version", [1])
def test_a_plan_that_slept_brings_no_date_back(lake: IcechunkLake) -> None:
    """Another one was made meanwhile, and what it saw unreachable counts. Version 2 remembers by
    itself."""
    rewound = rewind(lake)
    slept = lake.format()
    with slept.reading(rewound.clock.now):
        pass
    open_repository(lake.path).reset_branch("main", rewound.head)
    assert lake.collector().plan().state == "planned"
    seen = lake.path / UNREACHABLE_ADDRESS
    before = seen.read_bytes()
    assert rewound.head.encode() not in before

    slept.record_run("0" * 32, state="planned", run_path="nowhere", plan_checksum="none")

    assert seen.read_bytes() == before


def test_a_session_shorter_than_the_grace_commits(lake: IcechunkLake) -> None:
    """Its chunks are referred to by nothing while the collection runs."""
    lake.age()
    session = open_repository(lake.path).writable_session("main")
    zarr.open_group(session.store, mode="a")["values"][...] = 99  # type: ignore[index]
    assert lake.collect(quiet=False).state == "swept"
    snapshot_id = session.commit("late")
    assert snapshot_id in contents(lake.path).refs["branch/main"]
    store = open_repository(lake.path).readonly_session(snapshot_id=snapshot_id).store
    values = zarr.open_group(store, mode="r")["values"]
    assert isinstance(values, zarr.Array)
    assert np.all(np.asarray(values[...]) == 99)


def test_commits_at_each_step_lose_nothing(lake: IcechunkLake) -> None:
    below = list(open_repository(lake.path).ancestry(branch="main"))[2]
    open_repository(lake.path).reset_branch("main", below.id)
    lake.age()
    made: dict[str, dict[str, str]] = {}

    def commit_another(_step: str, _event: Event) -> None:
        snapshot_id = commit(lake.path, 10.0 + len(made))
        made[snapshot_id] = read_snapshot(open_repository(lake.path), snapshot_id)

    report = lake.collector(observer=commit_another).plan()
    swept = lake.collector(observer=commit_another).sweep(report.run_id)
    assert swept.state == "swept", swept.error
    assert swept.counts["deleted"].objects > 0
    seen = contents(lake.path)
    assert len(made) > 10
    assert made.keys() <= set(seen.refs["branch/main"])
    assert made.items() <= seen.snapshots.items()
    assert not collect_with_icechunk(lake.path).deleted
