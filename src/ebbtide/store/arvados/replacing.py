"""Changes of a manifest by `replace_files` and `replace_segments`.

Not for: collections, and the signatures of what is copied (`collections`). Source: Arvados's
documentation, "collections", sections "Using replace_files" and "Using replace_segments".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from ebbtide.errors import InvalidInput
from ebbtide.escaping import shown
from ebbtide.store.arvados.files import (
    DEPTH_MAX,
    Directory,
    File,
    Node,
    Piece,
    directory_of,
    find,
    read_files,
    write_files,
)

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
