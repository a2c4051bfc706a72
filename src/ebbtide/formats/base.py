"""The narrow waist between the collector and the kinds of repository.

The collector is written against these two protocols and never names a format. `Layout` is a
picklable value that travels to Spark's executors; `RepositoryFormat` stays with the driver.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, Protocol

import pyarrow as pa

from ebbtide.arrow import Column, make_schema
from ebbtide.durations import format_duration
from ebbtide.errors import Refused
from ebbtide.retention.decision import Roots
from ebbtide.storage import Storage

NODES_SCHEMA: Final = make_schema(
    ("node_id", pa.string()),
    ("checksum", pa.string()),
    ("entry_count", pa.int64()),
)
"""The relation tree → node: which nodes a tree has, with the checksum of each node's file and how
many entries it holds, so that an empty node differs from one that was not read."""

PROTECTED_SCHEMA: Final = make_schema(
    ("address", pa.string()),
    ("reason", pa.string()),
    ("until", pa.timestamp("us", "UTC")),
    ("created_at", pa.timestamp("us", "UTC")),
)
"""The relation `protected`: addresses that no commit holds and that must stay all the same. `until`
and `created_at` are null where a format does not know them."""

AMONG_MAX: Final = 500_000
"""How many addresses can be asked for by name: one parameter of a statement, some 35 MB."""

SHARES_MAX: Final = 8
"""Of a directory: each reads all its names, so that more of them gain nothing."""

RUNS_PREFIX: Final = "_ebbtide/gc/runs/"
"""Where the folders of runs lie on a repository's own storage."""
INDEX_PREFIX: Final = "_ebbtide/gc/index/1/"
"""Where the address index of a repository lies, with the number of its form."""
QUARANTINES_PREFIX: Final = "_ebbtide/gc/quarantines/"
"""Where it is on record which runs moved something aside in place of deleting it."""
EPOCH_ADDRESS: Final = "_ebbtide/gc/EPOCH"
"""Which run may delete: executors read it before each batch."""

FOREIGN: Final = "foreign"
"""The kind of a file that does not look like the format's own: reported and kept."""
RECORD: Final = "record"
"""The kind of files of runs, of the index and of exports, where a repository that is gone is
collected: they are system files of any other."""
SYSTEM: Final = "system"
"""The kind of files that are never candidates: runs, the index, ownership."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Whose repository a plan is for: two ids that never change, and a name for people.

    A repository whose format can be upgraded has another id afterwards: `former_id` is the one that
    its plans had before.
    """

    format_name: str
    store_id: str
    repository_id: str
    repository_name: str
    former_id: str | None = None


@dataclass(frozen=True, slots=True)
class ListingItem:
    """A unit of listing: all files under `prefix`, or only those directly under it; of these one
    share of several, with sizes or without, and streamed or not, as `Storage.list` has it."""

    prefix: str
    recursive: bool
    share: tuple[int, int] = (0, 1)
    sized: bool = True
    streamed: bool = False


