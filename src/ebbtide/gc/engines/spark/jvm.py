"""Finds a Java, and starts the JVM of Spark with PySpark's own script `spark-submit`.

The JVM maps its classes from an archive, if there is one, which takes less time. Otherwise it
writes one when it ends, for later ones, to the user's cache directory. The key of the archive's
folder is made of everything that it depends on. An archive that is missing, damaged or made for
another Java costs time, but never makes a run fail.

Not for: the settings of a session, which `session` chooses. This module does not import PySpark:
the import takes long, and the JVM can start at the same time.

Sources: `pyspark.java_gateway.launch_gateway`, which starts the JVM in the same way and waits; JEP
350, dynamic archives; XDG Base Directory Specification.
"""

from __future__ import annotations

import hashlib
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
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ebbtide.errors import Failed
from ebbtide.gc.engines.spark.conf import MASTER, conf_dir, is_local, spark_home

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
        """Starts the JVM with Spark's `settings`. `short`: for runs of up to a few minutes."""
        self._settings = dict(settings)
        self._is_shown = is_shown
        self._short = short
        self._home = spark_home()
        self._java_home = java_home
        self._directory = tempfile.TemporaryDirectory(prefix="ebbtide-spark-")
        self._archive = find_class_archive(self._home, java_home, settings)
        self.writes_archive = False
        self._has_answered = False
        self.process = self._start()

    def wait(self) -> tuple[int, str]:
        """Waits until the JVM answers. Returns its port on the loopback address, and the secret to
        connect with.

        Raises Failed `spark_error` with the reason if the JVM ends before that.
        """
        answer = self._answer()
        if answer is None and self._archive is not None:
            # The archive, or the options for it, may be the reason.
            self._archive.forget()
            self._archive = None
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
        if self._archive is not None and _REFUSED.search(self._read("archive.log")):
            self._archive.forget()
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
        directory, archive = Path(self._directory.name), self._archive
        options = [SHORT_OPTION] if self._short else []
        command = [_RUN, "sh"]
        self.writes_archive = False
        if archive is not None and (file := archive.file()):
            options += [
                f"-XX:SharedArchiveFile={file}",
                "-Xshare:auto",
                "-XX:+VerifySharedSpaces",  # costs no measurable time
                f"-Xlog:cds=info:file={directory / 'archive.log'}",
            ]
        elif archive is not None and (made := archive.make()):
            options.append(f"-XX:ArchiveClassesAtExit={made}")
            command = [_RUN_AND_MAKE, "sh", str(made), str(archive.folder)]
            self.writes_archive = True
        command.append(str(self._home / "bin" / "spark-submit"))
        for name, value in self._settings.items():
            command += ["--conf", f"{name}={value}"]
        command += shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", "pyspark-shell"))
        with (directory / "output").open("wb") as output:
            return subprocess.Popen(
                ["/bin/sh", "-c", *command],
                stdin=subprocess.PIPE,
                # Standard output is for the results of this program.
                stdout=2 if self._is_shown else output,
                stderr=2 if self._is_shown else output,
                env=self._environment(shlex.join(options)),
            )

    def _environment(self, options: str) -> dict[str, str]:
        """Returns the variables of the JVM. `options` are options of Java."""
        given = os.environ | {
            "SPARK_HOME": str(self._home),
            "JAVA_HOME": self._java_home,
            "SPARK_CONNECT_MODE": "0",
            "_PYSPARK_DRIVER_CONN_INFO_PATH": str(Path(self._directory.name) / "gateway"),
            # Spark's script puts these options before those of settings. The last one counts.
            "SPARK_SUBMIT_OPTS": f"{options} {os.environ.get('SPARK_SUBMIT_OPTS', '')}",
        }
        if is_local(self._settings.get(MASTER, "")):
            # Spark looks up this machine's name before it reads any setting, and ends if the name
            # has no address. With this variable it does not.
            given.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        return given

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


