"""Manifests: the text by which Arvados describes files as pieces of blocks.

Each line is a stream: its name, the locators of its blocks, and its files as `position:size:name`.
Positions count bytes of the blocks in a row. Not for: signatures (`blocks`). Source: Arvados's
documentation, "Manifest format".
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ebbtide.errors import InvalidInput
from ebbtide.store.names import checked_total
from ebbtide.text import shown

BLOCK_BYTES_MAX: Final = 64 * 2**20
"""The size of the largest block, in bytes."""
EMPTY_BLOCK: Final = "d41d8cd98f00b204e9800998ecf8427e+0"
"""The locator of the block without bytes. It needs no data, and no signature."""

_BLOCK: Final = re.compile(r"([0-9a-f]{32}\+(?:0|[1-9][0-9]{0,8}))((?:\+[A-Z][A-Za-z0-9@_-]*)*)")
_SEGMENT: Final = re.compile(r"([0-9]{1,18}):([0-9]{1,18}):(.+)")
_ESCAPE: Final = re.compile(r"\\(?:([0-3][0-7]{2})|(\\)|)")
_CONTROL: Final = re.compile(r"[\x00-\x09\x0b-\x1f\x7f]")


@dataclass(frozen=True, slots=True)
class Manifest:
    """A manifest that was checked.

    `text` has no hints. `locators` maps each block, as `MD5+SIZE`, to the different locators by
    which the original text named it, in the order of their first use.
    """

    text: str
    locators: dict[str, tuple[str, ...]]
    file_count: int
    file_size_total: int

    @property
    def portable_data_hash(self) -> str:
        """The MD5 of the text without hints, and its length in bytes."""
        data = self.text.encode()
        return f"{hashlib.md5(data, usedforsecurity=False).hexdigest()}+{len(data)}"


def parse_manifest(text: str) -> Manifest:
    """Returns a manifest without hints, and the locators of its blocks.

    Raises InvalidInput `invalid_manifest`, with the number of the line, and `invalid_argument` as
    `checked_total` does.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidInput("invalid_manifest", "the manifest is no valid UTF-8") from None
    if text and not text.endswith("\n"):
        raise InvalidInput(
            "invalid_manifest", "the manifest is cut off: its last line does not end with a newline"
        )
    locators: dict[str, dict[str, None]] = {}
    paths: set[str] = set()
    lines = []
    size = 0
    for number, line in enumerate(text.split("\n")[:-1], start=1):
        try:
            stream = _parse_stream(line)
        except ValueError as error:
            raise InvalidInput(
                "invalid_manifest", f"line {number} of the manifest {error}"
            ) from None
        for block, locator in stream.blocks:
            locators.setdefault(block, {})[locator] = None
        paths.update(stream.paths)
        size += stream.size_bytes
        lines.append(stream.stripped + "\n")
    found = {block: tuple(named) for block, named in locators.items()}
    return Manifest("".join(lines), found, len(paths), checked_total(size))


def with_locators(text: str, locator_of: Callable[[str], str]) -> str:
    """Returns a manifest without hints with another locator for each block. `locator_of` gets
    `MD5+SIZE`."""
    return "\n".join(_with_locators(line, locator_of) for line in text.split("\n"))


def _with_locators(line: str, locator_of: Callable[[str], str]) -> str:
    name, *tokens = line.split(" ")
    return " ".join(
        [name, *(locator_of(token) if _BLOCK.fullmatch(token) else token for token in tokens)]
    )


@dataclass(frozen=True, slots=True)
class StreamLine:
    """One line of a manifest that was checked: its locators, with hints; and the position, the
    length and the path of each piece of a file. The path of an empty directory ends in `.`."""

    locators: tuple[str, ...]
    files: tuple[tuple[int, int, tuple[str, ...]], ...]


