"""The JVM that Spark runs in, started in half of the time that PySpark's own scripts take.

The scripts start one JVM to work out the command line of another; here that command line is kept.
The JVM maps its classes from a class-data archive, which an earlier JVM wrote when it ended. Both
lie in the user's cache directory, under a key made of everything that they depend on. An entry that
is missing, damaged or made for another Java costs time and never a run.

Not for: settings of a session, which `session` chooses. PySpark is not imported here, because that
takes long and the JVM can start meanwhile.

Sources: `org.apache.spark.launcher.Main`, which prints a command line; JEP 350, dynamic archives.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from ebbtide.errors import Failed

MAIN: Final = "org.apache.spark.deploy.SparkSubmit"
SHELL: Final = "pyspark-shell"
"""The application that is submitted: a gateway for Python and nothing else."""
POLL_SECONDS: Final = 0.005
FOLDERS_MAX: Final = 3
"""Entries of the cache that stay when another is made. Each takes some 150 MB, and another 350 MB
once the packages that its links lead to are gone."""
ABANDONED_SECONDS: Final = 900
COMMAND_FILE: Final = "command"
JARS: Final = "jars"
MEMORY: Final = "spark.driver.memory"
JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"
SHORT_OPTION: Final = "-XX:TieredStopAtLevel=1"
"""The JVM compiles quickly and optimizes little: better for a run of less than some minutes."""

_SHAPING_SETTINGS: Final = (
    MEMORY,
    JAVA_OPTIONS,
    "spark.driver.defaultJavaOptions",
    "spark.driver.extraClassPath",
    "spark.driver.extraLibraryPath",
)
_SHAPING_VARIABLES: Final = (
    "HADOOP_CONF_DIR",
    "JAVA_TOOL_OPTIONS",
    "JDK_JAVA_OPTIONS",
    "SPARK_CONF_DIR",
    "SPARK_DIST_CLASSPATH",
    "SPARK_DRIVER_MEMORY",
    "SPARK_MEM",
    "SPARK_PREPEND_CLASSES",
    "SPARK_SUBMIT_OPTS",
    "SPARK_TESTING",
    "YARN_CONF_DIR",
    "_JAVA_OPTIONS",
)
"""Settings and variables that the launcher or the JVM itself turn into options or a class path."""
_SHAPING_FILES: Final = ("spark-defaults.conf", "java-opts")
_END: Final = "\0"
_TELLING: Final = re.compile(r"Exception|Error|^Invalid|^Unrecognized|not found")
_REFUSED: Final = re.compile(r"\[(?:warning|error) *\]|verification failed|mismatch")
_GENERAL: Final = re.compile(r"Error occurred during|Could not create the Java|A fatal exception")
"""Lines of a JVM's output that say why it ended, those of its log on a refused archive, and lines
that say nothing."""

# Ctrl-C and a service manager's SIGTERM reach the whole group. They mean the run, which still needs
# its JVM to end in good order. Signals that are ignored stay so behind `exec`.
_RUN: Final = 'trap "" INT TERM; exec "$@"'
# The archive is renamed when it is complete: no other JVM sees half of one. Its name says its size,
# because Java 17 crashes on an archive that was cut off.
_RUN_AND_MAKE: Final = """trap "" INT TERM
made=$1 folder=$2
shift 2
"$@" && [ -s "$made" ] && mv "$made" "$folder/classes-$(($(wc -c <"$made"))).jsa"
rm -f "$made"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cache:
    """An entry of the cache: a folder, which is there when something is in it, and its key.

    Java takes an archive only with the class path that it was made with. Where `is_shared`, the
    class path names hard links in this folder, so that the same jars of any virtual environment
    have the same path, and stay while a JVM reads them.
    """

    folder: Path
    key: str
    home: Path
    is_shared: bool

    def command(self, java: str) -> list[str] | None:
        """The command line that is kept, up to the name of the class. None without a valid one."""
        if not self._is_own():
            return None
        with suppress(OSError, UnicodeDecodeError):
            key, *words = (self.folder / COMMAND_FILE).read_text().split(_END)
            if key == self.key and words[-1:] == [MAIN] and words[0] == java and self._has_jars():
                return words[:-1]
        return None

    def keep(self, command: Sequence[str]) -> list[str]:
        """Keep a command line; returns it with the class path that is to be used. OSError or
        ValueError where it cannot be kept."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not self._is_own():
            raise PermissionError(f"others can write {self.folder}")
        kept = list(command)
        if self.is_shared:
            self._link_jars()
            place = kept.index("-cp") + 1
            kept[place] = self._class_path(kept[place])
        with tempfile.NamedTemporaryFile("w", dir=self.folder, delete=False) as made:
            made.write(_END.join([self.key, *kept, MAIN]))
        Path(made.name).replace(self.folder / COMMAND_FILE)
        return kept

    def archive(self) -> Path | None:
        """The class-data archive; None without a complete one."""
        if self._is_own():
            for file in self.folder.glob("classes-*.jsa"):
                with suppress(OSError):
                    if file.name == f"classes-{file.stat().st_size}.jsa":
                        os.utime(self.folder)  # the oldest entries are removed
                        return file
        return None

    def make_archive(self) -> Path | None:
        """The file that an archive is to be written to. None where none can be, or while another
        JVM is about to: its writing takes as long as a short run."""
        if not (self._is_own() and os.access(self.folder, os.W_OK)):
            return None
        made = self.folder / f"making-{os.getpid()}-{time.monotonic_ns()}"
        with suppress(OSError):
            self.tidy()
            if not any(self.folder.glob("making-*")):
                made.touch()
                return made
        return None

    def forget_archive(self) -> None:
        """Remove the archive, so that the next JVM writes another."""
        with suppress(OSError):
            for file in self.folder.glob("classes-*.jsa"):
                file.unlink()

    def forget(self) -> None:
        """Remove the entry."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def tidy(self) -> None:
        """Remove the oldest entries, and files of JVMs that were killed while they wrote."""
        with suppress(OSError):
            for file in self.folder.glob("making-*"):
                if time.time() - file.stat().st_mtime > ABANDONED_SECONDS:
                    file.unlink()
            others = [each for each in self.folder.parent.iterdir() if each != self.folder]
            others.sort(key=lambda folder: folder.stat().st_mtime, reverse=True)
            for folder in others[FOLDERS_MAX - 1 :]:
                shutil.rmtree(folder, ignore_errors=True)

    def _has_jars(self) -> bool:
        return not self.is_shared or _jars(self.folder) == _jars(self.home)

    def _link_jars(self) -> None:
        """Make the hard links, unless they are there: another JVM may be about to read them. Each
        has all of them open once Spark has started, so that they may be removed then."""
        with tempfile.TemporaryDirectory(dir=self.folder, ignore_cleanup_errors=True) as scratch:
            made = Path(scratch) / JARS
            made.mkdir()
            for jar in (self.home / JARS).glob("*.jar"):
                os.link(jar, made / jar.name)
            if self._has_jars():
                return
            with suppress(FileNotFoundError):
                (self.folder / JARS).rename(Path(scratch) / "old")
            made.rename(self.folder / JARS)

    def _class_path(self, path: str) -> str:
        """The class path by the links, without the folder of settings, which has no files."""
        own, linked = f"{self.home / JARS}/", f"{self.folder / JARS}/"
        entries = (each for each in path.split(os.pathsep) if Path(each) != conf_dir(self.home))
        return os.pathsep.join(
            linked + each.removeprefix(own) if each.startswith(own) else each for each in entries
        )

    def _is_own(self) -> bool:
        """Whether nobody else can have written it: its content is executed."""
        try:
            status = self.folder.stat()
        except OSError:
            return False
        return status.st_uid == os.geteuid() and not status.st_mode & 0o022


