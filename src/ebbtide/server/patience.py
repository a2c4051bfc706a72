"""Answers to requests that take long: white space keeps the client waiting.

The answer begins with status 200 before the work has ended. Not for: the forms of answers; each
form is a subclass.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable
from typing import ClassVar, Final, Generic, TypeVar

import anyio
import anyio.to_thread
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

INTERVAL_SECONDS: Final = 10.0
logger = logging.getLogger(__name__)
Result = TypeVar("Result")


class Patient(Response, Generic[Result]):
    """Runs `work` in a thread, and sends its result."""

    opening: ClassVar[bytes] = b""
    """What an answer begins with, before its white space."""

    def __init__(
        self,
        work: Callable[[], Result],
        *,
        limiter: anyio.CapacityLimiter,
        interval_seconds: float = INTERVAL_SECONDS,
    ) -> None:
        super().__init__()
        self._work = work
        self._limiter = limiter
        self._interval_seconds = interval_seconds
        self._result: Result | None = None
        self._failure: Exception | None = None

    @abstractmethod
    def whole(self, result: Result) -> Response:
        """Returns the answer of work that was quick."""

    @abstractmethod
    def late(self, result: Result) -> bytes:
        """Returns the result as it follows the white space."""

    @abstractmethod
    def late_failure(self, failure: Exception) -> bytes:
        """Returns the error as it follows the white space. If it raises, the server closes the
        connection in the middle of the answer."""

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
        if self._failure is not None:
            if not is_started:
                raise self._failure
            await _body(send, self.late_failure(self._failure), more=False)
            return
        assert self._result is not None
        if is_started:
            await _body(send, self.late(self._result), more=False)
        else:
            await self.whole(self._result)(scope, receive, send)

    async def _run(self, done: anyio.Event) -> None:
        # An error is kept: a task group would wrap it in an exception group.
        try:
            self._result = await anyio.to_thread.run_sync(self._work, limiter=self._limiter)
        except Exception as error:  # noqa: BLE001 - raised, or told in the answer
            self._failure = error
        finally:
            done.set()

    async def _wait_more(self, send: Send, *, is_started: bool) -> None:
        if not is_started:
            headers = [(b"content-type", str(self.media_type).encode())]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await _body(send, self.opening, more=True)
        await _body(send, b" ", more=True)


class PatientJson(Patient[bytes]):
    """An answer whose work returns JSON."""

    media_type = "application/json"

    def whole(self, result: bytes) -> Response:
        """Returns the answer of work that was quick."""
        return Response(result, media_type=self.media_type)

    def late(self, result: bytes) -> bytes:
        """Returns the JSON: white space before it is allowed (RFC 8259, 2)."""
        return result

    def late_failure(self, failure: Exception) -> bytes:
        """Raises the failure. Clients trust the status 200, and do not look for an error in the
        body: only an answer that breaks off tells them."""
        logger.error("a request failed after its answer began: %s", failure)
        raise failure


async def _body(send: Send, data: bytes, *, more: bool) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": more})
