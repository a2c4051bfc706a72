"""Answers to requests that take long: white space keeps the client waiting.

S3 answers CopyObject and CompleteMultipartUpload in the same way: with status 200, and, if the work
fails later, with an error as the document.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

import anyio
import anyio.to_thread
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ebbtide.errors import EbbtideError
from ebbtide.server.s3.call import answer
from ebbtide.server.s3.errors import code_of, error_element
from ebbtide.server.s3.markup import Markup, declaration

logger = logging.getLogger(__name__)

INTERVAL_SECONDS: Final = 10.0


class PatientAnswer(Response):
    """Runs `work` in a thread, and sends the document that it returns."""

    def __init__(
        self,
        work: Callable[[], Markup],
        *,
        resource: str,
        request_id: str,
        limiter: anyio.CapacityLimiter,
        interval_seconds: float = INTERVAL_SECONDS,
    ) -> None:
        super().__init__()
        self._work = work
        self._resource = resource
        self._request_id = request_id
        self._limiter = limiter
        self._interval_seconds = interval_seconds
        self._content: Markup | None = None
        self._failure: BaseException | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the answer. An early error is raised, as by any other request."""
        done = anyio.Event()
        is_started = False
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._run, done)
            while not done.is_set():
                with anyio.move_on_after(self._interval_seconds):
                    await done.wait()
                if not done.is_set():
                    await self._wait_more(send, is_started=is_started)
                    is_started = True
        if not is_started:
            if self._content is None:
                assert self._failure is not None
                raise self._failure
            await answer(self._content)(scope, receive, send)
            return
        await _body(send, self._late(), more=False)

    async def _run(self, done: anyio.Event) -> None:
        # An error is kept: a task group would wrap it in an exception group.
        try:
            self._content = await anyio.to_thread.run_sync(self._work, limiter=self._limiter)
        except Exception as error:  # noqa: BLE001 - raised, or told in the document
            self._failure = error
        finally:
            done.set()

    async def _wait_more(self, send: Send, *, is_started: bool) -> None:
        if not is_started:
            headers = [(b"content-type", b"application/xml")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await _body(send, declaration(), more=True)
        await _body(send, b" ", more=True)

    def _late(self) -> bytes:
        if self._content is not None:
            return self._content.encode()
        code, message = "InternalError", "a defect in this program: the server's log says more"
        if isinstance(self._failure, EbbtideError):
            code, message = code_of(self._failure), self._failure.message
        else:
            logger.error("a request failed after its answer began", exc_info=self._failure)
        return error_element(
            code, message, resource=self._resource, request_id=self._request_id
        ).encode()


async def _body(send: Send, data: bytes, *, more: bool) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": more})
