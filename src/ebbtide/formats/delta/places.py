"""Where the files of tables are: URIs in logs, and addresses on the storage.

A path in a log is a URI: it is decoded exactly once. It is relative to the table, or absolute, in
any spelling of the root. A URI that is outside the root is not the address of a file here.

Source: Delta Transaction Log Protocol, "Add File and Remove File".
"""

from __future__ import annotations

import os
import posixpath
import re
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc

from ebbtide.arrow import around, texts
from ebbtide.errors import Refused
from ebbtide.formats.locations import FAMILIES, LOCAL

_ABSOLUTE: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(/.*)", re.DOTALL)
_UNUSUAL: Final = r"%|:|\A/|//|(?:\A|/)\.{1,2}(?:/|\z)"
"""Matches paths that are not the rest of an address as they are."""
_Z85: Final = (
    "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
)
_Z85_CHARACTERS: Final = 20
"""The length of a UUID in Z85."""


class DamagedLogError(Exception):
    """A file of a log that is not as its writer left it, or that breaks the protocol."""


@dataclass(frozen=True)
class DeltaPlaces:
    """The root of the storage, whose `url` is normalized."""

    url: str

    @cached_property
    def _root(self) -> tuple[str, str, str]:
        """The scheme, the bucket, and the path, which begins with a slash and ends without one."""
        scheme, _, rest = self.url.partition(":")
        bucket, _, path = rest.removeprefix("//").partition("/")
        found = unquote(path) if scheme == LOCAL else path
        return scheme, bucket, f"/{found}".rstrip("/")

    def addresses(self, table: str, paths: pa.StringArray) -> pa.StringArray:
        """Returns the address of each path of a table's log. `table` is the prefix of the table."""
        unusual = pc.match_substring_regex(paths, _UNUSUAL)
        plain: Any = around(table, paths).combine_chunks() if table else paths
        if not pc.any(unusual).as_py():
            found_all: pa.StringArray = plain
            return found_all
        found = [self.address(table, each) for each in texts(paths.filter(unusual))]
        answer: pa.StringArray = pc.replace_with_mask(plain, unusual, pa.array(found, pa.string()))
        return answer

    def address(self, table: str, path: str) -> str:
        """Returns the address of a path of a table's log, or its URL if it is outside the root.

        Raises Refused `prefix_mismatch` if the path may name the root in another way, and
        DamagedLogError.
        """
        match = _ABSOLUTE.fullmatch(path)
        if match is None and not path.startswith("/"):
            folder, slash, name = path.rpartition("/")
            return self._within(f"{table}{_decoded(folder)}{slash}{_decoded(name)}")
        scheme, bucket, root = self._root
        if match is not None:
            given = match[1].lower()
            scheme, rest = FAMILIES.get(given, given), match[2]
            if rest.startswith("//"):
                authority, _, rest = rest[2:].partition("/")
                bucket, path = authority.partition("@")[0], f"/{rest}"
            else:
                bucket, path = "", rest
        place = _decoded(path)
        if scheme == LOCAL:
            bucket, place = "", posixpath.normpath(re.sub("/{2,}", "/", place))
        if (scheme, bucket) == self._root[:2]:
            inside = _below(place, root)
            if inside is None and scheme == LOCAL:
                # The log may spell the root by way of a symbolic link.
                inside = _below(_real(posixpath.dirname(place)) + "/" + _name(place), root)
            if inside is not None:
                return inside
        elif scheme != self._root[0] and root and _below(place, root) is not None:
            raise Refused(
                "prefix_mismatch",
                f"the path {path[:300]!r} in the log of {self.url}/{table} may lie in the root and "
                "is spelled in another way: name the root with the scheme that the log has",
            )
        return f"{scheme}://{bucket}{place}"

    def _within(self, address: str) -> str:
        # In a directory, `a//b` is `a/b`; for an object store they are two keys.
        if self._root[0] != LOCAL:
            return address
        found = posixpath.normpath(address)
        return found if not found.startswith("../") else f"file://{self._root[2]}/{address}"

    def vector_address(self, table: str, storage: str, vector: str) -> str | None:
        """Returns the address of the file of a deletion vector, or None if it has no file. Raises
        as `address` does, and Refused `unknown_format_version` for an unknown kind of storage."""
        if storage == "i":
            return None
        if storage == "p":
            return self.address(table, vector)
        if storage != "u":
            raise unknown_vector(f"{self.url}/{table}", storage)
        prefix, code = vector[:-_Z85_CHARACTERS], vector[-_Z85_CHARACTERS:]
        return f"{table}{prefix}{'/' if prefix else ''}deletion_vector_{_uuid(code)}.bin"


def unknown_vector(where: str, storage: str) -> Refused:
    """Returns the refusal of a table with a deletion vector that is stored in an unknown way."""
    return Refused(
        "unknown_format_version",
        f"{where} has a deletion vector whose storage type {storage[:20]!r} is unknown: use a "
        "newer version of this program",
    )


@lru_cache(maxsize=100_000)
def _decoded(path: str) -> str:
    if "%" not in path:
        return path
    try:
        return unquote(path, errors="strict")
    except UnicodeDecodeError as error:
        raise DamagedLogError(f"the path {path[:200]!r} is not encoded as UTF-8") from error


@lru_cache(maxsize=10_000)
def _real(folder: str) -> str:
    return os.path.realpath(folder)


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _below(place: str, root: str) -> str | None:
    return place.removeprefix(f"{root}/") if place.startswith(f"{root}/") else None


def _uuid(code: str) -> str:
    data = b""
    for start in range(0, _Z85_CHARACTERS, 5):
        number = 0
        for character in code[start : start + 5]:
            digit = _Z85.find(character)
            if digit < 0:
                raise DamagedLogError(f"{code[:40]!r} is not the id of a deletion vector")
            number = number * 85 + digit
        if len(code) != _Z85_CHARACTERS or number >= 1 << 32:
            raise DamagedLogError(f"{code[:40]!r} is not the id of a deletion vector")
        data += number.to_bytes(4, "big")
    text = data.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
