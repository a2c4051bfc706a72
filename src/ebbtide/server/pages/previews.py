"""Previews of files: as an image, a table, text, or not at all.

The first bytes decide, not the name alone: names and types are the claims of whoever uploaded the
file. A process of its own parses a table, because the file is from a user. That process has limits
on memory and processor time, and gets only the bytes that it asks for, up to a limit. It ends with
the page. Not for: HTML.
"""

from __future__ import annotations

import codecs
import io
import json
import resource
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final, Literal

import pyarrow as pa
import pyarrow.csv as pv
import pyarrow.parquet as pq

from ebbtide.processes import follow_parent
from ebbtide.server.jobs import fork_server
from ebbtide.store.content.entries import Entry
from ebbtide.store.objects.objects import Readable
from ebbtide.text import one_line

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


ROWS_MAX: Final = 100
COLUMNS_MAX: Final = 50
CELL_CHARACTERS_MAX: Final = 200
READ_BYTES_MAX: Final = 32 * 1024 * 1024
"""How many bytes of a file are read for one page."""
CSV_BYTES_MAX: Final = 1024 * 1024
SECONDS_MAX: Final = 15.0
MEMORY_BYTES_MAX: Final = 768 * 1024 * 1024
"""How much more address space than at its start the process may use."""
ANSWER_BYTES_MAX: Final = 16 * 1024 * 1024
BUFFER_BYTES: Final = 64 * 1024

TableKind = Literal["parquet", "csv", "tsv"]
ReadBytes = Callable[[int, int], bytes]
"""Returns the bytes from the first position to before the second one."""


class TableUnreadable(Exception):
    """Raised if a table cannot be shown. The text says why."""


@dataclass(frozen=True, slots=True)
class FirstRows:
    """The first rows of a table, as text. A cell without a value is None. `row_count` is the number
    of all rows, or None if it is not known. `column_count` is the number of all columns."""

    columns: tuple[tuple[str, str], ...]
    rows: tuple[tuple[str | None, ...], ...]
    row_count: int | None
    column_count: int


def read_first_rows(kind: TableKind, size_bytes: int, read: ReadBytes) -> FirstRows:
    """Returns the first rows of a table of `size_bytes` bytes. Raises TableUnreadable, and the
    errors of `read`."""
    forks = fork_server()
    ours, theirs = forks.Pipe()
    process = forks.Process(target=_work, args=(kind, size_bytes, theirs), name="table")
    process.start()
    theirs.close()
    try:
        with ours:
            return _first_rows(_answer(ours, size_bytes, read))
    finally:
        process.kill()
        process.join()


def _answer(connection: Connection, size_bytes: int, read: ReadBytes) -> Mapping[str, Any]:
    """Sends the bytes that the process asks for until it has the rows; returns its answer."""
    ends_at, left = time.monotonic() + SECONDS_MAX, READ_BYTES_MAX
    while connection.poll(max(0.0, ends_at - time.monotonic())):
        try:
            # JSON, because a process that parses files of users is not trusted with pickles.
            message: Mapping[str, Any] = json.loads(connection.recv_bytes(ANSWER_BYTES_MAX))
        except (EOFError, OSError):
            raise TableUnreadable("reading it needs too much memory or time") from None
        if "start" not in message:
            return message
        start = min(max(int(message["start"]), 0), size_bytes)
        end = min(max(int(message["end"]), start), size_bytes)
        left -= end - start
        if left < 0:
            raise TableUnreadable(f"its first rows need more than {READ_BYTES_MAX:,} bytes")
        connection.send_bytes(read(start, end) if end > start else b"")
    raise TableUnreadable(f"reading it takes more than {SECONDS_MAX:.0f} seconds")


def _first_rows(answer: Mapping[str, Any]) -> FirstRows:
    if "problem" in answer:
        raise TableUnreadable(str(answer["problem"]))
    return FirstRows(
        columns=tuple((str(name), str(kind)) for name, kind in answer["columns"]),
        rows=tuple(tuple(row) for row in answer["rows"]),
        row_count=answer["row_count"],
        column_count=int(answer["column_count"]),
    )


