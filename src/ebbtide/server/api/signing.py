"""The keys that sign locators, upload tokens and the continuation tokens of uncommitted lists."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from fastapi import Body

from ebbtide.server.api.base import Wire
from ebbtide.server.api.routing import Routes
from ebbtide.server.serving import ServedDep
from ebbtide.store.access.access_keys import Role
from ebbtide.store.access.signed_tokens import Rotation


class RotationRequest(Wire):
    """A request for a new signing key. Without `at_once`, an older key stays valid for as long as
    any token that it signed can be used. With `at_once`, all older keys are retired."""

    at_once: bool = False


class RotationAnswer(Wire):
    """The key that signs now, the keys that were retired, and the older keys that still verify. A
    rotation after `retirable_at` retires the keys in `verifying_ids`."""

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


routes = Routes("signing")


@routes.add("POST", "/signing-keys/rotate", Role.ADMIN)
def rotate_signing_keys(
    served: ServedDep, asked: Annotated[RotationRequest | None, Body()] = None
) -> RotationAnswer:
    """Makes a new key that signs from now on, and retires older keys."""
    at_once = asked is not None and asked.at_once
    return RotationAnswer.of(served.store.signing_keys.rotate(at_once=at_once))
