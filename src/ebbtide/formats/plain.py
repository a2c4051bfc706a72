"""Base classes of formats without a database. A new format builds on these three classes.

The lease, the records of runs, and the storage's clock are files under `_ebbtide/gc/`, or in the
directory for runs if the repository's storage must not be written to. For features that most
formats lack, the methods here answer that there are none: slices, expressions, purges, undo. Not
for: the embedded store, which has a database.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime
from typing import Any, Final

import pyarrow as pa

from ebbtide.arrow import Column, texts
from ebbtide.clock import Clock, SystemClock
from ebbtide.errors import EbbtideError, InvalidInput, NotFound, Refused
from ebbtide.escaping import shown
from ebbtide.formats.base import (
    EPOCH_ADDRESS,
    RUNS_PREFIX,
    AskedNode,
    Clocks,
    Fencing,
    Guard,
    Identity,
    Listing,
    ListingItem,
    Protector,
    Reading,
    RunHold,
    Slices,
    one_by_one,
    outside,
    unguarded,
)
from ebbtide.formats.lease import hold_storage, holder_of
from ebbtide.retention.decision import Roots
from ebbtide.settings import Settings
from ebbtide.storage import Storage
from ebbtide.storage.local import temporary_targets

RECORD_FILE: Final = "record.json"
SYSTEM_PREFIX: Final = "_ebbtide/"


class PlainLayout:
    """The parts of a `Layout` without slices or checksums. A subclass adds the rest."""

    @property
    def checked_kinds(self) -> tuple[str, ...]:
        """Returns no kinds: references carry no checksums."""
        return ()

    def plan_listing(self, storage: Storage, slices: Slices, *, cores: int) -> Listing:
        """Returns a unit of listing for each directory at the top, except Ebbtide's own."""
        del slices, cores
        tops = [each for each in storage.list_prefixes() if each != SYSTEM_PREFIX]
        units = [ListingItem(each, recursive=True) for each in tops]
        return Listing([ListingItem("", recursive=False), *units])

    def slices(self, addresses: pa.StringArray) -> pa.StringArray:
        """Returns nulls: there are no slices."""
        return pa.nulls(len(addresses), pa.string())

    def left_out(self, addresses: pa.StringArray, slices: Slices) -> pa.BooleanArray:
        """Returns whether each address is outside the storage root: there are no slices."""
        del slices
        return outside(addresses)

    def targets(self, addresses: pa.StringArray) -> pa.StringArray:
        """Returns the final address of each temporary file, and null for all other files."""
        return temporary_targets(addresses)

    def tree_address(self, tree_id: str) -> str:
        """Returns the address of a tree's file."""
        raise NotImplementedError

    def tree_addresses(self, tree_ids: Column) -> Column:
        """Returns the addresses of many trees' files, in order."""
        return pa.array([self.tree_address(each) for each in texts(tree_ids)], pa.string())

    def node_address(self, node_id: str) -> str:
        """Returns the address of a node's file."""
        raise NotImplementedError

    def node_addresses(self, node_ids: Column) -> Column:
        """Returns the addresses of many nodes' files, in order."""
        return pa.array([self.node_address(each) for each in texts(node_ids)], pa.string())

    def read_node(
        self, storage: Storage, node_id: str, checksum: str, *, entry_count: int
    ) -> pa.StringArray:
        """Returns the addresses that a node refers to."""
        raise NotImplementedError

    def read_nodes(self, nodes: Sequence[AskedNode]) -> Sequence[pa.StringArray | EbbtideError]:
        """Reads nodes one by one."""
        return one_by_one(self.read_node, nodes)

    def read_files(
        self, storage: Storage, node_id: str, checksum: str, *, entry_count: int
    ) -> pa.Table:
        """Raises NotImplementedError: only formats with slices need this."""
        raise NotImplementedError


class PlainReading:
    """The parts of a `Reading` without slices, protections or purges."""

    def untraced(self) -> Iterator[pa.Table]:
        """Yields nothing: there are no slices."""
        return iter(())

    def dropped(self) -> Iterator[pa.Table]:
        """Yields nothing: there are no slices."""
        return iter(())

    def purged(self) -> Iterator[pa.Table]:
        """Yields nothing: repositories of this format are not purged."""
        return iter(())

    def protectors(self, address: str) -> list[Protector]:
        """Returns no protections."""
        del address
        return []

    def expired_commit(self, commit_id: str) -> None:
        """Returns None: only the records of runs tell which commits expired."""

    def purged_at(self, address: str) -> None:
        """Returns None: repositories of this format are not purged."""


