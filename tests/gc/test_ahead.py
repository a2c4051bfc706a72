"""Files that are fetched before they are asked for."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import islice

import pytest

from ebbtide.errors import EbbtideError, Failed, NotFound
from ebbtide.gc import ahead
from ebbtide.gc.ahead import AT_ONCE, TOGETHER, fetched
from ebbtide.ids import new_id
from ebbtide.storage import Storage, open_storage
from tests.support.faulty import FaultyStorage

COUNT = 1_000
MISSING = {0, 7, 8, 500, 501, 502, COUNT - 1}


@pytest.fixture
def storage() -> Storage:
    """Has all but some of a thousand files."""
    made = open_storage(f"memory:{new_id()}")
    for number in range(COUNT):
        if number not in MISSING:
            made.put(str(number), str(number).encode())
    return made


def read(found: Iterator[tuple[int, Storage]]) -> list[bytes | str]:
    """What is at each place, or the kind of the error."""
    answers: list[bytes | str] = []
    for number, storage in found:
        try:
            answers.append(storage.get(str(number)))
        except EbbtideError as error:
            answers.append(error.kind)
    return answers


@pytest.mark.parametrize("at_once", [1, 2, AT_ONCE])
@pytest.mark.parametrize("count", [0, 1, 9, COUNT])
def test_each_file_is_given_or_its_error_raised_in_its_turn(
    storage: Storage, at_once: int, count: int
) -> None:
    expected = [b"%d" % n if n not in MISSING else "object_not_found" for n in range(count)]
    assert read(fetched(storage, range(count), str, at_once=at_once)) == expected


def test_a_file_is_read_once(storage: Storage) -> None:
    asked: list[str] = []
    watched = FaultyStorage(storage, before=lambda _, address: asked.append(address))
    numbers = [number for number in range(COUNT) if number not in MISSING]
    read(fetched(watched, numbers, str))
    assert sorted(asked) == sorted(map(str, numbers))


def test_files_are_fetched_at_the_same_time(storage: Storage) -> None:
    """Nobody gets past before two are there."""
    meeting = threading.Barrier(2, timeout=30)

    def meet(_method: str, _address: str) -> None:
        meeting.wait()

    watched = FaultyStorage(storage, before=meet)
    assert read(fetched(watched, range(20, 20 + 2 * TOGETHER), str, at_once=2))


def test_another_error_is_raised_where_it_belongs(storage: Storage) -> None:
    def fail(_method: str, address: str) -> None:
        if address == "333":
            raise Failed("storage_error", "the disk is gone")

    answers = read(fetched(FaultyStorage(storage, before=fail), range(300, 400), str))
    assert [n for n, answer in enumerate(answers, 300) if answer == "storage_error"] == [333]


def test_what_is_large_is_not_held(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of files fetched together those are, up to the bound and one more."""
    monkeypatch.setattr(ahead, "BYTES_MAX", 5)
    held: list[int] = []
    for _, given in fetched(storage, range(100, 200), str):
        held.append(len(given.data))  # type: ignore[attr-defined]
    assert set(held) == {2}
    assert read(fetched(storage, range(100, 200), str)) == [b"%d" % n for n in range(100, 200)]


def test_who_breaks_off_leaves_no_thread(storage: Storage) -> None:
    found = fetched(storage, range(COUNT), str)
    assert len(list(islice(found, 20))) == 20
    found.close()  # type: ignore[attr-defined]
    assert not [each for each in threading.enumerate() if each.name.startswith("ahead")]


def test_other_methods_are_the_storage_s(storage: Storage) -> None:
    (_, given), *_ = fetched(storage, [1], str)
    assert given.head("1") == storage.head("1")
    with pytest.raises(NotFound):
        given.get("none")
    assert given.get("2") == b"2"