def segments_of(line: str) -> StreamLine:
    """Returns a line of a manifest in its parts. The manifest was accepted by `parse_manifest`."""
    name, *tokens = line.split(" ")
    above = _unescaped(name).split("/")[1:]
    locators = tuple(itertools.takewhile(_BLOCK.fullmatch, tokens))
    files = []
    for token in tokens[len(locators) :]:
        position, length, path = token.split(":", 2)
        files.append((int(position), int(length), (*above, *_unescaped(path).split("/"))))
    return StreamLine(locators, tuple(files))


@dataclass(frozen=True, slots=True)
class _Stream:
    stripped: str
    blocks: list[tuple[str, str]]  # `MD5+SIZE`, and the whole locator
    paths: set[str]
    size_bytes: int


def _parse_stream(line: str) -> _Stream:
    """Returns one line in its parts. Raises ValueError, whose message follows the line's number."""
    if _CONTROL.search(line):
        raise ValueError("has a control character: write it as a backslash and three octal digits")
    name, *tokens = line.split(" ")
    stream = _stream_name(name)
    blocks: list[tuple[str, str]] = []
    while len(blocks) < len(tokens) and (match := _BLOCK.fullmatch(tokens[len(blocks)])):
        blocks.append((match.group(1), match.group()))
    if not blocks:
        given = f", but {shown(tokens[0])}" if tokens else ""
        raise ValueError(f"has no locator of a block after the name of the stream{given}")
    sizes = [int(block.partition("+")[2]) for block, _ in blocks]
    if max(sizes) > BLOCK_BYTES_MAX:
        raise ValueError(f"has a block of more than {BLOCK_BYTES_MAX} bytes")
    segments = tokens[len(blocks) :]
    if not segments:
        raise ValueError("has no files: write position:size:name behind the blocks")
    length, size_bytes = sum(sizes), 0
    paths = set()
    for segment in segments:
        size, path = _segment(segment, length)
        size_bytes += size
        if path is not None:
            paths.add(f"{stream}/{path}")
    stripped = " ".join([name, *(block for block, _ in blocks), *segments])
    return _Stream(stripped, blocks, paths, size_bytes)


def _segment(token: str, length: int) -> tuple[int, str | None]:
    """Returns size and name of a file's piece. The name is None for an empty directory.

    `length` is the number of bytes of the stream. Raises ValueError.
    """
    match = _SEGMENT.fullmatch(token)
    if match is None:
        raise ValueError(f"has {shown(token)} where position:size:name is expected")
    position, size = int(match.group(1)), int(match.group(2))
    if position + size > length:
        raise ValueError(
            f"has {shown(token)}, which ends behind the {length} bytes of the stream's blocks"
        )
    path = _unescaped(match.group(3))
    if path == "." and size == 0:
        # A directory without files is written as a file of no bytes with this name.
        return 0, None
    _check_parts(path)
    return size, path


def _stream_name(name: str) -> str:
    path = _unescaped(name)
    if path == ".":
        return path
    if not path.startswith("./"):
        raise ValueError(f"begins with {shown(name)}: the name of a stream is . or begins with ./")
    _check_parts(path.removeprefix("./"))
    return path


def _check_parts(path: str) -> None:
    if any(part in ("", ".", "..") for part in path.split("/")) or "\0" in path:
        raise ValueError(f"has the path {shown(path)}: no part of it may be empty, . or ..")


def _unescaped(text: str) -> str:
    """Returns text with its escapes replaced: a backslash and three octal digits, or two
    backslashes. Raises ValueError."""
    if "\\" not in text:
        return text
    octets = _ESCAPE.sub(_unescape, text).encode("utf-8", "surrogateescape")
    # Escapes are bytes. Several of them can be one character.
    return octets.decode("utf-8", "surrogateescape")


def _unescape(match: re.Match[str]) -> str:
    octal, backslash = match.groups()
    if octal is None and backslash is None:
        raise ValueError(
            "has a backslash that begins no escape: write a backslash as \\134, a space as \\040"
        )
    return "\\" if octal is None else bytes([int(octal, 8)]).decode("utf-8", "surrogateescape")
