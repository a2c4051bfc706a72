"""Queries: uploads in parts, and their parts.

The files of parts are kept by their upload tokens (`pending_writes`). A part is written by this
program, or by its client through a signed URL. Not for: the bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import sqlalchemy as sa

from ebbtide.store.database.engine import Transaction
from ebbtide.store.database.rows import Rows, begins_with, in_batches, values_of
from ebbtide.store.database.schema import (
    completed_uploads,
    multipart_parts,
    multipart_uploads,
    upload_tokens,
)


@dataclass(frozen=True, slots=True)
class MultipartUpload:
    """An upload in parts that was not completed or aborted. After `expires_at` it is void."""

    upload_id: str
    branch: str
    path: str
    content_type: str | None
    metadata: Mapping[str, str]
    created_at: datetime
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class UploadPart:
    """One part of an upload. `checksum` is its SHA-256, and `etag` its MD5.

    The address of a signed part was given to the client, in a signed URL. Whether there is a file,
    only the storage knows: size, checksum and ETag are empty.
    """

    part_number: int
    address: str
    size_bytes: int
    checksum: str
    etag: str
    created_at: datetime

    @property
    def is_signed(self) -> bool:
        """Whether the client writes the part through a signed URL."""
        return not self.etag


@dataclass(frozen=True, slots=True)
class CompletedUpload:
    """The result of an upload that was completed: the parts that the client wanted, as one hash;
    the object's checksum, and its metadata of checksums."""

    parts: str
    checksum: str
    sums: Mapping[str, str]


TOKEN: Final = "part of an upload"
SIGNED_TOKEN: Final = "signed part of an upload"
"""These stand in place of a signed token: nobody can link a part to a path."""


_UPLOADS: Final = Rows(multipart_uploads, MultipartUpload, multipart_uploads.c.upload_id)
_PARTS: Final = Rows(multipart_parts, UploadPart, multipart_parts.c.address)
_COMPLETED: Final = Rows(completed_uploads, CompletedUpload, completed_uploads.c.upload_id)


def insert_upload(tx: Transaction, repository_id: str, upload: MultipartUpload) -> None:
    """Records an upload."""
    _UPLOADS.insert(tx, upload, repository_id=repository_id)


def find_upload(
    tx: Transaction, repository_id: str, upload_id: str, *, lock: bool = False
) -> MultipartUpload | None:
    """Returns an upload that has not expired, or None. With `lock`, nobody else ends the upload or
    changes its parts before this transaction ends."""
    query = _UPLOADS.select(*_live(tx, repository_id, upload_id))
    return _UPLOADS.one(tx, query.with_for_update() if lock else query)


def delete_upload(tx: Transaction, repository_id: str, upload_id: str) -> bool:
    """Deletes an upload that has not expired. Returns false if there is none: another transaction
    has ended it."""
    deleted = tx.execute(sa.delete(multipart_uploads).where(*_live(tx, repository_id, upload_id)))
    return deleted.rowcount == 1


def insert_completed(
    tx: Transaction, repository_id: str, upload: MultipartUpload, result: CompletedUpload
) -> None:
    """Records the result of a completed upload, whose own record was deleted in this transaction.
    It lasts until the upload would have expired."""
    _COMPLETED.insert(
        tx,
        result,
        repository_id=repository_id,
        upload_id=upload.upload_id,
        branch=upload.branch,
        path=upload.path,
        expires_at=upload.expires_at,
    )


def find_completed(
    tx: Transaction, repository_id: str, branch: str, path: str, upload_id: str
) -> CompletedUpload | None:
    """Returns the result of a completed upload to a path, or None if none is recorded."""
    table = completed_uploads.c
    query = _COMPLETED.select(
        table.repository_id == repository_id,
        table.upload_id == upload_id,
        table.branch == branch,
        table.path == path,
        table.expires_at > tx.now(),
    )
    return _COMPLETED.one(tx, query)


def page_of_uploads(
    tx: Transaction,
    repository_id: str,
    *,
    prefix: tuple[str, str | None],
    after: tuple[str, str, str],
    amount: int,
) -> list[MultipartUpload]:
    """Returns at most `amount` uploads behind `after`, by branch, path and id.

    `prefix` is the beginning of a branch, and None; or a branch, and the beginning of a path.
    """
    table = multipart_uploads.c
    branch, path = prefix
    if path is None:
        within = begins_with(table.branch, branch)
    else:
        within = [table.branch == branch, *begins_with(table.path, path)]
    order = (table.branch, table.path, table.upload_id)
    query = _UPLOADS.select(
        table.repository_id == repository_id,
        table.expires_at > tx.now(),
        sa.tuple_(*order) > sa.tuple_(*after),
        *within,
    )
    return _UPLOADS.all(tx, query.order_by(*order).limit(amount))


