"""One JVM for all runs of a server: only the first run waits for its start.

Each job is a process of its own that connects to the JVM. The JVM ends after a time without jobs.
If the JVM dies, the jobs that use it fail, and the next job starts another JVM.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING

from ebbtide.api.engines import PACKAGES, chosen_master
from ebbtide.imports import require_extra
from ebbtide.processes import DUCKDB, REMOTE
from ebbtide.settings import Settings

if TYPE_CHECKING:
    from ebbtide.gc.engines.spark.session import Launched

Gateway = tuple[int, str]
"""The port of a JVM on the loopback address, and the secret to connect with."""


def launch(settings: Settings) -> Launched:
    """Starts a JVM with the configuration of the settings. Raises Failed `extra_missing`, and as
    `gc.engines.spark.session.launch` does."""
    require_extra("Spark (EBBTIDE_ENGINE=duckdb needs none)", "spark", *PACKAGES)

    from ebbtide.gc.engines.spark import session
    from ebbtide.gc.engines.spark.conf import conf_of, driver_memory_of

    return session.launch(
        master=chosen_master(settings),
        driver_memory=driver_memory_of(settings),
        archive=settings.spark_archive,
        conf=conf_of(settings),
    )


class WarmSpark:
    """The JVM of a server. Thread-safe."""

    def __init__(self, start: Callable[[Settings], Launched] = launch) -> None:
        self._start = start
        self._lock = threading.Lock()
        self._launched: Launched | None = None
        self._users = 0
        self._timer: threading.Timer | None = None

    def lend(self, settings: Settings) -> Gateway | None:
        """Returns the gateway for one job, which must give it back; None if runs need no JVM of
        this server.

        Waits until the JVM answers. Raises the errors of `Launched.gateway` and
        `gc.engines.spark.session.launch`.
        """
        master = chosen_master(settings)
        if master == DUCKDB or master.startswith(REMOTE):
            return None
        with self._lock:
            self._stop_waiting()
            if self._launched is None or not self._launched.is_alive:
                self._end()
                self._launched = self._start(settings)
            gateway = self._launched.gateway()
            self._users += 1
        return gateway

    def give_back(self, idle: timedelta) -> None:
        """Takes the gateway back from a job that ended. After the last job, the JVM ends when
        `idle` has passed without another job."""
        with self._lock:
            self._users -= 1
            self._stop_waiting()
            if not self._users:
                self._timer = threading.Timer(idle.total_seconds(), self._end_if_idle)
                self._timer.daemon = True
                self._timer.start()

    def close(self) -> None:
        """Ends the JVM."""
        with self._lock:
            self._stop_waiting()
            self._end()

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end_if_idle(self) -> None:
        with self._lock:
            if not self._users:
                self._end()

    def _end(self) -> None:
        if self._launched is not None:
            self._launched.close()
            self._launched = None
