"""What a format may have beside the contract (`base`), and functions that ask for it.

A repository has a capability if it has its methods: a format writes nothing for what it lacks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import pyarrow as pa

from ebbtide.errors import EbbtideError, InvalidInput, Refused
from ebbtide.formats.base import (
    EVERY_SLICE,
    SYSTEM_PREFIX,
    AskedNode,
    Clocks,
    ExpiredCommit,
    Guard,
    LateNeeds,
    Layout,
    Listing,
    ListingItem,
    Protector,
    PurgedAddress,
    Reading,
    RepositoryFormat,
    RunHold,
    Slices,
    absent_among,
    outside,
    unguarded,
)
from ebbtide.formats.notes import write_holds
from ebbtide.retention.decision import Decision, Roots
from ebbtide.retention.policy import Policy
from ebbtide.storage import Storage

if TYPE_CHECKING:
    from ebbtide.clock import Clock
    from ebbtide.model import Commit, Hold
    from ebbtide.retention.expiry import Expiry, ExpiryRequest


@runtime_checkable
class Sliced(Protocol):
    """A repository whose files lie in slices, each of which gets no more files after some time. It
    has incremental runs. Its readings are SlicedReadings, and its layout is a SlicedLayout."""

    def closed_after(self) -> str:
        """Returns a slice; slices that sort after it get no more files. Called before a listing."""

    def forget_dropped(self, hold: RunHold, addresses: Collection[str]) -> None:
        """Makes later readings name these addresses no more as dropped: their files are deleted.
        Raises Refused `lease_lost`."""


@runtime_checkable
class SlicedReading(Protocol):
    """A reading of a Sliced repository.

    Take an address that was protected in an earlier reading, and was not `untraced` there. It is
    now still protected, or `dropped`, or deleted, or in a tree that is newer than that reading.
    """

    def untraced(self) -> Iterator[pa.Table]:
        """Yields protected addresses that `dropped` of a later reading need not report (column
        `address`; other columns may be there too)."""

    def dropped(self) -> Iterator[pa.Table]:
        """Yields addresses that lost a protection (columns `address`, and `size_bytes`, which can
        be null). Another protection may still cover them."""


@runtime_checkable
class SlicedLayout(Protocol):
    """The layout of a Sliced repository."""

    def slices(self, addresses: pa.StringArray) -> pa.StringArray:
        """Returns the slice of each address, or null if it lies in no slice."""

    def read_files(
        self, storage: Storage, node_id: str, checksum: str, *, entry_count: int
    ) -> pa.Table:
        """Returns the addresses that a node refers to, with the sizes of their files (`address`,
        `size_bytes`). Raises as `Layout.read_node`."""


@dataclass(frozen=True, slots=True)
class Changes:
    """What has changed since an earlier plan, as nodes (NODES_SCHEMA). `released` name the files
    that trees of that plan, or later ones, need and no kept tree does, and perhaps others. `needed`
    name files that were added since, and that must exist."""

    released: pa.Table
    needed: pa.Table


@runtime_checkable
class Releasing(Protocol):
    """A repository whose trees tell which files they release. Its incremental runs list nothing;
    files that no tree has ever named wait for the next clean run."""

    def changes(
        self, earlier: Collection[str], released: Collection[str], kept: Collection[str]
    ) -> Changes:
        """Returns what has changed since a plan whose trees were `earlier`. The data of `released`
        trees, of that plan or later, does not stay; that of `kept` ones does. Called after a
        reading. Raises Refused if the repository cannot tell."""


@runtime_checkable
class DividedLayout(Protocol):
    """A layout that divides the listing of the storage in a way of its own. Otherwise each
    directory at the top is listed by one task."""

    def plan_listing(self, storage: Storage, slices: Slices, *, cores: int) -> Listing:
        """Returns units that list each file of the storage once, without the slices that may be
        left out, divided for `cores` tasks."""

    def left_out(self, addresses: pa.StringArray, slices: Slices) -> pa.BooleanArray:
        """Returns whether a listing leaves each address out: it is outside the storage root, or in
        a young slice."""


@runtime_checkable
class CheckedLayout(Protocol):
    """A layout whose references to trees and nodes carry a checksum of their content. Runs then
    remember what these files refer to until the files change.

    Without checksums, a damaged node could name a wrong address, so that a run refuses unless it
    finds every live address on the storage.
    """

    @property
    def checked_kinds(self) -> tuple[str, ...]:
        """The kinds of trees and nodes."""


@runtime_checkable
class JoinedLayout(Protocol):
    """A layout of trees that share most of their addresses, but no nodes: the log of a table."""

    def for_trees(self, tree_ids: Iterable[str]) -> Layout:
        """Returns a layout whose `read_tree` returns, for all of these trees together, nodes with
        the addresses of all of them. A node may then name an address that other trees have too."""


@runtime_checkable
class TogetherLayout(Protocol):
    """A layout that reads many small nodes faster together."""

    def read_together(self, nodes: Sequence[AskedNode]) -> Sequence[pa.StringArray]:
        """Returns the result of `Layout.read_node` for each node. Raises as it does, if one of them
        cannot be read."""


@runtime_checkable
class Held(Protocol):
    """A repository with a lease and records of runs of its own. Those of other repositories are
    files on their storage (`gc.hold`)."""

    def hold(self, run_id: str) -> AbstractContextManager[RunHold]:
        """Takes the repository for one run, for as long as the context is open. Raises Refused
        `run_in_progress`."""

    def running_id(self) -> str | None:
        """Returns the id of the run that holds the repository now, in any process; or None."""

    def clocks(self) -> Clocks:
        """Reads all three clocks. Called after `Checking.check_storage`: the date of the file that
        it wrote is the storage's clock."""

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
        """Returns all recorded runs, newest first: run id to the path of the folder. None: the
        folder is in the repository's own storage."""


