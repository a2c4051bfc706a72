"""Blocks of Arvados: written, found again, and read by their signed locators.

A locator is `MD5+SIZE+EOBJECT+ASIGNATURE@EXPIRY`. Its signature promises that the block's object is
there until the expiry. The hint `E` names this object: in base64url, the signing key's id, the
SHA-256 and the address. The hint `A` has 40 hexadecimal digits of an HMAC-SHA256, and the expiry in
seconds since 1970 as eight hexadecimal digits. Clients keep hints that they do not know, and may
change the order of hints. Source: Arvados's documentation, "Keep locator format". Not for:
collections and their manifests (`collections`).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from ebbtide.doors.arvados.store.manifests import BLOCK_BYTES_MAX, EMPTY_BLOCK
from ebbtide.doors.arvados.store.rows import BlockRow, find_block, prolong_token, write_block
from ebbtide.errors import Failed, InvalidInput, NotFound
from ebbtide.model import EPOCH
from ebbtide.storage import Content
from ebbtide.storage.base import chunks
from ebbtide.store.access.signed_tokens import SigningKey, read_signing_keys, read_verifying_keys
from ebbtide.store.context import RepositoryContext
from ebbtide.store.database.commit_rows import find_commits, raise_lease
from ebbtide.store.database.engine import Transaction
from ebbtide.store.objects.locators import Locator, require_unexpired
from ebbtide.store.objects.objects import checked
from ebbtide.store.purge_records import find_purged, require_not_purged
from ebbtide.store.repositories.repository_rows import repository_by_id
from ebbtide.store.staging.pending_writes import Writes, insert_token, publish_writes
from ebbtide.store.staging.uploads import NewObject, write_object
from ebbtide.text import shown

_LOCATOR: Final = re.compile(r"([0-9a-f]{32})\+(0|[1-9][0-9]{0,8})((?:\+[A-Z][A-Za-z0-9@_-]*)*)")
_SIGNATURE: Final = re.compile(r"([0-9a-f]{40})@([0-9a-f]{8})")
_CUT: Final = re.compile(r"[0-9a-f]{0,40}|[0-9a-f]{40}@[0-9a-f]{0,7}")
_DIGITS: Final = 40
_KEY_BYTES: Final = 16
_CHECKSUM_BYTES: Final = 32
_SECOND: Final = timedelta(seconds=1)
_EXPIRY_MAX: Final = 0xFFFF_FFFF
"""The last instant that clients can read, in the year 2106."""


@dataclass(frozen=True, slots=True)
class BlockObject:
    """A block, as `MD5+SIZE`, and the object that has its bytes. `checksum` is the SHA-256."""

    block: str
    checksum: str
    address: str


@dataclass(frozen=True, slots=True)
class BlockSigner:
    """Signs locators until `ends_at`, for the access key `holder` and one repository."""

    key: SigningKey
    repository_id: str
    holder: str
    ends_at: datetime

    def sign(self, found: BlockObject) -> str:
        """Returns the signed locator of a block. It ends at a full second, at `ends_at` at the
        latest."""
        named = _encode(
            bytes.fromhex(self.key.key_id) + bytes.fromhex(found.checksum) + found.address.encode()
        )
        expiry = f"{min((self.ends_at - EPOCH) // _SECOND, _EXPIRY_MAX):08x}"
        mac = _mac(self.key.secret, self.repository_id, self.holder, found.block, named, expiry)
        return f"{found.block}+E{named}+A{mac}@{expiry}"


def verify_block(
    keys: Mapping[str, bytes | None], repository_id: str, holder: str, locator: str
) -> Locator:
    """Returns the object of a signed locator, and the end of the promise, which may be over.

    `keys` has secrets by key id, and None for a retired key. Raises InvalidInput `token_truncated`
    if the locator looks cut off, `token_key_retired` if its key is retired, and `token_invalid` if
    the store did not sign it for this access key and repository.
    """
    match = _LOCATOR.fullmatch(locator)
    if match is None:
        raise _invalid(locator)
    block, hints = f"{match.group(1)}+{match.group(2)}", match.group(3).split("+")[1:]
    objects = [hint[1:] for hint in hints if hint.startswith("E")]
    signatures = [hint[1:] for hint in hints if hint.startswith("A")]
    if len(objects) > 1 or len(signatures) > 1:
        raise _invalid(locator)
    if not signatures or not objects:
        raise InvalidInput(
            "token_truncated" if signatures or objects else "token_invalid",
            f"the locator {shown(locator)} is not signed: use it whole, as it was given",
        )
    signature = _SIGNATURE.fullmatch(signatures[0])
    if signature is None:
        raise _cut(locator) if _CUT.fullmatch(signatures[0]) else _invalid(locator)
    mac, expiry = signature.groups()
    key_id, checksum, address = _decode(objects[0], locator)
    if key_id not in keys:
        raise _invalid(locator)
    secret = keys[key_id]
    if secret is None:
        raise InvalidInput(
            "token_key_retired",
            f"the key that signed {shown(locator)} was retired: read the collection again",
        )
    if not hmac.compare_digest(mac, _mac(secret, repository_id, holder, block, objects[0], expiry)):
        raise _invalid(locator)
    return Locator(
        repository_id=repository_id,
        address=address,
        size_bytes=int(match.group(2)),
        checksum=checksum,
        content_type=None,
        expires_at=EPOCH + int(expiry, 16) * _SECOND,
    )


def _mac(
    secret: bytes, repository_id: str, holder: str, block: str, named: str, expiry: str
) -> str:
    signed = f"arvados block\n{repository_id}\n{holder}\n{block}\n{named}\n{expiry}"
    return hmac.digest(secret, signed.encode(), "sha256").hex()[:_DIGITS]


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _decode(named: str, locator: str) -> tuple[str, str, str]:
    """Returns the key's id, the checksum and the address in a hint. Raises InvalidInput."""
    try:
        data = base64.b64decode(named + "=" * (-len(named) % 4), altchars=b"-_", validate=True)
        start = _KEY_BYTES + _CHECKSUM_BYTES
        address = data[start:].decode()
    except (binascii.Error, ValueError):
        raise _invalid(locator) from None
    return data[:_KEY_BYTES].hex(), data[_KEY_BYTES:start].hex(), address