FOLDERS_MAX: Final = 3
"""The maximum number of archives, each of some 150 MB."""
ABANDONED_SECONDS: Final = 900
_OPTIONS: Final = re.compile(
    r"spark\.driver\.(memory|.*JavaOptions)"
    r"|SPARK_(DRIVER_MEMORY|MEM|SUBMIT_OPTS)|.*JAVA_(TOOL_)?OPTIONS"
)
_CLASS_PATH: Final = re.compile(
    r"spark\.driver\.(e|defaultE)xtraClassPath|PYSPARK_SUBMIT_ARGS"
    r"|SPARK_(DIST_CLASSPATH|PREPEND_CLASSES|TESTING)|(HADOOP|YARN)_CONF_DIR"
)
"""Settings and variables from which Spark's scripts or the JVM take options, or a class path."""


@dataclass(frozen=True, slots=True)
class ClassArchive:
    """The folder of an archive, which need not exist yet."""

    folder: Path

    def file(self) -> Path | None:
        """Returns the archive, or None without a complete one."""
        with suppress(OSError):
            for file in self.folder.glob("classes-*.jsa"):
                if file.name == f"classes-{file.stat().st_size}.jsa":
                    with suppress(OSError):  # an image can be read-only
                        os.utime(self.folder)  # `_tidy` removes the oldest folders
                    return file
        return None

    def make(self) -> Path | None:
        """Returns the file to write an archive to.

        Returns None if the folder is not writable, or while another JVM is going to write an
        archive. To write one takes as long as a short run.
        """
        made = self.folder / f"making-{os.getpid()}-{time.monotonic_ns()}"
        with suppress(OSError):
            self._tidy()
            if not any(self.folder.glob("making-*")):
                made.touch()
                return made
        return None

    def forget(self) -> None:
        """Removes the archive, so that the next JVM writes a new one."""
        with suppress(OSError):
            for file in self.folder.glob("classes-*.jsa"):
                file.unlink()

    def _tidy(self) -> None:
        """Removes the oldest folders, and the files of JVMs that were killed while they wrote."""
        for file in self.folder.glob("making-*"):
            if time.time() - file.stat().st_mtime > ABANDONED_SECONDS:
                file.unlink()
        others = [each for each in self.folder.parent.iterdir() if each != self.folder]
        others.sort(key=lambda folder: folder.stat().st_mtime, reverse=True)
        for folder in others[FOLDERS_MAX - 1 :]:
            shutil.rmtree(folder, ignore_errors=True)


def find_class_archive(
    home: Path, java_home: str, settings: Mapping[str, str]
) -> ClassArchive | None:
    """Returns the archive of JVMs with these settings, and makes its folder.

    Returns None without a cache directory that only this user can write. Returns None also if the
    class path may have more than Spark's jars. Java accepts an archive only with the class path
    that it was made with, and without folders of files, such as Spark's `conf`.
    """
    chosen = {**os.environ, **settings}
    if any(map(_CLASS_PATH.fullmatch, chosen)) or any(conf_dir(home).glob("*")):
        return None
    files = [*Path(java_home).glob("release"), *sorted((home / "jars").glob("*.jar"))]
    with suppress(OSError, RuntimeError):  # such as: there is no home directory
        depends_on = [
            (str(conf_dir(home)), java_home),
            [(file, (status := file.stat()).st_size, status.st_mtime_ns) for file in files],
            sorted(pair for pair in chosen.items() if _OPTIONS.fullmatch(pair[0])),
        ]
        key = hashlib.sha256(repr(depends_on).encode()).hexdigest()[:32]
        named = Path(os.environ.get("XDG_CACHE_HOME", ""))
        base = named if named.is_absolute() else Path.home() / ".cache"
        folder = base / "ebbtide" / "jvm" / key
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        status = folder.stat()
        if status.st_uid == os.geteuid() and not status.st_mode & 0o022:
            return ClassArchive(folder)
    return None
