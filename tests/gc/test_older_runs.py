"""One older run, whatever became of its files, does not decide about a new one; and a run that has
deleted files says so, whatever fails in its last steps."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from ebbtide.errors import Conflict, EbbtideError, Failed, Incomplete, NotFound, Refused
from ebbtide.formats.base import RUNS_PREFIX
from ebbtide.formats.embedded import EmbeddedRepository
from ebbtide.gc import deletes, quarantine
from ebbtide.gc.report import RecordedRuns, RunReport
from ebbtide.gc.runs import RunFolder
from ebbtide.ids import descending_id
from ebbtide.quarantined import QUARANTINES_PREFIX
from ebbtide.store.gc.run_metadata import write_run
from ebbtide.store.repositories.leases import take_lease
from tests.support.world import DAY, World, quarantine_of

KEEP = {"default": "2h"}
WEEK = 7 * DAY
HOUR = timedelta(hours=1)
HALF_A_DAY = 12 * HOUR


def expire(world: World, *names: str) -> None:
    """Objects, whose contents are their names, that only an expired commit has."""
    world.save("main", days_ago=0, put=names)
    world.save("main", days_ago=0, delete=names)
    world.clock.advance(4 * HOUR)


def sweep(world: World, name: str, **options: Any) -> RunReport:
    """A run that finds one more expired object, whose content is its name."""
    expire(world, name)
    return world.swept(**options)


def held(world: World, run_id: str) -> list[Path]:
    folder = world.root / f"{RUNS_PREFIX}{run_id}/quarantine"
    return [path for path in folder.rglob("*") if path.is_file()]


def written(report: RunReport) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((Path(report.run_path) / "report.json").read_text())
    return content


def record_of(world: World, report: RunReport) -> Path:
    return world.root / f"{QUARANTINES_PREFIX}{report.run_id}.json"


def forge_report(report: RunReport) -> None:
    path = Path(report.run_path) / "report.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"run_id": "f" * 32}))


def lose_plan(report: RunReport) -> None:
    for name in ("plan.json", "report.json"):
        (Path(report.run_path) / name).unlink()


DAMAGES: dict[str, tuple[Callable[[RunReport], object], bool]] = {
    "its report is damaged": (lambda old: Path(old.run_path, "report.json").write_text("{"), False),
    "its report is another run's": (forge_report, False),
    "its plan and report are gone": (lose_plan, False),
    "its directory was cleared": (lambda old: shutil.rmtree(old.run_path), True),
}


def damaged(world: World, tmp_path: Path, **options: Any) -> dict[str, RunReport]:
    """A quarantined run for each damage, and its damage done: what it took is named so."""
    found = {}
    for name, (_, is_elsewhere) in DAMAGES.items():
        place = {"run_dir": str(tmp_path / "runs")} if is_elsewhere else {}
        found[name] = sweep(world, name, **place, **options)
    for name, report in found.items():
        DAMAGES[name][0](report)
    assert not DAMAGES.keys() & world.contents()
    return found


def test_an_older_quarantine_ends_without_its_report(world: World, tmp_path: Path) -> None:
    """Another one ends too, and the run says what it deleted, and names the older runs."""
    olds = damaged(world, tmp_path, quarantine=DAY)
    other = sweep(world, "other", quarantine=HALF_A_DAY)
    before = list((world.root / "_ebbtide").rglob("report.json"))
    world.clock.advance(DAY)
    report = sweep(world, "new")
    assert (report.state, report.error, report.counts["deleted"].objects) == ("swept", None, 1)
    told = world.collector().show(other.run_id).quarantine
    assert told is not None
    assert told["state"] == "purged"
    assert not held(world, other.run_id)
    for old in olds.values():
        assert not held(world, old.run_id)
        assert not record_of(world, old).exists()
        (said,) = (e["message"] for e in report.unfinished if old.run_id in e["message"])
        assert "has ended, and its files are deleted" in said
    assert len(report.unfinished) == len(olds)
    assert written(report) == report.to_json()
    assert {*before} <= {*(world.root / "_ebbtide").rglob("report.json")}
    assert sweep(world, "next").unfinished == ()


def test_a_damaged_record_stops_nothing_else(world: World) -> None:
    """Its run is named in each run until somebody mends it, and its files stay."""
    old = sweep(world, "old", quarantine=HALF_A_DAY)
    other = sweep(world, "other", quarantine=HALF_A_DAY)
    record_of(world, old).write_text("{}")
    world.clock.advance(DAY)
    for name in ("new", "newer"):
        report = sweep(world, name)
        assert [each["kind"] for each in report.unfinished] == ["plan_corrupt"]
        assert old.run_id in report.unfinished[0]["message"]
        assert "restore it from a backup, or delete it" in report.unfinished[0]["message"]
        assert held(world, old.run_id)
        assert not held(world, other.run_id)
    assert world.collector().undo(old.run_id).state == "refused"


def test_a_damaged_record_still_protects_what_was_restored(world: World) -> None:
    """The lists of restored files are beside it."""
    old = sweep(world, "old", quarantine=WEEK)
    world.collector().undo(old.run_id, under="data/")
    assert "old" in world.contents()
    record_of(world, old).write_text("{")
    report = sweep(world, "new")
    assert report.counts["deleted"].objects > 0
    assert "old" in world.contents()


def test_a_lost_folder_and_a_damaged_record_refuse(world: World, tmp_path: Path) -> None:
    """What the run restored is then not known."""
    old = sweep(world, "old", quarantine=WEEK, run_dir=str(tmp_path / "runs"))
    record_of(world, old).write_text("{")
    shutil.rmtree(old.run_path)
    report = world.collect()
    assert report.state == "refused"
    assert report.error is not None
    assert "--run-dir" in report.error["message"]


def test_without_a_report_it_can_be_undone(world: World, tmp_path: Path) -> None:
    olds = damaged(world, tmp_path, quarantine=WEEK)
    for name, old in olds.items():
        report = world.collector().undo(old.run_id)
        assert (report.state, len(report.unfinished)) == ("undone", 1), name
        assert quarantine_of(report)["reopened_commits"] > 0
        assert name in world.contents()
        with pytest.raises(Conflict, match="was undone already"):
            world.collector().undo(old.run_id)
    sweep(world, "new")
    assert DAMAGES.keys() <= world.contents()


def test_without_a_report_it_can_be_purged(world: World, tmp_path: Path) -> None:
    for name, old in damaged(world, tmp_path, quarantine=WEEK).items():
        count = len(held(world, old.run_id))
        asked = world.collector().show_held(old.run_id)
        assert (quarantine_of(asked)["state"], quarantine_of(asked)["objects"]) == (
            "held",
            count,
        ), name
        report = world.collector().purge(old.run_id)
        assert (report.state, len(report.unfinished)) == ("swept", 1)
        assert not held(world, old.run_id)
        with pytest.raises(NotFound):
            world.collector().purge(old.run_id)


def stolen(world: World) -> None:
    take_lease(
        world.store.metadata,
        repository_id=world.lake.info.repository_id,
        run_id="f" * 32,
        lease_ttl=timedelta(0),
    )


def test_a_lease_lost_in_the_last_step(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sweep has ended: its report says so, in the answer and in the file."""
    old = sweep(world, "old", quarantine=HALF_A_DAY)
    sweep(world, "other", quarantine=HALF_A_DAY)
    world.clock.advance(DAY)
    delete, calls = quarantine.delete_held, []

    def stealing(*given: Any, **more: Any) -> Any:
        calls.append(given)
        done = delete(*given, **more)
        stolen(world)
        return done

    monkeypatch.setattr(quarantine, "delete_held", stealing)
    report = sweep(world, "new")
    assert (report.state, report.counts["deleted"].objects) == ("swept", 1)
    assert report.unfinished
    assert all("lost the repository" in each["message"] for each in report.unfinished)
    assert len(calls) == 1
    assert written(report)["state"] == "swept"
    assert written(report)["unfinished"] == []
    assert world.collector().show(report.run_id).state == "swept"
    assert record_of(world, old).exists()


