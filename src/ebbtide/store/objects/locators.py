"""Locators: signed promises that an object can be read, and used in new content, until some time.

A locator has no record of its own. Instead, a commit or the content of a collection is leased for
as long as its locators last. The lease comes before the first locator. It is not enough that refs
or collections name the commit: a transaction that removes the name may have begun earlier, and can
end at any time. Source: the Arvados wiki, "Expiring collections", on the meaning of a signature's
time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from ebbtide.errors import Conflict, Failed, InvalidInput, NotFound
from ebbtide.model import EPOCH, ONE_MICROSECOND
from ebbtide.storage import Content
from ebbtide.store.access.signed_tokens import (
    SigningKey,
    read_signing_keys,
    read_verifying_keys,
    sign,
    verify,
)
from ebbtide.store.content.entries import Entry, is_external
from ebbtide.store.context import RepositoryContext
from ebbtide.store.database.commit_rows import CommitRecord, raise_lease, require_still_intact
from ebbtide.store.database.engine import Transaction
from ebbtide.store.objects import views
from ebbtide.store.objects.objects import checked, recorded
from ebbtide.store.purge_records import require_not_purged
from ebbtide.store.refs.ref_rows import find_branch, find_tag
from ebbtide.store.repositories.repository_rows import repository_by_id
from ebbtide.store.staging.pending_writes import Writes, insert_token, publish_writes
from ebbtide.store.staging.uploads import NewObject, write_object
from ebbtide.text import shown

PURPOSE: Final = "locator"
_EVER: Final = datetime.max.replace(tzinfo=UTC)
SIGNING_MARGIN: Final = timedelta(seconds=2)
"""The time by which a URL that the storage signs ends before its locator. The storage counts whole
seconds, from its own time of signing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Locator:
    """The content of a locator: an object, its properties, and the end of the promise.

    `address` is relative to the storage root of the repository, or a URL outside it.
    """

    repository_id: str
    address: str
    size_bytes: int
    checksum: str
    content_type: str | None
    expires_at: datetime

    def entry(self, path: str, *, mtime: datetime) -> Entry:
        """Returns the object as an entry of new content."""
        return Entry(
            path=path,
            address=self.address,
            size_bytes=self.size_bytes,
            checksum=self.checksum,
            mtime=mtime,
            content_type=self.content_type,
        )


@dataclass(frozen=True, slots=True)
class Signed:
    """An object with the locator that reads it until `expires_at`.

    `url` reads it directly from the storage, and is None if that is not possible.
    """

    entry: Entry
    locator: str
    url: str | None
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class Signer:
    """Makes locators that last from `now` to `ends_at`, with one key."""

    context: RepositoryContext
    key: SigningKey
    now: datetime
    ends_at: datetime

    def sign(self, entry: Entry) -> Signed:
        """Returns an entry with its locator."""
        payload = {
            "for": PURPOSE,
            "repository": self.context.repository_id,
            "address": entry.address,
            "size": entry.size_bytes,
            "checksum": entry.checksum,
            "type": entry.content_type,
            "expires": (self.ends_at - EPOCH) // ONE_MICROSECOND,
        }
        url, lasts = None, self.ends_at - self.now - SIGNING_MARGIN
        if lasts > timedelta() and not is_external(entry.address):
            url = self.context.storage.sign_get(entry.address, lasts=lasts)
        return Signed(entry, sign(self.key, payload), url, self.ends_at)


