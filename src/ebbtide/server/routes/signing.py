"""The keys that sign locators, upload tokens and the continuation tokens of uncommitted lists."""

from __future__ import annotations

from typing import Annotated

from fastapi import Body

from ebbtide.server.routing import Routes
from ebbtide.server.serving import ServedDep
from ebbtide.server.wire.signing import RotationAnswer, RotationRequest
from ebbtide.store.access.keys import Role

routes = Routes("signing")


@routes.add("POST", "/signing-keys/rotate", Role.ADMIN)
def rotate_signing_keys(
    served: ServedDep, asked: Annotated[RotationRequest | None, Body()] = None
) -> RotationAnswer:
    """Makes a new key that signs from now on, and retires older keys."""
    at_once = asked is not None and asked.at_once
    return RotationAnswer.of(served.store.signing_keys.rotate(at_once=at_once))
