"""Signing keys: requests and answers."""

from __future__ import annotations

from datetime import datetime

from ebbtide.server.wire.base import Wire
from ebbtide.store.access.signing_keys import Rotation


class RotationRequest(Wire):
    """A request for a new signing key. Without `at_once`, an older key stays valid for as long as
    any token that it signed can be used. With `at_once`, all older keys are retired."""

    at_once: bool = False


class RotationAnswer(Wire):
    """The key that signs now, the keys that were retired, and the older keys that still verify. A
    rotation after `retirable_at` retires the latter."""

    key_id: str
    retired_ids: list[str]
    verifying_ids: list[str]
    retirable_at: datetime | None = None

    @classmethod
    def of(cls, rotation: Rotation) -> RotationAnswer:
        """Makes the answer for a rotation."""
        return cls(
            key_id=rotation.key_id,
            retired_ids=list(rotation.retired_ids),
            verifying_ids=list(rotation.verifying_ids),
            retirable_at=rotation.retirable_at,
        )
