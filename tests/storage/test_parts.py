"""Uploads of any size have at most 10,000 parts."""

from __future__ import annotations

import io
import random
import threading
from collections.abc import Iterator
from pathlib import Path

import obstore
import pytest

from ebbtide.errors import InvalidInput
from ebbtide.ids import new_id
from ebbtide.storage import open_storage, parts
from ebbtide.storage.base import SizedPieces
from tests.support.errors import raises


class HugeFile(io.RawIOBase):
    """A file of a size, whose content nobody stores."""

    def __init__(self, size: int) -> None:
        self.size, self.position = size, 0

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self.position = offset + (self.size if whence == io.SEEK_END else 0)
        return self.position

    def read(self, count: int = -1) -> bytes:
        found = bytes(min(count, self.size - self.position))
        self.position += len(found)
        return found


@pytest.mark.parametrize("size", [0, 10**9, 78 * 2**30, 79 * 2**30, 48 * 2**40])
def test_no_upload_of_known_size_has_too_many_parts(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client counts parts by their size. It reads the first piece alone."""
    used: list[int] = []

    def put(
        *_: object,
        chunk_size: int = parts.PART_BYTES_MIN,
        max_concurrency: int = 1,
        **_more: object,
    ) -> None:
        used.append(chunk_size)
        assert chunk_size * max_concurrency <= max(parts.SENDING_BYTES_MAX, chunk_size)

    monkeypatch.setattr(obstore, "put", put)
    open_storage(f"memory:{new_id()}").put("x", HugeFile(size))
    (part,) = used
    assert -(-size // part) <= parts.PARTS_MAX
    assert 5 * 2**20 <= part <= 5 * 2**30


def test_more_than_parts_can_hold_is_refused_before_the_first_byte(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(obstore, "put", lambda *_, **__: pytest.fail("it was begun"))
    file = HugeFile(parts.PARTS_MAX * parts.PART_BYTES_MAX + 1)
    with raises("invalid_argument", of=InvalidInput):
        open_storage(f"memory:{new_id()}").put("x", file)
    assert file.tell() == 0


def test_an_upload_of_unknown_size_stops_at_the_last_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "PARTS_MAX", 3)
    monkeypatch.setattr(parts, "UNSIZED_PART_BYTES", 10)
    storage = open_storage(f"memory:{new_id()}")
    storage.put("fits", iter([b"1234567890"] * 3))
    assert storage.get("fits") == b"1234567890" * 3
    with pytest.raises(InvalidInput):
        storage.put("large", iter([b"1234567890"] * 3 + [b"1"]))
    assert storage.head("large") is None


def test_sizes_known_before(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"x" * 100)

    def pieces() -> Iterator[bytes]:
        yield b"x"

    assert parts.size_of(b"12") == 2
    assert parts.size_of(pieces()) is None
    assert parts.size_of(SizedPieces(pieces(), 7)) == 7
    with file.open("rb") as opened:
        opened.seek(random.randrange(100))
        assert parts.size_of(opened) == 100 - opened.tell()


class Clock:
    def __init__(self, step: float = 0.0) -> None:
        self.now, self.step = 0.0, step

    def __call__(self) -> float:
        self.now += self.step
        return self.now


def test_uploads_share_the_memory_for_parts() -> None:
    """The first sends two parts at a time. The last gets what is left, and nobody has to wait."""
    sending = parts.Sending(40, clock=Clock())
    with sending.share(10, None) as first, sending.share(10, 10) as second:
        assert (first.at_once, first.bytes_held) == (2, 20)
        assert second.bytes_held == 10
        with sending.share(10, 1_000) as third:
            assert (third.at_once, third.bytes_held) == (1, 10)
    with sending.share(10, None, parts_max=1) as stored:
        assert (stored.at_once, stored.bytes_held) == (1, 10)
    with sending.share(1_000, 5_000) as large:
        assert (large.at_once, large.bytes_held) == (1, 1_000)


def test_an_upload_waits_for_the_memory_of_another() -> None:
    sending = parts.Sending(10, clock=Clock())
    order: list[str] = []
    begun = threading.Event()

    def second() -> None:
        begun.set()
        with sending.share(10, 10):
            order.append("second")

    thread = threading.Thread(target=second)
    with sending.share(10, 10):
        thread.start()
        begun.wait()
        order.append("first")
    thread.join()
    assert order == ["first", "second"]


def test_nobody_waits_for_an_upload_that_gets_no_bytes_or_for_ever() -> None:
    """In the end, the other fills parts all the time, and is never stalled."""
    clock = Clock()
    sending = parts.Sending(10, clock=clock)
    with sending.share(10, None) as slow:
        clock.now += parts.STALLED_SECONDS
        with sending.share(10, 10) as other:
            assert other.bytes_held == 10
        sending.move(slow)
        assert slow.moved == clock.now
        slow.moved = float("inf")
        clock.step = parts.WAIT_SECONDS_MAX
        with sending.share(10, 10) as other:
            assert other.at_once == 1
