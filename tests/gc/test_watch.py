"""When the watch cancels a Spark job. `test_cluster.py` does it on real clusters."""

from __future__ import annotations

import threading
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from ebbtide.errors import Failed
from ebbtide.gc.spark.watch import watched
from ebbtide.gc.steps import Meter, ProgressReading, advance

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


def test_no_executors() -> None:
    job = Job()
    with (
        pytest.raises(Failed, match="spark://somewhere:7077 has had no executor for 0s"),
        watched(job.context, "run", timedelta(0), Meter()),
    ):
        job.wait()
    assert job.cancelled[:2] == ["run", "run"]


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


def test_behind_an_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that begins after an interrupt is not cancelled by it."""
    monkeypatch.setattr("ebbtide.interrupts.is_ending", lambda: True)
    job = Job(1)
    with watched(job.context, "run", NOT_SOON, Meter()):
        job.wait_for_looks()
    assert not job.cancelled


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


def test_what_is_left() -> None:
    """By the rate so far; unknown where nothing is done, and where there was more than expected."""
    assert ProgressReading("files", 10, 40, False, 5.0).seconds_left == 15.0
    assert ProgressReading("files", 0, 40, False, 5.0).seconds_left is None
    assert ProgressReading("files", 50, 40, True, 5.0).seconds_left is None
    assert ProgressReading("files", 5, None, False, 5.0).seconds_left is None
    assert ProgressReading("files", 5, 10, False, 0.0).per_second == 0.0
