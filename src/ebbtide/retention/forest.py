"""The forest of first parents: each commit is a child of its first parent. And what refs reach.

Commits are indexes into lists here, because a history of a million commits is read several times.
Nothing is recursive, and no branch is walked on its own: branches share most of their history. Not
for: any rule. Source: lakeFS issue 1932, "Definitions" and "Dangling Commits".
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from operator import attrgetter, lt
from typing import Final

from ebbtide.errors import InvalidInput, Refused
from ebbtide.model import Commit, Ref
from ebbtide.retention.dates import to_utc

NO_PARENT: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """Commits in an order in which each first parent comes before its children.

    A pass over the history therefore needs no recursion, and reads memory in sequence. `index` maps
    each id to its position. `parent` has the position of each commit's first parent, or `NO_PARENT`
    if it has none among the commits.
    """

    commits: tuple[Commit, ...]
    index: dict[str, int]
    parent: list[int]

    @classmethod
    def of(cls, commits: Iterable[Commit]) -> History:
        """Orders the commits. Raises InvalidInput `invalid_argument` for a duplicate id or a
        cycle."""
        known = tuple(commits)
        # Parents are usually older than their children. If not, the order is repaired below. A date
        # without a zone cannot be compared; the functions that read dates report it.
        with suppress(TypeError):
            known = tuple(sorted(known, key=attrgetter("created_at")))
        index = _index(known)
        if len(index) != len(known):
            raise InvalidInput(
                "invalid_argument", "a commit id is given twice: give each commit once"
            )
        parent = _first_parents(known, index)
        if not all(map(lt, parent, range(len(parent)))):
            known = tuple(known[position] for position in reversed(_children_first(parent)))
            index = _index(known)
            parent = _first_parents(known, index)
        return cls(commits=known, index=index, parent=parent)

    def index_of(self, ref: Ref) -> int:
        """Returns the position of the ref's own commit. Raises Refused `commit_not_found`.

        If a ref points at a missing commit, the history is not complete. No conclusion about
        unneeded commits is reliable then.
        """
        position = self.index.get(ref.commit_id)
        if position is None:
            raise Refused(
                "commit_not_found",
                f"{ref.kind} {ref.name} points at commit {ref.commit_id}, which is not among the "
                "commits: find out why before any commit expires",
                ref=ref.name,
                commit_id=ref.commit_id,
            )
        return position


@dataclass(frozen=True, slots=True, kw_only=True)
class Forest:
    """The commits, followed by one hypothetical child for each dangling head, as parallel lists.

    Each first parent comes before its children. `dangling_heads` are the commits that are no first
    parent and no head of a branch; contents of collections are left out. Position `len(commits) +
    k` is the child of the k-th dangling head.
    """

    history: History
    parent: list[int]
    created_at: list[datetime]
    tombstoned: list[bool]
    dangling_heads: list[int]

    @classmethod
    def of(cls, history: History, branch_heads: Collection[int]) -> Forest:
        """Returns the forest over `history`, whose branches point at `branch_heads`.

        Raises InvalidInput `invalid_date` for a commit whose date has no zone.
        """
        child_counts = _child_counts(history.parent)
        heads = [
            position
            for position, children in enumerate(child_counts)
            if not children
            and position not in branch_heads
            and not history.commits[position].is_content
        ]
        # Sorted by id, so that the reason does not depend on the order of the commits.
        heads.sort(key=lambda head: history.commits[head].commit_id)
        created_at = [
            commit.created_at
            if commit.created_at.tzinfo is UTC  # true of nearly all dates: no name is formatted
            else to_utc(commit.created_at, what=f"commit {commit.commit_id}")
            for commit in history.commits
        ]
        return cls(
            history=history,
            parent=history.parent + heads,
            created_at=created_at + [created_at[head] for head in heads],
            tombstoned=[commit.tombstoned for commit in history.commits] + [False] * len(heads),
            dangling_heads=heads,
        )

    def dangling_children(self) -> range:
        """Returns the positions of the hypothetical children, in the order of `dangling_heads`."""
        first = len(self.history.commits)
        return range(first, first + len(self.dangling_heads))

    def parents_first(self) -> range:
        """Returns all positions, each first parent before its children."""
        return range(len(self.parent))

    def children_first(self) -> range:
        """Returns all positions, each first parent after its children."""
        return range(len(self.parent) - 1, -1, -1)


def main_ancestries(parent: Sequence[int], starts: Iterable[int]) -> bytearray:
    """Returns 1 for each position on the main ancestry of one of the starts, and 0 for all
    others."""
    found = bytearray(len(parent))
    for position in starts:
        found[position] = True
    for position in range(len(parent) - 1, -1, -1):
        if found[position] and parent[position] != NO_PARENT:
            found[parent[position]] = True
    return found


def _index(commits: Sequence[Commit]) -> dict[str, int]:
    return {commit.commit_id: position for position, commit in enumerate(commits)}


def _first_parents(commits: Sequence[Commit], index: dict[str, int]) -> list[int]:
    get = index.get
    return [
        get(commit.parent_ids[0], NO_PARENT) if commit.parent_ids else NO_PARENT
        for commit in commits
    ]


def _children_first(parent: Sequence[int]) -> list[int]:
    child_counts = _child_counts(parent)
    order = [position for position, children in enumerate(child_counts) if not children]
    for position in order:  # grows: a parent is added after its last child
        above = parent[position]
        if above != NO_PARENT:
            child_counts[above] -= 1
            if not child_counts[above]:
                order.append(above)
    if len(order) != len(parent):
        raise InvalidInput(
            "invalid_argument", "some commits are their own ancestors: the history is damaged"
        )
    return order


def _child_counts(parent: Sequence[int]) -> list[int]:
    counts = [0] * len(parent)
    for position in parent:
        if position != NO_PARENT:
            counts[position] += 1
    return counts


def reached_from(
    history: History, starts: Iterable[int], *, new_parents: Mapping[str, tuple[str, ...]]
) -> dict[int, int]:
    """Returns every commit that a start reaches, mapped to the index of the first start that does.

    `new_parents` replaces the parents of the commits in it. A parent that is not among the commits
    ends its line.
    """
    reached: dict[int, int] = {}
    for which, start in enumerate(starts):
        pending = [start]
        while pending:
            position = pending.pop()
            if position in reached:
                continue
            reached[position] = which
            commit = history.commits[position]
            for parent_id in new_parents.get(commit.commit_id, commit.parent_ids):
                parent = history.index.get(parent_id)
                if parent is not None and parent not in reached:
                    pending.append(parent)
    return reached
