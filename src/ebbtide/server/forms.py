"""Uploads as forms (RFC 7578): streams the part that is the object, and keeps the fields that come
before this part."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Final

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from ebbtide.errors import InvalidInput

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