@runtime_checkable
class Closing(Protocol):
    """A repository whose runs delete records of commits. In any other one a commit expires when a
    run deletes files that only such commits need. An undo of the run then holds it, by the note of
    `notes.write_holds`: readings take these holds into their policies (`notes.read_holds`)."""

    def forget(self, hold: RunHold, run_id: str, commit_ids: Collection[str]) -> None:
        """Deletes the records of unreachable commits. A format with stubs keeps a stub of each.

        Raises Refused `repository_changed`, and deletes nothing, if one of the commits is needed
        again since the last reading.
        """


@runtime_checkable
class Fencing(Protocol):
    """A repository that closes commits in a transaction. Of any other repository, a sweep only
    decides anew which commits are closed, and `forget` refuses if one of them is needed again."""

    def fence(self, hold: RunHold, run_id: str, choose: Callable[[Roots], Collection[str]]) -> None:
        """Reads the roots, tombstones the commits that `choose` returns, and drops metadata whose
        time has ended. All of this is one transaction."""

    def lift(self, hold: RunHold, run_id: str, commit_ids: Collection[str]) -> None:
        """Removes tombstones that a run has set, if it has deleted nothing since.

        Raises Refused `lease_lost`: another run may have relied on the tombstones and deleted data.
        """

    def closed_by(self, run_id: str) -> list[dict[str, Any]]:
        """Returns the commits that a run closed and whose records it kept (`commit_id`, `tree_id`,
        `tree_checksum`)."""


@runtime_checkable
class Checking(Protocol):
    """A repository that can refuse a run before it begins, and before its first delete."""

    def check_storage(self) -> None:
        """Raises Refused if no run may begin now: `storage_foreign` if the storage belongs to
        another database, or another kind."""


@runtime_checkable
class Clocked(Protocol):
    """A repository whose clock is injected. Others use the system's."""

    @property
    def clock(self) -> Clock:
        """The clock of this machine and of the storage."""


@runtime_checkable
class NotingPlans(Protocol):
    """A repository that remembers what its plans saw."""

    def note_plan(self) -> None:
        """Called when a plan of the last reading is about to be recorded."""


