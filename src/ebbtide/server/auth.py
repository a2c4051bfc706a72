"""The access key of a request, and what it may do: in the whole store, and in single repositories.

A request names its key by HTTP Basic, by the token of a login as a bearer token, or by the cookie
of a login. Headers say which site a browser's request comes from. A key has a role in the whole
store, and can have higher roles in single repositories. The database is asked for the latter only
if the former does not suffice.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping
from functools import cached_property
from urllib.parse import urlsplit

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from ebbtide.errors import Conflict, Denied, EbbtideError, NotFound
from ebbtide.server.errors import answer_of
from ebbtide.store.access.access_keys import AccessKey, AccessKeys, Role
from ebbtide.store.access.sessions import Session, Sessions
from ebbtide.store.embedded import Store
from ebbtide.store.repository import Repository

PRINCIPAL = "ebbtide.principal"
"""The entry of a request's scope that holds its access key."""


COOKIE = "internal_auth_session"
"""The cookie with the token of a login. lakeFS's specification has this name."""
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


class Authentication:
    """Refuses every request without a valid access key, except on public paths.

    It runs before the routes, so that unknown paths and methods are refused in the same way.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        keys: AccessKeys,
        sessions: Sessions,
        is_public: Callable[[str], bool],
    ) -> None:
        self._app = app
        self._keys = keys
        self._sessions = sessions
        self._is_public = is_public

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Finds the request's key and forwards the request."""
        if scope["type"] == "http" and not self._is_public(scope["path"]):
            try:
                scope[PRINCIPAL] = await run_in_threadpool(
                    identify, scope, self._keys, self._sessions
                )
            except EbbtideError as error:
                await answer_of(error)(scope, receive, send)
                return
        await self._app(scope, receive, send)


def identify(scope: Scope, keys: AccessKeys, sessions: Sessions) -> AccessKey:
    """Returns the key of a request. A cookie counts only without a header. For threads.

    Raises Denied `key_invalid` or `request_forged`.
    """
    request = HTTPConnection(scope)
    header = request.headers.get("authorization")
    cookie = request.cookies.get(COOKIE) if header is None else None
    if cookie is not None:
        # A browser sends cookies by itself, also if a page of another site made the request.
        if scope["method"] not in _SAFE_METHODS and is_foreign(request.headers):
            raise Denied("request_forged", "a page of another site sent the request")
        return _key_of_login(cookie, sessions)
    scheme, _, token = (header or "").partition(" ")
    if scheme.lower() == "bearer":
        return _key_of_login(token.strip(), sessions)
    return keys.authenticate(*parse_basic(header))


def _key_of_login(token: str, sessions: Sessions) -> AccessKey:
    session = sessions.find(token)
    if session is None:
        raise Denied("key_invalid", "the login does not exist, or has ended: log in again")
    return session.key


def principal_of(scope: Scope) -> AccessKey:
    """Returns the access key of a request. Raises Denied `key_invalid`."""
    found = scope.get(PRINCIPAL)
    if not isinstance(found, AccessKey):
        raise Denied("key_invalid", "this needs an access key")
    return found


def parse_basic(header: str | None) -> tuple[str, str]:
    """Returns the id and the secret of an `Authorization` header. Raises Denied `key_invalid`."""
    scheme, _, encoded = (header or "").partition(" ")
    if scheme.lower() != "basic":
        raise Denied("key_invalid", "this needs an access key, by HTTP Basic, or a login")
    try:
        text = base64.b64decode(encoded.strip(), validate=True).decode()
    except (binascii.Error, ValueError):
        raise Denied("key_invalid", "the header Authorization cannot be understood") from None
    access_key_id, colon, secret = text.partition(":")
    if not colon or "\0" in access_key_id:
        raise Denied("key_invalid", "the header Authorization cannot be understood")
    return access_key_id, secret


def set_cookie(
    request: Request, response: Response, session: Session, *, name: str, path: str
) -> None:
    """Sets a cookie with the token of a session.

    Scripts cannot read the cookie, and requests from other sites do not contain it. The browser
    sends it only to paths below `path`. If the request came over TLS, the browser never sends it
    over plain HTTP.
    """
    response.set_cookie(
        name,
        session.token,
        path=path,
        expires=session.expires_at,
        secure=request.url.scheme == "https",
        httponly=True,
        samesite="strict",
    )


