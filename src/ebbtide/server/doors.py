"""Doors: wire formats of other programs, such as S3, in front of the server's own routes.

A door is an entry point of the group `ebbtide.doors`, which leads to a subclass of `Door`. Another
distribution can bring one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from operator import attrgetter
from typing import Any, Final, Self

from starlette.types import ASGIApp, Receive, Scope, Send

from ebbtide.plugins import plugins_of

GROUP: Final = "ebbtide.doors"


class Door(ABC):
    """Answers the requests of one wire format, as an ASGI application. It sends its errors in the
    shape that its clients know.

    A request belongs to the first door that takes it for its own. Doors are asked by their
    `precedence`, the largest first: what a signature says of a request counts more than its path.
    """

    precedence: int = 0

    @classmethod
    @abstractmethod
    def opened(cls, state: Any) -> Self | None:  # the state of the server's application
        """Returns the door of a server, or None if the settings ask for none.

        `state` has the `store` and the `settings`. Raises as the door says.
        """

    @abstractmethod
    def is_own(self, scope: Scope) -> bool:
        """Whether a request over HTTP is for this door. Every request of the server is asked."""

    @abstractmethod
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request of its own."""


def open_doors(state: Any) -> list[Door]:  # the state of the server's application
    """Returns the doors of a server, in the order in which they are asked. Raises as they do."""
    kinds: list[type[Door]] = [each.load() for each in plugins_of(GROUP).values()]
    opened = [kind.opened(state) for kind in kinds]
    return sorted(filter(None, opened), key=attrgetter("precedence"), reverse=True)


class DoorsInFront:
    """Sends each request to the door whose own it is, and all others on."""

    def __init__(self, app: ASGIApp, *, doors: Sequence[Door]) -> None:
        self._app = app
        self._doors = tuple(doors)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers the request, or forwards it."""
        if scope["type"] == "http":
            for door in self._doors:
                if door.is_own(scope):
                    await door(scope, receive, send)
                    return
        await self._app(scope, receive, send)
