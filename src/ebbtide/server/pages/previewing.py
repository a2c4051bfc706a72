"""Decides how a page shows a file: as an image, a table, text, or not at all.

The first bytes decide, not the name alone: names and types are the claims of whoever uploaded the
file. Not for: parsing tables (`tables`), or HTML.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

from ebbtide.server.pages.tables import FirstRows, TableKind, TableUnreadable, read_first_rows
from ebbtide.store.content.entries import Entry
from ebbtide.store.objects.objects import Readable

HEAD_BYTES: Final = 16
TEXT_BYTES_MAX: Final = 64 * 1024
IMAGE_BYTES_MAX: Final = 20 * 1024 * 1024
_UNSPECIFIC: Final = ("", "application/octet-stream", "binary/octet-stream")
"""Content types that say nothing about the content."""
_TABLES: Final[dict[str, TableKind]] = {
    "text/csv": "csv",
    "text/tab-separated-values": "tsv",
    ".csv": "csv",
    ".tsv": "tsv",
}


@dataclass(frozen=True, slots=True)
class FilePreview:
    """What a page shows of a file. `text` is cut if `is_cut`. `note` says why a file is not shown,
    or not shown as a table."""

    kind: Literal["image", "table", "text", "none"]
    text: str = ""
    is_cut: bool = False
    table: FirstRows | None = None
    note: str = ""


def preview(found: Readable) -> FilePreview:
    """Returns how an object is shown. Reads a bounded part of its bytes. Raises the errors of
    `Objects.stream`."""
    entry = found.entry
    head = read_range(found, 0, TEXT_BYTES_MAX)
    if image_type(head, entry) is not None:
        if entry.size_bytes <= IMAGE_BYTES_MAX:
            return FilePreview("image")
        return FilePreview("none", note=f"The image has more than {IMAGE_BYTES_MAX:,} bytes.")
    text = decode_text(head, is_cut=entry.size_bytes > len(head))
    kind = _table_kind(head, entry, is_text=text is not None)
    note = ""
    if kind is not None:
        try:
            table = read_first_rows(
                kind, entry.size_bytes, lambda start, end: read_range(found, start, end)
            )
            return FilePreview("table", table=table)
        except TableUnreadable as error:
            note = f"The file is not shown as a table: {error}."
    if text is None:
        return FilePreview("none", note=note or "The file is neither text, nor an image or table.")
    return FilePreview("text", text=text, is_cut=entry.size_bytes > len(head), note=note)


def image_type(head: bytes, entry: Entry) -> str | None:
    """Returns the type of an image by its first bytes; None if the file is no image, or was
    uploaded as something else. SVG is no image here, because it can have scripts."""
    given = (entry.content_type or "").partition(";")[0].strip().lower()
    if given not in _UNSPECIFIC and not given.startswith("image/"):
        return None
    if head.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if head.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if head.startswith((b"GIF87a", b"GIF89a")):
        return "image/gif"
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "image/webp"
    return None


def decode_text(data: bytes, *, is_cut: bool) -> str | None:
    """Returns bytes as text; None if they are not UTF-8 text. If `is_cut`, the last character may
    be incomplete."""
    if b"\0" in data:
        return None
    try:
        return codecs.getincrementaldecoder("utf-8")().decode(data, final=not is_cut)
    except UnicodeDecodeError:
        return None


def read_range(found: Readable, start: int, end: int) -> bytes:
    """Returns the bytes of an object from `start` to before `end`, or to its end. Raises the errors
    of `Objects.stream`."""
    end = min(end, found.entry.size_bytes)
    return b"".join(found.stream(start=start, end=end)) if end > start else b""


def _table_kind(head: bytes, entry: Entry, *, is_text: bool) -> TableKind | None:
    if head.startswith(b"PAR1") and entry.size_bytes > 2 * HEAD_BYTES:
        return "parquet"
    if not is_text or not head:
        return None
    given = (entry.content_type or "").partition(";")[0].strip().lower()
    by_name: Callable[[str], bool] = entry.path.lower().endswith
    return next((kind for name, kind in _TABLES.items() if name == given or by_name(name)), None)