class PlainRepository:
    """The parts of a `RepositoryFormat` that need only a lease and files of runs.

    `run_dir` is the storage for the files of runs; None means the repository's own storage. A
    subclass adds `layout`, `walk`, `landmark`, `reading` and `forget`. Its readings mark the
    commits in `_closed` as closed (`Commit.tombstoned`).
    """

    batch_max: int | None = None
    on_hold: Callable[[str], None] | None = None

    def __init__(
        self,
        storage: Storage,
        identity: Identity,
        *,
        settings: Settings,
        run_dir: Storage | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.storage = storage
        self.identity = identity
        self._settings = settings
        self._run_dir = run_dir
        self._clock = clock or SystemClock()
        self._closed: frozenset[str] = frozenset()

    def now(self) -> datetime:
        """Returns this machine's time: there is no database."""
        return self._clock.host_now()

    @contextmanager
    def hold(self, run_id: str, *, deletes: bool) -> Iterator[RunHold]:
        """Takes the lease on the storage. A plan that must not write there takes it in the
        directory for runs."""
        storage = self._run_dir if self._run_dir is not None and not deletes else self.storage
        holding = hold_storage(
            storage,
            run_id=run_id,
            heartbeat=self._settings.run_heartbeat,
            lease_ttl=self._settings.run_lease_ttl,
            skew_max=self._settings.clock_skew_max,
            epoch_min=self._last_epoch(),
            clock=self._clock.host_now,
        )
        with holding as hold:
            if self.on_hold is not None:
                self.on_hold(run_id)
            yield hold

    def running_id(self) -> str | None:
        """Returns the id of the run that holds the storage now, in any process; or None. Raises
        Refused `run_in_progress` if the lease's file is damaged."""
        return holder_of(self.storage, lease_ttl=self._settings.run_lease_ttl, now=self.now())

    def _last_epoch(self) -> int:
        """Returns the highest epoch that a run announced, in case the lease's file was deleted."""
        try:
            return int(json.loads(self.storage.get(EPOCH_ADDRESS))["run_epoch"])
        except (NotFound, ValueError, KeyError, TypeError):
            return 0

    def check_storage(self) -> None:
        """Does nothing: there is no database that the storage could belong to."""

    def clocks(self) -> Clocks:
        """Reads the clocks. The storage's time is the date of the run's file EPOCH, just written.

        With a `run_dir`, the host's time is used instead: a plan then writes no file to the
        storage, and deletes none.
        """
        return self._clocks(EPOCH_ADDRESS)

    def _clocks(self, written: str) -> Clocks:
        host = self.now()
        info = None if self._run_dir is not None else self.storage.head(written)
        stored = host if info is None else self._clock.storage_time(info.last_modified)
        return Clocks(host=host, database=host, storage=stored)

    def used_unseen(self, candidates: Iterable[pa.Table]) -> Iterator[pa.Table]:
        """Yields nothing: the metadata names everything that can be read."""
        del candidates
        return iter(())

    def resolve(self, expression: str) -> str:
        """Raises NotFound `ref_not_found`: there are no expressions."""
        raise NotFound(
            "ref_not_found",
            f"there is no branch, tag or snapshot {shown(expression)} at {self.storage.url}",
        )

    def address_at(self, ref: str, path: str) -> str:
        """Raises InvalidInput `invalid_argument`: there are no paths of single files."""
        del path
        raise InvalidInput(
            "invalid_argument",
            f"{self.identity.repository_name} has no paths of single files: give the address of a "
            f"file, or only the snapshot or ref ({shown(ref)})",
        )

    def record_run(
        self, run_id: str, *, state: str, run_path: str, plan_checksum: str | None = None
    ) -> None:
        """Records the run in its own folder."""
        storage, prefix = self._runs()
        checksum = self.plan_checksum(run_id) if plan_checksum is None else plan_checksum
        record = {"state": state, "run_path": run_path, "plan_checksum": checksum}
        storage.put(f"{prefix}{run_id}/{RECORD_FILE}", json.dumps(record).encode())

    def plan_checksum(self, run_id: str) -> str | None:
        """Returns the plan's checksum from the run's record, or None."""
        record = self._record(run_id)
        return None if record is None else record.get("plan_checksum")

    def drop_run(self, run_id: str) -> None:
        """Deletes the run's record, if it was not deleted with the run's folder."""
        storage, prefix = self._runs()
        storage.delete([f"{prefix}{run_id}/{RECORD_FILE}"])

    def run_paths(self) -> dict[str, str]:
        """Returns the folders of all runs that have a record, newest first."""
        storage, prefix = self._runs()
        found = {}
        for folder in storage.list_prefixes(prefix):
            run_id = folder.removeprefix(prefix).rstrip("/")
            record = self._record(run_id)
            if record is not None:
                found[run_id] = str(record["run_path"])
        return dict(sorted(found.items()))

    def _runs(self) -> tuple[Storage, str]:
        """Returns the storage and the prefix of the runs' folders."""
        return (self.storage, RUNS_PREFIX) if self._run_dir is None else (self._run_dir, "")

    def _record(self, run_id: str) -> dict[str, Any] | None:
        storage, prefix = self._runs()
        try:
            found = json.loads(storage.get(f"{prefix}{run_id}/{RECORD_FILE}"))
        except (NotFound, ValueError):
            return None
        return found if isinstance(found, dict) and "run_path" in found else None

    def closed_after(self) -> str | None:
        """Returns None: there are no slices, and all runs are clean."""
        return None

    def reading(self, cutoff: datetime) -> AbstractContextManager[Reading]:
        """Reads the metadata in one snapshot."""
        raise NotImplementedError

    def fence(
        self,
        hold: RunHold,
        run_id: str,
        choose: Callable[[Roots], Fencing],
        *,
        cutoff: datetime,
    ) -> None:
        """Chooses the commits to close. Nothing can be closed yet: `forget` closes them, on the
        condition that nothing needs them again."""
        del run_id
        hold.check()
        self._closed = frozenset()
        with self.reading(cutoff) as reading:
            self._closed = frozenset(choose(reading.roots()).tombstone)

    def lift(self, hold: RunHold, run_id: str, commit_ids: Collection[str]) -> None:
        """Opens the commits again, in this process. They are not closed anywhere else."""
        del run_id
        hold.check()
        self._closed -= frozenset(commit_ids)

    def guard(self, active: Collection[str] | None = None) -> Guard:
        """Returns the empty guard: commits that `forget` closed stay closed."""
        del active
        return unguarded

    def lost(self) -> str | None:
        """Returns None: commits that `forget` closed cannot be needed again."""
        return None

    def check_undoable(self) -> None:
        """Raises InvalidInput `invalid_argument`: runs of this format cannot be undone."""
        raise InvalidInput(
            "invalid_argument",
            f"runs of {self.identity.format_name} repositories cannot be undone: leave the "
            "quarantine out",
        )

    def records(self, commit_ids: Collection[str]) -> list[dict[str, Any]]:
        """Returns no records: runs cannot be undone."""
        del commit_ids
        return []

    def closed_by(self, run_id: str) -> list[dict[str, Any]]:
        """Returns no commits: a run deletes the record of each commit that it closes."""
        del run_id
        return []

    def reopen(
        self,
        hold: RunHold,
        run_id: str,
        commit_ids: Collection[str],
        records: Sequence[Mapping[str, Any]],
        *,
        until: datetime,
    ) -> int:
        """Raises as `check_undoable` does."""
        del hold, run_id, commit_ids, records, until
        self.check_undoable()
        return 0

    def purged_among(self, addresses: Sequence[str]) -> frozenset[str]:
        """Returns an empty set: repositories of this format are not purged."""
        del addresses
        return frozenset()


def changed(what: str) -> Refused:
    """Returns the refusal `repository_changed`, for the caller to raise."""
    return Refused("repository_changed", f"the repository changed meanwhile: {what}")


@contextmanager
def refusing(
    storage: Storage, address: str, *, what: str, damaged: type[Exception]
) -> Iterator[None]:
    """Raises errors of a needed file as Refused. The kind is `missing_` or `corrupt_` followed by
    `what`. An error of the type `damaged` means that the file is damaged."""
    where = f"{storage.url}/{address}"
    try:
        yield
    except NotFound:
        raise Refused(f"missing_{what}", f"{where} is missing, but needed: restore it") from None
    except damaged as error:
        raise Refused(f"corrupt_{what}", f"{where} is damaged: {error}") from error