class Locators:
    """The locators of one repository."""

    def __init__(self, context: RepositoryContext) -> None:
        self._context = context
        self._writes = Writes(context)

    def sign_path(self, ref: str, path: str) -> Signed:
        """Returns a locator for the object at `path` of `ref`.

        It lasts for EBBTIDE_LEASE_TTL, or until the branch or tag in `ref` expires if that is
        earlier.

        Raises as `Objects.open` does, and Conflict `not_committed` if the object is only staged.
        """
        context = self._context
        found = views.find(context, ref, path)
        if found is None:
            raise NotFound("object_not_found", f"there is no object {shown(path)} on {shown(ref)}")
        if found.commit is None:
            raise Conflict(
                "not_committed",
                f"{shown(path)} is only staged on {shown(ref)}: commit it, then ask for a locator",
            )
        with context.metadata.snapshot() as tx:
            expires_at = self.end_of(tx, ref)
        ends_at = self.lease(found.commit, ends_at_most=expires_at)
        with context.metadata.snapshot() as tx:
            require_not_purged(tx, context.repository_id, [found.entry.address])
            return self.signer(tx, ends_at=ends_at).sign(found.entry)

    def signer(self, tx: Transaction, *, ends_at: datetime) -> Signer:
        """Returns a Signer that signs until `ends_at`, or until the end of the repository.

        The caller has made sure that the data stays until `ends_at`.
        """
        info = repository_by_id(tx, self._context.repository_id)
        expires_at = None if info is None else info.expires_at
        return Signer(
            self._context, read_signing_keys(tx)[0], tx.now(), min(ends_at, expires_at or ends_at)
        )

    def upload(self, data: Content, *, content_type: str | None = None) -> Signed:
        """Writes an object without a reference, and returns its locator.

        The locator can be used in new content. If it is not, the object is collected after the
        locator's end.

        Raises InvalidInput, Conflict `write_expired`, Refused `storage_foreign`, Failed.
        """
        context = self._context
        new = NewObject("object", data, content_type)
        new.check()
        context.touch_owner()
        with context.metadata.transaction() as tx:
            now = tx.now()
            (address,) = context.slices.new_addresses(1, now=now)
            self._writes.register_in(tx, [address])
        with self._writes.abandoning([address]):
            entry = write_object(context, new, address, now)
            with context.metadata.transaction() as tx:
                # One transaction moves the address from "being written" to "promised".
                publish_writes(tx, context.repository_id, [address])
                ends_at = tx.now() + context.settings.lease_ttl
                signed = self.signer(tx, ends_at=ends_at).sign(entry)
                insert_token(
                    tx,
                    context.repository_id,
                    address,
                    expires_at=signed.expires_at,
                    token=signed.locator,
                )
        return signed

    def verify(self, tx: Transaction, token: str) -> Locator:
        """Returns the content of a locator, if the locator is valid in this transaction.

        Raises InvalidInput `token_truncated`, `token_key_retired` or `token_invalid` if the store
        did not sign it, and `token_foreign` if it is of another repository. Raises Conflict
        `token_expired`.
        """
        locator = parse_locator(tx, token)
        if locator.repository_id != self._context.repository_id:
            raise InvalidInput(
                "token_foreign",
                "the locator is of another repository: its objects can be read by it, and copied "
                "by uploading them here",
            )
        require_unexpired(tx, locator)
        return locator

    def get(self, token: str) -> Locator:
        """Returns the content of a valid locator. Raises as `verify` does, and Gone `purged`."""
        with self._context.metadata.snapshot() as tx:
            locator = self.verify(tx, token)
            require_not_purged(tx, self._context.repository_id, [locator.address])
            return locator

    def read(self, token: str, *, start: int = 0, end: int | None = None) -> ReadLocator:
        """Returns the object of a locator, and its bytes from `start` to before `end`.

        Raises as `get` does; Failed `corrupt_object`, `storage_error`.
        """
        context = self._context
        locator = self.get(token)
        entry = locator.entry("object", mtime=EPOCH)
        try:
            if is_external(entry.address):
                pieces = recorded(entry).stream(start=start, end=end)
            else:
                pieces = context.storage.stream(entry.address, start=start, end=end)
        except NotFound:
            raise Failed(
                "corrupt_object",
                f"the bytes of the locator are missing at {entry.address}: restore them from a "
                "backup",
            ) from None
        if start == 0 and end is None:
            pieces = checked(pieces, entry)
        return ReadLocator(locator, pieces)

    def lease(self, commit: CommitRecord, *, ends_at_most: datetime | None) -> datetime:
        """Leases the data of a commit or content, whatever happens to the refs that name it.

        Returns the time until which its locators may last: one lease, but not after `ends_at_most`.
        Raises Gone `commit_expired`, Refused `storage_foreign`, Failed `storage_error`.
        """
        context = self._context
        repository_id, lasts = context.repository_id, context.settings.lease_ttl
        most = ends_at_most or _EVER
        with context.metadata.snapshot() as tx:
            ends_at = min(tx.now() + lasts, most)
            (found,) = require_still_intact(tx, repository_id, [commit])
            if found.leased_until is not None and found.leased_until >= ends_at:
                return ends_at
        with context.changing() as tx:
            require_still_intact(tx, repository_id, [commit])
            ends_at = min(tx.now() + lasts, most)
            raise_lease(
                tx,
                repository_id,
                commit.commit_id,
                until=ends_at,
                raised_to=min(tx.now() + lasts + lasts / 2, most),
            )
            return ends_at

    def end_of(self, tx: Transaction, ref: str) -> datetime | None:
        """Returns the date at which the branch or tag in a revision expires, or None."""
        repository_id = self._context.repository_id
        name = re.split("[@~^]", ref, maxsplit=1)[0]
        found = find_branch(tx, repository_id, name) or find_tag(tx, repository_id, name)
        return None if found is None else found.expires_at


@dataclass(frozen=True, slots=True)
class ReadLocator:
    """The content of a locator, and the bytes of its object."""

    locator: Locator
    pieces: Iterator[bytes]


def parse_locator(tx: Transaction, token: str) -> Locator:
    """Returns the content of a locator of the store, of any repository, expired or not.

    Raises InvalidInput `token_truncated`, `token_key_retired`, `token_invalid`.
    """
    payload = verify(read_verifying_keys(tx), token)
    if payload.get("for") != PURPOSE:
        raise InvalidInput("token_invalid", "this is no locator, but a token for something else")
    return Locator(
        repository_id=payload["repository"],
        address=payload["address"],
        size_bytes=payload["size"],
        checksum=payload["checksum"],
        content_type=payload["type"],
        expires_at=EPOCH + payload["expires"] * ONE_MICROSECOND,
    )


def require_unexpired(tx: Transaction, locator: Locator) -> None:
    """Raises Conflict `token_expired` if the locator has ended by the database's clock."""
    if locator.expires_at <= tx.now():
        raise Conflict(
            "token_expired",
            f"the locator expired at {locator.expires_at:%Y-%m-%d %H:%M:%S} UTC, and its data may "
            "have been collected: ask for a new one",
        )
