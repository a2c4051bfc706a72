"""Walks over the graph of commits: logs, and what two commits have in common.

A commit is younger than its parents, so that going by date, the youngest first, meets each commit
behind all of its children.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush
from itertools import dropwhile, islice

from ebbtide.errors import InvalidInput
from ebbtide.model import EPOCH
from ebbtide.store.context import RepositoryContext
from ebbtide.store.metadata.commits import CommitRecord, find_commits, require_commit
from ebbtide.store.metadata.engine import Transaction
from ebbtide.store.metadata.schema import ONE_MICROSECOND
from ebbtide.store.revisions import resolve

LOG_MAX = 10_000


class _Youngest:
    """Commits that wait to be visited, the youngest first; one that waits is not added again."""

    def __init__(self, tx: Transaction, repository_id: str) -> None:
        self._tx = tx
        self._repository_id = repository_id
        self._heap: list[tuple[int, str]] = []
        self._waiting: dict[str, CommitRecord] = {}

    def __bool__(self) -> bool:
        return bool(self._heap)

    def add(self, commit: CommitRecord) -> None:
        """Let a commit wait."""
        if commit.commit_id not in self._waiting:
            self._waiting[commit.commit_id] = commit
            age = (EPOCH - commit.created_at) // ONE_MICROSECOND
            heappush(self._heap, (age, commit.commit_id))

    def add_parents(self, commit: CommitRecord) -> None:
        """Let a commit's parents wait. NotFound `commit_not_found` when a record is lost."""
        unseen = [parent_id for parent_id in commit.parent_ids if parent_id not in self._waiting]
        found = find_commits(self._tx, self._repository_id, unseen)
        for parent_id in unseen:
            parent = found.get(parent_id)
            self.add(parent or require_commit(self._tx, self._repository_id, parent_id))

    def pop(self) -> CommitRecord:
        """The youngest."""
        return self._waiting.pop(heappop(self._heap)[1])


def log(
    context: RepositoryContext, ref: str, *, first_parent: bool, after: str | None, amount: int
) -> list[CommitRecord]:
    """See `Commits.log`."""
    if not 1 <= amount <= LOG_MAX:
        raise InvalidInput("invalid_argument", f"amount is from 1 to {LOG_MAX}: {amount}")
    repository_id = context.repository_id
    with context.metadata.snapshot() as tx:
        head = resolve(tx, repository_id, ref).commit
        visit = _first_parents if first_parent else _ancestors
        found = visit(tx, repository_id, head)
        if after is not None:
            # Read to the place where the last part ended: a log has no other position, since
            # histories can be rewritten in between.
            found = islice(dropwhile(lambda commit: commit.commit_id != after, found), 1, None)
        return list(islice(found, amount))


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
    """The youngest commit that both descend from, or are; None where there is none.

    Of several that do not descend from one another (after merges in both directions) it is the
    youngest too. Stubs of forgotten commits are walked through like others: the answer may be
    one, and then nobody can tell any more what each side has changed since.
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
