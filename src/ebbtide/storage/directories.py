"""Opens directories below a root, and never follows a symbolic link.

Each step is relative to an open directory. If somebody replaces a directory by a link between a
check and a delete, the delete therefore stays below the root.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_ATTEMPTS_MAX: Final = 1_000


class NotInsideError(NotADirectoryError):
    """A component of a directory's path is a symbolic link, which may lead out of the root."""


@contextmanager
def opened(root: str, segments: Sequence[str]) -> Iterator[int]:
    """Yields a descriptor of the directory at `segments` below `root`, and closes it at the end.

    Raises FileNotFoundError if the directory does not exist, NotInsideError if a component is a
    symbolic link, and NotADirectoryError if a component is a file.
    """
    descriptor = os.open(root, _DIRECTORY)
    try:
        for segment in segments:
            descriptor = _step(descriptor, segment)
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def opened_chain(root: str, segments: Sequence[str], *, make: bool = True) -> Iterator[list[int]]:
    """Yields descriptors of the root and of each directory down to `segments`.

    Makes missing directories if `make` is true. Otherwise a missing directory raises
    FileNotFoundError. So does a directory that is removed between its making and its opening: a
    sweep removes empty directories.
    """
    if make:
        Path(root).mkdir(parents=True, exist_ok=True)
    chain = [os.open(root, _DIRECTORY)]
    try:
        for segment in segments:
            if make:
                with suppress(FileExistsError):
                    os.mkdir(segment, dir_fd=chain[-1])
            chain.append(_open(chain[-1], segment))
        yield chain
    finally:
        for descriptor in chain:
            os.close(descriptor)


def create_exclusively(
    root: str, segments: Sequence[str], name: str, *, make: bool = True
) -> tuple[list[int], int]:
    """Makes a new file `name` in the directory at `segments`, and the directories that it needs.

    Returns descriptors of the chain of directories and of the file; the caller closes all. Until
    the file exists, its directory is empty and may be removed: then the attempt is repeated. If
    `make` is false, a missing directory raises FileNotFoundError.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    attempt = 0
    while True:
        try:
            with opened_chain(root, segments, make=make) as chain:
                file = os.open(name, flags, 0o666, dir_fd=chain[-1])
                return [os.dup(descriptor) for descriptor in chain], file
        except FileNotFoundError:
            attempt += 1
            if not make or attempt == _ATTEMPTS_MAX:
                raise


def remove_empty(root: str, segments: Sequence[str], *, keep_depth: int) -> None:
    """Removes the directory at `segments` and those above it, as long as they are empty.

    Directories that are `keep_depth` or fewer levels below the root stay. The kernel itself checks
    that a directory is empty, so that a directory that gets a file meanwhile stays too.
    """
    for depth in range(len(segments), keep_depth, -1):
        try:
            with opened(root, segments[: depth - 1]) as parent:
                os.rmdir(segments[depth - 1], dir_fd=parent)
        except OSError:
            # Not empty, gone already, or not permitted. An empty directory does no harm.
            return


def _step(parent: int, segment: str) -> int:
    """Opens a directory in `parent`, and closes `parent` unless there was an error."""
    descriptor = _open(parent, segment)
    os.close(parent)
    return descriptor


def _open(parent: int, segment: str) -> int:
    try:
        return os.open(segment, _DIRECTORY, dir_fd=parent)
    except NotADirectoryError:
        if stat.S_ISLNK(os.stat(segment, dir_fd=parent, follow_symlinks=False).st_mode):
            raise NotInsideError(f"{segment!r} is a symbolic link") from None
        raise
