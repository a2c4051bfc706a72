"""The embedded store as the collector sees it: the five relations over its database and files."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, cast

import pyarrow as pa
import pyarrow.compute as pc

from ebbtide.errors import EbbtideError, Refused
from ebbtide.formats.base import (
    NODES_SCHEMA,
    Clocks,
    Fencing,
    Guard,
    Identity,
    LetGo,
    Listing,
    ListingItem,
    Protector,
    PurgedAddress,
    RunHold,
    Slices,
    unguarded,
)
from ebbtide.formats.embedded_walk import EmbeddedWalk
from ebbtide.ids import instant_of, latest_id
from ebbtide.retention.decision import Roots
from ebbtide.settings import Settings
from ebbtide.storage import Storage
from ebbtide.storage.local import temporary_targets
from ebbtide.store.collecting import (
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
from ebbtide.store.content.layout import (
    COLLECTOR_PREFIX,
    DATA_PREFIX,
    OWNER_ADDRESS,
    PURGES_PREFIX,
    classify,
    range_address,
    tree_address,
)
from ebbtide.store.content.ranges import read_range_addresses, read_range_files
from ebbtide.store.content.trees import read_tree
from ebbtide.store.context import RepositoryContext
from ebbtide.store.leases import Lease, beat, release_lease, take_lease
from ebbtide.store.metadata.commits import find_commits
from ebbtide.store.metadata.engine import Transaction
from ebbtide.store.metadata.purges import find_purge, find_purged, pages_of_closed
from ebbtide.store.metadata.records import (
    closed_rows,
    lease_commits,
    put_back_records,
    record_rows,
)
from ebbtide.store.metadata.references import staged_places
from ebbtide.store.preparing import STAGED, dropped, uncommitted, untraced
from ebbtide.store.revisions import resolve
from ebbtide.store.tracing import address_at

FORMAT_NAME: Final = "ebbtide"
_SYSTEM_PREFIX: Final = COLLECTOR_PREFIX.split("/")[0] + "/"


@dataclass(frozen=True, slots=True)
class EmbeddedLayout:
    """Files of the embedded store: objects in slices, trees, ranges."""

    delete_order: tuple[str, ...] = ("tree", "range", "object", "temporary")
    checked_kinds: tuple[str, ...] = ("tree", "range")

    def plan_listing(self, storage: Storage, slices: Slices, *, cores: int) -> Listing:
        """A slice is a unit of listing. What is in none is listed by directories, two levels deep:
        whoever put it there may have put much of it into one."""
        del cores  # there are far more slices
        items = [ListingItem("", recursive=False)]
        young = 0
        for top in storage.list_prefixes():
            if top not in (DATA_PREFIX, _SYSTEM_PREFIX):
                items += _shards(storage, top)
                continue
            items.append(ListingItem(top, recursive=False))
            for prefix in storage.list_prefixes(top):
                opened_at = _opened_at(prefix)
                if prefix in (COLLECTOR_PREFIX, PURGES_PREFIX) or _is_closed(
                    prefix, slices.closed_after
                ):
                    continue
                if opened_at is None and top == DATA_PREFIX:
                    items += _shards(storage, prefix)
                elif opened_at is not None and slices.cutoff <= opened_at <= slices.now:
                    young += 1
                else:
                    items.append(ListingItem(prefix, recursive=True))
        return Listing(items, young)

    def classify(self, addresses: pa.StringArray) -> pa.StringArray:
        """By the address alone."""
        return classify(addresses)

    def slices(self, addresses: pa.StringArray) -> pa.StringArray:
        """The directory under `data/`."""
        found = pc.extract_regex(addresses, rf"^{DATA_PREFIX}(?P<slice>[^/]+)/")
        return cast("pa.StringArray", pc.struct_field(found, "slice"))

    def targets(self, addresses: pa.StringArray) -> pa.StringArray:
        """Without the suffix of temporary files, where there is one."""
        return temporary_targets(addresses)

    def tree_address(self, tree_id: str) -> str:
        """Under `_ebbtide/trees/`."""
        return tree_address(tree_id)

    def node_address(self, node_id: str) -> str:
        """Under `_ebbtide/ranges/`: a node is a range."""
        return range_address(node_id)

    def read_tree(self, storage: Storage, tree_id: str, checksum: str) -> pa.Table:
        """The ranges of a tree."""
        ranges = read_tree(storage, tree_id, checksum).ranges
        columns = [
            [info.range_id for info in ranges],
            [info.checksum for info in ranges],
            [info.entry_count for info in ranges],
        ]
        return pa.table(columns, schema=NODES_SCHEMA)

    def read_files(
        self, storage: Storage, node_id: str, checksum: str, *, entry_count: int
    ) -> pa.Table:
        """The addresses and sizes of a range's entries, but for imported ones."""
        return read_range_files(storage, node_id, checksum, entry_count=entry_count)

    def read_node(
        self, storage: Storage, node_id: str, checksum: str, *, entry_count: int
    ) -> pa.StringArray:
        """The addresses of a range's entries."""
        return read_range_addresses(storage, node_id, checksum, entry_count=entry_count)


