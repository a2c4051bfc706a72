"""The metadata of one repository that a collector run reads and changes.

Each function works in a transaction of its caller. All transactions of a run are therefore in one
place (`formats/embedded.py`). Not for: deciding what is deleted, or changing the storage.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import chain
from typing import Any, Final

import sqlalchemy as sa

from ebbtide.model import Ref, RefKind
from ebbtide.retention import Policy
from ebbtide.retention.decision import CommitRow, Roots, micros_since_epoch, with_commits
from ebbtide.store.content.layout import DATA_PREFIX, slice_of
from ebbtide.store.database.commit_rows import update_commits
from ebbtide.store.database.engine import Transaction
from ebbtide.store.database.rows import Rows, in_batches
from ebbtide.store.database.schema import (
    branches,
    commits,
    dropped_tokens,
    gc_runs,
    holds,
    pending,
    reflog,
    repositories,
    tags,
    upload_tokens,
)
from ebbtide.store.doors import all_door_rows
from ebbtide.store.gc.references import drop_gone, read_kept
from ebbtide.store.purge_records import closed_purges
from ebbtide.store.staging.multipart_rows import drop_ended_uploads
from ebbtide.store.staging.released import Dropped, drop_tokens, release
from ebbtide.store.staging.staged_rows import drop_copies

ROWS_AT_ONCE: Final = 1_000


@dataclass(frozen=True, slots=True)
class RunRow:
    """The database's record of a run."""

    run_id: str
    run_url: str
    plan_checksum: str | None


_RUNS: Final = Rows(gc_runs, RunRow, gc_runs.c.run_id)


def read_roots(
    tx: Transaction, repository_id: str, *, lease_ttl: timedelta, trash_time: timedelta
) -> Roots:
    """Reads all rows that decide what is kept, at the database's time.

    A commit that an operator gave up is read as closed, and without the checksum of its tree. A
    commit that a ref pointed at within the last lease has `leased_until`.
    """
    head, batches = read_root_rows(tx, repository_id, lease_ttl=lease_ttl, trash_time=trash_time)
    return with_commits(head, chain.from_iterable(batches))


def read_root_rows(
    tx: Transaction, repository_id: str, *, lease_ttl: timedelta, trash_time: timedelta
) -> tuple[Roots, Iterator[list[CommitRow]]]:
    """Reads the rows of `read_roots`. The commits come separately, as rows in batches."""
    now = tx.now()
    collected = read_kept(tx, repository_id, now=now, lease_ttl=lease_ttl, trash_time=trash_time)
    promised = _promises(tx, repository_id, since=now - lease_ttl, lease_ttl=lease_ttl)
    for content_id, ends_at in collected.promised.items():
        promised[content_id] = max(ends_at, promised.get(content_id, ends_at))
    held = _holds(tx, repository_id)
    head = Roots(
        now=now,
        refs=(*_refs(tx, repository_id, gone_before=now - trash_time), *collected.refs),
        commits=(),
        stub_ids=frozenset(),
        tree_checksums={},
        policy=_policy(tx, repository_id, held),
        holds=held,
        trash_time=trash_time,
        warnings=tuple(_open_purges(tx, repository_id)),
    )
    return head, _commit_rows(tx, repository_id, promised)


def _promises(
    tx: Transaction, repository_id: str, *, since: datetime, lease_ttl: timedelta
) -> dict[str, datetime]:
    """Returns the commits that a ref pointed at after `since`, each with the end of its lease."""
    rows = tx.execute(
        sa.select(reflog.c.commit_id, sa.func.max(reflog.c.left_at).label("left_at"))
        .where(reflog.c.repository_id == repository_id, reflog.c.left_at > since)
        .group_by(reflog.c.commit_id)
    )
    return {row.commit_id: row.left_at + lease_ttl for row in rows}


def _open_purges(tx: Transaction, repository_id: str) -> Iterator[str]:
    """Yields a warning for each purge that has closed addresses, and is not done."""
    for purge_id in closed_purges(tx, repository_id):
        yield (
            f"purge {purge_id} is not done: files that it closed may still be on the storage. If "
            f"it is not running now, continue it: ebbtide purge resume {purge_id}"
        )


