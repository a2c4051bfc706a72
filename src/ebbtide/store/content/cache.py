"""A cache of recently read ranges and trees. They never change, so that it never holds old data."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Final, cast

from ebbtide.storage import Storage
from ebbtide.store.content.entries import Entry
from ebbtide.store.content.ranges import RangeInfo, read_range
from ebbtide.store.content.trees import Tree, read_tree

ENTRIES_MAX: Final = 200_000


class ContentCache:
    """Reads the ranges and trees of one storage, and keeps the last used ones. Thread-safe.

    It holds at most `entries_max` items: entries of ranges, and ranges of trees. An item takes
    about half a kilobyte. The file that was read last is kept even if it alone has more items. A
    run can have deleted a cached file: the caller decides whether it may still be read.
    """

    def __init__(self, storage: Storage, *, entries_max: int = ENTRIES_MAX) -> None:
        self._storage = storage
        self._entries_max = entries_max
        self._held: OrderedDict[tuple[str, str], Tree | Sequence[Entry]] = OrderedDict()
        self._weight = 0
        self._lock = Lock()

    def range(self, info: RangeInfo) -> Sequence[Entry]:
        """Returns the entries of a range. Raises as `read_range` does."""
        found = self._get(
            (info.address, info.checksum), lambda: tuple(read_range(self._storage, info))
        )
        return cast("Sequence[Entry]", found)

    def tree(self, tree_id: str, checksum: str) -> Tree:
        """Returns a tree. Raises as `read_tree` does."""
        found = self._get(
            (f"tree {tree_id}", checksum), lambda: read_tree(self._storage, tree_id, checksum)
        )
        return cast("Tree", found)

    def _get(
        self, key: tuple[str, str], load: Callable[[], Tree | Sequence[Entry]]
    ) -> Tree | Sequence[Entry]:
        with self._lock:
            if key in self._held:
                self._held.move_to_end(key)
                return self._held[key]
        # Read without the lock: two threads can read the same file, but none waits for another.
        loaded = load()
        with self._lock:
            if key not in self._held:
                self._held[key] = loaded
                self._weight += _weight(loaded)
            while self._weight > self._entries_max and len(self._held) > 1:
                _, dropped = self._held.popitem(last=False)
                self._weight -= _weight(dropped)
        return loaded


def _weight(held: Tree | Sequence[Entry]) -> int:
    return 1 + (len(held.ranges) if isinstance(held, Tree) else len(held))
