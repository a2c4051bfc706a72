"""What a listing looks at: slices that can matter, and everything that lies in none."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

import pytest

from ebbtide.formats.base import ListingItem, Slices
from ebbtide.formats.embedded_layout import EmbeddedLayout
from ebbtide.ids import descending_id, new_id
from ebbtide.storage import open_storage
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
    """Slices are one each, and what is ours beside them is divided; other directories are cut into
    theirs."""
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
