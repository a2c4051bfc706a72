"""Packs this program and its requirements into one archive, for executors that lack them.

The archive contains the distributions that are installed here, so that driver and executors run the
same code. It does not contain Spark and Py4J, which a cluster has.
"""

from __future__ import annotations

import platform
import sys
import tarfile
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from importlib.util import cache_from_source
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import ebbtide
from ebbtide.errors import Failed

PROGRAM: Final = "ebbtide"
SPARK: Final = frozenset({"pyspark", "py4j"})
EXTRAS: Final = ("icechunk", "lakefs", "s3", "spark")
"""The extras that executors use. They have no database and no server."""
NO_CODE: Final = frozenset({"..", "__pycache__", "tests", "include"})
"""Parts of the paths of files that are never imported: programs, tests, headers for C."""
DIRECTORY: Final = "ebbtide_environment"
"""The directory to which executors unpack the archive, within their working directory."""


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
