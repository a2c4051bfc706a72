"""The contract between the collector and a repository format.

The collector uses these protocols alone and never names a format. To add a format, implement
`Layout` (how files are laid out and read), `Reading` (the metadata at one instant) and
`RepositoryFormat`, and open repositories by a `schemes.Scheme`. These have fifteen members.
`Layout` is picklable and travels to Spark's executors; `RepositoryFormat` stays in the driver. What
a format may have besides is in `formats.capabilities`: it writes nothing for what it lacks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from ebbtide.arrow import Column, make_schema, texts
from ebbtide.clock import Clock
from ebbtide.durations import format_duration
from ebbtide.errors import NotFound, Refused
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

_LOOKED_UP: Final = 1_000
"""The most addresses that one call looks up on the storage."""
SHARES_MAX: Final = 8
"""The most tasks that list one local directory. Each task reads all names of the directory, so that
more tasks gain nothing."""

SYSTEM_PREFIX: Final = "_ebbtide/"
"""The prefix of Ebbtide's own files on the repository's storage."""
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
EVERY_SLICE: Final = ""
"""A name that sorts before each slice. A listing of what is not closed after it has no files."""
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

    def is_young(self, opened_at: datetime | None) -> bool:
        """Whether a slice that was opened at this time holds no candidates. None: it is no
        slice."""
        return opened_at is not None and self.cutoff <= opened_at <= self.now

    def young_among(
        self, places: pa.StringArray, opened_at: Callable[[str], datetime | None]
    ) -> pa.BooleanArray:
        """Returns whether each of the places is a young slice. A place can be null."""
        names = texts(places.unique().drop_null())
        young = [name for name in names if self.is_young(opened_at(name))]
        return pc.is_in(places, value_set=pa.array(young, pa.string()))


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


def storage_clocks(storage: Storage, written: str, clock: Clock) -> Clocks:
    """Reads the clocks of a repository without a database. `written` is the address of a file that
    was just written: its date is the storage's time."""
    host, info = clock.host_now(), storage.head(written)
    stored = host if info is None else clock.storage_time(info.last_modified)
    return Clocks(host=host, database=host, storage=stored)


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

    def classify(self, addresses: pa.StringArray) -> pa.StringArray:
        """Returns the kind of each address: one of `delete_order`, FOREIGN or SYSTEM."""

    def tree_addresses(self, tree_ids: Column) -> Column:
        """Returns the addresses of many trees' files, in order."""

    def node_addresses(self, node_ids: Column) -> Column:
        """Returns the addresses of many nodes' files, in order."""

    def read_tree(self, storage: Storage, tree_id: str, checksum: str) -> pa.Table:
        """Returns the nodes of a tree (NODES_SCHEMA). Raises Refused `missing_tree`, `corrupt_tree`
        or `unknown_format_version`."""

    def read_node(
        self, storage: Storage, node_id: str, checksum: str, *, entry_count: int
    ) -> pa.StringArray:
        """Returns the addresses that a node refers to. An address with `://` is outside the storage
        root: it is never listed or deleted. Raises Refused `missing_node`, `corrupt_node` or
        `unknown_format_version`."""


def tree_address(layout: Layout, tree_id: str) -> str:
    """Returns the address of a tree's file."""
    return str(layout.tree_addresses(pa.array([tree_id]))[0].as_py())


def node_address(layout: Layout, node_id: str) -> str:
    """Returns the address of a node's file."""
    return str(layout.node_addresses(pa.array([node_id]))[0].as_py())


def outside(addresses: pa.StringArray) -> pa.BooleanArray:
    """Returns whether each address is a URL, and so outside the storage root."""
    return pc.match_substring(addresses, "://")


def absent_among(storage: Storage, addresses: Iterable[str]) -> Iterator[str]:
    """Yields those of the addresses within the root that have no file, in order."""
    own = [each for each in addresses if "://" not in each]
    for start in range(0, len(own), _LOOKED_UP):
        some = own[start : start + _LOOKED_UP]
        sizes = storage.sizes(some).column("size_bytes").to_pylist()
        yield from (each for each, size in zip(some, sizes, strict=True) if size is None)


def changed(what: str) -> Refused:
    """Returns the refusal `repository_changed`, for the caller to raise."""
    return Refused("repository_changed", f"the repository changed meanwhile: {what}")


@contextmanager
def refusing(
    storage: Storage,
    address: str,
    *,
    what: str,
    damaged: type[Exception],
    unknown: tuple[type[Exception], ...] = (),
) -> Iterator[None]:
    """Raises errors of a needed file as Refused. The kind is `missing_` or `corrupt_` followed by
    `what`. An error of the type `damaged` means that the file is damaged. An error of the types
    `unknown` means that a newer program wrote it: `unknown_format_version`."""
    where = f"{storage.url}/{address}"
    try:
        yield
    except NotFound:
        raise Refused(f"missing_{what}", f"{where} is missing, but needed: restore it") from None
    except unknown as error:
        raise Refused(
            "unknown_format_version", f"{where}: {error}: use a newer version of this program"
        ) from error
    except damaged as error:
        raise Refused(f"corrupt_{what}", f"{where} is damaged: {error}") from error


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


class RunHold(Protocol):
    """A run's hold on a repository, kept alive by a heartbeat."""

    @property
    def run_epoch(self) -> int:
        """A number that grows with every run. Executors compare it before each batch of deletes."""

    def check(self) -> None:
        """Raises Refused `lease_lost` if another run has taken the repository."""


Guard = Callable[[Column], Mapping[str, str]]
"""A check that executors call before each batch of deletes, with the addresses of the batch. It
returns those that are needed again, each with what needs it, in words: their files stay. It raises
Refused `repository_changed` to stop the sweep. Picklable."""


def unguarded(addresses: Column) -> Mapping[str, str]:
    """The guard of a format whose fence needs no further check."""
    del addresses
    return {}


class LateNeeds(ABC):
    """The guard of a format whose clients can come to need any file at any time. Picklable."""

    @abstractmethod
    def needed(self) -> Mapping[str, str]:
        """Returns the addresses that came to be needed since the last reading, each with what needs
        it, in words. Raises Refused `repository_changed` if that cannot be told."""

    def __call__(self, addresses: Column) -> Mapping[str, str]:
        """Returns those of the addresses that are needed. Raises as `needed`."""
        needed = self.needed()
        return {each: needed[each] for each in texts(addresses) if each in needed}


class RepositoryFormat(Protocol):
    """A repository as the collector sees it."""

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
    def landmark(self) -> str:
        """An address that always exists. An inventory without it belongs to another storage."""

    def now(self) -> datetime:
        """Returns the time by which this repository decides (UTC)."""

    def reading(self, cutoff: datetime) -> AbstractContextManager[Reading]:
        """Reads the metadata in one snapshot. A format that cannot tell whether a young commit is
        still needed keeps all commits since `cutoff`."""