def _shards(storage: Storage, prefix: str) -> list[ListingItem]:
    """A directory that is no slice: its own files, and each directory in it."""
    inner = storage.list_prefixes(prefix)
    return [ListingItem(prefix, recursive=False), *(ListingItem(p, recursive=True) for p in inner)]


def _opened_at(prefix: str) -> datetime | None:
    """When a slice was opened; None for a directory that is none."""
    if not prefix.startswith(DATA_PREFIX):
        return None
    return instant_of(prefix.removeprefix(DATA_PREFIX).rstrip("/"))


def _is_closed(prefix: str, closed_after: str | None) -> bool:
    """Whether a directory is a slice that was closed off."""
    name = prefix.removeprefix(DATA_PREFIX).rstrip("/")
    return closed_after is not None and _opened_at(prefix) is not None and name > closed_after


@dataclass(frozen=True, slots=True)
class _Reading:
    tx: Transaction
    repository_id: str
    settings: Settings
    opened_at: datetime  # before the snapshot

    def roots(self) -> Roots:
        return read_roots(
            self.tx,
            self.repository_id,
            lease_ttl=self.settings.lease_ttl,
            trash_time=self.settings.trash_time,
        )

    def protected(self, among: Sequence[str] | None = None) -> Iterator[pa.Table]:
        return uncommitted(
            self.tx,
            self.repository_id,
            now=self.opened_at,
            trash_time=self.settings.trash_time,
            among=among,
        )

    def untraced(self) -> Iterator[pa.Table]:
        return untraced(self.tx, self.repository_id)

    def dropped(self) -> Iterator[pa.Table]:
        return dropped(
            self.tx,
            self.repository_id,
            now=self.opened_at,
            trash_time=self.settings.trash_time,
        )

    def purged(self) -> Iterator[pa.Table]:
        for addresses in pages_of_closed(self.tx, self.repository_id):
            yield pa.table({"address": pa.array(addresses, pa.string())})

    def protectors(self, address: str) -> list[Protector]:
        rows = [row for table in self.protected([address]) for row in table.to_pylist()]
        found = [
            Protector(reason=row["reason"], since=row["created_at"], until=row["until"])
            for row in rows
            if row["reason"] != STAGED.reason
        ]
        if len(found) < len(rows):
            found += self._staged_at(address)
        return found

    def _staged_at(self, address: str) -> Iterator[Protector]:
        trash_time = self.settings.trash_time
        places = staged_places(
            self.tx, self.repository_id, address, gone_before=self.opened_at - trash_time
        )
        for place in places:
            ends_at = place.branch_expires_at
            yield Protector(
                reason=STAGED.reason,
                where=f"branch {place.branch}, path {place.path}",
                since=place.staged_at,
                until=None if ends_at is None else ends_at + trash_time,
            )

    def let_go(self, commit_id: str) -> LetGo | None:
        commit = find_commits(self.tx, self.repository_id, [commit_id]).get(commit_id)
        if commit is None or commit.is_intact:
            return None
        if commit.given_up_at is not None and commit.forgotten_by is None:
            reason = f"given up as damaged: {commit.given_up_reason}"
            return LetGo(run_id=None, at=commit.given_up_at, reason=reason)
        return LetGo(
            run_id=commit.forgotten_by or commit.tombstoned_by,
            at=commit.tombstoned_at,
            forgotten=commit.forgotten_by is not None,
        )

    def purged_at(self, address: str) -> PurgedAddress | None:
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


