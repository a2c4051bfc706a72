"""A run killed with SIGKILL at every step loses nothing, and the next one finishes its work."""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path

import psutil
import pytest

from ebbtide.gc.report import RunReport
from tests.gc.killed_run import ERROR_SUFFIX, Victim
from tests.support.copies import listing, verify
from tests.support.forking import forks
from tests.support.histories import PlannedWorld, Template, kept_contents
from tests.support.world import START

KILLED = -9
LEAVE_SECONDS_MAX = 60

Files = dict[str, bytes]


@pytest.fixture(scope="module")
def swept(template: Template, tmp_path_factory: pytest.TempPathFactory) -> Files:
    """The files that a sweep leaves when nobody kills it."""
    world = PlannedWorld(template, tmp_path_factory.mktemp("whole"))
    report = world.collector().sweep()
    world.close()
    assert report.state == "swept"
    assert set(report.deleted_kinds) == {"tree", "range", "object", "temporary"}
    return listing(world.root)


def kill(
    world: PlannedWorld,
    action: str,
    moment: str,
    where: str,
    *,
    engine: str,
    victim: Victim = "driver",
) -> None:
    """Runs the collector until it, or its victim, is killed there. No process of it is left."""
    arguments = [str(world.directory), START.isoformat(), engine, action, moment, where, victim]
    run = forks().start("tests.gc.killed_run", *arguments)
    try:
        assert run.wait() == (KILLED if victim == "driver" else 0)
        assert not wait_for_end(run.pid)
    finally:
        for each in in_session(run.pid):
            each.kill()


def wait_for_end(session: int) -> list[psutil.Process]:
    deadline = time.monotonic() + LEAVE_SECONDS_MAX
    while (left := in_session(session)) and time.monotonic() < deadline:
        time.sleep(0.01)
    return left


def in_session(session: int) -> list[psutil.Process]:
    """The processes of a session: the run's, its workers, or its JVM and the JVM's workers. Each
    has its name in `info`: it may have ended since."""
    found = []
    for process in psutil.process_iter(["name"]):
        try:
            if os.getsid(process.pid) == session:
                found.append(process)
        except OSError:
            continue
    return found


ON_SPARK = pytest.mark.drawn("whole programs")


def check_nothing_lost(world: PlannedWorld, swept: Files) -> None:
    """What is kept reads as it was, and no record leads to what is not there."""
    assert kept_contents(world, world.history) == world.template.contents
    verify(world)
    assert swept.items() <= listing(world.root).items()


def check_finished(world: PlannedWorld, swept: Files, report: RunReport) -> None:
    """The same files as without the kill, and each candidate accounted for once."""
    assert report.state == "swept"
    check_nothing_lost(world, swept)
    assert listing(world.root) == swept
    counts = {name: count.objects for name, count in report.counts.items()}
    settled = counts["deleted"] + counts["missing"] + counts["revived"]
    assert settled == counts["candidate"]
    assert counts["failed"] == counts["revived"] == 0


def test_killed_plan_leaves_the_store_as_it_was(planned: PlannedWorld, swept: Files) -> None:
    kill(planned, "plan", "end", "subtract", engine="inline")
    assert listing(planned.root) == planned.template.files
    check_nothing_lost(planned, swept)
    (known,) = planned.collector().runs()
    assert (known.run_id, known.state) == (planned.run_id, "planned")
    check_finished(planned, swept, planned.collector().run())


@pytest.mark.drawn("kills of sweeps")
@pytest.mark.parametrize("is_new", [False, True], ids=["the same run", "a new run"])
@pytest.mark.parametrize(
    ("moment", "step"),
    [
        ("end", "check"),
        ("end", "fence"),
        ("end", "forget"),
        ("end", "delete range"),
        ("start", "delete object"),
        ("end", "count"),
    ],
)
def test_killed_sweep_is_finished_by_the_next(
    planned: PlannedWorld, swept: Files, moment: str, step: str, is_new: bool
) -> None:
    kill(planned, "sweep", moment, step, engine="inline")
    check_nothing_lost(planned, swept)
    collector = planned.collector()
    (known,) = collector.runs()
    state = "planned" if step == "check" else "incomplete"
    assert (known.run_id, known.state) == (planned.run_id, state)
    if state == "planned":
        assert listing(planned.root) == planned.template.files
    check_finished(planned, swept, collector.run() if is_new else collector.sweep())


@pytest.mark.parametrize(
    ("kind", "moment", "engine"),
    [
        ("range", "before", "inline"),
        ("object", "after", "inline"),
        pytest.param("range", "after", "spark", marks=ON_SPARK),
        pytest.param("object", "before", "joins", marks=ON_SPARK),
    ],
)
def test_killed_amid_the_deletes_of_a_kind(
    planned: PlannedWorld, swept: Files, kind: str, moment: str, engine: str
) -> None:
    address = to_be_deleted(planned, swept, kind)
    kill(planned, "sweep", moment, address, engine=engine)
    check_nothing_lost(planned, swept)
    left = listing(planned.root).keys() - swept.keys()
    assert (address in left) == (moment == "before")
    assert planned.collector().show(planned.run_id).state == "incomplete"
    report = planned.collector().sweep()
    check_finished(planned, swept, report)
    # The outcome of the delete that was under way was never recorded: it may have gone through.
    # That of the one before was perhaps still being written.
    unrecorded = report.counts["missing"].objects - (moment == "after")
    assert unrecorded in (0, 1)


def to_be_deleted(planned: PlannedWorld, swept: Files, kind: str) -> str:
    """A file of a kind that has others of it before it and behind it."""
    prefix = {"range": "_ebbtide/ranges/", "object": "data/"}[kind]
    gone = sorted(planned.template.files.keys() - swept.keys())
    of_kind = [address for address in gone if address.startswith(prefix) and "#" not in address]
    return of_kind[len(of_kind) // 2]


@ON_SPARK
@pytest.mark.parametrize(
    ("victim", "told"),
    [
        ("jvm", "the Spark job failed: its JVM has ended"),
        ("worker", "the Spark job failed: .*Python worker exited unexpectedly"),
    ],
)
def test_spark_that_breaks_amid_the_deletes(
    planned: PlannedWorld, swept: Files, victim: Victim, told: str
) -> None:
    """One line says what happened; nothing is lost, and the sweep goes on when it is asked to."""
    address = to_be_deleted(planned, swept, "object")
    kill(planned, "sweep", "before", address, engine="spark", victim=victim)
    error = json.loads(Path(f"{planned.directory}{ERROR_SUFFIX}").read_text())
    assert error["kind"] == "incomplete"
    assert re.search(told, error["message"]), error
    assert "\n" not in error["message"]
    check_nothing_lost(planned, swept)
    assert planned.collector().show(planned.run_id).state == "incomplete"
    check_finished(planned, swept, planned.collector().sweep())
