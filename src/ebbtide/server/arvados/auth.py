"""The token of a request: an access key of the store, written as a token of Arvados."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from ebbtide.errors import Denied
from ebbtide.store.access.keys import AccessKey, AccessKeys

VERSION: Final = "v2"
_SCHEMES: Final = ("bearer", "oauth2")
"""Clients of Keep write the second one."""


@dataclass(frozen=True, slots=True)
class TokenIdentity:
    """The access key of a request, and the token that named it."""

    key: AccessKey
    token: str = field(repr=False)


def identify(keys: AccessKeys, header: str | None) -> TokenIdentity:
    """Returns who sent a request, from its header `Authorization`.

    The token is `v2/KEYID/SECRET`. Raises Denied `key_invalid`, and the errors of `authenticate`.
    """
    scheme, _, token = (header or "").partition(" ")
    token = token.strip()
    parts = token.split("/", 2)
    is_token = len(parts) == 3 and parts[0] == VERSION and parts[1].isascii()
    if scheme.lower() not in _SCHEMES or not is_token or "\0" in token:
        raise Denied(
            "key_invalid",
            "this needs an access key: set ARVADOS_API_TOKEN to v2/KEYID/SECRET",
        )
    return TokenIdentity(keys.authenticate(parts[1], parts[2]), token)
