"""Bodies on their way between clients and the store, in bounded memory.

The store takes and gives bytes in threads; the server sends and receives them in its event loop. An
upload passes through a short queue, which stops the client when the storage is slow. Not for: how
much a client may send (`limits`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Final, TypeVar

import anyio
import anyio.from_thread
import anyio.to_thread
from anyio.lowlevel import EventLoopToken, current_token
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from starlette.requests import ClientDisconnect, Request

from ebbtide.errors import EbbtideError, InvalidInput
from ebbtide.server.limits import declared_bytes
from ebbtide.storage import Content

PIECE_BYTES: Final = 1024 * 1024
"""What is passed on at once; a body that is no longer goes in one."""
PIECES_QUEUED: Final = 2
DRAINED_BYTES_MAX: Final = 8 * 1024 * 1024
"""What is still read of an upload that failed, so that the client gets to reading the answer."""

Result = TypeVar("Result")


@dataclass(slots=True)
class _Arrival:
    """How the body came: `complete` once its end was seen, else perhaps why not."""

    complete: bool = False
    error: EbbtideError | None = None

    def require_complete(self) -> None:
        if self.error is not None:
            raise self.error
        if not self.complete:
            raise InvalidInput(
                "upload_broken", "the upload ended before all of it had come: nothing was stored"
            )


async def store_upload(
    request: Request,
    body: AsyncIterator[bytes],
    put: Callable[[Content], Result],
    limiter: anyio.CapacityLimiter,
) -> Result:
    """Call `put` in a thread with the body, and answer what it answers.

    A body that breaks off is an error to `put`, as if the bytes could not be read.
    """
    declared = declared_bytes(request)
    if declared is not None and declared <= PIECE_BYTES:
        data = await _whole(body)
        return await anyio.to_thread.run_sync(put, data, limiter=limiter)
    arrival = _Arrival()
    outcome: list[Result] = []
    failure: list[BaseException] = []
    send, receive = anyio.create_memory_object_stream[bytes](PIECES_QUEUED)
    loop = current_token()

    def work() -> None:
        # Errors are carried by hand: a task group would wrap them.
        try:
            outcome.append(put(_pieces(receive, arrival, loop)))
        except BaseException as error:  # noqa: BLE001 - raised again below
            failure.append(error)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_feed, body, send, arrival)
        await anyio.to_thread.run_sync(work, limiter=limiter)
        receive.close()
    if failure:
        raise failure[0]
    return outcome[0]


async def _whole(body: AsyncIterator[bytes]) -> bytes:
    try:
        return b"".join([piece async for piece in body])
    except ClientDisconnect:
        raise InvalidInput("upload_broken", "the upload ended before all of it had come") from None


async def _feed(
    body: AsyncIterator[bytes], send: MemoryObjectSendStream[bytes], arrival: _Arrival
) -> None:
    """Queue the body in pieces. Ends early when nobody takes them any more."""
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
    """The same bytes in pieces of PIECE_BYTES or a little more: each costs a change of threads."""
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
    """What was queued, in whatever thread takes it: the store has threads of its own."""
    while True:
        try:
            yield anyio.from_thread.run(receive.receive, token=loop)
        except anyio.EndOfStream:
            arrival.require_complete()
            return
