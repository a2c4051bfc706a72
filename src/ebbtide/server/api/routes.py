"""API routes with the role that each needs, and references in paths.

Every route has a role: `Routes.add` requires one, and `GuardedRoute` checks it before it reads
anything else of the request.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from functools import cached_property
from typing import Any, Final, TypeVar, get_type_hints
from urllib.parse import unquote

from fastapi import APIRouter, Request, Response
from fastapi.routing import APIRoute
from starlette.concurrency import run_in_threadpool
from starlette.convertors import Convertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from ebbtide.errors import EbbtideError, InvalidInput
from ebbtide.server.api.answers import answering, model_of
from ebbtide.server.api.base import ErrorAnswer
from ebbtide.server.auth import principal_of, rights_of
from ebbtide.server.bodies import limited
from ebbtide.store.access.access_keys import Role
from ebbtide.text import shown

PREFIX: Final = "/api/v1"
ROLE: Final = "x-role"
STREAMED: Final = "x-streamed"
ANYWHERE: Final = "x-role-anywhere"
PUBLIC: Final = "public"
SLASH: Final = "\ue000"
"""Stands for a decoded slash inside one path segment, until the segment is converted."""

Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])


class GuardedRoute(APIRoute):
    """A route that is open to one role and all roles above it. See `Routes.add`."""

    @property
    def role(self) -> str:
        """The role that the route needs, or `public`."""
        return str((self.openapi_extra or {})[ROLE])

    def get_route_handler(self) -> Callable[[Request], Awaitable[Response]]:  # type: ignore[override]
        """Returns the handler with the role check in front of it."""
        handle = super().get_route_handler()

        async def guarded(request: Request) -> Response:
            if self.role != PUBLIC:
                await self._require(request, Role(self.role))
            if not (self.openapi_extra or {}).get(STREAMED):
                request = limited(request, request.app.state.settings.server_body_max)
            try:
                return await handle(request)
            except HTTPException as error:
                # FastAPI wraps an error that was raised while it read the body.
                if isinstance(error.__cause__, EbbtideError):
                    raise error.__cause__ from None
                raise

        return guarded

    async def _require(self, request: Request, needed: Role) -> None:
        """Checks the role of the request's key. Raises Denied `role_missing`."""
        # In the usual case, neither a thread nor the database is needed.
        if principal_of(request.scope).role.allows(needed):
            return
        rights = rights_of(request.scope, request.app.state.store)
        if (self.openapi_extra or {}).get(ANYWHERE):
            await run_in_threadpool(rights.require_anywhere, needed)
        else:
            await run_in_threadpool(rights.require, needed, request.path_params)


class Routes:
    """The routes of one topic."""

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self._registered: list[Callable[[APIRouter], None]] = []

    @cached_property
    def all(self) -> Sequence[BaseRoute]:
        """The routes, made once: FastAPI needs a third of a second to make the routes of all
        topics."""
        errors = {"model": ErrorAnswer}
        router = APIRouter(route_class=GuardedRoute, responses={"4XX": errors, "5XX": errors})
        for register in self._registered:
            register(router)
        return router.routes

    def add(
        self,
        method: str,
        path: str,
        role: Role | None,
        *,
        status: int = 200,
        streamed: bool = False,
        anywhere: bool = False,
        returns: Any = None,  # a type
        **options: Any,  # options of FastAPI
    ) -> Callable[[Endpoint], Endpoint]:
        """Registers a function as a route. It returns a thing, a list of things, or a model;
        `returns` is the type, if the function is for several. A `role` of None opens the route to
        everybody.
        `streamed` exempts the body from the general limit: streamed bodies have their own limit.

        The role counts in the repository that the path names, directly or by a project or
        collection; otherwise in the whole store. `anywhere` is for routes whose body or query names
        the repository: a key with the role in any repository may call them, and the function checks
        the role in that one.
        """

        def register(endpoint: Endpoint) -> Endpoint:
            def to(router: APIRouter) -> None:
                hint = returns or get_type_hints(endpoint)["return"]
                given, model = {**options}, model_of(hint)
                if model is not None:
                    given["response_model"] = model
                router.add_api_route(
                    PREFIX + path,
                    endpoint if model is None else answering(endpoint, status),
                    methods=[method],
                    tags=[self._topic],
                    status_code=status,
                    response_model_exclude_none=True,
                    openapi_extra={
                        ROLE: PUBLIC if role is None else str(role),
                        STREAMED: streamed,
                        ANYWHERE: anywhere,
                    },
                    **given,
                )

            self._registered.append(to)
            return endpoint

        return register


_ESCAPED_SLASH: Final = re.compile("%2f", re.IGNORECASE)


def require_addressable(name: str) -> None:
    """Refuses a slash in a new name, as lakeFS does: its clients write REPOSITORY/REF/PATH, and
    could not name the ref. Raises InvalidInput `invalid_name`."""
    if "/" in name:
        raise InvalidInput(
            "invalid_name",
            f"{shown(name)} has a slash, which clients of lakeFS cannot write in a ref: choose a "
            "name without, or make it by 'ebbtide branch create' or 'ebbtide tag create', and "
            "write the slash as %2F",
        )


class Segments:
    """Splits paths into segments before they are decoded, so that a reference may contain `%2F`.

    Clients that take `feature%2Fx` for the name itself encode it once more, as `feature%252Fx`. No
    name in a path has a percent sign, so that this means the same.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forwards the request with a path in which each slash separates two segments."""
        raw: bytes | None = scope.get("raw_path")
        if scope["type"] == "http" and raw is not None:
            segments = raw.decode("latin-1").split("/")
            decoded = (
                _ESCAPED_SLASH.sub("/", unquote(segment)).replace("/", SLASH)
                for segment in segments
            )
            scope = {**scope, "path": "/".join(decoded)}
        await self._app(scope, receive, send)


class _Segment(Convertor[str]):
    regex = "[^/]+"

    def convert(self, value: str) -> str:
        return value.replace(SLASH, "/")

    def to_string(self, value: str) -> str:
        return value.replace("/", SLASH)


register_url_convertor("segment", _Segment())
