"""Base classes of formats without a database. A new format builds on these three classes.

The lease, the records of runs, and the storage's clock are files under `_ebbtide/gc/`, or in the
directory for runs if the repository's storage must not be written to. Not for: the embedded store,
which has a database.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime
from typing import Any, Final, TypeAlias

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
    Identity,
    Listing,
    ListingItem,
    Protector,
    Reading,
    RunHold,
    Slices,
    one_by_one,
    outside,
)
from ebbtide.formats.lease import hold_storage, holder_of
from ebbtide.formats.roots import check_unowned
from ebbtide.ids import is_id, newest_first
from ebbtide.retention.decision import Roots
from ebbtide.settings import Settings
from ebbtide.storage import Storage
from ebbtide.storage.local import temporary_targets

RECORD_FILE: Final = "record.json"
SYSTEM_PREFIX: Final = "_ebbtide/"


_Place: TypeAlias = tuple[Storage, str]
"""A storage, and a prefix in it under which runs have their folders."""


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


class PlainReading:
    """The parts of a `Reading` without slices, protections or purges."""

    def protected(self, among: Iterable[Sequence[str]] | None = None) -> Iterator[pa.Table]:
        """Yields nothing: what no commit refers to is not needed."""
        del among
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
        """Raises Refused `nested_root` if the storage belongs to a repository of an Ebbtide
        store."""
        check_unowned(self.storage)

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
        self, run_id: str, *, state: str, run_path: str | None, plan_checksum: str | None = None
    ) -> None:
        """Records the run in its own folder, which therefore needs no path."""
        del run_path
        storage, prefix = self._place_of(run_id)
        checksum = self.plan_checksum(run_id) if plan_checksum is None else plan_checksum
        record = {"state": state, "plan_checksum": checksum}
        storage.put(f"{prefix}{run_id}/{RECORD_FILE}", json.dumps(record).encode())

    def plan_checksum(self, run_id: str) -> str | None:
        """Returns the plan's checksum from the run's record, or None."""
        record = _record_in(self._place_of(run_id), run_id)
        return None if record is None else record.get("plan_checksum")

    def drop_run(self, run_id: str) -> None:
        """Deletes the run's record, if it was not deleted with the run's folder."""
        for storage, prefix in self._places():
            storage.delete([f"{prefix}{run_id}/{RECORD_FILE}"])

    def run_paths(self) -> dict[str, str | None]:
        """Returns all runs that have a record, in the repository's storage and in the directory for
        runs, newest first. No record says where a folder is: it is in the folder itself."""
        found = set()
        for storage, prefix in self._places():
            names = (each.removeprefix(prefix) for each in storage.list_prefixes(prefix))
            ids = {name.rstrip("/") for name in names}
            found |= {each for each in ids if is_id(each) and _record_in((storage, prefix), each)}
        return dict.fromkeys(newest_first(found, self.now()))

    def _runs(self) -> _Place:
        """Returns the place of new runs."""
        return (self.storage, RUNS_PREFIX) if self._run_dir is None else (self._run_dir, "")

    def _places(self) -> list[_Place]:
        """Returns the places of runs: the directory for runs, if there is one, and the place in the
        repository's storage."""
        own = (self.storage, RUNS_PREFIX)
        return [own] if self._run_dir is None else [self._runs(), own]

    def _place_of(self, run_id: str) -> _Place:
        """Returns the place that has a run's record; for a run without one, the place of new
        runs."""
        places = self._places()
        return next((each for each in places if _record_in(each, run_id)), places[0])

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


def _record_in(place: _Place, run_id: str) -> dict[str, Any] | None:
    """Returns a run's record in a place; None if there is none, or if it is damaged."""
    storage, prefix = place
    try:
        found = json.loads(storage.get(f"{prefix}{run_id}/{RECORD_FILE}"))
    except (NotFound, ValueError):
        return None
    return found if isinstance(found, dict) and "plan_checksum" in found else None


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
