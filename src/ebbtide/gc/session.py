"""The Spark session of a run: one place for its configuration, its start and its end.

`launch` starts the JVM and returns; `Launched.session` waits for it. In between, the caller imports
what it needs: PySpark takes long to import, so this module does that in the functions that use it.

Executors must use the driver's interpreter, whatever the shell says, or they import other packages.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ebbtide.errors import Failed, InvalidInput
from ebbtide.gc.archive import archive_settings
from ebbtide.gc.jvm import MEMORY, Jvm, conf_dir, find_cache, spark_home
from ebbtide.interrupts import held
from ebbtide.processes import was_submitted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA_MIN: Final = 17
LOCAL_MASTER: Final = "local[*]"
APP_NAME: Final = "ebbtide"
PARTITIONS_PER_CORE: Final = 4

_OWNER: Final = "ebbtide_jvm"
"""The attribute of a gateway to a JVM that was started here."""
_MASTER: Final = "spark.master"
_PYTHON: Final = "spark.pyspark.python"
_SQL: Final = {
    # Times are aware and UTC everywhere, also where the machine's zone is another.
    "spark.sql.session.timeZone": "UTC",
    # Rows are narrow (a key and a place): larger batches cross between JVM and Python in fewer
    # steps, and one of 50,000 rows still takes less than some MB.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "50000",
    # With adaptive execution each exchange is a job of its own, whose start takes longer than a
    # small run's work. The number of partitions follows from the cores instead.
    "spark.sql.adaptive.enabled": "false",
    # To compile a query takes longer than a small run's work. `SparkEngine.expect` says of which
    # runs that is not so.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    # Where a user turns adaptive execution on: partitions of a useful size, not one for each core.
    "spark.sql.adaptive.coalescePartitions.parallelismFirst": "false",
}
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


def build_session(
    *,
    master: str | None = None,
    driver_memory: str | None = None,
    archive: str | None = None,
    app_name: str = APP_NAME,
    conf: Mapping[str, str] | None = None,
    short: bool = False,
    **config: str,
) -> SparkSession:
    """Returns a session, or the active one. `launch` has the arguments and the errors.

    `config` is more of `conf`, with `_` for `.` in the names.
    """
    more = {name.replace("_", "."): value for name, value in config.items()}
    return launch(
        master=master,
        driver_memory=driver_memory,
        archive=archive,
        app_name=app_name,
        conf=more | dict(conf or {}),
        short=short,
    ).session()


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
    explicit = check(conf or {})
    if was_submitted() or _is_active():
        return Launched(None, {"spark.app.name": app_name} | explicit)
    explicit |= {} if master is None else {_MASTER: master}
    file = read_defaults_file(conf_dir(spark_home()))
    settings = resolve(
        explicit, file, driver_memory=driver_memory, archive=archive, app_name=app_name
    )
    java_home = find_java()
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["PYSPARK_PYTHON"] = settings[_PYTHON]
    is_shown = bool(_SHOWN & (explicit.keys() | file.keys()))
    jvm: Jvm | None = None
    try:
        with held():
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

    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    try:
        with _named(*gateway):
            connected: Any = launch_gateway()  # type: ignore[no-untyped-call]
        packages = connected.jvm.org.apache.spark
        # Whoever comes first makes it, of the settings that the JVM was started with.
        context = packages.SparkContext.getOrCreate()
        shared = packages.api.java.JavaSparkContext.fromSparkContext(context)
        conf = SparkConf(_jconf=shared.getConf())
        os.environ["PYSPARK_PYTHON"] = conf.get(_PYTHON) or sys.executable
        made = SparkContext(gateway=connected, jsc=shared, conf=conf)
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
        # It reads from the JVM, whose end is no error. Its own end takes up to half a second.
        server.handle_error = lambda *_: None
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


# Settings


def resolve(
    explicit: Mapping[str, str],
    file: Mapping[str, str],
    *,
    driver_memory: str | None = None,
    archive: str | None = None,
    app_name: str = APP_NAME,
) -> dict[str, str]:
    """Returns the settings that a session is started with; Spark itself adds those of the `file`.

    In order of precedence: `explicit` ones, those of `spark-defaults.conf`, and defaults of this
    program. Of these, the executors' interpreter (and an `archive` for them) come before the
    `file`, which was not written for this program.
    """
    master = explicit.get(_MASTER) or file.get(_MASTER) or LOCAL_MASTER
    executors = {_PYTHON: sys.executable} if archive is None else archive_settings(archive)
    defaults = _SQL | {
        _MASTER: master,
        "spark.app.name": app_name,
        "spark.pyspark.driver.python": sys.executable,
        # A run is no service: nobody looks at its page, and its port may be taken.
        "spark.ui.enabled": "false",
        # It would be written over this program's own progress.
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
    }
    if driver_memory is not None:
        defaults[MEMORY] = driver_memory
    if is_local(master):
        # No other machine connects, and names of this one may resolve to an address that is gone.
        defaults |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
        # Workers are there at once, with all that steps need.
        defaults["spark.python.daemon.module"] = "ebbtide.gc.daemon"
        # Spark's 200 would be as many tasks in each exchange, most of them empty.
        partitions = PARTITIONS_PER_CORE * local_cores(master)
        defaults["spark.sql.shuffle.partitions"] = str(partitions)
    else:
        defaults["spark.driver.bindAddress"] = "0.0.0.0"
    weak = {name: value for name, value in defaults.items() if name not in file}
    return {**weak, **executors, **explicit}


def is_local(master: str) -> bool:
    """Whether tasks run in the driver's own process."""
    return master == "local" or master.startswith("local[")


