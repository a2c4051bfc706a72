"""Trees against dictionaries: applying changes, finding, iterating, comparing and merging."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ebbtide.errors import Refused
from ebbtide.ids import new_id
from ebbtide.storage import Storage
from ebbtide.store.content.differences import Strategy, diff_trees, merge_trees
from ebbtide.store.content.entries import Entry, same_content
from ebbtide.store.content.ranges import RangeInfo, checksum_of, read_range
from ebbtide.store.content.trees import (
    ContentCache,
    Tree,
    apply_changes,
    find_entry,
    iterate_entries,
    read_tree,
    write_tree,
)
from tests.store.content.oracle import (
    NOW,
    Content,
    applied,
    build,
    clear,
    content_of,
    known,
    random_changes,
    random_content,
    random_entry,
    random_path,
)
from tests.support.randomized import randomized


def some_tree(storage: Storage, generator: random.Random) -> tuple[Tree, Content]:
    content = random_content(generator, generator.choice([0, 1, 10, 150]))
    return build(storage, content), content


def descendant(
    storage: Storage, generator: random.Random, tree: Tree, content: Content
) -> tuple[Tree, Content]:
    changes = random_changes(generator, content, generator.choice([0, 1, 4, 50]))
    return build(storage, changes, parent=tree), applied(content, changes)


def some_paths(generator: random.Random, content: Content) -> list[str]:
    """Paths that are there, that are not, and beginnings of either."""
    known = generator.sample(sorted(content), min(5, len(content)))
    paths = [*known, *(random_path(generator) for _ in range(5)), ""]
    return [*paths, *(path[: len(path) // 2] for path in paths), *(path + "\x00" for path in known)]


@randomized("trees")
def test_finding_and_iterating(storage: Storage, seed: int) -> None:
    clear(storage)
    generator = random.Random(seed)
    tree, content = some_tree(storage, generator)
    assert tree.entry_count == len(content)
    assert tree.bytes_total == sum(entry.size_bytes for entry in content.values())
    for path in some_paths(generator, content):
        assert find_entry(storage, tree, path) == content.get(path)
        for after in ["", *generator.sample(some_paths(generator, content), 3)]:
            expected = [content[p] for p in sorted(content) if p.startswith(path) and p > after]
            assert list(iterate_entries(storage, tree, prefix=path, after=after)) == expected


@randomized("trees")
def test_only_ranges_that_may_hold_something_are_looked_at(storage: Storage, seed: int) -> None:
    clear(storage)
    generator = random.Random(seed)
    tree, content = some_tree(storage, generator)
    for prefix in some_paths(generator, content):
        for after in some_paths(generator, content)[:4]:
            found = tree.overlapping(prefix, after=after)
            holding = [
                info
                for info in tree.ranges
                if any(e.path.startswith(prefix) and e.path > after for e in known(storage, info))
            ]
            assert set(holding) <= set(found)
            # At most the two at the edges hold nothing of it.
            assert len(found) <= len(holding) + 2


def expected_diff(left: Content, right: Content) -> list[tuple[str, Entry | None, Entry | None]]:
    return [
        (path, left.get(path), right.get(path))
        for path in sorted(left.keys() | right.keys())
        if not same_content(left.get(path), right.get(path))
    ]


@randomized("trees")
def test_differences(storage: Storage, seed: int) -> None:
    clear(storage)
    generator = random.Random(seed)
    base, content = some_tree(storage, generator)
    left, left_content = descendant(storage, generator, base, content)
    related = generator.random() < 0.8
    right, right_content = (
        descendant(storage, generator, base, content) if related else some_tree(storage, generator)
    )
    expected = expected_diff(left_content, right_content)
    found = list(diff_trees(storage, left, right))
    assert [(c.path, c.left, c.right) for c in found] == expected
    for change in found:
        kinds = {(True, False): "added", (False, True): "removed", (False, False): "changed"}
        assert change.kind == kinds[change.left is None, change.right is None]
    prefix, after = generator.sample(some_paths(generator, left_content), 2)
    part = diff_trees(storage, left, right, prefix=prefix, after=after)
    assert [c.path for c in part] == [
        path for path, _, _ in expected if path.startswith(prefix) and path > after
    ]


def test_shared_ranges_are_not_read(storage: Storage) -> None:
    generator = random.Random(0)
    content = random_content(generator, 2_000)
    left = build(storage, content)
    path = sorted(content)[len(content) // 2]
    right = build(storage, {path: None}, parent=left)
    shared = set(left.ranges) & set(right.ranges)
    assert len(shared) > len(left.ranges) - 4

    def reading(info: RangeInfo) -> list[Entry]:
        assert info not in shared
        return read_range(storage, info)

    assert [c.path for c in diff_trees(storage, left, right, read=reading)] == [path]
    assert list(diff_trees(storage, left, left, read=reading)) == []


STRATEGIES: Final[tuple[Strategy | None, ...]] = (None, "source-wins", "dest-wins")


def merged_by_hand(
    base: Content, source: Content, destination: Content, strategy: Strategy | None
) -> tuple[Content, list[str]]:
    """The rules of a merge, path by path."""
    result, conflicts = dict(destination), []
    for path in sorted(base.keys() | source.keys() | destination.keys()):
        b, s, d = base.get(path), source.get(path), destination.get(path)
        if same_content(s, b) or same_content(s, d):
            continue
        if not same_content(d, b):
            if strategy is None:
                conflicts.append(path)
            if strategy != "source-wins":
                continue
        result.pop(path, None)
        if s is not None:
            result[path] = s
    return result, conflicts


@randomized("trees")
def test_merges(storage: Storage, seed: int) -> None:
    clear(storage)
    generator = random.Random(seed)
    base, base_content = some_tree(storage, generator)
    source, source_content = descendant(storage, generator, base, base_content)
    destination, destination_content = descendant(storage, generator, base, base_content)
    for strategy in STRATEGIES:
        merged = merge_trees(storage, base, source, destination, strategy=strategy)
        expected, conflicts = merged_by_hand(
            base_content, source_content, destination_content, strategy
        )
        assert list(merged.conflicts) == conflicts
        changes = dict(merged.changes)
        assert merged.change_count == len(changes)
        assert list(changes) == sorted(changes)
        assert list(merged.changes) == list(changes.items())
        result = build(storage, changes, parent=destination)
        assert content_of(storage, result) == expected
        # Only of its parent: the destination.
        assert all(
            info in destination.ranges
            for info in result.ranges
            if info in source.ranges or info in base.ranges
        )


@pytest.mark.parametrize("look", ["range", "held"])
def test_a_cache_reads_each_file_once_and_drops_what_was_used_least_lately(
    storage: Storage, look: str
) -> None:
    content = random_content(random.Random(0), 300)
    tree = build(storage, content)
    checksum = write_tree(storage, tree)
    first, second, third = sorted(tree.ranges, key=lambda i: -i.entry_count)[:3]
    limit = first.entry_count + second.entry_count + third.entry_count
    cache, large = (ContentCache(storage, entries_max=each) for each in (limit, 10_000))
    assert cache.held(first.address, first.checksum) is None
    again: dict[str, Callable[[], Any]] = {
        "range": lambda: cache.range(first),
        "held": lambda: cache.held(first.address, first.checksum),
    }
    entries = [cache.range(first), cache.range(second), again[look](), cache.range(third)]
    assert [len(e) for e in entries] == [i.entry_count for i in (first, second, first, third)]
    for is_there in (True, False):
        assert large.tree(tree.tree_id, checksum) == tree
        assert {e.path: e for e in iterate_entries(storage, tree, read=large.range)} == content
        if is_there:
            storage.delete([tree.address, *(info.address for info in tree.ranges)])
    assert cache.range(first) == entries[0]
    assert cache.range(third) == entries[3]
    with pytest.raises(Refused, match="missing, but needed"):
        cache.range(second)


def ignored(_: str) -> None:
    """A registration that nobody asks for."""


def check_ranges(storage: Storage, tree: Tree, target_entries: int) -> None:
    """Every invariant of a tree but its content."""
    for info in tree.ranges:
        entries = read_range(storage, info)
        assert info.entry_count == len(entries) <= 4 * target_entries
        assert info.bytes_total == sum(entry.size_bytes for entry in entries)
        assert info.checksum == checksum_of(storage.get(info.address))
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


def test_changes_are_taken_as_they_are_needed(storage: Storage) -> None:
    """Memory is bounded: no more than one range's changes wait for being written."""
    announced: list[str] = []
    waiting_max = 4 * 16

    def changes() -> Iterator[tuple[str, Entry | None]]:
        for taken, item in enumerate(numbered(1_000).items()):
            assert taken <= sum(sizes) + waiting_max + 1
            yield item

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
