"""Repositories that were copied or moved, and files in them that name other places.

The folder of a run comes from its id. Nothing that lies in the bucket says where to write, delete
or read.
"""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from ebbtide.errors import NotFound
from ebbtide.formats.base import RUNS_PREFIX
from ebbtide.gc.report import RunReport
from ebbtide.ids import descending_id
from ebbtide.quarantined import QUARANTINES_PREFIX
from tests.formats.icechunk.operations import commit_array
from tests.formats.icechunk.test_undoing import all_readable, files, rewritten
from tests.support.clock import ManualClock
from tests.support.icechunk import SPEC_VERSIONS, open_repository
from tests.support.icechunk_lake import IcechunkLake
from tests.support.randomized import choose
from tests.support.refusals import check_refused

HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
WEEK = 7 * DAY


class Lakes:
    """A repository with a run whose files are in quarantine, and copies of it."""

    def __init__(self, directory: Path, spec_version: int) -> None:
        self.directory = directory
        rewritten(IcechunkLake(directory / "original"), spec_version)
        self.clock = ManualClock(datetime.now(UTC))
        self.original = self._at("original")
        self.before = files(self.original.path)
        self.readable = all_readable(self.original.path)
        self.run = self.original.collect(quarantine=WEEK)
        assert self.run.state == "swept"
        assert self.held(self.original)

    def _at(self, name: str) -> IcechunkLake:
        return IcechunkLake(self.directory / name, clock=self.clock)

    def copy(self) -> IcechunkLake:
        shutil.copytree(self.original.path, self.directory / "copy")
        return self._at("copy")

    def move(self) -> IcechunkLake:
        shutil.move(self.original.path, self.directory / "moved")
        return self._at("moved")

    def held(self, lake: IcechunkLake) -> set[str]:
        folder = lake.path / f"{RUNS_PREFIX}{self.run.run_id}/quarantine"
        return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def lakes(request: pytest.FixtureRequest, tmp_path: Path) -> Lakes:
    """Of one version: what a bucket says of places is read alike in both."""
    return Lakes(tmp_path, choose(request.node.nodeid, SPEC_VERSIONS))


def tree(path: Path) -> dict[str, bytes]:
    return {str(each): each.read_bytes() for each in path.rglob("*") if each.is_file()}


def expire_more(lake: IcechunkLake) -> None:
    repository = open_repository(lake.path)
    first = repository.lookup_branch("main")
    commit_array(repository, "more", 7)
    repository.reset_branch("main", first)
    lake.age()
    assert isinstance(lake.clock, ManualClock)
    lake.clock.advance(HOUR)


def goes_on(lake: IcechunkLake) -> RunReport:
    report = lake.swept()
    assert report.unfinished == ()
    return report


def own(lake: IcechunkLake, report: RunReport) -> None:
    assert report.run_path == str(lake.path / f"{RUNS_PREFIX}{report.run_id}")
    assert report.repository == f"icechunk:{lake.path}"


def test_a_moved_repository_is_undone(lakes: Lakes) -> None:
    moved = lakes.move()
    assert not lakes.original.path.exists()
    own(moved, moved.collector().show(lakes.run.run_id))
    assert [each.state for each in moved.collector().runs()] == ["swept"]
    report = moved.collector().undo(lakes.run.run_id)
    assert report.state == "undone"
    own(moved, report)
    assert files(moved.path) == lakes.before
    assert all_readable(moved.path) == lakes.readable
    assert not lakes.original.path.exists()


def test_a_moved_repository_goes_on(lakes: Lakes) -> None:
    """Restored files stay protected there, and a quarantine that is over ends."""
    lakes.original.collector().undo(lakes.run.run_id, under="chunks/")
    moved = lakes.move()
    expire_more(moved)
    assert goes_on(moved).counts["deleted"].objects
    restored = {name for name in lakes.before if name.startswith("chunks/")}
    assert restored <= files(moved.path).keys()
    lakes.clock.advance(2 * WEEK)
    goes_on(moved)
    assert not lakes.held(moved)
    assert not lakes.original.path.exists()


