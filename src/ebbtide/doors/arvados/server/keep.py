"""Keep's routes: blocks by their hash, at the root of the server.

Source: Arvados's documentation, "Keep clients".
"""

from __future__ import annotations

from itertools import chain
from typing import Final

from starlette.concurrency import run_in_threadpool
from starlette.responses import PlainTextResponse, Response, StreamingResponse

from ebbtide.doors.arvados.server.cluster import STORAGE_CLASS
from ebbtide.doors.arvados.server.routes import ArvadosCall, ArvadosRoutes, answer_of
from ebbtide.doors.arvados.store.blocks import ReadBlock
from ebbtide.doors.arvados.store.manifests import BLOCK_BYTES_MAX
from ebbtide.errors import EbbtideError
from ebbtide.server.bodies import declared_bytes, limited, store_upload
from ebbtide.storage import Content
from ebbtide.store.access.access_keys import Role

routes = ArvadosRoutes()

REPLICAS: Final = 1
_OCTETS: Final = "application/octet-stream"
_FORBIDDEN: Final = ("token_invalid", "token_truncated", "token_key_retired", "token_expired")
"""Errors of a locator. Clients of Keep expect 403 for them, and 422 for wrong bytes."""


@routes.stream("PUT", "/{locator:segment}", Role.WRITER)
async def put_block(call: ArvadosCall) -> Response:
    """Stores a block, and answers with its signed locator and the number of its copies.

    Clients send the number of copies and the storage classes that they want. The storage decides
    about copies. So the answer always confirms one copy, of the class `default`.
    """
    md5 = call.name("locator").partition("+")[0]
    request = limited(call.request, BLOCK_BYTES_MAX)
    size_bytes = declared_bytes(request)
    holder = call.key.access_key_id

    def put(data: Content) -> str:
        return call.arvados().blocks.put(md5, data, holder=holder, size_bytes=size_bytes)

    locator = await store_upload(request, request.stream(), put, call.request.app.state.transfers)
    return PlainTextResponse(
        locator + "\n",
        headers={
            "X-Keep-Replicas-Stored": str(REPLICAS),
            "X-Keep-Storage-Classes-Confirmed": f"{STORAGE_CLASS}={REPLICAS}",
        },
    )


@routes.stream("GET", "/{locator:segment}", Role.READER)
async def get_block(call: ArvadosCall) -> Response:
    """Returns the bytes of a block. They are verified while they are sent: if they are damaged, the
    answer breaks off."""
    try:
        found = await run_in_threadpool(_read, call)
    except EbbtideError as error:
        return _refused(error)
    return StreamingResponse(
        found.pieces, headers={"Content-Length": str(found.size_bytes)}, media_type=_OCTETS
    )


@routes.stream("HEAD", "/{locator:segment}", Role.READER)
async def head_block(call: ArvadosCall) -> Response:
    """Returns the size of a block."""
    blocks, holder = call.arvados().blocks, call.key.access_key_id
    try:
        found = await run_in_threadpool(blocks.find, call.name("locator"), holder=holder)
    except EbbtideError as error:
        return _refused(error)
    size_bytes = 0 if found is None else found.size_bytes
    return Response(headers={"Content-Length": str(size_bytes)}, media_type=_OCTETS)


def _read(call: ArvadosCall) -> ReadBlock:
    """Returns a block, whose first piece has been read. So damage to a small block is an error with
    a status, and no answer that breaks off."""
    found = call.arvados().blocks.read(call.name("locator"), holder=call.key.access_key_id)
    first = next(found.pieces, b"")
    return ReadBlock(found.size_bytes, chain([first], found.pieces))


def _refused(error: EbbtideError) -> Response:
    answer = answer_of(error)
    if error.kind in _FORBIDDEN:
        answer.status_code = 403
    return answer
