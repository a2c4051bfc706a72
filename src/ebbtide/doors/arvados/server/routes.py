"""The routes of Arvados's API, each with its role; one request to them; and the form of errors.

The arguments of a request are in its query, in a form, or in a JSON body. In a query and in a form,
lists and objects are JSON. Errors are `{"errors": […]}`, with statuses of their own; `kind` is this
server's addition. Source: Arvados's documentation, "API requests".
"""

from __future__ import annotations

import functools
import json
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import parse_qsl

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ebbtide.doors.arvados.store.repository import ArvadosRepository
from ebbtide.doors.arvados.store.uuids import cluster_of, user_uuid
from ebbtide.errors import Denied, EbbtideError, InvalidInput, quarantine_fields
from ebbtide.server.auth import Rights
from ebbtide.server.bodies import limited
from ebbtide.server.errors import STATUS
from ebbtide.store.access.access_keys import AccessKey, AccessKeys, Role
from ebbtide.store.embedded import Store
from ebbtide.store.repository import Repository
from ebbtide.strict_json import unique_keys
from ebbtide.text import shown

VERSION: Final = "v2"
"""The first part of a token."""
_SCHEMES: Final = ("bearer", "oauth2")
"""Clients of Keep write the second one."""
PREFIX: Final = "/arvados/v1"
FORM: Final = "application/x-www-form-urlencoded"
METHOD_HEADER: Final = "x-http-method-override"
METHOD_FIELD: Final = "_method"
SILENT: Final = frozenset(("alt", "bypass_federation", "no_forward"))
"""Parameters of every route that change nothing here: the form of the answer is always JSON, and
there are no other clusters."""


@dataclass(frozen=True, slots=True)
class ArvadosCall:
    """One request, after its token was checked. `arguments` are from its query and its body;
    `body` are those of the body alone."""

    request: Request
    store: Store
    repository_name: str
    identity: TokenIdentity | None
    rights: Rights | None
    arguments: Mapping[str, Any]  # JSON values, or text from a query
    body: Mapping[str, Any]
    route: ArvadosRoute

    @property
    def key(self) -> AccessKey:
        """The access key of the request. Raises Denied `key_invalid` on a public route."""
        return self._identified.key

    @property
    def token(self) -> str:
        """The token as it was sent. Signatures of blocks depend on it. Raises Denied
        `key_invalid` on a public route."""
        return self._identified.token

    @property
    def _identified(self) -> TokenIdentity:
        if self.identity is None:
            raise Denied("key_invalid", "this needs an access key")
        return self.identity

    def repository(self) -> Repository:
        """Returns the repository that this API serves. Raises NotFound `repository_not_found`, and
        Denied as `Rights.opened` does."""
        found = self.store.repository(self.repository_name)
        return found if self.rights is None else self.rights.opened(found)

    def arvados(self) -> ArvadosRepository:
        """Returns the same repository, with Arvados's operations. Raises as `repository` does."""
        return ArvadosRepository(self.repository())

    def role_of(self, key: AccessKey) -> Role:
        """Returns the role of a key in the repository that this API serves."""
        rights = self.rights if self.rights and self.rights.key == key else Rights(key, self.store)
        return rights.role_in(self.repository().info.repository_id)

    @property
    def cluster(self) -> str:
        """The first part of the repository's ids."""
        return cluster_of(self.repository().info.repository_id)

    @property
    def user_uuid(self) -> str:
        """The id of the user of the request's key."""
        return user_uuid(self.cluster, self.key.access_key_id)

    @property
    def root_url(self) -> str:
        """The address of this server as the client wrote it."""
        return f"{self.request.url.scheme}://{self.request.url.netloc}/"

    def name(self, parameter: str) -> str:
        """Returns a part of the path."""
        return str(self.request.path_params[parameter])

    def value(self, name: str) -> Any:  # a JSON value
        """Returns an argument that may be a list or an object, or None. Raises InvalidInput
        `invalid_argument`."""
        found = self.arguments.get(name)
        if not isinstance(found, str):
            return found
        try:
            return json.loads(found) if found else None
        except ValueError:
            raise InvalidInput("invalid_argument", f"{name} is no valid JSON") from None

    def text(self, name: str) -> str | None:
        """Returns an argument that is text, or None. Raises InvalidInput `invalid_argument`."""
        found = self.arguments.get(name)
        if found is not None and not isinstance(found, str):
            raise InvalidInput("invalid_argument", f"{name} must be text")
        return found or None

    def flag(self, name: str, *, default: bool = False) -> bool:
        """Returns an argument that is true or false. Raises InvalidInput `invalid_argument`."""
        found = self.arguments.get(name)
        if found is None or found == "":
            return default
        if isinstance(found, bool):
            return found
        word = str(found).lower()
        if word not in ("true", "false", "1", "0"):
            raise InvalidInput("invalid_argument", f"{name} is true or false, not {shown(word)}")
        return word in ("true", "1")

    def number(self, name: str, default: int, *, most: int = 2**31 - 1) -> int:
        """Returns an argument that is a whole number from 0 on; larger ones count as `most`.
        Raises InvalidInput `invalid_argument`."""
        found = self.arguments.get(name)
        if found is None or found == "":
            return default
        word = str(found)
        if isinstance(found, bool) or not (word.isascii() and word.isdigit() and len(word) < 19):
            raise InvalidInput("invalid_argument", f"{name} is a whole number, not {shown(word)}")
        return min(int(word), most)

    def fields(self, resource: str) -> dict[str, Any]:  # names of fields to JSON values
        """Returns the fields of a record, such as `collection`, that a request wants to store.

        They are in an object of that name, or they are the body itself, beside the parameters.
        Raises InvalidInput `invalid_argument`.
        """
        parameters = self.route.parameters
        beside = {name: value for name, value in self.body.items() if name not in parameters}
        found = self.value(resource) if resource in self.arguments else beside
        if not isinstance(found, dict):
            raise InvalidInput("invalid_argument", f"{resource} must be an object")
        return dict(found)

    def require_known(self) -> None:
        """Checks that the route has each parameter. Raises InvalidInput `invalid_argument`.

        If the record's fields are the body itself, they are checked with the record.
        """
        record, parameters = self.route.record, self.route.parameters
        given = set(self.arguments)
        if record is not None and record not in given:
            given = set(self.request.query_params)
        unknown = sorted(given - parameters - SILENT - {record, METHOD_FIELD})
        if unknown:
            known = ", ".join(sorted(parameters)) or "none"
            raise InvalidInput(
                "invalid_argument",
                f"there is no parameter {shown(unknown[0])} here: leave it out. The parameters of "
                f"this route: {known}",
            )


