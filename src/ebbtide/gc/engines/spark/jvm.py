"""Finds a Java, and starts the JVM of Spark in half of the time that PySpark's own scripts take.

The scripts start one JVM to find the command line of another. Here the command line is cached
(`cache`). The JVM maps its classes from a class-data archive, if there is one, or writes one.

Not for: the settings of a session, which `session` chooses. This module does not import PySpark:
the import takes long, and the JVM can start at the same time.

Source: `org.apache.spark.launcher.Main`, which prints a command line.
"""

from __future__ import annotations

import os
import pwd
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
from pathlib import Path
from typing import Final

from ebbtide.errors import Failed
from ebbtide.gc.engines.spark.cache import END, MAIN, SHELL, find_cache, has_files
from ebbtide.gc.engines.spark.conf import JAVA_OPTIONS, MASTER, is_local, spark_home

JAVA_MIN: Final = 17


def find_java() -> str:
    """Returns JAVA_HOME of a Java that Spark runs on. Raises Failed `java_not_found`, which says
    what to install."""
    for home in _candidates():
        if _version(home) >= JAVA_MIN:
            return str(home)
    raise Failed(
        "java_not_found",
        f"no Java {JAVA_MIN} or newer was found: install one (on Debian: "
        f"apt-get install openjdk-{JAVA_MIN}-jre-headless), set JAVA_HOME, "
        "or run with --engine duckdb, which needs no Java",
    )


def check_user() -> None:
    """Raises Failed `spark_error` if the user id of this process has no name.

    OpenShift, for instance, runs containers as ids that the image does not know. Java then has no
    name for the user, and Hadoop's login, without which Spark does not start, fails.
    """
    number = os.getuid()
    try:
        pwd.getpwuid(number)
    except KeyError:
        raise Failed(
            "spark_error",
            f"Spark does not start: this process runs as the user id {number}, which has no name. "
            f"Add a line to /etc/passwd, such as ebbtide:x:{number}:0::/tmp:/usr/sbin/nologin, run "
            "as a user with a name, or run with --engine duckdb, which needs no Java",
        ) from None


def _candidates() -> list[Path]:
    homes = []
    if home := os.environ.get("JAVA_HOME"):
        homes.append(Path(home))
    if java := shutil.which("java"):
        homes.append(Path(java).resolve().parent.parent)
    return homes + sorted(Path("/usr/lib/jvm").glob("*"), reverse=True)


def _version(home: Path) -> int:
    """Returns the major version of the Java at `home`, or 0 if it does not run."""
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


POLL_SECONDS: Final = 0.005
SHORT_OPTION: Final = "-XX:TieredStopAtLevel=1"
"""The JVM compiles quickly and optimizes little. That is better for runs of up to a few minutes."""

_TELLING: Final = re.compile(r"Exception|Error|^Invalid|^Unrecognized|not found")
_REFUSED: Final = re.compile(r"\[(?:warning|error) *\]|verification failed|mismatch")
_GENERAL: Final = re.compile(r"Error occurred during|Could not create the Java|A fatal exception")
_CAUSE: Final = "Caused by: "
"""Patterns of a JVM's lines. `_TELLING` matches output that says why it ended, and `_GENERAL`
output that gives no reason. `_REFUSED` matches log lines about an archive that it refused. In the
stack trace of an exception, the last line with `_CAUSE` has the first cause."""

# Ctrl-C and a service manager's SIGTERM reach the whole process group. They are meant for the run,
# which needs its JVM for an orderly end. An ignored signal stays ignored after `exec`.
_RUN: Final = 'trap "" INT TERM; exec "$@"'
# The archive is renamed when it is complete, so that no other JVM sees a part of it. Its name has
# its size, because Java 17 crashes on an archive that was cut off.
_RUN_AND_MAKE: Final = """trap "" INT TERM
made=$1 folder=$2
shift 2
"$@" && [ -s "$made" ] && mv "$made" "$folder/classes-$(($(wc -c <"$made"))).jsa"
rm -f "$made"
"""


