"""Queries: commits, their stubs, the holds on them, and the commits that a run closed or forgot.

Not for: closing and forgetting (`gc.run_metadata`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa

from ebbtide.documents import HIDDEN, documented, in_document
from ebbtide.errors import Gone, NotFound
from ebbtide.model import Hold
from ebbtide.quarantined import closed_text
from ebbtide.store.database.engine import Transaction
from ebbtide.store.database.rows import Rows, in_batches
from ebbtide.store.database.schema import commits, holds
from ebbtide.text import shown

ID_LENGTH: Final = 32


@documented
@dataclass(frozen=True, slots=True, kw_only=True)
class CommitRecord:
    """One commit. Of a forgotten commit only ids, dates and runs are left, and `tree_id` is None.

    `tombstoned_by` names the run that closed the commit, `forgotten_by` the run that forgot its
    record. `written_at` is the database's time when the commit was made; a client may ask for
    another `created_at`. A record with a `collection_id` is content that was made for that
    collection.
    """

    commit_id: str
    parent_ids: tuple[str, ...]
    created_at: datetime
    written_at: datetime
    tree_id: str | None
    tree_checksum: str | None = field(metadata=HIDDEN)
    message: str = ""
    committer: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict, hash=False)
    leased_until: datetime | None = field(default=None, metadata=HIDDEN)
    tombstoned_by: str | None = field(default=None, metadata=HIDDEN)
    tombstoned_at: datetime | None = field(default=None, metadata=HIDDEN)
    forgotten_by: str | None = field(default=None, metadata=HIDDEN)
    given_up_reason: str | None = field(default=None, metadata=HIDDEN)
    given_up_at: datetime | None = field(default=None, metadata=HIDDEN)
    collection_id: str | None = field(default=None, metadata=HIDDEN)

    @property
    def is_intact(self) -> bool:
        """Whether the commit has all its data, so that it can be read and built upon."""
        return self.tombstoned_by is None and self.forgotten_by is None and self.given_up_at is None

    @property
    def closed_by(self) -> str | None:
        """The run that closed the commit, or forgot its record; None for other commits."""
        return self.forgotten_by or self.tombstoned_by

    @property
    @in_document
    def run_id(self) -> str | None:
        """The run of `closed_by`."""
        return self.closed_by

    @property
    @in_document
    def state(self) -> str:
        """The state: `intact`, `expired`, `forgotten` or `given up`."""
        if self.given_up_at is not None:
            return "given up"
        if self.forgotten_by is not None:
            return "forgotten"
        return "intact" if self.tombstoned_by is None else "expired"

    def require_intact(self) -> None:
        """Raises Gone `commit_expired` if a run closed the commit, with the id of the run, or if
        the commit was given up. What became of the data is told later, outside of transactions:
        see `Store.tell`."""
        if self.given_up_at is not None:
            raise Gone(
                "commit_expired",
                f"commit {self.commit_id} was given up as damaged: {self.given_up_reason}",
                commit_id=self.commit_id,
                run_id=None,
            )
        run_id = self.closed_by
        if run_id is not None:
            raise Gone(
                "commit_expired",
                f"commit {self.commit_id} has expired: {closed_text(run_id)}",
                commit_id=self.commit_id,
                run_id=run_id,
            )

    def require_tree(self) -> tuple[str, str]:
        """Returns the id and the checksum of the commit's tree.

        Raises Gone `commit_expired` if the commit was forgotten or given up: nothing keeps the tree
        then.
        """
        if self.given_up_at is not None or self.tree_id is None or self.tree_checksum is None:
            self.require_intact()
            raise AssertionError(f"commit {self.commit_id} has no tree, but it has not expired")
        return self.tree_id, self.tree_checksum


COMMITS: Final = Rows(commits, CommitRecord, commits.c.commit_id)


def insert_commit(tx: Transaction, repository_id: str, commit: CommitRecord) -> None:
    """Records a commit."""
    COMMITS.insert(tx, commit, repository_id=repository_id)


_BY_IDS: Final = COMMITS.select(
    commits.c.repository_id == sa.bindparam("repository_id"),
    commits.c.commit_id.in_(sa.bindparam("commit_ids", expanding=True)),
)
"""Built once: many requests run this statement, and building it takes longer than running it."""
_BY_ID: Final = COMMITS.select(
    commits.c.repository_id == sa.bindparam("repository_id"),
    commits.c.commit_id == sa.bindparam("commit_id"),
)
"""For one commit. SQLAlchemy writes a statement with a list anew for each list."""


def find_commits(
    tx: Transaction, repository_id: str, commit_ids: Collection[str]
) -> dict[str, CommitRecord]:
    """Returns the commits that exist, by id, also stubs."""
    found: dict[str, CommitRecord] = {}
    for batch in in_batches(sorted(commit_ids)):
        rows = COMMITS.each(tx, _BY_IDS, {"repository_id": repository_id, "commit_ids": batch})
        found.update((row.commit_id, row) for row in rows)
    return found


def require_commit(tx: Transaction, repository_id: str, commit_id: str) -> CommitRecord:
    """Returns one commit, or its stub. Raises NotFound `commit_not_found`."""
    found = COMMITS.one(tx, _BY_ID, {"repository_id": repository_id, "commit_id": commit_id})
    if found is None:
        raise NotFound("commit_not_found", f"there is no commit {shown(commit_id)}")
    return found


def require_intact_commits(
    tx: Transaction, repository_id: str, commit_ids: Collection[str]
) -> dict[str, CommitRecord]:
    """Returns the commits, by id, if all have their data. Call this in the transaction that makes a
    result visible: the answer is then final.

    Raises NotFound `commit_not_found`, Gone `commit_expired`.
    """
    found = {}
    for commit_id in commit_ids:
        found[commit_id] = require_commit(tx, repository_id, commit_id)
        found[commit_id].require_intact()
    return found


def require_still_intact(
    tx: Transaction, repository_id: str, records: Sequence[CommitRecord]
) -> list[CommitRecord]:
    """Returns the present records of commits and contents that were read earlier, if all still have
    their data.

    Raises Gone `commit_expired`.
    """
    found = find_commits(tx, repository_id, [commit.commit_id for commit in records])
    for commit in records:
        if commit.commit_id not in found:
            raise no_content(commit.commit_id)
        found[commit.commit_id].require_intact()
    return [found[commit.commit_id] for commit in records]


def no_content(commit_id: str) -> Gone:
    """Returns the error for forgotten content of a collection, which leaves no stub."""
    return Gone(
        "commit_expired",
        f"content {commit_id} has expired: a collector run closed it, and deleted its record",
        commit_id=commit_id,
        run_id=None,
    )


def commit_ids_with_prefix(tx: Transaction, repository_id: str, prefix: str) -> list[str]:
    """Returns at most two ids that begin with `prefix` (hexadecimal digits). Two are enough to see
    that the prefix is ambiguous."""
    rows = tx.execute(
        sa.select(commits.c.commit_id)
        .where(
            commits.c.repository_id == repository_id,
            commits.c.collection_id.is_(None),
            # The index answers a range under every collation that sorts digits before letters. It
            # answers a LIKE under few.
            commits.c.commit_id >= prefix.ljust(ID_LENGTH, "0"),
            commits.c.commit_id <= prefix.ljust(ID_LENGTH, "f"),
        )
        .order_by(commits.c.commit_id)
        .limit(2)
    )
    return list(rows.scalars())


def write_given_up(tx: Transaction, repository_id: str, commit_id: str, reason: str) -> None:
    """Records that an operator gave up a damaged commit."""
    mine = commits.c.repository_id == repository_id
    COMMITS.update(tx, commit_id, mine, given_up_reason=reason, given_up_at=tx.now())


def raise_lease(
    tx: Transaction, repository_id: str, commit_id: str, *, until: datetime, raised_to: datetime
) -> None:
    """Makes sure that a commit is leased until `until`. If its lease ends earlier, it is extended
    to `raised_to`, which is later than `until`. Most calls therefore write nothing."""
    ends_earlier = sa.or_(commits.c.leased_until.is_(None), commits.c.leased_until < until)
    mine = commits.c.repository_id == repository_id
    COMMITS.update(tx, commit_id, mine, ends_earlier, leased_until=raised_to)


HOLDS: Final = Rows(holds, Hold, holds.c.commit_id)


def insert_hold(tx: Transaction, repository_id: str, hold: Hold) -> None:
    """Records a hold. An earlier hold on the same commit is replaced."""
    delete_hold(tx, repository_id, hold.commit_id)
    HOLDS.insert(tx, hold, repository_id=repository_id)


def delete_hold(tx: Transaction, repository_id: str, commit_id: str) -> bool:
    """Releases a hold. Returns whether there was one."""
    result = tx.execute(
        sa.delete(holds)
        .where(holds.c.repository_id == repository_id, holds.c.commit_id == commit_id)
        .returning(holds.c.commit_id)
    )
    return bool(result.all())


def is_held(tx: Transaction, repository_id: str, commit_id: str) -> bool:
    """Whether there is a hold on the commit."""
    return HOLDS.by_id(tx, commit_id, holds.c.repository_id == repository_id) is not None


def list_holds(tx: Transaction, repository_id: str) -> list[Hold]:
    """Returns all holds, the oldest first."""
    query = HOLDS.select(holds.c.repository_id == repository_id)
    return HOLDS.all(tx, query.order_by(holds.c.created_at, holds.c.commit_id))


_DROPPED: Final = (
    commits.c.commit_id,
    commits.c.tree_id,
    commits.c.tree_checksum,
    commits.c.message,
    commits.c.committer,
    commits.c.metadata,
)
"""The id of a commit, and the columns that `forget` empties."""


def record_rows(
    tx: Transaction, repository_id: str, commit_ids: Collection[str]
) -> list[dict[str, Any]]:
    """Returns the columns that forgetting these commits would empty, one mapping for each commit.
    Contents of collections are left out."""
    found: list[dict[str, Any]] = []
    for batch in in_batches(sorted(commit_ids)):
        rows = tx.execute(
            sa.select(*_DROPPED).where(
                commits.c.repository_id == repository_id,
                commits.c.commit_id.in_(batch),
                commits.c.collection_id.is_(None),
                commits.c.tree_id.is_not(None),
            )
        )
        found += (dict(row._mapping) for row in rows)
    return found


def closed_rows(tx: Transaction, repository_id: str, *, run_id: str) -> list[dict[str, Any]]:
    """Returns `commit_id`, `tree_id` and `tree_checksum` of the commits that a run closed and whose
    records still exist."""
    rows = tx.execute(
        sa.select(commits.c.commit_id, commits.c.tree_id, commits.c.tree_checksum).where(
            commits.c.repository_id == repository_id,
            commits.c.tombstoned_by == run_id,
            commits.c.forgotten_by.is_(None),
        )
    )
    return [dict(row._mapping) for row in rows]


def put_back_records(
    tx: Transaction, repository_id: str, records: Sequence[Mapping[str, Any]], *, run_id: str
) -> None:
    """Restores the commit records that run `run_id` forgot. Stubs of other runs stay as they
    are."""
    for record in records:
        values = {name: value for name, value in record.items() if name != "commit_id"}
        tx.execute(
            sa.update(commits)
            .where(
                commits.c.repository_id == repository_id,
                commits.c.commit_id == record["commit_id"],
                commits.c.forgotten_by == run_id,
            )
            .values(**values, forgotten_by=None)
        )


def lease_commits(
    tx: Transaction, repository_id: str, commit_ids: Collection[str], *, until: datetime
) -> None:
    """Leases commits until `until`. A longer lease stays. Closed commits are left out."""
    later = sa.case(
        (commits.c.leased_until > until, commits.c.leased_until),
        else_=sa.literal(until, commits.c.leased_until.type),
    )
    update_commits(
        tx, repository_id, commit_ids, commits.c.tombstoned_by.is_(None), leased_until=later
    )


def update_commits(
    tx: Transaction,
    repository_id: str,
    commit_ids: Collection[str],
    condition: sa.ColumnElement[bool],
    **values: Any,  # column name to new value
) -> None:
    """Changes columns of those of the commits that meet a condition."""
    for batch in in_batches(sorted(commit_ids)):
        tx.execute(
            sa.update(commits)
            .where(
                commits.c.repository_id == repository_id,
                commits.c.commit_id.in_(batch),
                condition,
            )
            .values(**values)
        )
