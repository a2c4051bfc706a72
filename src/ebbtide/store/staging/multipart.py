"""Uploads in parts: clients send an object in parts, in any order, and complete it at the end.

Each part is a file of its own. Before its first byte, its address gets an upload token, which keeps
the file until the upload expires. Completing copies the parts into a new object. The transaction
that stages the object also deletes the rows of the upload, so that an upload ends once.

Not for: HTTP, or the signatures of clients.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from ebbtide.errors import Conflict, EbbtideError, InvalidInput, NotFound
from ebbtide.ids import new_id
from ebbtide.storage import Content
from ebbtide.storage.base import SizedPieces
from ebbtide.store.content.entries import Entry, checksums_of, without_checksums
from ebbtide.store.content.etags import Etag, metadata_of_parts
from ebbtide.store.context import RepositoryContext
from ebbtide.store.database.engine import Transaction
from ebbtide.store.refs.protection import require_writable
from ebbtide.store.staging.multipart_rows import (
    TOKEN,
    CompletedUpload,
    MultipartUpload,
    UploadPart,
    delete_parts,
    delete_tokens,
    delete_upload,
    find_completed,
    find_upload,
    has_part_at,
    insert_completed,
    insert_upload,
    list_parts,
    page_of_uploads,
    write_part,
)
from ebbtide.store.staging.pending_writes import insert_token, is_outstanding
from ebbtide.store.staging.released import Dropped, release
from ebbtide.store.staging.uploads import Check, Condition, NewObject, Uploads, write_object
from ebbtide.text import shown

PART_NUMBER_MAX: Final = 10_000
PartStream = Callable[[UploadPart], Iterator[bytes]]


@dataclass(frozen=True, slots=True)
class WantedPart:
    """A part that a client wants in the object, with the ETag that it was told."""

    part_number: int
    etag: str


class Multipart:
    """The uploads in parts of one repository."""

    def __init__(self, context: RepositoryContext, uploads: Uploads) -> None:
        self._context = context
        self._uploads = uploads

    def create(
        self,
        branch: str,
        path: str,
        *,
        content_type: str | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> MultipartUpload:
        """Begins an upload, which lasts for EBBTIDE_WRITE_TTL.

        Raises InvalidInput `invalid_path` or `invalid_argument`, NotFound `branch_not_found`,
        Conflict `write_protected`.
        """
        NewObject(path, b"", content_type, metadata or {}).check()
        context = self._context
        with context.metadata.transaction() as tx:
            # Checked here too, so that an error is reported before the parts are sent.
            require_writable(tx, context.repository_id, branch)
            now = tx.now()
            upload = MultipartUpload(
                upload_id=new_id(),
                branch=branch,
                path=path,
                content_type=content_type,
                metadata=dict(metadata or {}),
                created_at=now,
                expires_at=now + context.settings.write_ttl,
            )
            insert_upload(tx, context.repository_id, upload)
        return upload

    def get(self, branch: str, path: str, upload_id: str) -> MultipartUpload:
        """Returns an upload. Raises NotFound `upload_not_found` if it was completed or aborted, has
        expired, or is for another path."""
        with self._context.metadata.snapshot() as tx:
            return self._require(tx, branch, path, upload_id)

    def page(
        self,
        *,
        prefix: tuple[str, str | None] = ("", None),
        after: tuple[str, str, str] = ("", "", ""),
        amount: int = 1000,
    ) -> list[MultipartUpload]:
        """Returns a page of the uploads, as `page_of_uploads` does."""
        with self._context.metadata.snapshot() as tx:
            return page_of_uploads(
                tx, self._context.repository_id, prefix=prefix, after=after, amount=amount
            )

    def parts(
        self, upload: MultipartUpload, *, after: int = 0, amount: int = 1000
    ) -> list[UploadPart]:
        """Returns the parts with numbers above `after`, at most `amount`, by number. Signed parts
        are left out."""
        with self._context.metadata.snapshot() as tx:
            return list_parts(
                tx,
                self._context.repository_id,
                upload.upload_id,
                after=after,
                amount=amount,
                signed=False,
            )

    def put_part(
        self, upload: MultipartUpload, number: int, data: Content, *, check: Check | None = None
    ) -> UploadPart:
        """Stores a part, in place of an earlier one with its number. `check` runs in the
        transaction that records the part.

        After an error the earlier part is unchanged. Raises InvalidInput `invalid_argument`,
        NotFound `upload_not_found`, Conflict `write_expired`, Failed `storage_error`.
        """
        check_number(number)
        context = self._context
        context.touch_owner()
        with context.metadata.transaction() as tx:
            self._require(tx, upload.branch, upload.path, upload.upload_id)
            now = tx.now()
            (address,) = context.slices.new_addresses(1, now=now)
            insert_token(
                tx,
                context.repository_id,
                address,
                expires_at=upload.expires_at,
                token=TOKEN,
            )
        etag = Etag()
        try:
            entry = write_object(context, NewObject(upload.path, etag.read(data)), address, now)
            part = UploadPart(
                part_number=number,
                address=address,
                size_bytes=entry.size_bytes,
                checksum=entry.checksum,
                etag=etag.text(),
                created_at=now,
            )
            self._record(upload, part, check)
        except BaseException:
            # The first error is reported. A file that cannot be deleted here is reclaimed later.
            with suppress(EbbtideError):
                self._abandon(upload, address)
            raise
        return part

    def complete(
        self,
        upload: MultipartUpload,
        wanted: Sequence[WantedPart],
        pieces: PartReader | None = None,
        *,
        only_if: Condition | None = None,
        stream: PartStream | None = None,
    ) -> Entry:
        """Stages an object of the wanted parts, in their order, and ends the upload.

        `pieces` may check the bytes of the parts: it is given them in order. `stream` reads a part
        in another way. Checksums among the upload's metadata describe the upload alone, and do not
        become the object's. The result is recorded for `completed`. After an error the upload can
        still be used. Raises InvalidInput `part_invalid` if a part does not exist or has another
        ETag, NotFound `upload_not_found`, and as `Objects.put` does.
        """
        context = self._context
        parts = self._chosen(upload, wanted)
        released: list[str] = []

        def end(entry: Entry, tx: Transaction) -> None:
            released.clear()
            if not delete_upload(tx, context.repository_id, upload.upload_id):
                raise _no_upload(upload.upload_id)
            now = {
                each.part_number: each.address
                for each in list_parts(tx, context.repository_id, upload.upload_id)
            }
            for part in parts:
                if now.get(part.part_number) != part.address:
                    raise invalid_part(part.part_number)
            released.extend(self._drop_parts(tx, upload))
            result = CompletedUpload(_hash_of(wanted), entry.checksum, checksums_of(entry.metadata))
            insert_completed(tx, context.repository_id, upload, result)

        reader = pieces or PartReader()
        read = reader.read(self._stream(upload, part, stream) for part in parts)
        is_sized = not any(part.is_signed for part in parts)
        kept = metadata_of_parts([part.etag for part in parts]) if is_sized else {}
        new = NewObject(
            upload.path,
            SizedPieces(read, sum(part.size_bytes for part in parts), is_stored=True)
            if is_sized
            else read,
            upload.content_type,
            without_checksums(upload.metadata),
            late_metadata=lambda: {**reader.metadata(), **kept},
        )
        entry = self._uploads.put(upload.branch, new, finish=end, only_if=only_if)
        self._delete_files(released)
        return entry

    def completed(
        self, branch: str, path: str, upload_id: str, wanted: Sequence[WantedPart]
    ) -> CompletedUpload:
        """Returns the result of an upload that was completed with just these parts.

        By now the path may show another object, or none. Raises NotFound `upload_not_found` if the
        upload was not completed so, or would have expired.
        """
        with self._context.metadata.snapshot() as tx:
            found = find_completed(tx, self._context.repository_id, branch, path, upload_id)
        if found is None or found.parts != _hash_of(wanted):
            raise _no_upload(upload_id)
        return found

    def abort(self, branch: str, path: str, upload_id: str) -> None:
        """Ends an upload, and deletes its parts. Raises NotFound `upload_not_found`."""
        context = self._context
        context.touch_owner()
        with context.metadata.transaction() as tx:
            upload = self._require(tx, branch, path, upload_id)
            if not delete_upload(tx, context.repository_id, upload_id):
                raise _no_upload(upload_id)
            released = self._drop_parts(tx, upload)
        self._delete_files(released)

    def lock(self, tx: Transaction, upload: MultipartUpload) -> None:
        """Lets nobody else end the upload, or change its parts, before the transaction ends. Raises
        NotFound `upload_not_found`."""
        self._require(tx, upload.branch, upload.path, upload.upload_id, lock=True)

    def _require(
        self, tx: Transaction, branch: str, path: str, upload_id: str, *, lock: bool = False
    ) -> MultipartUpload:
        found = find_upload(tx, self._context.repository_id, upload_id, lock=lock)
        if found is None or (found.branch, found.path) != (branch, path):
            raise _no_upload(upload_id)
        return found

    def _record(self, upload: MultipartUpload, part: UploadPart, check: Check | None) -> None:
        """Records a part that was written. Raises as `put_part` does."""
        context = self._context
        with context.metadata.transaction() as tx:
            if check is not None:
                tx.lock_repository(context.repository_id)
                check(tx)
            self.lock(tx, upload)
            if not is_outstanding(tx, context.repository_id, part.address):
                raise Conflict(
                    "write_expired",
                    "the part arrived after its upload expired: begin a new upload",
                )
            replaced = write_part(tx, context.repository_id, upload.upload_id, part)
            if replaced is not None:
                self._release(tx, [replaced])

    def _abandon(self, upload: MultipartUpload, address: str) -> None:
        """Deletes, after an error, the file of a part, unless the part was recorded: the answer to
        a COMMIT may have been lost."""
        context = self._context
        with context.metadata.transaction() as tx:
            # A transaction that is recording the part ends before this one gets the lock.
            find_upload(tx, context.repository_id, upload.upload_id, lock=True)
            if has_part_at(tx, context.repository_id, upload.upload_id, address):
                return
            self._release(tx, [address])
        context.storage.delete([address])

    def _chosen(self, upload: MultipartUpload, wanted: Sequence[WantedPart]) -> list[UploadPart]:
        """Returns the wanted parts. Raises InvalidInput `part_invalid`, NotFound
        `upload_not_found`."""
        context = self._context
        with context.metadata.snapshot() as tx:
            self._require(tx, upload.branch, upload.path, upload.upload_id)
            parts = {
                each.part_number: each
                for each in list_parts(tx, context.repository_id, upload.upload_id)
            }
        for each in wanted:
            if each.part_number not in parts or parts[each.part_number].etag != each.etag:
                raise invalid_part(each.part_number)
        return [parts[each.part_number] for each in wanted]

    def _stream(
        self, upload: MultipartUpload, part: UploadPart, stream: PartStream | None
    ) -> Iterator[bytes]:
        """Yields the bytes of a part. Raises as `complete` does if the part was replaced, or the
        upload ended, meanwhile."""
        try:
            yield from (
                self._context.storage.stream(part.address) if stream is None else stream(part)
            )
        except NotFound:
            self._chosen(upload, [WantedPart(part.part_number, part.etag)])
            raise invalid_part(part.part_number) from None

    def _drop_parts(self, tx: Transaction, upload: MultipartUpload) -> list[str]:
        """Deletes the records of all parts of an upload that ends, and releases their addresses.
        Returns them."""
        addresses = delete_parts(tx, self._context.repository_id, upload.upload_id)
        self._release(tx, addresses)
        return addresses

    def _release(self, tx: Transaction, addresses: Sequence[str]) -> None:
        release_parts(self._context, tx, addresses)

    def _delete_files(self, addresses: Sequence[str]) -> None:
        """Deletes the files of an upload that has ended. The reclaimer deletes those that are
        left."""
        with suppress(EbbtideError):
            self._context.storage.delete(addresses)


class PartReader:
    """Reads the bytes of an upload's parts, in order. A subclass can check them."""

    def read(self, parts: Iterator[Iterator[bytes]]) -> Iterator[bytes]:
        """Yields the bytes of all parts."""
        for pieces in parts:
            yield from pieces

    def metadata(self) -> Mapping[str, str]:
        """Returns more metadata for the object, after the last byte."""
        return {}