class Jvm:
    """A JVM that starts, or answers. It ends when its standard input is closed: with `close`, or
    with this process. What it prints goes to a file, or to stderr when it `is_shown`."""

    def __init__(
        self,
        settings: Mapping[str, str],
        *,
        java_home: str,
        short: bool = False,
        is_shown: bool = False,
    ) -> None:
        """Start it with Spark's `settings`. `short`: for a run of less than some minutes.

        On first use a command line is worked out before, which takes some tenths of a second.
        """
        self._settings = dict(settings)
        self._is_shown = is_shown
        self._short = short
        self._home = spark_home()
        self._java_home = java_home
        self._directory = tempfile.TemporaryDirectory(prefix="ebbtide-spark-")
        self._cache = find_cache(self._home, java_home, settings)
        self._has_answered = False
        self.process = self._start()

    def wait(self) -> tuple[int, str]:
        """Wait until it answers; its port on the loopback address, and the secret to connect with.

        Raises Failed `spark_error` with the reason when it ends before that.
        """
        answer = self._answer()
        if answer is None and self._cache is not None:
            # Something in the cache, or without the scripts, may be the reason.
            self._cache.forget()
            self._cache = None
            self._close_input()
            self.process = self._start()
            answer = self._answer()
        if answer is None:
            reason = self.reason()
            self.close()
            raise Failed("spark_error", f"Spark's JVM ended while it started: {reason}")
        self._has_answered = True
        return answer

    def settle(self) -> None:
        """Call this when the session is there: files that only its start needs are removed."""
        if self._cache is not None and _is_refused(self._read("archive.log")):
            self._cache.forget_archive()
        self._directory.cleanup()  # the JVM has its own handle of the file that it prints to

    def reason(self) -> str:
        """The line of its output that says why it failed."""
        output = (line.strip() for line in self._read("output").splitlines())
        lines = [line for line in output if line and not _GENERAL.search(line)]
        telling = [line for line in lines if _TELLING.search(line) and " WARN " not in line]
        fallback = lines[-1] if lines else f"exit status {self.process.poll()}"
        return (telling[0] if telling else fallback)[:300]

    def close(self) -> None:
        """Have it end, which takes about a second, and do not wait for that. One that has not
        answered yet looks at its input later, or never: it is killed."""
        if not self._has_answered:
            self._kill()
        self._close_input()
        threading.Thread(target=self.process.wait, daemon=True).start()  # leaves no zombie
        self._directory.cleanup()

    def _kill(self) -> None:
        """Kill the process, and the one that a shell waits for."""
        with suppress(OSError):
            pid = self.process.pid
            for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
                os.kill(int(child), signal.SIGKILL)
        self.process.kill()

    def _close_input(self) -> None:
        assert self.process.stdin is not None
        with suppress(OSError):
            self.process.stdin.close()

    def _start(self) -> subprocess.Popen[bytes]:
        directory = Path(self._directory.name)
        environment = os.environ | {
            "SPARK_HOME": str(self._home),
            "JAVA_HOME": self._java_home,
            "SPARK_SCALA_VERSION": _scala(self._home),  # the scripts set it
            "SPARK_CONNECT_MODE": "0",
            "_PYSPARK_DRIVER_CONN_INFO_PATH": str(directory / "gateway"),
        }
        command = self._fast(environment) or self._scripts()
        with (directory / "output").open("wb") as output:
            return subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                # Standard output belongs to what this program answers.
                stdout=2 if self._is_shown else output,
                stderr=2 if self._is_shown else output,
                env=environment,
            )

    def _fast(self, environment: Mapping[str, str]) -> list[str] | None:
        """The command line without the scripts; None where only they can tell it."""
        if self._cache is None:
            return None
        program = str(Path(self._java_home) / "bin" / "java")
        words = self._cache.command(program)
        if words is None:
            words = _work_out(program, self._home, environment, self._settings)
            if words is None or words[0] != program:
                self._cache = None
                return None
            try:
                words = self._cache.keep(words)
            except (OSError, ValueError):
                self._cache = None
        options = [SHORT_OPTION] if self._short else []
        arguments = [*words[1:], MAIN, *_as_arguments(self._settings), SHELL]
        cache = self._cache
        if cache and (archive := cache.archive()):
            log = Path(self._directory.name) / "archive.log"
            options += [
                f"-XX:SharedArchiveFile={archive}",
                "-Xshare:auto",
                "-XX:+VerifySharedSpaces",  # costs nothing that could be measured
                f"-Xlog:cds=info:file={log}",
            ]
        elif cache and _can_be_archived(words) and (made := cache.make_archive()):
            making = ["/bin/sh", "-c", _RUN_AND_MAKE, "sh", str(made), str(cache.folder)]
            return [*making, program, f"-XX:ArchiveClassesAtExit={made}", *options, *arguments]
        return ["/bin/sh", "-c", _RUN, "sh", program, *options, *arguments]

    def _scripts(self) -> list[str]:
        """The command line with PySpark's scripts, which follow everything that a user can set."""
        settings = dict(self._settings)
        if self._short:
            settings[JAVA_OPTIONS] = f"{SHORT_OPTION} {settings.get(JAVA_OPTIONS, '')}".strip()
        submit = str(self._home / "bin" / "spark-submit")
        submitted = shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", SHELL))
        return ["/bin/sh", "-c", _RUN, "sh", submit, *_as_arguments(settings), *submitted]

    def _answer(self) -> tuple[int, str] | None:
        """Port and secret; None when it has ended."""
        gateway = Path(self._directory.name) / "gateway"
        while not gateway.exists():
            if self.process.poll() is not None:
                return None
            time.sleep(POLL_SECONDS)
        # As `org.apache.spark.api.python.PythonGatewayServer` writes them, and renames the file
        # when it is complete: the port, the secret's length, both in four bytes, and the secret.
        told = gateway.read_bytes()
        size = int.from_bytes(told[4:8])
        return int.from_bytes(told[:4]), told[8 : 8 + size].decode()

    def _read(self, name: str) -> str:
        with suppress(OSError):
            return (Path(self._directory.name) / name).read_text(errors="replace")
        return ""


