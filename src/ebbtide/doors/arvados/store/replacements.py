"""Changes of a manifest by `replace_files` and `replace_segments`, on its files as a tree.

A file is a list of pieces of blocks. Each piece names its block by the locator that the manifest
gave, with its hints. Not for: collections, and the signatures of what is copied (`collections`).
Source: Arvados's documentation, "collections", sections "Using replace_files" and "Using
replace_segments"; and "Manifest format".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from ebbtide.doors.arvados.store.manifests import EMPTY_BLOCK, parse_manifest, segments_of
from ebbtide.errors import InvalidInput
from ebbtide.text import shown

CURRENT: Final = "current"
GIVEN: Final = "manifest_text"
_HASH: Final = re.compile(r"[0-9a-f]{32}\+[0-9]{1,18}")
_SEGMENT: Final = re.compile(
    r"([0-9a-f]{32}\+(?:0|[1-9][0-9]{0,8})(?:\+[A-Z][A-Za-z0-9@_-]*)*) ([0-9]{1,9}) ([0-9]{1,9})"
)

TextOf = Callable[[str], str]
"""Returns the signed manifest of a source: `current`, or a portable data hash."""


@dataclass(frozen=True, slots=True)
class Replacements:
    """What a request replaces: `files` has sources by target paths, and `segments` new pieces of
    blocks by the present ones."""

    files: Mapping[str, str] = field(default_factory=dict)
    segments: Mapping[str, str] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.files or self.segments)

    def applied(self, given: str | None, text_of: TextOf) -> str:
        """Returns the manifest that results. `given` is the manifest of the request, if any.

        Raises InvalidInput `invalid_argument`, `invalid_manifest`; and as `text_of` does.
        """
        if self.files:
            given = _files_replaced(self.files, given, text_of)
        if self.segments:
            text = text_of(CURRENT) if given is None else given
            given = _segments_replaced(self.segments, text)
        assert given is not None
        return given


def _files_replaced(files: Mapping[str, str], given: str | None, text_of: TextOf) -> str:
    """Returns the manifest after files and directories were replaced. All sources are as they were
    before the request."""
    if given and not any(source.startswith(f"{GIVEN}/") for source in files.values()):
        raise InvalidInput(
            "invalid_argument",
            "manifest_text would not be used: name it in replace_files, as 'manifest_text/PATH', "
            "or leave it out",
        )
    for target in files:
        _check_target(files, target)
    is_new = "/" in files
    trees: dict[str, Directory] = {GIVEN: read_files(given or "")}

    def tree_of(source: str) -> Directory:
        if source not in trees:
            trees[source] = read_files(text_of(source))
        return trees[source]

    found = {target: _found(source, target, tree_of) for target, source in files.items() if source}
    root: Directory = {} if is_new else tree_of(CURRENT)
    for target in files:
        # What is deleted goes first: a target may lie in a directory that is replaced as a whole.
        if target not in found and target != "/":
            _delete(root, target)
    for target, node in found.items():
        if target == "/":
            return write_files(_directory(node))
        _put(root, target, node)
    return write_files(root)


def _check_target(files: Mapping[str, str], target: str) -> None:
    """Raises InvalidInput `invalid_argument` for a target that is no path, or that lies in another
    one that is not deleted."""
    parts = target.split("/")
    is_path = (
        len(parts) > 1
        and parts[0] == ""
        and not {"", ".", ".."} & set(parts[1:])
        and "\0" not in target
    )
    if target != "/" and not (is_path and _is_text(target)):
        raise InvalidInput(
            "invalid_argument",
            f"{shown(target)} is no target of replace_files: write a path as '/directory/file'",
        )
    above = ["/", *("/".join(parts[:depth]) for depth in range(2, len(parts)))]
    for outer in above if target != "/" else ():
        if files.get(outer):
            raise InvalidInput(
                "invalid_argument",
                f"replace_files has {shown(target)} inside of {shown(outer)}, which it replaces "
                "too: name one of them",
            )


def _found(source: str, target: str, tree_of: Callable[[str], Directory]) -> Node:
    """Returns a copy of what a source names. Raises InvalidInput `invalid_argument`."""
    name, _, path = source.partition("/")
    if name not in (CURRENT, GIVEN) and not _HASH.fullmatch(name):
        raise InvalidInput(
            "invalid_argument",
            f"{shown(source)} is no source for {shown(target)}: write '', or SOURCE/PATH, where "
            "SOURCE is current, manifest_text or a portable data hash",
        )
    node = None if ".." in path.split("/") else find(tree_of(name), path)
    if node is None:
        raise InvalidInput("invalid_argument", f"there is no source {shown(source)}")
    return node


def _delete(root: Directory, target: str) -> None:
    """Deletes a file or a directory. Nothing happens if it does not exist."""
    node: Node | None = root
    *above, name = target.split("/")[1:]
    for part in above:
        node = node.get(part) if isinstance(node, dict) else None
    if isinstance(node, dict):
        node.pop(name, None)


def _put(root: Directory, target: str, found: Node) -> None:
    """Puts a file or a directory at a path, in the place of what is there. Raises InvalidInput
    `invalid_argument` if a part of the path is a file."""
    path = target.split("/")[1:]
    node = directory_of(root, path)
    if node is None:
        raise InvalidInput(
            "invalid_argument",
            f"{shown(target)} lies below a file, or in more than {DEPTH_MAX} directories: delete "
            "the file in the same request, or choose another path",
        )
    node[path[-1]] = found


def _directory(node: Node) -> Directory:
    if isinstance(node, File):
        raise InvalidInput("invalid_argument", "a file cannot replace the directory '/'")
    return node


def _segments_replaced(segments: Mapping[str, str], text: str) -> str:
    """Returns the manifest after pieces of blocks were replaced; the same text if none was.

    If a piece is not there, no piece is replaced by the block that was meant to replace it.
    """
    root = read_files(text)
    wanted = {_piece(old): _piece(new) for old, new in segments.items()}
    present = {_key(piece) for file in _files(root) for piece in file.pieces}
    skipped = {new.locator for old, new in wanted.items() if _key(old) not in present}
    chosen = {_key(old): new for old, new in wanted.items() if new.locator not in skipped}
    for old, new in wanted.items():
        if new.locator not in skipped:
            _check_piece(old, new)
    if not chosen:
        return text
    for file in _files(root):
        file.pieces = [chosen.get(_key(piece), piece) for piece in file.pieces]
    return write_files(root)


def _piece(text: str) -> Piece:
    match = _SEGMENT.fullmatch(text)
    if match is None:
        raise InvalidInput(
            "invalid_argument",
            f"{shown(text)} is no segment of a block: write 'LOCATOR OFFSET LENGTH'",
        )
    return Piece(match.group(1), int(match.group(2)), int(match.group(3)))


def _check_piece(old: Piece, new: Piece) -> None:
    """Raises InvalidInput `invalid_argument` unless the new piece can have the bytes of the old
    one."""
    if old.length != new.length:
        raise InvalidInput(
            "invalid_argument",
            f"replace_segments has a segment of {new.length} bytes for one of {old.length} bytes",
        )
    if new.offset + new.length > new.block_bytes:
        raise InvalidInput(
            "invalid_argument",
            f"replace_segments has a segment that ends behind the {new.block_bytes} bytes of the "
            f"block {new.block}",
        )


def _key(piece: Piece) -> tuple[str, int, int]:
    return piece.block, piece.offset, piece.length


def _files(node: Directory) -> Iterator[File]:
    for inner in node.values():
        if isinstance(inner, File):
            yield inner
        else:
            yield from _files(inner)


def _is_text(target: str) -> bool:
    try:
        target.encode()
    except UnicodeEncodeError:
        return False
    return True


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