def release_parts(context: RepositoryContext, tx: Transaction, addresses: Sequence[str]) -> None:
    """Releases the addresses of parts, and deletes their tokens.

    A signed part can be written again until its URLs have ended: it is due one lease later. Nobody
    outside this program has the other addresses, so that nothing arrives there later.
    """
    lease_ttl = context.settings.lease_ttl
    ends = delete_tokens(tx, context.repository_id, addresses)
    others = (Dropped(address) for address in addresses if address not in ends)
    release(tx, context.repository_id, others, lease_ttl=lease_ttl)
    for since in sorted(set(ends.values())):
        signed = (Dropped(address) for address, end in ends.items() if end == since)
        release(tx, context.repository_id, signed, lease_ttl=lease_ttl, since=since)


def _hash_of(wanted: Sequence[WantedPart]) -> str:
    """Returns the SHA-256 of numbers and ETags, in their order."""
    listed = [[each.part_number, each.etag] for each in wanted]
    return hashlib.sha256(json.dumps(listed).encode()).hexdigest()


def _no_upload(upload_id: str) -> NotFound:
    return NotFound(
        "upload_not_found",
        f"there is no upload {shown(upload_id)}: it was completed or aborted, or has expired",
    )


def check_number(number: int) -> None:
    """Raises InvalidInput `invalid_argument` if no part can have the number."""
    if not 1 <= number <= PART_NUMBER_MAX:
        raise InvalidInput(
            "invalid_argument", f"the number of a part is from 1 to {PART_NUMBER_MAX}"
        )


def invalid_part(number: int) -> InvalidInput:
    """Returns the error for a part that does not exist, or has another ETag."""
    return InvalidInput(
        "part_invalid",
        f"part {number} does not exist, or is not the one with that ETag: list the parts, and send "
        "it again",
    )
