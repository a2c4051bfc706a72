"""The embedded store for the collector: the five relations from its database and files."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from ebbtide.arrow import texts
from ebbtide.errors import EbbtideError, Refused
from ebbtide.formats.base import (
    RUNS_PREFIX,
    Clocks,
    ExpiredCommit,
    Identity,
    Protector,
    PurgedAddress,
    RunHold,
)
from ebbtide.formats.embedded_layout import EmbeddedLayout
from ebbtide.formats.embedded_walk import EmbeddedWalk
from ebbtide.formats.file_names import FileName, FileNames, NamesAsked, NodeScan, names_by
from ebbtide.ids import latest_id, newest_first
from ebbtide.model import Commit
from ebbtide.retention.decision import Roots
from ebbtide.retention.lifecycle import delete_at
from ebbtide.retention.policy import Policy
from ebbtide.settings import Settings
from ebbtide.store.content.layout import (
    OWNER_ADDRESS,
)
from ebbtide.store.content.ranges import RangeInfo, read_range_columns
from ebbtide.store.content.trees import read_tree
from ebbtide.store.context import RepositoryContext
from ebbtide.store.database.commit_rows import (
    closed_rows,
    find_commits,
    lease_commits,
    put_back_records,
    record_rows,
)
from ebbtide.store.database.engine import Transaction
from ebbtide.store.database.rows import in_batches
from ebbtide.store.gc.references import staged_places
from ebbtide.store.gc.run_metadata import (
    delete_run,
    drop_ended,
    forget_commits,
    lift_tombstones,
    list_runs,
    oldest_open_slice,
    read_roots,
    read_run,
    set_tombstones,
    write_run,
)
from ebbtide.store.gc.uncommitted import (
    STAGED,
    dropped,
    uncommitted,
    uncommitted_among,
    untraced,
)
from ebbtide.store.purge_records import PURGES, find_purged
from ebbtide.store.refs.policies import Retention
from ebbtide.store.refs.revisions import resolve
from ebbtide.store.repositories.leases import Lease, beat, release_lease, running, take_lease
from ebbtide.store.repositories.repository_rows import promised
from ebbtide.store.repository import address_at, content_with_id
from ebbtide.store.staging.released import forget_deleted

FORMAT_NAME: Final = "ebbtide"


class _Hold:
    """A lease, and a thread that sends its heartbeats."""

    def __init__(self, context: RepositoryContext, lease: Lease) -> None:
        self._metadata = context.metadata
        self._interval_seconds = context.settings.run_heartbeat.total_seconds()
        self.lease = lease
        self._ended = threading.Event()
        self._lost: EbbtideError | None = None
        self._thread = threading.Thread(target=self._keep, name="heartbeat", daemon=True)

    @property
    def run_epoch(self) -> int:
        return self.lease.run_epoch

    def check(self) -> None:
        if self._lost is not None:
            raise self._lost
        with self._metadata.snapshot() as tx:
            self.lease.check(tx)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()
        # If the release fails, the lease ends by itself. The result of the run stays the same.
        with suppress(EbbtideError):
            release_lease(self._metadata, self.lease)

    def _keep(self) -> None:
        while not self._ended.wait(self._interval_seconds):
            try:
                beat(self._metadata, self.lease)
            except Refused as error:
                self._lost = error
                return
            except EbbtideError:
                # A failed heartbeat does not lose the lease yet: `check` reads the database.
                continue


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
        row = None if purge_id is None else PURGES.by_id(self.tx, purge_id)
        if row is None:
            return None
        return PurgedAddress(
            purge_id=row.purge_id,
            at=row.closed_at or row.started_at,
            reason=row.request["reason"],
            state=row.state,
        )


class EmbeddedRepository:
    """A repository of the embedded store, as the collector sees it."""

    layout: EmbeddedLayout

    def __init__(self, context: RepositoryContext, *, store_id: str) -> None:
        self._context = context
        self._metadata = context.metadata
        self._repository_id = context.repository_id
        self.layout = EmbeddedLayout()
        self.storage = context.storage
        self.identity = Identity(FORMAT_NAME, store_id, context.repository_id, context.info.name)

    def now(self) -> datetime:
        """Returns the database's time."""
        with self._metadata.snapshot() as tx:
            return tx.now()

    @contextmanager
    def hold(self, run_id: str) -> Iterator[_Hold]:
        """Takes the lease, which is a row of the database, and keeps it alive until the block
        ends."""
        lease = take_lease(
            self._metadata,
            repository_id=self._repository_id,
            run_id=run_id,
            lease_ttl=self._context.settings.run_lease_ttl,
        )
        hold = _Hold(self._context, lease)
        hold.start()
        try:
            yield hold
        finally:
            hold.stop()

    def running_id(self) -> str | None:
        """Returns the id of the run that holds the repository now, in any process; or None."""
        ttl = self._context.settings.run_lease_ttl
        with self._metadata.snapshot() as tx:
            found = running(tx, self._repository_id, lease_ttl=ttl, now=tx.now())
        return None if found is None else found[0]

    @property
    def walk(self) -> EmbeddedWalk:
        """The second reader of the Parquet files, for verification."""
        return EmbeddedWalk(self.storage)

    @property
    def landmark(self) -> str:
        """The address of OWNER, which is the first file of every repository."""
        return OWNER_ADDRESS

    def check_storage(self) -> None:
        """Checks OWNER and increases its epoch. Raises Refused `storage_foreign`."""
        self._context.ownership.move()

    def clocks(self) -> Clocks:
        """Reads the clocks. The storage's time is the date of the OWNER file, just written."""
        info = self.storage.head(OWNER_ADDRESS)
        if info is None:
            raise Refused(
                "storage_foreign",
                f"{self.storage.url}/{OWNER_ADDRESS} is missing: if this database is the right one "
                "for this storage, run 'ebbtide repo adopt'",
            )
        clock = self._context.clock
        return Clocks(
            host=clock.host_now(),
            database=self.now(),
            storage=clock.storage_time(info.last_modified),
        )

    @contextmanager
    def reading(self, cutoff: datetime | None = None) -> Iterator[EmbeddedReading]:
        """Reads in one snapshot of the database, which also records all writes in progress."""
        del cutoff
        opened_at = self.now()
        with self._metadata.snapshot(scans=True) as tx:
            settings = promised(tx, self._context.settings)
            yield EmbeddedReading(tx, self._repository_id, settings, opened_at)

    def policy(self) -> Policy | None:
        """Returns the policy."""
        return Retention(self._context).get()

    def written_policy(self) -> Policy | None:
        """Returns the policy: no other rules can be in force."""
        return self.policy()

    def set_policy(self, policy: Policy | None) -> tuple[str, ...]:
        """Sets the policy, or removes it. Returns its patterns that match no branch."""
        retention = Retention(self._context)
        if policy is None:
            retention.unset()
            return ()
        return retention.set(policy)

    def change_policy(self, change: Callable[[Policy], Policy]) -> tuple[Policy, tuple[str, ...]]:
        """Sets what `change` makes of the policy, as `Retention.change` does."""
        return Retention(self._context).change(change)

    def roots(self, policy: Policy | None) -> Roots:
        """Reads refs and commits in one snapshot, for a decision by `policy` and the holds."""
        with self.reading() as reading:
            roots = reading.roots()
        return replace(roots, policy=policy and policy.with_holds(roots.holds))

    def resolve(self, expression: str) -> str:
        """Returns the commit of an expression, as `store.revisions` does, or the content of the
        collection with this id. Raises NotFound `ref_not_found` and Conflict `ref_ambiguous`."""
        content_id = content_with_id(self._context, expression)
        if content_id is not None:
            return content_id
        with self._metadata.snapshot() as tx:
            return resolve(tx, self._repository_id, expression).commit.commit_id

    def file_names(self, asked: NamesAsked) -> FileNames:
        """Returns the paths of objects, and for trees the messages of their commits."""
        wanted = asked.addresses
        known = self._names_of_trees(wanted, asked.commits)

        def named(info: RangeInfo) -> Iterator[tuple[str, str]] | None:
            table = self.entries_of(info)
            if table is None:
                return None
            rows = table.filter(pc.is_in(table.column("address"), pa.array(wanted, pa.string())))
            return zip(texts(rows.column("address")), texts(rows.column("path")), strict=True)

        scan = NodeScan(asked.commits, nodes_of=self.ranges_of, read=named)
        return names_by(scan, wanted, known)

    def _names_of_trees(
        self, wanted: Collection[str], commits: Sequence[Commit]
    ) -> dict[str, FileName]:
        ids = pa.array([each.tree_id for each in commits], pa.string())
        trees = self.layout.tree_addresses(ids)
        asked = {
            commit.commit_id: address
            for commit, address in zip(commits, texts(trees), strict=True)
            if address in wanted
        }
        with self._metadata.snapshot() as tx:
            found = find_commits(tx, self._repository_id, list(asked))
        return {asked[each]: FileName(record.message, each) for each, record in found.items()}

    def ranges_of(self, commit: Commit) -> Sequence[RangeInfo] | None:
        """Returns the ranges of a commit's tree; None if it cannot be read any more."""
        with self._metadata.snapshot() as tx:
            found = find_commits(tx, self._repository_id, [commit.commit_id])
        record = found.get(commit.commit_id)
        if record is None or record.tree_id is None or record.tree_checksum is None:
            return None
        try:
            return read_tree(self.storage, record.tree_id, record.tree_checksum).ranges
        except Refused:
            return None

    def entries_of(self, info: RangeInfo) -> pa.Table | None:
        """Returns the entries of a range (columns `path` and `address`); None if it cannot be read
        any more."""
        try:
            return read_range_columns(
                self.storage,
                info.range_id,
                info.checksum,
                entry_count=info.entry_count,
                columns=["path", "address"],
            )
        except Refused:
            return None

    def address_at(self, ref: str, path: str) -> str:
        """Returns the address at a path of a branch, tag or commit, or of a collection by its path.

        Also raises Gone `commit_expired` if a run forgot the commit's record.
        """
        return address_at(self._context, ref, path)

    def record_run(
        self, run_id: str, *, state: str, run_path: str | None, plan_checksum: str | None = None
    ) -> None:
        """Records the run in the table `gc_runs`."""
        values = {"state": state, "run_url": run_path or f"{RUNS_PREFIX}{run_id}"}
        if plan_checksum is not None:
            values["plan_checksum"] = plan_checksum
        with self._metadata.transaction() as tx:
            write_run(tx, self._repository_id, run_id, **values)

    def plan_checksum(self, run_id: str) -> str | None:
        """Returns the plan's checksum from the table `gc_runs`, or None."""
        with self._metadata.snapshot() as tx:
            row = read_run(tx, self._repository_id, run_id)
        return None if row is None else row.plan_checksum

    def drop_run(self, run_id: str) -> None:
        """Deletes the run from the table `gc_runs`."""
        with self._metadata.transaction() as tx:
            delete_run(tx, self._repository_id, run_id)

    def run_paths(self) -> dict[str, str | None]:
        """Returns all runs in the table `gc_runs`, with the paths of folders elsewhere."""
        with self._metadata.snapshot() as tx:
            found = {row.run_id: row.run_url for row in list_runs(tx, self._repository_id)}
            newest = newest_first(found, tx.now())
        # An earlier version wrote the whole path of a folder inside.
        return {
            run_id: None if found[run_id].endswith(f"{RUNS_PREFIX}{run_id}") else found[run_id]
            for run_id in newest
        }

    def closed_after(self) -> str:
        """Returns the slice after which all slices are closed.

        A slice is open while its process may write to it, and while a write or upload token in it
        has not ended. All processes of a store must have the same EBBTIDE_SLICE_AGE_MAX. If one
        process writes to a slice that another counts as closed, the next clean run finds the file.
        """
        with self._metadata.snapshot() as tx:
            oldest = oldest_open_slice(tx, self._repository_id)
            opened = latest_id(tx.now() - self._context.settings.slice_age_max)
        return max(opened, oldest or opened)

    def fence(self, hold: RunHold, run_id: str, choose: Callable[[Roots], Collection[str]]) -> None:
        """Sets the tombstones in one transaction, which locks the repository's row exclusively."""
        with self._locked(hold) as tx:
            settings = promised(tx, self._context.settings)
            reading = EmbeddedReading(tx, self._repository_id, settings, tx.now())
            set_tombstones(tx, self._repository_id, choose(reading.roots()), run_id=run_id)
            drop_ended(
                tx,
                self._repository_id,
                lease_ttl=settings.lease_ttl,
                trash_time=settings.trash_time,
            )
            write_run(tx, self._repository_id, run_id, state="sweeping", fenced_at=tx.now())

    def lift(self, hold: RunHold, run_id: str, commit_ids: Collection[str]) -> None:
        """Removes the tombstones of `commit_ids`, under the lease."""
        with self._locked(hold) as tx:
            lift_tombstones(tx, self._repository_id, commit_ids, run_id=run_id)

    def forget(self, hold: RunHold, run_id: str, commit_ids: Collection[str]) -> None:
        """Deletes the records of `commit_ids`, except their stubs, under the lease."""
        with self._locked(hold) as tx:
            forget_commits(tx, self._repository_id, commit_ids, run_id=run_id)

    def forget_dropped(self, hold: RunHold, addresses: Collection[str]) -> None:
        """Deletes the records that a reclaimer would find, under the lease."""
        for batch in in_batches(sorted(addresses)):
            with self._metadata.transaction() as tx:
                self._check_held(tx, hold)
                forget_deleted(tx, self._repository_id, batch)

    def records(self, commit_ids: Collection[str]) -> list[dict[str, Any]]:
        """Returns rows of the table `commits`. Contents of collections are left out, because nobody
        can reach them again."""
        with self._metadata.snapshot() as tx:
            return record_rows(tx, self._repository_id, commit_ids)

    def closed_by(self, run_id: str) -> list[dict[str, Any]]:
        """Returns the closed commits from the table `commits`."""
        with self._metadata.snapshot() as tx:
            return closed_rows(tx, self._repository_id, run_id=run_id)

    def reopen(
        self,
        hold: RunHold,
        run_id: str,
        commit_ids: Collection[str],
        records: Sequence[Mapping[str, Any]],
        *,
        until: datetime,
    ) -> int:
        """Opens the commits in one transaction, under the run's lease.

        A lease protects the data of each commit until `until`, as if the commit had been read by
        its id.
        """
        with self._locked(hold) as tx:
            put_back_records(tx, self._repository_id, records, run_id=run_id)
            lift_tombstones(tx, self._repository_id, commit_ids, run_id=run_id)
            lease_commits(tx, self._repository_id, commit_ids, until=until)
            found = find_commits(tx, self._repository_id, commit_ids)
        # Commits that another run closed stay closed.
        return sum(commit.is_intact for commit in found.values())

    def purged_among(self, addresses: Sequence[str]) -> frozenset[str]:
        """Returns the addresses that are in the table `purged`."""
        with self._metadata.snapshot() as tx:
            return frozenset(find_purged(tx, self._repository_id, addresses))

    @contextmanager
    def _locked(self, hold: RunHold) -> Iterator[Transaction]:
        """Opens a transaction that locks the repository's row exclusively, under the lease."""
        with self._metadata.transaction() as tx:
            tx.lock_repository(self._repository_id, "exclusive", trashed=True)
            self._check_held(tx, hold)
            yield tx

    def _check_held(self, tx: Transaction, hold: RunHold) -> None:
        assert isinstance(hold, _Hold)
        hold.lease.check(tx)