def test_a_purge_in_a_copy(lakes: Lakes) -> None:
    copy, before = lakes.copy(), tree(lakes.original.path)
    report = copy.collector().purge(lakes.run.run_id)
    assert report.quarantine is not None
    assert report.quarantine["state"] == "purged"
    assert not lakes.held(copy)
    assert tree(lakes.original.path) == before
    assert lakes.original.collector().undo(lakes.run.run_id).state == "undone"


@pytest.mark.parametrize("days", [1, 8, 400])
def test_runs_of_a_copy(lakes: Lakes, days: int) -> None:
    """During the quarantine, after it, and for an old run: the original is untouched."""
    copy, before = lakes.copy(), tree(lakes.original.path)
    lakes.clock.advance(days * DAY)
    expire_more(copy)
    for _ in range(2):
        goes_on(copy)
    assert bool(lakes.held(copy)) == (days < 7)
    assert tree(lakes.original.path) == before


def test_a_plan_of_the_original_is_not_swept_in_a_copy(lakes: Lakes) -> None:
    """It can be looked at there."""
    expire_more(lakes.original)
    plan = lakes.original.collector().plan()
    copy, before = lakes.copy(), tree(lakes.original.path)
    copied = files(copy.path)
    shown = copy.collector().show(plan.run_id)
    assert shown.state == "planned"
    own(copy, shown)
    assert copy.collector().plan_of(plan.run_id).candidate_total == plan.counts["candidate"]
    check_refused(copy.collector().sweep(plan.run_id), "plan_foreign")
    assert tree(lakes.original.path) == before
    assert files(copy.path) == copied


def test_a_forged_record_of_an_old_run(lakes: Lakes) -> None:
    """It makes no run delete anything elsewhere, or outside of the folder of its id."""
    lake, victim = lakes.original, lakes.directory / "victim"
    victim.mkdir()
    (victim / "precious").write_text("not Ebbtide's")
    snapshots = lake.path / "snapshots"
    inside = next(iter(snapshots.iterdir()))
    made = []
    for number, place in enumerate([str(victim), f"file://{victim}", str(snapshots), 7]):
        old = descending_id(lakes.clock.host_now() - (800 + number) * DAY)
        made.append(lake.path / f"{RUNS_PREFIX}{old}")
        made[-1].mkdir()
        content = {"state": "swept", "run_path": place, "plan_checksum": None}
        (made[-1] / "record.json").write_text(json.dumps(content))
    expire_more(lake)
    goes_on(lake)
    assert (victim / "precious").exists() and inside.exists()
    assert not [each for each in made if each.exists()]


def test_a_name_that_is_no_id_is_no_run(lakes: Lakes) -> None:
    """Neither as a folder, nor as a record of a quarantine, nor as an argument."""
    lake = lakes.original
    for name in ("..", "up/../..", "short", "F" * 32, "f" * 33):
        for folder in (f"{RUNS_PREFIX}{name}", f"{QUARANTINES_PREFIX}{name}.json"):
            path = (lake.path / folder).resolve()
            if not path.is_relative_to(lake.path / "_ebbtide/gc") or path.exists():
                continue
            if folder.startswith(RUNS_PREFIX):
                path.mkdir(parents=True)
                (path / "record.json").write_text('{"state": "swept", "plan_checksum": null}')
            else:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(json.dumps({"run_id": "../../..", "state": "held"}))
        assert [each.run_id for each in lake.collector().runs()] == [lakes.run.run_id]
        with pytest.raises(NotFound):
            lake.collector().show(name)
    expire_more(lake)
    goes_on(lake)


