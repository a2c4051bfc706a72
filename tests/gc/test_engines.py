"""What steps run with: the same result, and errors that say what happened."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from ebbtide.errors import EbbtideError, Failed, NotFound, Refused
from ebbtide.gc.engine import Engine, LocalEngine
from ebbtide.gc.parts import PartRows
from ebbtide.gc.runs import RunFolder
from ebbtide.gc.workers import Workers
from tests.support.copies import listing
from tests.support.engines import ENGINES, on_engines, shared_session
from tests.support.histories import PlannedWorld, Template
from tests.support.icechunk_lake import candidates

ROOT = Path(__file__).parents[2]
PARENT = """
import time
from ebbtide.gc.workers import Workers

if __name__ == "__main__":
    workers = Workers(2)
    print(*sorted(set(workers.call(__import__("os").getpid, [()] * 40))), flush=True)
    time.sleep(600)
"""

Work = Callable[[int, int, PartRows], None]

every = on_engines()


@pytest.mark.spark
def test_they_find_and_delete_the_same(template: Template, tmp_path: Path) -> None:
    """A plan and its sweep, over all kinds of files."""
    found = []
    for name, engine in ENGINES.items():
        world = PlannedWorld(template, tmp_path / name)
        world.engine = engine
        planned = world.collector().plan()
        names = candidates(planned)
        report = world.collector().sweep(planned.run_id)
        assert report.state == "swept"
        found.append((names, planned.counts, planned.kinds, report.counts, listing(world.root)))
        world.close()
    assert all(each == found[0] for each in found)
    assert found[0][0]


@every
def test_a_sweep_goes_on_where_it_stopped(
    template: Template, tmp_path: Path, engine: Engine
) -> None:
    """What an earlier attempt settled is not tried again, and counted once."""
    world = PlannedWorld(template, tmp_path)
    world.engine = engine
    planned = world.collector().plan()
    doomed = sorted(candidates(planned))
    locked = world.root / next(name for name in doomed if name.startswith("data/"))
    locked.unlink()
    locked.mkdir()  # a file that can't be deleted
    first = world.collector().sweep(planned.run_id)
    assert (first.state, first.counts["failed"].objects) == ("incomplete", 1)
    deleted = first.counts["deleted"].objects
    locked.rmdir()
    second = world.collector().sweep(planned.run_id)
    assert second.state == "swept"
    assert second.counts["failed"].objects == 0
    assert second.counts["missing"].objects == 1
    assert second.counts["deleted"].objects + 1 == len(doomed)
    folder = RunFolder.at(second.run_path)
    assert deleted < len(doomed) or not folder.names("todo")
    world.close()


@every
def test_answers_and_refusals(engine: Engine) -> None:
    def count(number: int, task: int, answer: PartRows) -> None:
        if task < 0:
            answer.failed(NotFound("object_not_found", f"task {number}"))
        else:
            answer.counted(task, bytes_total=number, group="seen")

    found = engine.run([5, 7, 9], count)
    assert sorted((part.rows, part.bytes_total) for part in found) == [(5, 0), (7, 1), (9, 2)]
    assert engine.run([], count) == []
    with pytest.raises(Refused) as refused:
        engine.run([1, -1, -1, 2], count)
    assert refused.value.kind == "object_not_found"
    assert refused.value.message == "task 1 (and 1 more)"


@every
def test_steps_together(engine: Engine) -> None:
    """Each does its own tasks, which have its own numbers; an error of one is an error of all."""

    def count(number: int, task: int, answer: PartRows) -> None:
        answer.counted(task, bytes_total=number, group="counted")

    def name(number: int, task: str, answer: PartRows) -> None:
        if task == "refused":
            answer.failed(Refused("missing_tree", "not there"))
        answer.counted(0, bytes_total=number, group=task)

    found = engine.run_together(([5, 6, 7], count), (["a", "b"], name), ([], count))
    counted = sorted((part.rows, part.bytes_total) for part in found if part.group == "counted")
    assert counted == [(5, 0), (6, 1), (7, 2)]
    assert [(p.group, p.bytes_total) for p in found if p.rows == 0] == [("a", 0), ("b", 1)]
    with pytest.raises(Refused, match="not there"):
        engine.run_together(([1], count), (["refused"], name))
    assert engine.run_together(([], count)) == []


@pytest.mark.parametrize("name", ["inline", "workers"])
def test_beside_a_block(name: str) -> None:
    """In another thread where there are more cores than one; else when it is asked for."""
    engine = ENGINES[name]
    threads: list[int] = []

    def work() -> str:
        threads.append(threading.get_ident())
        return "done"

    with engine.beside(work) as result:
        assert name == "workers" or not threads
        assert result() == "done"
    assert len(threads) == 1
    assert (threads == [threading.get_ident()]) == (name == "inline")

    def broken() -> None:
        raise NotFound("object_not_found", "it is gone")

    with engine.beside(broken) as result_of_none, pytest.raises(NotFound, match="it is gone"):
        result_of_none()


def test_what_a_step_did_not_expect() -> None:
    """An error of the step itself, and one of Python's."""

    def fail(error: Exception) -> Work:
        def work(_number: int, task: int, _answer: PartRows) -> None:
            if task:
                raise error

        return work

    for name in ("inline", "workers"):
        with pytest.raises(Failed) as failed:
            ENGINES[name].run([0, 1], fail(ValueError("odd")))
        assert failed.value.kind == "task_failed"
        assert "ValueError: odd" in failed.value.message
        lost = Failed("storage_error", "no answer")
        with pytest.raises(EbbtideError) as told:
            ENGINES[name].run([0, 1], fail(lost))
        assert (told.value.kind, told.value.message) == ("storage_error", "no answer")


