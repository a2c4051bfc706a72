"""The roots of repositories of any format, by the files that only such roots have.

A collector may delete the files below such a root, this program or another one. Not for: the roots
that the database of a store knows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from ebbtide.errors import InvalidInput
from ebbtide.storage import clients
from ebbtide.storage.profiles import options_of

FOLDERS: Final = ("_ebbtide", "_lakefs")
"""Directories that only the roots of repositories have: those of Ebbtide or of runs of Ebbtide,
and the namespaces of lakeFS."""
ICECHUNK_BRANCH: Final = "refs/branch.main/ref.json"
"""A file of each Icechunk repository of version 1."""
ICECHUNK_FILE: Final = "repo"
ICECHUNK_FOLDER: Final = "snapshots"
"""A file and a directory that each Icechunk repository of version 2 has."""

_IMPATIENT: Final = (("connect_timeout", "5s"), ("timeout", "10s"))
_UNKNOWN: Final = (401, 403, 404)
"""The statuses of a place that may not be read, or of a bucket that is not there."""

Has = Callable[[str, bool], bool]
"""Tells whether a place has a file, or if the second argument is true a directory, of a name."""


def root_at_or_above(places: Iterable[str], *, must_know: bool) -> str | None:
    """Returns the URL of a repository's root that is, or contains, one of these places: normalized
    URLs of directories or prefixes. None if there is none.

    What the storage denies to read is not known, and counts as no root. With `must_know`, any other
    error raises Failed `storage_error` or InvalidInput. Without it, nothing is known about a
    storage that fails.
    """
    for each in dict.fromkeys(above for place in places for above in _at_or_above(place)):
        try:
            has = _in_directory(each) if each.startswith("file:") else _in_bucket(each, must_know)
            if _is_root(has):
                return each
        except InvalidInput:
            # The kind of storage is not supported, or its profile is wrong.
            if must_know:
                raise
            return None
        except clients.ERRORS as error:
            if clients.StorageFailure.of(error).status in _UNKNOWN:
                continue
            if not must_know:
                return None
            with clients.translated(each):
                raise
    return None


class ListedRoots:
    """Finds the roots of repositories among names that are listed, in any order."""

    def __init__(self) -> None:
        self._files: set[str] = set()
        self._folders: set[str] = set()

    def find(self, names: Iterable[str]) -> str | None:
        """Returns the path of a root among these names and all earlier ones, ending in a slash or
        "". None if there is none yet."""
        for name in names:
            for folder in FOLDERS:
                before, found, _ = f"/{name}".partition(f"/{folder}/")
                if found:
                    return f"{before}/".removeprefix("/")
            place, last = _split(name)
            if f"/{name}".endswith(f"/{ICECHUNK_BRANCH}"):
                return name.removesuffix(ICECHUNK_BRANCH)
            if last == ICECHUNK_FILE:
                self._files.add(place)
            above, folder = _split(place.removesuffix("/"))
            if folder == ICECHUNK_FOLDER:
                self._folders.add(above)
        return next(iter(self._files & self._folders), None)


def _split(name: str) -> tuple[str, str]:
    """Returns the directory of a name, which ends in a slash or is "", and the last part."""
    directory, slash, last = name.rpartition("/")
    return directory + slash, last


def _is_root(has: Has) -> bool:
    return (
        any(has(folder, True) for folder in FOLDERS)
        or (has(ICECHUNK_FILE, False) and has(ICECHUNK_FOLDER, True))
        or has(ICECHUNK_BRANCH, False)
    )


def _at_or_above(place: str) -> Iterator[str]:
    """Yields a URL and the URLs above it, up to the root of the file system or the bucket."""
    scheme, _, rest = place.partition("://")
    rest = rest.rstrip("/")
    while "/" in rest:
        yield f"{scheme}://{rest}"
        rest = rest.rpartition("/")[0]
    yield f"{scheme}://{rest}" if rest else f"{scheme}:///"


def _in_directory(url: str) -> Has:
    path = Path(unquote(urlsplit(url).path))

    def has(name: str, is_folder: bool) -> bool:
        found = path / name
        try:
            return found.is_dir() if is_folder else found.is_file()
        except PermissionError:
            return False

    return has


def _in_bucket(url: str, is_patient: bool) -> Has:
    scheme, _, rest = url.partition("://")
    bucket, _, prefix = rest.partition("/")
    root = f"{prefix}/" if prefix else ""
    options = options_of(url) if is_patient else (*_IMPATIENT, *options_of(url))
    client = clients.connect(f"{scheme}://{bucket}", options, tries_again=is_patient)

    def has(name: str, is_folder: bool) -> bool:
        if is_folder:
            return bool(next(iter(client.list(f"{root}{name}/", chunk_size=1)), []))
        try:
            client.head(root + name)
        except FileNotFoundError:
            return False
        return True

    return has
