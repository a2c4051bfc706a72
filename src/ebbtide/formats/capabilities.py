"""What a format may have beside the contract (`base`), and functions that ask for it.

A repository has a capability if it has its methods: a format writes nothing for what it lacks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import pyarrow as pa

from ebbtide.errors import InvalidInput
from ebbtide.formats.base import Guard, Layout, RepositoryFormat, RunHold, unguarded
from ebbtide.retention.decision import Roots
from ebbtide.retention.policy import Policy
from ebbtide.storage import Storage

if TYPE_CHECKING:
    from ebbtide.model import Commit
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

    def read_files(
        self, storage: Storage, node_id: str, checksum: str, *, entry_count: int
    ) -> pa.Table:
        """Returns the addresses that a node refers to, with the sizes of their files (`address`,
        `size_bytes`). Raises as `Layout.read_node`."""


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

    def guard(self, active: Collection[str] | None = None) -> Guard:
        """Returns the check that executors make before each batch of deletes. Called after
        `forget`, or after a reading, with the commits whose data stays (`active`)."""

    def lost(self) -> str | None:
        """Returns a text about a deleted file that is needed again, or None. Called after the
        deletes."""


@runtime_checkable
class WithUnnamed(Protocol):
    """A repository of which clients can read files that its metadata do not name."""

    def used_unseen(self, candidates: Iterable[pa.Table]) -> Iterator[pa.Table]:
        """Yields addresses that clients can read, although no commit and no reading names them
        (PROTECTED_SCHEMA). Addresses outside `candidates` can be left out. The tables of
        `candidates` have the columns `address` and `size_bytes`. Called after a reading."""


@runtime_checkable
class Proving(Protocol):
    """A repository whose metadata can be restored from a backup without a trace on its storage."""

    def proofs(self, commits: Mapping[str, datetime], heads: Collection[str]) -> Collection[str]:
        """Returns those commits of an earlier plan whose absence proves that the metadata are an
        older copy. `commits` has ids and dates, `heads` the commits that refs pointed at. Called
        after a reading."""


@runtime_checkable
class Undoable(Protocol):
    """A repository whose runs can be undone: the commits that they closed can be opened again."""

    def records(self, commit_ids: Collection[str]) -> list[dict[str, Any]]:
        """Returns the records that `forget` would delete, as JSON, for `reopen`. Each has at least
        `commit_id`, `tree_id` and `tree_checksum`."""

    def closed_by(self, run_id: str) -> list[dict[str, Any]]:
        """Returns the commits that a run closed and whose records it kept (`commit_id`, `tree_id`,
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
        """Opens the commits that a run closed, in one transaction.

        Restores the `records` that the run deleted, removes the tombstones of `commit_ids`, and
        protects the data of all these commits until `until`. Returns how many of `commit_ids` are
        open now. Raises Refused `lease_lost`.
        """


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


class CommitHistory(Protocol):
    """The commits of a repository, by their ids."""

    @property
    def commits(self) -> Mapping[str, Commit]:
        """The commits that refs reach, and others that the repository still lists."""


class WithExpiry(Protocol):
    """A repository whose old commits `ebbtide expire` cuts off by rewriting its history."""

    def now(self) -> datetime:
        """Returns the time of the repository."""

    def plan_expiry(self, request: ExpiryRequest) -> tuple[CommitHistory, Expiry]:
        """Returns the present history, and the expiry that a request leads to. Raises InvalidInput
        `invalid_policy`, and Refused."""

    def expire(self, request: ExpiryRequest) -> tuple[CommitHistory, Expiry]:
        """Carries out a request. Returns the history before it, and the expiry. Raises Refused, and
        Incomplete if a part is done."""


@runtime_checkable
class GoneFormat(RepositoryFormat, Protocol):
    """A deleted repository. All of its files are deleted, without regard to policy, refs or
    commits."""

    def layout_of(self, run_id: str) -> Layout:
        """Returns the layout for the run that deletes everything but its own files."""

    @property
    def last_addresses(self) -> tuple[str, ...]:
        """The addresses that are deleted last, in order."""

    def close_storage(self) -> None:
        """Records on the storage that it has no owner any more. Raises Refused
        `storage_foreign`."""

    def check_removable(self) -> None:
        """Raises Refused `repository_not_gone`, or `repository_in_use` while a lease or locator of
        the repository has not ended."""

    def fence_whole(self, hold: RunHold, run_id: str) -> datetime:
        """Checks again and closes the repository for good, in one transaction. Returns the time.

        Raises Refused as `check_removable` does, and `lease_lost`.
        """

    def owns_storage(self) -> bool:
        """Whether the storage still belongs to this database."""

    def emptied(self) -> Removal | None:
        """Returns the record of the run that emptied the storage, or None."""

    def record_emptied(
        self,
        hold: RunHold,
        run_id: str,
        report: Mapping[str, Any],  # JSON
    ) -> Removal:
        """Records that a run emptied the storage. Called before the run's own files are deleted.
        Raises Refused `lease_lost`."""

    def drop_rows(self, hold: RunHold) -> None:
        """Deletes all metadata of the repository, except the record of `record_emptied`. Raises
        Refused `lease_lost`."""


class Removal(Protocol):
    """The record of the run that emptied the storage of a deleted repository."""

    @property
    def run_id(self) -> str:
        """The id of the run."""

    @property
    def report(self) -> Mapping[str, Any]:  # JSON
        """The report of the run."""


def undoable(repository: RepositoryFormat) -> Undoable:
    """Returns the repository. Raises InvalidInput `invalid_argument` if its runs cannot be
    undone."""
    if isinstance(repository, GoneFormat):
        raise InvalidInput(
            "invalid_argument",
            "the files of a gone repository are deleted at once: leave --quarantine out",
        )
    if not isinstance(repository, Undoable):
        raise InvalidInput(
            "invalid_argument",
            f"runs of {repository.identity.format_name} repositories cannot be undone: leave the "
            "quarantine out",
        )
    return repository


def guard_of(repository: RepositoryFormat, active: Collection[str] | None = None) -> Guard:
    """Returns the check before each batch of deletes, as `Guarded.guard` does."""
    return repository.guard(active) if isinstance(repository, Guarded) else unguarded


def batch_max_of(repository: RepositoryFormat) -> int | None:
    """Returns the most files that are deleted between two calls of `guard_of`."""
    return repository.batch_max if isinstance(repository, Guarded) else None


def purged_among(repository: RepositoryFormat, addresses: Sequence[str]) -> frozenset[str]:
    """Returns those of the addresses that were purged."""
    return repository.purged_among(addresses) if isinstance(repository, Purged) else frozenset()
