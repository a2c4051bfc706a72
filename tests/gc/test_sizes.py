"""Of which files a run asks for size and date when nobody says: of all where they are few."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from ebbtide.gc.relations import listing as listed
from ebbtide.gc.report import RunReport
from ebbtide.model import EPOCH
from tests.support.faulty import SharedFaultyStorage, with_storage
from tests.support.world import World

KEPT = 6
OBJECTS = KEPT + 1
FILES = OBJECTS + 3
"""A range, its tree, and that of the first commit."""


class Watched:
    """A lake of six files that a commit holds and one that nothing does, and what its storage is
    asked for: `sizes` counts addresses that were listed without."""

    def __init__(self, directory: Path) -> None:
        self.world = World(directory)
        self.world.save("main", days_ago=1, put=[f"kept/{number}" for number in range(KEPT)])
        self.world.lake.objects.put("main", "dropped", b"dropped")
        self.world.lake.objects.delete("main", "dropped")
        self.sizes = 0
        self.vanishing: Path | None = None
        lake = self.world.lake
        storage = SharedFaultyStorage(lake.storage, before=self._look)
        self.world.lake = with_storage(lake, storage)

    def _look(self, method: str, address: str) -> None:
        if method == "sizes":
            self.sizes += len(address.split())
            if self.vanishing is not None:
                self.vanishing.unlink()
                self.vanishing = None

    def dropped(self) -> Path:
        files = (path for path in (self.world.root / "data").rglob("*") if path.is_file())
        return next(path for path in files if path.read_bytes() == b"dropped")

    def plan(self, **options: Any) -> RunReport:
        self.sizes = 0
        return self.world.collector(**options).plan()


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Watched]:
    made = Watched(tmp_path)
    yield made
    made.world.close()


def test_few_files(lake: Watched) -> None:
    """Names come first where nobody knows how many there are; then, each is looked at once."""
    first = lake.plan()
    assert lake.sizes == OBJECTS
    second = lake.plan()
    assert lake.sizes == 0
    whole = lake.plan(sizes="all")
    assert (first.counts, first.kinds) == (second.counts, second.kinds)
    assert (first.counts, first.kinds) == (whole.counts, whole.kinds)
    assert all(count.sized for count in (*first.counts.values(), *first.kinds.values()))
    assert first.counts["listed"].objects == FILES
    assert first.counts["candidate"].objects == 1


def test_many_files(lake: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of those that stay no size is known, whatever was known before."""
    known = lake.plan()
    monkeypatch.setattr(listed, "SIZED_FILES_MAX", FILES - 1)
    for _ in range(2):
        found = lake.plan()
        assert lake.sizes == 1
        assert not found.counts["listed"].sized
        assert found.counts["candidate"] == known.counts["candidate"]
    assert lake.plan(sizes="all").counts == known.counts


def test_gone_between_name_and_size(lake: Watched) -> None:
    lake.vanishing = path = lake.dropped()
    found = lake.plan()
    assert lake.sizes == OBJECTS
    assert not path.exists()
    assert found.counts["listed"].objects == FILES - 1
    assert found.counts["candidate"].objects == 0


def test_what_is_no_file_stays_foreign(lake: Watched) -> None:
    """A link has no size that counts, and is not taken for one that has vanished."""
    (path, *_) = (path for path in (lake.world.root / "data").rglob("*") if path.is_file())
    (path.parent / "link").symlink_to(path)
    found, whole = lake.plan(), lake.plan(sizes="all")
    assert found.kinds["foreign"].objects == whole.kinds["foreign"].objects == 1
    assert found.counts == whole.counts


def test_files_dated_when_no_file_was_written(lake: Watched) -> None:
    """The plan goes on, names some, and keeps all. What is there besides is found as before."""
    assert lake.plan().counts["listed"].objects == FILES
    (data,) = (lake.world.root / "data").iterdir()
    names = [f"{number:032x}" for number in range(5)]
    for name, year in zip(names, (1901, 2446, 1901, 2446, 1901), strict=True):
        seconds = (datetime(year, 1, 1, tzinfo=UTC) - EPOCH) // timedelta(seconds=1)
        (data / name).write_bytes(b"x")
        os.utime(data / name, (seconds, seconds))
    for sizes in ("auto", "all", "candidates"):
        found = lake.plan(sizes=sizes)
        assert found.counts["candidate"].objects == 1
        assert found.counts["young"].objects == len(names)
        (told,) = (text for text in found.warnings if "dated" in text)
        assert told.startswith("5 files dated before 1970 or after 2199, such as 'data/")
        assert sum(name in told for name in names) == 3
