"""The files of a manifest as a tree, and a tree as a manifest.

A file is a list of pieces of blocks. Each piece names its block by the locator that the manifest
gave, with its hints. Not for: requests that change a tree (`replacing`). Source: Arvados's
documentation, "Manifest format".
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from ebbtide.errors import InvalidInput
from ebbtide.escaping import shown
from ebbtide.store.arvados.manifests import EMPTY_BLOCK, parse_manifest, segments_of

_TO_ESCAPE: Final = re.compile("[\\x00-\\x20\\x7f:\\\\\udc80-\udcff]")
_EMPTY_DIRECTORY: Final = f"{EMPTY_BLOCK} 0:0:\\056"
"""What follows the name of a stream that has nothing."""


@dataclass(frozen=True, slots=True)
class Piece:
    """`length` bytes of a block, from `offset` on."""

    locator: str
    offset: int
    length: int

    @property
    def block(self) -> str:
        """The block as `MD5+SIZE`."""
        return "+".join(self.locator.split("+")[:2])

    @property
    def block_bytes(self) -> int:
        """The size of the block."""
        return int(self.locator.split("+")[1])


@dataclass(slots=True)
class File:
    """A file: its pieces, in order."""

    pieces: list[Piece] = field(default_factory=list)


Directory: TypeAlias = "dict[str, Node]"
Node: TypeAlias = "File | Directory"
DEPTH_MAX: Final = 200
"""Parts of a path at most: trees are walked by recursion."""


def read_files(text: str) -> Directory:
    """Returns the files of a manifest. Raises InvalidInput `invalid_manifest`, also if one path is
    both a file and a directory."""
    parse_manifest(text)
    root: Directory = {}
    for line in text.split("\n")[:-1]:
        stream = segments_of(line)
        for position, length, path in stream.files:
            parent, name = directory_of(root, path), path[-1]
            if name == "." and parent is not None:  # how a directory without files is written
                continue
            file = None if parent is None else parent.setdefault(name, File())
            if not isinstance(file, File):
                raise _no_tree(path)
            file.pieces += _pieces(stream.locators, position, length)
    return root


def write_files(root: Directory) -> str:
    """Returns the manifest of a tree: one line for each directory that has files, and for each that
    is empty."""
    return "".join(_lines(root, "."))


def find(root: Directory, path: str) -> Node | None:
    """Returns a copy of the file or directory at a path, or None. An empty path is the root.

    Empty parts and `.` are left out, but a file has none behind its name.
    """
    node: Node = root
    for part in path.split("/"):
        if isinstance(node, File):
            return None
        if part in ("", "."):
            continue
        if part not in node:
            return None
        node = node[part]
    return _copied(node)


def directory_of(root: Directory, path: Sequence[str]) -> Directory | None:
    """Returns the directory of a path, which is made if it does not exist; None if a part of the
    path is a file, or if it has too many parts."""
    node = root
    for part in path[:-1]:
        inner = node.setdefault(part, {})
        if isinstance(inner, File):
            return None
        node = inner
    return node if len(path) <= DEPTH_MAX else None


def _copied(node: Node) -> Node:
    """Returns a copy whose directories can be changed. Files never are."""
    if isinstance(node, File):
        return node
    return {name: _copied(inner) for name, inner in node.items()}


def _pieces(locators: Sequence[str], position: int, length: int) -> Iterator[Piece]:
    """Yields the pieces of blocks in a row that have these bytes."""
    start, end = 0, position + length
    for locator in locators:
        size = int(locator.split("+")[1])
        first, last = max(position, start), min(end, start + size)
        if first < last:
            yield Piece(locator, first - start, last - first)
        start += size


def _lines(node: Directory, stream: str) -> Iterator[str]:
    if not node and stream != ".":
        yield f"{stream} {_EMPTY_DIRECTORY}\n"
    names = sorted(node, key=_bytes)
    files = [(name, found) for name in names if isinstance(found := node[name], File)]
    if files:
        yield f"{stream} {_stream(files)}\n"
    for name in names:
        if not isinstance(found := node[name], File):
            yield from _lines(found, f"{stream}/{_escaped(name)}")


def _stream(files: Sequence[tuple[str, File]]) -> str:
    """Returns a line's blocks and files. A block that follows itself is written once."""
    locators: list[str] = []
    segments: list[tuple[str, int, int]] = []  # name, position and length
    end = 0
    for name, file in files:
        last: int | None = None  # where the file's bytes end so far
        for piece in file.pieces:
            if not locators or locators[-1] != piece.locator:
                locators.append(piece.locator)
                end += piece.block_bytes
            position = end - piece.block_bytes + piece.offset
            if position == last:
                _, first, length = segments.pop()
                segments.append((name, first, length + piece.length))
            else:
                segments.append((name, position, piece.length))
            last = position + piece.length
        if not file.pieces:
            segments.append((name, 0, 0))
    written = (f"{first}:{length}:{_escaped(name)}" for name, first, length in segments)
    return " ".join([*(locators or [EMPTY_BLOCK]), *written])


def _escaped(name: str) -> str:
    return _TO_ESCAPE.sub(lambda found: f"\\{ord(found.group()) & 0xFF:03o}", name)


def _bytes(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape")


def _no_tree(path: Sequence[str]) -> InvalidInput:
    return InvalidInput(
        "invalid_manifest",
        f"the manifest has {shown('/'.join(path))} as a file and a directory, or in more than "
        f"{DEPTH_MAX} directories",
    )
