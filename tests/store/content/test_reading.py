"""Finding, iterating, comparing and merging trees, against dictionaries."""

from __future__ import annotations

import random
from typing import Final

import pytest

from ebbtide.errors import Refused
from ebbtide.storage import Storage
from ebbtide.store.content.cache import ContentCache
from ebbtide.store.content.diffing import diff_trees
from ebbtide.store.content.entries import Entry, same_content
from ebbtide.store.content.merging import Strategy, merge_trees
from ebbtide.store.content.ranges import RangeInfo, read_range
from ebbtide.store.content.reading import find_entry, iterate_entries
from ebbtide.store.content.trees import Tree, write_tree
from tests.store.content.oracle import (
    Content,
    applied,
    build,
    clear,
    content_of,
    known,
    random_changes,
    random_content,
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


def test_bytes_uploaded_again_on_one_side_are_no_change(storage: Storage) -> None:
    generator = random.Random(0)
    content = random_content(generator, 1)
    (path, entry) = content.popitem()
    again = Entry(path, "data/s/again", entry.size_bytes, entry.checksum, entry.mtime)
    base, other = build(storage, {path: entry}), build(storage, {path: again})
    gone = build(storage, {})
    for source, destination in ((base, other), (other, base)):
        merged = merge_trees(storage, base, source, destination)
        assert (list(merged.changes), merged.conflicts) == ([], ())
    assert list(merge_trees(storage, base, gone, other).changes) == [(path, None)]
    assert merge_trees(storage, base, other, gone).change_count == 0


def test_a_cache_reads_each_file_once_and_drops_what_was_used_least_lately(
    storage: Storage,
) -> None:
    content = random_content(random.Random(0), 300)
    tree = build(storage, content)
    checksum = write_tree(storage, tree)
    first, second, third = sorted(tree.ranges, key=lambda i: -i.entry_count)[:3]
    limit = first.entry_count + second.entry_count + third.entry_count
    cache, large = (ContentCache(storage, entries_max=each) for each in (limit, 10_000))
    entries = [cache.range(first), cache.range(second), cache.range(first), cache.range(third)]
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