def _invalid(locator: str) -> InvalidInput:
    return InvalidInput(
        "token_invalid",
        f"this store has not signed the locator {shown(locator)} for this access key: read the "
        "collection again, or write the block again",
    )


def _cut(locator: str) -> InvalidInput:
    return InvalidInput(
        "token_truncated", f"the locator {shown(locator)} is cut off: use it whole, as it was given"
    )


@dataclass(frozen=True, slots=True)
class ReadBlock:
    """The size of a block, and its bytes, which are verified while they are read."""

    size_bytes: int
    pieces: Iterator[bytes]


class Blocks:
    """The blocks of one repository."""

    def __init__(self, context: RepositoryContext) -> None:
        self._context = context
        self._repository_id = context.repository_id
        self._writes = Writes(context)

    def put(self, md5: str, data: Content, *, holder: str, size_bytes: int | None = None) -> str:
        """Stores a block of at most 64 MiB, and returns its locator, signed for the access key
        `holder`. The signature lasts for EBBTIDE_LEASE_TTL.

        `data` is read once. If `size_bytes` is given, and the store has this block, nothing is
        written: the bytes are only compared.

        Raises InvalidInput `checksum_mismatch` if the bytes have another MD5 or size, or if the
        store has other bytes with this MD5; InvalidInput `too_large`; Conflict `write_expired`;
        Refused `storage_foreign`; Failed.
        """
        if f"{md5}+0" == EMPTY_BLOCK:
            _read(_verified(data, md5, 0))
            return EMPTY_BLOCK
        if size_bytes is not None:
            if size_bytes > BLOCK_BYTES_MAX:
                raise _too_large()
            known = self._renewed(md5, size_bytes, holder)
            if known is not None:
                if _read(_verified(data, md5, size_bytes)) != known.found.checksum:
                    raise InvalidInput(
                        "checksum_mismatch",
                        f"the store has other bytes with the MD5 {md5}: it cannot have both",
                    )
                return known.signer.sign(known.found)
        pieces = _verified(data, md5, size_bytes)
        return self._write(md5, b"".join(pieces) if isinstance(data, bytes) else pieces, holder)

    def read(self, locator: str, *, holder: str) -> ReadBlock:
        """Returns a block by its signed locator. The empty block needs no signature.

        Raises InvalidInput `token_truncated`, `token_key_retired` or `token_invalid`; Conflict
        `token_expired`; Gone `purged`; Failed `corrupt_object`, also while the bytes are read.
        """
        found = self.find(locator, holder=holder)
        if found is None:
            return ReadBlock(0, iter(()))
        entry = found.entry(locator.split("+E")[0], mtime=EPOCH)
        try:
            pieces = self._context.storage.stream(found.address)
        except NotFound:
            raise Failed(
                "corrupt_object",
                f"the bytes of the block {entry.path} are missing at {found.address}: restore them "
                "from a backup",
            ) from None
        return ReadBlock(found.size_bytes, _held_back(checked(pieces, entry)))

    def find(self, locator: str, *, holder: str) -> Locator | None:
        """Returns the object of a signed locator that is valid now; None for the empty block.

        Raises as `read` does.
        """
        if locator.partition("+A")[0] == EMPTY_BLOCK:
            return None
        with self._context.metadata.snapshot() as tx:
            keys = read_verifying_keys(tx)
            found = verify_block(keys, self._repository_id, holder, locator)
            require_unexpired(tx, found)
            require_not_purged(tx, self._repository_id, [found.address])
            return found

    def signer(self, tx: Transaction, *, holder: str, ends_at: datetime) -> BlockSigner:
        """Returns a signer until `ends_at`, or until the end of the repository.

        The caller has made sure that the data stays until `ends_at`.
        """
        info = repository_by_id(tx, self._repository_id)
        if info is not None and info.expires_at is not None:
            ends_at = min(ends_at, info.expires_at)
        return BlockSigner(read_signing_keys(tx)[0], self._repository_id, holder, ends_at)

    def _renewed(self, md5: str, size_bytes: int, holder: str) -> _Known | None:
        """Returns a block that is known, and promises its object anew. None if it is not known, or
        if its object may be collected already."""
        context = self._context
        with context.metadata.snapshot() as tx:
            if find_block(tx, self._repository_id, md5, size_bytes) is None:
                return None
        with context.changing() as tx:
            row = find_block(tx, self._repository_id, md5, size_bytes)
            if row is None or find_purged(tx, self._repository_id, [row.address]):
                return None
            ends_at = tx.now() + context.settings.lease_ttl
            if not self._promise(tx, row, ends_at):
                return None
            signer = self.signer(tx, holder=holder, ends_at=ends_at)
        return _Known(BlockObject(f"{md5}+{size_bytes}", row.checksum, row.address), signer)

    def _promise(self, tx: Transaction, row: BlockRow, ends_at: datetime) -> bool:
        """Makes sure that an object stays until `ends_at`. Returns false if nothing keeps it.

        The caller has locked the repository's row. So the fence of a run comes before, and has
        closed the content, or after, and sees the lease.
        """
        if prolong_token(tx, self._repository_id, row.address, until=ends_at):
            return True
        if row.content_id is None:
            return False
        content = find_commits(tx, self._repository_id, [row.content_id]).get(row.content_id)
        if content is None or not content.is_intact:
            return False
        raise_lease(
            tx,
            self._repository_id,
            content.commit_id,
            until=ends_at,
            raised_to=ends_at + self._context.settings.lease_ttl / 2,
        )
        return True

    def _write(self, md5: str, data: Content, holder: str) -> str:
        context = self._context
        context.touch_owner()
        with context.metadata.transaction() as tx:
            now = tx.now()
            (address,) = context.slices.new_addresses(1, now=now)
            self._writes.register_in(tx, [address])
        with self._writes.abandoning([address]):
            entry = write_object(context, NewObject(md5, data), address, now)
            found = BlockObject(f"{md5}+{entry.size_bytes}", entry.checksum, address)
            with context.metadata.transaction() as tx:
                # One transaction moves the address from "being written" to "promised".
                publish_writes(tx, self._repository_id, [address])
                ends_at = tx.now() + context.settings.lease_ttl
                signer = self.signer(tx, holder=holder, ends_at=ends_at)
                locator = signer.sign(found)
                insert_token(
                    tx, self._repository_id, address, expires_at=signer.ends_at, token=locator
                )
                row = BlockRow(
                    md5=md5,
                    size_bytes=entry.size_bytes,
                    checksum=entry.checksum,
                    address=address,
                    content_id=None,
                )
                write_block(tx, self._repository_id, row)
        return locator


