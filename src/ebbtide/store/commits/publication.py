"""The end of every commit, merge and revert: a tree is written, then the branch moves to it.

In between, the tree's files are registered writes, so that no run deletes them. The transaction
that moves the branch checks again everything that the result refers to. If another commit of the
same branch was first, `until_published` makes the commit again. Not for: choosing the changes
(`commits`, `merges`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from threading import Lock
from typing import Final
from weakref import WeakValueDictionary

from ebbtide.errors import Conflict, Failed, InvalidInput, Refused
from ebbtide.ids import new_id
from ebbtide.model import EPOCH, ONE_MICROSECOND
from ebbtide.retention.dates import to_utc
from ebbtide.store.content.trees import PathChange, Tree, apply_changes, write_tree
from ebbtide.store.context import RepositoryContext
from ebbtide.store.database.commit_rows import (
    CommitRecord,
    find_commits,
    insert_commit,
    require_intact_commits,
    require_still_intact,
)
from ebbtide.store.database.engine import Transaction
from ebbtide.store.names import check_metadata, check_text
from ebbtide.store.refs.protection import require_unprotected
from ebbtide.store.refs.ref_rows import (
    BRANCH_ATTEMPTS_MAX,
    BranchRow,
    insert_reflog,
    require_branch,
    update_branch,
)
from ebbtide.store.staging.pending_writes import Writes, publish_writes
from ebbtide.store.staging.staged_rows import take_up_staged

MESSAGE_BYTES_MAX: Final = 64 * 1024
COMMITTER_BYTES_MAX: Final = 255
OVERTAKEN_BY_MAX: Final = 1000
_NOTHING: Final = Tree("")


@dataclass(frozen=True, slots=True)
class CommitDetails:
    """Everything that a committer says about a commit.

    If `date` is None, the commit has the time of publishing. `date` means any instant within
    `date_precision` after it.
    """

    message: str
    committer: str = ""
    date: datetime | None = None
    metadata: Mapping[str, str] = field(default_factory=dict, hash=False)
    date_precision: timedelta = timedelta(0)

    def check(self) -> None:
        """Raises InvalidInput `invalid_argument` or `invalid_date`."""
        check_text("the message", self.message, bytes_max=MESSAGE_BYTES_MAX)
        check_text("the committer", self.committer, bytes_max=COMMITTER_BYTES_MAX)
        check_metadata(self.metadata)
        if self.date is not None:
            to_utc(self.date, what="the commit's date")


@dataclass(frozen=True, slots=True)
class BuiltTree:
    """A tree whose files are all written. `registered` are the addresses of those files that are
    not published yet."""

    tree_id: str
    checksum: str
    registered: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """A commit to publish, and everything that it refers to.

    `branch` is as it was when the work began. If `commits_staged`, the rows under its sealed tokens
    are dropped. The tree may have entries of the commits in `parent_ids` and `source_ids`.

    The publishing transaction calls `first` before it locks anything, and `last` with the commit
    when all is written. An error of either prevents the commit.
    """

    branch: BranchRow
    parent_ids: tuple[str, ...]
    tree: BuiltTree
    details: CommitDetails
    source_ids: tuple[str, ...] = ()
    commits_staged: bool = False
    first: Callable[[Transaction], None] | None = None
    last: Callable[[Transaction, CommitRecord], None] | None = None


class Overtaken(Conflict):
    """Another commit of the branch was first. `source_id` is the commit that was to be merged,
    reverted or picked; it is empty for a commit of staged changes."""

    source_id = ""


@contextmanager
def building(
    context: RepositoryContext, parent: CommitRecord | None, changes: Iterable[PathChange]
) -> Iterator[BuiltTree]:
    """Applies changes to the parent's tree, or to an empty one. The block publishes the result.

    If nothing changes, the result is the parent's own tree. If the block fails, the written files
    are deleted, unless they were published.

    Raises as `apply_changes` does. Raises Gone `commit_expired` if the parent expired meanwhile,
    and Refused `clock_skew` if the clocks of the storage and the database are too far apart.
    """
    writes = Writes(context)
    registered: list[str] = []

    def register(address: str) -> None:
        registered.append(address)
        writes.register([address])

    try:
        with writes.abandoning(registered):
            yield _build(context, parent, changes, register, registered)
    except Refused:
        if parent is not None:
            # If the parent expired meanwhile, its files can be missing. This is no damage.
            with context.metadata.snapshot() as tx:
                require_still_intact(tx, context.repository_id, [parent])
        raise


def _build(
    context: RepositoryContext,
    parent: CommitRecord | None,
    changes: Iterable[PathChange],
    register: Callable[[str], None],
    registered: list[str],
) -> BuiltTree:
    base = _NOTHING if parent is None else context.tree_of(parent)
    ranges = apply_changes(
        context.storage,
        base,
        changes,
        register=register,
        target_entries=context.settings.range_entries_target,
        read=context.cache.range,
    )
    if parent is not None and ranges == base.ranges:
        return BuiltTree(*parent.require_tree(), tuple(registered))
    tree = Tree(new_id(), ranges)
    register(tree.address)
    checksum = write_tree(context.storage, tree)
    _check_storage_clock(context, tree.address)
    return BuiltTree(tree.tree_id, checksum, tuple(registered))


def publish(context: RepositoryContext, publication: Publication) -> CommitRecord:
    """Makes the commit, and moves the branch to it.

    Raises Conflict `branch_moved` if another commit was first, or the staged changes were reset.
    Raises Conflict `write_expired`; Gone `commit_expired` if a commit that the new commit refers to
    expired meanwhile; InvalidInput `invalid_date`; NotFound `branch_not_found`.
    """
    repository_id = context.repository_id
    before = publication.branch
    with context.changing(first=publication.first) as tx:
        branch = require_branch(tx, repository_id, before.name, lock="exclusive")
        _require_unmoved(tx, repository_id, branch, publication)
        if publication.commits_staged:
            # A rule may have been set since the commit began. Rules do not concern other commits.
            require_unprotected(tx, repository_id, branch, act="commit to")
        rests_on = require_intact_commits(
            tx, repository_id, (*publication.parent_ids, *publication.source_ids)
        )
        publish_writes(tx, repository_id, publication.tree.registered)
        parents = [rests_on[commit_id] for commit_id in publication.parent_ids]
        commit = _record(tx, publication, parents)
        insert_commit(tx, repository_id, commit)
        insert_reflog(
            tx, repository_id, kind="branch", name=branch.name, commit_id=branch.commit_id
        )
        sealed = branch.sealed_tokens
        if publication.commits_staged:
            # Newer sealed tokens stay, for the commit that sealed them or for the next one.
            sealed = sealed[: len(sealed) - len(before.sealed_tokens)]
            take_up_staged(
                tx,
                repository_id,
                before.sealed_tokens,
                lease_ttl=context.settings.lease_ttl,
            )
        update_branch(
            tx, repository_id, branch.branch_id, commit_id=commit.commit_id, sealed_tokens=sealed
        )
        if publication.last is not None:
            publication.last(tx, commit)
    return commit


def _require_unmoved(
    tx: Transaction, repository_id: str, now: BranchRow, publication: Publication
) -> None:
    """Raises Overtaken if the branch has a newer commit, and Conflict `branch_moved` unless it is
    the same branch with the same commit and sealed tokens.

    Newer sealed tokens can stand before these. A branch that was moved back is not overtaken: after
    a hard reset, a commit that is made again would take up what was staged since.
    """
    before = publication.branch
    is_overtaken = now.branch_id == before.branch_id and now.commit_id != before.commit_id
    if is_overtaken and _follows(tx, repository_id, now.commit_id, before.commit_id):
        overtaken = Overtaken(
            "branch_moved",
            f"branch {before.name!r} was committed to meanwhile: look at it and try again; staged "
            "changes that the other commit does not have are still there",
        )
        overtaken.source_id = next(iter(publication.source_ids), "")
        raise overtaken
    count = len(before.sealed_tokens)
    is_same = (now.branch_id, now.commit_id) == (before.branch_id, before.commit_id) and (
        count == 0 or now.sealed_tokens[-count:] == before.sealed_tokens
    )
    if not is_same:
        raise Conflict(
            "branch_moved",
            f"branch {before.name!r} was reset or replaced meanwhile: look at it and try again",
        )


def _follows(tx: Transaction, repository_id: str, commit_id: str, earlier_id: str) -> bool:
    """Whether first parents lead from a commit to an earlier one, in a thousand steps at most."""
    for _ in range(OVERTAKEN_BY_MAX):
        if commit_id == earlier_id:
            return True
        commit = find_commits(tx, repository_id, [commit_id]).get(commit_id)
        if commit is None or not commit.parent_ids:
            return False
        commit_id = commit.parent_ids[0]
    return False


def _record(tx: Transaction, publication: Publication, parents: list[CommitRecord]) -> CommitRecord:
    details = publication.details
    now = tx.now()
    return CommitRecord(
        commit_id=new_id(),
        parent_ids=publication.parent_ids,
        created_at=_date(details, now=now, parents=parents),
        written_at=now,
        tree_id=publication.tree.tree_id,
        tree_checksum=publication.tree.checksum,
        message=details.message,
        committer=details.committer,
        metadata=dict(details.metadata),
    )


def _date(details: CommitDetails, *, now: datetime, parents: list[CommitRecord]) -> datetime:
    """Returns the commit's date, at least one microsecond after the dates of its parents.

    The log and the search for a common ancestor read commits by date, the newest first, and need
    each commit before its parents. Raises InvalidInput `invalid_date`.
    """
    youngest = max(parent.created_at for parent in parents)
    if details.date is None:
        return max(now, youngest + ONE_MICROSECOND)
    asked = to_utc(details.date, what="the commit's date")
    if asked > now:
        raise InvalidInput(
            "invalid_date",
            f"{asked} is in the future: it is {now}; leave the date out, or put it into the "
            "metadata",
        )
    if asked < EPOCH:
        raise InvalidInput(
            "invalid_date",
            f"{asked} is before 1970-01-01, the date of every repository's first commit: history "
            "before it can't be kept under its own dates; give later ones, and put the old ones "
            "into the metadata",
        )
    if asked < youngest and asked + details.date_precision <= youngest:
        raise InvalidInput(
            "invalid_date",
            f"{asked} is before the parent's date, {youngest}: commit an imported history in the "
            "order of its dates, or put the date into the metadata",
        )
    return max(asked, youngest + ONE_MICROSECOND)


def _check_storage_clock(context: RepositoryContext, address: str) -> None:
    """Raises Refused `clock_skew` if the clocks of the storage and the database are too far apart.

    Ages are computed from the dates of both. Raises Failed `storage_error` if the file is not
    there.
    """
    written = context.storage.head(address)
    if written is None:
        raise Failed("storage_error", f"{address} was written, but is missing: check the storage")
    with context.metadata.snapshot() as tx:
        apart = abs(context.clock.storage_time(written.last_modified) - tx.now())
    if apart > context.settings.clock_skew_max:
        raise Refused(
            "clock_skew",
            f"the storage's clock and the database's are {apart.total_seconds():.0f} s apart: "
            "set them right, then try again; nothing was committed",
        )


_queues: Final = WeakValueDictionary[tuple[str, str], Lock]()
_queues_lock: Final = Lock()


def until_published(
    context: RepositoryContext, branch: str, make: Callable[[str], CommitRecord], ref: str = ""
) -> CommitRecord:
    """Calls `make` with `ref`, and again while other commits of the branch are first, at most ten
    times.

    Each attempt begins at the branch's new commit, so that the result is the same as if the request
    had come later. `ref` can depend on the branch, as `main~1` does. Therefore a later attempt gets
    the id of the commit that `ref` named in the first one.

    In one process, the later attempts for a branch wait for each other. Otherwise many clients
    would overtake each other, and some of them ten times.

    Raises as `make` does. It raises Conflict `branch_moved` after the last attempt, or if the
    branch was reset or replaced: then the result would not mean the same.
    """
    try:
        return make(ref)
    except Overtaken as error:
        ref = error.source_id or ref
    with _queue(context.repository_id, branch):
        for _ in range(BRANCH_ATTEMPTS_MAX - 2):
            try:
                return make(ref)
            except Overtaken as error:
                ref = error.source_id or ref
        return make(ref)


def _queue(repository_id: str, branch: str) -> Lock:
    """Returns the lock of a branch. It is the same one as long as any thread uses it."""
    with _queues_lock:
        return _queues.setdefault((repository_id, branch), Lock())
