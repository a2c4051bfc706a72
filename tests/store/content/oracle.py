"""Trees as dictionaries, the oracle of the tests of content."""

from __future__ import annotations

import functools
import random
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta

from ebbtide.ids import new_id
from ebbtide.storage import Storage
from ebbtide.store.content.entries import Entry
from ebbtide.store.content.ranges import RangeInfo, read_range
from ebbtide.store.content.trees import Tree, apply_changes

Content = dict[str, Entry]

NOW = datetime(2026, 1, 1, tzinfo=UTC)
_LETTERS = ["a", "b", "/", "é", "日", "😀", "\uffff", "\U00010000", "\x00", "~", "long" * 60]


def random_path(generator: random.Random) -> str:
    return "".join(generator.choices(_LETTERS, k=generator.randint(1, 4)))


def random_entry(generator: random.Random, path: str) -> Entry:
    """One of few contents, so that equal ones happen; the address is always another."""
    number = generator.randrange(3)
    mtime = NOW + timedelta(microseconds=generator.randrange(10**9))
    return Entry(path, f"data/s/{new_id()}", number, f"sum{number}", mtime, None, {})


def random_content(generator: random.Random, count: int) -> Content:
    paths = (random_path(generator) for _ in range(count))
    return {path: random_entry(generator, path) for path in paths}


def random_changes(
    generator: random.Random, content: Content, count: int
) -> dict[str, Entry | None]:
    """Additions, overwrites, deletions, and changes that are none."""
    changes: dict[str, Entry | None] = {}
    for _ in range(count):
        path = generator.choice(list(content) or ["a"])
        if generator.random() < 0.4:
            path = random_path(generator)
        changes[path] = generator.choice([random_entry(generator, path), None, content.get(path)])
    return changes


def applied(content: Content, changes: Mapping[str, Entry | None]) -> Content:
    merged: dict[str, Entry | None] = {**content, **changes}
    return {path: entry for path, entry in sorted(merged.items()) if entry is not None}


def build(
    storage: Storage,
    changes: Mapping[str, Entry | None],
    *,
    parent: Tree | None = None,
    target_entries: int = 4,
    registered: list[str] | None = None,
) -> Tree:
    """A tree with changes in any order made to a parent."""
    ranges: Iterable[RangeInfo] = apply_changes(
        storage,
        parent or Tree(new_id()),
        sorted(changes.items()),
        register=([] if registered is None else registered).append,
        target_entries=target_entries,
    )
    return Tree(new_id(), tuple(ranges))


def clear(storage: Storage) -> None:
    """Deletes every object. A case begins so: all cases share a storage, which is never freed."""
    for batch in storage.list():
        storage.delete(batch.column("address").to_pylist())  # type: ignore[arg-type]


@functools.lru_cache(maxsize=10_000)
def known(storage: Storage, info: RangeInfo) -> tuple[Entry, ...]:
    """The entries of a range that was checked when it was new."""
    return tuple(read_range(storage, info))


def content_of(storage: Storage, tree: Tree) -> Content:
    """All entries of a tree, read the plain way; asserts that its ranges are in order."""
    entries = [entry for info in tree.ranges for entry in known(storage, info)]
    paths = [entry.path for entry in entries]
    assert paths == sorted(set(paths))
    return {entry.path: entry for entry in entries}
