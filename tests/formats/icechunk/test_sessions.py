"""Sessions that nobody knows of: what they may be built on stays for the grace."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from ebbtide.errors import Refused
from ebbtide.formats.base import EPOCH_ADDRESS
from ebbtide.formats.icechunk.repository import UNREACHABLE_ADDRESS
from ebbtide.formats.icechunk.state import load_repo
from ebbtide.gc.hold import expire
from ebbtide.gc.options import RunOptions
from ebbtide.retention.expiry import ExpiryRequest
from ebbtide.storage import open_storage
from tests.formats.icechunk.operations import commit_array
from tests.support.clock import ManualClock
from tests.support.errors import raises
from tests.support.faulty import FaultyStorage
from tests.support.icechunk import (
    SPEC_VERSIONS,
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
    return commit_array(open_repository(path), "values", value)


@pytest.fixture
def lake(tmp_path: Path, spec_version: int) -> IcechunkLake:
    path = tmp_path / "lake"
    create_repository(path, spec_version)
    for value in range(1, 5):
        commit(path, value)
    return IcechunkLake(path)


@dataclass(frozen=True)
class Rewound:
    """The branch main was rewound from `head`, and the repository's time stands just after that.
    `grace` goes back to when all was written, and the reset came later than that by `spare`."""

    lake: IcechunkLake
    clock: ManualClock
    head: str
    grace: timedelta
    spare: timedelta


def rewind(lake: IcechunkLake) -> Rewound:
    middle = instant_between(lake.path)
    head, below = list(open_repository(lake.path).ancestry(branch="main"))[:2]
    spare = instant_between(lake.path) - middle
    open_repository(lake.path).reset_branch("main", below.id)
    lake.clock = clock = ManualClock(datetime.now(UTC))
    return Rewound(lake, clock, head.id, clock.now - middle, spare)


@each_version
def test_what_was_reachable_within_the_grace_stays(lake: IcechunkLake) -> None:
    """A reader has the head open while somebody rewinds the branch and collects. Version 2 knows
    when it was released; version 1 needs two plans a grace apart."""
    reader = open_repository(lake.path)
    rewound = rewind(lake)

    def names_it() -> bool:
        planned = lake.planned(quiet=False, grace=rewound.grace)
        return f"snapshots/{rewound.head}" in candidates(planned)

    for _ in range(2):
        assert not names_it()
        rewound.clock.advance(rewound.spare / 4)
    lake.swept(quiet=False, grace=rewound.grace)
    assert read_snapshot(reader, rewound.head)
    assert read_snapshot(open_repository(lake.path), rewound.head)
    rewound.clock.advance(rewound.grace)
    assert names_it()
    assert f"snapshots/{rewound.head}" in candidates(lake.swept(grace=rewound.grace))


@each_version
@pytest.mark.parametrize("ran_before", [False, True], ids=["first", "behind a run"])
def test_an_expiry_frees_nothing_before_the_grace_is_over(
    tmp_path: Path, spec_version: int, ran_before: bool
) -> None:
    """Nor where a run of long ago left what tells its time."""
    lake = IcechunkLake(tmp_path / "lake")
    example = design_example(lake.path, spec_version)
    if ran_before:
        lake.swept()
        long_ago = time.time() - LONG_AGO
        os.utime(lake.path / EPOCH_ADDRESS, (long_ago, long_ago))
    middle = instant_between(lake.path)
    reader = open_repository(lake.path)
    request = ExpiryRequest(older_than=example.threshold, younger=example.threshold)
    began = datetime.now(UTC)
    _, expiry = lake.expire(request)
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
    _, expiry = expire(repository, request, RunOptions.of(lake.settings))
    reader = open_repository(lake.path)

    assert slept
    for later in (timedelta(0), grace - timedelta(minutes=1)):
        clock.advance(later)
        lake.swept(quiet=False, grace=grace, allow_share=True)
        assert all(read_snapshot(reader, snapshot_id) for snapshot_id in expiry.released)
    clock.advance(2 * grace)
    gone = candidates(lake.collect(quiet=False, grace=grace, allow_share=True))
    assert {f"snapshots/{each}" for each in expiry.released} <= gone.keys()


@each_version
def test_an_expiry_by_a_wrong_clock_is_refused(tmp_path: Path, spec_version: int) -> None:
    """What it released would seem to have been released long ago."""
    clock = ManualClock(datetime.now(UTC))
    lake = IcechunkLake(tmp_path / "lake", clock=clock)
    example = design_example(lake.path, spec_version)
    before = listing(lake.path)
    request = ExpiryRequest(older_than=example.threshold, younger=example.threshold)
    clock.host_offset = -timedelta(days=8)
    with raises("clock_skew", of=Refused):
        lake.expire(request)
    assert listing(lake.path) == before
    assert not list(lake.path.glob("_ebbtide/expire/*"))
    clock.host_offset = timedelta(0)
    assert lake.expire(request)[1].released


@pytest.mark.parametrize("spec_version", [1])
def test_a_plan_that_slept_brings_no_date_back(lake: IcechunkLake) -> None:
    """What another plan saw unreachable meanwhile counts. Version 2 remembers by itself."""
    rewound = rewind(lake)
    slept = lake.format()
    with slept.reading(rewound.clock.now):
        pass
    open_repository(lake.path).reset_branch("main", rewound.head)
    assert lake.collector().plan().state == "planned"
    seen = lake.path / UNREACHABLE_ADDRESS
    before = seen.read_bytes()
    assert rewound.head.encode() not in before

    slept.note_plan()

    assert seen.read_bytes() == before
