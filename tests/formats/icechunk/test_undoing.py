"""What a sweep moved aside comes back, in Icechunk's own eyes."""

from __future__ import annotations

import itertools
import json
import random
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from icechunk import IcechunkError

from ebbtide.errors import Conflict, NotFound
from ebbtide.formats.icechunk.state import load_repo, snapshot_files
from ebbtide.formats.notes import HOLDS_ADDRESS, read_holds, write_holds
from ebbtide.gc.collector import Collector
from ebbtide.gc.options import RunOptions
from ebbtide.gc.report import RunReport
from ebbtide.storage import open_storage
from tests.formats.icechunk.operations import commit_array
from tests.support.clock import ManualClock
from tests.support.dying import Died
from tests.support.faulty import FaultyStorage, Hook, SharedFaultyStorage
from tests.support.icechunk import (
    SPEC_VERSIONS,
    build_random,
    contents,
    create_repository,
    listing,
    open_repository,
    read_snapshot,
)
from tests.support.icechunk_lake import GRACE, IcechunkLake
from tests.support.randomized import choose, randomized

both = pytest.mark.parametrize("spec_version", SPEC_VERSIONS)
newest = pytest.mark.skipif(2 not in SPEC_VERSIONS, reason="the installed Icechunk has version 1")
WEEK = timedelta(days=7)


@pytest.fixture
def spec_version(request: pytest.FixtureRequest) -> int:
    """One of them, for what is alike in both."""
    return choose(request.node.nodeid, SPEC_VERSIONS)


def all_readable(path: Path) -> dict[str, dict[str, str]]:
    """What each snapshot reads as whose file is there, and that Icechunk reads, by id."""
    repository = open_repository(path)
    found = {}
    for name in snapshot_files(open_storage(str(path))):
        with suppress(IcechunkError):
            found[name] = read_snapshot(repository, name)
    return found


def files(path: Path) -> dict[str, bytes]:
    """All but what the collector keeps, and but `repo` and its copies, which undos add to."""
    return {
        name: (path / name).read_bytes()
        for name in listing(path)
        if name != "repo" and not name.startswith("overwritten/")
    }


def ancestry_of(path: Path, snapshot_ids: list[str]) -> dict[str, list[str]]:
    repository = open_repository(path)
    return {
        name: [each.id for each in repository.ancestry(snapshot_id=name)] for name in snapshot_ids
    }


def undo(lake: IcechunkLake, run_id: str, *, closed: int = 0) -> RunReport:
    report = lake.collector().undo(run_id)
    assert report.state == "undone", report.error
    assert report.quarantine is not None
    assert report.quarantine["objects"] == 0
    assert report.quarantine["closed_commits"] == closed
    return report


def rewritten(lake: IcechunkLake, spec_version: int, *, commits: int = 4) -> list[str]:
    """A repository whose main was set back to its first commit; those after it, oldest first."""
    repository = create_repository(lake.path, spec_version)
    made = [commit_array(repository, "values", value + 1) for value in range(commits)]
    repository.reset_branch("main", made[0])
    lake.age()
    return made[1:]


def test_two_undos_hold_what_each_brought_back(tmp_path: Path) -> None:
    """One that slept between reading and writing what is held."""
    storage = open_storage(str(tmp_path))
    now = datetime(2030, 1, 1, tzinfo=UTC)
    until = now + timedelta(days=1)
    others = [["B"], ["C"]]

    def another(method: str, address: str) -> None:
        if address == HOLDS_ADDRESS and method in ("put", "replace") and others:
            write_holds(storage, others.pop(), until=until, now=now)

    write_holds(FaultyStorage(storage, before=another), ["A"], until=until, now=now)

    assert not others
    assert read_holds(storage, now) == dict.fromkeys("ABC", until)


@both
@randomized("Icechunk repositories, undone")
def test_random_repositories_come_back(tmp_path: Path, spec_version: int, seed: int) -> None:
    """Every file, everything that could be read, and its ancestors; and all goes on from there."""
    build_random(tmp_path / "lake", seed, spec_version)
    clock = ManualClock(datetime.now(UTC))
    lake = IcechunkLake(tmp_path / "lake", clock=clock)
    lake.age()
    before, readable, refs = files(lake.path), all_readable(lake.path), contents(lake.path)
    ancestors = ancestry_of(lake.path, list(readable))
    listed = all_listed(lake.path) if spec_version == 2 else ()
    report = lake.swept(quarantine=WEEK)
    kept = all_listed(lake.path) if spec_version == 2 else ()
    moved = report.counts["quarantined"].objects
    gone = before.keys() - files(lake.path).keys()
    assert len(gone) <= moved
    assert contents(lake.path) == refs

    undo(lake, report.run_id)

    assert files(lake.path) == before
    assert all_readable(lake.path) == readable
    assert ancestry_of(lake.path, list(readable)) == ancestors
    assert contents(lake.path) == refs
    if spec_version == 2:
        assert set(listed) == set(all_listed(lake.path))
        kinds = [str(entry.kind) for entry in open_repository(lake.path).ops_log()]
        dropped = len(listed) - len(kept)
        assert sum("NewDetachedSnapshot" in kind for kind in kinds[:dropped]) == dropped
    # It is held for a week; what the run let go then goes again.
    clock.advance(WEEK - 2 * GRACE)
    lake.swept()
    assert files(lake.path) == before
    clock.advance(3 * GRACE)
    lake.collect()
    lake.collect()  # version 1 lets a snapshot go that two runs a grace apart saw unreachable
    assert not gone & files(lake.path).keys()
    assert contents(lake.path) == refs


