"""Applying changes to a tree, against dictionaries."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ebbtide.ids import new_id
from ebbtide.storage import Storage
from ebbtide.store.content import files
from ebbtide.store.content.building import apply_changes
from ebbtide.store.content.entries import Entry
from ebbtide.store.content.ranges import RangeInfo, read_range
from ebbtide.store.content.trees import Tree, read_tree, write_tree
from tests.store.content.oracle import (
    NOW,
    applied,
    build,
    clear,
    content_of,
    known,
    random_changes,
    random_content,
    random_entry,
)
from tests.support.randomized import randomized


def ignored(_: str) -> None:
    """A registration that nobody asks for."""


def check_ranges(storage: Storage, tree: Tree, target_entries: int) -> None:
    """Every invariant of a tree but its content."""
    for info in tree.ranges:
        entries = read_range(storage, info)
        assert info.entry_count == len(entries) <= 4 * target_entries
        assert info.bytes_total == sum(entry.size_bytes for entry in entries)
        assert info.checksum == files.checksum_of(storage.get(info.address))
    for left, right in pairwise(tree.ranges):
        assert left.last_path < right.first_path
    assert len({info.range_id for info in tree.ranges}) == len(tree.ranges)
    assert read_tree(storage, tree.tree_id, write_tree(storage, tree)) == tree


def check_sharing(storage: Storage, parent: Tree, child: Tree, registered: list[str]) -> None:
    """New ranges were announced, all others are the parent's; none was written for nothing."""
    new = [info.address for info in child.ranges if info not in parent.ranges]
    assert new == registered
    before = {known(storage, info): info for info in parent.ranges}
    for info in child.ranges:
        same = before.get(known(storage, info))
        if same is not None:
            assert info == same


@randomized("trees")
def test_histories_are_those_of_dictionaries(storage: Storage, seed: int) -> None:
    clear(storage)
    generator = random.Random(seed)
    target = generator.choice([1, 2, 4, 8])
    content = random_content(generator, generator.choice([0, 1, 10, 120]))
    tree = build(storage, content, target_entries=target)
    for _ in range(6):
        if generator.random() < 0.2:
            # A tree that was built with another target is changed.
            target = generator.choice([1, 3, 16])
            changes = random_changes(generator, content, 4)
            tree = build(storage, changes, parent=tree, target_entries=target)
            content = applied(content, changes)
            assert content_of(storage, tree) == content
            return
        changes = random_changes(generator, content, generator.choice([0, 1, 3, 40]))
        registered: list[str] = []
        child = build(storage, changes, parent=tree, target_entries=target, registered=registered)
        expected = applied(content, changes)
        assert content_of(storage, child) == expected
        check_ranges(storage, child, target)
        check_sharing(storage, tree, child, registered)
        if expected == content:
            assert child.ranges == tree.ranges
        tree, content = child, expected


def numbered(count: int, prefix: str = "path") -> dict[str, Entry]:
    generator = random.Random(count)
    return {
        path: random_entry(generator, path) for path in (f"{prefix}/{n:07}" for n in range(count))
    }


def test_one_change_in_a_large_tree_writes_little(storage: Storage) -> None:
    content = numbered(5_000)
    tree = build(storage, content, target_entries=64)
    assert 38 < len(tree.ranges) < 125
    generator = random.Random(0)
    written = []
    for _ in range(40):
        path = generator.choice(list(content))
        change = generator.choice([random_entry(generator, path), None])
        inserted = path + "!"
        changes = {path: change, inserted: random_entry(generator, inserted)}
        registered: list[str] = []
        child = build(storage, changes, parent=tree, target_entries=64, registered=registered)
        assert len(child.ranges) - len(registered) >= len(tree.ranges) - 4
        written.append(len(registered))
    assert sum(written) / len(written) < 1.5


