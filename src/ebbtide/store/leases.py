"""The run's lease: at most one collector run holds a repository, and an old one is fenced off.

`run_epoch` grows with every taking, so that an old holder can be told from the new one. A holder
that sends no heartbeat for the lease's time may be replaced; one that died on this very machine, at
once.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import sqlalchemy as sa

from ebbtide.errors import Refused
from ebbtide.store.metadata.engine import Metadata, Transaction
from ebbtide.store.metadata.schema import gc_leases


@dataclass(frozen=True, slots=True)
class Lease:
    """The hold of one run on one repository."""

    repository_id: str
    run_id: str
    run_epoch: int

    def check(self, tx: Transaction) -> None:
        """Refused `lease_lost` when another run has taken the repository since."""
        row = tx.execute(
            sa.select(gc_leases.c.run_epoch, gc_leases.c.run_id).where(
                gc_leases.c.repository_id == self.repository_id
            )
        ).one_or_none()
        if row is None or (row.run_epoch, row.run_id) != (self.run_epoch, self.run_id):
            raise Refused(
                "lease_lost",
                f"run {self.run_id} lost the repository to another run "
                f"({row.run_id if row else 'none'}): it deletes nothing more",
            )


def take_lease(
    metadata: Metadata, *, repository_id: str, run_id: str, lease_ttl: timedelta
) -> Lease:
    """Take the repository for `run_id`. Refused `run_in_progress` while a live run holds it."""
    with metadata.transaction() as tx:
        tx.lock_repository(repository_id, "exclusive")
        row = tx.execute(
            sa.select(gc_leases).where(gc_leases.c.repository_id == repository_id)
        ).one_or_none()
        now = tx.now()
        if row is not None and row.run_id is not None:
            silence = now - row.heartbeat_at
            if silence < lease_ttl and not _is_dead(row.holder):
                raise Refused(
                    "run_in_progress",
                    f"run {row.run_id} holds the repository (last heard of "
                    f"{max(silence.total_seconds(), 0):.0f} s ago): wait for it to end, or "
                    f"{lease_ttl.total_seconds():.0f} s after it died",
                    run_id=row.run_id,
                )
        epoch = 1 if row is None else row.run_epoch + 1
        values = {
            "run_epoch": epoch,
            "run_id": run_id,
            "holder": _this_process(),
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
    """Send a heartbeat. Refused `lease_lost` when another run has taken the repository."""
    with metadata.transaction() as tx:
        lease.check(tx)
        tx.execute(
            sa.update(gc_leases)
            .where(gc_leases.c.repository_id == lease.repository_id)
            .values(heartbeat_at=tx.now())
        )


def release_lease(metadata: Metadata, lease: Lease) -> None:
    """Let the repository go, if this lease still holds it."""
    with metadata.transaction() as tx:
        tx.execute(
            sa.update(gc_leases)
            .where(
                gc_leases.c.repository_id == lease.repository_id,
                gc_leases.c.run_epoch == lease.run_epoch,
            )
            .values(run_id=None, holder=None)
        )


def _this_process() -> str | None:
    """Machine, process namespace, process and its start: enough to tell that it is gone."""
    machine = _machine()
    start = _start_of(os.getpid())
    return f"{machine} {os.getpid()} {start}" if machine and start else None


def _is_dead(holder: str | None) -> bool:
    """Whether `holder` ran on this machine and is gone. Unsure is not dead."""
    if holder is None:
        return False
    machine, pid, start = holder.rsplit(" ", 2)
    return machine == _machine() and _start_of(int(pid)) != start


def _machine() -> str | None:
    """The running kernel and the namespace of process ids: equal only where ids are comparable."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return None


def _start_of(pid: int) -> str | None:
    """When process `pid` started, in the kernel's own ticks; None when there is none (or it is
    a zombie)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else fields[19]
