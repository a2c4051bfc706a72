"""The contract between the collector and a repository format.

The collector uses these protocols alone and never names a format. To add a format, implement
`Layout` and `Walk` (how files are laid out and read), `Reading` (the metadata at one instant) and
`RepositoryFormat` (everything else). `Layout` is picklable and travels to Spark's executors;
`RepositoryFormat` stays in the driver. A format without a database builds on `formats.plain`, which
has most of the methods. What a format may lack is in `formats.capabilities`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from ebbtide.arrow import Column, make_schema
from ebbtide.durations import format_duration
from ebbtide.errors import EbbtideError, Refused
from ebbtide.retention.decision import Roots
from ebbtide.storage import Storage

NODES_SCHEMA: Final = make_schema(
    ("node_id", pa.string()),
    ("checksum", pa.string()),
    ("entry_count", pa.int64()),
)
"""The nodes of a tree, with the checksum of each node's file and the number of its entries. The
number tells an empty node from a node that could not be read."""

PROTECTED_SCHEMA: Final = make_schema(
    ("address", pa.string()),
    ("reason", pa.string()),
    ("until", pa.timestamp("us", "UTC")),
    ("created_at", pa.timestamp("us", "UTC")),
)
"""The relation `protected`: addresses that must stay although no commit refers to them. `until` and
`created_at` are null if the format does not know them."""

AMONG_MAX: Final = 500_000
"""The most addresses in one batch of a query by address. A batch is one parameter of a statement,
and has some 35 MB."""

SHARES_MAX: Final = 8
"""The most tasks that list one local directory. Each task reads all names of the directory, so that
more tasks gain nothing."""

RUNS_PREFIX: Final = "_ebbtide/gc/runs/"
"""The prefix of the folders of runs on the repository's storage."""
INDEX_PREFIX: Final = "_ebbtide/gc/index/1/"
"""The prefix of the address index, with the version of its file format."""
EPOCH_ADDRESS: Final = "_ebbtide/gc/EPOCH"
"""The file that names the run that may delete. Executors read it before each batch."""

FOREIGN: Final = "foreign"
"""The kind of files that the format does not know. They are counted in reports and never
deleted."""
RECORD: Final = "record"
"""The kind of files of runs, of the index and of exports while a deleted repository is removed. In
a repository that exists these files are of the kind SYSTEM."""
SYSTEM: Final = "system"
"""The kind of files that are never candidates: files of runs, the index, OWNER."""


@dataclass(frozen=True, slots=True)
class Identity:
    """The repository that a plan is for: two ids that never change, and a name for people.

    An upgrade of the format can change the repository's id. `former_id` is its id before that.
    """

    format_name: str
    store_id: str
    repository_id: str
    repository_name: str
    former_id: str | None = None


@dataclass(frozen=True, slots=True)
class ListingItem:
    """One unit of listing: the files under `prefix`, or only those directly in it if `recursive` is
    false. `share`, `sized` and `streamed` are arguments of `Storage.list`."""

    prefix: str
    recursive: bool
    share: tuple[int, int] = (0, 1)
    sized: bool = True
    streamed: bool = False


