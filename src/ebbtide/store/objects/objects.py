"""The objects of a repository: writing them to branches, and reading them through any revision.

A revision that is a branch's plain name shows staged changes over the committed entries.
"""

from __future__ import annotations

import builtins
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from ebbtide.errors import Failed, NotFound
from ebbtide.model import EPOCH
from ebbtide.storage import Content, Storage
from ebbtide.storage.external import RecordedObject
from ebbtide.store.content.entries import Entry, is_external
from ebbtide.store.context import RepositoryContext
from ebbtide.store.database.commit_rows import require_intact_commits
from ebbtide.store.database.engine import Transaction
from ebbtide.store.names import check_path
from ebbtide.store.objects import views
from ebbtide.store.objects.changes import (
    delete_path_if,
    delete_paths,
    move_path,
    replace_metadata,
    share_staged,
)
from ebbtide.store.page import Page, page_of
from ebbtide.store.purge_records import require_not_purged
from ebbtide.store.refs.ref_rows import BRANCH_ATTEMPTS_MAX
from ebbtide.store.staging.uploads import Condition, NewObject, Uploads, UploadTotals
from ebbtide.text import shown

FIRST_ROWS: Final = 16
"""The number of rows that are read first if a directory may be skipped at once."""


class Readable:
    """An object as it was when it was found: its entry, and its bytes."""

    def __init__(self, objects: Objects, found: views.FoundEntry) -> None:
        self._objects = objects
        self._found = found
        self.entry = found.entry

    def stream(self, *, start: int = 0, end: int | None = None) -> Iterator[bytes]:
        """Yields the bytes, as `Objects.stream` does."""
        return self._objects._stream(self._found, start=start, end=end)

    @property
    def storage(self) -> Storage:
        """The storage that has the bytes."""
        return self._objects._context.storage

    def require_not_purged(self) -> None:
        """Raises Gone `purged` if the bytes were purged. The metadata says so, not the storage."""
        context = self._objects._context
        with context.metadata.snapshot() as tx:
            require_not_purged(tx, context.repository_id, [self.entry.address])

    def require_kept(self, tx: Transaction) -> None:
        """Raises Gone `commit_expired` or `purged` if the object must not be copied any more. For
        the transaction that publishes a copy of the bytes, which were read before."""
        repository_id = self._objects._context.repository_id
        tx.lock_repository(repository_id)
        commit = self._found.commit
        if commit is not None:
            require_intact_commits(tx, repository_id, [commit.commit_id])
        # The bytes may have been read before a purge deleted them.
        require_not_purged(tx, repository_id, [self.entry.address])