def test_a_lease_lost_before_old_runs_are_dropped(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their files are no longer this run's to delete."""
    old = sweep(world, "old")
    world.clock.advance(world.settings.run_retention + DAY)
    record = RecordedRuns.record

    def stealing(runs: RecordedRuns, folder: RunFolder, report: RunReport, *more: Any) -> None:
        record(runs, folder, report, *more)
        if report.state == "swept":
            stolen(world)

    with monkeypatch.context() as patch:
        patch.setattr(RecordedRuns, "record", stealing)
        report = sweep(world, "new")
    assert report.state == "swept"
    assert any("lost the repository" in each["message"] for each in report.unfinished)
    assert Path(old.run_path).exists()
    sweep(world, "newer")
    assert not Path(old.run_path).exists()


@pytest.mark.parametrize(
    ("step", "raised"),
    [
        ("record", Failed("storage_error", "it broke")),
        ("record", Conflict("plan_corrupt", "it broke")),
        ("quarantines", NotFound("plan_corrupt", "it broke")),
        ("old runs", Refused("plan_corrupt", "it broke")),
    ],
)
def test_no_error_of_a_last_step_leaves(
    world: World, monkeypatch: pytest.MonkeyPatch, step: str, raised: EbbtideError
) -> None:
    """Each step is tried, and the error of one is told beside the outcome."""

    def failing(*_given: Any, **_named: Any) -> None:
        raise raised

    old = sweep(world, "old", quarantine=HALF_A_DAY)
    world.clock.advance(DAY)
    plan = world.collector().plan()
    collector = world.collector()
    if step == "record":
        monkeypatch.setattr(EmbeddedRepository, "record_run", failing)
    elif step == "quarantines":
        monkeypatch.setattr(quarantine, "read_each", failing)
        monkeypatch.setattr(quarantine, "held_back", lambda *_given, **_named: [])
    else:
        monkeypatch.setattr(RunFolder, "delete", failing)
        # A run that is old enough, and has no quarantine.
        (world.root / f"{RUNS_PREFIX}{descending_id(world.now - 800 * DAY)}").mkdir()
        (next((world.root / RUNS_PREFIX).glob("f*")) / "plan.json").touch()
    report = collector.sweep(plan.run_id)
    assert report.state == "swept"
    messages = [each["message"] for each in report.unfinished]
    assert messages
    assert all(each.endswith("it broke") for each in messages)
    assert {each["kind"] for each in report.unfinished} == {raised.kind}
    assert written(report) == report.to_json()
    if step != "quarantines":
        assert not held(world, old.run_id)


def test_a_sweep_that_is_stopped_tells_its_outcomes(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The counts until then, in answer and file. What is in quarantine can be undone."""
    expire(world, "a", "b", "c")
    plan = world.collector().plan()
    tally = deletes.tally

    def lost(*_given: Any) -> Any:
        raise NotFound("object_not_found", "it broke")

    monkeypatch.setattr("ebbtide.gc.sweep.tally", lost)
    report = world.collector(quarantine=WEEK).sweep(plan.run_id)
    monkeypatch.setattr("ebbtide.gc.sweep.tally", tally)
    count = plan.counts["candidate"].objects
    assert (report.state, report.counts["quarantined"].objects) == ("incomplete", count)
    assert quarantine_of(report)["objects"] == count
    assert written(report) == report.to_json()
    (Path(report.run_path) / "report.json").unlink()
    shown = world.collector().show(plan.run_id)
    assert (shown.state, shown.counts["quarantined"].objects) == ("incomplete", count)
    assert world.collector().undo(plan.run_id).state == "undone"


def test_a_stopped_sweep_leaves_the_report_to_the_run_that_took_over(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    expire(world, "a")
    plan = world.collector().plan()

    def stealing(*_given: Any) -> Any:
        stolen(world)
        raise Refused("lease_lost", "run lost the repository to another run")

    monkeypatch.setattr("ebbtide.gc.sweep.tally", stealing)
    report = world.collector().sweep(plan.run_id)
    assert (report.state, report.counts["deleted"].objects) == (
        "incomplete",
        plan.counts["candidate"].objects,
    )
    assert not (Path(report.run_path) / "report.json").exists()


@pytest.mark.parametrize("action", ["undo", "purge"])
def test_an_undo_and_a_purge_that_are_stopped(
    world: World, monkeypatch: pytest.MonkeyPatch, action: str
) -> None:
    """A lease that is lost after the first file is no refusal: those change nothing."""
    old = sweep(world, "old", quarantine=WEEK)
    name = "move_back" if action == "undo" else "delete_held"
    real = getattr(quarantine, name)

    def stealing(*given: Any, **more: Any) -> Any:
        done = real(*given, **more)
        stolen(world)
        return done

    monkeypatch.setattr(quarantine, name, stealing)
    with pytest.raises(Incomplete, match=f"the {action}.* was stopped: .*lost the repository"):
        getattr(world.collector(), action)(old.run_id)
    monkeypatch.setattr(quarantine, name, real)
    world.clock.advance(HOUR)
    report = getattr(world.collector(), action)(old.run_id)
    assert quarantine_of(report)["state"] == ("undone" if action == "undo" else "purged")


def test_the_database_alone_knows_of_a_folder_elsewhere(world: World, tmp_path: Path) -> None:
    """The older run is found, undone and protected; the quarantine's record is not asked."""
    old = sweep(world, "old", quarantine=WEEK, run_dir=str(tmp_path / "runs"))
    assert old.run_path == str(tmp_path / "runs" / old.run_id)
    record = record_of(world, old)
    content = json.loads(record.read_text())
    assert "run_path" not in content
    (tmp_path / "trap").mkdir()
    record.write_text(json.dumps(content | {"run_path": str(tmp_path / "trap")}))
    assert world.collector().show(old.run_id).run_path == old.run_path
    report = world.collector().undo(old.run_id)
    assert (report.state, report.run_path) == ("undone", old.run_path)
    assert sweep(world, "new").state == "swept"
    assert "old" in world.contents()
    assert list((tmp_path / "trap").iterdir()) == []


def test_a_row_of_an_earlier_version_names_another_place(world: World, tmp_path: Path) -> None:
    """The repository was mounted elsewhere then. Its own folder counts."""
    old = sweep(world, "old", quarantine=WEEK)
    before = tmp_path / "mount" / "lake" / f"{RUNS_PREFIX}{old.run_id}"
    before.mkdir(parents=True)
    (before / "report.json").write_text("{")
    with world.store.metadata.transaction() as tx:
        write_run(tx, world.lake.info.repository_id, old.run_id, run_url=str(before))
    assert world.collector().show(old.run_id).run_path == old.run_path
    assert world.collector().undo(old.run_id).state == "undone"
    assert (before / "report.json").read_text() == "{"


def test_an_id_that_is_none_is_not_found(world: World) -> None:
    sweep(world, "old", quarantine=WEEK)
    for text in ("../runs", "..", "a/b", "/etc", "F" * 32):
        for act in ("show", "undo", "purge", "sweep", "plan_of"):
            with pytest.raises(NotFound) as caught:
                getattr(world.collector(), act)(text)
            assert caught.value.kind == "run_not_found"


def test_a_damaged_report_stops_its_own_run_alone(world: World) -> None:
    old = sweep(world, "old")
    world.collector().plan()
    file = Path(old.run_path) / "report.json"
    whole = json.loads(file.read_text())
    without = {key: value for key, value in whole.items() if key != "kinds"}
    for damaged in (without, whole | {"kinds": {"object": "many"}}, whole | {"by_ref": 7}):
        file.write_text(json.dumps(damaged))
        with pytest.raises(Refused, match="delete that file and sweep the run again") as caught:
            world.collector().show(old.run_id)
        assert caught.value.kind == "report_corrupt"
        states = {report.run_id: report.state for report in world.collector().runs()}
        assert states.pop(old.run_id) == "refused"
        assert {*states.values()} == {"planned"}
        assert world.collector(mode="auto").plan().state == "planned"
    world.swept()