def _commit_rows(
    tx: Transaction, repository_id: str, promised: Mapping[str, datetime]
) -> Iterator[list[CommitRow]]:
    """Yields the rows of all commits, in batches. The values have the types of the database:
    converting each value would take longer than the rest of the reading."""
    is_given_up = commits.c.given_up_at.is_not(None)
    query = sa.select(
        commits.c.commit_id,
        sa.type_coerce(commits.c.parent_ids, sa.Text),
        sa.type_coerce(commits.c.created_at, sa.BigInteger),
        commits.c.tree_id,
        sa.case((is_given_up, None), else_=commits.c.tree_checksum),
        sa.type_coerce(commits.c.leased_until, sa.BigInteger),
        sa.cast(sa.or_(commits.c.tombstoned_by.is_not(None), is_given_up), sa.Integer),
        sa.cast(commits.c.collection_id.is_not(None), sa.Integer),
        sa.cast(commits.c.forgotten_by.is_not(None), sa.Integer),
    ).where(commits.c.repository_id == repository_id)
    ends = {commit_id: micros_since_epoch(end) for commit_id, end in promised.items()}
    result = tx.execute(query, execution_options={"yield_per": ROWS_AT_ONCE})
    for rows in result.partitions():
        yield [_with_lease(row, ends.get(row[0])) for row in rows]


def _with_lease(row: Any, end: int | None) -> CommitRow:
    """Returns the row with its lease extended to `end`; the same row if `end` is None."""
    if end is None:
        found: CommitRow = row
        return found
    *before, leased_until, is_tombstoned, is_content, is_stub = row
    until = end if leased_until is None else max(leased_until, end)
    return (*before, until, is_tombstoned, is_content, is_stub)


def _refs(tx: Transaction, repository_id: str, *, gone_before: datetime) -> Iterator[Ref]:
    tables: tuple[tuple[RefKind, sa.Table], ...] = (("branch", branches), ("tag", tags))
    for kind, table in tables:
        rows = tx.execute(
            sa.select(table.c.name, table.c.commit_id, table.c.expires_at)
            .where(table.c.repository_id == repository_id, ~_is_gone(table, gone_before))
            .order_by(table.c.name)
        )
        for row in rows:
            yield Ref(row.name, kind, row.commit_id, row.expires_at)


def _is_gone(table: sa.Table, gone_before: datetime) -> sa.ColumnElement[bool]:
    """Returns the condition for gone rows: `now >= expires_at + trash_time`."""
    return sa.and_(table.c.expires_at.is_not(None), table.c.expires_at <= gone_before)


def _holds(tx: Transaction, repository_id: str) -> dict[str, str]:
    """Returns the reason of each hold, by commit id."""
    held = tx.execute(
        sa.select(holds.c.commit_id, holds.c.reason).where(holds.c.repository_id == repository_id)
    )
    return {row.commit_id: row.reason for row in held}


def _policy(tx: Transaction, repository_id: str, held: Mapping[str, str]) -> Policy | None:
    stored = tx.execute(
        sa.select(repositories.c.policy).where(repositories.c.repository_id == repository_id)
    ).scalar_one()
    return None if stored is None else Policy.parse(stored).with_holds(held)


def staging_tokens(tx: Transaction, repository_id: str, *, gone_before: datetime) -> list[str]:
    """Returns the staging tokens and sealed tokens of the branches that are not gone."""
    rows = tx.execute(
        sa.select(branches.c.staging_token, branches.c.sealed_tokens).where(
            branches.c.repository_id == repository_id, ~_is_gone(branches, gone_before)
        )
    ).all()
    return _tokens(rows)


def gone_tokens(tx: Transaction, repository_id: str, *, gone_before: datetime) -> list[str]:
    """Returns the dropped tokens that still have staged rows, and the tokens of gone branches."""
    dropped = tx.execute(
        sa.select(dropped_tokens.c.token).where(dropped_tokens.c.repository_id == repository_id)
    )
    rows = tx.execute(
        sa.select(branches.c.staging_token, branches.c.sealed_tokens).where(
            branches.c.repository_id == repository_id, _is_gone(branches, gone_before)
        )
    ).all()
    return [*dropped.scalars(), *_tokens(rows)]


