"""A proxy on the loopback address before a storage's server, that answers some requests with 503,
holds others up, or changes what an answer says.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Final

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tests.support.postgres import free_port

SLOW_DOWN: Final = (
    '<?xml version="1.0" encoding="UTF-8"?>'
    "<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
)
METHODS: Final = ["GET", "HEAD", "PUT", "POST", "DELETE"]
_BETWEEN_TWO: Final = frozenset({"connection", "keep-alive", "transfer-encoding", "content-length"})
"""Headers that are of one connection alone."""


@dataclass
class Proxy:
    """Can be changed at any time. `counts` are requests by method, `refused` answers of 503."""

    target: str
    busy_share: float = 0.0
    delay_seconds: float = 0.0
    seed: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    refused: int = 0
    endpoint: str = ""
    seeing: Callable[[str, str], object] | None = None  # called with method and path
    spoiling: Callable[[str, str, bytes], bytes] | None = None  # with method, path and the body
    is_length_kept: bool = False
    """Whether an answer that is spoiled still says how long it was."""

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def app(self) -> Starlette:
        @asynccontextmanager
        async def lifespan(app: Starlette) -> AsyncIterator[None]:
            limits = httpx.Limits(max_connections=100)
            async with httpx.AsyncClient(timeout=120, limits=limits) as client:
                app.state.client = client
                yield

        routes = [Route("/{path:path}", self._answer, methods=METHODS)]
        return Starlette(routes=routes, lifespan=lifespan)

    async def _answer(self, request: Request) -> Response:
        body = await request.body()
        self.counts[request.method] += 1
        if self.seeing is not None:
            self.seeing(request.method, str(request.url))
        if self._random.random() < self.busy_share:
            self.refused += 1
            return Response(SLOW_DOWN, 503, media_type="application/xml")
        await asyncio.sleep(self.delay_seconds)
        client: httpx.AsyncClient = request.app.state.client
        # As it came: what is signed is the path as it is spelled, and the host.
        raw_path = request.scope["raw_path"] + b"?" * bool(request.scope["query_string"])
        url = httpx.URL(self.target).copy_with(raw_path=raw_path + request.scope["query_string"])
        headers = [(k, v) for k, v in request.headers.raw if k.decode() not in _BETWEEN_TWO]
        found = await client.request(request.method, url, headers=headers, content=body)
        content = found.content
        if self.spoiling is not None and found.status_code < 300:
            content = self.spoiling(request.method, str(request.url), content)
        answer = Response(b"" if request.method == "HEAD" else content, found.status_code)
        answer.raw_headers = [
            (k.lower(), v) for k, v in found.headers.raw if k.decode().lower() not in _BETWEEN_TWO
        ]
        length = found.headers.get("content-length", str(len(found.content)))
        if content != found.content and not self.is_length_kept:
            length = str(len(content))
        answer.raw_headers.append((b"content-length", length.encode()))
        return answer


@contextmanager
def proxied(target: str, **options: float) -> Iterator[Proxy]:
    proxy = Proxy(target, **options)  # type: ignore[arg-type]
    port = free_port()
    proxy.endpoint = f"http://127.0.0.1:{port}"
    config = uvicorn.Config(proxy.app(), host="127.0.0.1", port=port, log_level="error")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        while not server.started:
            if not thread.is_alive():
                raise RuntimeError("the proxy did not start")
            thread.join(0.05)
        yield proxy
    finally:
        server.should_exit = True
        thread.join(30)
