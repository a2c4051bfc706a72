"""What a listing looks at: slices that can matter, and everything that lies in none."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from ebbtide.formats.base import ListingItem, Slices
from ebbtide.formats.embedded_layout import EmbeddedLayout
from ebbtide.gc import store as listed
from ebbtide.gc.report import RunReport
from ebbtide.ids import descending_id, new_id
from ebbtide.model import EPOCH
from ebbtide.storage import open_storage
from tests.support.faulty import SharedFaultyStorage, with_storage
from tests.support.world import DAY, START, World

HOUR = timedelta(hours=1)
AGED_SLICES = False


def test_young_slices_are_left_out_by_name(world: World) -> None:
    world.lake.objects.put("main", "a", b"1")
    world.lake.objects.delete("main", "a")
    report = world.collect(mode="clean")
    assert (report.young_slices, report.kinds.get("object")) == (1, None)
    assert world.contents() == {"1"}
    world.clock.advance(HOUR)
    report = world.collect(mode="clean")
    assert (report.young_slices, report.counts["deleted"].objects) == (1, 0)
    world.clock.advance(timedelta(microseconds=1))
    report = world.collect(mode="clean")
    assert (report.young_slices, report.counts["deleted"].objects) == (0, 1)


def test_the_next_incremental_run_lists_what_was_young(world: World) -> None:
    """Though the slice was full and done with long before its files were old enough."""
    world.lake.objects.put("main", "a", b"1")
    world.lake.objects.delete("main", "a")
    world.clock.advance(3 * DAY)
    assert world.collect(mode="clean", grace=5 * DAY).young_slices == 1
    world.clock.advance(3 * DAY)
    report = world.collect(mode="incremental", grace=5 * DAY)
    assert (report.mode, report.counts["deleted"].objects) == ("incremental", 1)


def test_a_slice_from_the_future_is_listed(world: World) -> None:
    """Its name says nothing of its files."""
    place = world.root / "data" / descending_id(world.now + DAY)
    place.mkdir(parents=True)
    (place / new_id()).write_bytes(b"stray")
    report = world.collect(mode="clean")
    assert (report.young_slices, report.counts["deleted"].objects) == (0, 1)


@pytest.mark.parametrize("mode", ["clean", "incremental"])
def test_names_that_are_no_addresses_are_reported_and_kept(world: World, mode: str) -> None:
    """Those of directories, too, wherever they lie."""
    world.save("main", days_ago=0, put=["a"])
    names = ["data/stray", "data/import/a/b/c", "data/import/d", "other/e/f", "other/g", "h"]
    strangers = [world.root / name for name in names]
    for place in (
        "",
        "data",
        "data/import",
        "_ebbtide",
        "_ebbtide/trees",
        "_ebbtide/ranges",
        "x/y",
    ):
        directory = world.root / place / os.fsdecode(b"not \xff utf8")
        strangers += [directory / "file", directory / "deep" / "file"]
        strangers.append(directory.with_name("\x1b[2J\n"))
    for file in strangers:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"stray")
    for each in ("clean", mode):
        world.clock.advance(3 * DAY)
        report = world.collect(mode=each)
        assert report.kinds["foreign"].objects == len(strangers)
    assert all(file.read_bytes() == b"stray" for file in strangers)


def test_units_of_listing(tmp_path: Path) -> None:
    """Slices are one unit each; our other files are divided; other directories are cut."""
    old, young, closed = (descending_id(START - timedelta(hours=n)) for n in (9, 1, 20))
    names = [f"data/{each}/{new_id()}" for each in (old, young, closed)]
    names += ["data/x/1/a", "data/x/2/b", "data/x/c", "top/1/2/d", "e"]
    names += ["_ebbtide/trees/f", "_ebbtide/gc/runs/g"]
    storage = open_storage(str(tmp_path))
    for name in names:
        storage.put(name, b"")
    bound = descending_id(START - timedelta(hours=10))
    slices = Slices(cutoff=START - timedelta(hours=2), now=START, closed_after=bound)
    listing = EmbeddedLayout().plan_listing(storage, slices, cores=2)
    flat = {"", "data/", "data/x/", "top/", "_ebbtide/"}
    deep = {f"data/{old}/", "data/x/1/", "data/x/2/", "top/1/"}
    expected = {ListingItem(prefix, recursive=False) for prefix in flat}
    expected |= {ListingItem(prefix, recursive=True) for prefix in deep}
    expected |= {
        ListingItem("_ebbtide/trees/", recursive=True, share=(number, 2)) for number in range(2)
    }
    assert len(listing.items) == len(expected)
    assert (set(listing.items), listing.young_slices) == (expected, 1)


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
    """Names come first where nobody knows how many there are; then, all are listed with sizes."""
    first = lake.plan()
    assert lake.sizes == 0
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
    found = lake.plan(sizes="candidates")
    assert lake.sizes == 1
    assert not path.exists()
    assert found.counts["listed"].objects == FILES
    assert found.counts["young"].objects == 1
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
