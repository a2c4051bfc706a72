"""Uploads through the server: stores the body of a request as an object. Not for: how the bytes
reach the store (`streaming`)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from itertools import chain
from typing import Final, TypeGuard, TypeVar

from fastapi import Request

from ebbtide.errors import InvalidInput
from ebbtide.server.forms import FormBody
from ebbtide.server.limits import limited
from ebbtide.server.serving import Served
from ebbtide.server.streaming import store_upload
from ebbtide.storage import Content
from ebbtide.storage.base import chunks
from ebbtide.store.content.entries import Entry
from ebbtide.store.names import check_path
from ebbtide.store.staging.uploads import OnlyIf

METADATA_PREFIXES: Final = {"x-lakefs-meta-": "", "x-lakefs-internal-": "::lakefs::"}
"""Maps prefixes of headers to the prefixes of the metadata names that are stored. Command-line
clients attach metadata of their own under the second prefix."""
FORM: Final = "multipart/form-data"

Result = TypeVar("Result")


async def receive(
    request: Request, served: Served, repository: str, branch: str, path: str
) -> tuple[Entry, str]:
    """Stores the body of a request at the path; returns the entry, and the root URL of its
    repository."""
    put = storing(request, served, repository, branch, path)
    return await receive_body(request, served, put)


def storing(
    request: Request, served: Served, repository: str, branch: str, path: str
) -> Callable[[Content, str | None], tuple[Entry, str]]:
    """Returns the function that stages bytes of a content type at the path, for threads. It returns
    as `receive` does.

    Raises InvalidInput `invalid_path` or `invalid_argument` if the request is wrong.
    """
    check_path(path)
    _refuse_storage_class(request)
    only_if = condition(request)
    metadata = metadata_of(request)

    def put(data: Content, content_type: str | None) -> tuple[Entry, str]:
        found = served.repository(repository)
        entry = found.objects.put(
            branch,
            path,
            data,
            content_type=content_type,
            metadata=metadata,
            only_if=only_if,
        )
        return entry, found.info.storage_url

    return put


async def receive_body(
    request: Request, served: Served, put: Callable[[Content, str | None], Result]
) -> Result:
    """Calls `put` in a thread with the uploaded bytes and their type; returns its result. The body
    is either the bytes themselves, or a form with them."""
    given_type = request.headers.get("content-type")
    if is_form(given_type):
        form = FormBody(given_type)
        return await receive_form(request, served, form, lambda data: put(data, form.content_type))
    request = limited(request, served.settings.server_upload_max)
    return await store_upload(
        request, request.stream(), lambda data: put(data, given_type), request.app.state.transfers
    )


async def receive_form(
    request: Request, served: Served, form: FormBody, put: Callable[[Content], Result]
) -> Result:
    """Calls `put` in a thread with the bytes of the form's file; returns its result. The fields
    that precede the file are known when `put` is called."""
    request = limited(request, served.settings.server_upload_max)
    body: AsyncIterator[bytes] = form.read(request.stream())
    transfers = request.app.state.transfers
    return await store_upload(request, body, lambda data: put(_begun(data)), transfers)


def is_form(content_type: str | None) -> TypeGuard[str]:
    """Whether a body of that content type is a form with parts."""
    return content_type is not None and content_type.lower().startswith(FORM)


def _begun(data: Content) -> Content:
    """Waits for the first piece; returns the same bytes."""
    if isinstance(data, bytes):
        return data
    pieces = chunks(data)
    return chain([next(pieces, b"")], pieces)


def metadata_of(request: Request) -> dict[str, str]:
    """Returns the metadata that the request's headers attach to an object. Names are lower-case in
    HTTP."""
    return {
        stored + name.removeprefix(prefix): _decoded(value)
        for name, value in request.headers.items()
        for prefix, stored in METADATA_PREFIXES.items()
        if name.startswith(prefix) and name != prefix
    }


def condition(request: Request) -> OnlyIf | None:
    """Returns the condition of an upload: `If-None-Match: *` or `If-Match: "CHECKSUM"`; None
    without one.

    Raises InvalidInput `invalid_argument`.
    """
    return parse_condition(request.headers.get("if-none-match"), request.headers.get("if-match"))


def parse_condition(if_none_match: str | None, if_match: str | None) -> OnlyIf | None:
    """Returns the condition that the values of the two headers express. Raises as `condition`."""
    if if_none_match is not None:
        if if_none_match.strip() != "*" or if_match is not None:
            raise InvalidInput(
                "invalid_argument",
                "give either If-None-Match: * or If-Match with a checksum",
            )
        return OnlyIf()
    return None if if_match is None else OnlyIf(if_match.strip().strip('"'))


def _refuse_storage_class(request: Request) -> None:
    """Raises InvalidInput `invalid_argument` if the request asks for a storage class."""
    given = request.query_params.get("storageClass") or request.headers.get("storageClass")
    if given:
        raise InvalidInput(
            "invalid_argument",
            "storageClass is not supported: leave it out, and choose the class by a rule of the "
            "bucket",
        )


def _decoded(value: str) -> str:
    """Decodes the value of a header, which is bytes: as UTF-8 if possible, else as Latin-1."""
    try:
        return value.encode("latin-1").decode()
    except UnicodeDecodeError:
        return value
