"""Makes the engine of runs: Spark on a master, a given Spark session, or DuckDB in this process."""

from __future__ import annotations

import atexit
import logging
from collections.abc import Mapping, Sequence
from functools import cache, partial
from importlib import import_module
from typing import TYPE_CHECKING, Final, Protocol

from ebbtide import interrupts
from ebbtide.errors import EbbtideError, Failed
from ebbtide.imports import allow_pandas, require_extra
from ebbtide.processes import DUCKDB, LOCAL_MASTER, NO_SPARK, REMOTE, SPARK, was_submitted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ebbtide.gc.engines.base import Engine
    from ebbtide.gc.engines.spark.session import Launched
    from ebbtide.gc.steps import Event
    from ebbtide.settings import Settings


logger = logging.getLogger(__name__)


class Display(Protocol):
    """An observer that shows the start of Spark as a step of its own."""

    def __call__(self, step: str, event: Event) -> None:
        """Starts or ends a step."""

    def pause(self) -> None:
        """Stops the display before an error is reported."""


PACKAGES: Final = ("packaging", "pyspark", "py4j")
"""What Spark needs of Python, by import names."""
EMBEDDED: Final = (DUCKDB, NO_SPARK)


class Hidden:
    """A display that shows nothing."""

    def __call__(self, step: str, event: Event) -> None:
        """Does nothing."""

    def pause(self) -> None:
        """Does nothing."""


def make_engine(
    settings: Settings,
    master: str | None,
    display: Display,
    *,
    conf: Sequence[str] = (),
    starting: bool = False,
    short: bool = False,
) -> Engine:
    """Returns the engine of runs: Spark on a master, or DuckDB.

    `master` is the URL of a master, SPARK for that of the settings, or DUCKDB. Without it, the
    settings choose (`chosen_master`). `conf` are settings of Spark, as texts. Spark starts on first
    use. With `starting`, its JVM starts now, while other modules load. `short` is an
    argument of `gc.engines.spark.session.launch`.

    Raises InvalidInput `invalid_argument` for a wrong setting, and Failed `java_not_found` or
    `extra_missing`.
    """
    chosen = chosen_master(settings, master)
    if chosen == DUCKDB:
        from ebbtide.gc.engines.duckdb import DuckEngine

        return DuckEngine()
    extra = "connect" if chosen.startswith(REMOTE) else "spark"
    require_extra("Spark (--engine duckdb needs none)", extra, *PACKAGES)

    from ebbtide.gc.engines.spark.conf import conf_of, read_pairs, read_text

    named = read_pairs(conf)
    if chosen.startswith(REMOTE):
        from ebbtide.gc.engines.spark.connect import ConnectEngine, connect

        return ConnectEngine(
            chosen, partial(connect, chosen, read_text(settings.spark_conf) | named)
        )
    spark = _Spark(settings, chosen, display, conf_of(settings) | named, short=short)
    if starting:
        spark.launch()

    # A compiled module that is interrupted while it loads can raise another error.
    with interrupts.held():
        from ebbtide.gc.engines.spark.engine import SparkEngine

    return SparkEngine(spark.session, executors_wait=settings.spark_executors_wait)


def chosen_master(settings: Settings, master: str | None = None) -> str:
    """Returns the URL of the Spark master on which runs are made, or DUCKDB.

    If neither the caller nor a setting chose one, and Java or PySpark is missing, returns DUCKDB
    and logs one line that says so.
    """
    is_set = settings.model_fields_set
    if was_submitted():
        return LOCAL_MASTER  # not read: the master is that of `spark-submit`
    if master is None and "engine" in is_set:
        master = settings.engine
    if master is None and "spark_master" not in is_set and (lacking := _lacking()) is not None:
        logger.warning(
            "Spark needs %s, which is not here: DuckDB carries out the run, in this process. "
            "EBBTIDE_ENGINE=duckdb chooses it without this line",
            lacking,
        )
        return DUCKDB
    if master in (None, SPARK):
        is_embedded = settings.spark_master in EMBEDDED
        embedded = DUCKDB if master is None else LOCAL_MASTER
        return embedded if is_embedded else settings.spark_master
    return DUCKDB if master in EMBEDDED else master


def _lacking() -> str | None:
    """Returns what Spark lacks on this machine."""
    try:
        require_extra("Spark", "spark", *PACKAGES)
    except Failed:
        return "PySpark"
    from ebbtide.gc.engines.spark.jvm import JAVA_MIN, find_java

    try:
        find_java()
    except Failed:
        return f"Java {JAVA_MIN} or newer"
    return None


def engine_on(spark: SparkSession, settings: Settings) -> Engine:
    """Returns an engine that uses a Spark session of the caller, and does not end it.

    The runs get a session of their own on the same Spark: they change settings of SQL, which must
    not change for the caller.
    """
    from ebbtide.gc.engines.spark.connect import ConnectEngine
    from ebbtide.gc.engines.spark.engine import SparkEngine

    if is_remote(spark):
        return ConnectEngine("Spark Connect", spark.newSession)
    session = cache(spark.newSession)  # relations of two sessions cannot be compared
    return SparkEngine(session, executors_wait=settings.spark_executors_wait)


def is_remote(spark: SparkSession) -> bool:
    """Whether a session is one of Spark Connect, which has no `sparkContext`."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


class _Spark:
    """Spark for one engine. Spark ends with this process."""

    def __init__(
        self,
        settings: Settings,
        master: str,
        display: Display,
        conf: Mapping[str, str],
        *,
        short: bool,
    ) -> None:
        self._settings = settings
        self._master = master
        self._display = display
        self._conf = conf
        self._short = short
        self._launched: Launched | None = None
        self._session: SparkSession | None = None

    def launch(self) -> Launched:
        """Starts the JVM, once. Raises Failed `java_not_found`."""
        if self._launched is None:
            from ebbtide.gc.engines.spark import session
            from ebbtide.gc.engines.spark.conf import driver_memory_of

            self._launched = session.launch(
                master=self._master,
                driver_memory=driver_memory_of(self._settings),
                archive=self._settings.spark_archive,
                conf=self._conf,
                short=self._short,
            )
            atexit.register(self._end)
        return self._launched

    def session(self) -> SparkSession:
        """Returns the session when its JVM answers. Raises Failed as `Launched.session` does."""
        if self._session is None:
            self._display("start", "start")
            launched = self.launch()
            # Imported while the JVM starts: functions over Arrow batches in Spark need pandas.
            allow_pandas()
            require_extra("Spark", "spark", "pandas")
            with interrupts.held():
                import_module("pandas")
            try:
                self._session = launched.session()
            except EbbtideError:
                self._display.pause()
                raise
            self._display("start", "end")
        return self._session

    def _end(self) -> None:
        from ebbtide.gc.engines.spark import session

        if self._session is not None:
            session.end(self._session)
        elif self._launched is not None:
            self._launched.close()
