"""The sizes of the parts of an upload. S3 allows 10,000 parts of at most 5 GiB (Amazon S3 User
Guide, "Amazon S3 multipart upload limits")."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from ebbtide.errors import InvalidInput
from ebbtide.resources import give_back_memory
from ebbtide.storage.base import Content, SizedPieces

PARTS_MAX: Final = 10_000
PART_BYTES_MIN: Final = 5 * 1024 * 1024
"""The least that S3 allows: what an upload holds in memory is some parts."""
UNSIZED_PART_BYTES: Final = 16 * 1024 * 1024
"""The size of the parts of an upload of unknown size."""
PART_BYTES_MAX: Final = 5 * 1024**3
PARTS_AT_ONCE: Final = 2
"""How many parts one upload sends at a time, if there is memory: the second is filled while the
first is sent. Bytes from a storage are sent in one part at a time: the next chunk is read while the
part is sent."""
SENDING_BYTES_MAX: Final = PARTS_AT_ONCE * PART_BYTES_MIN
STALLED_SECONDS: Final = 5.0
WAIT_SECONDS_MAX: Final = 30.0
_POLL_SECONDS: Final = 1.0
_MIB: Final = 1024 * 1024


def size_of(data: Content) -> int | None:
    """Returns the number of bytes left in `data`, or None if only reading it all would tell."""
    if isinstance(data, bytes):
        return len(data)
    if isinstance(data, SizedPieces):
        return data.size_bytes
    if not isinstance(data, io.IOBase) or not data.seekable():
        return None
    here = data.tell()
    end = data.seek(0, io.SEEK_END)
    data.seek(here)
    return end - here


def part_bytes(address: str, size: int | None) -> int:
    """Returns the size of the parts of an upload of `size` bytes: a whole number of MiB.

    Raises InvalidInput `invalid_argument` if no parts can hold that much. An upload of unknown size
    gets UNSIZED_PART_BYTES; see `bounded`.
    """
    if size is None:
        return UNSIZED_PART_BYTES
    needed = -(-size // PARTS_MAX)
    found = max(PART_BYTES_MIN, -(-needed // _MIB) * _MIB)
    if found > PART_BYTES_MAX:
        raise _too_large(address, PARTS_MAX * PART_BYTES_MAX)
    return found


@dataclass(slots=True)
class SendingShare:
    """The memory of one upload: `at_once` parts of `part` bytes. `moved` is when it got its memory,
    or when its last part was full, in seconds."""

    part: int
    at_once: int
    bytes_held: int
    moved: float


class Sending:
    """The memory for parts that are filled or sent. All uploads of a process share it.

    An upload waits for its part while others have all memory. The others may wait for slow clients:
    one that has filled no part for STALLED_SECONDS is not counted, and nobody waits for longer than
    WAIT_SECONDS_MAX. More memory is used then, one part for each upload.
    """

    def __init__(
        self, bytes_max: int = SENDING_BYTES_MAX, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._bytes_max = bytes_max
        self._clock = clock
        self._changed = threading.Condition()
        self._shares: list[SendingShare] = []

    @contextmanager
    def share(
        self, part: int, size: int | None, *, parts_max: int = PARTS_AT_ONCE
    ) -> Iterator[SendingShare]:
        """Has memory for an upload of `size` bytes, in parts of `part` bytes, during the block. At
        most `parts_max` parts are sent at a time. After the last of several uploads, free memory
        is given back to the system."""
        needed = part if size is None else min(part, size)
        useful = part * parts_max
        if size is not None:
            useful = min(useful, size)
        with self._changed:
            self._wait(needed)
            free = self._bytes_max - self._held()
            at_once = parts_max if useful <= free else 1
            mine = SendingShare(part, at_once, useful if useful <= free else needed, self._clock())
            self._shares.append(mine)
        try:
            yield mine
        finally:
            with self._changed:
                # Two shares can be equal.
                self._shares = [each for each in self._shares if each is not mine]
                self._changed.notify_all()
                is_last = not self._shares
            if is_last:
                give_back_memory()

    def move(self, share: SendingShare) -> None:
        """Notes that an upload has filled a part."""
        with self._changed:
            share.moved = self._clock()

    def _wait(self, needed: int) -> None:
        """Waits until there are `needed` bytes, or all. The caller has the lock."""
        until = self._clock() + WAIT_SECONDS_MAX
        while (held := self._held()) and held + needed > self._bytes_max:
            if self._clock() >= until:
                return
            self._changed.wait(_POLL_SECONDS)

    def _held(self) -> int:
        since = self._clock() - STALLED_SECONDS
        return sum(each.bytes_held for each in self._shares if each.moved > since)


sending: Final = Sending()


def bounded(address: str, pieces: Iterator[bytes], share: SendingShare) -> Iterator[bytes]:
    """Yields the pieces of an upload, and notes each part. Raises InvalidInput `invalid_argument`
    before it has more than PARTS_MAX parts."""
    total = 0
    for piece in pieces:
        full = total // share.part
        total += len(piece)
        if total > share.part * PARTS_MAX:
            raise _too_large(address, share.part * PARTS_MAX)
        if total // share.part > full:
            sending.move(share)
        yield piece


def _too_large(address: str, bytes_max: int) -> InvalidInput:
    return InvalidInput(
        "invalid_argument",
        f"{address} is too large for one upload, which has at most {bytes_max} bytes: write it "
        "from a file, whose size is known before, or write several objects",
    )
