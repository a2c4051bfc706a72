"""The end of every commit, merge and revert: a tree is written, then the branch moves to it.

Between the two the tree's files are registered writes, so that no collector takes them. Everything
that the result rests on is checked again in the transaction that moves the branch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from ebbtide.errors import Conflict, EbbtideError, Failed, InvalidInput, Refused
from ebbtide.ids import new_id
from ebbtide.model import EPOCH, ONE_MICROSECOND
from ebbtide.retention.dates import to_utc
from ebbtide.store.content.building import PathChange, apply_changes
from ebbtide.store.content.trees import Tree, write_tree
from ebbtide.store.context import RepositoryContext
from ebbtide.store.metadata.branches import (
    BranchRow,
    insert_reflog,
    require_branch,
    update_branch,
)
from ebbtide.store.metadata.commits import (
    CommitRecord,
    insert_commit,
    require_intact_commits,
    require_still_intact,
)
from ebbtide.store.metadata.engine import Transaction
from ebbtide.store.metadata.pending import publish_writes
from ebbtide.store.metadata.staged import take_up_staged
from ebbtide.store.names import check_metadata, check_text
from ebbtide.store.writes import Writes

MESSAGE_BYTES_MAX: Final = 64 * 1024
COMMITTER_BYTES_MAX: Final = 255
_NOTHING: Final = Tree("")


@dataclass(frozen=True, slots=True)
class CommitDetails:
    """What a committer says about a commit. `date` None is the time of publishing; a date stands
    for any instant within `date_precision` from it on."""

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
    """A tree whose files are all written; `registered` are those that are not published yet."""

    tree_id: str
    checksum: str
    registered: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """What is to be published, and what it rests on.

    `branch` is as it was when the work began; what is staged under its sealed tokens is dropped
    if `commits_staged`. Entries of `parent_ids` and `source_ids` may be in the tree.
    """

    branch: BranchRow
    parent_ids: tuple[str, ...]
    tree: BuiltTree
    details: CommitDetails
    source_ids: tuple[str, ...] = ()
    commits_staged: bool = False


@contextmanager
def building(
    context: RepositoryContext, parent: CommitRecord | None, changes: Iterable[PathChange]
) -> Iterator[BuiltTree]:
    """The parent's tree, or an empty one, with changes made to it, to be published in the block.

    A tree that comes out as it was is the parent's own. When the block fails, what was written is
    deleted, unless it was published after all. Raises as `apply_changes`, Gone `commit_expired`
    when the parent was let go meanwhile, and Refused `clock_skew` when the storage's clock and the
    database's are too far apart.
    """
    writes = Writes(context)
    registered: list[str] = []

    def register(address: str) -> None:
        registered.append(address)
        writes.register([address])

    try:
        yield _build(context, parent, changes, register, registered)
    except BaseException as error:
        # The first error is the one to tell. What this cannot clear away ends by itself.
        with suppress(EbbtideError):
            writes.abandon(registered)
        if parent is not None and isinstance(error, Refused):
            # Of a parent that was let go meanwhile files may be gone, and nothing is wrong with it.
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
    """Make the commit and move the branch to it.

    Raises Conflict `branch_moved` (another commit was first, or the staged changes were reset),
    `write_expired`; Gone `commit_expired` when anything it rests on was let go meanwhile;
    InvalidInput `invalid_date`; NotFound `branch_not_found`.
    """
    repository_id = context.repository_id
    before = publication.branch
    with context.changing() as tx:
        branch = require_branch(tx, repository_id, before.name, lock="exclusive")
        _require_unmoved(branch, before)
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
            # What was sealed since stays, for the commit that sealed it or the next.
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
    return commit


def _require_unmoved(now: BranchRow, before: BranchRow) -> None:
    """Newer tokens may have been sealed in front; what was sealed before must still be there."""
    count = len(before.sealed_tokens)
    is_same = (
        now.branch_id == before.branch_id
        and now.commit_id == before.commit_id
        and (count == 0 or now.sealed_tokens[-count:] == before.sealed_tokens)
    )
    if not is_same:
        raise Conflict(
            "branch_moved",
            f"branch {before.name!r} was committed to or reset meanwhile: look at it and try "
            "again; what is staged on it is still there",
        )


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
    """A commit is younger than its parents, by a microsecond at least."""
    youngest = max(parent.created_at for parent in parents)
    if details.date is None:
        return max(now, youngest + ONE_MICROSECOND)
    asked = to_utc(details.date, what="the commit's date")
    if asked > now:
        raise InvalidInput("invalid_date", f"{asked} is in the future: it is {now}")
    if asked < EPOCH:
        raise InvalidInput(
            "invalid_date",
            f"{asked} is before 1970-01-01, the date of every repository's first commit: history "
            "before it can't be kept under its own dates; give later ones, and put the old ones "
            "into the metadata",
        )
    if asked < youngest and asked + details.date_precision <= youngest:
        raise InvalidInput("invalid_date", f"{asked} is before the parent's date, {youngest}")
    return max(asked, youngest + ONE_MICROSECOND)


def _check_storage_clock(context: RepositoryContext, address: str) -> None:
    """Ages are told from the storage's dates and the database's: they must be of one time."""
    written = context.storage.head(address)
    if written is None:
        raise Failed(
            "storage_error", f"{address} was written and is not there: look at the storage"
        )
    with context.metadata.snapshot() as tx:
        apart = abs(context.clock.storage_time(written.last_modified) - tx.now())
    if apart > context.settings.clock_skew_max:
        raise Refused(
            "clock_skew",
            f"the storage's clock and the database's are {apart.total_seconds():.0f} s apart: "
            "set them right, then try again; nothing was committed",
        )
