"""Arvados's interface of a process, as its clients see it: requests, statuses and tokens.

A request is answered in the thread that sends it, so that all of its steps are points of the
history. Not for: what the answers should be (`blocks`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, Final

import anyio.to_thread
import httpx
import pytest

from ebbtide.doors.arvados.server.door import ArvadosDoor
from ebbtide.doors.arvados.server.routes import PREFIX
from ebbtide.errors import EbbtideError
from ebbtide.server.api.routes import Segments
from ebbtide.store.access.access_keys import GivenKey, Role
from ebbtide.store.embedded import Store
from tests.simulation.scheduler import Violation

HOLDERS: Final = ("HOLDERONEHOLDERONE", "HOLDERTWOHOLDERTWO")
"""The ids of the keys that clients have."""
SECRET: Final = "secret-of-a-client"
COLLECTIONS: Final = f"{PREFIX}/collections"
STATUSES: Final[Mapping[str, int]] = {
    **dict.fromkeys(("token_invalid", "token_expired"), 422),
    **dict.fromkeys(("checksum_mismatch", "collection_exists", "trashed"), 422),
    **dict.fromkeys(("collection_not_found", "project_not_found", "repository_not_found"), 404),
    **dict.fromkeys(("storage_error", "database_error"), 503),
    **dict.fromkeys(("commit_expired", "data_released", "purged"), 410),
}
"""Of errors, as `docs/arvados.md` has them."""
FORBIDDEN: Final = 403
"""The status of a locator of a block that gives no right to read it."""


def make_holders(store: Store) -> None:
    """Makes the keys of clients."""
    for holder in HOLDERS:
        store.keys.create(Role.WRITER, given=GivenKey(holder, SECRET))


def in_place(patch: pytest.MonkeyPatch) -> None:
    """A server does in its event loop what it would do in other threads."""

    async def run_sync(function: Any, *arguments: Any, **_options: Any) -> Any:
        return function(*arguments)

    patch.setattr(anyio.to_thread, "run_sync", run_sync)


class Asking:
    """One process that serves a repository. Refusals are raised as the errors that they name."""

    def __init__(self, store: Store, repository: str) -> None:
        settings = store.settings.model_copy(update={"arvados_repository": repository})
        state = SimpleNamespace(store=store, settings=settings, transfers=None)
        self._transport = httpx.ASGITransport(Segments(ArvadosDoor(state)))

    def put(self, holder: str, md5: str, data: bytes) -> str:
        """Writes a block; its signed locator."""
        return self._ask(holder, "PUT", f"/{md5}", content=data).text.rstrip("\n")

    def read(self, holder: str, locator: str) -> bytes:
        answer = self._ask(holder, "GET", f"/{locator}")
        if answer.headers["content-length"] != str(len(answer.content)):
            raise Violation("answer", f"{locator} is said to have another size than it has")
        return answer.content

    def head(self, holder: str, locator: str) -> int | None:
        """The size of a block; None where it is forbidden."""
        answer = self._send(holder, "HEAD", f"/{locator}")
        if answer.status_code >= 500:
            raise EbbtideError("storage_error", "a block's size cannot be had")
        if answer.status_code not in (200, FORBIDDEN):
            raise Violation("answer", f"HEAD of a block is {answer.status_code}")
        return int(answer.headers["content-length"]) if answer.status_code == 200 else None

    def collection(
        self,
        holder: str,
        method: str,
        path: str = "",
        fields: Mapping[str, Any] | None = None,
        **parameters: bool,
    ) -> dict[str, Any]:
        """Makes, changes or gets a collection; its record."""
        given = {} if fields is None else {"json": {"collection": fields}}
        answer = self._ask(holder, method, f"{COLLECTIONS}{path}", params=parameters, **given)
        return dict(answer.json())

    def _ask(self, holder: str, method: str, path: str, **more: Any) -> httpx.Response:
        answer = self._send(holder, method, path, **more)
        if answer.status_code == 200:
            return answer
        said = answer.json()
        kind, is_locator = said["kind"], method == "GET" and not path.startswith(PREFIX)
        forbidden = is_locator and kind.startswith("token_")
        expected = FORBIDDEN if forbidden else STATUSES.get(kind, answer.status_code)
        if answer.status_code != expected or answer.status_code == 500:
            raise Violation("answer", f"{method} {path} is {answer.status_code}: {said}")
        raise EbbtideError(kind, said["errors"][0])

    def _send(self, holder: str, method: str, path: str, **more: Any) -> httpx.Response:
        headers = {"Authorization": f"Bearer v2/{holder}/{SECRET}"}
        request = httpx.Request(method, f"http://test{path}", headers=headers, **more)
        return asyncio.run(self._answer(request))

    async def _answer(self, request: httpx.Request) -> httpx.Response:
        try:
            answer = await self._transport.handle_async_request(request)
        except BaseExceptionGroup as several:  # of the tasks that send an answer
            raise several.exceptions[0] from None
        content = await answer.aread()
        return httpx.Response(answer.status_code, headers=answer.headers, content=content)
