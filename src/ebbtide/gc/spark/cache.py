"""What a JVM starts faster with, in the user's cache directory: its command line, and a class-data
archive, which an earlier JVM wrote when it ended.

An entry has a key made of everything that it depends on. One that is missing, damaged or made for
another Java costs time and never a run.

Sources: XDG Base Directory Specification; JEP 350, dynamic archives.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ebbtide.gc.spark.conf import JAVA_OPTIONS, MEMORY, conf_dir

MAIN: Final = "org.apache.spark.deploy.SparkSubmit"
SHELL: Final = "pyspark-shell"
"""The application that is submitted: a gateway for Python and nothing else."""
FOLDERS_MAX: Final = 3
"""Entries of the cache that stay when another is made. Each takes some 150 MB, and another 350 MB
once the packages that its links lead to are gone."""
ABANDONED_SECONDS: Final = 900
COMMAND_FILE: Final = "command"
JARS: Final = "jars"
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
END: Final = "\0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cache:
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
            key, *words = (self.folder / COMMAND_FILE).read_text().split(END)
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
            made.write(END.join([self.key, *kept, MAIN]))
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


def find_cache(home: Path, java_home: str, settings: Mapping[str, str]) -> Cache | None:
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
    is_shared = not has_files(files) and _can_be_linked(home / JARS, base)
    depends_on = [
        "" if is_shared else str(home),
        str(jars),
        java_home,
        _text(Path(java_home) / "release"),
        str([settings.get(name) for name in _SHAPING_SETTINGS]),
        str([os.environ.get(name) for name in _SHAPING_VARIABLES]),
        *(_text(files / name) for name in _SHAPING_FILES),
    ]
    key = hashlib.sha256(END.join(depends_on).encode()).hexdigest()[:32]
    folder = base / "ebbtide" / "jvm" / key
    return Cache(folder=folder, key=key, home=home, is_shared=is_shared)


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


def has_files(folder: Path) -> bool:
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


def _text(file: Path) -> str:
    """The text of a file of settings; empty without one."""
    with suppress(OSError):
        return file.read_text(errors="replace")
    return ""