@runtime_checkable
class NotingSweeps(Protocol):
    """A repository that tells other programs of sweeps."""

    def note_sweep(self, plan: Mapping[str, Any], report: Mapping[str, Any]) -> None:
        """Called when a sweep has been recorded, with the JSON of its plan and its report."""


@runtime_checkable
class WithPaths(Protocol):
    """A repository with expressions for commits, and with paths of single files."""

    def resolve(self, expression: str) -> str:
        """Returns the id of the commit for an expression such as `main~2` or the first digits of an
        id. The caller itself handles names of refs and whole ids. Raises NotFound
        `ref_not_found`."""

    def address_at(self, ref: str, path: str) -> str:
        """Returns the address of the object at a path of a ref.

        Raises NotFound `ref_not_found` or `object_not_found`, and InvalidInput `invalid_argument`
        if the object lies outside the storage root.
        """


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


@runtime_checkable
class Walked(Protocol):
    """A repository whose plans and sweeps can be verified."""

    @property
    def walk(self) -> Walk:
        """The second reader of trees and nodes."""


@runtime_checkable
class RecordedReading(Protocol):
    """A reading of a repository that records who protects an address, which run closed a commit,
    and what was purged."""

    def protectors(self, address: str) -> list[Protector]:
        """Returns the protections of one address."""

    def expired_commit(self, commit_id: str) -> ExpiredCommit | None:
        """Returns the record of an expired commit, or None."""

    def purged_at(self, address: str) -> PurgedAddress | None:
        """Returns the record of a purged address, or None. Its file may still exist."""


@runtime_checkable
class Purged(Protocol):
    """A repository from whose commits single files are purged: they may be missing."""

    def purged_among(self, addresses: Sequence[str]) -> frozenset[str]:
        """Returns those of the addresses that were purged."""


@runtime_checkable
class Guarded(Protocol):
    """A repository whose fence cannot prevent that clients need a deleted file again."""

    @property
    def batch_max(self) -> int | None:
        """The most files that are deleted between two calls of `guard`. None if the changes that
        the guard detects cannot happen in between, or do no harm."""

    def guard(self, kept: Collection[str], going: Collection[str]) -> Guard:
        """Returns the check that executors make before each batch of deletes. Called after
        `forget`, or after a reading, with the commits whose data stays (`kept`), and those that a
        sweep has closed (`going`)."""


@runtime_checkable
class WithUnnamed(Protocol):
    """A repository of which clients can read files that its metadata do not name."""

    def used_unseen(self, candidates: Iterable[pa.Table]) -> Iterator[pa.Table]:
        """Yields addresses that clients can read, although no commit and no reading names them
        (PROTECTED_SCHEMA). Addresses outside `candidates` can be left out. The tables of
        `candidates` have the columns `address` and `size_bytes`. Called after a reading."""


@runtime_checkable
class Searching(Protocol):
    """A repository that finds the trees of an address itself, faster than by reading each tree."""

    def holding(self, address: str) -> frozenset[str]:
        """Returns the trees that hold an address. Called after a reading. Raises Refused if a tree
        cannot be read."""


@runtime_checkable
class Recounting(Protocol):
    """A repository that knows more of files and commits than what keeps them."""

    def recount(
        self, address: str | None, commits: Sequence[Commit], roots: Roots, decision: Decision
    ) -> tuple[str, ...]:
        """Returns the history of an address, which these `commits` hold, in sentences for people;
        without an address, that of the one commit. Called after the reading of `roots`. Raises
        Refused if a file cannot be read that a run would read."""


@runtime_checkable
class RecountingGone(Protocol):
    """A repository that knows something of commits that it does not have any more."""

    def recount_gone(self, expression: str) -> tuple[str, ...]:
        """Returns the history of a commit that a user named, in sentences for people; none if
        nothing is known of it. Called after a reading. Raises Refused `plan_corrupt`."""


