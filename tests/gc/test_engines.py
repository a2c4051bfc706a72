"""What steps run with: the same result, errors that say what happened, and when the watch cancels a
Spark job. `test_cluster.py` does that on real clusters."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from ebbtide.arrow import make_schema
from ebbtide.errors import EbbtideError, Failed, NotFound, Refused
from ebbtide.gc.engines.base import Batches, Engine, Query
from ebbtide.gc.engines.duckdb import DuckEngine
from ebbtide.gc.engines.spark.engine import watched
from ebbtide.gc.parts import Answers, Count, PartRows, read_part
from ebbtide.gc.runs import RunFolder
from ebbtide.gc.steps import Meter, ProgressReading, advance
from tests.support.copies import listing
from tests.support.engines import ENGINES, on_engines, shared_session
from tests.support.histories import PlannedWorld, Template
from tests.support.icechunk_lake import candidates

JOBS_MAX = 12
SCHEMA = make_schema(("number", pa.int32()))

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
    locked.rmdir()
    second = world.collector().sweep(planned.run_id)
    assert second.state == "swept"
    assert second.counts["failed"].objects == 0
    assert second.counts["missing"].objects == 1
    assert second.counts["deleted"].objects + 1 == len(doomed)
    folder = RunFolder.at(second.run_path)
    tried = sum(read_part(folder, name).num_rows for name in folder.names("deleted"))
    assert tried == len(doomed) + 1  # the file that could not be deleted twice
    world.close()


def figures(found: Answers, of: str) -> list[tuple[int, int]]:
    return [(each.count.objects, each.count.bytes_total) for each in found.counts if each.of == of]


@every
def test_answers_and_refusals(engine: Engine) -> None:
    def count(number: int, task: int, answer: PartRows) -> None:
        if task < 0:
            answer.failed(NotFound("object_not_found", f"task {number}"))
        else:
            answer.counted(Count(task, number), of="seen")

    found = engine.run([5, 7, 9], count)
    assert not found.parts
    assert {each.of for each in found.counts} == {"seen"}
    assert sorted(figures(found, "seen")) == [(5, 0), (7, 1), (9, 2)]
    assert engine.run([], count) == Answers()
    with pytest.raises(Refused) as refused:
        engine.run([1, -1, -1, 2], count)
    assert refused.value.kind == "object_not_found"
    assert refused.value.message == "task 1 (and 1 more)"


def test_what_a_step_did_not_expect() -> None:
    def fail(error: Exception) -> Work:
        def work(_number: int, task: int, _answer: PartRows) -> None:
            if task:
                raise error

        return work

    engine = ENGINES["inline"]
    with pytest.raises(Failed) as failed:
        engine.run([0, 1], fail(ValueError("odd")))
    assert failed.value.kind == "task_failed"
    assert "ValueError: odd" in failed.value.message
    lost = Failed("storage_error", "no answer")
    with pytest.raises(EbbtideError) as told:
        engine.run([0, 1], fail(lost))
    assert (told.value.kind, told.value.message) == ("storage_error", "no answer")


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("queried", [False, True])
def test_a_step_that_fails_leaves_nothing_open(
    cores: int, queried: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although somebody still has the error, whose traceback refers to what was read."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    engine, opened, closed = DuckEngine(cores=cores), list[int](), list[int]()

    def read(task: int) -> Batches:
        opened.append(task)
        try:
            for number in range(3):
                yield pa.record_batch([[number]], schema=SCHEMA)
        finally:
            closed.append(task)

    def fail(batches: Batches) -> Batches:
        yield next(batches)
        raise Refused("plan_corrupt", "damaged")

    rows = engine.rows([1, 2, 3], read, SCHEMA)
    if queried:
        rows = engine.query(Query("SELECT * FROM {rows}", SCHEMA), rows=rows)
    with pytest.raises(Refused) as error:
        rows.map(fail, SCHEMA).collect()
    assert error.value.message == "damaged"
    assert opened
    assert sorted(closed) == sorted(opened)
    assert bool([*tmp_path.iterdir()]) == queried
    engine.close()
    assert not [*tmp_path.iterdir()]
    assert engine.query(Query("SELECT 1::INT AS number", SCHEMA)).collect().num_rows == 1
    engine.close()


@pytest.mark.spark
def test_a_small_run_is_few_jobs(template: Template, tmp_path: Path) -> None:
    """Each costs a tenth of a second and more. They are named after the run and its steps."""
    world = PlannedWorld(template, tmp_path)
    world.engine = ENGINES["spark"]
    planned = world.collector(mode="clean").plan()
    swept = world.collector().sweep(planned.run_id)
    assert swept.state == "swept"
    assert swept.counts["deleted"].objects > 0
    tracker = shared_session().sparkContext.statusTracker()
    jobs = list(tracker.getJobIdsForGroup(planned.run_id))
    assert 4 <= len(jobs) <= JOBS_MAX
    described = shared_session().sparkContext.getLocalProperty("spark.job.description")
    assert described == f"ebbtide {planned.run_id}: count"
    assert swept.engine is not None
    assert swept.engine.startswith("Spark ")
    world.close()


SECONDS_MAX = 60
NOT_SOON = timedelta(days=1)


class Job:
    """A job that waits until it is cancelled, on a cluster with so many executors."""

    def __init__(self, executors: int = 0) -> None:
        self.cancelled: list[str] = []
        self._is_cancelled = threading.Event()
        self._looked = threading.Event()
        self._infos = ["driver", *map(str, range(executors))]
        tracker = SimpleNamespace(getExecutorInfos=self._look)
        java = SimpleNamespace(statusTracker=lambda: tracker)
        self.context: Any = SimpleNamespace(
            master="spark://somewhere:7077",
            cancelJobGroup=self._cancel,
            _jsc=SimpleNamespace(sc=lambda: java),
        )

    def _cancel(self, group: str) -> None:
        """The first time it has not begun yet."""
        self.cancelled.append(group)
        if len(self.cancelled) > 1:
            self._is_cancelled.set()

    def _look(self) -> list[str]:
        self._looked.set()
        return self._infos

    def wait_for_looks(self) -> None:
        """Waits until the watch has looked twice, so that it has acted on its first look."""
        for _ in range(2):
            assert self._looked.wait(SECONDS_MAX)
            self._looked.clear()

    def wait(self) -> None:
        """Waits as PySpark does. The end of a cancelled job is an error of Spark's."""
        assert self._is_cancelled.wait(SECONDS_MAX)
        raise RuntimeError("Job 0 cancelled part of cancelled job group")


