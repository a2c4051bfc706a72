"""The metadata of the embedded store for the collector, read in one snapshot of the database."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

import pyarrow as pa

from ebbtide.formats.base import ExpiredCommit, Protector, PurgedAddress
from ebbtide.retention.decision import Roots
from ebbtide.retention.lifecycle import delete_at
from ebbtide.settings import Settings
from ebbtide.store.collecting.references import staged_places
from ebbtide.store.collecting.roots import read_roots
from ebbtide.store.collecting.uncommitted import (
    STAGED,
    dropped,
    uncommitted,
    uncommitted_among,
    untraced,
)
from ebbtide.store.database.commits import find_commits
from ebbtide.store.database.engine import Transaction
from ebbtide.store.purges.queries import find_purge, find_purged


@dataclass(frozen=True, slots=True)
class EmbeddedReading:
    """One snapshot of the database. `promised` are the settings, with the store's promised times
    as they are in this snapshot."""

    tx: Transaction
    repository_id: str
    promised: Settings
    opened_at: datetime  # before the snapshot

    def roots(self) -> Roots:
        """Returns refs, commits, the policy and holds."""
        return read_roots(
            self.tx,
            self.repository_id,
            lease_ttl=self.promised.lease_ttl,
            trash_time=self.promised.trash_time,
        )

    def protected(self, among: Iterable[Sequence[str]] | None = None) -> Iterator[pa.Table]:
        """Yields addresses that are staged, being written, promised by a token, or copied. With
        `among`, only these addresses."""
        now, trash_time = self.opened_at, self.promised.trash_time
        if among is None:
            return uncommitted(self.tx, self.repository_id, now=now, trash_time=trash_time)
        return uncommitted_among(self.tx, self.repository_id, among, now=now, trash_time=trash_time)

    def untraced(self) -> Iterator[pa.Table]:
        """Yields the addresses of writes and tokens, and of staged entries whose address a commit
        has."""
        return untraced(self.tx, self.repository_id)

    def dropped(self) -> Iterator[pa.Table]:
        """Yields addresses that were staged and have lost a staged entry, with their sizes."""
        return dropped(
            self.tx,
            self.repository_id,
            now=self.opened_at,
            trash_time=self.promised.trash_time,
        )

    def protectors(self, address: str) -> list[Protector]:
        """Returns the protections of an address that do not need a commit."""
        rows = [row for table in self.protected([[address]]) for row in table.to_pylist()]
        found = [
            Protector(reason=row["reason"], since=row["created_at"], until=row["until"])
            for row in rows
            if row["reason"] != STAGED.reason
        ]
        if len(found) < len(rows):
            found += self._staged_at(address)
        return found

    def _staged_at(self, address: str) -> Iterator[Protector]:
        trash_time = self.promised.trash_time
        places = staged_places(
            self.tx, self.repository_id, address, gone_before=self.opened_at - trash_time
        )
        for place in places:
            yield Protector(
                reason=STAGED.reason,
                where=f"branch {place.branch}, path {place.path}",
                since=place.staged_at,
                until=delete_at(place.branch_expires_at, trash_time),
            )

    def expired_commit(self, commit_id: str) -> ExpiredCommit | None:
        """Returns which run closed or forgot a commit, or why an administrator gave it up."""
        commit = find_commits(self.tx, self.repository_id, [commit_id]).get(commit_id)
        if commit is None or commit.is_intact:
            return None
        if commit.given_up_at is not None and commit.forgotten_by is None:
            reason = f"given up as damaged: {commit.given_up_reason}"
            return ExpiredCommit(run_id=None, at=commit.given_up_at, reason=reason)
        return ExpiredCommit(
            run_id=commit.closed_by,
            at=commit.tombstoned_at,
            forgotten=commit.forgotten_by is not None,
        )

    def purged_at(self, address: str) -> PurgedAddress | None:
        """Returns the purge of an address, or None."""
        purge_id = find_purged(self.tx, self.repository_id, [address]).get(address)
        row = None if purge_id is None else find_purge(self.tx, purge_id)
        if row is None:
            return None
        return PurgedAddress(
            purge_id=row.purge_id,
            at=row.closed_at or row.started_at,
            reason=row.request["reason"],
            state=row.state,
        )
