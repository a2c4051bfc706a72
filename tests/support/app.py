"""The server in this process, for tests that set its clock."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import httpx
from anyio.from_thread import BlockingPortal, start_blocking_portal
from fastapi import FastAPI

from ebbtide.server.api.routes import PREFIX
from ebbtide.server.app import create_app
from ebbtide.store.access.access_keys import Role
from ebbtide.store.embedded import Store


class InProcess(httpx.BaseTransport):
    """Brings requests to an application that runs in an event loop of its own."""

    def __init__(self, app: FastAPI, portal: BlockingPortal) -> None:
        self._transport = httpx.ASGITransport(app)
        self._portal = portal

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        request.read()
        return self._portal.call(self._send, request)

    async def _send(self, request: httpx.Request) -> httpx.Response:
        answer = await self._transport.handle_async_request(request)
        content = await answer.aread()
        return httpx.Response(answer.status_code, headers=answer.headers, content=content)


@contextmanager
def serving(store: Store) -> Iterator[httpx.Client]:
    made = store.keys.create(Role.ADMIN, name="test")
    with asking(create_app(store), (made.key.access_key_id, made.secret)) as client:
        yield client


@contextmanager
def asking(app: FastAPI, key: tuple[str, str]) -> Iterator[httpx.Client]:
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(app.router.lifespan_context(app)),
        httpx.Client(
            transport=InProcess(app, portal),
            base_url=f"http://test{PREFIX}",
            auth=key,
        ) as client,
    ):
        yield client
