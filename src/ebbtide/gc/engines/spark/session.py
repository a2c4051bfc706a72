"""Starts and ends the Spark session of a run.

`launch` starts the JVM and returns; `Launched.session` waits for the JVM. In between, the caller
can import its modules. PySpark takes long to import, so that this module imports it only in the
functions that use it.

Executors must use the driver's interpreter, and ignore the shell's: otherwise they import other
packages.
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
from ebbtide.gc.engines.spark.conf import (
    APP_NAME,
    LOG_LEVEL,
    MASTER,
    PYTHON,
    SQL,
    check,
    conf_dir,
    is_local,
    logging_of,
    read_defaults_file,
    resolve,
    spark_home,
)
from ebbtide.gc.engines.spark.jvm import Jvm, check_user, find_java
from ebbtide.processes import was_submitted

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession


_OWNER: Final = "ebbtide_jvm"
"""The attribute of a gateway that has the `Jvm`, if this module started it."""
_SHOWN: Final = frozenset({LOG_LEVEL, "spark.ui.showConsoleProgress"})
"""A user who sets one of these settings wants to see Spark's output."""
_CAUSES_MAX: Final = 20
"""Errors of Java could name each other as causes."""
_LINE_MAX: Final = 300


class Launched:
    """A starting JVM, for one session."""

    def __init__(self, jvm: Jvm | None, settings: Mapping[str, str]) -> None:
        """`jvm` is None if `spark-submit` started the JVM, or if a session is active. `settings`
        are used only under `spark-submit`."""
        self._jvm = jvm
        self._settings = settings
        self._gateway: tuple[int, str] | None = None

    def session(self) -> SparkSession:
        """Waits for the JVM, connects, and returns the session. A second call returns the same
        session.

        Raises Failed `spark_error` with the reason in one line, if the JVM ends while it starts, or
        if Spark refuses a setting. The JVM has ended then.
        """
        # A compiled module that is interrupted while it loads can raise another error.
        with interrupts.held():
            from pyspark.sql import SparkSession

        active = SparkSession.getActiveSession()
        if active is not None:
            self.close()
            return active
        if self._jvm is None:
            return _connect_submitted(self._settings)
        try:
            # After an interrupt `SparkContext` ends itself, which can fail.
            with interrupts.kept():
                session = _connect(self._jvm)
        except BaseException as error:
            reason = _reason(error, self._jvm)
            self.close()
            if not isinstance(error, Exception) or isinstance(error, Failed):
                raise
            raise Failed("spark_error", f"Spark did not start: {reason}") from error
        self._jvm.settle()
        self._jvm = None  # from here on `end` ends the JVM
        return session

    def gateway(self) -> tuple[int, str]:
        """Waits until the JVM answers. Returns its port, and the secret to connect with, for
        `attach` in other processes. Raises as `session` does."""
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
        """Ends the JVM if no session is needed. Does nothing after `session` returned."""
        if self._jvm is not None:
            self._jvm.close()
            self._jvm = None


def launch(
    *,
    master: str | None = None,
    driver_memory: str | None = None,
    archive: str | None = None,
    conf: Mapping[str, str] | None = None,
    short: bool = False,
) -> Launched:
    """Starts the JVM of a session, and returns at once.

    `master` is Spark's URL of a master; without one in any setting it is `local[*]`.
    `driver_memory` applies if no setting names `spark.driver.memory`. Executors use this
    interpreter, or their own with an `archive` (`archive_settings`). `short`: for runs of up to a
    few minutes. The order of settings is that of `resolve`.

    Starts nothing under `spark-submit`, or if a session is active.

    Raises Failed (`java_not_found`, `spark_error`) and InvalidInput (`invalid_argument`, a
    setting).
    """
    _quiet_py4j()
    explicit = check(conf or {})
    if was_submitted() or _is_active():
        return Launched(None, {"spark.app.name": APP_NAME} | explicit)
    explicit |= {} if master is None else {MASTER: master}
    file = read_defaults_file(conf_dir(spark_home()))
    settings = resolve(explicit, file, driver_memory=driver_memory, archive=archive)
    settings |= logging_of(file | explicit, conf_dir(spark_home()))
    java_home = find_java()
    check_user()
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["PYSPARK_PYTHON"] = settings[PYTHON]
    is_shown = bool(_SHOWN & (explicit.keys() | file.keys()))
    jvm: Jvm | None = None
    try:
        with interrupts.held():
            jvm = Jvm(settings, java_home=java_home, short=short, is_shown=is_shown)
    except BaseException:  # such as an interrupt, which is raised at the end of the block
        if jvm is not None:
            jvm.close()
        raise
    return Launched(jvm, settings)


