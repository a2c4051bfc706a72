"""Passes bodies between clients and the store, in bounded memory, and limits their size.

The store reads and writes bytes in threads; the server sends and receives them in its event loop.
An upload passes through a short queue, which makes the client wait when the storage is slow.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import anyio
import anyio.from_thread
import anyio.to_thread
from anyio.lowlevel import EventLoopToken, current_token
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from starlette.requests import ClientDisconnect, Request
from starlette.types import Message

from ebbtide.errors import EbbtideError, InvalidInput
from ebbtide.storage import Content
from ebbtide.storage.base import SizedPieces
from ebbtide.strict_json import unique_keys

WHOLE_BYTES_MAX: Final = 1024 * 1024
"""A body of at most this size is passed on as a whole."""
SMALL_BYTES_MAX: Final = 64 * 1024
"""A body of at most this size (bytes) may be received before the client is known. uvicorn receives
as many bytes of any request."""
PIECE_BYTES: Final = 256 * 1024
"""The size of the pieces of a larger body, in bytes. Some ten pieces of each upload are in
memory."""
PIECES_QUEUED: Final = 2
DRAINED_BYTES_MAX: Final = 8 * 1024 * 1024
"""How many bytes of a failed upload are still read, so that the client can read the answer."""

Result = TypeVar("Result")


@dataclass(slots=True)
class _Arrival:
    """The arrival of a body. `complete` is true when its end was received; `error` is the error
    that stopped it, if any."""

    complete: bool = False
    error: EbbtideError | None = None

    def require_complete(self) -> None:
        if self.error is not None:
            raise self.error
        if not self.complete:
            raise InvalidInput(
                "upload_broken", "the upload ended before all its bytes arrived: nothing was stored"
            )


async def store_upload(
    request: Request,
    body: AsyncIterator[bytes],
    put: Callable[[Content], Result],
    limiter: anyio.CapacityLimiter,
) -> Result:
    """Calls `put` in a thread with the body of a request; returns its result.

    If the body ends early, the error is InvalidInput `upload_broken`. A body of more than
    WHOLE_BYTES_MAX, or of unknown length, arrives while `put` reads it. The error is then raised
    within `put`, as if the bytes could not be read.
    """
    declared = declared_bytes(request)
    if declared is not None and declared <= WHOLE_BYTES_MAX:
        data = await whole_body(body)
        return await anyio.to_thread.run_sync(put, data, limiter=limiter)
    arrival = _Arrival()
    outcome: list[Result] = []
    failure: list[BaseException] = []
    send, receive = anyio.create_memory_object_stream[bytes](PIECES_QUEUED)
    loop = current_token()

    def work() -> None:
        # Errors are passed in a list: a task group would wrap them in an exception group.
        try:
            pieces = _pieces(receive, arrival, loop)
            outcome.append(put(pieces if declared is None else SizedPieces(pieces, declared)))
        except BaseException as error:  # noqa: BLE001 - raised again below
            failure.append(error)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_feed, body, send, arrival)
        await anyio.to_thread.run_sync(work, limiter=limiter)
        receive.close()
    if failure:
        raise failure[0]
    return outcome[0]


def is_small(request: Request) -> bool:
    """Whether the body of a request has at most SMALL_BYTES_MAX, and can be received at once. A
    client that sends `Expect` may be waiting for an answer before it sends the body."""
    declared = declared_bytes(request)
    is_waiting = "expect" in request.headers or "transfer-encoding" in request.headers
    return not is_waiting and declared is not None and declared <= SMALL_BYTES_MAX


async def whole_body(body: AsyncIterator[bytes]) -> bytes:
    """Returns a body that has an end and is small. Raises InvalidInput `upload_broken`."""
    try:
        return b"".join([piece async for piece in body])
    except ClientDisconnect:
        raise InvalidInput(
            "upload_broken", "the upload ended before all its bytes arrived"
        ) from None


async def _feed(
    body: AsyncIterator[bytes], send: MemoryObjectSendStream[bytes], arrival: _Arrival
) -> None:
    """Puts the body into the queue, in pieces. Ends early if the reader has closed the queue."""
    async with send:
        try:
            async for piece in _gathered(body):
                await send.send(piece)
            arrival.complete = True
        except ClientDisconnect:
            return
        except EbbtideError as error:
            arrival.error = error
        except anyio.BrokenResourceError:
            await _drain(body)


async def _gathered(body: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Joins the bytes to pieces of PIECE_BYTES or a little more: each piece costs a switch of
    threads."""
    held: list[bytes] = []
    size = 0
    async for piece in body:
        held.append(piece)
        size += len(piece)
        if size >= PIECE_BYTES:
            yield b"".join(held)
            held, size = [], 0
    if held:
        yield b"".join(held)


async def _drain(body: AsyncIterator[bytes]) -> None:
    taken = 0
    try:
        async for piece in body:
            taken += len(piece)
            if taken > DRAINED_BYTES_MAX:
                return
    except (ClientDisconnect, EbbtideError):
        return


def _pieces(
    receive: MemoryObjectReceiveStream[bytes], arrival: _Arrival, loop: EventLoopToken
) -> Iterator[bytes]:
    """Yields the pieces from the queue. Works in any thread, because the store reads in threads of
    its own."""
    while True:
        try:
            yield anyio.from_thread.run(receive.receive, token=loop)
        except anyio.EndOfStream:
            arrival.require_complete()
            return


class StrictRequest(Request):
    """A request whose JSON body must not repeat a key within one object."""

    async def json(self) -> Any:  # any JSON value
        """Returns the value of the body. Raises InvalidInput `invalid_argument`,
        JSONDecodeError."""
        hook = unique_keys("invalid_argument", "the request's body")
        return json.loads(await self.body(), object_pairs_hook=hook)


def limited(request: Request, bytes_max: int) -> Request:
    """Returns the same request with a limit: reading more than `bytes_max` bytes of its body raises
    InvalidInput `too_large`. A declared length above the limit raises it at once."""
    declared = declared_bytes(request)
    if declared is not None and declared > bytes_max:
        raise too_large(bytes_max)
    taken = 0

    async def receive() -> Message:
        nonlocal taken
        message = await request.receive()
        taken += len(message.get("body", b""))
        if taken > bytes_max:
            raise too_large(bytes_max)
        return message

    return StrictRequest(request.scope, receive)


def declared_bytes(request: Request) -> int | None:
    """Returns the length of the body that the client declares; None if it declares none."""
    text = request.headers.get("content-length", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else None


def too_large(bytes_max: int) -> InvalidInput:
    """Returns the error for a body above a limit."""
    return InvalidInput("too_large", f"the request has more than {bytes_max} bytes")
