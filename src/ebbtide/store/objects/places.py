"""The entries of a branch at one path, read before a transaction that changes them.

The branch can change in between. The transaction locks it, and compares it with what was read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ebbtide.errors import NotFound
from ebbtide.escaping import shown
from ebbtide.store.content.entries import Entry
from ebbtide.store.content.reading import find_entry
from ebbtide.store.context import RepositoryContext
from ebbtide.store.database.commits import CommitRecord, require_commit
from ebbtide.store.database.engine import Transaction
from ebbtide.store.objects.deleting import same_base
from ebbtide.store.refs.protection import require_writable
from ebbtide.store.refs.queries import BranchRow
from ebbtide.store.staging.queries import Change, find_staged


class Changed(Exception):
    """The branch has changed since it was read. The caller reads it again."""


@dataclass(frozen=True, slots=True)
class Seen:
    """The entries of a branch at a path: in its commit, and staged by token."""

    branch: BranchRow
    commit: CommitRecord
    committed: Entry | None
    staged: Mapping[str, Change]

    @property
    def is_staged(self) -> bool:
        """Whether the visible entry at the path is staged."""
        return newest(self.branch, self.staged) is not None

    @property
    def shows_below(self) -> bool:
        """Whether an entry is visible without the staging token's row at the path."""
        for token in self.branch.sealed_tokens:
            if token in self.staged:
                return self.staged[token] is not None
        return self.committed is not None


def newest(branch: BranchRow, staged: Mapping[str, Change]) -> str | None:
    """Returns the newest of the branch's tokens that have a change, or None."""
    return next((token for token in branch.tokens if token in staged), None)


def look(context: RepositoryContext, branch_name: str, path: str) -> Seen:
    """Reads the entries of a branch at a path.

    Raises NotFound `branch_not_found`, `object_not_found`; Conflict `write_protected`.
    """
    with context.metadata.snapshot() as tx:
        branch = require_writable(tx, context.repository_id, branch_name)
        commit = require_commit(tx, context.repository_id, branch.commit_id)
        staged = staged_at(tx, context, branch, path)
    with context.reading(commit):
        tree = context.tree_of(commit)
        committed = find_entry(context.storage, tree, path, read=context.cache.range)
    seen = Seen(branch, commit, committed, staged)
    token = newest(branch, staged)
    if (committed if token is None else staged[token]) is None:
        raise NotFound("object_not_found", f"there is no object {shown(path)} on {branch_name!r}")
    return seen


def staged_at(
    tx: Transaction, context: RepositoryContext, branch: BranchRow, path: str
) -> dict[str, Change]:
    """Returns the changes that are staged at a path, by token."""
    found = find_staged(tx, context.repository_id, branch.tokens, [path])
    return {token: found[token][path] for token in branch.tokens if path in found[token]}


def locked(tx: Transaction, context: RepositoryContext, seen: Seen) -> BranchRow:
    """Locks the branch exclusively, and returns it. Raises Changed.

    The repository's row is locked before anything is read. A reading or a fence therefore sees the
    old path, or finds the record of a move.
    """
    tx.lock_repository(context.repository_id)
    branch = require_writable(tx, context.repository_id, seen.branch.name, lock="exclusive")
    if not same_base(seen.branch, branch):
        raise Changed
    return branch