def test_a_forged_report_and_quarantine(lakes: Lakes) -> None:
    """What they say of other runs and places is not done, and the run is told of."""
    lake, victim = lakes.original, lakes.directory / "victim"
    shutil.copytree(lake.path / f"{RUNS_PREFIX}{lakes.run.run_id}", victim)
    before = tree(victim)
    record = lake.path / f"{QUARANTINES_PREFIX}{lakes.run.run_id}.json"
    content = json.loads(record.read_text())
    record.write_text(json.dumps(content | {"run_path": str(victim)}))
    report = lake.path / f"{RUNS_PREFIX}{lakes.run.run_id}/report.json"
    told = json.loads(report.read_text()) | {"run_path": str(victim), "repository": "other"}
    report.write_text(json.dumps(told))
    own(lake, lake.collector().show(lakes.run.run_id))
    lakes.clock.advance(8 * DAY)
    expire_more(lake)
    record.write_text(json.dumps(content | {"run_id": "f" * 32}))
    swept = lake.collect()
    assert swept.state == "swept"
    assert [lakes.run.run_id in each["message"] for each in swept.unfinished] == [True]
    assert lakes.held(lake)

    record.write_text(json.dumps(content | {"run_path": str(victim)}))
    assert (swept := lake.collect()).unfinished == (), swept.unfinished
    assert not lakes.held(lake)
    assert json.loads(report.read_text())["run_path"] == str(report.parent)
    assert tree(victim) == before


@pytest.fixture
def elsewhere(tmp_path: Path) -> tuple[IcechunkLake, ManualClock, Path]:
    """A repository, its clock, and a folder for runs that is not in it."""
    rewritten(IcechunkLake(tmp_path / "lake"), SPEC_VERSIONS[-1])
    clock = ManualClock(datetime.now(UTC))
    return IcechunkLake(tmp_path / "lake", clock=clock), clock, tmp_path / "runs"


def test_a_folder_elsewhere_counts_if_it_is_named(
    elsewhere: tuple[IcechunkLake, ManualClock, Path],
) -> None:
    """Without --run-dir the run is not found, its commits cannot be opened, and the message says
    what to do. Its files in quarantine lie in the repository: they can be restored and end."""
    lake, clock, runs = elsewhere
    before, readable = files(lake.path), all_readable(lake.path)
    report = lake.collect(quarantine=WEEK, run_dir=runs)
    assert report.run_path == str(runs / report.run_id)
    assert lake.collector().runs() == []
    for act in ("show", "undo"):
        with pytest.raises(NotFound, match="name it with --run-dir"):
            getattr(lake.collector(), act)(report.run_id)
    assert lake.collector().undo(report.run_id, under="chunks/").state == "swept"
    chunks = {name for name in before if name.startswith("chunks/")}
    assert chunks <= files(lake.path).keys()
    expire_more(lake)
    lake.collect()
    assert chunks <= files(lake.path).keys()
    known = lake.collector(run_dir=runs).runs()
    assert report.run_id in [each.run_id for each in known]
    undone = lake.collector(run_dir=runs).undo(report.run_id)
    assert (undone.state, undone.run_path) == ("undone", str(runs / report.run_id))
    assert before.items() <= files(lake.path).items()
    assert readable.items() <= all_readable(lake.path).items()
    # Its list of restored files is in the repository, where each run finds it.
    clock.advance(DAY)
    lake.collect()
    assert before.items() <= files(lake.path).items()


def test_what_came_back_from_a_folder_elsewhere_stays(
    elsewhere: tuple[IcechunkLake, ManualClock, Path],
) -> None:
    """Also for a run that was not told of the folder."""
    lake, _, runs = elsewhere
    before = files(lake.path)
    report = lake.collect(quarantine=WEEK, run_dir=runs)
    undone = lake.collector(run_dir=runs).undo(report.run_id, under="chunks/")
    assert undone.state == "swept"
    chunks = {name for name in before if name.startswith("chunks/")}
    assert chunks <= files(lake.path).keys()
    expire_more(lake)
    assert lake.collect().state == "swept"
    assert chunks <= files(lake.path).keys()


def test_the_quarantine_of_a_folder_elsewhere_ends(
    elsewhere: tuple[IcechunkLake, ManualClock, Path],
) -> None:
    lake, clock, runs = elsewhere
    report = lake.collect(quarantine=WEEK, run_dir=runs)
    before = tree(runs)
    clock.advance(8 * DAY)
    expire_more(lake)
    later = lake.collect()
    assert (later.state, len(later.unfinished)) == ("swept", 1)
    assert "name it with --run-dir" in later.unfinished[0]["message"]
    assert not (lake.path / f"{RUNS_PREFIX}{report.run_id}/quarantine").exists()
    assert tree(runs) == before
