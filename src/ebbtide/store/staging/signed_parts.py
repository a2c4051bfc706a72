"""Uploads in parts to signed URLs: clients write the parts to the storage directly.

Each part has an address of its own, which a plain signed PUT writes. The address is registered
before its URL is given out. The upload itself is that of `multipart`: completing it copies the
parts into a new object, whose address no client has. So the object never changes, although a part
can be overwritten until its URL has ended.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import pairwise
from typing import Final

from ebbtide.errors import Conflict, InvalidInput
from ebbtide.store.content.entries import Entry
from ebbtide.store.context import RepositoryContext
from ebbtide.store.database.engine import Transaction
from ebbtide.store.staging.multipart import (
    PART_NUMBER_MAX,
    Multipart,
    WantedPart,
    check_number,
    invalid_part,
    release_parts,
)
from ebbtide.store.staging.multipart_rows import (
    SIGNED_TOKEN,
    MultipartUpload,
    UploadPart,
    find_part,
    insert_parts,
    list_parts,
    write_part,
)
from ebbtide.store.staging.pending_writes import insert_tokens
from ebbtide.text import shown

_HEADS_AT_ONCE: Final = 16


@dataclass(frozen=True, slots=True)
class SignedUpload:
    """An upload that has begun. `url` names it, and `part_urls` accept its first parts."""

    upload_id: str
    url: str
    part_urls: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ChosenParts:
    """The parts of an object that is to be made, as they were checked. `etags` has the storage's
    ETag of each signed part, by address."""

    upload: MultipartUpload
    wanted: tuple[WantedPart, ...]
    etags: Mapping[str, str]


class SignedUploads:
    """The uploads of one repository whose parts go to signed URLs."""

    def __init__(self, context: RepositoryContext, multipart: Multipart) -> None:
        self._context = context
        self._multipart = multipart

    def create(self, branch: str, path: str, *, part_count: int = 0) -> SignedUpload:
        """Begins an upload, which lasts for EBBTIDE_WRITE_TTL, with URLs for its first parts.

        A URL lasts for EBBTIDE_UPLOAD_TTL, or until the upload expires if that is earlier. Raises
        InvalidInput `invalid_argument` for a wrong number of parts, InvalidInput
        `presign_unsupported` if the storage signs no URLs, and as `Multipart.create` does.
        """
        if not 0 <= part_count <= PART_NUMBER_MAX:
            raise InvalidInput(
                "invalid_argument", f"an upload has at most {PART_NUMBER_MAX} parts: {part_count}"
            )
        context = self._context
        # Asked first, so that no upload begins that nobody can use.
        if context.storage.sign_put("probe", lasts=context.settings.upload_ttl) is None:
            raise _unsupported()
        context.touch_owner()
        upload = self._multipart.create(branch, path)
        with context.metadata.transaction() as tx:
            now = tx.now()
            parts = self._register(tx, upload, range(1, part_count + 1))
            insert_parts(tx, context.repository_id, upload.upload_id, parts)
        urls = tuple(self._sign(upload, part.address, now) for part in parts)
        return SignedUpload(upload.upload_id, self.url_of(upload.upload_id), urls)

    def get(self, branch: str, path: str, upload_id: str, url: str) -> MultipartUpload:
        """Returns an upload. Raises InvalidInput `invalid_address` unless `url` is that of the
        upload, and as `Multipart.get` does."""
        if url != self.url_of(upload_id):
            raise InvalidInput(
                "invalid_address",
                f"{shown(url)} is not the address that this upload was given: send it unchanged",
            )
        return self._multipart.get(branch, path, upload_id)

    def sign(self, upload: MultipartUpload, number: int) -> str:
        """Returns a URL for a part: for a new part, or once more for one that has had a URL.

        A part that this program has written is replaced. Raises InvalidInput `invalid_argument` or
        `presign_unsupported`, NotFound `upload_not_found`.
        """
        check_number(number)
        context = self._context
        context.touch_owner()
        with context.metadata.transaction() as tx:
            self._multipart.lock(tx, upload)
            now = tx.now()
            part = find_part(tx, context.repository_id, upload.upload_id, number)
            if part is None or not part.is_signed:
                (part,) = self._register(tx, upload, [number])
                replaced = write_part(tx, context.repository_id, upload.upload_id, part)
                if replaced is not None:
                    release_parts(context, tx, [replaced])
        return self._sign(upload, part.address, now)

    def choose(self, upload: MultipartUpload, wanted: Sequence[WantedPart]) -> ChosenParts:
        """Checks the parts of an object: their order, and the ETags that the storage answered.

        Raises InvalidInput `invalid_argument` if there are none, too many, or they are not in the
        order of their numbers, each once. Raises InvalidInput `part_invalid` if a part was not
        written or has another ETag.
        """
        if not 1 <= len(wanted) <= PART_NUMBER_MAX:
            raise InvalidInput(
                "invalid_argument", f"parts are required: list between 1 and {PART_NUMBER_MAX}"
            )
        if any(first.part_number >= second.part_number for first, second in pairwise(wanted)):
            raise InvalidInput("invalid_argument", "list the parts by their numbers, each once")
        context = self._context
        with context.metadata.snapshot() as tx:
            parts = {
                part.part_number: part
                for part in list_parts(tx, context.repository_id, upload.upload_id)
            }
        chosen = []
        for each in wanted:
            if each.part_number not in parts:
                raise invalid_part(each.part_number)
            chosen.append((parts[each.part_number], _bare(each.etag)))
        with ThreadPoolExecutor(_HEADS_AT_ONCE) as pool:
            etags = dict(filter(None, pool.map(self._check, chosen)))
        numbered = tuple(WantedPart(part.part_number, part.etag) for part, _ in chosen)
        return ChosenParts(upload, numbered, etags)

    def complete(
        self,
        chosen: ChosenParts,
        *,
        content_type: str | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> Entry:
        """Stages an object of the chosen parts, and ends the upload.

        Each part is read once, and only while it has the ETag that was checked. Size and SHA-256
        are those of the bytes that were read. Raises as `Multipart.complete` does; `part_invalid`
        also if a part was overwritten since.
        """

        def stream(part: UploadPart) -> Iterator[bytes]:
            etag = chosen.etags[part.address] if part.is_signed else None
            try:
                yield from self._context.storage.stream(part.address, etag=etag)
            except Conflict as error:
                if error.kind != "object_changed":
                    raise
                raise invalid_part(part.part_number) from None

        upload = replace(chosen.upload, content_type=content_type, metadata=dict(metadata or {}))
        return self._multipart.complete(upload, chosen.wanted, stream=stream)

    def _register(
        self, tx: Transaction, upload: MultipartUpload, numbers: Sequence[int]
    ) -> list[UploadPart]:
        """Registers new addresses for parts, until the upload expires. Returns the parts."""
        context = self._context
        now = tx.now()
        addresses = context.slices.new_addresses(len(numbers), now=now)
        insert_tokens(
            tx,
            context.repository_id,
            addresses,
            expires_at=upload.expires_at,
            token=SIGNED_TOKEN,
        )
        return [
            UploadPart(
                part_number=number,
                address=address,
                size_bytes=0,
                checksum="",
                etag="",
                created_at=now,
            )
            for number, address in zip(numbers, addresses, strict=True)
        ]

    def _sign(self, upload: MultipartUpload, address: str, now: datetime) -> str:
        context = self._context
        lasts = min(context.settings.upload_ttl, upload.expires_at - now)
        url = context.storage.sign_put(address, lasts=lasts)
        if url is None:
            raise _unsupported()
        return url

    def _check(self, item: tuple[UploadPart, str]) -> tuple[str, str] | None:
        """Compares a part with the ETag that the client has. Returns the address of a signed part
        and its ETag as the storage writes it."""
        part, given = item
        if not part.is_signed:
            if part.etag != given:
                raise invalid_part(part.part_number)
            return None
        found = self._context.storage.head(part.address)
        if found is None or found.etag is None or _bare(found.etag) != given:
            raise invalid_part(part.part_number)
        return part.address, found.etag

    def url_of(self, upload_id: str) -> str:
        """Returns the URL that names an upload to its client. Nothing is ever written there."""
        return f"{self._context.storage.url.rstrip('/')}/uploads/{upload_id}"


def _unsupported() -> InvalidInput:
    return InvalidInput(
        "presign_unsupported",
        "the storage signs no URLs for uploads: send the object to the server instead",
    )


def _bare(etag: str) -> str:
    """Returns an ETag without quotes. Clients keep or remove them."""
    return etag.strip().removeprefix("W/").strip('"')
