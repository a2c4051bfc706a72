"""Uploads: a new address is registered, the bytes are written to it, and the object is staged.

Not for: uploads that do not go through this program (`addresses`).
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from itertools import islice
from typing import Final, Protocol

from ebbtide.errors import Conflict
from ebbtide.model import EPOCH
from ebbtide.storage import Content
from ebbtide.storage.base import SizedPieces, chunks
from ebbtide.storage.parts import size_of
from ebbtide.store.content.entries import Entry
from ebbtide.store.content.etags import names
from ebbtide.store.content.trees import find_entry
from ebbtide.store.context import RepositoryContext
from ebbtide.store.database.commit_rows import require_commit
from ebbtide.store.database.concurrency import GroupWork
from ebbtide.store.database.engine import LockMode, Transaction
from ebbtide.store.names import check_metadata, check_path, check_text
from ebbtide.store.refs.protection import require_writable
from ebbtide.store.refs.ref_rows import BRANCH_ATTEMPTS_MAX, BranchRow, require_branch
from ebbtide.store.staging.pending_writes import Writes, give_up_writes, publish_writes
from ebbtide.store.staging.released import Dropped, release
from ebbtide.store.staging.staged_rows import find_staged, write_staged
from ebbtide.text import shown

BATCH_MIN: Final = 8
BATCH_MAX: Final = 1000
THREADS: Final = 4
CONTENT_TYPE_BYTES_MAX: Final = 255

Registered = tuple[str, datetime]
"""An address, and the database's time when it was registered."""
Check = Callable[[Transaction], None]
Finish = Callable[[Entry, Transaction], None]
"""Gets the entry that was written, and the transaction that stages it. May raise to prevent it."""


@dataclass(frozen=True, slots=True)
class NewObject:
    """An object to write. `data` is read once, in pieces. Without `mtime`, its date is the time of
    the upload. `late_metadata` is called after the last byte, and returns more metadata."""

    path: str
    data: Content
    content_type: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict, hash=False)
    mtime: datetime | None = None
    late_metadata: Callable[[], Mapping[str, str]] = field(default=dict, hash=False)

    def check(self) -> None:
        """Raises InvalidInput `invalid_path` or `invalid_argument`."""
        check_path(self.path)
        check_metadata(self.metadata)
        if self.content_type is not None:
            check_text("the content type", self.content_type, bytes_max=CONTENT_TYPE_BYTES_MAX)


class Condition(Protocol):
    """A condition on the object that a branch shows at a path, or on its absence."""

    def check(self, path: str, found: Entry | None) -> None:
        """Raises an EbbtideError unless `found` meets the condition."""


@dataclass(frozen=True, slots=True)
class OnlyIf:
    """The condition of a write to a path. The path must have no object if `checksum` is None, else
    an object with that checksum, or with that ETag of S3."""

    checksum: str | None = None

    def check(self, path: str, found: Entry | None) -> None:
        """Raises Conflict `precondition_failed` unless `found` meets the condition."""
        if found is None and self.checksum is not None:
            raise Conflict("precondition_failed", f"there is no object {shown(path)}")
        if found is not None and self.checksum is None:
            raise Conflict(
                "precondition_failed", f"path already exists: there is an object {shown(path)}"
            )
        if found is not None and not names(found, self.checksum or ""):
            raise Conflict(
                "precondition_failed",
                f"the object {shown(path)} has the checksum {shown(found.checksum)}",
            )


@dataclass(frozen=True, slots=True)
class UploadTotals:
    """The number and bytes of the objects that an upload staged."""

    object_count: int
    bytes_total: int


