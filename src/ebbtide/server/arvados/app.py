"""Arvados's API as an application in front of the server's other routes.

Its paths are `/arvados/v1/…`, `/discovery/v1/…`, and for blocks `/HASH…` at the root.
"""

from __future__ import annotations

import re
from typing import Any, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.types import ASGIApp, Receive, Scope, Send

from ebbtide.errors import EbbtideError
from ebbtide.server.arvados import (
    cluster,
    collections,
    discovery,
    groups,
    keep,
    links,
    listing,
    users,
)
from ebbtide.server.arvados.errors import on_defect, on_error, on_http_error
from ebbtide.server.arvados.routing import METHOD_HEADER, PREFIX, ArvadosRoute
from ebbtide.server.errors import BreakingOff

TOPICS: Final = (discovery, cluster, users, collections, keep, groups, links, listing)

_MINE: Final = re.compile(rf"(?:{PREFIX}|{discovery.PREFIX})/.*|/[0-9a-f]{{32}}(?:\+.*)?")
_OVERRIDE: Final = METHOD_HEADER.encode()


def arvados_routes() -> list[ArvadosRoute]:
    """Returns all routes. Paths without parts in braces come first, so that `users/current` is no
    user's id."""
    found = [route for topic in TOPICS for route in topic.routes.all]
    return sorted(found, key=lambda route: "{" in route.path)


def make_arvados(state: Any, repository: str) -> Starlette:  # the state of the server's application
    """Returns the application. `state` holds the store; `repository` is the name of the repository
    that it serves. Raises NotFound `repository_not_found`."""
    state.store.repository(repository)
    arvados = Starlette(
        routes=[route.answers() for route in arvados_routes()],
        exception_handlers={
            EbbtideError: on_error,
            HTTPException: on_http_error,
            Exception: on_defect,
        },
        # A block whose bytes cannot be read to their end: the client must notice.
        middleware=[Middleware(BreakingOff)],
    )
    state.arvados_repository = repository
    arvados.state = state
    return arvados


class ArvadosInFront:
    """Sends requests for Arvados's paths to its application, and all other requests on."""

    def __init__(self, app: ASGIApp, *, arvados: ASGIApp) -> None:
        self._app = app
        self._arvados = arvados

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers the request, or forwards it."""
        if scope["type"] == "http" and _MINE.fullmatch(scope["path"]):
            await self._arvados(_with_method(scope), receive, send)
        else:
            await self._app(scope, receive, send)


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
