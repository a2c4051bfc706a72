"""Opening directories under a root without ever following a symbolic link.

Every step is taken relative to an open directory, so that nobody who swaps a directory for a link
between a check and a deletion can lead the deletion out of the root.
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
    """A component of the way to a directory is a symbolic link, which may lead anywhere."""


@contextmanager
def opened(root: str, segments: Sequence[str]) -> Iterator[int]:
    """A descriptor of the directory at `segments` under `root`, closed at the end.

    Raises FileNotFoundError where there is none, NotInsideError where a component is a symbolic
    link, NotADirectoryError where one is a file.
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
    """Descriptors of the root and of each directory down to `segments`, made where missing.

    A directory that is removed between its making and its opening (the sweep removes emptied
    ones) is made again. Without `make` none is made, and FileNotFoundError where one is missing.
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
    """Make a new file `name` in the directory at `segments`, and the directories that it needs.

    Returns descriptors of the chain of directories, and of the file; the caller closes all.
    Once the file is there its directory is not empty, so that nobody can remove it; until then
    somebody may, and the attempt is made again. Without `make`, see `opened_chain`.
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
    """Remove the directory at `segments` and those above it, as long as they are empty.

    Those `keep_depth` or fewer levels below the root stay. The removal is the kernel's own
    check: a directory in which a file appears meanwhile stays, too.
    """
    for depth in range(len(segments), keep_depth, -1):
        try:
            with opened(root, segments[: depth - 1]) as parent:
                os.rmdir(segments[depth - 1], dir_fd=parent)
        except OSError:
            # Not empty, gone already, or not ours to remove: an empty directory harms nobody.
            return


def _step(parent: int, segment: str) -> int:
    """Open a directory in `parent`, which is closed in any case but an error."""
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