Work = Callable[[ArvadosCall], Any]
"""Returns the JSON value of the answer."""
Handler = Callable[[ArvadosCall], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class ArvadosRoute:
    """One operation of the API. A `role` of None opens it to everybody. With `streamed`, the
    handler reads the body itself. `record` is the name of the record that a request changes."""

    method: str
    path: str
    role: Role | None
    handle: Handler
    streamed: bool = False
    parameters: frozenset[str] = frozenset()
    record: str | None = None

    @property
    def resource(self) -> str:
        """The name of the resource, such as `collections`."""
        return self.path.removeprefix(PREFIX).split("/")[1]

    @property
    def path_format(self) -> str:
        """The name of the route in the server's metrics."""
        return self.path.replace(":segment", "")

    def answers(self) -> Route:
        """Returns the route for the application."""
        return Route(self.path, functools.partial(_guarded, self), methods=[self.method])


class ArvadosRoutes:
    """The routes of one topic."""

    def __init__(self) -> None:
        self.all: list[ArvadosRoute] = []

    def add(
        self,
        method: str,
        path: str,
        role: Role | None,
        parameters: Iterable[str] = (),
        *,
        record: str | None = None,
        prefix: str = PREFIX,
    ) -> Callable[[Work], Work]:
        """Registers a function that works in a thread, at a path below `prefix`. It returns the
        JSON value of the answer. A request with another parameter is refused."""

        def register(work: Work) -> Work:
            async def handle(call: ArvadosCall) -> Response:
                found = await run_in_threadpool(work, call)
                return JSONResponse(found)

            takes = frozenset(parameters)
            whole = prefix + path
            self.all.append(
                ArvadosRoute(method, whole, role, handle, parameters=takes, record=record)
            )
            return work

        return register

    def stream(self, method: str, path: str, role: Role | None) -> Callable[[Handler], Handler]:
        """Registers a function that reads the body and makes the answer itself, at a path from
        the root."""

        def register(handle: Handler) -> Handler:
            self.all.append(ArvadosRoute(method, path, role, handle, streamed=True))
            return handle

        return register


async def _guarded(route: ArvadosRoute, request: Request) -> Response:
    request.scope["route"] = route
    state = request.app.state
    store: Store = state.store
    repository_name: str = state.settings.arvados_repository
    identity, rights = None, None
    if route.role is not None:
        header = request.headers.get("authorization")
        identity = await run_in_threadpool(identify, store.keys, header)
        rights = Rights(identity.key, store)
        named = {"repository": repository_name}
        await run_in_threadpool(rights.require, route.role, named)
    body: dict[str, Any] = {}
    if not route.streamed:
        body = await _body_of(limited(request, store.settings.server_body_max))
        body.pop(METHOD_FIELD, None)
    arguments = dict(request.query_params) | body
    call = ArvadosCall(request, store, repository_name, identity, rights, arguments, body, route)
    if not route.streamed:
        call.require_known()
    return await route.handle(call)


async def _body_of(request: Request) -> dict[str, Any]:
    """Returns the arguments in a body, which is a form or a JSON object. Raises InvalidInput."""
    body = await request.body()
    if not body:
        return {}
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    try:
        text = body.decode()
        if content_type == FORM:
            return dict(parse_qsl(text, keep_blank_values=True))
        hook = unique_keys("invalid_argument", "the request's body")
        found = json.loads(text, object_pairs_hook=hook)
    except ValueError:
        raise InvalidInput("invalid_argument", "the body is no valid JSON") from None
    if not isinstance(found, dict):
        raise InvalidInput("invalid_argument", "the body must be a JSON object")
    return found


@dataclass(frozen=True, slots=True)
class TokenIdentity:
    """The access key of a request, and the token that named it."""

    key: AccessKey
    token: str = field(repr=False)


def identify(keys: AccessKeys, header: str | None) -> TokenIdentity:
    """Returns who sent a request, from its header `Authorization`.

    The token is `v2/KEYID/SECRET`. Raises Denied `key_invalid`, and the errors of `authenticate`.
    """
    scheme, _, token = (header or "").partition(" ")
    token = token.strip()
    parts = token.split("/", 2)
    is_token = len(parts) == 3 and parts[0] == VERSION and parts[1].isascii()
    if scheme.lower() not in _SCHEMES or not is_token or "\0" in token:
        raise Denied(
            "key_invalid",
            "this needs an access key: set ARVADOS_API_TOKEN to v2/KEYID/SECRET",
        )
    return TokenIdentity(keys.authenticate(parts[1], parts[2]), token)


logger = logging.getLogger(__name__)

UNPROCESSABLE: Final = 422
_AGAIN: Final = frozenset((400, 409))
"""Statuses that become 422. Arvados's clients repeat a request that got 409, and a request that
conflicts stays refused."""


def status_of(kind: str) -> int:
    """Returns the status for a kind of error."""
    status = STATUS[kind]
    return UNPROCESSABLE if status in _AGAIN else status


def answer_of(error: EbbtideError) -> JSONResponse:
    """Returns the answer for an error."""
    status = status_of(error.kind)
    if status >= 500:
        logger.error("%s: %s", error.kind, error.message)
    return _answer(status, error.kind, error.message, quarantine_fields(error))


def on_error(request: Request, error: Exception) -> JSONResponse:
    """Answers an error of this program."""
    assert isinstance(error, EbbtideError)
    request.app.state.store.tell(error)
    return answer_of(error)


def on_http_error(request: Request, error: Exception) -> JSONResponse:
    """Answers a path or a method that does not exist."""
    assert isinstance(error, HTTPException)
    path = request.scope["raw_path"].decode("latin-1")
    text = f"this server has no {request.method} {path}: docs/arvados.md lists what it has"
    return _answer(error.status_code, "route_not_found", text)


def on_defect(_request: Request, _error: Exception) -> JSONResponse:
    """Answers an unexpected error. The traceback is in the server's log."""
    return _answer(500, "internal", "a defect in this program: the server's log says more")


def _answer(
    status: int, kind: str, message: str, more: Mapping[str, str] | None = None
) -> JSONResponse:
    # Paths and messages may hold characters that UTF-8 cannot encode.
    text = message.encode("utf-8", "backslashreplace").decode()
    return JSONResponse({"errors": [text], "kind": kind, **(more or {})}, status_code=status)
