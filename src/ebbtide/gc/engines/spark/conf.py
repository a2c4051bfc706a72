"""Spark's settings: reads them from their sources, and adds the defaults of this program.

Executors that lack this program get it with its requirements in one archive. The archive contains
the distributions that are installed here, so that driver and executors run the same code. It does
not contain Spark and Py4J, which a cluster has.
"""

from __future__ import annotations

import os
import platform
import re
import sys
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from importlib.util import cache_from_source, find_spec
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import ebbtide
from ebbtide.errors import Failed, InvalidInput
from ebbtide.processes import LOCAL_MASTER
from ebbtide.resources import ROOT, memory_limit_bytes, processor_count
from ebbtide.settings import Settings

PROGRAM: Final = "ebbtide"
SPARK: Final = frozenset({"pyspark", "py4j"})
EXTRAS: Final = ("iceberg", "icechunk", "lakefs", "s3", "spark")
"""The extras that executors use. They have no database and no server."""
NO_CODE: Final = frozenset({"..", "__pycache__", "tests", "include"})
"""Parts of the paths of files that are never imported: programs, tests, headers for C."""
DIRECTORY: Final = "ebbtide_environment"
"""The directory to which executors unpack the archive, within their working directory."""

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


def write_archive(target: Path) -> list[str]:
    """Writes the archive (`.tar.gz`). Returns the names and versions of its distributions.

    The archive works on the system and the Python version of this process. Raises Failed
    `archive_failed` if it cannot be written.
    """
    found = [each for _, each in sorted(_needed().items())]
    try:
        with tarfile.open(target, "w:gz", compresslevel=6) as archive:
            for each in found:
                for path, name in _files(each):
                    archive.add(path, name, recursive=False)
    except OSError as error:
        target.unlink(missing_ok=True)
        raise Failed("archive_failed", f"{target} could not be written: {error}") from error
    return [f"{each.name} {each.version}" for each in found]


def archive_settings(archive: str) -> dict[str, str]:
    """Returns the Spark settings that make executors use the archive at a path or URL."""
    major, minor = sys.version_info[:2]
    return {
        "spark.archives": f"{archive}#{DIRECTORY}",
        "spark.executorEnv.PYTHONPATH": f"./{DIRECTORY}",
        "spark.pyspark.python": f"python{major}.{minor}",
    }


def archive_name() -> str:
    """Returns a file name with the versions and the machine type that an archive is for."""
    tag = f"py{sys.version_info[0]}{sys.version_info[1]}"
    return f"{PROGRAM}-{distribution(PROGRAM).version}-{tag}-{platform.machine()}.tar.gz"


def _needed() -> dict[str, Distribution]:
    """Returns the distribution of this program and all that it requires on this system, by name,
    with the extras of EXTRAS that are installed here.

    Raises Failed `archive_failed` if one of them is not installed."""
    found: dict[str, Distribution] = {}
    todo = [Requirement(f"{PROGRAM}[{','.join(filter(_is_installed, EXTRAS))}]")]
    seen: set[tuple[str, frozenset[str]]] = set()
    while todo:
        wanted = todo.pop()
        name, extras = canonicalize_name(wanted.name), frozenset(wanted.extras)
        if name in SPARK or (name, extras) in seen:
            continue
        seen.add((name, extras))
        try:
            found[name] = distribution(name)
        except PackageNotFoundError as error:
            raise Failed("archive_failed", f"{name} is needed and not installed here") from error
        for text in found[name].requires or ():
            requirement = Requirement(text)
            marker = requirement.marker
            if marker is None or any(marker.evaluate({"extra": e}) for e in extras or {""}):
                todo.append(requirement)
    return found


def _is_installed(extra: str) -> bool:
    """Whether all packages of an extra are installed here."""
    for text in distribution(PROGRAM).requires or ():
        requirement = Requirement(text)
        marker = requirement.marker
        if marker is None or marker.evaluate({"extra": ""}):
            continue
        if marker.evaluate({"extra": extra}):
            try:
                distribution(requirement.name)
            except PackageNotFoundError:
                return False
    return True


def _files(found: Distribution) -> Iterator[tuple[Path, str]]:
    """Yields the files of a distribution that can be imported, with their names in the archive.

    Compiled files are included: for executors the compilation would take longer than most tasks.
    """
    for path, name in _sources(found):
        yield path, name
        compiled = Path(cache_from_source(str(path))) if path.suffix == ".py" else None
        if compiled is not None and compiled.is_file():
            yield compiled, str(Path(name).parent / "__pycache__" / compiled.name)


def _sources(found: Distribution) -> Iterator[tuple[Path, str]]:
    if canonicalize_name(found.name) == PROGRAM:
        # An editable installation has only a link to the source.
        root = Path(ebbtide.__path__[0])
        for path in sorted(root.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                yield path, f"{PROGRAM}/{path.relative_to(root)}"
    for file in found.files or ():
        path = Path(str(found.locate_file(file)))
        is_code = not NO_CODE & set(file.parts) and file.suffix != ".pth"
        if is_code and file.parts[0] != PROGRAM and path.is_file():
            yield path, str(file)


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