def in_shares(
    storage: Storage, prefix: str, *, cores: int, sized: bool, streamed: bool = False
) -> list[ListingItem]:
    """Divides the listing of a prefix among tasks. Only a local directory is divided: on an object
    store each task would have to list everything."""
    count = min(cores, SHARES_MAX) if storage.url.startswith("file:") else 1
    return [
        ListingItem(prefix, recursive=True, share=(k, count), sized=sized, streamed=streamed)
        for k in range(count)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Slices:
    """The slices that a listing may leave out. A slice's name says when it was opened; no file in
    it is older.

    Slices opened between `cutoff` and `now` hold no candidates. Slices that sort after
    `closed_after` were closed before an earlier run listed them. `sized`: ask for the sizes of
    objects too. Trees and nodes are always listed with sizes and dates.
    """

    cutoff: datetime
    now: datetime
    closed_after: str | None = None
    sized: bool = True


@dataclass(frozen=True, slots=True)
class Listing:
    """The units to list, and the number of slices left out because they are young."""

    items: list[ListingItem]
    young_slices: int = 0


@dataclass(frozen=True, slots=True)
class Clocks:
    """The three clocks that a run depends on, read at about the same time (UTC)."""

    host: datetime
    database: datetime
    storage: datetime

    @property
    def earliest(self) -> datetime:
        """The slowest clock. By this clock no file seems older than it is."""
        return min(self.host, self.database, self.storage)

    def check(self, *, skew_max: timedelta) -> None:
        """Raises Refused `clock_skew` if two of the clocks differ by more than `skew_max`."""
        readings = {
            "this host": self.host,
            "the database": self.database,
            "the storage": self.storage,
        }
        first = min(readings, key=lambda name: readings[name])
        last = max(readings, key=lambda name: readings[name])
        apart = readings[last] - readings[first]
        if apart > skew_max:
            raise Refused(
                "clock_skew",
                f"{last} ({readings[last]:%Y-%m-%d %H:%M:%S}) is {apart.total_seconds():.0f} s "
                f"ahead of {first} ({readings[first]:%Y-%m-%d %H:%M:%S}), "
                f"and only {format_duration(skew_max)} is allowed: the ages of files are not "
                "reliable; set the clocks right, then run again",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Protector:
    """A reason why an address is protected, for people. `where` adds detail, such as the branch
    that has the address staged. `until` is None if the protection has no end of its own."""

    reason: str
    where: str | None = None
    since: datetime | None = None
    until: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpiredCommit:
    """The record of an expired commit: the run that closed it, or None and the `reason` if an
    administrator gave it up. `forgotten`: the commit's record was deleted as well."""

    run_id: str | None
    at: datetime | None
    forgotten: bool = False
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PurgedAddress:
    """The record of a purged address: the purge, its reason, and its state."""

    purge_id: str
    at: datetime
    reason: str
    state: str


@dataclass(frozen=True, slots=True)
class AskedNode:
    """A node to read, as NODES_SCHEMA names it, and the storage that has its file."""

    storage: Storage
    node_id: str
    checksum: str
    entry_count: int


class Layout(Protocol):
    """How a format lays out its files, and how trees and nodes are read. Picklable."""

    @property
    def delete_order(self) -> tuple[str, ...]:
        """The kinds that can be deleted, in order: a file is deleted before the files that it
        refers to."""

    def plan_listing(self, storage: Storage, slices: Slices, *, cores: int) -> Listing:
        """Returns units that list each file of the storage once, without the slices that may be
        left out, divided for `cores` tasks."""

    def classify(self, addresses: pa.StringArray) -> pa.StringArray:
        """Returns the kind of each address: one of `delete_order`, FOREIGN or SYSTEM."""

    def slices(self, addresses: pa.StringArray) -> pa.StringArray:
        """Returns the slice of each address, or null if it lies in no slice."""

    def left_out(self, addresses: pa.StringArray, slices: Slices) -> pa.BooleanArray:
        """Returns whether a listing leaves each address out: it is outside the storage root, or in
        a young slice."""

    def targets(self, addresses: pa.StringArray) -> pa.StringArray:
        """Returns the final address of each temporary file, and null for all other files."""

    def tree_address(self, tree_id: str) -> str:
        """Returns the address of a tree's file."""

    def tree_addresses(self, tree_ids: Column) -> Column:
        """Returns the addresses of many trees' files, in order."""

    def node_address(self, node_id: str) -> str:
        """Returns the address of a node's file."""

    def node_addresses(self, node_ids: Column) -> Column:
        """Returns the addresses of many nodes' files, in order."""

    @property
    def checked_kinds(self) -> tuple[str, ...]:
        """The kinds of trees and nodes, if references to them carry a checksum of their content.
        Runs then remember what these files refer to until the files change.

        Empty if references carry no checksum. A damaged node could then name a wrong address, so
        that a run refuses unless it finds every live address on the storage.
        """

    def read_tree(self, storage: Storage, tree_id: str, checksum: str) -> pa.Table:
        """Returns the nodes of a tree (NODES_SCHEMA). Raises Refused `missing_tree`, `corrupt_tree`
        or `unknown_format_version`."""

    def read_node(
        self, storage: Storage, node_id: str, checksum: str, *, entry_count: int
    ) -> pa.StringArray:
        """Returns the addresses that a node refers to. Raises Refused `missing_node`,
        `corrupt_node` or `unknown_format_version`."""

    def read_nodes(self, nodes: Sequence[AskedNode]) -> Sequence[pa.StringArray | EbbtideError]:
        """Returns the result of `read_node` for each of several small nodes, or the error that it
        raises. Use `one_by_one`, unless the format can read many nodes faster together."""


def outside(addresses: pa.StringArray) -> pa.BooleanArray:
    """Returns whether each address is a URL, and so outside the storage root."""
    return pc.match_substring(addresses, "://")


def one_by_one(
    read_node: Callable[..., pa.StringArray], nodes: Sequence[AskedNode]
) -> Sequence[pa.StringArray | EbbtideError]:
    """Reads nodes as `Layout.read_nodes` does, by `Layout.read_node`."""
    found: list[pa.StringArray | EbbtideError] = []
    for each in nodes:
        try:
            count = each.entry_count
            found.append(read_node(each.storage, each.node_id, each.checksum, entry_count=count))
        except EbbtideError as error:
            found.append(error)
    return found


class Walk(Protocol):
    """A second reader of trees and nodes, for verification. It is plain and slow, and shares no
    code with the layout, so that both cannot have the same defect. Several threads use it.

    All methods raise NotFound `object_not_found` for a missing file, and ValueError for a damaged
    one.
    """

    def tree(self, tree_id: str) -> str:
        """Returns the address of a tree's file, by the tree's id."""

    def nodes(self, tree: str) -> list[str]:
        """Returns the addresses of a tree's nodes, by the address of the tree."""

    def content(self, node: str) -> Iterator[str]:
        """Yields the addresses that a node refers to, by the node's address. This includes
        addresses outside the storage root."""


class Reading(Protocol):
    """The metadata of a repository at one instant."""

    def roots(self) -> Roots:
        """Returns refs, commits, the policy, and the time of the snapshot."""

    def protected(self, among: Iterable[Sequence[str]] | None = None) -> Iterator[pa.Table]:
        """Yields the relation `protected` (PROTECTED_SCHEMA).

        `among` restricts the answer to some addresses, in batches of at most AMONG_MAX together;
        each batch is one query. With `among`, other addresses can be left out, and `created_at` can
        be null.
        """

    def protectors(self, address: str) -> list[Protector]:
        """Returns the protections of one address."""

    def expired_commit(self, commit_id: str) -> ExpiredCommit | None:
        """Returns the record of an expired commit, or None. A format without records returns
        None."""

    def purged_at(self, address: str) -> PurgedAddress | None:
        """Returns the record of a purged address, or None. Its file may still exist."""


class RunHold(Protocol):
    """A run's hold on a repository, kept alive by a heartbeat."""

    @property
    def run_epoch(self) -> int:
        """A number that grows with every run. Executors compare it before each batch of deletes."""

    def check(self) -> None:
        """Raises Refused `lease_lost` if another run has taken the repository."""


@dataclass(frozen=True, slots=True)
class Fencing:
    """The commits that a fence closes. They are chosen inside its transaction, from metadata that
    the transaction read."""

    tombstone: Collection[str]


Guard = Callable[[Column], None]
"""A check that executors call before each batch of deletes, with the addresses of the batch. It
raises Refused `repository_changed` to stop the sweep. Picklable."""


def unguarded(addresses: Column) -> None:
    """The guard of a format whose fence needs no further check."""
    del addresses


class RepositoryFormat(Protocol):
    """A repository as the collector sees it."""

    on_hold: Callable[[str], None] | None
    """If set, `hold` calls it with the id of the run that has taken the repository."""

    @property
    def identity(self) -> Identity:
        """The ids and the name of this repository."""

    @property
    def storage(self) -> Storage:
        """The storage of this repository's files."""

    @property
    def layout(self) -> Layout:
        """The layout of this repository's files."""

    @property
    def walk(self) -> Walk:
        """The second reader of trees and nodes, for verification."""

    @property
    def landmark(self) -> str:
        """An address that always exists. An inventory without it belongs to another storage."""

    def now(self) -> datetime:
        """Returns the time by which this repository decides (UTC)."""

    def hold(self, run_id: str, *, deletes: bool) -> AbstractContextManager[RunHold]:
        """Takes the repository for one run, for as long as the context is open.

        A run that does not delete need not write to the storage. Raises Refused `run_in_progress`.
        """

    def running_id(self) -> str | None:
        """Returns the id of the run that holds the repository now, in any process; or None."""

    def check_storage(self) -> None:
        """Raises Refused `storage_foreign` unless the storage belongs to this database. Increases
        the epoch of OWNER."""

    def clocks(self) -> Clocks:
        """Reads all three clocks. Called after `check_storage`: the date of the file that it wrote
        is the storage's clock."""

    def reading(self, cutoff: datetime) -> AbstractContextManager[Reading]:
        """Reads the metadata in one snapshot. A format that cannot tell whether a young commit is
        still needed keeps all commits since `cutoff`."""

    def resolve(self, expression: str) -> str:
        """Returns the id of the commit for an expression such as `main~2` or the first digits of an
        id. The caller itself handles names of refs and whole ids. Raises NotFound
        `ref_not_found`."""

    def address_at(self, ref: str, path: str) -> str:
        """Returns the address of the object at a path of a ref.

        Raises NotFound `ref_not_found` or `object_not_found`, and InvalidInput `invalid_argument`
        if the format has no paths, or if the object lies outside the storage root.
        """

    def record_run(
        self, run_id: str, *, state: str, run_path: str | None, plan_checksum: str | None = None
    ) -> None:
        """Records the run's state, and the checksum of its plan if there is one. `run_path` is the
        path of a folder outside of the repository's own storage, and None for one inside."""

    def plan_checksum(self, run_id: str) -> str | None:
        """Returns the recorded checksum of a run's plan, or None if no plan was recorded."""

    def drop_run(self, run_id: str) -> None:
        """Deletes the record of a run."""

    def run_paths(self) -> dict[str, str | None]:
        """Returns all recorded runs, newest first: run id to the path of the folder, if a database
        recorded one outside of the repository's own storage. None: the id gives the place."""

    def fence(
        self,
        hold: RunHold,
        run_id: str,
        choose: Callable[[Roots], Fencing],
        *,
        cutoff: datetime,
    ) -> None:
        """Reads the roots, tombstones the commits that `choose` names, and drops metadata whose
        time has ended. All of this is one transaction.

        A format without such transactions closes commits in `forget` instead.
        """

    def lift(self, hold: RunHold, run_id: str, commit_ids: Collection[str]) -> None:
        """Removes tombstones that a run has set, if it has deleted nothing since.

        Raises Refused `lease_lost`: another run may have relied on the tombstones and deleted data.
        """

    def forget(self, hold: RunHold, run_id: str, commit_ids: Collection[str]) -> None:
        """Deletes the records of unreachable commits. A format with stubs keeps a stub of each.

        Raises Refused `repository_changed`, and deletes nothing, if one of the commits is needed
        again since the fence.
        """
