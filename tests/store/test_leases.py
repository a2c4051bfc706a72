"""The run's lease: who holds a repository, and what whoever lost it is told."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

import pytest
import sqlalchemy as sa

from ebbtide.errors import Refused
from ebbtide.store.database.engine import Transaction
from ebbtide.store.database.schema import gc_leases
from ebbtide.store.repositories.leases import Lease, beat, release_lease, take_lease
from ebbtide.store.repository import Repository
from tests.support.clock import ManualClock

TTL = timedelta(seconds=30)


def take(repository: Repository, run_id: str) -> Lease:
    return take_lease(
        repository.context.metadata,
        repository_id=repository.info.repository_id,
        run_id=run_id,
        lease_ttl=TTL,
    )


def test_who_lost_it_is_told_to_whom(repository: Repository, clock: ManualClock) -> None:
    metadata = repository.context.metadata
    lost = take(repository, "first")
    clock.advance(TTL)
    taken = take(repository, "second")
    with pytest.raises(Refused, match="run first lost the repository to run second: it deletes no"):
        beat(metadata, lost)
    release_lease(metadata, taken)
    with pytest.raises(Refused, match="to another run, which has ended: it deletes nothing more"):
        beat(metadata, lost)


def test_a_heartbeat_of_the_future_holds_nothing(
    repository: Repository, clock: ManualClock
) -> None:
    """A clock was ahead. A live run would have sent another heartbeat since."""
    clock.advance(TTL)
    lost = take(repository, "first")
    clock.advance(timedelta(microseconds=1) - TTL)
    with pytest.raises(Refused, match="last heard of"):
        take(repository, "second")
    clock.advance(timedelta(microseconds=-1))
    assert take(repository, "second").run_epoch == lost.run_epoch + 1


@dataclass(frozen=True, slots=True)
class Outrun(Lease):
    """A lease that another run takes just after it was looked at."""

    repository: Repository
    clock: ManualClock

    def check(self, tx: Transaction) -> None:
        """As its own."""
        Lease.check(self, tx)
        self.clock.advance(TTL)
        take(self.repository, "second")
        self.clock.advance(-TTL)


@pytest.mark.parametrize("database_kind", ["postgres"], indirect=True)
def test_a_late_heartbeat_is_not_that_of_the_next_run(
    repository: Repository, clock: ManualClock
) -> None:
    first = take(repository, "first")
    began = clock.now
    beat(
        repository.context.metadata,
        Outrun(first.repository_id, first.run_id, first.run_epoch, repository, clock),
    )
    with repository.context.metadata.snapshot() as tx:
        row = tx.execute(sa.select(gc_leases)).one()
    assert (row.run_id, row.heartbeat_at) == ("second", began + TTL)
