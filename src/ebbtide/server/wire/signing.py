"""Signing keys."""

from __future__ import annotations

from datetime import datetime

from ebbtide.server.wire.base import Wire
from ebbtide.store.signing_keys import Rotation


class RotationRequest(Wire):
    """Without `at_once` older keys verify for as long as anything that they signed lasts."""

    at_once: bool = False


class RotationAnswer(Wire):
    """The key that signs now, those that were retired, and those that still verify, which a
    rotation after `retirable_at` retires."""

    key_id: str
    retired_ids: list[str]
    verifying_ids: list[str]
    retirable_at: datetime | None = None

    @classmethod
    def of(cls, rotation: Rotation) -> RotationAnswer:
        """One rotation."""
        return cls(
            key_id=rotation.key_id,
            retired_ids=list(rotation.retired_ids),
            verifying_ids=list(rotation.verifying_ids),
            retirable_at=rotation.retirable_at,
        )