def write_part(tx: Transaction, repository_id: str, upload_id: str, part: UploadPart) -> str | None:
    """Records a part. Returns the address of the part that it replaces, or None. The caller has
    locked the upload."""
    replaced = tx.execute(
        sa.delete(multipart_parts)
        .where(*_of(repository_id, upload_id), multipart_parts.c.part_number == part.part_number)
        .returning(multipart_parts.c.address)
    ).scalar_one_or_none()
    insert_parts(tx, repository_id, upload_id, [part])
    return replaced


def insert_parts(
    tx: Transaction, repository_id: str, upload_id: str, parts: Sequence[UploadPart]
) -> None:
    """Records parts with numbers that no part of the upload has yet."""
    upload = {"repository_id": repository_id, "upload_id": upload_id}
    rows = [upload | values_of(part) for part in parts]
    if rows:
        tx.execute(sa.insert(multipart_parts), rows)


def list_parts(
    tx: Transaction,
    repository_id: str,
    upload_id: str,
    *,
    after: int = 0,
    amount: int | None = None,
    signed: bool = True,
) -> list[UploadPart]:
    """Returns the parts with numbers above `after`, at most `amount`, by number. Without `signed`,
    signed parts are left out."""
    number = multipart_parts.c.part_number
    query = _PARTS.select(*_of(repository_id, upload_id), number > after)
    if not signed:
        query = query.where(multipart_parts.c.etag != "")
    return _PARTS.all(tx, query.order_by(number).limit(amount))


def find_part(
    tx: Transaction, repository_id: str, upload_id: str, number: int
) -> UploadPart | None:
    """Returns a part by its number, or None."""
    is_it = multipart_parts.c.part_number == number
    return _PARTS.one(tx, _PARTS.select(*_of(repository_id, upload_id), is_it))


def has_part_at(tx: Transaction, repository_id: str, upload_id: str, address: str) -> bool:
    """Whether a part of the upload is at the address."""
    found = tx.execute(
        sa.select(multipart_parts.c.part_number).where(
            *_of(repository_id, upload_id), multipart_parts.c.address == address
        )
    )
    return found.first() is not None


def delete_parts(tx: Transaction, repository_id: str, upload_id: str) -> list[str]:
    """Deletes the records of all parts. Returns their addresses, sorted."""
    rows = tx.execute(
        sa.delete(multipart_parts)
        .where(*_of(repository_id, upload_id))
        .returning(multipart_parts.c.address)
    )
    return sorted(rows.scalars())


def delete_tokens(
    tx: Transaction, repository_id: str, addresses: Iterable[str]
) -> dict[str, datetime]:
    """Deletes the upload tokens of parts. Returns the addresses of signed parts, each with the time
    when its signed URLs have ended."""
    found: dict[str, datetime] = {}
    # Sorted, so that two transactions that delete the same tokens do not deadlock.
    for batch in in_batches(sorted(addresses)):
        rows = tx.execute(
            sa.delete(upload_tokens)
            .where(
                upload_tokens.c.repository_id == repository_id,
                upload_tokens.c.address.in_(batch),
            )
            .returning(upload_tokens.c.address, upload_tokens.c.token, upload_tokens.c.expires_at)
        )
        found.update((row.address, row.expires_at) for row in rows if row.token == SIGNED_TOKEN)
    return found


def drop_ended_uploads(tx: Transaction, repository_id: str, *, amount: int | None) -> None:
    """Deletes the records of uploads that have expired, at most `amount`, with their parts. Deletes
    as many results of completed uploads. The files of the parts are released with their tokens,
    which expire at the same time."""
    dropped: tuple[tuple[sa.Table, ...], ...]
    dropped = ((multipart_uploads, multipart_parts), (completed_uploads,))
    for first, *others in dropped:
        ended = (
            sa.select(first.c.upload_id)
            .where(first.c.repository_id == repository_id, first.c.expires_at <= tx.now())
            .limit(amount)
        )
        for batch in in_batches(sorted(tx.execute(ended).scalars())):
            for table in (first, *others):
                tx.execute(
                    sa.delete(table).where(
                        table.c.repository_id == repository_id, table.c.upload_id.in_(batch)
                    )
                )


def _live(
    tx: Transaction, repository_id: str, upload_id: str
) -> tuple[sa.ColumnElement[bool], ...]:
    return (
        multipart_uploads.c.repository_id == repository_id,
        multipart_uploads.c.upload_id == upload_id,
        multipart_uploads.c.expires_at > tx.now(),
    )


def _of(repository_id: str, upload_id: str) -> tuple[sa.ColumnElement[bool], ...]:
    return (
        multipart_parts.c.repository_id == repository_id,
        multipart_parts.c.upload_id == upload_id,
    )