class _Hold:
    """A lease with a thread that keeps it alive."""

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
        release_lease(self._metadata, self.lease)

    def _keep(self) -> None:
        while not self._ended.wait(self._interval_seconds):
            try:
                beat(self._metadata, self.lease)
            except Refused as error:
                self._lost = error
                return
            except EbbtideError:
                # A beat that the database did not take is no loss yet: `check` finds out.
                continue


class EmbeddedRepository:
    """A repository of the embedded store, for the collector."""

    layout: EmbeddedLayout

    def __init__(
        self,
        context: RepositoryContext,
        *,
        store_id: str,
        on_hold: Callable[[str], None] | None = None,
    ) -> None:
        self._context = context
        self._on_hold = on_hold
        self._metadata = context.metadata
        self._repository_id = context.repository_id
        self.layout = EmbeddedLayout()
        self.storage = context.storage
        self.identity = Identity(FORMAT_NAME, store_id, context.repository_id, context.info.name)

    def now(self) -> datetime:
        """The database's time."""
        with self._metadata.snapshot() as tx:
            return tx.now()

    @contextmanager
    def hold(self, run_id: str, *, deletes: bool) -> Iterator[_Hold]:
        """Take the lease, which is the database's, and keep it alive until the block ends."""
        del deletes
        lease = take_lease(
            self._metadata,
            repository_id=self._repository_id,
            run_id=run_id,
            lease_ttl=self._context.settings.run_lease_ttl,
        )
        if self._on_hold is not None:
            # Who started a run wants to know its id before it ends.
            self._on_hold(run_id)
        hold = _Hold(self._context, lease)
        hold.start()
        try:
            yield hold
        finally:
            hold.stop()

    @property
    def walk(self) -> EmbeddedWalk:
        """Parquet files."""
        return EmbeddedWalk(self.storage)

    @property
    def landmark(self) -> str:
        """OWNER, which is written before anything else."""
        return OWNER_ADDRESS

    def check_storage(self) -> None:
        """Check OWNER and move its epoch."""
        self._context.ownership.move()

    def clocks(self) -> Clocks:
        """The storage's time is the date that it gave the OWNER file just now."""
        info = self.storage.head(OWNER_ADDRESS)
        if info is None:
            raise Refused("storage_foreign", f"{self.storage.url}/{OWNER_ADDRESS} went away")
        clock = self._context.clock
        return Clocks(
            host=clock.host_now(),
            database=self.now(),
            storage=clock.storage_time(info.last_modified),
        )

    @contextmanager
    def reading(self, cutoff: datetime | None = None) -> Iterator[_Reading]:
        """One snapshot of the database, which knows of everything that is being written."""
        del cutoff
        opened_at = self.now()
        with self._metadata.snapshot(scans=True) as tx:
            yield _Reading(tx, self._repository_id, self._context.settings, opened_at)

    def resolve(self, expression: str) -> str:
        """As `store.revisions` has it; Conflict `ref_ambiguous` besides."""
        with self._metadata.snapshot() as tx:
            return resolve(tx, self._repository_id, expression).commit.commit_id

    def address_at(self, ref: str, path: str) -> str:
        """Of a branch, tag or commit, or of a collection by its path; Gone `commit_expired` where
        a run let the record go."""
        return address_at(self._context, ref, path)

    def record_run(
        self, run_id: str, *, state: str, run_path: str, plan_checksum: str | None = None
    ) -> None:
        """Keep the run in `gc_runs`."""
        values = {"state": state, "run_url": run_path}
        if plan_checksum is not None:
            values["plan_checksum"] = plan_checksum
        with self._metadata.transaction() as tx:
            write_run(tx, self._repository_id, run_id, **values)

    def plan_checksum(self, run_id: str) -> str | None:
        """From `gc_runs`."""
        with self._metadata.snapshot() as tx:
            row = read_run(tx, self._repository_id, run_id)
        return None if row is None else row.plan_checksum

    def drop_run(self, run_id: str) -> None:
        """From `gc_runs`."""
        with self._metadata.transaction() as tx:
            delete_run(tx, self._repository_id, run_id)

    def run_paths(self) -> dict[str, str]:
        """From `gc_runs`."""
        with self._metadata.snapshot() as tx:
            return {row.run_id: row.run_url for row in list_runs(tx, self._repository_id)}

    def closed_after(self) -> str:
        """A slice is open while its process may write to it, and while something that was begun in
        it has not ended. All processes of a store must have one EBBTIDE_SLICE_AGE_MAX: what one
        writes to a slice that another holds closed is found by the next clean run."""
        with self._metadata.snapshot() as tx:
            oldest = oldest_open_slice(tx, self._repository_id)
            opened = latest_id(tx.now() - self._context.settings.slice_age_max)
        return max(opened, oldest or opened)

    def fence(
        self,
        hold: RunHold,
        run_id: str,
        choose: Callable[[Roots], Fencing],
        *,
        cutoff: datetime,
    ) -> Roots:
        """One transaction, with the repository's row taken exclusively."""
        del cutoff
        with self._metadata.transaction() as tx:
            tx.lock_repository(self._repository_id, "exclusive", trashed=True)
            self._check_held(tx, hold)
            roots = _Reading(tx, self._repository_id, self._context.settings, tx.now()).roots()
            chosen = choose(roots)
            set_tombstones(tx, self._repository_id, chosen.tombstone, run_id=run_id)
            drop_ended(
                tx,
                self._repository_id,
                lease_ttl=self._context.settings.lease_ttl,
                trash_time=self._context.settings.trash_time,
            )
            write_run(tx, self._repository_id, run_id, state="sweeping", fenced_at=tx.now())
        return roots

    def lift(self, hold: RunHold, run_id: str, commit_ids: Collection[str]) -> None:
        """Take back the tombstones of `commit_ids`, under the lease."""
        with self._metadata.transaction() as tx:
            tx.lock_repository(self._repository_id, "exclusive", trashed=True)
            self._check_held(tx, hold)
            lift_tombstones(tx, self._repository_id, commit_ids, run_id=run_id)

    def forget(self, hold: RunHold, run_id: str, commit_ids: Collection[str]) -> None:
        """Empty the records of `commit_ids`, under the lease."""
        with self._metadata.transaction() as tx:
            tx.lock_repository(self._repository_id, "exclusive", trashed=True)
            self._check_held(tx, hold)
            forget_commits(tx, self._repository_id, commit_ids, run_id=run_id)

    def guard(self) -> Guard:
        """The fence holds by itself."""
        return unguarded

    def check_undoable(self) -> None:
        """They can."""

    def records(self, commit_ids: Collection[str]) -> list[dict[str, Any]]:
        """Rows of `commits`, but for the content of collections, which nobody can reach again."""
        with self._metadata.snapshot() as tx:
            return record_rows(tx, self._repository_id, commit_ids)

    def closed_by(self, run_id: str) -> list[dict[str, Any]]:
        """From `commits`."""
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
        """Under the lease, all of them; a commit of one's own is kept as one that was read by its
        id."""
        with self._metadata.transaction() as tx:
            tx.lock_repository(self._repository_id, "exclusive", trashed=True)
            self._check_held(tx, hold)
            put_back_records(tx, self._repository_id, records, run_id=run_id)
            lift_tombstones(tx, self._repository_id, commit_ids, run_id=run_id)
            lease_commits(tx, self._repository_id, commit_ids, until=until)
        return len(commit_ids)

    def purged_among(self, addresses: Sequence[str]) -> frozenset[str]:
        """From `purged`."""
        with self._metadata.snapshot() as tx:
            return frozenset(find_purged(tx, self._repository_id, addresses))

    def _check_held(self, tx: Transaction, hold: RunHold) -> None:
        assert isinstance(hold, _Hold)
        hold.lease.check(tx)
