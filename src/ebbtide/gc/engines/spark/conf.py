"""Spark's settings: reads them from their sources, and adds the defaults of this program."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from ebbtide.errors import InvalidInput
from ebbtide.gc.engines.spark.archive import archive_settings
from ebbtide.processes import LOCAL_MASTER
from ebbtide.resources import ROOT, memory_limit_bytes, processor_count
from ebbtide.settings import Settings

MEBIBYTE: Final = 1 << 20
DRIVER_MEBIBYTES: Final = 2048
"""The default of the setting, `2g`."""
DRIVER_MEBIBYTES_MIN: Final = 512
"""With less, Spark itself refuses to start: it needs 1.5 times its reserved 300 MiB."""
APP_NAME: Final = "ebbtide"
PARTITIONS_PER_CORE: Final = 4
MASTER: Final = "spark.master"
PYTHON: Final = "spark.pyspark.python"
MEMORY: Final = "spark.driver.memory"
JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"
LOG_LEVEL: Final = "spark.log.level"
LOG_CONFIG: Final = Path(__file__).with_name("log4j2.properties")
SQL: Final = {
    # Times are aware and UTC everywhere, also on a machine with another time zone.
    "spark.sql.session.timeZone": "UTC",
    # Rows are narrow (a key and a place). Larger batches pass between JVM and Python in fewer
    # steps, and a batch of 50,000 rows has only a few MB.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "50000",
    # With adaptive execution each exchange is a job of its own, whose start takes longer than a
    # small run's work. The number of partitions follows from the cores instead.
    "spark.sql.adaptive.enabled": "false",
    # Compiling a query takes longer than a small run's work. `SparkEngine.expect` turns the
    # compiler on for large runs.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    # If a user turns adaptive execution on, partitions get a useful size, not one for each core.
    "spark.sql.adaptive.coalescePartitions.parallelismFirst": "false",
}


def resolve(
    explicit: Mapping[str, str],
    file: Mapping[str, str],
    *,
    driver_memory: str | None = None,
    archive: str | None = None,
) -> dict[str, str]:
    """Returns the settings that a session is started with; Spark itself adds those of the `file`.

    In order of precedence: `explicit` settings, those of `spark-defaults.conf` (`file`), and the
    defaults of this program. One default comes before the `file`, which was not written for this
    program: the interpreter of the executors, or an `archive` for them.
    """
    master = explicit.get(MASTER) or file.get(MASTER) or LOCAL_MASTER
    if master == LOCAL_MASTER and processor_count() < (os.cpu_count() or 1):
        # Java 17 reads the limits of its own control group, not of those around it. Commands name
        # the master even if it is the default of this program.
        master = f"local[{processor_count()}]"
        explicit = {**explicit, MASTER: master}
    executors = {PYTHON: sys.executable} if archive is None else archive_settings(archive)
    defaults = SQL | {
        MASTER: master,
        "spark.app.name": APP_NAME,
        "spark.pyspark.driver.python": sys.executable,
        # A run is not a service: nobody opens its page, and the port may be taken.
        "spark.ui.enabled": "false",
        # Spark's progress bar would overwrite this program's own.
        "spark.ui.showConsoleProgress": "false",
        LOG_LEVEL: "ERROR",
    }
    if driver_memory is not None:
        defaults[MEMORY] = driver_memory
    if is_local(master):
        # No other machine connects. This machine's name may resolve to an address that it has lost.
        defaults |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
        # This daemon forks workers that have all modules of the steps loaded.
        defaults["spark.python.daemon.module"] = "ebbtide.gc.daemon"
        # Over TCP each small task waits 40 ms for a delayed acknowledgement.
        defaults["spark.python.unix.domain.socket.enabled"] = "true"
        # Spark's default of 200 partitions would make 200 tasks in each exchange, most of them
        # empty.
        partitions = PARTITIONS_PER_CORE * local_cores(master)
        defaults["spark.sql.shuffle.partitions"] = str(partitions)
    else:
        defaults["spark.driver.bindAddress"] = "0.0.0.0"
    weak = {name: value for name, value in defaults.items() if name not in file}
    return {**weak, **executors, **explicit}


def logging_of(chosen: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Returns the setting that makes a chosen `spark.log.level` have its effect, if one is needed.

    `chosen` are the settings of the user, and `folder` is that of Spark's settings files. A user's
    own configuration of log4j stays the only one.
    """
    level, options = chosen.get(LOG_LEVEL, ""), chosen.get(JAVA_OPTIONS, "")
    has_own = (
        "log4j2.configurationFile" in options
        or "LOG4J_CONFIGURATION_FILE" in os.environ
        or any(folder.glob("log4j2*"))
    )
    if has_own or not level.isalpha():  # Spark itself refuses a text that is no level
        return {}
    file = f"-Dlog4j2.configurationFile={LOG_CONFIG.as_uri()}"
    return {JAVA_OPTIONS: f"-Debbtide.spark.log.level={level} {file} {options}".strip()}