@runtime_checkable
class Proving(Protocol):
    """A repository whose metadata can be restored from a backup without a trace on its storage."""

    def proofs(self, commits: Mapping[str, datetime], heads: Collection[str]) -> Collection[str]:
        """Returns those commits of an earlier plan whose absence proves that the metadata are an
        older copy. `commits` has ids and dates, `heads` the commits that refs pointed at. Called
        after a reading."""


@runtime_checkable
class Reopening(Protocol):
    """A Closing repository whose runs can be undone: the commits that they closed can be opened
    again."""

    def records(self, commit_ids: Collection[str]) -> list[dict[str, Any]]:
        """Returns the records of closed commits, as JSON, for `reopen`. Each has at least
        `commit_id`, `tree_id` and `tree_checksum`. If the repository is Fencing, only the commits
        that `forget` is about to delete are asked for."""

    def reopen(
        self,
        hold: RunHold,
        run_id: str,
        commit_ids: Collection[str],
        records: Sequence[Mapping[str, Any]],
        *,
        until: datetime,
    ) -> int:
        """Opens the commits that a run closed, in one transaction.

        Restores the `records` that the run deleted, removes the tombstones of `commit_ids`, and
        protects the data of all these commits until `until`. Returns how many of `commit_ids` are
        open now. Raises Refused `lease_lost`.
        """


@runtime_checkable
class Forgetting(Protocol):
    """A repository whose own programs make old commits unreadable, whatever a policy says."""

    def readable_until(self, commit_ids: Collection[str]) -> str:
        """Returns until when all of these commits can be read, as a sentence; empty if nothing ends
        this time."""


@runtime_checkable
class WithPolicy(Protocol):
    """A repository whose retention policy can be read and set. Icechunk's repositories have none:
    each `ebbtide expire` names its rules."""

    def policy(self) -> Policy | None:
        """Returns the policy in force. Without one, everything is kept.

        Raises Refused `policy_not_found` if a repository cannot be collected without rules.
        """

    def written_policy(self) -> Policy | None:
        """Returns the policy that `set_policy` has set. Without one, other rules can be in
        force."""

    def set_policy(self, policy: Policy | None) -> tuple[str, ...]:
        """Sets the policy, or removes it. Returns its patterns that match no branch. Raises
        Failed."""

    def change_policy(self, change: Callable[[Policy], Policy]) -> tuple[Policy, tuple[str, ...]]:
        """Sets the policy that `change` makes of the written one, or of one without rules. No
        other change is lost.

        `change` can be called several times. Returns the policy that is set, and its patterns that
        match no branch. Raises what `change` raises, and Failed.
        """

    def roots(self, policy: Policy | None) -> Roots:
        """Reads refs and commits, for a decision by `policy` and the holds."""


class WithHolds(Protocol):
    """The holds that users set on the commits of a repository with a policy."""

    def holds(self) -> list[Hold]:
        """Returns all holds, the oldest first."""

    def hold(self, ref: str, reason: str) -> Hold:
        """Holds the commit that `ref` names, until `release`. Replaces an earlier hold on it.
        Raises NotFound, also `ref_not_found`."""

    def release(self, ref: str) -> str:
        """Releases the hold on the commit that `ref` names. Returns the commit's id. Raises
        NotFound `hold_not_found`."""


class CommitHistory(Protocol):
    """The commits of a repository, by their ids."""

    @property
    def commits(self) -> Mapping[str, Commit]:
        """The commits that refs reach, and others that the repository still lists."""


@runtime_checkable
class WithExpiry(RepositoryFormat, Protocol):
    """A repository whose old commits `ebbtide expire` cuts off by rewriting its history."""

    def plan_expiry(self, request: ExpiryRequest) -> tuple[CommitHistory, Expiry]:
        """Returns the present history, and the expiry that a request leads to. Raises InvalidInput
        `invalid_policy`, and Refused."""

    def expire(
        self, request: ExpiryRequest, hold: RunHold, expire_id: str
    ) -> tuple[CommitHistory, Expiry]:
        """Carries out a request under a hold, which `expire_id` has. Returns the history before it,
        and the expiry. Raises Refused, and Incomplete if a part is done."""

    def expired(self, expiry: Expiry | None) -> RepositoryFormat:
        """Returns the repository as it would be after an expiry, to plan with. No session counts
        as open."""


