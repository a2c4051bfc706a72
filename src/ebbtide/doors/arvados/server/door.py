"""Arvados's API in front of the server's other routes.

Its paths are `/arvados/v1/…`, `/discovery/v1/…`, and for blocks `/HASH…` at the root.
"""

from __future__ import annotations

import re
from typing import Any, Final, Self

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.types import Receive, Scope, Send

from ebbtide.doors.arvados.server import cluster, collections, discovery, groups, keep, links
from ebbtide.doors.arvados.server.routes import (
    METHOD_HEADER,
    PREFIX,
    ArvadosRoute,
    on_defect,
    on_error,
    on_http_error,
)
from ebbtide.errors import EbbtideError
from ebbtide.server.doors import Door
from ebbtide.server.errors import BreakingOff

TOPICS: Final = (discovery, cluster, collections, keep, groups, links)

_MINE: Final = re.compile(rf"(?:{PREFIX}|{discovery.PREFIX})/.*|/[0-9a-f]{{32}}(?:\+.*)?")
_OVERRIDE: Final = METHOD_HEADER.encode()


def arvados_routes() -> list[ArvadosRoute]:
    """Returns all routes. Paths without parts in braces come first, so that `users/current` is no
    user's id."""
    found = [route for topic in TOPICS for route in topic.routes.all]
    return sorted(found, key=lambda route: "{" in route.path)


class ArvadosDoor(Door):
    """Answers requests for Arvados's paths, if the settings name a repository."""

    def __init__(self, state: Any) -> None:  # the state of the server's application
        """Raises NotFound `repository_not_found` if the repository of the settings is missing."""
        state.store.repository(state.settings.arvados_repository)
        self._app = Starlette(
            routes=[route.answers() for route in arvados_routes()],
            exception_handlers={
                EbbtideError: on_error,
                HTTPException: on_http_error,
                Exception: on_defect,
            },
            # A block whose bytes cannot be read to their end: the client must notice.
            middleware=[Middleware(BreakingOff)],
        )
        self._app.state = state

    @classmethod
    def opened(cls, state: Any) -> Self | None:  # the state of the server's application
        """Returns the door, or None without EBBTIDE_ARVADOS_REPOSITORY. Raises NotFound
        `repository_not_found`."""
        return None if state.settings.arvados_repository is None else cls(state)

    def is_own(self, scope: Scope) -> bool:
        """Whether a request has a path of Arvados."""
        return _MINE.fullmatch(scope["path"]) is not None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request."""
        await self._app(_with_method(scope), receive, send)


def _with_method(scope: Scope) -> Scope:
    """Returns the request with the method that it means.

    Clients send a GET whose query is long as a POST with the query as its body.
    """
    means_get = any(
        name == _OVERRIDE and value.upper() == b"GET" for name, value in scope["headers"]
    )
    if scope["method"] == "POST" and means_get:
        return {**scope, "method": "GET"}
    return scope
