"""A run killed with SIGKILL at every step loses nothing, and the next one finishes its work."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from ebbtide.gc.report import RunReport
from tests.support.copies import OpenedWorld, copy_store, listing, verify
from tests.support.histories import History, kept_contents, make_history
from tests.support.world import START, World

ROOT = Path(__file__).parents[2]
KILLED = -9
SECONDS_MAX = 300
LEAVE_SECONDS_MAX = 60


@dataclass(frozen=True)
class Template:
    """A store with a plan that nobody has swept, and what a sweep of it leaves."""

    directory: Path
    history: History
    plan: RunReport
    contents: dict[str, dict[str, bytes]]
    before: dict[str, bytes]
    swept: dict[str, bytes]


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Template:
    """Made once: each test copies it."""
    directory = tmp_path_factory.mktemp("template")
    world = World(directory)
    history = make_history(world)
    contents = kept_contents(world, history)
    plan = world.collector().plan()
    before = listing(world.root)
    world.close()

    whole = tmp_path_factory.mktemp("whole")
    copy_store(directory, whole)
    reference = OpenedWorld(whole, now=START)
    report = reference.collector().sweep()
    assert report.state == "swept"
    assert set(report.deleted_kinds) == {"tree", "range", "object", "temporary"}
    reference.close()
    return Template(directory, history, plan, contents, before, listing(reference.root))


@pytest.fixture
def world(template: Template, tmp_path: Path) -> Iterator[World]:
    """A copy of the template."""
    copy_store(template.directory, tmp_path)
    opened = OpenedWorld(tmp_path, now=START)
    yield opened
    opened.close()


def kill(world: World, action: str, moment: str, where: str) -> None:
    """Run the collector in a process that is killed there; nothing of it is left behind."""
    arguments = [str(world.directory), START.isoformat(), action, moment, where]
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.gc.killed_run", *arguments],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    try:
        _, errors = process.communicate(timeout=SECONDS_MAX)
        left = wait_for_end(process.pid)
        assert process.returncode == KILLED, errors.decode()[-2000:]
        assert not left
    finally:
        for each in in_session(process.pid):
            each.kill()


def wait_for_end(session: int) -> list[psutil.Process]:
    """What is left of a session after a while."""
    for _ in range(LEAVE_SECONDS_MAX * 10):
        if not (left := in_session(session)):
            break
        time.sleep(0.1)
    return left


def in_session(session: int) -> list[psutil.Process]:
    """The processes of a session: the run's, its JVM and the JVM's Python workers."""
    found = []
    for process in psutil.process_iter():
        try:
            if os.getsid(process.pid) == session:
                found.append(process)
        except OSError:
            continue
    return found


def check_nothing_lost(world: World, template: Template) -> None:
    """What is kept reads as it was, and no record leads to what is not there."""
    assert kept_contents(world, template.history) == template.contents
    verify(world)
    assert template.swept.items() <= listing(world.root).items()


def check_finished(world: World, template: Template, report: RunReport) -> None:
    """The same files as without the kill, and each candidate accounted for once."""
    assert report.state == "swept"
    check_nothing_lost(world, template)
    assert listing(world.root) == template.swept
    counts = {name: count.objects for name, count in report.counts.items()}
    settled = counts["deleted"] + counts["missing"] + counts["revived"]
    assert settled == counts["candidate"]
    assert counts["failed"] == counts["revived"] == 0


@pytest.mark.parametrize("step", ["list", "subtract"])
def test_killed_plan_leaves_the_store_as_it_was(
    world: World, template: Template, step: str
) -> None:
    kill(world, "plan", "end", step)
    assert listing(world.root) == template.before
    check_nothing_lost(world, template)
    (known,) = world.collector().runs()
    assert (known.run_id, known.state) == (template.plan.run_id, "planned")

    check_finished(world, template, world.collector().run())


@pytest.mark.parametrize(
    ("moment", "step", "state"),
    [
        ("end", "check", "planned"),
        ("end", "fence", "incomplete"),
        ("end", "recheck", "incomplete"),
        ("end", "forget", "incomplete"),
        ("end", "delete tree", "incomplete"),
        ("end", "delete range", "incomplete"),
        ("start", "delete object", "incomplete"),
        ("end", "delete object", "incomplete"),
        ("end", "delete temporary", "incomplete"),
        ("end", "count", "incomplete"),
    ],
)
def test_killed_sweep_is_finished_by_the_next(
    world: World, template: Template, moment: str, step: str, state: str
) -> None:
    kill(world, "sweep", moment, step)
    check_nothing_lost(world, template)
    collector = world.collector()
    (known,) = collector.runs()
    assert (known.run_id, known.state) == (template.plan.run_id, state)
    assert collector.show(template.plan.run_id) == known
    if state == "planned":
        assert listing(world.root) == template.before

    check_finished(world, template, collector.sweep())
    assert collector.show(template.plan.run_id).state == "swept"


@pytest.mark.parametrize("step", ["fence", "delete range"])
def test_killed_sweep_is_finished_by_a_new_run(
    world: World, template: Template, step: str
) -> None:
    kill(world, "sweep", "end", step)
    check_nothing_lost(world, template)

    check_finished(world, template, world.collector().run())


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("kind", ["range", "object"])
def test_killed_amid_the_deletes_of_a_kind(
    world: World, template: Template, moment: str, kind: str
) -> None:
    prefix = {"range": "_ebbtide/ranges/", "object": "data/"}[kind]
    gone = sorted(template.before.keys() - template.swept.keys())
    of_kind = [address for address in gone if address.startswith(prefix) and "#" not in address]
    address = of_kind[len(of_kind) // 2]

    kill(world, "sweep", moment, address)
    check_nothing_lost(world, template)
    left = listing(world.root).keys() & set(gone)
    assert (address in left) == (moment == "before")
    assert world.collector().show(template.plan.run_id).state == "incomplete"

    report = world.collector().sweep()
    check_finished(world, template, report)
    # The outcome of the delete that was under way was never recorded: it may have gone through.
    assert report.counts["missing"].objects == (moment == "after")