class Uploads:
    """Uploads to the branches of one repository."""

    def __init__(self, context: RepositoryContext) -> None:
        self._context = context
        self._writes = Writes(context)
        self._groups = GroupWork(self._do_together)

    def put(
        self,
        branch: str,
        new: NewObject,
        *,
        finish: Finish | None = None,
        only_if: Condition | None = None,
    ) -> Entry:
        """Writes one object and stages it. `finish` is called in the transaction that stages it."""
        new.check()
        self._context.touch_owner()
        if only_if is not None:
            # Checked here too, so that an error is reported before the bytes are sent.
            only_if.check(new.path, self._look(branch, new.path).entry)
        address, now = self._groups.do(branch, None)
        with self._writes.abandoning([address]):
            entry = write_object(self._context, new, address, now)
            check = None if finish is None else partial(finish, entry)
            if only_if is not None:
                self._stage_if(branch, entry, only_if, check)
            elif check is not None:
                self._stage(branch, {entry.path: entry}, [], check)
            else:
                self._groups.do(branch, entry)
        return entry

    def _do_together(self, branch: str, items: Sequence[Entry | None]) -> list[Registered]:
        """Registers an address for each None, and stages each entry, in one transaction. Returns
        the address and the date of each. If several entries have one path, the last one is used."""
        entries = [each for each in items if each is not None]
        new, now = list[str](), EPOCH
        with self._context.metadata.transaction() as tx:
            lock: LockMode | None = "share" if entries else None
            row = require_writable(tx, self._context.repository_id, branch, lock=lock)
            if len(entries) < len(items):
                new, now = self._register_in(tx, len(items) - len(entries))
            if entries:
                self._stage_in(tx, row, {each.path: each for each in entries}, entries, [], None)
        fresh = iter(new)
        return [
            (next(fresh), now) if each is None else (each.address, each.mtime) for each in items
        ]

    def visible(self, branch: str, path: str) -> Entry | None:
        """Returns the entry that a branch shows at a path, or None.

        Raises NotFound `branch_not_found`.
        """
        return self._look(branch, path).entry

    def _look(self, branch: str, path: str) -> _Seen:
        """Returns the committed entry at a path, and the visible one."""
        context = self._context
        with context.metadata.snapshot() as tx:
            row = require_branch(tx, context.repository_id, branch)
            commit = require_commit(tx, context.repository_id, row.commit_id)
            staged = find_staged(tx, context.repository_id, row.tokens, [path])
        with context.reading(commit):
            tree = context.tree_of(commit)
            committed = find_entry(context.storage, tree, path, read=context.cache.range)
        return _Seen(commit.commit_id, committed, visible_entry(row, staged, path, committed))

    def _stage_if(self, branch: str, entry: Entry, only_if: Condition, check: Check | None) -> None:
        """Stages an entry if `only_if` holds. No other change comes between check and write.

        Raises Conflict `precondition_failed` or `branch_moved`.
        """
        repository_id = self._context.repository_id
        for _ in range(BRANCH_ATTEMPTS_MAX):
            seen = self._look(branch, entry.path)
            with self._context.metadata.transaction() as tx:
                tx.lock_repository(repository_id)
                row = require_writable(tx, repository_id, branch, lock="exclusive")
                if row.commit_id != seen.commit_id:
                    continue
                staged = find_staged(tx, repository_id, row.tokens, [entry.path])
                only_if.check(entry.path, visible_entry(row, staged, entry.path, seen.committed))
                self._stage_in(tx, row, {entry.path: entry}, [entry], [], check)
                return
        raise Conflict("branch_moved", f"branch {branch!r} moves too often: try again")

    def put_many(self, branch: str, items: Iterable[NewObject]) -> UploadTotals:
        """Writes and stages objects in batches. Each batch is staged as a whole, or not at all.

        If several objects have one path, the last one is used. The batches before an error stay
        staged.
        """
        remaining = iter(items)
        count = bytes_total = 0
        batch_size = BATCH_MIN
        with ThreadPoolExecutor(THREADS) as pool:
            while True:
                entries = self._put_batch(branch, remaining, batch_size, pool)
                count += len(entries)
                bytes_total += sum(entry.size_bytes for entry in entries)
                if len(entries) < batch_size:
                    return UploadTotals(count, bytes_total)
                batch_size = min(batch_size * 4, BATCH_MAX)

    def _put_batch(
        self, branch: str, items: Iterator[NewObject], size: int, pool: ThreadPoolExecutor
    ) -> list[Entry]:
        self._context.touch_owner()
        addresses, now = self._register(branch, size)
        with self._writes.abandoning(addresses):
            entries = write_objects(self._context, items, addresses, now, pool)
            # If two items have the same path, the later one is staged.
            by_path = {entry.path: entry for entry in entries}
            self._stage(branch, by_path, addresses[len(entries) :], None, written=entries)
        return entries

    def _register(self, branch: str, count: int) -> tuple[list[str], datetime]:
        with self._context.metadata.transaction() as tx:
            # Checked here too, so that a wrong name is reported before the bytes are sent.
            require_writable(tx, self._context.repository_id, branch)
            return self._register_in(tx, count)

    def _register_in(self, tx: Transaction, count: int) -> tuple[list[str], datetime]:
        now = tx.now()
        addresses = self._context.slices.new_addresses(count, now=now)
        self._writes.register_in(tx, addresses, now=now)
        return addresses, now

    def _stage(
        self,
        branch: str,
        entries: Mapping[str, Entry],
        unused: list[str],
        check: Check | None,
        *,
        written: list[Entry] | None = None,
    ) -> None:
        repository_id = self._context.repository_id
        published = list(entries.values()) if written is None else written
        with self._context.metadata.transaction() as tx:
            if check is not None:
                tx.lock_repository(repository_id)
            row = require_writable(tx, repository_id, branch, lock="share")
            self._stage_in(tx, row, entries, published, unused, check)

    def _stage_in(
        self,
        tx: Transaction,
        row: BranchRow,
        entries: Mapping[str, Entry],
        published: list[Entry],
        unused: list[str],
        check: Check | None,
    ) -> None:
        repository_id = self._context.repository_id
        if check is not None:
            check(tx)
        publish_writes(tx, repository_id, [entry.address for entry in published])
        give_up_writes(tx, repository_id, unused)
        write_staged(
            tx,
            repository_id,
            row.staging_token,
            entries,
            lease_ttl=self._context.settings.lease_ttl,
        )
        # Of several objects for one path, only the last is staged.
        hidden = [each for each in published if entries[each.path] is not each]
        release(
            tx,
            repository_id,
            (Dropped(each.address, each.size_bytes) for each in hidden),
            lease_ttl=self._context.settings.lease_ttl,
        )


