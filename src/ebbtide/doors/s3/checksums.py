"""The checksums that S3's clients send with a body, by header or trailer.

Source: "Checking object integrity" in the user guide of Amazon S3. A value is base64 of the
checksum's bytes, the most significant one first.
"""

from __future__ import annotations

import base64
import hashlib
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

from ebbtide.doors.s3.errors import Markup, element

PREFIX: Final = "x-amz-checksum-"
_VALUE: Final = re.compile(r"([A-Za-z0-9+/]+={0,2})(-[0-9]{1,5})?")


class Summing(Protocol):
    """A checksum that is being computed."""

    def update(self, data: bytes, /) -> None:
        """Adds bytes."""

    def digest(self) -> bytes:
        """Returns the checksum of all bytes up to now."""


class _Crc:
    """A cyclic redundancy check. `step` continues from an earlier value."""

    def __init__(self, step: Callable[[bytes, int], int], size_bytes: int) -> None:
        self._step = step
        self._size_bytes = size_bytes
        self._value = 0

    def update(self, data: bytes, /) -> None:
        """Adds bytes."""
        self._value = self._step(data, self._value)

    def digest(self) -> bytes:
        """Returns the checksum of all bytes up to now."""
        return self._value.to_bytes(self._size_bytes, "big")


def _crc32c(data: bytes, value: int) -> int:
    from awscrt import checksums  # slow to load, and few clients need it

    return int(checksums.crc32c(data, value))


def _crc64nvme(data: bytes, value: int) -> int:
    from awscrt import checksums  # slow to load, and few clients need it

    return int(checksums.crc64nvme(data, value))


ALGORITHMS: Final[Mapping[str, Callable[[], Summing]]] = {
    "crc32": lambda: _Crc(zlib.crc32, 4),
    "crc32c": lambda: _Crc(_crc32c, 4),
    "crc64nvme": lambda: _Crc(_crc64nvme, 8),
    "sha1": lambda: hashlib.sha1(usedforsecurity=False),
    "sha256": hashlib.sha256,
}
"""Maps the name of each algorithm, as in its header, to a function that begins a checksum."""


def encoded(summing: Summing) -> str:
    """Returns a checksum as S3 writes it."""
    return base64.b64encode(summing.digest()).decode()


def composite(summings: Sequence[Summing], algorithm: str) -> str:
    """Returns the checksum of the checksums of parts. It ends in the number of parts."""
    whole = ALGORITHMS[algorithm]()
    for each in summings:
        whole.update(each.digest())
    return f"{encoded(whole)}-{len(summings)}"


def is_composite(value: str) -> bool:
    """Whether a checksum is one of the checksums of parts."""
    return "-" in value


def type_of(found: Mapping[str, str]) -> str:
    """Returns S3's name for the type of checksums, given by algorithm."""
    return "COMPOSITE" if any(map(is_composite, found.values())) else "FULL_OBJECT"


def elements(found: Mapping[str, str]) -> list[Markup]:
    """Returns the XML elements of checksums, given by algorithm, and of their type."""
    each = [element(f"Checksum{name.upper()}", value) for name, value in found.items()]
    return [*each, element("ChecksumType", type_of(found))] if each else []


def is_valid(algorithm: str, value: str) -> bool:
    """Whether a text has the form of a checksum. Users of the API can write any metadata."""
    match = _VALUE.fullmatch(value)
    if algorithm not in ALGORITHMS or match is None:
        return False
    return len(match[1]) == len(encoded(ALGORITHMS[algorithm]()))


def of_hex(digest: str) -> str:
    """Returns a hexadecimal digest as S3 writes checksums."""
    return base64.b64encode(bytes.fromhex(digest)).decode()