@runtime_checkable
class UndoesExpiry(Protocol):
    """A repository whose expiries can be undone."""

    def undo_expiry(self, expire_id: str, hold: RunHold) -> Mapping[str, Sequence[int | str]]:
        """Lists the commits of an expiry again, under a hold. Returns them by the part of the
        repository, such as a table. `latest` is the newest expiry. Raises NotFound `run_not_found`,
        Refused, and Incomplete if a part is done."""


@runtime_checkable
class Removable(Protocol):
    """A deleted repository of a store (`formats.gone`), all of whose files are deleted."""

    def check_removable(self) -> None:
        """Raises Refused `repository_not_gone`, or `repository_in_use` while a lease or locator of
        the repository has not ended."""


def require_undoable(repository: RepositoryFormat) -> None:
    """Raises InvalidInput `invalid_argument` if the repository's runs cannot be undone."""
    if isinstance(repository, Removable):
        raise InvalidInput(
            "invalid_argument",
            "the files of a gone repository are deleted at once: leave --quarantine out",
        )
    if isinstance(repository, Closing) and not isinstance(repository, Reopening):
        raise InvalidInput(
            "invalid_argument",
            f"runs of {repository.identity.format_name} repositories cannot be undone: leave the "
            "quarantine out",
        )


def forget(
    repository: RepositoryFormat, hold: RunHold, run_id: str, commit_ids: Collection[str]
) -> None:
    """Does what `Closing.forget` does, if the repository is Closing."""
    if isinstance(repository, Closing):
        repository.forget(hold, run_id, commit_ids)
    else:
        hold.check()


def records_of(
    repository: RepositoryFormat, roots: Roots, commit_ids: Collection[str]
) -> list[dict[str, Any]]:
    """Returns the records of closed commits, as `Reopening.records` does."""
    if isinstance(repository, Reopening):
        return repository.records(commit_ids)
    return [
        {
            "commit_id": each.commit_id,
            "tree_id": each.tree_id,
            "tree_checksum": roots.tree_checksums.get(each.tree_id, ""),
        }
        for each in roots.commits
        if each.commit_id in commit_ids
    ]


def reopen(
    repository: RepositoryFormat,
    hold: RunHold,
    run_id: str,
    commit_ids: Collection[str],
    records: Sequence[Mapping[str, Any]],
    *,
    until: datetime,
) -> int:
    """Opens the commits that a run closed, or holds them, and returns their number, as
    `Reopening.reopen` does."""
    if isinstance(repository, Reopening):
        return repository.reopen(hold, run_id, commit_ids, records, until=until)
    hold.check()
    if commit_ids:
        write_holds(repository.storage, commit_ids, until=until, now=repository.now())
    return len(commit_ids)


def guard_of(
    repository: RepositoryFormat, kept: Collection[str], going: Collection[str] = ()
) -> Guard:
    """Returns the check before each batch of deletes, as `Guarded.guard` does."""
    return repository.guard(kept, going) if isinstance(repository, Guarded) else unguarded


def lost_of(repository: RepositoryFormat, guard: Guard) -> str | None:
    """Returns a text about a deleted file that is needed again, or None. Called after the
    deletes. Raises as the guard does."""
    if not isinstance(guard, LateNeeds):
        return None
    try:
        needed = guard.needed()
    except Refused as error:  # the file that tells what else is needed is gone
        if error.kind not in ("missing_tree", "missing_node"):
            raise
        return error.message.removesuffix(": restore it")
    for address in absent_among(repository.storage, needed):
        return f"{needed[address]} needs {address}, which is gone"
    return None


def batch_max_of(repository: RepositoryFormat) -> int | None:
    """Returns the most files that are deleted between two calls of `guard_of`."""
    return repository.batch_max if isinstance(repository, Guarded) else None


def purged_among(repository: RepositoryFormat, addresses: Sequence[str]) -> frozenset[str]:
    """Returns those of the addresses that were purged."""
    return repository.purged_among(addresses) if isinstance(repository, Purged) else frozenset()