class _Asked(io.RawIOBase):
    """The file as the process sees it: each read asks the server for the bytes."""

    def __init__(self, connection: Connection, size_bytes: int) -> None:
        self._connection = connection
        self._size = size_bytes
        self._place = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._place

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self._size}[whence]
        self._place = max(0, start + offset)
        return self._place

    def read(self, size: int | None = -1) -> bytes:
        end = self._size if size is None or size < 0 else min(self._size, self._place + size)
        if end <= self._place:
            return b""
        self._connection.send_bytes(json.dumps({"start": self._place, "end": end}).encode())
        found = self._connection.recv_bytes()
        self._place += len(found)
        return found


def _work(kind: TableKind, size_bytes: int, connection: Connection) -> None:
    """The main function of the process."""
    follow_parent()
    _limit_resources()
    source = _Asked(connection, size_bytes)
    try:
        found = _parquet(source) if kind == "parquet" else _csv(source, is_tsv=kind == "tsv")
    except (pa.ArrowException, ValueError, OSError, MemoryError, RecursionError) as error:
        problem = f"it cannot be read as {kind}: {one_line(str(error))[:CELL_CHARACTERS_MAX]}"
        found = {"problem": problem}
    connection.send_bytes(json.dumps(found).encode())


def _limit_resources() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + MEMORY_BYTES_MAX
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    seconds = int(SECONDS_MAX)
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _parquet(source: _Asked) -> dict[str, Any]:
    # With these options the reader stops after the pages of the first rows.
    file = pq.ParquetFile(
        pa.PythonFile(source, mode="r"), buffer_size=BUFFER_BYTES, pre_buffer=False
    )
    schema = file.schema_arrow
    names = None if len(schema) <= COLUMNS_MAX else schema.names[:COLUMNS_MAX]
    batches = file.iter_batches(batch_size=ROWS_MAX, columns=names, use_threads=False)
    return _taken(batches, schema, row_count=file.metadata.num_rows)


def _csv(source: _Asked, *, is_tsv: bool) -> dict[str, Any]:
    data = source.read(CSV_BYTES_MAX)
    if len(data) == CSV_BYTES_MAX:
        data = data[: data.rfind(b"\n") + 1] or data
    reading = pv.ReadOptions(use_threads=False, autogenerate_column_names=True)
    parsing = pv.ParseOptions(
        delimiter="\t" if is_tsv else ",",
        newlines_in_values=True,
        invalid_row_handler=lambda _: "skip",
    )
    names = pv.open_csv(io.BytesIO(data), reading, parsing).schema.names
    # As text: a number such as 007 is shown as it was written.
    converting = pv.ConvertOptions(
        column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=False
    )
    table = pv.read_csv(io.BytesIO(data), reading, parsing, converting)
    heading = [str(column[0].as_py()) for column in table.columns] if table.num_rows else []
    schema = pa.schema([pa.field(name, pa.string()) for name in heading])
    rows = pa.Table.from_arrays(table.slice(1).columns, schema=schema)
    is_whole = source.tell() == source.seek(0, io.SEEK_END)
    return _taken(iter(rows.to_batches()), schema, row_count=rows.num_rows if is_whole else None)


def _taken(
    batches: Iterator[pa.RecordBatch], schema: pa.Schema, *, row_count: int | None
) -> dict[str, Any]:
    rows: list[tuple[str | None, ...]] = []
    for batch in batches:
        part = batch.slice(0, ROWS_MAX - len(rows))
        columns = [_texts(column) for column in part.columns[:COLUMNS_MAX]]
        rows += zip(*columns, strict=True)
        if len(rows) >= ROWS_MAX:
            break
    kinds = [(field.name, str(field.type)) for field in list(schema)[:COLUMNS_MAX]]
    return {
        "columns": [[_cut(name), _cut(kind)] for name, kind in kinds],
        "rows": rows,
        "row_count": row_count,
        "column_count": len(schema),
    }


def _texts(column: pa.Array[Any]) -> list[str | None]:
    """Returns the values of a column as text."""
    if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
        return [None if v is None else f"{len(v):,} bytes" for v in column.to_pylist()]
    try:
        values: list[Any] = column.cast(pa.string()).to_pylist()
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
        values = [_nested_text(value) for value in column]
    return [None if value is None else _cut(value) for value in values]


def _nested_text(value: pa.Scalar[Any]) -> str | None:
    """Returns a nested value as text."""
    found = value.as_py()
    return None if found is None else str(found)


def _cut(text: str) -> str:
    return text if len(text) <= CELL_CHARACTERS_MAX else text[:CELL_CHARACTERS_MAX] + "…"