def test_appending_in_small_steps_does_not_leave_small_ranges(storage: Storage) -> None:
    content = numbered(1_000)
    tree, paths = Tree(new_id()), list(content)
    for start in range(0, len(paths), 10):
        step = {path: content[path] for path in paths[start : start + 10]}
        tree = build(storage, step, parent=tree, target_entries=64)
    at_once = build(storage, content, target_entries=64)
    spans = [
        [(info.first_path, info.last_path) for info in each.ranges] for each in (tree, at_once)
    ]
    assert spans[0] == spans[1]


def test_boundaries_do_not_depend_on_history_nor_on_the_process(storage: Storage) -> None:
    """Pinned: another hash would rewrite every tree once."""
    tree = build(storage, numbered(60), target_entries=8)
    assert [info.last_path[-2:] for info in tree.ranges] == ["22", "29", "31", "51", "59"]


def test_a_range_is_announced_before_it_is_written(storage: Storage) -> None:
    def register(address: str) -> None:
        assert storage.head(address) is None
        announced.append(address)

    announced: list[str] = []
    ranges = apply_changes(
        storage, Tree(new_id()), numbered(500).items(), register=register, target_entries=16
    )
    assert announced == [info.address for info in ranges]


def test_only_the_ranges_that_changes_touch_are_read(storage: Storage) -> None:
    content = numbered(2_000)
    tree = build(storage, content, target_entries=64)
    middle = tree.ranges[len(tree.ranges) // 2]
    read: list[RangeInfo] = []

    def reading(info: RangeInfo) -> list[Entry]:
        read.append(info)
        return read_range(storage, info)

    entry = random_entry(random.Random(0), middle.first_path)
    changes = [(entry.path, entry)]
    apply_changes(storage, tree, changes, register=ignored, target_entries=64, read=reading)
    assert read == [middle]


def test_an_entry_that_differs_in_its_address_alone_is_written(storage: Storage) -> None:
    """It looks the same to users, and is what must be found when the other address goes."""
    entry = Entry("p", "data/s/1", 1, "sum", NOW)
    tree = build(storage, {"p": entry})
    for other in (
        Entry("p", "data/s/2", 1, "sum", NOW),
        Entry("p", "data/s/1", 1, "sum", NOW + timedelta(microseconds=1)),
    ):
        child = build(storage, {"p": other}, parent=tree)
        assert child.ranges != tree.ranges
        assert content_of(storage, child) == {"p": other}


def test_changes_are_taken_as_they_are_needed(storage: Storage) -> None:
    """Memory is bounded: no more than one range's changes wait for being written."""
    announced: list[str] = []
    waiting_max = 4 * 16

    def changes() -> Iterator[tuple[str, Entry | None]]:
        for taken, item in enumerate(numbered(1_000).items()):
            assert taken <= written_entries() + waiting_max + 1
            yield item

    def written_entries() -> int:
        return sum(entries for entries in sizes)

    sizes: list[int] = []
    put = type(storage).put

    def counting(self: Storage, address: str, data: bytes) -> None:
        put(self, address, data)
        sizes.append(pq.read_metadata(pa.BufferReader(data)).num_rows)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(storage), "put", counting)
        apply_changes(
            storage, Tree(new_id()), changes(), register=announced.append, target_entries=16
        )
    assert sum(sizes) == 1_000


def test_changes_that_are_refused(storage: Storage) -> None:
    """Out of order, or with an entry of another path. A registration that fails writes nothing."""
    entry = Entry("b", "data/s/1", 1, "", NOW)
    for paths in ("ba", "aa", "acb"):
        for deleting in (False, True):
            changes = [(path, None if deleting else replace(entry, path=path)) for path in paths]
            with pytest.raises(ValueError, match="changes ascend"):
                apply_changes(storage, Tree(new_id()), changes, register=ignored)
    clear(storage)
    with pytest.raises(ValueError, match="has an entry of"):
        apply_changes(storage, Tree(new_id()), [("a", entry)], register=ignored)

    def register(_: str) -> None:
        raise RuntimeError("no database")

    with pytest.raises(RuntimeError):
        apply_changes(storage, Tree(new_id()), numbered(5).items(), register=register)
    assert list(storage.list()) == []
