"""Signed tokens, by which the store makes promises, and the keys that sign them: their rotation and
retirement.

A token is `<key id>.<payload>.<mac>`: the payload as JSON, and the HMAC-SHA256 of key id and
payload. Both are in base64url without padding (RFC 4648, section 5). The newest key signs. All keys
that are not retired verify. Not for: the meaning of a promise, or access keys (`access_keys`).
"""

from __future__ import annotations

import base64
import binascii
import hmac
import json
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any, Final

import sqlalchemy as sa

from ebbtide.documents import documented
from ebbtide.errors import InvalidInput
from ebbtide.ids import ID_PATTERN, new_id
from ebbtide.model import ONE_MICROSECOND
from ebbtide.settings import Settings
from ebbtide.store.database.engine import Metadata, Transaction
from ebbtide.store.database.schema import signing_keys
from ebbtide.store.repositories.repository_rows import promised

KEY_BYTES: Final = 32
_PREFIX: Final = re.compile(
    rf"[0-9a-f]{{1,31}}|{ID_PATTERN}(\.([A-Za-z0-9_-]*(\.[A-Za-z0-9_-]{{0,42}})?)?)?"
)
"""The form of a token that is cut off."""


@dataclass(frozen=True, slots=True)
class SigningKey:
    """A key, and the id by which tokens name it."""

    key_id: str
    secret: bytes = field(repr=False)

    @classmethod
    def generate(cls) -> SigningKey:
        """Returns a new key."""
        return cls(new_id(), secrets.token_bytes(KEY_BYTES))


def sign(key: SigningKey, payload: Mapping[str, Any]) -> str:
    """Returns a token that carries `payload` (JSON-ready)."""
    body = _encode(json.dumps(payload, separators=(",", ":")).encode())
    return f"{key.key_id}.{body}.{_mac(key, body)}"


def verify(keys: Mapping[str, bytes | None], token: str) -> dict[str, Any]:
    """Returns the payload of a token. `keys` has secrets by key id, and None for a retired key.

    Raises InvalidInput `token_truncated` if the token looks cut off, `token_key_retired` if its key
    is retired, and `token_invalid` for any other token that the store has not signed.
    """
    if _PREFIX.fullmatch(token):
        raise InvalidInput(
            "token_truncated", "the token is cut off: pass it on whole, as it was given"
        )
    key_id, _, rest = token.partition(".")
    body, _, mac = rest.partition(".")
    if key_id not in keys or not mac.isascii():
        raise _invalid()
    secret = keys[key_id]
    if secret is None:
        raise InvalidInput(
            "token_key_retired",
            "the key that signed this token was retired: ask for a new one",
        )
    if not hmac.compare_digest(_mac(SigningKey(key_id, secret), body), mac):
        raise _invalid()
    try:
        payload: dict[str, Any] = json.loads(_decode(body))
    except (binascii.Error, ValueError):
        raise _invalid() from None
    return payload


def _mac(key: SigningKey, body: str) -> str:
    signed = f"{key.key_id}.{body}".encode("utf-8", "surrogatepass")
    return _encode(hmac.digest(key.secret, signed, "sha256"))


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _decode(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def _invalid() -> InvalidInput:
    return InvalidInput("token_invalid", "this store has signed no such token: ask for a new one")


UNDATED: Final = datetime(9999, 1, 1, tzinfo=UTC)
"""The date of a key whose transaction can still be open. It is unknown when other processes begin
to sign with the key."""


def insert_signing_key(tx: Transaction, key: SigningKey) -> None:
    """Records a key, which signs from the end of this transaction on. Until then other processes
    sign with the older keys. A later transaction gives the key its date, with
    `date_signing_keys`."""
    date_signing_keys(tx)
    tx.execute(
        sa.insert(signing_keys).values(key_id=key.key_id, secret=key.secret, created_at=UNDATED)
    )


def date_signing_keys(tx: Transaction) -> None:
    """Gives a date to keys without one. The date is later than those of all other keys, whatever
    the clocks say."""
    date = signing_keys.c.created_at
    last: datetime | None = tx.execute(sa.select(sa.func.max(date)).where(date < UNDATED)).scalar()
    now = tx.now()
    created_at = now if last is None else max(now, last + ONE_MICROSECOND)
    tx.execute(sa.update(signing_keys).where(date == UNDATED).values(created_at=created_at))


def read_signing_keys(tx: Transaction) -> list[SigningKey]:
    """Returns all keys that are not retired, the newest first."""
    rows = tx.execute(
        sa.select(signing_keys)
        .where(signing_keys.c.secret.is_not(None))
        .order_by(signing_keys.c.created_at.desc(), signing_keys.c.key_id)
    )
    return [SigningKey(row.key_id, row.secret) for row in rows]


def read_verifying_keys(tx: Transaction) -> dict[str, bytes | None]:
    """Returns the secret of each key by its id, or None for a retired key."""
    return {row.key_id: row.secret for row in tx.execute(sa.select(signing_keys))}


def retire_signing_keys(tx: Transaction, *, superseded_before: datetime) -> list[str]:
    """Retires each key whose next newer key was made before `superseded_before`: deletes its
    secret. Returns the ids of these keys. The newest key is never retired."""
    keys = tx.execute(
        sa.select(signing_keys).order_by(signing_keys.c.created_at.desc(), signing_keys.c.key_id)
    ).all()
    retired = [
        key.key_id
        for newer, key in pairwise(keys)
        if key.secret is not None and newer.created_at < superseded_before
    ]
    tx.execute(
        sa.update(signing_keys)
        .where(signing_keys.c.key_id.in_(retired))
        .values(secret=None, retired_at=tx.now())
    )
    return retired


_EVER: Final = datetime.max.replace(tzinfo=UTC)


@documented
@dataclass(frozen=True, slots=True)
class Rotation:
    """The result of a rotation.

    `key_id` is the key that signs now. The keys in `verifying_ids` still verify. A rotation after
    `retirable_at` retires them.
    """

    key_id: str
    retired_ids: tuple[str, ...]
    verifying_ids: tuple[str, ...]
    retirable_at: datetime | None


class SigningKeys:
    """The signing keys of a store."""

    def __init__(self, metadata: Metadata, settings: Settings) -> None:
        self._metadata = metadata
        self._settings = settings

    def rotate(self, *, at_once: bool = False) -> Rotation:
        """Makes a new key, which signs from now on, and retires older keys.

        An older key is retired once everything that it signed has ended. With `at_once`, for a key
        that leaked, all older keys are retired now: everything that they signed is refused.
        """
        new = SigningKey.generate()
        with self._metadata.transaction() as tx:
            insert_signing_key(tx, new)
        with self._metadata.transaction() as tx:
            # From here on no process signs with an older key, however long the first block took.
            date_signing_keys(tx)
            now, longest = tx.now(), _longest(promised(tx, self._settings))
            superseded_before = _EVER if at_once else now - longest
            retired = retire_signing_keys(tx, superseded_before=superseded_before)
            verifying = [key.key_id for key in read_signing_keys(tx) if key.key_id != new.key_id]
        return Rotation(
            key_id=new.key_id,
            retired_ids=tuple(retired),
            verifying_ids=tuple(verifying),
            retirable_at=now + longest if verifying else None,
        )


def _longest(promised: Settings) -> timedelta:
    """Returns the longest time for which a token can be used after it was signed.

    Tokens are locators, addresses for uploads, and continuations of readings (`gc.exports`).
    """
    return max(promised.lease_ttl, promised.upload_ttl, promised.prepare_ttl)