class Jvm:
    """A JVM that starts or runs. It ends when its standard input is closed: by `close`, or at the
    end of this process. Its output goes to a file, or to stderr if it `is_shown`."""

    def __init__(
        self,
        settings: Mapping[str, str],
        *,
        java_home: str,
        short: bool = False,
        is_shown: bool = False,
    ) -> None:
        """Starts the JVM with Spark's `settings`. `short`: for runs of up to a few minutes.

        If the command line is not in the cache, Spark's launcher finds it first. This takes some
        tenths of a second.
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
        """Waits until the JVM answers. Returns its port on the loopback address, and the secret to
        connect with.

        Raises Failed `spark_error` with the reason if the JVM ends before that.
        """
        answer = self._answer()
        if answer is None and self._cache is not None:
            # The cache, or the start without PySpark's scripts, may be the reason.
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
        """Removes the files that only the start needs, and an archive that the JVM refused. To be
        called when the session exists."""
        if self._cache is not None and _is_refused(self._read("archive.log")):
            self._cache.forget_archive()
        self._directory.cleanup()  # the JVM keeps its output file open

    def reason(self) -> str:
        """Returns the line of the JVM's output that says why it failed, and its first cause."""
        output = (line.strip() for line in self._read("output").splitlines())
        lines = [line for line in output if line and not _GENERAL.search(line)]
        telling = [line for line in lines if _TELLING.search(line) and " WARN " not in line]
        if not telling:
            return (lines[-1] if lines else f"exit status {self.process.poll()}")[:300]
        causes = [line.removeprefix(_CAUSE) for line in telling[1:] if line.startswith(_CAUSE)]
        return "; the cause: ".join(line[:300] for line in telling[:1] + causes[-1:])

    def close(self) -> None:
        """Makes the JVM end, which takes about a second, and does not wait for it. A JVM that has
        not answered yet is killed, because it may not read its input."""
        if not self._has_answered:
            self._kill()
        self._close_input()
        threading.Thread(target=self.process.wait, daemon=True).start()  # leaves no zombie
        self._directory.cleanup()

    def _kill(self) -> None:
        """Kills the process, and the child that a shell waits for."""
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
        if is_local(self._settings.get(MASTER, "")):
            # Spark looks up this machine's name before it reads any setting, and ends if the name
            # has no address. With this variable it does not.
            environment.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        command = self._fast(environment) or self._scripts()
        with (directory / "output").open("wb") as output:
            return subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                # Standard output is for the results of this program.
                stdout=2 if self._is_shown else output,
                stderr=2 if self._is_shown else output,
                env=environment,
            )

    def _fast(self, environment: Mapping[str, str]) -> list[str] | None:
        """Returns the command line without PySpark's scripts, or None if only the scripts can find
        it."""
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
                "-XX:+VerifySharedSpaces",  # costs no measurable time
                f"-Xlog:cds=info:file={log}",
            ]
        elif cache and _can_be_archived(words) and (made := cache.make_archive()):
            making = ["/bin/sh", "-c", _RUN_AND_MAKE, "sh", str(made), str(cache.folder)]
            return [*making, program, f"-XX:ArchiveClassesAtExit={made}", *options, *arguments]
        return ["/bin/sh", "-c", _RUN, "sh", program, *options, *arguments]

    def _scripts(self) -> list[str]:
        """Returns the command line with PySpark's scripts, which respect all settings of users."""
        settings = dict(self._settings)
        if self._short:
            settings[JAVA_OPTIONS] = f"{SHORT_OPTION} {settings.get(JAVA_OPTIONS, '')}".strip()
        submit = str(self._home / "bin" / "spark-submit")
        submitted = shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", SHELL))
        return ["/bin/sh", "-c", _RUN, "sh", submit, *_as_arguments(settings), *submitted]

    def _answer(self) -> tuple[int, str] | None:
        """Waits for the port and the secret. Returns None if the JVM has ended."""
        gateway = Path(self._directory.name) / "gateway"
        while not gateway.exists():
            if self.process.poll() is not None:
                return None
            time.sleep(POLL_SECONDS)
        # `org.apache.spark.api.python.PythonGatewayServer` writes the port and the length of the
        # secret, in four bytes each, and the secret. It renames the file when it is complete.
        told = gateway.read_bytes()
        size = int.from_bytes(told[4:8])
        return int.from_bytes(told[:4]), told[8 : 8 + size].decode()

    def _read(self, name: str) -> str:
        with suppress(OSError):
            return (Path(self._directory.name) / name).read_text(errors="replace")
        return ""


def _work_out(
    program: str, home: Path, environment: Mapping[str, str], settings: Mapping[str, str]
) -> list[str] | None:
    """Asks Spark's launcher for the command line. Returns it up to the name of the class, or None
    if the launcher fails."""
    launcher = [program, "-XX:TieredStopAtLevel=1", "-cp", f"{home}/jars/*"]
    arguments = ["org.apache.spark.launcher.Main", MAIN, *_as_arguments(settings), SHELL]
    try:
        done = subprocess.run(
            [*launcher, *arguments], env=environment, capture_output=True, check=True
        )
        # The output begins with an empty word. Text before that is a message for the user.
        words = done.stdout.decode().partition(END)[2].lstrip("\n").split(END)
        return words[: words.index(MAIN)]
    except (OSError, subprocess.CalledProcessError, ValueError):
        return None


def _can_be_archived(words: Sequence[str]) -> bool:
    """Whether Java can archive classes with this class path: it must have no folder with files."""
    with suppress(ValueError, IndexError, OSError):
        path = words[words.index("-cp") + 1]
        return not any(has_files(Path(each)) for each in path.split(os.pathsep))
    return False


def _is_refused(log: str) -> bool:
    """Whether the log says that the JVM could not use the archive."""
    return _REFUSED.search(log) is not None


def _as_arguments(settings: Mapping[str, str]) -> list[str]:
    return [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]


def _scala(home: Path) -> str:
    """Returns the version of Scala that Spark was built with, from the names of its files."""
    core = next((home / "jars").glob("spark-core_*.jar"), None)
    return "" if core is None else core.name.removeprefix("spark-core_").partition("-")[0]
