"""Signed locators of blocks: `MD5+SIZE+EOBJECT+ASIGNATURE@EXPIRY`.

A signature promises that the block's object is there until the expiry. The hint `E` names this
object: in base64url, the signing key's id, the SHA-256 and the address. The hint `A` has 40
hexadecimal digits of an HMAC-SHA256, and the expiry in seconds since 1970 as eight hexadecimal
digits. Clients keep hints that they do not know, and may change the order of hints. Source:
Arvados's documentation, "Keep locator format".
"""

from __future__ import annotations

import base64
import binascii
import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from ebbtide.errors import InvalidInput
from ebbtide.model import EPOCH
from ebbtide.store.access.signing import SigningKey
from ebbtide.store.objects.locators import Locator
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
