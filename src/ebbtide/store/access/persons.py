"""Persons who log in by an issuer of OpenID Connect, and the roles of one login.

Not for: the issuer's tokens (the server), or the sessions (`sessions`).
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from ebbtide.store.access.keys import PERSON_PREFIX, Role

DIGEST_BYTES: Final = 15


@dataclass(frozen=True, slots=True)
class Person:
    """A person, as an issuer names them. `subject` is theirs for ever (OpenID Connect Core 1.0,
    section 2); `name` can change."""

    issuer: str
    subject: str
    name: str

    @property
    def access_key_id(self) -> str:
        """The id of the key that names the person in the store. No two persons have the same."""
        named = json.dumps([self.issuer, self.subject]).encode()
        digest = hashlib.sha256(named).digest()[:DIGEST_BYTES]
        return PERSON_PREFIX + base64.b32encode(digest).decode()


@dataclass(frozen=True, slots=True)
class PersonLogin:
    """What one login gave. `repositories` has roles by ids of repositories. `logout_url` ends the
    login at the issuer, if it has an address for this."""

    issuer: str
    role: Role
    repositories: Mapping[str, Role] = field(default_factory=dict)
    logout_url: str | None = field(default=None, repr=False)

    def to_bytes(self) -> bytes:
        """Returns the login as bytes, for the seal of its session."""
        return json.dumps(
            {
                "issuer": self.issuer,
                "role": self.role,
                "repositories": dict(self.repositories),
                "logout_url": self.logout_url,
            }
        ).encode()

    @classmethod
    def parse(cls, data: bytes) -> PersonLogin:
        """Returns the login of such bytes, which come from a seal that was opened."""
        found = json.loads(data)
        roles = {each: Role(role) for each, role in found["repositories"].items()}
        return cls(found["issuer"], Role(found["role"]), roles, found["logout_url"])