def all_listed(path: Path) -> tuple[str, ...]:
    return load_repo(open_storage(str(path))).ids


def test_what_is_back_keeps_what_it_shares(tmp_path: Path, spec_version: int) -> None:
    """Files that did not go with it, since another snapshot had them, which has gone since."""
    repository = create_repository(tmp_path / "lake", spec_version)
    first = commit_array(repository, "shared", 1)
    shared = commit_array(repository, "other", 2)
    top = commit_array(repository, "third", 3)
    repository.create_branch("side", shared)
    repository.reset_branch("main", first)
    clock = ManualClock(datetime.now(UTC))
    lake = IcechunkLake(tmp_path / "lake", clock=clock)
    lake.age()
    read = read_snapshot(repository, top)
    run_id = lake.swept(quarantine=WEEK).run_id  # takes `top` alone
    undo(lake, run_id)
    open_repository(lake.path).delete_branch("side")
    lake.age()
    for _ in range(2):
        clock.advance(2 * GRACE)
        lake.swept()
    assert read_snapshot(open_repository(lake.path), top) == read
    clock.advance(WEEK)
    for _ in range(2):
        clock.advance(2 * GRACE)
        lake.swept()
    assert not {f"snapshots/{top}", f"snapshots/{shared}"} & listing(lake.path).keys()


@newest
@pytest.mark.parametrize("newest_first", [True, False])
def test_undos_of_two_runs(tmp_path: Path, newest_first: bool) -> None:
    """The first run took the newest half of a history, and the second what that rests on. So long
    as the second run is not undone, what the first undo brings back stays closed."""
    lake = IcechunkLake(tmp_path / "lake")
    made = rewritten(lake, 2, commits=5)
    repository = open_repository(lake.path)
    repository.create_tag("holds", made[1])
    reads = {name: read_snapshot(repository, name) for name in made}
    first = lake.swept(quarantine=WEEK).run_id
    open_repository(lake.path).delete_tag("holds")
    lake.age()
    second = lake.swept(quarantine=WEEK).run_id
    assert not set(made) & set(all_listed(lake.path))
    if newest_first:
        undo(lake, second)
        undo(lake, first)
    else:
        undo(lake, first, closed=2)
        assert not set(made) & set(all_listed(lake.path))
        undo(lake, second)
    back = made if newest_first else made[:2]
    assert set(back) <= set(all_listed(lake.path))
    repository = open_repository(lake.path)
    assert {name: read_snapshot(repository, name) for name in back} == {n: reads[n] for n in back}


@both
@randomized("undoing, broken off")
def test_broken_off_anywhere(
    tmp_path: Path, spec_version: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sweep and undo end at any of their changes. Asked for again, they come to the same end."""
    rng = random.Random(seed)
    made = rewritten(IcechunkLake(tmp_path / "lake"), spec_version)
    clock = ManualClock(datetime.now(UTC))
    lake = IcechunkLake(tmp_path / "lake", clock=clock)
    repository = open_repository(lake.path)
    read = {name: read_snapshot(repository, name) for name in made}
    before = files(lake.path)

    def broken() -> Collector:
        clock.advance(GRACE)  # past the lease of one that was broken off
        calls = itertools.count(-rng.randrange(24))
        ends = rng.choice([Died, KeyboardInterrupt])

        def count(method: str, _address: str) -> None:
            if method in ("put", "replace", "move", "delete") and next(calls) == 0:
                raise ends

        hooks: dict[str, Hook] = {rng.choice(["before", "after"]): count}
        found = lake.format()
        found.storage = SharedFaultyStorage(found.storage, **hooks)
        options = RunOptions.of(
            lake.settings,
            grace=GRACE,
            quarantine=WEEK,
            patience=timedelta(0),
            sessions=timedelta(0),
        )
        return Collector(found, engine=lake.engine, options=options)

    monkeypatch.setattr("ebbtide.gc.deletes.ADDRESSES_PER_BATCH", 2)
    monkeypatch.setattr("ebbtide.gc.undo.ROWS_PER_PART", 2)
    planned = lake.collector(quarantine=WEEK).plan()
    for _ in range(rng.randrange(1, 4)):
        with suppress(Died, KeyboardInterrupt, Conflict):
            broken().sweep(planned.run_id)
    for _ in range(rng.randrange(4)):
        with suppress(Died, KeyboardInterrupt, Conflict, NotFound):
            broken().undo(planned.run_id, sweeps_ended=True)
    clock.advance(GRACE)
    with suppress(Conflict, NotFound):  # undone before, or nothing had moved
        last = lake.collector(patience=timedelta(0))
        assert last.undo(planned.run_id, sweeps_ended=True).state == "undone"
    assert files(lake.path) == before
    repository = open_repository(lake.path)
    assert {name: read_snapshot(repository, name) for name in made} == read


def test_nobody_collects_while_the_holds_cannot_be_read(tmp_path: Path, spec_version: int) -> None:
    lake = IcechunkLake(tmp_path / "lake")
    rewritten(lake, spec_version)
    undo(lake, lake.swept(quarantine=WEEK).run_id)
    holds = lake.path / HOLDS_ADDRESS
    assert json.loads(holds.read_text())
    before = files(lake.path)
    holds.write_text("[]")
    report = lake.collect()
    assert report.state == "refused"
    assert HOLDS_ADDRESS in str(report.error)
    assert files(lake.path) == before
