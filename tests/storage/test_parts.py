"""Uploads of any size have at most 10,000 parts."""

from __future__ import annotations

import io
import random
from collections.abc import Iterator
from pathlib import Path

import obstore
import pytest

from ebbtide.errors import InvalidInput
from ebbtide.ids import new_id
from ebbtide.storage import open_storage, parts


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


@pytest.mark.parametrize("size", [0, 1, 10**9, 156 * 2**30, 157 * 2**30, 5 * 2**40, 48 * 2**40])
def test_no_upload_of_known_size_has_too_many_parts(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client counts parts by their size. It reads the first piece alone."""
    used: list[int] = []

    def put(*_: object, chunk_size: int, max_concurrency: int) -> None:
        used.append(chunk_size)
        assert chunk_size * max_concurrency <= max(64 * 2**20, chunk_size)

    monkeypatch.setattr(obstore, "put", put)
    open_storage(f"memory:{new_id()}").put("x", HugeFile(size))
    (part,) = used
    assert -(-size // part) <= parts.PARTS_MAX
    assert 16 * 2**20 <= part <= 5 * 2**30


def test_more_than_parts_can_hold_is_refused_before_the_first_byte(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(obstore, "put", lambda *_, **__: pytest.fail("it was begun"))
    file = HugeFile(parts.PARTS_MAX * parts.PART_BYTES_MAX + 1)
    with pytest.raises(InvalidInput) as caught:
        open_storage(f"memory:{new_id()}").put("x", file)
    assert caught.value.kind == "invalid_argument"
    assert file.tell() == 0


def test_an_upload_of_unknown_size_stops_at_the_last_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "PARTS_MAX", 3)
    monkeypatch.setattr(parts, "PART_BYTES_MIN", 10)
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
    with file.open("rb") as opened:
        opened.seek(random.randrange(100))
        assert parts.size_of(opened) == 100 - opened.tell()
