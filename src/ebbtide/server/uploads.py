"""Uploads through the server: stores the body of a request as an object, and streams the part of a
form (RFC 7578) that is the object. Not for: how the bytes reach the store (`bodies`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from itertools import chain
from typing import Final, TypeGuard, TypeVar

from fastapi import Request
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from ebbtide.errors import InvalidInput
from ebbtide.server.bodies import limited, store_upload
from ebbtide.server.serving import Served
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


PART: Final = b"content"
HEADER_BYTES_MAX: Final = 16 * 1024
FIELD_BYTES_MAX: Final = 64 * 1024
"""The limit for all fields together, in bytes."""


@dataclass(slots=True)
class _Part:
    headers: dict[bytes, bytes] = field(default_factory=dict)
    name: bytes = b""
    value: bytes = b""
    field: str | None = None


class FormBody:
    """Reads the part named `content` of a form.

    `content_type`, `filename` and the `fields` before the part are set when its first bytes arrive.
    Without `with_fields` all other parts are ignored.
    """

    def __init__(self, content_type: str, *, with_fields: bool = False) -> None:
        kind, options = parse_options_header(content_type)
        boundary = options.get(b"boundary")
        if kind != b"multipart/form-data" or not boundary:
            raise _invalid("the form has no boundary")
        self.content_type: str | None = None
        self.filename = ""
        self.fields: dict[str, str] = {}
        self._with_fields = with_fields
        self._field_bytes = 0
        self._held: list[bytes] = []
        self._part = _Part()
        self._header_bytes = 0
        self._found = False
        self._taking = False
        self._ended = False
        self._pieces: list[bytes] = []
        self._parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._begin,
                "on_header_field": self._header_name,
                "on_header_value": self._header_value,
                "on_header_end": self._header_end,
                "on_headers_finished": self._headers_end,
                "on_part_data": self._data,
                "on_part_end": self._part_end,
                "on_end": self._end,
            },
        )

    async def read(self, body: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """Yields the bytes of the part. Raises InvalidInput `invalid_argument`, `upload_broken`."""
        async for piece in body:
            try:
                self._parser.write(piece)
            except (FormParserError, ValueError):
                raise _invalid("the form cannot be understood") from None
            taken, self._pieces = self._pieces, []
            for part in taken:
                yield part
        if not self._ended:
            raise InvalidInput("upload_broken", "the form ends before its last boundary")
        if not self._found:
            raise _invalid(f"the form has no part named {PART.decode()!r}")

    def _begin(self) -> None:
        self._part = _Part()
        self._taking = False

    def _header_name(self, data: bytes, start: int, end: int) -> None:
        self._count(end - start)
        self._part.name += data[start:end]

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self._count(end - start)
        self._part.value += data[start:end]

    def _header_end(self) -> None:
        self._part.headers[self._part.name.lower()] = self._part.value
        self._part.name = self._part.value = b""

    def _headers_end(self) -> None:
        _, options = parse_options_header(self._part.headers.get(b"content-disposition", b""))
        name = options.get(b"name", b"")
        if name != PART:
            if self._with_fields and not self._found:
                self._part.field = name.decode("utf-8", "replace")
            return
        if self._found:
            raise _invalid(f"the form has two parts named {PART.decode()!r}")
        self._found = self._taking = True
        given = self._part.headers.get(b"content-type")
        self.content_type = None if given is None else given.decode("latin-1")
        self.filename = options.get(b"filename", b"").decode("utf-8", "replace")

    def _data(self, data: bytes, start: int, end: int) -> None:
        if self._taking:
            self._pieces.append(data[start:end])
        elif self._part.field is not None:
            self._field_bytes += end - start
            if self._field_bytes > FIELD_BYTES_MAX:
                raise _invalid("the fields of the form are too long")
            self._held.append(data[start:end])

    def _part_end(self) -> None:
        if self._part.field is not None:
            self.fields[self._part.field] = b"".join(self._held).decode("utf-8", "replace")
            self._held = []

    def _end(self) -> None:
        self._ended = True

    def _count(self, size: int) -> None:
        self._header_bytes += size
        if self._header_bytes > HEADER_BYTES_MAX:
            raise _invalid("the headers of the form's parts are too long")


def _invalid(text: str) -> InvalidInput:
    return InvalidInput("invalid_argument", text)
