"""Physical addresses: clients write objects to the storage directly, without this program.

A client asks for an address, uploads to it, and links it to a path with the token of the address.
Linking copies the bytes to a new address. The client does not know that address, so that linked
bytes never change.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from ebbtide.errors import Conflict, EbbtideError, InvalidInput, NotFound
from ebbtide.model import EPOCH, ONE_MICROSECOND
from ebbtide.retention.dates import to_utc
from ebbtide.storage import object_url
from ebbtide.store.access.signed_tokens import read_signing_keys, read_verifying_keys, sign, verify
from ebbtide.store.content.entries import Entry, is_external
from ebbtide.store.context import RepositoryContext
from ebbtide.store.database.engine import Transaction
from ebbtide.store.names import check_path, check_size, check_text
from ebbtide.store.purge_records import require_not_purged
from ebbtide.store.refs.protection import require_writable
from ebbtide.store.refs.ref_rows import require_branch
from ebbtide.store.repositories.known_roots import (
    lock_known_roots,
    require_no_root,
    require_outside,
)
from ebbtide.store.staging.pending_writes import (
    consume_token,
    find_token,
    insert_token,
    is_outstanding,
)
from ebbtide.store.staging.staged_rows import write_staged
from ebbtide.store.staging.uploads import Condition, NewObject, Uploads
from ebbtide.text import shown

PURPOSE: Final = "upload"
CHECKSUM_BYTES_MAX: Final = 255
URL_BYTES_MAX: Final = 4096
_MD5: Final = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class UploadAddress:
    """An address to upload to, and the token that links it to a path.

    `address` is relative to the storage root, and `url` is its full URL. A PUT to `presigned_url`
    needs no further credentials. `presigned_url` is None if the storage cannot sign URLs.
    """

    branch: str
    path: str
    address: str
    url: str
    presigned_url: str | None
    token: str
    expires_at: datetime


class PhysicalAddresses:
    """The physical addresses of one repository."""

    def __init__(self, context: RepositoryContext, uploads: Uploads) -> None:
        self._context = context
        self._uploads = uploads

    def get(self, branch: str, path: str) -> UploadAddress:
        """Returns a new address for an object at `path`, with its token.

        The token expires after EBBTIDE_UPLOAD_TTL. An upload to the address is kept until then, and
        must be linked before.

        Raises InvalidInput `invalid_path`, NotFound `branch_not_found`, Refused `storage_foreign`.
        """
        context = self._context
        check_path(path)
        context.touch_owner()
        lasts = context.settings.upload_ttl
        with context.metadata.transaction() as tx:
            require_branch(tx, context.repository_id, branch)
            now = tx.now()
            (address,) = context.slices.new_addresses(1, now=now)
            expires_at = now + lasts
            payload = {
                "for": PURPOSE,
                "repository": context.repository_id,
                "branch": branch,
                "path": path,
                "address": address,
                "expires": (expires_at - EPOCH) // ONE_MICROSECOND,
            }
            token = sign(read_signing_keys(tx)[0], payload)
            insert_token(tx, context.repository_id, address, expires_at=expires_at, token=token)
        return UploadAddress(
            branch=branch,
            path=path,
            address=address,
            url=f"{context.storage.url.rstrip('/')}/{address}",
            presigned_url=context.storage.sign_put(address, lasts=lasts),
            token=token,
            expires_at=expires_at,
        )

    def link(
        self,
        branch: str,
        path: str,
        token: str,
        *,
        size_bytes: int | None = None,
        checksum: str | None = None,
        content_type: str | None = None,
        metadata: Mapping[str, str] | None = None,
        mtime: datetime | None = None,
        only_if: Condition | None = None,
    ) -> Entry:
        """Stages the upload at the token's address, and uses the token up.

        The entry has the date `mtime`, or else that of the link. `size_bytes` and `checksum`
        (SHA-256, hexadecimal) are compared with the upload if they are given. After a mismatch the
        token can still be used.

        Raises InvalidInput as `verify` does, `token_foreign` if the token is for another
        repository, branch or path, and `checksum_mismatch`. Raises Conflict `token_expired` or
        `token_used`; NotFound `object_not_found` if nothing was uploaded; Gone `purged`; and as
        `Objects.put` does.
        """
        context = self._context
        payload = self._verified(branch, path, token)
        address: str = payload["address"]

        def pieces() -> Iterator[bytes]:
            digest = hashlib.sha256()
            size = 0
            for piece in context.storage.stream(address):
                digest.update(piece)
                size += len(piece)
                yield piece
            _compare("size", size_bytes, size)
            _compare("checksum", checksum and checksum.lower(), digest.hexdigest())

        def consume(_: Entry, tx: Transaction) -> None:
            if not consume_token(
                tx, context.repository_id, address, lease_ttl=context.settings.lease_ttl
            ):
                raise _not_outstanding(tx, payload)
            require_not_purged(tx, context.repository_id, [address])

        new = NewObject(path, pieces(), content_type, metadata or {}, mtime)
        try:
            entry = self._uploads.put(branch, new, finish=consume, only_if=only_if)
        except NotFound as error:
            if error.kind != "object_not_found":
                raise
            raise self._not_uploaded(payload) from None
        # Nothing refers to the upload any more. The use of the token released its address. If this
        # delete fails, or the client uploads there again before the token's end, the reclaimer
        # deletes the file.
        with suppress(EbbtideError):
            context.storage.delete([address])
        return entry

    def _not_uploaded(self, payload: dict[str, Any]) -> NotFound:
        """Returns the error for an address without an upload. Raises Conflict `token_used` or
        `token_expired`: another link of the same token may have been faster, and may have deleted
        the upload."""
        with self._context.metadata.snapshot() as tx:
            self._require_outstanding(tx, payload)
        address = payload["address"]
        return NotFound(
            "object_not_found",
            f"nothing was uploaded to {address}: upload first, then link",
            address=address,
        )

    def find_linked(
        self,
        branch: str,
        path: str,
        *,
        size_bytes: int,
        checksum: str,
        content_type: str | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> Entry | None:
        """Returns the entry at the path if an earlier link with these arguments would have made it,
        else None. For clients that repeat a link because its answer was lost.

        `checksum` is a SHA-256 or an MD5, hexadecimal: many storages give an upload its MD5. The
        bytes are read to compute an MD5. Raises NotFound `branch_not_found`.
        """
        found = self._uploads.visible(branch, path)
        is_alike = (
            found is not None
            and not is_external(found.address)
            and found.size_bytes == size_bytes
            and found.content_type == content_type
            and found.metadata == dict(metadata or {})
        )
        if found is None or not is_alike:
            return None
        given = checksum.strip('" ').lower()
        if given == found.checksum:
            return found
        if not _MD5.fullmatch(given):
            return None
        digest = hashlib.md5(usedforsecurity=False)
        try:
            for piece in self._context.storage.stream(found.address):
                digest.update(piece)
        except NotFound:
            # The entry was replaced or its commit expired meanwhile.
            return None
        return found if digest.hexdigest() == given else None

    def token_of(self, url: str) -> str:
        """Returns the open token of the address at `url`, for clients that keep only the URL.

        An address cannot be guessed: a client that knows one has received it from this program.

        Raises InvalidInput `invalid_address` if the URL is outside the storage root, and Conflict
        `token_used` if the address has no open token.
        """
        context = self._context
        root = context.storage.url.rstrip("/") + "/"
        if not url.startswith(root):
            raise InvalidInput(
                "invalid_address", f"{shown(url)} is no address for an upload to this repository"
            )
        with context.metadata.snapshot() as tx:
            token = find_token(tx, context.repository_id, url.removeprefix(root))
        if token is None:
            raise Conflict(
                "token_used",
                f"no upload to {shown(url)} is open: it was linked already, or took too long; ask "
                "for a new address for each upload",
            )
        return token

    def stage(
        self,
        branch: str,
        path: str,
        url: str,
        *,
        size_bytes: int,
        checksum: str = "",
        mtime: datetime | None = None,
        content_type: str | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> Entry:
        """Stages an object that lies outside the storage root, without reading it.

        The object stays where it is, and is never collected.

        Raises InvalidInput `invalid_address` if the URL is not that of an object, or lies in the
        root of a repository (`repositories.known_roots`). A bucket that cannot be asked whether
        it lies in one counts as outside: the server may have no credentials for it. Raises
        InvalidInput `invalid_date` if `mtime` has no zone, and as `Objects.put` does.
        """
        context = self._context
        NewObject(path, b"", content_type, metadata or {}).check()
        check_size(size_bytes)
        check_text("the checksum", checksum, bytes_max=CHECKSUM_BYTES_MAX)
        if mtime is not None:
            mtime = to_utc(mtime, what="mtime")
        address = _external(url)
        places = [(address, False)]
        require_no_root(context.metadata, context.settings, places, must_know=False)
        context.touch_owner()
        with context.metadata.transaction() as tx:
            require_outside(places, lock_known_roots(tx, context.settings))
            row = require_writable(tx, context.repository_id, branch, lock="share")
            entry = Entry(
                path=path,
                address=address,
                size_bytes=size_bytes,
                checksum=checksum,
                mtime=mtime or tx.now(),
                content_type=content_type,
                metadata=dict(metadata or {}),
            )
            write_staged(
                tx,
                context.repository_id,
                row.staging_token,
                {path: entry},
                lease_ttl=context.settings.lease_ttl,
            )
        return entry

    def _verified(self, branch: str, path: str, token: str) -> dict[str, Any]:
        """Returns the payload of a token. Raises as `link` does."""
        context = self._context
        with context.metadata.snapshot() as tx:
            payload = verify(read_verifying_keys(tx), token)
            if payload.get("for") != PURPOSE:
                raise InvalidInput("token_invalid", "this is no upload token")
            for name, given in (
                ("repository", context.repository_id),
                ("branch", branch),
                ("path", path),
            ):
                if payload[name] != given:
                    raise InvalidInput(
                        "token_foreign",
                        f"the token is for another {name}: ask for one for {shown(path)} on "
                        f"{shown(branch)}",
                    )
            self._require_outstanding(tx, payload)
        return payload

    def _require_outstanding(self, tx: Transaction, payload: Mapping[str, Any]) -> None:
        """Raises Conflict `token_expired` or `token_used`."""
        if not is_outstanding(tx, self._context.repository_id, payload["address"]):
            raise _not_outstanding(tx, payload)


def _not_outstanding(tx: Transaction, payload: Mapping[str, Any]) -> Conflict:
    """Returns the error for a signed token that has expired or was used."""
    expires_at = EPOCH + payload["expires"] * ONE_MICROSECOND
    if expires_at <= tx.now():
        return Conflict(
            "token_expired",
            f"the token expired at {expires_at:%Y-%m-%d %H:%M:%S} UTC, and the uploaded file may "
            "have been collected: ask for a new one, and upload again",
        )
    return Conflict("token_used", "the token was used already: ask for a new one for each upload")


def _external(url: str) -> str:
    """Returns the URL in its normalized spelling. Raises InvalidInput `invalid_address`."""
    if not is_external(url):
        raise InvalidInput(
            "invalid_address",
            f"{shown(url)} is no URL: write one such as s3://bucket/key or file:///data/file",
        )
    address = object_url(url)
    if len(address.encode()) > URL_BYTES_MAX:
        raise InvalidInput("invalid_address", f"{shown(url)} has more than {URL_BYTES_MAX} bytes")
    return address


def _compare(what: str, expected: object, found: object) -> None:
    if expected is not None and expected != found:
        raise InvalidInput(
            "checksum_mismatch",
            f"the {what} of the uploaded file is {found}, not {expected}: upload it again",
        )