def attach(gateway: tuple[int, str]) -> SparkSession:
    """Connects to a JVM that another process launched (`Launched.gateway`), and returns a session.

    The session has its own settings, and shares Spark's context with those of other processes. The
    JVM and the context do not end with this process.

    Raises Failed `spark_error` if the JVM does not answer.
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
        # The first process makes the context, from the settings that the JVM was started with.
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
    """Ends a session and its JVM, so that another session can be started.

    Does nothing for a session that has ended: two runs of one process share a session, and both end
    it. With a local master this closes the JVM's input and does not wait. The JVM ends within about
    a second, or writes its class-data archive before. With an event log, or on a cluster, the
    session is stopped first, so that the log is complete and the executors are released.
    """
    from pyspark import SparkContext

    context: Any = session.sparkContext
    if context._jsc is None:
        return
    gateway: Any = SparkContext._gateway  # of py4j, which has no types
    jvm: Jvm | None = None if gateway is None else vars(gateway).get(_OWNER)
    if jvm is None:  # another program started the JVM, such as `spark-submit`
        session.stop()
        return
    if _must_be_stopped(session):
        session.stop()
    if (server := context._accumulatorServer) is not None:
        # The server takes up to half a second to end.
        threading.Thread(target=server.shutdown, daemon=True).start()
    _forget(context)
    jvm.close()


def make_archive(*, driver_memory: str) -> None:
    """Makes the class-data archive of sessions with this memory, unless it exists or cannot be made
    here, and waits for it. On most machines this takes a minute. Raises as `launch` and
    `Launched.session` do."""
    launched = launch(master="local[1]", driver_memory=driver_memory)
    jvm = launched._jvm
    if jvm is None or not jvm.writes_archive:
        launched.close()
        return
    session = launched.session()
    _use(session)
    end(session)
    jvm.process.wait()


def _is_active() -> bool:
    """Whether a session is active. If PySpark was not imported, none is."""
    if "pyspark.sql" not in sys.modules:
        return False
    from pyspark.sql import SparkSession

    return SparkSession.getActiveSession() is not None


def _connect(jvm: Jvm) -> SparkSession:
    """Returns a session in a starting JVM, with the settings that the JVM was started with."""
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
        if is_local(str(context.master)):
            _start_workers(context)
        return SparkSession(context)
    except BaseException:
        _forget(None)
        raise


def _connect_submitted(settings: Mapping[str, str]) -> SparkSession:
    """Returns a session in the JVM of `spark-submit`. `settings` override those of
    `spark-submit`, which override defaults. The master is always that of `spark-submit`."""
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    try:
        with interrupts.kept():
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
            "spark_error", f"Spark did not start in the JVM of spark-submit: {error}"
        ) from error


def _settle(context: SparkContext) -> None:
    """Adapts a new context to this program: this program handles Ctrl-C, and the JVM may end."""
    if interrupts.is_installed():
        # PySpark's handler of Ctrl-C calls the JVM even within another call, which breaks both.
        interrupts.install()
    server: Any = vars(context).get("_accumulatorServer")
    if server is not None:
        # PySpark's thread for accumulators would print a traceback when the JVM ends.
        server.handle_error = lambda *_: None


def _start_workers(context: SparkContext) -> None:
    """Starts the process from which Spark forks its Python workers, in a thread.

    Otherwise the first step would wait for that process, which takes about a second. In the
    meantime the JVM makes the session, with one core.
    """
    # Spark has one such process for each environment. Steps add this variable to theirs.
    context.environment["SPARK_SIMPLIFIED_TRACEBACK"] = "1"

    def start() -> None:
        with suppress(Exception):  # the JVM may end; a step tells what is wrong with the workers
            context.setJobDescription("ebbtide: start of the Python workers")
            context.parallelize([0], 1).count()

    threading.Thread(target=start, daemon=True).start()


def _quiet_py4j() -> None:
    """Keeps Py4J from printing errors with traces. Py4J also raises these errors."""
    logging.getLogger().addFilter(_is_not_of_py4j)


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    return "py4j" not in Path(record.pathname).parts


@contextmanager
def _named(port: int, secret: str) -> Iterator[None]:
    """Within the block, PySpark connects to this JVM and starts none."""
    names = {"PYSPARK_GATEWAY_PORT": str(port), "PYSPARK_GATEWAY_SECRET": secret}
    os.environ |= names
    try:
        yield
    finally:
        for name in names:
            del os.environ[name]


def _forget(context: Any) -> None:  # private parts of PySpark's classes
    """Makes PySpark forget its JVM, without a call to the JVM. Otherwise a later session would use
    it."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    if context is not None:
        context._jsc = None
    parts: Any = SparkContext
    parts._gateway = parts._jvm = parts._active_spark_context = None
    parts = SparkSession
    parts._instantiatedSession = parts._activeSession = None


def _must_be_stopped(session: SparkSession) -> bool:
    """Whether the session needs an orderly end: for executors, or for the readers of an event
    log."""
    context = session.sparkContext
    event_log = context.getConf().get("spark.eventLog.enabled", "false")
    return not is_local(str(context.master)) or str(event_log).lower() == "true"


def _reason(error: BaseException, jvm: Jvm) -> str:
    """Returns one line that says why Spark did not start: the error, and its first cause."""
    text, cause = str(error), ""
    thrown: Any = getattr(error, "java_exception", None)  # of py4j, which has no types
    with suppress(Exception):  # the JVM may be gone
        text = text if thrown is None else str(thrown.toString())
        # Where no cluster answers, the error says only that a scheduler cannot be instantiated.
        cause = _first_cause(thrown)
    text, cause = _first_line(text), _first_line(cause)
    told = (text,) if cause in text else (text, cause)
    return ": ".join(filter(None, told)) or jvm.reason()


def _first_cause(thrown: Any) -> str:
    """Returns Java's text of the error that began a chain of errors; an empty text without one."""
    text = ""
    for _ in range(_CAUSES_MAX):
        thrown = None if thrown is None else thrown.getCause()
        if thrown is None:
            break
        text = str(thrown.toString())
    return text


def _first_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0][:_LINE_MAX] if lines else ""


def _use(session: SparkSession) -> None:
    """Makes the JVM load the classes that a run needs: batches, an exchange, a join."""
    keys = session.range(1000, numPartitions=2).mapInArrow(lambda batches: batches, "id long")
    wanted = session.range(10).withColumnRenamed("id", "key")
    joined = keys.join(wanted, keys["id"] == wanted["key"], "left_anti")
    joined.union(keys).distinct().groupBy((keys["id"] % 7).alias("rest")).count().toArrow()
