"""Writes objects to files of this machine: to one file, or to files below a directory."""

from __future__ import annotations

import errno
import os
import sys
import unicodedata
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Final

from ebbtide.cli.output import answering
from ebbtide.errors import InvalidInput
from ebbtide.escaping import shown
from ebbtide.ids import new_id

NAME_BYTES_MAX: Final = 255
"""The most bytes of a part of a path, on the file systems of Linux."""
PATH_BYTES_MAX: Final = 4095
"""The most bytes of a path that Linux accepts."""
SHOWN_MAX: Final = 5
CHARACTERS_SHOWN: Final = 200


def save(pieces: Iterable[bytes], target: Path) -> None:
    """Writes a file. It has a temporary name until it is complete and checked. Raises OSError with
    the file's name."""
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(target))
    # A unique and short name: the file's own name can already have the greatest length.
    partial = target.with_name(f".{new_id()}.partial")
    try:
        with partial.open("wb") as file:
            for piece in pieces:
                file.write(piece)
        partial.replace(target)
    except OSError as error:
        if error.errno is None:
            raise
        # The error of a full disk has no name, and the temporary name means nothing to the user.
        raise OSError(error.errno, error.strerror, str(target)) from error
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)


def write_out(pieces: Iterable[bytes]) -> None:
    """Writes the bytes to stdout."""
    for piece in pieces:
        rest = memoryview(piece)
        while rest:
            with answering():
                # Without a buffer (PYTHONUNBUFFERED), a write can be short: the next one says why.
                rest = rest[sys.stdout.buffer.write(rest) :]
    with answering():
        sys.stdout.buffer.flush()


def files_below(directory: Path, paths: Sequence[str]) -> list[Path]:
    """Returns the file below a directory for each object's path. Creates no file.

    Raises InvalidInput `invalid_path` if not all paths can be files there side by side. The message
    names the paths that cannot, and the detail `paths` has all of them.
    """
    known = set(paths)
    reasons: dict[str, str] = {}
    for path in paths:
        reason = _obstacle(directory, path, known)
        if reason is not None:
            reasons[path] = reason
    if reasons:
        listed = "; ".join(
            f"{shown(path)} {reason}" for path, reason in list(reasons.items())[:SHOWN_MAX]
        )
        more = len(reasons) - SHOWN_MAX
        raise InvalidInput(
            "invalid_path",
            f"not all paths can be files below {str(directory)[:CHARACTERS_SHOWN]}: {listed}"
            + (f"; and {more} more" if more > 0 else "")
            + ". Nothing was written. Download each of these files alone, under another name",
            paths=list(reasons),
        )
    return [directory.joinpath(*path.split("/")) for path in paths]


def _obstacle(directory: Path, path: str, known: set[str]) -> str | None:
    """Returns why a path cannot be a file below the directory beside the other paths, or None."""
    parts = path.split("/")
    if any(part in ("", ".", "..") for part in parts):
        return "has a part that cannot be the name of a file"
    if any(unicodedata.category(character) == "Cc" for character in path):
        # Such a name could change what a terminal shows, or end a line of a list of files.
        return "has a control character"
    if any(len(os.fsencode(part)) > NAME_BYTES_MAX for part in parts):
        return f"has a part of more than {NAME_BYTES_MAX} bytes"
    target = directory.joinpath(*parts)
    # A file is written with a temporary name first, which may be longer.
    if len(os.fsencode(target.parent.absolute())) + NAME_BYTES_MAX + 1 > PATH_BYTES_MAX:
        return "is too long"
    for outer in map(str, PurePosixPath(path).parents[:-1]):
        if outer in known:
            return f"lies in {shown(outer)}, which is a file itself"
    if target.is_dir():
        return "is a directory there"
    for place in target.parents[: len(parts)]:
        if place.exists() and not place.is_dir():
            return f"lies in {str(place)[:CHARACTERS_SHOWN]!r}, which is a file there"
    return None