class Objects:
    """The objects of one repository."""

    def __init__(self, context: RepositoryContext, uploads: Uploads) -> None:
        self._context = context
        self._uploads = uploads

    def put(
        self,
        branch: str,
        path: str,
        data: Content,
        *,
        content_type: str | None = None,
        metadata: Mapping[str, str] | None = None,
        late_metadata: Callable[[], Mapping[str, str]] = dict,
        only_if: Condition | None = None,
    ) -> Entry:
        """Writes an object and stages it. Memory is bounded unless `data` is `bytes`.

        `late_metadata` is called after the last byte, and returns more metadata. After an error
        nothing is staged. Raises InvalidInput `invalid_path` or `invalid_argument`, NotFound
        `branch_not_found`, Conflict `write_expired`, Refused `storage_foreign`, Failed
        `storage_error`. Raises as `only_if` does, and then Conflict `branch_moved`, too.
        """
        new = NewObject(path, data, content_type, metadata or {}, late_metadata=late_metadata)
        return self._uploads.put(branch, new, only_if=only_if)

    def put_many(self, branch: str, items: Iterable[NewObject]) -> UploadTotals:
        """Writes and stages objects in batches. If several have one path, the last one is used.

        Raises as `put` does. The batches before the error stay staged.
        """
        return self._uploads.put_many(branch, items)

    def stat(self, ref: str, path: str) -> Entry:
        """Returns the entry of an object, also of an expired commit.

        Raises NotFound `object_not_found`, and as `resolve` does for `ref`; Gone `commit_expired`
        for a forgotten commit.
        """
        return self._find(ref, path).entry

    def open(self, ref: str, path: str) -> Readable:
        """Returns an object as a Readable. Later writes to the path do not change it.

        Raises as `stream` does, except for errors that are found when the bytes are read.
        """
        return Readable(self, self._find_intact(ref, path))

    def get(self, ref: str, path: str) -> bytes:
        """Returns an object's bytes, checked against its checksum. Raises as `stream` does."""
        return b"".join(self.stream(ref, path))

    def stream(
        self, ref: str, path: str, *, start: int = 0, end: int | None = None
    ) -> Iterator[bytes]:
        """Returns the bytes from `start` to before `end`, in pieces. A whole object is checked.

        Raises NotFound `object_not_found`, and as `resolve` does for `ref`; Gone `commit_expired`
        or `purged`; Failed `storage_error`. Raises Failed `corrupt_object` if the file is missing,
        or at the last piece if the checksum differs.
        """
        return self._stream(self._find_intact(ref, path), start=start, end=end)

    def list(
        self,
        ref: str,
        *,
        prefix: str = "",
        delimiter: str = "",
        after: str = "",
        amount: int = 1000,
    ) -> Page[Entry]:
        """Returns at most `amount` entries and common prefixes that begin with `prefix`, by path.

        With a delimiter, the paths that contain it behind `prefix` are grouped: each common prefix,
        which ends with the delimiter, is returned once. Raises InvalidInput `invalid_argument`, and
        as `stat` does.
        """
        return page_of(
            # One more row shows whether there are more. With a delimiter, directories are skipped,
            # and each step may need only one entry.
            lambda place: views.walk(
                self._context,
                ref,
                prefix=prefix,
                after=place,
                wanted=FIRST_ROWS if delimiter else amount + 1,
            ),
            prefix=prefix,
            delimiter=delimiter,
            after=after,
            amount=amount,
        )

    def walk(self, ref: str, *, prefix: str = "", after: str = "") -> Iterator[Entry]:
        """Yields all entries with `prefix` behind `after`, sorted by path. Raises as `stat`
        does."""
        return views.walk(self._context, ref, prefix=prefix, after=after)

    def delete(self, branch: str, path: str) -> None:
        """Stages the deletion of an object, or drops it if it is only staged.

        Raises NotFound `object_not_found` or `branch_not_found`.
        """
        if delete_paths(self._context, branch, [path]):
            raise NotFound("object_not_found", f"there is no object {shown(path)} on {branch!r}")

    def delete_many(self, branch: str, paths: Iterable[str]) -> builtins.list[str]:
        """Deletes many objects. Returns the paths that had none, sorted."""
        return delete_paths(self._context, branch, paths)

    def delete_if(self, branch: str, path: str, only_if: Condition) -> bool:
        """Deletes an object that meets a condition. Returns false if the path has no object.

        No other change of the branch comes between check and delete. Raises as `only_if` and
        `delete` do.
        """
        return delete_path_if(self._context, branch, path, only_if)

    def copy(
        self,
        branch: str,
        destination_path: str,
        source_ref: str,
        source_path: str,
        *,
        source_if: Condition | None = None,
    ) -> Entry:
        """Copies an object, with type and metadata, and stages the copy.

        A copy of an object that is staged on the same branch shares its bytes. Any other copy has
        its own. The entry that is copied meets `source_if`, whatever is written meanwhile.

        Raises as `put`, `stream` and `source_if` do. Raises Gone `commit_expired` or `purged` also
        if the source expires or is purged during the copy.
        """
        check_path(destination_path)

        def look() -> views.FoundEntry:
            found = self._find_intact(source_ref, source_path)
            if source_if is not None:
                source_if.check(source_path, found.entry)
            return found

        source = look()
        for _ in range(BRANCH_ATTEMPTS_MAX):
            if source.commit is not None or source_ref != branch:
                break
            self._context.touch_owner()
            shared = share_staged(self._context, branch, destination_path, source.entry)
            if shared is not None:
                return shared
            # The source was committed, dropped or replaced meanwhile.
            source = look()
        entry = source.entry
        return self.put_copy(
            branch,
            destination_path,
            Readable(self, source),
            content_type=entry.content_type,
            metadata=entry.metadata,
        )

    def put_copy(
        self,
        branch: str,
        path: str,
        source: Readable,
        *,
        content_type: str | None,
        metadata: Mapping[str, str],
        only_if: Condition | None = None,
    ) -> Entry:
        """Writes a copy of an object, which may be of another repository of the store, and stages
        it. The copy has its own bytes, type and metadata. Raises as `put` and `copy` do."""
        new = NewObject(path, source.stream(), content_type, metadata)

        def check(_: Entry, tx: Transaction) -> None:
            source.require_kept(tx)

        return self._uploads.put(branch, new, finish=check, only_if=only_if)

    def move(self, branch: str, destination_path: str, source_path: str) -> Entry:
        """Moves an object within a branch, with type, metadata and date, in one transaction.

        An object at the destination is replaced. If the source is only staged, no bytes are copied.

        Raises as `put` and `stream` do. Raises InvalidInput `invalid_argument` for a move onto
        itself; Gone `commit_expired` or `purged`; Conflict `branch_moved` if commits keep moving
        the branch.
        """
        return move_path(
            self._context,
            branch,
            source_path,
            destination_path,
            lambda found: self._stream(found, start=0, end=None),
        )

    def set_metadata(self, branch: str, path: str, metadata: Mapping[str, str]) -> Entry:
        """Replaces the metadata of an object on a branch, and stages the change. The bytes stay
        where they are.

        Raises NotFound `object_not_found` or `branch_not_found`; InvalidInput `invalid_argument`;
        Conflict `write_protected`, or `branch_moved` if commits keep moving the branch; Gone
        `commit_expired` or `purged`.
        """
        return replace_metadata(self._context, branch, path, metadata)

    def is_missing(self, entry: Entry) -> bool:
        """Whether an entry's bytes are missing on the storage. False for objects outside the
        storage root."""
        return not is_external(entry.address) and self._context.storage.head(entry.address) is None

    def _find(self, ref: str, path: str) -> views.FoundEntry:
        found = views.find(self._context, ref, path)
        if found is None:
            raise NotFound("object_not_found", f"there is no object {shown(path)} on {shown(ref)}")
        return found

    def _find_intact(self, ref: str, path: str) -> views.FoundEntry:
        found = self._find(ref, path)
        if found.commit is not None:
            found.commit.require_intact()
        return found

    def _stream(self, found: views.FoundEntry, *, start: int, end: int | None) -> Iterator[bytes]:
        address = found.entry.address
        try:
            if is_external(address):
                pieces = recorded(found.entry).stream(start=start, end=end)
            else:
                pieces = self._context.storage.stream(address, start=start, end=end)
        except NotFound:
            raise self._lost(found) from None
        return pieces if start or end is not None else checked(pieces, found.entry)

    def _lost(self, found: views.FoundEntry) -> Exception:
        """Returns the error for an object that is lost. Raises Gone if it was purged, or has just
        expired."""
        with self._context.metadata.snapshot() as tx:
            require_not_purged(tx, self._context.repository_id, [found.entry.address])
            if found.commit is not None:
                require_intact_commits(tx, self._context.repository_id, [found.commit.commit_id])
        return Failed(
            "corrupt_object",
            f"the bytes of {shown(found.entry.path)} are missing at {found.entry.address}: "
            "restore them from a backup",
        )


def recorded(entry: Entry) -> RecordedObject:
    """Returns the object outside the storage root that an entry was made of."""
    modified_at = None if entry.mtime == EPOCH else entry.mtime
    return RecordedObject(entry.address, entry.size_bytes, entry.checksum, modified_at)


def require_source(entry: Entry) -> None:
    """Raises Gone `source_changed` or NotFound `object_not_found` if an entry's object lies outside
    the storage root, and is not what was imported."""
    if is_external(entry.address):
        recorded(entry).require_unchanged()


def checked(pieces: Iterator[bytes], entry: Entry) -> Iterator[bytes]:
    """Yields the pieces of a whole object, and checks them.

    Raises Failed `corrupt_object` at the end if they are not the bytes that were stored.
    """
    if is_external(entry.address):
        # The importer gave the checksum, which can be of any kind, or empty.
        yield from pieces
        return
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
        yield piece
    if digest.hexdigest() != entry.checksum:
        raise Failed(
            "corrupt_object",
            f"the bytes of {shown(entry.path)} at {entry.address} are not those that were stored: "
            "restore them from a backup",
        )
