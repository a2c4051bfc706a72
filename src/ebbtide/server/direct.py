"""Answers to the most frequent requests of the API, without the layers of FastAPI.

These are reads of objects, and uploads of small ones. Such a request is identified, authorized and
answered in one thread, by the functions of its route. A plain request has only the parameter
`path`, and no body, except for the small one of an upload. All other requests are forwarded, so
that FastAPI checks them and answers the errors. Not for: what the routes do (`api.objects`).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Final
from urllib.parse import parse_qsl

import anyio.to_thread
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ebbtide.errors import EbbtideError
from ebbtide.server.api import downloads, objects
from ebbtide.server.api.downloads import DownloadOptions
from ebbtide.server.api.routes import PREFIX, SLASH, GuardedRoute
from ebbtide.server.auth import PRINCIPAL, identify, parse_basic, rights_of
from ebbtide.server.bodies import declared_bytes, is_small, whole_body
from ebbtide.server.errors import answer_of
from ebbtide.server.serving import Served
from ebbtide.server.uploads import is_form, storing
from ebbtide.store.access.access_keys import Role, same_as
from ebbtide.store.embedded import Store
from ebbtide.store.quick_reads import QuickRead, in_memory

logger = logging.getLogger(__name__)

_REF: Final = re.compile(rf"{PREFIX}/repositories/([^/]+)/refs/([^/]+)/objects")
_BRANCH: Final = re.compile(rf"{PREFIX}/repositories/([^/]+)/branches/([^/]+)/objects")
_FORMATS: Final = {
    _REF: PREFIX + "/repositories/{repository}/refs/{ref}/objects",
    _BRANCH: PREFIX + "/repositories/{repository}/branches/{branch}/objects",
}
_NOT_PRESIGNED: Final = ("presign", "false")


@dataclass(frozen=True, slots=True)
class _Plain:
    """A request of the plain form. `revision` is a ref or a branch."""

    request: Request
    route: GuardedRoute
    repository: str
    revision: str
    path: str


class DirectObjects:
    """Answers plain requests for objects, and forwards all others."""

    def __init__(self, app: ASGIApp, *, store: Store, routes: Iterable[GuardedRoute]) -> None:
        self._app = app
        self._store = store
        self._routes = {
            (method, route.path_format): route for route in routes for method in route.methods or ()
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers or forwards a request."""
        plain = self._plain(scope, receive) if scope["type"] == "http" else None
        if plain is None:
            await self._app(scope, receive, send)
            return
        is_started = False

        async def answering(message: Message) -> None:
            nonlocal is_started
            is_started = True
            await send(message)

        try:
            response = await self._response(plain)
            await response(scope, receive, answering)
        except ClientDisconnect:
            return
        except EbbtideError as error:
            if is_started:
                # As `BreakingOff` does it.
                logger.error("%s: the answer was interrupted: %s", error.kind, error.message)
                return
            await anyio.to_thread.run_sync(self._store.tell, error)
            await answer_of(error, getattr(error, "headers", None))(scope, receive, send)

    def _plain(self, scope: Scope, receive: Receive) -> _Plain | None:
        """Returns a request that is answered here, or None."""
        method = scope["method"]
        if method not in ("GET", "HEAD", "POST"):
            return None
        form = _BRANCH if method == "POST" else _REF
        match = form.fullmatch(scope["path"])
        path = None if match is None else _path_of(scope["query_string"], method)
        if match is None or path is None:
            return None
        request = Request(scope, receive)
        if "\0" in scope["path"] or not self._has_plain_body(request):
            return None
        repository, revision = (text.replace(SLASH, "/") for text in match.groups())
        return _Plain(request, self._routes[method, _FORMATS[form]], repository, revision, path)

    def _has_plain_body(self, request: Request) -> bool:
        if request.method != "POST":
            has_none = request.headers.get("content-length", "0") == "0"
            return has_none and "transfer-encoding" not in request.headers
        declared = declared_bytes(request) or 0
        is_allowed = declared <= self._store.settings.server_upload_max
        is_plain = is_small(request) and not is_form(request.headers.get("content-type"))
        return is_plain and is_allowed

    async def _response(self, plain: _Plain) -> Response:
        if plain.request.method != "POST":
            # A database in this process answers faster than a thread is woken.
            if not self._store.metadata.answers_at_once():
                return await anyio.to_thread.run_sync(lambda: self._read(plain, self._quick(plain)))
            quick = self._quick(plain)
            if quick is not None and plain.request.method == "GET":
                cached = in_memory(quick.found, bytes_max=downloads.WHOLE_BYTES_MAX)
                if cached is not None:
                    return downloads.answer(cached, _options(plain), plain.path)
            return await anyio.to_thread.run_sync(self._read, plain, quick)
        data = await whole_body(plain.request.stream())
        transfers = plain.request.app.state.transfers
        return await anyio.to_thread.run_sync(partial(self._upload, plain, data), limiter=transfers)

    def _quick(self, plain: _Plain) -> QuickRead | None:
        """Finds the object of a request in the usual way, if its key may read everything."""
        header = plain.request.headers.get("authorization")
        if header is None:
            return None
        try:
            access_key_id, secret = parse_basic(header)
            place = (plain.repository, plain.revision, plain.path)
            quick = self._store.quick_reads.find(access_key_id, *place, is_right=same_as(secret))
        except EbbtideError:
            return None  # the long way says what is wrong
        if quick is None or not quick.key.role.allows(Role(plain.route.role)):
            return None
        plain.request.scope[PRINCIPAL] = quick.key
        self._name(plain)
        return quick

    def _read(self, plain: _Plain, quick: QuickRead | None) -> Response:
        options, is_whole = _options(plain), plain.request.method == "GET"
        if quick is not None:
            read = downloads.answer if is_whole else downloads.head_unpurged
            return read(quick.found, options, plain.path)
        served = self._authorized(plain)
        route = objects.get_object if is_whole else objects.head_object
        return route(plain.repository, plain.revision, plain.path, served, options)

    def _upload(self, plain: _Plain, data: bytes) -> Response:
        served = self._authorized(plain)
        put = storing(plain.request, served, plain.repository, plain.revision, plain.path)
        entry, root = put(data, plain.request.headers.get("content-type"))
        stats = objects.ObjectStats.of(entry, root)
        content = stats.model_dump_json(exclude_none=True)
        return Response(content, plain.route.status_code or 200, media_type="application/json")

    def _authorized(self, plain: _Plain) -> Served:
        """Finds the key of a request, and checks its role.

        Raises Denied `key_invalid`, `request_forged` or `role_missing`.
        """
        scope, store = plain.request.scope, self._store
        scope[PRINCIPAL] = identify(scope, store.keys, store.sessions)
        self._name(plain)
        rights_of(scope, store).require(Role(plain.route.role), scope["path_params"])
        return Served(plain.request)

    def _name(self, plain: _Plain) -> None:
        """Lets metrics and spans name the route from here on, as if FastAPI had found it."""
        scope = plain.request.scope
        scope["route"], scope["path_params"] = plain.route, {"repository": plain.repository}


def _options(plain: _Plain) -> DownloadOptions:
    headers = plain.request.headers
    return DownloadOptions(
        headers.get("range"), headers.get("if-none-match"), headers.get("if-modified-since")
    )


def _path_of(query: bytes, method: str) -> str | None:
    """Returns the path in a query. None if the query has other parameters. A read may have the
    parameter `presign` with its default."""
    pairs = parse_qsl(query.decode("latin-1"), keep_blank_values=True)
    if method != "POST" and _NOT_PRESIGNED in pairs:
        pairs.remove(_NOT_PRESIGNED)
    if len(pairs) != 1:
        return None
    ((name, value),) = pairs
    return value if name == "path" and "\0" not in value else None
