"""Objects as files of this machine: one, or all below a directory."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from ebbtide.errors import InvalidInput


def save(pieces: Iterable[bytes], target: Path) -> None:
    """Write a file: under another name until all of it is there, and checked."""
    partial = target.with_name(target.name + ".partial")
    try:
        with partial.open("wb") as file:
            for piece in pieces:
                file.write(piece)
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


def write_out(pieces: Iterable[bytes]) -> None:
    """Write the bytes to stdout."""
    for piece in pieces:
        sys.stdout.buffer.write(piece)
    sys.stdout.buffer.flush()


def file_below(directory: Path, path: str) -> Path:
    """The file for an object's path, below a directory.

    Raises InvalidInput `invalid_path` for what no file can be called.
    """
    parts = path.split("/")
    if any(part in ("", ".", "..") for part in parts):
        raise InvalidInput(
            "invalid_path", f"{path[:100]!r} can be no file of this machine: download it by itself"
        )
    return directory.joinpath(*parts)
