"""The Spark session of a run: one place for its configuration.

Executors must use the driver's interpreter, whatever the shell says, or they import other packages.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from ebbtide.errors import Failed
from ebbtide.gc.archive import archive_settings
from ebbtide.interrupts import held
from ebbtide.processes import was_submitted

JAVA_MIN: Final = 17
_SQL: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "50000",
    "spark.sql.adaptive.coalescePartitions.parallelismFirst": "false",
}


def build_session(
    *,
    master: str,
    driver_memory: str,
    archive: str | None = None,
    app_name: str = "ebbtide",
    **config: str,
) -> SparkSession:
    """A session on `master`; `config` overrides settings, with `_` for `.` in their names.

    Executors run this interpreter, or with an `archive` (see `archive_settings`) their own. What
    `spark-submit` was told stays as it is.

    Raises Failed (`java_not_found`, `spark_error`).
    """
    active = SparkSession.getActiveSession()
    if active is not None:
        return active
    if was_submitted():
        return _start(_SQL, master=None, app_name=app_name)
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["JAVA_HOME"] = find_java()
    executors = (
        {"spark.pyspark.python": sys.executable} if archive is None else archive_settings(archive)
    )
    os.environ["PYSPARK_PYTHON"] = executors["spark.pyspark.python"]
    settings = {
        **executors,
        **_SQL,
        "spark.pyspark.driver.python": sys.executable,
        "spark.driver.memory": driver_memory,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.driver.bindAddress": "127.0.0.1" if master.startswith("local") else "0.0.0.0",
    }
    if master.startswith("local"):
        settings["spark.driver.host"] = "127.0.0.1"
        settings["spark.sql.shuffle.partitions"] = str(4 * (os.cpu_count() or 1))
    settings |= {name.replace("_", "."): value for name, value in config.items()}
    return _start(settings, master=master, app_name=app_name)


def _start(settings: dict[str, str], *, master: str | None, app_name: str) -> SparkSession:
    """Start the JVM with what it prints kept in a file: users read our messages, not its own."""
    conf = SparkConf().setAppName(app_name).setAll(list(settings.items()))
    if master is not None:
        conf.setMaster(master)
    log = tempfile.NamedTemporaryFile(prefix="ebbtide-spark-", suffix=".log")  # noqa: SIM115
    try:
        with held():  # a JVM that nobody waited for until it answers stays for good
            gateway = launch_gateway(conf, {"stdout": log, "stderr": log})  # type: ignore[no-untyped-call]
        return SparkSession(SparkContext(gateway=gateway, conf=conf))
    except Exception as error:
        lines = Path(log.name).read_text(errors="replace").strip().splitlines()
        reason = lines[-1] if lines else str(error)
        raise Failed(
            "spark_error",
            f"Spark did not start on {master or 'what it was submitted to'}: {reason}",
        ) from error
    finally:
        # The JVM keeps its own handle. Without a name the file goes when the JVM does.
        log.close()


def find_java() -> str:
    """JAVA_HOME of a Java that Spark runs on. Failed `java_not_found`, saying what to install."""
    for home in _candidates():
        if _version(home) >= JAVA_MIN:
            return str(home)
    raise Failed(
        "java_not_found",
        f"no Java {JAVA_MIN} or newer was found: install one (on Debian: "
        f"apt-get install openjdk-{JAVA_MIN}-jre-headless) or set JAVA_HOME",
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
