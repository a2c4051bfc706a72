"""Signed tokens, by which the store makes promises. Not for: the meaning of a promise.

A token is `<key id>.<payload>.<mac>`: the payload as JSON, and the HMAC-SHA256 of key id and
payload. Both are in base64url without padding (RFC 4648, section 5). The newest key signs. All keys
that are not retired verify.
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
from typing import Any, Final

from ebbtide.errors import InvalidInput
from ebbtide.ids import ID_PATTERN, new_id

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