def test_no_executors(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job()
    with (
        pytest.raises(Failed, match="spark://somewhere:7077 has had no executor for 0s"),
        watched(job.context, "run", timedelta(0), Meter()),
    ):
        job.wait()
    assert job.cancelled[:2] == ["run", "run"]
    # A job that begins after an interrupt is not cancelled by it.
    monkeypatch.setattr("ebbtide.interrupts.is_ending", lambda: True)
    job = Job(1)
    with watched(job.context, "run", NOT_SOON, Meter()):
        job.wait_for_looks()
    assert not job.cancelled


def test_an_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller gets the interrupt, although PySpark waits for the job first."""
    job = Job()
    with pytest.raises(KeyboardInterrupt), watched(job.context, "run", NOT_SOON, Meter()):
        try:
            monkeypatch.setattr("ebbtide.interrupts.is_ending", lambda: True)
            raise KeyboardInterrupt
        finally:
            job.wait()
    assert job.cancelled[:2] == ["run", "run"]


@pytest.mark.parametrize(("executors", "wait"), [(1, timedelta(0)), (0, NOT_SOON)])
def test_others_go_on(executors: int, wait: timedelta) -> None:
    """A job with executors, or within the time, is not cancelled, and its error stays as it is."""
    job, meter = Job(executors), Meter()
    with pytest.raises(ValueError, match="its own"), watched(job.context, "run", wait, meter):
        job.wait_for_looks()
        assert meter.reading().awaited == ("" if executors else "waiting for executors")
        raise ValueError("its own")
    assert not job.cancelled
    assert not meter.reading().awaited


def test_counts_from_the_beginning_of_a_step() -> None:
    """Not what was counted before, but for what is said to be done."""
    meter = Meter()
    advance(5)
    meter.begin("files", 12)
    advance(2)
    advance(7)
    found = meter.reading()
    assert (found.unit, found.done, found.total, found.is_about) == ("files", 9, 12, False)
    meter.begin("files", 20, is_about=True, done=9)
    advance(2)
    found = meter.reading()
    assert (found.done, found.total, found.is_about) == (11, 20, True)
    assert meter.begun == 2
    assert ProgressReading("files", 10, 40, False, 5.0).seconds_left == 15.0
    assert ProgressReading("files", 0, 40, False, 5.0).seconds_left is None
    assert ProgressReading("files", 50, 40, True, 5.0).seconds_left is None
    assert ProgressReading("files", 5, None, False, 5.0).seconds_left is None
    assert ProgressReading("files", 5, 10, False, 0.0).per_second == 0.0