def in_shares(
    storage: Storage, prefix: str, *, cores: int, sized: bool, streamed: bool = False
) -> list[ListingItem]:
    """All files under a prefix, divided among tasks. On a local disk, where each reads all names;
    an object store would have to be asked for all of it by each."""
    count = min(cores, SHARES_MAX) if storage.url.startswith("file:") else 1
    return [
        ListingItem(prefix, recursive=True, share=(k, count), sized=sized, streamed=streamed)
        for k in range(count)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Slices:
    """Which slices a listing may leave out. Their names say when they were opened, and nothing in
    one is older.

    Those opened between `cutoff` and `now` hold nothing that may go. Those that sort behind
    `closed_after` were closed off before an earlier run looked. What is listed where no pointers
    lie (in a slice, or in their like) is to be `sized`, or is only named.
    """

    cutoff: datetime
    now: datetime
    closed_after: str | None = None
    sized: bool = True


@dataclass(frozen=True, slots=True)
class Listing:
    """What to list, and how many slices are left out for being young."""

    items: list[ListingItem]
    young_slices: int = 0


@dataclass(frozen=True, slots=True)
class Clocks:
    """What the three clocks that a run depends on said at about the same time (UTC)."""

    host: datetime
    database: datetime
    storage: datetime

    @property
    def earliest(self) -> datetime:
        """The one that is behind: by it nothing seems older than it is."""
        return min(self.host, self.database, self.storage)

    def check(self, *, skew_max: timedelta) -> None:
        """Refused `clock_skew` when any two of them are further apart than `skew_max`."""
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
                f"{format_duration(skew_max)} is allowed: ages cannot be trusted; set the clocks "
                "right, then run again",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Protector:
    """A row of the relation `protected`, for people: `where` says more than its reason does, such
    as which branch has the address staged. Without an end it protects until something changes."""

    reason: str
    where: str | None = None
    since: datetime | None = None
    until: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LetGo:
    """That a commit was let go: by which run, or by hand for that reason. Of one that is
    `forgotten` the record went, too."""

    run_id: str | None
    at: datetime | None
    forgotten: bool = False
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PurgedAddress:
    """That an address was closed for good: by which purge, asked for why, and how far that is."""

    purge_id: str
    at: datetime
    reason: str
    state: str


class Layout(Protocol):
    """How a format lays out its files, and how their contents are read. Picklable."""

    @property
    def delete_order(self) -> tuple[str, ...]:
        """The kinds that may be collected, pointers before what they point at."""

    def plan_listing(self, storage: Storage, slices: Slices, *, cores: int) -> Listing:
        """The whole storage, once, but for slices that may be left out; split for listing on so
        many cores."""

    def classify(self, addresses: pa.StringArray) -> pa.StringArray:
        """The kind of each address: one of `delete_order`, FOREIGN or SYSTEM."""

    def slices(self, addresses: pa.StringArray) -> pa.StringArray:
        """The slice of each address, null where it lies in none."""

    def targets(self, addresses: pa.StringArray) -> pa.StringArray:
        """For a temporary file the address that it is being written for; null for any other."""

    def tree_address(self, tree_id: str) -> str:
        """Where the tree lies."""

    def tree_addresses(self, tree_ids: Column) -> Column:
        """Where each of many trees lies."""

    def node_address(self, node_id: str) -> str:
        """Where the node lies."""

    def node_addresses(self, node_ids: Column) -> Column:
        """Where each of many nodes lies."""

    @property
    def checked_kinds(self) -> tuple[str, ...]:
        """The kinds of trees and nodes, where these are asked for with a checksum of what is in
        them: what they refer to is remembered then, until their files change.

        Where there are none, everything live must be found on the storage, or the run refuses: a
        node that was damaged could name another address than was written.
        """

    def read_tree(self, storage: Storage, tree_id: str, checksum: str) -> pa.Table:
        """The nodes of a tree (NODES_SCHEMA). Refused `missing_tree`, `corrupt_tree`,
        `unknown_format_version`."""

    def read_files(
        self, storage: Storage, node_id: str, checksum: str, *, entry_count: int
    ) -> pa.Table:
        """The addresses that a node refers to, with sizes (columns `address`, `size_bytes`), of
        formats with slices. Refused as `read_node`."""

    def read_node(
        self, storage: Storage, node_id: str, checksum: str, *, entry_count: int
    ) -> pa.StringArray:
        """The addresses that a node refers to. Refused `missing_node`, `corrupt_node`,
        `unknown_format_version`."""


class Walk(Protocol):
    """Another way to read trees and nodes, for verification: plain, slow, and without any code of
    the layout's, so that the two do not err alike. Used by several threads.

    All raise NotFound `object_not_found` for a file that is not there, and ValueError for one that
    is damaged.
    """

    def tree(self, tree_id: str) -> str:
        """The address of a tree's file."""

    def nodes(self, tree: str) -> list[str]:
        """The addresses of the nodes of the tree at an address."""

    def content(self, node: str) -> Iterator[str]:
        """What the node at an address refers to; also what lies outside the storage root."""


class Reading(Protocol):
    """One consistent reading of a repository's metadata."""

    def roots(self) -> Roots:
        """Refs, commits, policy and the time."""

    def protected(self, among: Iterable[Sequence[str]] | None = None) -> Iterator[pa.Table]:
        """The relation `protected` (PROTECTED_SCHEMA) in batches; what is not `among` some
        addresses, of which there are AMONG_MAX at most, may be left out, and so may `created_at`
        of what is. They come in batches, each of which is asked for together."""

    def untraced(self) -> Iterator[pa.Table]:
        """Those of the protected addresses (a column `address`, in batches, and perhaps others) of
        which a later reading's `dropped` need not tell. For formats with slices."""

    def dropped(self) -> Iterator[pa.Table]:
        """Addresses (a column `address`, in batches) that have lost something that protected them,
        and may be protected by something else. What an earlier reading protected, and did not name
        as `untraced`, is protected now, or named here, or has gone; or a tree has it that is newer
        than that reading. For formats with slices."""

    def purged(self) -> Iterator[pa.Table]:
        """Addresses (a column `address`, in batches) that an administrator closed for good and
        whose files may still be there: they go, though commits refer to them."""

    def protectors(self, address: str) -> list[Protector]:
        """What `protected` has of one address."""

    def let_go(self, commit_id: str) -> LetGo | None:
        """What is on record of letting a commit go; None too where a format keeps no record."""

    def purged_at(self, address: str) -> PurgedAddress | None:
        """What is on record of purging an address, whose file may be there or not."""


class RunHold(Protocol):
    """A run's hold on a repository, kept alive by a heartbeat."""

    @property
    def run_epoch(self) -> int:
        """Grows with every run; executors compare it before they delete."""

    def check(self) -> None:
        """Refused `lease_lost` when another run has taken the repository."""


@dataclass(frozen=True, slots=True)
class Fencing:
    """What the fence of a run closes, chosen inside its transaction from a fresh reading."""

    tombstone: Collection[str]


Guard = Callable[[], None]
"""Picklable. Called in executors; Refused `repository_changed` stops the sweep."""


def unguarded() -> None:
    """The guard of a repository whose fence holds by itself."""


class RepositoryFormat(Protocol):
    """A repository as the collector sees it."""

    @property
    def identity(self) -> Identity:
        """Whose it is."""

    @property
    def storage(self) -> Storage:
        """Where its files lie."""

    @property
    def layout(self) -> Layout:
        """How they lie there."""

    @property
    def walk(self) -> Walk:
        """Another way to read its trees and nodes."""

    @property
    def landmark(self) -> str:
        """An address that is always there: an inventory that lacks it is not of this storage."""

    def now(self) -> datetime:
        """The time by the clock that decides."""

    def hold(self, run_id: str, *, deletes: bool) -> AbstractContextManager[RunHold]:
        """Take the repository for one run. Refused `run_in_progress`.

        One that does not delete may leave the storage unwritten.
        """

    def check_storage(self) -> None:
        """Refused `storage_foreign` unless the storage is this database's; moves its epoch."""

    def clocks(self) -> Clocks:
        """Read all three clocks; called after `check_storage`, whose write dates the storage's."""

    def reading(self, cutoff: datetime) -> AbstractContextManager[Reading]:
        """One snapshot of the metadata. What was made since `cutoff` is kept where a format cannot
        tell whether somebody is about to need it."""

    def resolve(self, expression: str) -> str:
        """The id of the commit that an expression means which is neither a ref's name nor an id:
        such as `main~2`, or the first digits of an id. NotFound `ref_not_found`."""

    def address_at(self, ref: str, path: str) -> str:
        """The address of what a ref has at a path. NotFound `ref_not_found`, `object_not_found`;
        InvalidInput `invalid_argument` where a format has no paths, or the path leads to what was
        imported from outside the storage root."""

    def record_run(
        self, run_id: str, *, state: str, run_path: str, plan_checksum: str | None = None
    ) -> None:
        """Keep the run's state, and the plan's checksum once there is one."""

    def plan_checksum(self, run_id: str) -> str | None:
        """The recorded checksum of a run's plan; None when no plan was recorded."""

    def drop_run(self, run_id: str) -> None:
        """Drop the record of a run."""

    def run_paths(self) -> dict[str, str]:
        """Where the folders of all recorded runs lie: run id to path, the newest first."""

    def closed_after(self) -> str | None:
        """Slices that sort behind this one get no more files: read before a listing. None where a
        format has no slices, and so no incremental runs."""

    def fence(
        self,
        hold: RunHold,
        run_id: str,
        choose: Callable[[Roots], Fencing],
        *,
        cutoff: datetime,
    ) -> None:
        """In one transaction: read the roots, tombstone what `choose` names, drop what ended.

        A format without such transactions closes in `forget` instead.
        """

    def lift(self, hold: RunHold, run_id: str, commit_ids: Collection[str]) -> None:
        """Take back those tombstones of a run, which has deleted nothing since it set them.

        Refused `lease_lost`: another run may have seen them, and deleted.
        """

    def forget(self, hold: RunHold, run_id: str, commit_ids: Collection[str]) -> None:
        """Drop the records of commits that nothing reaches; stubs stay where there are any.

        Refused `repository_changed` when one is needed again since the fence; nothing was dropped.
        """

    def guard(self) -> Guard:
        """What executors ask before each batch of deletes; made after `forget`."""

    def check_undoable(self) -> None:
        """InvalidInput `invalid_argument` for a format whose runs can't be undone."""

    def records(self, commit_ids: Collection[str]) -> list[dict[str, Any]]:
        """All that `forget` drops of commits, as JSON, for `reopen`: `commit_id`, `tree_id` and
        `tree_checksum` among it."""

    def closed_by(self, run_id: str) -> list[dict[str, Any]]:
        """The commits that a run closed and did not forget (`commit_id`, `tree_id`,
        `tree_checksum`)."""

    def reopen(
        self,
        hold: RunHold,
        run_id: str,
        commit_ids: Collection[str],
        records: Sequence[Mapping[str, Any]],
        *,
        until: datetime,
    ) -> int:
        """Open again what a run closed, in one transaction: put `records` back that it dropped,
        lift the tombstones of `commit_ids`, and keep the data of them all until then. How many of
        `commit_ids` are open now.

        Refused `lease_lost`.
        """

    def purged_among(self, addresses: Sequence[str]) -> frozenset[str]:
        """Those of the addresses that an administrator closed for good."""


class GoneFormat(RepositoryFormat, Protocol):
    """A repository that is gone, all of which may go: no policy, ref or commit has a say."""

    def layout_of(self, run_id: str) -> Layout:
        """The layout as a run sees it that collects all of it: the run's own files stay."""

    @property
    def last_addresses(self) -> tuple[str, ...]:
        """What goes when all else went, in that order."""

    def close_storage(self) -> None:
        """Leave on the storage that nobody owns it any more. Refused `storage_foreign`."""

    def check_removable(self) -> None:
        """Refused `repository_not_gone`, or `repository_in_use` while something that was given out
        has not ended."""

    def fence_whole(self, hold: RunHold, run_id: str) -> datetime:
        """Look again, and close the repository for good, in one transaction; when that was.

        Refused as `check_removable`, and `lease_lost`.
        """

    def owns_storage(self) -> bool:
        """Whether the storage is still this database's."""

    def emptied(self) -> Removal | None:
        """The record of the run that emptied the storage, if one did."""

    def record_emptied(
        self,
        hold: RunHold,
        run_id: str,
        report: Mapping[str, Any],  # JSON
    ) -> Removal:
        """Record that a run emptied the storage, before its own files go. Refused `lease_lost`."""

    def drop_rows(self, hold: RunHold) -> None:
        """Drop all that is known of the repository but that record. Refused `lease_lost`."""


class Removal(Protocol):
    """What is on record of a run that emptied the storage of a gone repository."""

    @property
    def run_id(self) -> str:
        """Which run."""

    @property
    def report(self) -> Mapping[str, Any]:  # JSON
        """Its report."""
