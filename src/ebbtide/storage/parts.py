"""The sizes of the parts of an upload. S3 allows 10,000 parts of at most 5 GiB (Amazon S3 User
Guide, "Amazon S3 multipart upload limits")."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from ebbtide.errors import InvalidInput
from ebbtide.storage.base import Content

PARTS_MAX: Final = 10_000
PART_BYTES_MIN: Final = 16 * 1024 * 1024
PART_BYTES_MAX: Final = 5 * 1024**3
PARTS_AT_ONCE: Final = 4
"""How many parts of PART_BYTES_MIN a process sends at a time. Each upload sends at least one while
it fills the next, so that it needs the memory of two parts."""
_MIB: Final = 1024 * 1024


def size_of(data: Content) -> int | None:
    """Returns the number of bytes left in `data`, or None if only reading it all would tell."""
    if isinstance(data, bytes):
        return len(data)
    if not isinstance(data, io.IOBase) or not data.seekable():
        return None
    here = data.tell()
    end = data.seek(0, io.SEEK_END)
    data.seek(here)
    return end - here


def part_bytes(address: str, size: int | None) -> int:
    """Returns the size of the parts of an upload of `size` bytes: a whole number of MiB.

    Raises InvalidInput `invalid_argument` if no parts can hold that much. An upload of unknown size
    gets PART_BYTES_MIN; see `bounded`.
    """
    needed = -(-(size or 0) // PARTS_MAX)
    found = max(PART_BYTES_MIN, -(-needed // _MIB) * _MIB)
    if found > PART_BYTES_MAX:
        raise _too_large(address, PARTS_MAX * PART_BYTES_MAX)
    return found


class Sending:
    """The uploads in parts that a process makes now. They share the memory for parts."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._uploads = 0

    @contextmanager
    def share(self, part: int) -> Iterator[int]:
        """Counts one upload more during the block. Yields how many parts of `part` bytes it may
        send at a time: as many bytes as PARTS_AT_ONCE small parts have, or one part."""
        with self._lock:
            self._uploads += 1
            at_once = max(1, PARTS_AT_ONCE * PART_BYTES_MIN // part // self._uploads)
        try:
            yield at_once
        finally:
            with self._lock:
                self._uploads -= 1


sending: Final = Sending()


def bounded(address: str, pieces: Iterator[bytes], part: int) -> Iterator[bytes]:
    """Yields the pieces of an upload of unknown size. Raises InvalidInput `invalid_argument` before
    it has more than PARTS_MAX parts of `part` bytes."""
    total = 0
    for piece in pieces:
        total += len(piece)
        if total > part * PARTS_MAX:
            raise _too_large(address, part * PARTS_MAX)
        yield piece


def _too_large(address: str, bytes_max: int) -> InvalidInput:
    return InvalidInput(
        "invalid_argument",
        f"{address} is too large for one upload, which has at most {bytes_max} bytes: write it "
        "from a file, whose size is known before, or write several objects",
    )