def test_few_rows_start_no_workers() -> None:
    """Many do, and those that run are used."""
    workers = Workers(2)
    engine = LocalEngine(shared_session, workers=workers, alone_rows_max=10)

    def work(_number: int, _task: int, answer: PartRows) -> None:
        answer.counted(1, bytes_total=0, group=str(os.getpid()))

    def in_this_process() -> bool:
        return {part.group for part in engine.run([0] * 4, work)} == {str(os.getpid())}

    engine.expect(10)
    assert (engine.cores, engine.task_count, in_this_process()) == (1, 1, True)
    assert not workers.started
    engine.expect(11)
    assert (engine.cores, in_this_process()) == (2, False)
    engine.expect(0)
    assert (engine.cores, in_this_process()) == (2, False)
    others = Workers(2)
    LocalEngine(shared_session, workers=others).expect(None)
    assert others.started


class Sent:
    """Knows how often it was pickled, and each copy in how many places it was loaded."""

    def __init__(self) -> None:
        self.times = 0

    def __getstate__(self) -> dict[str, int]:
        self.times += 1
        return dict(self.__dict__)


def test_what_tasks_have_in_common_goes_to_workers_once() -> None:
    engine = LocalEngine(shared_session, workers=Workers(2), alone_rows_max=-1)
    sent = Sent()

    def work(_number: int, _task: int, answer: PartRows) -> None:
        answer.counted(sent.times, bytes_total=0, group=f"{os.getpid()} {id(sent)}")

    parts = engine.run(list(range(20)), work)
    assert sent.times == 1
    assert len(parts) == 20
    assert len({part.group for part in parts}) <= 2, "a copy for each worker"


def test_one_task_goes_where_the_others_went() -> None:
    """What it holds is not to stay with the driver; but no worker is started for it."""
    workers = Workers(2)
    engine = LocalEngine(shared_session, workers=workers, alone_rows_max=-1)

    def work(_number: int, _task: int, answer: PartRows) -> None:
        answer.counted(1, bytes_total=0, group=str(os.getpid()))

    assert [part.group for part in engine.run([0], work)] == [str(os.getpid())]
    assert not workers.started
    workers.start()
    assert [part.group for part in engine.run([0], work)] != [str(os.getpid())]
    assert engine.run([], work) == []


def test_a_worker_that_the_system_ends() -> None:
    """The step fails, and the next one finds new workers."""
    engine = LocalEngine(shared_session, workers=Workers(2))

    def work(_number: int, task: int, answer: PartRows) -> None:
        if task:
            os.kill(os.getpid(), signal.SIGKILL)
        answer.counted(1, bytes_total=0, group="done")

    with pytest.raises(Failed) as failed:
        engine.run([0, 1], work)
    assert failed.value.kind == "worker_died"
    assert len(engine.run([0, 0], work)) == 2


def test_workers_end_with_their_parent(tmp_path: Path) -> None:
    """Even when nothing can tell them."""
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    with subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as parent:
        assert parent.stdout is not None
        workers = [psutil.Process(int(pid)) for pid in parent.stdout.readline().split()]
        assert workers
        parent.kill()
    _, alive = psutil.wait_procs(workers, timeout=60)
    assert not alive
