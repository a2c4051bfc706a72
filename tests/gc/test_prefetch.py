"""Files that are fetched, and directories listed, before they are asked for."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest

from ebbtide.arrow import texts
from ebbtide.errors import EbbtideError, Failed
from ebbtide.formats.base import ListingItem
from ebbtide.gc import prefetch as ahead
from ebbtide.gc.prefetch import AT_ONCE, fetched, listed
from ebbtide.ids import new_id
from ebbtide.storage import Storage, base, open_storage
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


def threads() -> list[str]:
    return [each.name for each in threading.enumerate() if each.name.startswith("ahead")]


def read(found: Iterator[tuple[int, Storage]]) -> list[bytes | str]:
    answers: list[bytes | str] = []
    for number, storage in found:
        try:
            answers.append(storage.get(str(number)))
        except EbbtideError as error:
            answers.append(error.kind)
    return answers


@pytest.mark.parametrize(("at_once", "count"), [(1, COUNT), (2, 0), (2, 9), (AT_ONCE, COUNT)])
def test_each_file_is_given_or_its_error_raised_in_its_turn(
    storage: Storage, at_once: int, count: int
) -> None:
    expected = [b"%d" % n if n not in MISSING else "object_not_found" for n in range(count)]
    assert read(fetched(storage, range(count), str, at_once=at_once)) == expected


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
    found.close()
    assert not threads()


DIRECTORIES = 20


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Storage:
    """Directories of 0 to 19 files each, of which batches have three, and are few ahead."""
    made = open_storage(tmp_path.as_uri())
    for number in range(DIRECTORIES):
        for name in range(number):
            made.put(f"{number:02d}/{name:02d}", b"-" * name)
    monkeypatch.setattr(base, "LISTING_ROWS_MAX", 3)
    monkeypatch.setattr(ahead, "ROWS_MAX", 7)
    return made


def items() -> list[ListingItem]:
    """Each directory, one in two shares, and one that is not there; every third without sizes."""
    numbers = [n for n in range(DIRECTORIES) if n != 12]
    return [
        *(ListingItem(f"{n:02d}/", recursive=n % 2 == 0, sized=n % 3 > 0) for n in numbers),
        *(ListingItem("12/", recursive=True, share=(n, 2)) for n in range(2)),
        ListingItem("none/", recursive=True),
    ]


@pytest.mark.parametrize("at_once", [1, 2, 100])
def test_listings_ahead_are_what_one_after_the_other_says(directory: Storage, at_once: int) -> None:
    expected = [
        batch
        for item in items()
        for batch in directory.list(
            item.prefix, recursive=item.recursive, share=item.share, sized=item.sized
        )
    ]
    found = list(listed(directory, items(), at_once=at_once))
    assert found == expected
    assert sum(batch.num_rows for batch in found) == DIRECTORIES * (DIRECTORIES - 1) // 2
    assert not threads()


def test_no_more_is_listed_ahead_than_was_agreed(directory: Storage) -> None:
    """None of the directories behind those that are next."""
    begun: list[str] = []
    watched = FaultyStorage(directory, before=lambda _, prefix: begun.append(prefix))
    taken = 0
    for batch in listed(watched, items(), at_once=2):
        taken = max(taken, int(texts(batch.column("address"))[0].split("/")[0]))
        assert len(begun) <= len([n for n in range(taken + 1) if n != 12]) + 3


def test_what_cannot_be_listed_is_told_in_its_turn(directory: Storage) -> None:
    """What is before it was given, and nothing of what is behind it."""

    def fail(_method: str, prefix: str) -> None:
        if prefix == "05/":
            raise Failed("storage_error", "the disk is gone")

    seen: list[str] = []
    with pytest.raises(Failed, match="the disk is gone"):
        for batch in listed(FaultyStorage(directory, before=fail), items()):
            seen += texts(batch.column("address"))
    assert {address.split("/")[0] for address in seen} == {"01", "02", "03", "04"}
    assert not threads()


@pytest.mark.parametrize("at_once", [1, 2])
def test_a_task_that_fails_closes_the_tasks(at_once: int) -> None:
    """Although somebody still has the error, whose traceback refers to them."""
    closed: list[bool] = []

    def tasks() -> Iterator[int]:
        try:
            yield from range(9)
        finally:
            closed.append(True)

    with pytest.raises(ZeroDivisionError) as error:
        list(ahead.ahead(lambda task: 1 // (2 - task), tasks(), at_once=at_once))
    assert error.value.args
    assert closed == [True]
