"""Finds the files of this machine that a command names, directly or below a directory.

No file is left out silently: a file that cannot be read is an error. `--links` decides about
symbolic links, and they are counted. Not for: reading the files' bytes (`uploading`).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from ebbtide.errors import InvalidInput
from ebbtide.text import count_text


class Links(StrEnum):
    """The treatment of symbolic links below a directory."""

    REFUSE = "refuse"
    FOLLOW = "follow"
    SKIP = "skip"


LinksOption = Annotated[
    Links,
    typer.Option(
        "--links",
        help="Symbolic links below a directory: refuse them, follow them and store a copy of their "
        "targets, or skip them. A link that you name as FILE is followed.",
    ),
]


@dataclass(slots=True)
class DirectoryTree:
    """Files with the paths that they will have, and the numbers of symbolic links that were
    followed or skipped."""

    files: list[tuple[str, Path]] = field(default_factory=list)
    links_followed: int = 0
    links_skipped: int = 0

    def told(self) -> str:
        """Returns the text about the links, or "" if there are none."""
        parts = []
        if self.links_followed:
            parts.append(f"{count_text(self.links_followed, 'symbolic link')} followed")
        if self.links_skipped:
            parts.append(f"{count_text(self.links_skipped, 'symbolic link')} skipped")
        return ", ".join(parts)


def read_tree(sources: Iterable[Path], *, into: str, links: Links) -> DirectoryTree:
    """Returns the named files, and the files below named directories.

    A path consists of `into` and the file's name, or its path in the directory. Raises InvalidInput
    `invalid_argument` for a link if links are refused, and for a link that leads nowhere or to a
    directory around it. Raises the same for a path that is neither a file nor a directory. Raises
    OSError for a directory or file that cannot be read.
    """
    tree = DirectoryTree()
    for source in sources:
        if source.is_dir():
            _add_below(source, into, links, tree)
        else:
            _check_file(source)
            tree.files.append((into + source.name, source))
    tree.files.sort()
    return tree


def _add_below(source: Path, into: str, links: Links, tree: DirectoryTree) -> None:
    """Adds the files below a directory."""
    # Each entry has the identities of the directory itself and of the directories around it.
    waiting: list[tuple[Path, str, tuple[tuple[int, int], ...]]]
    waiting = [(source, into, (_identity(source),))]
    while waiting:
        directory, prefix, inside = waiting.pop()
        with os.scandir(directory) as found:
            entries = list(found)
        for entry in entries:
            path = Path(entry.path)
            if entry.is_symlink() and not _follows(path, links, tree):
                continue
            if not path.is_dir():
                _check_file(path)
                tree.files.append((prefix + entry.name, path))
                continue
            identity = _identity(path)
            if identity in inside:
                raise InvalidInput(
                    "invalid_argument", f"{path} leads to a directory around it: --links skip"
                )
            waiting.append((path, f"{prefix}{entry.name}/", (*inside, identity)))


def _identity(directory: Path) -> tuple[int, int]:
    """Returns the identity of a directory, which is the same for all paths to it."""
    found = directory.stat()
    return found.st_dev, found.st_ino


def _follows(link: Path, links: Links, tree: DirectoryTree) -> bool:
    """Whether a symbolic link is followed. Raises InvalidInput where links are refused."""
    if links is Links.REFUSE:
        raise InvalidInput(
            "invalid_argument",
            f"{link} is a symbolic link: --links follow stores its target, --links skip leaves out "
            "all links",
        )
    if links is Links.SKIP:
        tree.links_skipped += 1
        return False
    tree.links_followed += 1
    return True


def _check_file(path: Path) -> None:
    """Raises the errors of `read_tree` unless the path is a file that may be read."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        what = "is a broken link" if path.is_symlink() else "does not exist"
        raise InvalidInput("invalid_argument", f"{path} {what}") from None
    if not stat.S_ISREG(mode):
        raise InvalidInput("invalid_argument", f"{path} is neither a file nor a directory")
    path.open("rb").close()