@dataclass(frozen=True, slots=True)
class _Seen:
    commit_id: str
    committed: Entry | None
    entry: Entry | None


def visible_entry(
    row: BranchRow,
    staged: Mapping[str, Mapping[str, Entry | None]],
    path: str,
    committed: Entry | None,
) -> Entry | None:
    """Returns the visible entry at a path: the newest staged one, or else the committed one."""
    for token in row.tokens:
        if path in staged[token]:
            return staged[token][path]
    return committed


def write_objects(
    context: RepositoryContext,
    items: Iterator[NewObject],
    addresses: list[str],
    now: datetime,
    pool: ThreadPoolExecutor,
) -> list[Entry]:
    """Writes as many items as there are addresses, several at a time. The caller has registered the
    addresses."""
    entries: list[Entry] = []
    running: deque[Future[Entry]] = deque()
    try:
        for address, new in zip(addresses, islice(items, len(addresses)), strict=False):
            new.check()
            running.append(pool.submit(write_object, context, new, address, now))
            if len(running) >= 2 * THREADS:
                entries.append(running.popleft().result())
        entries += [future.result() for future in running]
    finally:
        # The caller may give the addresses up only when no thread writes to them any more.
        for future in running:
            with suppress(Exception):
                future.result()
    return entries


def write_object(context: RepositoryContext, new: NewObject, address: str, now: datetime) -> Entry:
    """Writes the bytes to a registered address. Computes size and checksum on the way."""
    digest = hashlib.sha256()
    size_bytes = 0

    def counted() -> Iterator[bytes]:
        nonlocal size_bytes
        for piece in chunks(new.data):
            digest.update(piece)
            size_bytes += len(piece)
            yield piece

    if isinstance(new.data, bytes):
        digest.update(new.data)
        size_bytes = len(new.data)
        context.storage.put(address, new.data, create_only=True)
    else:
        # An upload in parts cannot be conditional. No other write has this address.
        size = size_of(new.data)
        is_stored = isinstance(new.data, SizedPieces) and new.data.is_stored
        pieces = counted()
        sized = pieces if size is None else SizedPieces(pieces, size, is_stored)
        context.storage.put(address, sized)
    return Entry(
        path=new.path,
        address=address,
        size_bytes=size_bytes,
        checksum=digest.hexdigest(),
        mtime=new.mtime or now,
        content_type=new.content_type,
        metadata={**new.metadata, **new.late_metadata()},
    )