def _tokens(rows: Iterable[Any]) -> list[str]:
    """Returns all tokens of rows with `staging_token` and `sealed_tokens`."""
    return [token for row in rows for token in (row.staging_token, *row.sealed_tokens)]


def oldest_open_slice(tx: Transaction, repository_id: str) -> str | None:
    """Returns the oldest slice that has a write in progress or an upload token, or None."""
    found: list[str] = []
    for table in (pending, upload_tokens):
        # Slices sort newest first, so that the oldest slice has the greatest address.
        address = tx.execute(
            sa.select(sa.func.max(table.c.address)).where(
                table.c.repository_id == repository_id,
                table.c.address >= DATA_PREFIX,
                table.c.address < DATA_PREFIX[:-1] + chr(ord("/") + 1),
            )
        ).scalar_one()
        if address is not None:
            found.append(slice_of(address))
    return max(found, default=None)


def set_tombstones(
    tx: Transaction, repository_id: str, commit_ids: Collection[str], *, run_id: str
) -> None:
    """Closes commits: from this transaction on nothing can be made from them."""
    update_commits(
        tx,
        repository_id,
        commit_ids,
        commits.c.tombstoned_by.is_(None),
        tombstoned_by=run_id,
        tombstoned_at=tx.now(),
    )


def lift_tombstones(
    tx: Transaction, repository_id: str, commit_ids: Collection[str], *, run_id: str
) -> None:
    """Reopens commits that `run_id` closed. Only for commits whose data is all still there."""
    update_commits(
        tx,
        repository_id,
        commit_ids,
        sa.and_(commits.c.tombstoned_by == run_id, commits.c.forgotten_by.is_(None)),
        tombstoned_by=None,
        tombstoned_at=None,
    )


def forget_commits(
    tx: Transaction, repository_id: str, commit_ids: Collection[str], *, run_id: str
) -> None:
    """Deletes the records of closed commits. A stub of each stays, with parents, date and run.

    Content of collections leaves no stub: it is no commit's parent.
    """
    for batch in in_batches(sorted(commit_ids)):
        tx.execute(
            sa.delete(commits).where(
                commits.c.repository_id == repository_id,
                commits.c.commit_id.in_(batch),
                commits.c.tombstoned_by.is_not(None),
                commits.c.collection_id.is_not(None),
            )
        )
    update_commits(
        tx,
        repository_id,
        commit_ids,
        commits.c.tombstoned_by.is_not(None),
        forgotten_by=run_id,
        tree_id=None,
        tree_checksum=None,
        message="",
        committer="",
        metadata={},
    )


def drop_ended(
    tx: Transaction, repository_id: str, *, lease_ttl: timedelta, trash_time: timedelta
) -> None:
    """Drops the rows that have ended by the database's clock.

    These are gone branches, tags, projects and collections; reflog entries older than a lease;
    ended writes and upload tokens; and copies that no reading needs. Doors drop their own rows that
    are of no use any more. The rows that were staged on gone branches are left to the reclaimer.
    """
    now = tx.now()
    gone_before = now - trash_time
    drop_gone_branches(tx, repository_id, trash_time=trash_time)
    tx.execute(
        sa.delete(tags).where(tags.c.repository_id == repository_id, _is_gone(tags, gone_before))
    )
    drop_gone(tx, repository_id, lease_ttl=lease_ttl, trash_time=trash_time)
    tx.execute(
        sa.delete(reflog).where(
            reflog.c.repository_id == repository_id, reflog.c.left_at <= now - lease_ttl
        )
    )
    drop_ended_writes(tx, repository_id, lease_ttl=lease_ttl)
    drop_copies(tx, repository_id)
    for rows in all_door_rows():
        rows.drop_ended(tx, repository_id)


