"""The archive of Spark's classes, from which a JVM starts in less time.

A JVM writes it when it ends, for later ones, to the user's cache directory. The key of its folder
is made of everything that it depends on. An archive that is missing, damaged or made for another
Java costs time, but never makes a run fail.

Sources: XDG Base Directory Specification; JEP 350, dynamic archives.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ebbtide.gc.engines.spark.conf import conf_dir

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