@dataclass(frozen=True, slots=True)
class _Known:
    found: BlockObject
    signer: BlockSigner


def _verified(data: Content, md5: str, size_bytes: int | None) -> Iterator[bytes]:
    """Yields the bytes of a block. Raises InvalidInput `too_large` or `checksum_mismatch` before
    the last piece, so that nothing wrong is stored."""
    digest = hashlib.md5(usedforsecurity=False)
    count = 0
    held = b""
    for piece in chunks(data):
        count += len(piece)
        if count > BLOCK_BYTES_MAX:
            raise _too_large()
        digest.update(piece)
        if held:
            yield held
        held = piece
    if digest.hexdigest() != md5:
        raise InvalidInput(
            "checksum_mismatch", f"the bytes have the MD5 {digest.hexdigest()}, and not {md5}"
        )
    if size_bytes not in (None, count):
        raise InvalidInput(
            "checksum_mismatch", f"the block has {count} bytes, and not {size_bytes}"
        )
    if held:
        yield held


def _held_back(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Yields the same pieces, the last one only when all are checked. So a reader of damaged bytes
    never gets as many as it expects."""
    held: bytes | None = None
    for piece in pieces:
        if held is not None:
            yield held
        held = piece
    if held is not None:
        yield held


def _read(pieces: Iterator[bytes]) -> str:
    """Reads all pieces. Returns their SHA-256."""
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()


def _too_large() -> InvalidInput:
    return InvalidInput("too_large", f"a block has {BLOCK_BYTES_MAX} bytes at most")