def spark_home() -> Path:
    """The folder of Spark: $SPARK_HOME, or the package of PySpark, which is not imported."""
    if home := os.environ.get("SPARK_HOME"):
        return Path(home)
    found = find_spec("pyspark")
    assert found is not None and found.origin is not None
    return Path(found.origin).parent


def conf_dir(home: Path) -> Path:
    """The folder of Spark's own files of settings, which need not exist."""
    return Path(os.environ.get("SPARK_CONF_DIR") or home / "conf")


def find_cache(home: Path, java_home: str, settings: Mapping[str, str]) -> _Cache | None:
    """The cache entry of JVMs with these settings.

    None where only Spark's scripts know the command line: a `spark-env.sh` may set anything, and
    so may the arguments in PYSPARK_SUBMIT_ARGS.
    """
    base = _cache_home()
    files = conf_dir(home)
    submitted = os.environ.get("PYSPARK_SUBMIT_ARGS", SHELL).strip()
    if base is None or submitted != SHELL or (files / "spark-env.sh").exists():
        return None
    jars = _jars(home)
    if jars is None:
        return None
    is_shared = not _has_files(files) and _can_be_linked(home / JARS, base)
    depends_on = [
        "" if is_shared else str(home),
        str(jars),
        java_home,
        _text(Path(java_home) / "release"),
        str([settings.get(name) for name in _SHAPING_SETTINGS]),
        str([os.environ.get(name) for name in _SHAPING_VARIABLES]),
        *(_text(files / name) for name in _SHAPING_FILES),
    ]
    key = hashlib.sha256(_END.join(depends_on).encode()).hexdigest()[:32]
    folder = base / "ebbtide" / "jvm" / key
    return _Cache(folder=folder, key=key, home=home, is_shared=is_shared)


