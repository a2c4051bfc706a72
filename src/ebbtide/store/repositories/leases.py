"""The lease of a run: at most one collector run holds a repository.

`run_epoch` grows each time that a run takes the lease. Transactions of the old holder compare it,
and are then refused. A holder that sends no heartbeat for the lease's time can be replaced. A
holder that died on this machine can be replaced at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

import sqlalchemy as sa

from ebbtide.errors import Refused
from ebbtide.processes import is_dead, this_process
from ebbtide.store.database.engine import Metadata, Transaction
from ebbtide.store.database.schema import gc_leases


@dataclass(frozen=True, slots=True)
class Lease:
    """The hold of one run on one repository."""

    repository_id: str
    run_id: str
    run_epoch: int

    def check(self, tx: Transaction) -> None:
        """Raises Refused `lease_lost` if another run has taken the repository since."""
        row = tx.execute(
            sa.select(gc_leases.c.run_epoch, gc_leases.c.run_id).where(
                gc_leases.c.repository_id == self.repository_id
            )
        ).one_or_none()
        if row is None or (row.run_epoch, row.run_id) != (self.run_epoch, self.run_id):
            raise Refused(
                "lease_lost",
                f"run {self.run_id} lost the repository {_to(row.run_id if row else None)}: it "
                "deletes nothing more",
            )


def _to(run_id: str | None) -> str:
    return f"to run {run_id}" if run_id else "to another run, which has ended"


def running(
    tx: Transaction, repository_id: str, *, lease_ttl: timedelta, now: datetime
) -> tuple[str, timedelta] | None:
    """Returns the live run that holds the repository, and the time since its last heartbeat.
    Returns None if no live run holds it.

    A heartbeat that is dated in the future by `lease_ttl` or more was sent while a clock was ahead.
    A live run would have sent another one since.
    """
    row = tx.execute(
        sa.select(gc_leases).where(gc_leases.c.repository_id == repository_id)
    ).one_or_none()
    if row is None or row.run_id is None:
        return None
    silence: timedelta = now - row.heartbeat_at
    if abs(silence) >= lease_ttl or is_dead(row.holder):
        return None
    return row.run_id, silence


def require_no_run(
    tx: Transaction, repository_id: str, *, lease_ttl: timedelta, now: datetime
) -> None:
    """Raises Refused `run_in_progress` while a live run holds the repository."""
    found = running(tx, repository_id, lease_ttl=lease_ttl, now=now)
    if found is not None:
        run_id, silence = found
        raise Refused(
            "run_in_progress",
            f"run {run_id} holds the repository (last heard of "
            f"{max(silence.total_seconds(), 0):.0f} s ago): wait for it to end, or "
            f"{lease_ttl.total_seconds():.0f} s after it died",
            run_id=run_id,
        )


def take_lease(
    metadata: Metadata, *, repository_id: str, run_id: str, lease_ttl: timedelta
) -> Lease:
    """Takes the repository for `run_id`. Raises Refused `run_in_progress` while a live run holds
    it."""
    with metadata.transaction() as tx:
        tx.lock_repository(repository_id, "exclusive", trashed=True)
        row = tx.execute(
            sa.select(gc_leases).where(gc_leases.c.repository_id == repository_id)
        ).one_or_none()
        now = tx.now()
        require_no_run(tx, repository_id, lease_ttl=lease_ttl, now=now)
        epoch = 1 if row is None else row.run_epoch + 1
        values = {
            "run_epoch": epoch,
            "run_id": run_id,
            "holder": this_process(),
            "heartbeat_at": now,
        }
        if row is None:
            tx.execute(sa.insert(gc_leases).values(repository_id=repository_id, **values))
        else:
            tx.execute(
                sa.update(gc_leases)
                .where(gc_leases.c.repository_id == repository_id)
                .values(**values)
            )
    return Lease(repository_id, run_id, epoch)


def beat(metadata: Metadata, lease: Lease) -> None:
    """Sends a heartbeat. Raises Refused `lease_lost` if another run has taken the repository."""
    with metadata.transaction() as tx:
        lease.check(tx)
        # On PostgreSQL another run may take the lease at this moment. Its own heartbeat then stays:
        # this update changes no row, or comes first.
        tx.execute(sa.update(gc_leases).where(_held_by(lease)).values(heartbeat_at=tx.now()))


def release_lease(metadata: Metadata, lease: Lease) -> None:
    """Releases the repository, if this lease still holds it."""
    with metadata.transaction() as tx:
        tx.execute(sa.update(gc_leases).where(_held_by(lease)).values(run_id=None, holder=None))


def _held_by(lease: Lease) -> sa.ColumnElement[bool]:
    return sa.and_(
        gc_leases.c.repository_id == lease.repository_id,
        gc_leases.c.run_epoch == lease.run_epoch,
    )
