"""Routes that say who may call them, and references in paths.

A route without a role does not exist: `Routes.add` asks for one, and `GuardedRoute` checks it
before anything of the request is read.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import cached_property
from typing import Any, Final, TypeVar
from urllib.parse import unquote

from fastapi import APIRouter, Request, Response
from fastapi.routing import APIRoute
from starlette.convertors import Convertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from ebbtide.errors import Denied, EbbtideError
from ebbtide.server.auth import principal_of
from ebbtide.server.limits import limited
from ebbtide.server.wire.base import ErrorAnswer
from ebbtide.store.keys import Role

PREFIX: Final = "/api/v1"
ROLE: Final = "x-role"
STREAMED: Final = "x-streamed"
PUBLIC: Final = "public"
SLASH: Final = "\ue000"
"""Stands for a slash inside one segment of a path until the segment is taken."""

Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])


class GuardedRoute(APIRoute):
    """A route that is open to one role and all above it."""

    @property
    def role(self) -> str:
        """Who may call it: a role, or `public`."""
        return str((self.openapi_extra or {})[ROLE])

    def get_route_handler(self) -> Callable[[Request], Awaitable[Response]]:  # type: ignore[override]
        """The handler, behind the check."""
        handle = super().get_route_handler()

        async def guarded(request: Request) -> Response:
            if self.role != PUBLIC:
                _require(request, Role(self.role))
            if not (self.openapi_extra or {}).get(STREAMED):
                request = limited(request, request.app.state.settings.server_body_max)
            try:
                return await handle(request)
            except HTTPException as error:
                # What went wrong while the body was read comes wrapped.
                if isinstance(error.__cause__, EbbtideError):
                    raise error.__cause__ from None
                raise

        return guarded


class Routes:
    """The routes of one topic."""

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self._registered: list[Callable[[APIRouter], None]] = []

    @cached_property
    def all(self) -> Sequence[BaseRoute]:
        """The routes, made once: FastAPI takes a third of a second to make those of all topics."""
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
        **options: Any,  # of FastAPI
    ) -> Callable[[Endpoint], Endpoint]:
        """Register a function; `role` None is open to all. Streamed bodies have their own limit."""

        def register(endpoint: Endpoint) -> Endpoint:
            def to(router: APIRouter) -> None:
                router.add_api_route(
                    PREFIX + path,
                    endpoint,
                    methods=[method],
                    tags=[self._topic],
                    status_code=status,
                    response_model_exclude_none=True,
                    openapi_extra={ROLE: PUBLIC if role is None else str(role), STREAMED: streamed},
                    **options,
                )

            self._registered.append(to)
            return endpoint

        return register


class Segments:
    """Takes paths apart before they are decoded, so that a reference may hold `%2F`."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on with a path whose slashes are all between segments."""
        raw: bytes | None = scope.get("raw_path")
        if scope["type"] == "http" and raw is not None:
            segments = raw.decode("latin-1").split("/")
            decoded = (unquote(segment).replace("/", SLASH) for segment in segments)
            scope = {**scope, "path": "/".join(decoded)}
        await self._app(scope, receive, send)


class _Segment(Convertor[str]):
    regex = "[^/]+"

    def convert(self, value: str) -> str:
        return value.replace(SLASH, "/")

    def to_string(self, value: str) -> str:
        return value.replace("/", SLASH)


register_url_convertor("segment", _Segment())


def _require(request: Request, needed: Role) -> None:
    """Raises Denied `role_missing`."""
    key = principal_of(request.scope)
    if not key.role.allows(needed):
        raise Denied(
            "role_missing",
            f"access key {key.access_key_id} has the role {key.role}: this needs {needed}",
        )
