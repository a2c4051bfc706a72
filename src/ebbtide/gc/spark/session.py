"""The Spark session of a run: one place for its configuration, its start and its end.

`launch` starts the JVM and returns; `Launched.session` waits for it. In between, the caller imports
what it needs: PySpark takes long to import, so this module does that in the functions that use it.

Executors must use the driver's interpreter, whatever the shell says, or they import other packages.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ebbtide import interrupts
from ebbtide.errors import Failed
from ebbtide.gc.spark.cache import find_cache
from ebbtide.gc.spark.conf import (
    APP_NAME,
    MASTER,
    PYTHON,
    SQL,
    check,
    conf_dir,
    is_local,
    read_defaults_file,
    resolve,
    spark_home,
)
from ebbtide.gc.spark.java import find_java
from ebbtide.gc.spark.jvm import Jvm
from ebbtide.processes import was_submitted

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession


_OWNER: Final = "ebbtide_jvm"
"""The attribute of a gateway to a JVM that was started here."""
_SHOWN: Final = frozenset({"spark.log.level", "spark.ui.showConsoleProgress"})
"""Who sets one of these wants to see what Spark prints."""


class Launched:
    """A JVM that starts, for one session."""

    def __init__(self, jvm: Jvm | None, settings: Mapping[str, str]) -> None:
        """`jvm`: None where `spark-submit` started it, or where a session is active already. Only
        the first of these still needs `settings`."""
        self._jvm = jvm
        self._settings = settings
        self._gateway: tuple[int, str] | None = None

    def session(self) -> SparkSession:
        """Wait for the JVM and connect. A second call returns the same session.

        Raises Failed `spark_error` with the reason in one line, when the JVM ends while it starts
        or Spark refuses a setting. The JVM has ended then.
        """
        from pyspark.sql import SparkSession

        active = SparkSession.getActiveSession()
        if active is not None:
            self.close()
            return active
        if self._jvm is None:
            return _connect_submitted(self._settings)
        try:
            session = _connect(self._jvm)
        except BaseException as error:
            reason = _reason(error, self._jvm)
            self.close()
            if not isinstance(error, Exception) or isinstance(error, Failed):
                raise
            raise Failed("spark_error", f"Spark did not start: {reason}") from error
        self._jvm.settle()
        self._jvm = None  # from here on `end` ends it
        return session

    def gateway(self) -> tuple[int, str]:
        """Wait until the JVM answers: its port, and the secret to connect with, for `attach` in
        other processes. Raises as `session`."""
        assert self._jvm is not None
        if self._gateway is None:
            try:
                self._gateway = self._jvm.wait()
            except BaseException:
                self.close()
                raise
            self._jvm.settle()
        return self._gateway

    @property
    def is_alive(self) -> bool:
        """Whether the JVM runs."""
        return self._jvm is not None and self._jvm.process.poll() is None

    def close(self) -> None:
        """End a JVM whose session is not needed after all. Does nothing behind `session`."""
        if self._jvm is not None:
            self._jvm.close()
            self._jvm = None


def launch(
    *,
    master: str | None = None,
    driver_memory: str | None = None,
    archive: str | None = None,
    app_name: str = APP_NAME,
    conf: Mapping[str, str] | None = None,
    short: bool = False,
) -> Launched:
    """Start the JVM of a session, and return at once.

    `master` is Spark's URL of one; without any it is `local[*]`. `driver_memory` holds where no
    setting names `spark.driver.memory`. Executors run this interpreter, or with an `archive` (see
    `archive_settings`) their own. `short`: for a run of less than some minutes. `resolve` says
    where settings come from.

    Nothing is started under `spark-submit`, or beside an active session.

    Raises Failed (`java_not_found`) and InvalidInput (`invalid_argument`, a setting).
    """
    _quiet_py4j()
    explicit = check(conf or {})
    if was_submitted() or _is_active():
        return Launched(None, {"spark.app.name": app_name} | explicit)
    explicit |= {} if master is None else {MASTER: master}
    file = read_defaults_file(conf_dir(spark_home()))
    settings = resolve(
        explicit, file, driver_memory=driver_memory, archive=archive, app_name=app_name
    )
    java_home = find_java()
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["PYSPARK_PYTHON"] = settings[PYTHON]
    is_shown = bool(_SHOWN & (explicit.keys() | file.keys()))
    jvm: Jvm | None = None
    try:
        with interrupts.held():
            jvm = Jvm(settings, java_home=java_home, short=short, is_shown=is_shown)
    except BaseException:  # an interrupt, which waited for the end of the block
        if jvm is not None:
            jvm.close()
        raise
    return Launched(jvm, settings)


def attach(gateway: tuple[int, str]) -> SparkSession:
    """A session of this process in a JVM that another process launched (`Launched.gateway`), beside
    those of others: its settings are its own, Spark's context is shared. It ends with neither.

    Raises Failed `spark_error` where nothing answers there.
    """
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    _quiet_py4j()
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    try:
        with _named(*gateway):
            connected: Any = launch_gateway()  # type: ignore[no-untyped-call]
        packages = connected.jvm.org.apache.spark
        # Whoever comes first makes it, of the settings that the JVM was started with.
        context = packages.SparkContext.getOrCreate()
        shared = packages.api.java.JavaSparkContext.fromSparkContext(context)
        conf = SparkConf(_jconf=shared.getConf())
        os.environ["PYSPARK_PYTHON"] = conf.get(PYTHON) or sys.executable
        made = SparkContext(gateway=connected, jsc=shared, conf=conf)
        _settle(made)
        return SparkSession(made).newSession()
    except Exception as error:
        raise Failed(
            "spark_error", f"the JVM of Spark does not answer: {str(error).splitlines()[0]}"
        ) from error


def end(session: SparkSession) -> None:
    """End a session and its JVM. Another one can be built then. Does nothing for one that has
    ended: two runs of one process share a session, and each says that it is over.

    On this machine alone the JVM is not waited for: its input is closed, and it ends within about a
    second, or writes its class-data archive before. With an event log, or on a cluster, the session
    is stopped first: the log is complete then, and the executors are released.
    """
    from pyspark import SparkContext

    context: Any = session.sparkContext
    if context._jsc is None:
        return
    gateway: Any = SparkContext._gateway  # of py4j, which has no types
    jvm: Jvm | None = None if gateway is None else vars(gateway).get(_OWNER)
    if jvm is None:  # somebody else started it, such as `spark-submit`
        session.stop()
        return
    if _must_be_stopped(session):
        session.stop()
    if (server := context._accumulatorServer) is not None:
        # Its own end takes up to half a second.
        threading.Thread(target=server.shutdown, daemon=True).start()
    _forget(context)
    jvm.close()


def make_archive(*, driver_memory: str, conf: Mapping[str, str] | None = None) -> Path | None:
    """Make the class-data archive that sessions with these arguments start from, and wait for it.

    Returns its path; None where none can be made: Spark has settings in files that only its scripts
    read, the cache directory cannot be written, or a session is active. Takes a minute at most
    machines, and no time when the archive is there. Raises as `launch` and `Launched.session` do.
    """
    settings = resolve(
        check(conf or {}),
        read_defaults_file(conf_dir(spark_home())),
        driver_memory=driver_memory,
    )
    cache = find_cache(spark_home(), find_java(), settings)
    if cache is None or was_submitted() or _is_active():
        return None
    if archive := cache.archive():
        return archive
    launched = launch(master="local[1]", driver_memory=driver_memory, conf=conf)
    jvm = launched._jvm
    session = launched.session()
    _use(session)
    end(session)
    if jvm is not None:
        jvm.process.wait()
    return cache.archive()


def _is_active() -> bool:
    """Whether a session is active. Without an import of PySpark there is none."""
    if "pyspark.sql" not in sys.modules:
        return False
    from pyspark.sql import SparkSession

    return SparkSession.getActiveSession() is not None


def _connect(jvm: Jvm) -> SparkSession:
    """A session in a JVM that starts. Settings are those that it was started with."""
    from pyspark import SparkContext
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    with _named(*jvm.wait()):
        gateway: Any = launch_gateway()  # type: ignore[no-untyped-call]
    gateway.proc = jvm.process
    setattr(gateway, _OWNER, jvm)
    try:
        context = SparkContext(gateway=gateway)
        _settle(context)
        return SparkSession(context)
    except BaseException:
        _forget(None)
        raise


def _connect_submitted(settings: Mapping[str, str]) -> SparkSession:
    """A session in the JVM of `spark-submit`. Its settings come before defaults, and `settings`
    before both, but for the master."""
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    try:
        gateway: Any = launch_gateway()  # type: ignore[no-untyped-call]
        conf = SparkConf(_jvm=gateway.jvm)
        for name, value in SQL.items():
            conf.setIfMissing(name, value)
        conf.setAll([pair for pair in settings.items() if pair[0] != MASTER])
        context = SparkContext(gateway=gateway, conf=conf)
        _settle(context)
        return SparkSession(context)
    except Exception as error:
        raise Failed(
            "spark_error", f"Spark did not start on what it was submitted to: {error}"
        ) from error


def _settle(context: SparkContext) -> None:
    """Adapts a new context to this program: Ctrl-C stays with it, and the JVM may end."""
    if interrupts.is_installed():
        # PySpark's handler of Ctrl-C calls the JVM even within another call, which breaks both.
        interrupts.install()
    server: Any = vars(context).get("_accumulatorServer")
    if server is not None:
        # It reads from the JVM, and prints a trace if the JVM ends.
        server.handle_error = lambda *_: None


def _quiet_py4j() -> None:
    """Keeps Py4J from printing errors, with traces, that it also raises."""
    logging.getLogger().addFilter(_is_not_of_py4j)


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    return "py4j" not in Path(record.pathname).parts


@contextmanager
def _named(port: int, secret: str) -> Iterator[None]:
    """In the block, PySpark connects to a JVM and starts none."""
    names = {"PYSPARK_GATEWAY_PORT": str(port), "PYSPARK_GATEWAY_SECRET": secret}
    os.environ |= names
    try:
        yield
    finally:
        for name in names:
            del os.environ[name]


def _forget(context: Any) -> None:  # private parts of PySpark's classes
    """Have PySpark forget its JVM, without a call to it: else a later session would use this."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    if context is not None:
        context._jsc = None
    parts: Any = SparkContext
    parts._gateway = parts._jvm = parts._active_spark_context = None
    parts = SparkSession
    parts._instantiatedSession = parts._activeSession = None


def _must_be_stopped(session: SparkSession) -> bool:
    """Whether somebody else waits for its proper end: executors, or readers of an event log."""
    context = session.sparkContext
    event_log = context.getConf().get("spark.eventLog.enabled", "false")
    return not is_local(str(context.master)) or str(event_log).lower() == "true"


def _reason(error: BaseException, jvm: Jvm) -> str:
    """One line that says why Spark did not start."""
    text = str(error)
    thrown: Any = getattr(error, "java_exception", None)  # of py4j, which has no types
    with suppress(Exception):  # the JVM may be gone
        text = text if thrown is None else str(thrown.toString())
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0][:300] if lines else jvm.reason()


def _use(session: SparkSession) -> None:
    """Have the JVM load the classes that a run needs: batches, an exchange, a join."""
    keys = session.range(1000, numPartitions=2).mapInArrow(lambda batches: batches, "id long")
    wanted = session.range(10).withColumnRenamed("id", "key")
    joined = keys.join(wanted, keys["id"] == wanted["key"], "left_anti")
    joined.union(keys).distinct().groupBy((keys["id"] % 7).alias("rest")).count().toArrow()