def _jars(folder: Path) -> list[tuple[str, int, int]] | None:
    """Name, size and date of each file in a folder's `jars`; None where that cannot be read."""
    try:
        with os.scandir(folder / JARS) as files:
            seen = [(each.name, each.stat()) for each in files if each.name.endswith(".jar")]
    except OSError:
        return None
    return sorted((name, status.st_size, status.st_mtime_ns) for name, status in seen)


def _can_be_linked(jars: Path, cache: Path) -> bool:
    """Whether hard links from the cache to these files may be made: on one file system, and the
    files are the user's own (Linux refuses others where `fs.protected_hardlinks` is set)."""
    there = next((each for each in (cache, *cache.parents) if each.exists()), None)
    if there is None:
        return False
    owners = {os.geteuid(), jars.stat().st_uid} if os.geteuid() else set()
    return there.stat().st_dev == jars.stat().st_dev and len(owners) < 2


def _has_files(folder: Path) -> bool:
    """Whether there are any; yes where nobody can tell."""
    try:
        return folder.is_dir() and any(folder.iterdir())
    except OSError:
        return True


def _cache_home() -> Path | None:
    """The user's cache directory (XDG Base Directory Specification); None without a home."""
    named = os.environ.get("XDG_CACHE_HOME", "")
    if Path(named).is_absolute():
        return Path(named)
    with suppress(RuntimeError):
        return Path.home() / ".cache"
    return None


def _work_out(
    program: str, home: Path, environment: Mapping[str, str], settings: Mapping[str, str]
) -> list[str] | None:
    """The command line up to the name of the class, from Spark's launcher; None when it fails."""
    launcher = [program, "-XX:TieredStopAtLevel=1", "-cp", f"{home}/jars/*"]
    arguments = ["org.apache.spark.launcher.Main", MAIN, *_as_arguments(settings), SHELL]
    try:
        done = subprocess.run(
            [*launcher, *arguments], env=environment, capture_output=True, check=True
        )
        # The first word is empty; text before it is a message for the user.
        words = done.stdout.decode().partition(_END)[2].lstrip("\n").split(_END)
        return words[: words.index(MAIN)]
    except (OSError, subprocess.CalledProcessError, ValueError):
        return None


def _can_be_archived(words: Sequence[str]) -> bool:
    """Whether Java can archive classes with this class path: without folders that hold files."""
    with suppress(ValueError, IndexError, OSError):
        path = words[words.index("-cp") + 1]
        return not any(_has_files(Path(each)) for each in path.split(os.pathsep))
    return False


def _is_refused(log: str) -> bool:
    """Whether the JVM says that it could not use the archive."""
    return _REFUSED.search(log) is not None


def _as_arguments(settings: Mapping[str, str]) -> list[str]:
    return [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]


def _scala(home: Path) -> str:
    """The version of Scala that Spark was built with, which its files are named after."""
    core = next((home / "jars").glob("spark-core_*.jar"), None)
    return "" if core is None else core.name.removeprefix("spark-core_").partition("-")[0]


def _text(file: Path) -> str:
    """The text of a file of settings; empty without one."""
    with suppress(OSError):
        return file.read_text(errors="replace")
    return ""
