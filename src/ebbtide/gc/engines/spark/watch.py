"""Cancels a Spark job after an interrupt, or when a cluster has had no executor for too long.

PySpark waits for a job in a call that an interrupt does not end. Spark waits for executors without
a limit. A thread therefore watches each job and cancels it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, Final

from pyspark import SparkContext

from ebbtide import interrupts
from ebbtide.durations import format_duration
from ebbtide.errors import Failed
from ebbtide.gc.engines.spark.conf import is_local
from ebbtide.gc.steps import Meter

EVERY_SECONDS: Final = 0.2
EXECUTORS_WAIT: Final = timedelta(minutes=10)


class _Watch(threading.Thread):
    """Watches the jobs of one group until `done` is set. `is_alone`: the cluster has had no
    executor for too long."""

    def __init__(
        self, context: SparkContext, group: str, executors_wait: timedelta, meter: Meter
    ) -> None:
        super().__init__(name="watch over a Spark job", daemon=True)
        self.done = threading.Event()
        self.is_alone = False
        self._spark = context
        self._group = group
        self._wait_seconds = executors_wait.total_seconds()
        self._meter = meter
        self._heard = interrupts.is_ending()
        self._has_others = not is_local(str(context.master))

    def run(self) -> None:
        """Watches the jobs and cancels them. Ignores a JVM that died: the job itself reports it."""
        with suppress(Exception):
            self._watch()

    def _watch(self) -> None:
        """Cancels repeatedly, because a cancellation before the job begins has no effect."""
        seen_at = time.monotonic()
        while not self.done.wait(EVERY_SECONDS):
            if self._has_others:
                count, now = self._executors(), time.monotonic()
                seen_at = now if count else seen_at
                self.is_alone = self.is_alone or now - seen_at > self._wait_seconds
                self._meter.awaited = "" if count else "waiting for executors"
            # A job that begins after an interrupt belongs to the clean-up: that interrupt is over.
            if self.is_alone or (interrupts.is_ending() and not self._heard):
                self._spark.cancelJobGroup(self._group)

    def _executors(self) -> int:
        """Returns the number of executors. Spark's own number includes the driver."""
        java: Any = self._spark._jsc  # PySpark has no public way to ask
        return len(java.sc().statusTracker().getExecutorInfos()) - 1


@contextmanager
def watched(
    context: SparkContext, group: str, executors_wait: timedelta, meter: Meter
) -> Iterator[None]:
    """Watches the jobs of a group that the block runs. While the cluster has no executor, the
    `meter` says so.

    After an interrupt, raises its KeyboardInterrupt. Raises Failed `spark_error` when the cluster
    has had no executor for `executors_wait`.
    """
    watch = _Watch(context, group, executors_wait, meter)
    watch.start()
    try:
        yield
    except Exception as error:
        interrupt = _interrupt_in(error)
        if interrupt is not None:
            raise interrupt from None
        if watch.is_alone:
            raise Failed(
                "spark_error",
                f"{context.master} has had no executor for {format_duration(executors_wait)}"
                " (EBBTIDE_SPARK_EXECUTORS_WAIT): check that a worker is alive and has the cores"
                " and the memory that executors need",
            ) from error
        raise
    finally:
        watch.done.set()
        meter.awaited = ""


def _interrupt_in(error: BaseException) -> KeyboardInterrupt | None:
    """Returns the interrupt that was raised before `error`, if there is one.

    After an interrupt PySpark still waits for the end of its job, and raises the job's error in
    place of the interrupt.
    """
    found: BaseException | None = error
    while found is not None and not isinstance(found, KeyboardInterrupt):
        found = found.__context__
    return found
