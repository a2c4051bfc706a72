"""Three-way merge of trees, path by path. What both sides changed differently is a conflict,
which is reported and never guessed at."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from ebbtide.storage import Storage
from ebbtide.store.content.building import PathChange
from ebbtide.store.content.diffing import Change, diff_trees
from ebbtide.store.content.entries import same_content
from ebbtide.store.content.ranges import ReadRange
from ebbtide.store.content.trees import Tree

Strategy = Literal["source-wins", "dest-wins"]
"""Whose entry to take where both sides changed a path differently."""


@dataclass(frozen=True, slots=True)
class MergeChanges:
    """What a merge changes in the destination, ascending by path; can be iterated repeatedly.

    Each iteration reads the trees anew, so that a merge of any size fits in memory. Paths in
    conflict are left out unless a strategy decides them.
    """

    storage: Storage
    base: Tree
    source: Tree
    destination: Tree
    strategy: Strategy | None
    read: ReadRange | None

    def __iter__(self) -> Iterator[PathChange]:
        for path, theirs, ours in _sides(self):
            if theirs is None:
                continue
            if ours is None or (self.strategy == "source-wins" and _conflicting(theirs, ours)):
                yield path, theirs.right


@dataclass(frozen=True, slots=True)
class Merged:
    """The outcome of a merge: what to apply to the destination, and what stands in the way.

    `conflicts` are all paths in conflict, ascending; none where a strategy was given.
    `change_count` is the number of `changes`.
    """

    changes: MergeChanges
    change_count: int
    conflicts: tuple[str, ...]


def merge_trees(
    storage: Storage,
    base: Tree,
    source: Tree,
    destination: Tree,
    *,
    strategy: Strategy | None = None,
    read: ReadRange | None = None,
) -> Merged:
    """Merge what `source` changed since `base` into `destination`.

    A path that only the source changed is taken from it. One that only the destination changed,
    or that both changed to the same content, keeps the destination's entry, and so its address:
    bytes that were uploaded again without a difference are no change (see `same_content`). One
    that both changed differently, or one changed and the other deleted, is a conflict.

    Raises what `read_range` raises.
    """
    changes = MergeChanges(storage, base, source, destination, strategy, read)
    conflicts = []
    if strategy is None:
        conflicts = [
            path
            for path, theirs, ours in _sides(changes)
            if theirs is not None and ours is not None and _conflicting(theirs, ours)
        ]
    return Merged(changes, sum(1 for _ in changes), tuple(conflicts))


def _conflicting(theirs: Change, ours: Change) -> bool:
    return not same_content(theirs.right, ours.right)


def _sides(merge: MergeChanges) -> Iterator[tuple[str, Change | None, Change | None]]:
    """Each path that the source or the destination changed, with the change of each side."""
    sources = diff_trees(merge.storage, merge.base, merge.source, read=merge.read)
    destinations = diff_trees(merge.storage, merge.base, merge.destination, read=merge.read)
    theirs, ours = next(sources, None), next(destinations, None)
    while theirs is not None or ours is not None:
        path = min(change.path for change in (theirs, ours) if change is not None)
        from_source = theirs if theirs is not None and theirs.path == path else None
        from_destination = ours if ours is not None and ours.path == path else None
        yield path, from_source, from_destination
        if from_source is not None:
            theirs = next(sources, None)
        if from_destination is not None:
            ours = next(destinations, None)