def is_local(master: str) -> bool:
    """Whether tasks run in the driver's own process."""
    return master == "local" or master.startswith("local[")


def local_cores(master: str) -> int:
    """Returns the number of tasks that run at once on a local master."""
    found = re.fullmatch(r"local(?:\[(\*|\d+)(?:,.*)?\])?", master)
    number = None if found is None else found[1] or "1"
    return int(number) if number and number.isdecimal() else processor_count()


def read_pairs(pairs: Iterable[str]) -> dict[str, str]:
    """Returns the settings in texts of the form `spark.name=value`. If a name repeats, the last
    value counts.

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
    """Returns the settings, normalized. Raises InvalidInput `invalid_argument` as `read_pairs`
    does."""
    return read_pairs(f"{name}={value}" for name, value in conf.items())


def read_text(text: str) -> dict[str, str]:
    """Returns the settings in a text such as $EBBTIDE_SPARK_CONF.

    Pairs `spark.name=value` are separated by newlines, or by a comma before the next `spark.`. Any
    other comma belongs to a value. Empty lines are ignored. Raises InvalidInput `invalid_argument`,
    which names the pair.
    """
    pairs = re.split(r"\n|,(?=\s*spark\.)", text)
    return read_pairs(pair for pair in pairs if pair.strip(" \t\r,"))


def conf_of(settings: Settings) -> dict[str, str]:
    """Returns Spark's settings in the settings of this program: $EBBTIDE_SPARK_CONF, and the
    driver's memory if the user set it. Raises as `read_text` does."""
    is_chosen = "spark_driver_memory" in settings.model_fields_set
    chosen = {MEMORY: settings.spark_driver_memory} if is_chosen else {}
    return chosen | read_text(settings.spark_conf)


def driver_memory_of(settings: Settings, root: Path = ROOT) -> str:
    """Returns the driver's memory as Spark writes it.

    Without a setting of the user, the default is lowered to half of the memory that a container may
    use: the workers beside the driver need the rest.
    """
    chosen, limit = settings.spark_driver_memory, memory_limit_bytes(root)
    if limit is None or "spark_driver_memory" in settings.model_fields_set:
        return chosen
    half = max(limit // 2 // MEBIBYTE, DRIVER_MEBIBYTES_MIN)
    return chosen if half >= DRIVER_MEBIBYTES else f"{half}m"


def read_defaults_file(folder: Path) -> dict[str, str]:
    """Returns the settings in `spark-defaults.conf` of a folder; none without the file.

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


def spark_home() -> Path:
    """Returns Spark's folder: $SPARK_HOME, or the package of PySpark. Does not import PySpark."""
    if home := os.environ.get("SPARK_HOME"):
        return Path(home)
    found = find_spec("pyspark")
    assert found is not None and found.origin is not None
    return Path(found.origin).parent


def conf_dir(home: Path) -> Path:
    """Returns the folder of Spark's settings files. It need not exist."""
    return Path(os.environ.get("SPARK_CONF_DIR") or home / "conf")
