"""The JVM that Spark runs in, started in half of the time that PySpark's own scripts take.

The scripts start one JVM to work out the command line of another; here that command line is kept
(`cache`). The JVM maps its classes from a class-data archive, if there is one, or writes one.

Not for: settings of a session, which `session` chooses. PySpark is not imported here, because that
takes long and the JVM can start meanwhile.

Source: `org.apache.spark.launcher.Main`, which prints a command line.
"""

from __future__ import annotations

import os
import re
import shlex
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
from ebbtide.gc.spark.cache import END, MAIN, SHELL, find_cache, has_files
from ebbtide.gc.spark.conf import JAVA_OPTIONS, spark_home

POLL_SECONDS: Final = 0.005
SHORT_OPTION: Final = "-XX:TieredStopAtLevel=1"
"""The JVM compiles quickly and optimizes little: better for a run of less than some minutes."""

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
        words = done.stdout.decode().partition(END)[2].lstrip("\n").split(END)
        return words[: words.index(MAIN)]
    except (OSError, subprocess.CalledProcessError, ValueError):
        return None


def _can_be_archived(words: Sequence[str]) -> bool:
    """Whether Java can archive classes with this class path: without folders that hold files."""
    with suppress(ValueError, IndexError, OSError):
        path = words[words.index("-cp") + 1]
        return not any(has_files(Path(each)) for each in path.split(os.pathsep))
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