def drop_gone_branches(tx: Transaction, repository_id: str, *, trash_time: timedelta) -> None:
    """Drops the gone branches. Their staged rows are left to the reclaimer.

    The caller has locked the repository exclusively, so that no gone branch is restored meanwhile.
    """
    # On PostgreSQL this waits for transactions that are staging on one of these branches.
    dropped = tx.execute(
        sa.delete(branches)
        .where(
            branches.c.repository_id == repository_id,
            _is_gone(branches, tx.now() - trash_time),
        )
        .returning(branches.c.staging_token, branches.c.sealed_tokens)
    ).all()
    drop_tokens(tx, repository_id, _tokens(dropped))


def has_gone_branches(tx: Transaction, repository_id: str, *, trash_time: timedelta) -> bool:
    """Whether the repository has gone branches."""
    query = sa.select(branches.c.branch_id).where(
        branches.c.repository_id == repository_id, _is_gone(branches, tx.now() - trash_time)
    )
    return tx.execute(query.limit(1)).first() is not None


def drop_ended_writes(
    tx: Transaction, repository_id: str, *, lease_ttl: timedelta, amount: int | None = None
) -> int:
    """Drops ended registrations of writes, upload tokens and uploads in parts, at most `amount` of
    each.

    Releases their addresses, and returns their number. On PostgreSQL this waits for transactions
    that are using one of them.
    """
    now = tx.now()
    count = 0
    for table, ends_at in (
        (pending, pending.c.ends_at),
        (upload_tokens, upload_tokens.c.expires_at),
    ):
        ended = sa.and_(table.c.repository_id == repository_id, ends_at <= now)
        query = sa.delete(table).where(ended)
        if amount is not None:
            some = sa.select(table.c.address).where(ended).limit(amount)
            query = query.where(table.c.address.in_(some))
        addresses = tx.execute(query.returning(table.c.address)).scalars().all()
        release(tx, repository_id, map(Dropped, addresses), lease_ttl=lease_ttl)
        count += len(addresses)
    drop_ended_uploads(tx, repository_id, amount=amount)
    return count


def read_run(tx: Transaction, repository_id: str, run_id: str) -> RunRow | None:
    """Returns the database's record of a run, or None."""
    found = _runs(tx, gc_runs.c.repository_id == repository_id, gc_runs.c.run_id == run_id)
    return found[0] if found else None


def find_run(tx: Transaction, run_id: str) -> str | None:
    """Returns the id of the repository of a run, or None if the run is not on record."""
    query = sa.select(gc_runs.c.repository_id).where(gc_runs.c.run_id == run_id)
    return tx.execute(query).scalars().first()


def run_states(tx: Transaction, repository_id: str, run_ids: Collection[str]) -> dict[str, str]:
    """Returns the recorded states of runs, by run. Runs that are not on record are left out."""
    found: dict[str, str] = {}
    for batch in in_batches(sorted(run_ids)):
        rows = tx.execute(
            sa.select(gc_runs.c.run_id, gc_runs.c.state).where(
                gc_runs.c.repository_id == repository_id, gc_runs.c.run_id.in_(batch)
            )
        )
        found.update((row.run_id, row.state) for row in rows)
    return found


def list_runs(tx: Transaction, repository_id: str) -> list[RunRow]:
    """Returns all runs of a repository, the newest first."""
    return _runs(tx, gc_runs.c.repository_id == repository_id)


def _runs(tx: Transaction, *conditions: sa.ColumnElement[bool]) -> list[RunRow]:
    return _RUNS.all(tx, _RUNS.select(*conditions).order_by(gc_runs.c.run_id))


def delete_run(tx: Transaction, repository_id: str, run_id: str) -> None:
    """Deletes the record of a run."""
    tx.execute(
        sa.delete(gc_runs).where(
            gc_runs.c.repository_id == repository_id, gc_runs.c.run_id == run_id
        )
    )


def write_run(tx: Transaction, repository_id: str, run_id: str, **values: Any) -> None:
    """Inserts or updates the record of a run. `values` are columns of `gc_runs`."""
    mine = sa.and_(gc_runs.c.repository_id == repository_id, gc_runs.c.run_id == run_id)
    if tx.execute(sa.update(gc_runs).where(mine).values(**values)).rowcount == 0:
        tx.execute(
            sa.insert(gc_runs).values(
                repository_id=repository_id, run_id=run_id, started_at=tx.now(), **values
            )
        )
