"""Walks over the graph of commits: logs, and the common commits of two commits.

Every commit is younger than its parents. A walk by date, the youngest first, therefore meets each
commit after all of its children.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from heapq import heappop, heappush
from itertools import islice

from ebbtide.errors import InvalidInput
from ebbtide.model import EPOCH, ONE_MICROSECOND
from ebbtide.retention.dates import to_utc
from ebbtide.store.content.differences import diff_trees
from ebbtide.store.content.entries import same_content
from ebbtide.store.content.trees import find_entry
from ebbtide.store.context import RepositoryContext
from ebbtide.store.database.commit_rows import CommitRecord, find_commits, require_commit
from ebbtide.store.database.engine import Transaction
from ebbtide.store.refs.revisions import resolve
from ebbtide.text import shown

LOG_MAX = 10_000


class _Youngest:
    """A queue of commits to visit, the youngest first. No commit is in it twice."""

    def __init__(self, tx: Transaction, repository_id: str) -> None:
        self._tx = tx
        self._repository_id = repository_id
        self._heap: list[tuple[int, str]] = []
        self._waiting: dict[str, CommitRecord] = {}

    def __bool__(self) -> bool:
        return bool(self._heap)

    def add(self, commit: CommitRecord) -> None:
        """Adds a commit, unless it is in the queue."""
        if commit.commit_id not in self._waiting:
            self._waiting[commit.commit_id] = commit
            age = (EPOCH - commit.created_at) // ONE_MICROSECOND
            heappush(self._heap, (age, commit.commit_id))

    def add_parents(self, commit: CommitRecord) -> None:
        """Adds a commit's parents. Raises NotFound `commit_not_found` if a record is lost."""
        unseen = [parent_id for parent_id in commit.parent_ids if parent_id not in self._waiting]
        found = find_commits(self._tx, self._repository_id, unseen)
        for parent_id in unseen:
            parent = found.get(parent_id)
            self.add(parent or require_commit(self._tx, self._repository_id, parent_id))

    def pop(self) -> CommitRecord:
        """Removes the youngest commit, and returns it."""
        return self._waiting.pop(heappop(self._heap)[1])


@dataclass(frozen=True, slots=True)
class Wanted:
    """The commits that a log shows. The fields are arguments of `Commits.log`."""

    first_parent: bool = False
    since: datetime | None = None
    stop_at: str | None = None
    paths: tuple[str, ...] = ()
    prefixes: tuple[str, ...] = ()


def log(
    context: RepositoryContext, ref: str, wanted: Wanted, *, after: str | None, amount: int
) -> list[CommitRecord]:
    """Returns the commits of a log, the youngest first, as `Commits.log` describes."""
    if not 1 <= amount <= LOG_MAX:
        raise InvalidInput("invalid_argument", f"amount is from 1 to {LOG_MAX}: {amount}")
    if wanted.since is not None:
        wanted = replace(wanted, since=to_utc(wanted.since, what="since"))
    repository_id = context.repository_id
    with context.metadata.snapshot() as tx:
        head = resolve(tx, repository_id, ref).commit
        visit = _first_parents if wanted.first_parent else _ancestors
        found = visit(tx, repository_id, head)
        if wanted.since is not None or wanted.stop_at is not None:
            found = _shortened(tx, repository_id, found, wanted)
        if after is not None:
            found = _behind(tx, repository_id, found, after)
        if wanted.paths or wanted.prefixes:
            found = (c for c in found if _touches(context, tx, c, wanted))
        return list(islice(found, amount))


def _shortened(
    tx: Transaction, repository_id: str, found: Iterator[CommitRecord], wanted: Wanted
) -> Iterator[CommitRecord]:
    stop = None
    if wanted.stop_at is not None:
        stop = resolve(tx, repository_id, wanted.stop_at).commit.commit_id
    for commit in found:
        if wanted.since is not None and commit.created_at < wanted.since:
            continue
        yield commit
        if commit.commit_id == stop:
            return


def _behind(
    tx: Transaction, repository_id: str, found: Iterator[CommitRecord], after: str
) -> Iterator[CommitRecord]:
    """Returns the rest of a log, behind the commit that `after` names.

    A position is always a commit, because the history of a ref can change between two pages. If
    `after` is no longer in the log, the rest is unknown, and this raises InvalidInput
    `invalid_argument`. An empty page would look like the end of the log.
    """
    last = resolve(tx, repository_id, after).commit.commit_id
    for commit in found:
        if commit.commit_id == last:
            return found
    raise InvalidInput(
        "invalid_argument",
        f"{shown(after)} is not in this log, or the history has changed since: list it anew from "
        "its beginning",
    )


def _touches(
    context: RepositoryContext, tx: Transaction, commit: CommitRecord, wanted: Wanted
) -> bool:
    """Whether a commit changed a wanted path against its first parent.

    The answer is no if the commit has no parent, or if one of the two was forgotten or given up.
    """
    if not commit.parent_ids or commit.tree_id is None:
        return False
    parent = require_commit(tx, context.repository_id, commit.parent_ids[0])
    if parent.tree_id is None or commit.given_up_at or parent.given_up_at:
        return False
    trees = context.tree_of(parent), context.tree_of(commit)
    for path in wanted.paths:
        before, now = (
            find_entry(context.storage, tree, path, read=context.cache.range) for tree in trees
        )
        if not same_content(before, now):
            return True
    return any(
        next(diff_trees(context.storage, *trees, prefix=prefix, read=context.cache.range), None)
        is not None
        for prefix in wanted.prefixes
    )


def _first_parents(
    tx: Transaction, repository_id: str, head: CommitRecord
) -> Iterator[CommitRecord]:
    commit = head
    while True:
        yield commit
        if not commit.parent_ids:
            return
        commit = require_commit(tx, repository_id, commit.parent_ids[0])


def _ancestors(tx: Transaction, repository_id: str, head: CommitRecord) -> Iterator[CommitRecord]:
    waiting = _Youngest(tx, repository_id)
    waiting.add(head)
    while waiting:
        commit = waiting.pop()
        yield commit
        waiting.add_parents(commit)


def merge_base(
    tx: Transaction, repository_id: str, left: CommitRecord, right: CommitRecord
) -> CommitRecord | None:
    """Returns the youngest common ancestor of two commits, or None.

    A commit counts as its own ancestor. After merges in both directions, several common ancestors
    can exist that do not descend from one another. The result is the youngest of them. Stubs of
    forgotten commits are followed like commits. If the result is a stub, its data is unknown, and
    so are the changes of both sides since.
    """
    waiting = _Youngest(tx, repository_id)
    sides: dict[str, set[str]] = {}
    for side, commit in (("left", left), ("right", right)):
        waiting.add(commit)
        sides.setdefault(commit.commit_id, set()).add(side)
    while waiting:
        commit = waiting.pop()
        reached_from = sides.pop(commit.commit_id)
        if len(reached_from) == 2:
            return commit
        for parent_id in commit.parent_ids:
            sides.setdefault(parent_id, set()).update(reached_from)
        waiting.add_parents(commit)
    return None