def local_cores(master: str) -> int:
    """How many tasks run at once on a local master."""
    found = re.fullmatch(r"local(?:\[(\*|\d+)(?:,.*)?\])?", master)
    number = None if found is None else found[1] or "1"
    return int(number) if number and number.isdecimal() else os.cpu_count() or 1


def read_pairs(pairs: Iterable[str]) -> dict[str, str]:
    """The settings that texts of the form `spark.name=value` give; the last of a name counts.

    Raises InvalidInput `invalid_argument`, which names the text.
    """
    found = {}
    for pair in pairs:
        name, equals, value = (part.strip() for part in pair.partition("="))
        if not equals or not re.fullmatch(r"spark\.\S+", name):
            raise InvalidInput(
                "invalid_argument",
                f"{pair.strip()!r} is no setting of Spark: write spark.name=value",
            )
        found[name] = value
    return found


def check(conf: Mapping[str, str]) -> dict[str, str]:
    """The same settings. Raises InvalidInput `invalid_argument` as `read_pairs` does."""
    return read_pairs(f"{name}={value}" for name, value in conf.items())


def read_text(text: str) -> dict[str, str]:
    """The settings that a text gives, as in $EBBTIDE_SPARK_CONF.

    Its pairs `spark.name=value` are separated by newlines, or by a comma before the next `spark.`;
    any other comma belongs to a value. Empty lines do not count. Raises InvalidInput
    `invalid_argument`, which names the pair.
    """
    pairs = re.split(r"\n|,(?=\s*spark\.)", text)
    return read_pairs(pair for pair in pairs if pair.strip(" \t\r,"))


def read_defaults_file(folder: Path) -> dict[str, str]:
    """The settings in `spark-defaults.conf` of a folder; none without the file.

    The format is that of `java.util.Properties.load`.
    """
    try:
        text = (folder / "spark-defaults.conf").read_text(errors="replace")
    except OSError:
        return {}
    text = re.sub(r"^[ \t\f]*[#!].*$", "", text, flags=re.MULTILINE)
    text = re.sub(r"(?<!\\)((?:\\\\)*)\\\n[ \t\f]*", r"\1", text)  # a line that goes on
    found = {}
    for line in text.splitlines():
        if pair := re.fullmatch(r"\s*((?:\\.|[^\\=:\s])+)(?:\s*[=:]\s*|\s+|$)(.*)", line):
            name, value = (re.sub(r"\\(.)", r"\1", part) for part in pair.groups())
            found[name] = value.strip()
    return found


# The JVM


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
        return SparkSession(SparkContext(gateway=gateway))
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
        for name, value in _SQL.items():
            conf.setIfMissing(name, value)
        conf.setAll([pair for pair in settings.items() if pair[0] != _MASTER])
        return SparkSession(SparkContext(gateway=gateway, conf=conf))
    except Exception as error:
        raise Failed(
            "spark_error", f"Spark did not start on what it was submitted to: {error}"
        ) from error


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


# Java


def find_java() -> str:
    """JAVA_HOME of a Java that Spark runs on. Failed `java_not_found`, saying what to install."""
    for home in _candidates():
        if _version(home) >= JAVA_MIN:
            return str(home)
    raise Failed(
        "java_not_found",
        f"no Java {JAVA_MIN} or newer was found: install one (on Debian: "
        f"apt-get install openjdk-{JAVA_MIN}-jre-headless), set JAVA_HOME, "
        "or run with --master none, which needs no Java",
    )


def _candidates() -> list[Path]:
    homes = []
    if home := os.environ.get("JAVA_HOME"):
        homes.append(Path(home))
    if java := shutil.which("java"):
        homes.append(Path(java).resolve().parent.parent)
    return homes + sorted(Path("/usr/lib/jvm").glob("*"), reverse=True)


def _version(home: Path) -> int:
    """The major version of the Java at `home`; 0 when it does not run."""
    release = home / "release"
    try:
        for line in release.read_text().splitlines():
            if line.startswith("JAVA_VERSION="):
                return int(line.split('"')[1].split(".")[0])
        output = subprocess.run(
            [home / "bin" / "java", "-version"], capture_output=True, text=True, check=True
        )
        return int(output.stderr.split('"')[1].split(".")[0])
    except (OSError, subprocess.CalledProcessError, IndexError, ValueError):
        return 0
