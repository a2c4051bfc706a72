"""What ends a job before its time: an interrupt, and a cluster on which nobody works.

PySpark waits for a job in a call that an interrupt does not end, and Spark waits for executors for
ever. So a thread looks, and cancels the job.
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
from ebbtide.gc.spark.conf import is_local

EVERY_SECONDS: Final = 0.2
EXECUTORS_WAIT: Final = timedelta(minutes=10)


class _Watch(threading.Thread):
    """Looks at one job, of a group, until `done`."""

    def __init__(self, context: SparkContext, group: str, executors_wait: timedelta) -> None:
        super().__init__(name="watch over a Spark job", daemon=True)
        self.done = threading.Event()
        self.is_alone = False
        self._context = context
        self._group = group
        self._wait_seconds = executors_wait.total_seconds()
        self._heard = interrupts.is_ending()
        self._has_others = not is_local(str(context.master))

    def run(self) -> None:
        """Cancel it where it is time."""
        with suppress(Exception):  # a JVM that has died, of which the job tells
            self._look()

    def _look(self) -> None:
        """Cancels again and again: the job may not have begun yet."""
        seen_at = time.monotonic()
        while not self.done.wait(EVERY_SECONDS):
            if self._has_others and self._executors():
                seen_at = time.monotonic()
            elif self._has_others and time.monotonic() - seen_at > self._wait_seconds:
                self.is_alone = True
            # Whoever works behind an interrupt has a reason: it is the next one that counts.
            if self.is_alone or (interrupts.is_ending() and not self._heard):
                self._context.cancelJobGroup(self._group)

    def _executors(self) -> int:
        """How many there are. Spark counts the driver among them."""
        java: Any = self._context._jsc  # PySpark has no other way to ask
        return len(java.sc().statusTracker().getExecutorInfos()) - 1


@contextmanager
def watched(context: SparkContext, group: str, executors_wait: timedelta) -> Iterator[None]:
    """In the block, in which jobs of a group run: an interrupt ends them, and so does a cluster
    that has had no executor for so long (Failed `spark_error`)."""
    watch = _Watch(context, group, executors_wait)
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
                f"no executor has worked on {context.master} for {format_duration(executors_wait)}"
                " (EBBTIDE_SPARK_EXECUTORS_WAIT): has the cluster a worker that is alive, with the"
                " cores and the memory that executors ask for?",
            ) from error
        raise
    finally:
        watch.done.set()


def _interrupt_in(error: BaseException) -> KeyboardInterrupt | None:
    """The interrupt that came first, where PySpark met with an error on its way out."""
    found: BaseException | None = error
    while found is not None and not isinstance(found, KeyboardInterrupt):
        found = found.__context__
    return found