def checked_kinds_of(layout: Layout) -> tuple[str, ...]:
    """Returns the kinds of trees and nodes, if references to them carry a checksum."""
    return layout.checked_kinds if isinstance(layout, CheckedLayout) else ()


def slices_of(layout: Layout, addresses: pa.StringArray) -> pa.StringArray:
    """Returns the slice of each address, or null if it lies in no slice."""
    if isinstance(layout, SlicedLayout):
        return layout.slices(addresses)
    return pa.nulls(len(addresses), pa.string())


def left_out_of(layout: Layout, addresses: pa.StringArray, slices: Slices) -> pa.BooleanArray:
    """Returns whether a listing leaves each address out."""
    if isinstance(layout, DividedLayout):
        return layout.left_out(addresses, slices)
    return outside(addresses)


def plan_listing(storage: Storage, layout: Layout, slices: Slices, *, cores: int) -> Listing:
    """Returns the units of a listing, without Ebbtide's own directory if it can be left out."""
    if slices.closed_after == EVERY_SLICE:
        return Listing([])
    if isinstance(layout, DividedLayout):
        return layout.plan_listing(storage, slices, cores=cores)
    tops = [each for each in storage.list_prefixes() if each != SYSTEM_PREFIX]
    units = [ListingItem(each, recursive=True) for each in tops]
    return Listing([ListingItem("", recursive=False), *units])


def read_nodes(
    layout: Layout, nodes: Sequence[AskedNode]
) -> Sequence[pa.StringArray | EbbtideError]:
    """Returns the result of `Layout.read_node` for each of several small nodes, or the error that
    it raises."""
    if isinstance(layout, TogetherLayout):
        with suppress(EbbtideError):  # one of them cannot be read: find out which
            return layout.read_together(nodes)
    return [_read_node(layout, each) for each in nodes]


def _read_node(layout: Layout, node: AskedNode) -> pa.StringArray | EbbtideError:
    try:
        return layout.read_node(
            node.storage, node.node_id, node.checksum, entry_count=node.entry_count
        )
    except EbbtideError as error:
        return error


def expired_commit(reading: Reading, commit_id: str) -> ExpiredCommit | None:
    """Returns the record of an expired commit, or None."""
    return reading.expired_commit(commit_id) if isinstance(reading, RecordedReading) else None


def purged_at(reading: Reading, address: str) -> PurgedAddress | None:
    """Returns the record of a purged address, or None."""
    return reading.purged_at(address) if isinstance(reading, RecordedReading) else None


def protectors(reading: Reading, address: str) -> list[Protector]:
    """Returns the protections of one address."""
    if isinstance(reading, RecordedReading):
        return reading.protectors(address)
    rows = (row for table in reading.protected([[address]]) for row in table.to_pylist())
    return [
        Protector(reason=row["reason"], since=row["created_at"], until=row["until"])
        for row in rows
        if row["address"] == address
    ]


def recounted(
    repository: RepositoryFormat,
    address: str | None,
    commits: Sequence[Commit],
    roots: Roots,
    decision: Decision,
) -> tuple[str, ...]:
    """Returns the history of an address or a commit, as `Recounting.recount` does."""
    if isinstance(repository, Recounting):
        return repository.recount(address, commits, roots, decision)
    return ()


def recounted_gone(repository: RepositoryFormat, expression: str) -> tuple[str, ...]:
    """Returns the history of a commit that is gone, as `RecountingGone.recount_gone` does."""
    if isinstance(repository, RecountingGone):
        return repository.recount_gone(expression)
    return ()


def walk_of(repository: RepositoryFormat) -> Walk:
    """Returns the second reader. Raises InvalidInput `invalid_argument` if there is none."""
    if isinstance(repository, Walked):
        return repository.walk
    raise InvalidInput(
        "invalid_argument",
        f"runs of {repository.identity.format_name} repositories cannot be verified: the format "
        "has no second reader of their files",
    )
