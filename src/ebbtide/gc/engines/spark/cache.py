"""Caches two things that make a JVM start faster: its command line and a class-data archive.

The cache is in the user's cache directory. A JVM writes the archive when it ends, for later ones.
The key of an entry is made of everything that the entry depends on. An entry that is missing,
damaged or made for another Java costs time, but never makes a run fail.

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

from ebbtide.gc.engines.spark.conf import JAVA_OPTIONS, MEMORY, conf_dir

MAIN: Final = "org.apache.spark.deploy.SparkSubmit"
SHELL: Final = "pyspark-shell"
"""The submitted application: a gateway for Python and nothing else."""
FOLDERS_MAX: Final = 3
"""The maximum number of entries. An entry takes some 150 MB. It takes another 350 MB after the
packages that its hard links lead to were removed."""
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
"""Settings and variables that the launcher or the JVM turns into options or a class path."""
_SHAPING_FILES: Final = ("spark-defaults.conf", "java-opts")
END: Final = "\0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cache:
    """An entry of the cache: its key, and its folder, which exists once it has content.

    Java accepts an archive only with the class path that it was made with. If `is_shared`, the
    class path names hard links in this folder. The same jars then have the same path in all virtual
    environments, and stay while a JVM reads them.
    """

    folder: Path
    key: str
    home: Path
    is_shared: bool

    def command(self, java: str) -> list[str] | None:
        """Returns the cached command line up to the name of the class, or None without a valid
        one."""
        if not self._is_own():
            return None
        with suppress(OSError, UnicodeDecodeError):
            key, *words = (self.folder / COMMAND_FILE).read_text().split(END)
            if key == self.key and words[-1:] == [MAIN] and words[0] == java and self._has_jars():
                return words[:-1]
        return None

    def keep(self, command: Sequence[str]) -> list[str]:
        """Caches a command line, and returns it with the class path to use. Raises OSError or
        ValueError if it cannot be cached."""
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
        """Returns the path of the class-data archive, or None without a complete one."""
        if self._is_own():
            for file in self.folder.glob("classes-*.jsa"):
                with suppress(OSError):
                    if file.name == f"classes-{file.stat().st_size}.jsa":
                        os.utime(self.folder)  # `tidy` removes the oldest folders
                        return file
        return None

    def make_archive(self) -> Path | None:
        """Returns the file to write an archive to.

        Returns None if no archive can be written here, or while another JVM is going to write one.
        To write an archive takes as long as a short run.
        """
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
        """Removes the archive, so that the next JVM writes a new one."""
        with suppress(OSError):
            for file in self.folder.glob("classes-*.jsa"):
                file.unlink()

    def forget(self) -> None:
        """Removes the entry."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def tidy(self) -> None:
        """Removes the oldest entries, and the files of JVMs that were killed while they wrote."""
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
        """Makes the hard links, unless they exist: another starting JVM may still read the existing
        ones. After Spark has started, its JVM has all jars open, so that links may be removed."""
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
        """Returns the class path with the links in place of the jars. The folder of settings is
        left out, because it has no files."""
        own, linked = f"{self.home / JARS}/", f"{self.folder / JARS}/"
        entries = (each for each in path.split(os.pathsep) if Path(each) != conf_dir(self.home))
        return os.pathsep.join(
            linked + each.removeprefix(own) if each.startswith(own) else each for each in entries
        )

    def _is_own(self) -> bool:
        """Whether only this user can write the folder. Its content is executed."""
        try:
            status = self.folder.stat()
        except OSError:
            return False
        return status.st_uid == os.geteuid() and not status.st_mode & 0o022


def find_cache(home: Path, java_home: str, settings: Mapping[str, str]) -> Cache | None:
    """Returns the cache entry of JVMs with these settings.

    Returns None if only Spark's scripts can find the command line: with a `spark-env.sh` or with
    arguments in PYSPARK_SUBMIT_ARGS, which may set anything. Returns None also without a cache
    directory, and if Spark's jars cannot be read.
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
    """Returns name, size and date of each jar file in a folder's `jars`, or None if it cannot be
    read."""
    try:
        with os.scandir(folder / JARS) as files:
            seen = [(each.name, each.stat()) for each in files if each.name.endswith(".jar")]
    except OSError:
        return None
    return sorted((name, status.st_size, status.st_mtime_ns) for name, status in seen)


def _can_be_linked(jars: Path, cache: Path) -> bool:
    """Whether hard links to these files can be made in the cache. Both must be on one file system,
    and the files must belong to the user: with `fs.protected_hardlinks`, Linux refuses other
    files."""
    there = next((each for each in (cache, *cache.parents) if each.exists()), None)
    if there is None:
        return False
    owners = {os.geteuid(), jars.stat().st_uid} if os.geteuid() else set()
    return there.stat().st_dev == jars.stat().st_dev and len(owners) < 2


def has_files(folder: Path) -> bool:
    """Whether a folder has files. True if it cannot be read."""
    try:
        return folder.is_dir() and any(folder.iterdir())
    except OSError:
        return True


def _cache_home() -> Path | None:
    """Returns the user's cache directory (XDG Base Directory Specification); None without a
    home."""
    named = os.environ.get("XDG_CACHE_HOME", "")
    if Path(named).is_absolute():
        return Path(named)
    with suppress(RuntimeError):
        return Path.home() / ".cache"
    return None


def _text(file: Path) -> str:
    """Returns the text of a settings file, or an empty text if it cannot be read."""
    with suppress(OSError):
        return file.read_text(errors="replace")
    return ""