def is_foreign(headers: Headers) -> bool:
    """Whether the headers `Sec-Fetch-Site` and `Origin` say that a page of another site sent the
    request. Programs that are no browsers send neither header."""
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    is_own_site = site in (None, "same-origin")
    is_own_origin = origin is None or _host_of(origin) == headers.get("host", "").lower()
    return not (is_own_site and is_own_origin)


def names_no_origin(headers: Headers) -> bool:
    """Whether the request has neither of the two headers."""
    return headers.get("sec-fetch-site") is None and headers.get("origin") is None


def _host_of(origin: str) -> str:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


RIGHTS = "ebbtide.rights"
"""The entry of a request's scope that holds its rights."""


class Rights:
    """The rights of one key during one request."""

    def __init__(self, key: AccessKey, store: Store) -> None:
        self.key = key
        self._store = store
        self.limited_to: str | None = None
        """The id of the repository that the request is limited to, because the key's role in the
        whole store did not suffice; None is no limit."""
        self._needed = Role.NONE

    @cached_property
    def granted(self) -> Mapping[str, Role]:
        """The roles in single repositories, by their ids: grants, and roles that the login gave.
        The higher of both counts."""
        found = self._store.grants.of(self.key.access_key_id)
        for repository_id, role in self.key.of_login.items():
            if not found.get(repository_id, Role.NONE).allows(role):
                found[repository_id] = role
        return found

    @property
    def readable_ids(self) -> frozenset[str] | None:
        """The ids of the repositories that the key may read; None if it may read all."""
        return None if self.key.role.allows(Role.READER) else frozenset(self.granted)

    def role_in(self, repository_id: str | None) -> Role:
        """Returns the higher of the roles in the whole store and in a repository."""
        if repository_id is None or self.key.role is Role.ADMIN:
            return self.key.role
        granted = self.granted.get(repository_id, Role.NONE)
        return granted if granted.allows(self.key.role) else self.key.role

    def require(self, needed: Role, named: Mapping[str, str]) -> None:
        """Checks the role in a repository. `named` is as in `id_of`; if it names none, the role in
        the whole store counts.

        Raises Denied `role_missing`, whether the repository exists or not.
        """
        if not self.key.role.allows(needed):
            repository_id = self.id_of(named)
            role = self.role_in(repository_id)
            if not role.allows(needed):
                raise self._denied(needed, role)
            self.limited_to = repository_id
            self._needed = needed

    def require_anywhere(self, needed: Role) -> None:
        """Checks that the key has the role in the whole store or in any repository. Raises Denied
        `role_missing`."""
        if not any(role.allows(needed) for role in (self.key.role, *self.granted.values())):
            raise self._denied(needed, self.key.role)

    def opened(self, repository: Repository) -> Repository:
        """Returns a repository that was opened by its name. Raises Denied `role_missing` if another
        repository got the name since the role was checked."""
        if self.limited_to not in (None, repository.info.repository_id):
            raise self._denied(self._needed, self.key.role)
        return repository

    def id_of(self, named: Mapping[str, str]) -> str | None:
        """Returns the id of the repository that parameters name: `repository` is its name or id,
        `project_id` and `collection_id` are in it. None if there is no such repository."""
        text = [named[name] for name in _NAMING if name in named]
        if not text or "\0" in text[0]:
            return None
        try:
            if "repository" in named:
                found = self._store.catalog.get(named["repository"], include_expired=True)
                return found.info.repository_id
            if "project_id" in named:
                return self._store.repository_of_project(text[0]).info.repository_id
            return self._store.repository_of_collection(text[0]).info.repository_id
        except (NotFound, Conflict):
            return None

    def _denied(self, needed: Role, role: Role) -> Denied:
        return Denied(
            "role_missing",
            f"access key {self.key.access_key_id} has the role {role}: this needs {needed}",
        )


_NAMING = ("repository", "project_id", "collection_id")


def rights_of(scope: Scope, store: Store) -> Rights:
    """Returns the rights of a request. Raises Denied `key_invalid`."""
    found = scope.get(RIGHTS)
    if not isinstance(found, Rights):
        scope[RIGHTS] = found = Rights(principal_of(scope), store)
    return found
