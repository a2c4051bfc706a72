"""Entries: the record of one path in a tree, as a value and as a row of Arrow tables; and the names
of their metadata that the S3 gateway keeps for itself.

Paths sort by their UTF-8 bytes everywhere. Python compares strings by code point, which gives the
same order. Arrow and Parquet compare bytes. Not for: the headers of S3 (`doors.s3`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

import pyarrow as pa

from ebbtide.documents import documented
from ebbtide.model import EPOCH

# Metadata that the S3 gateway keeps for itself, beside the metadata of users, has a colon in its
# names. No header has one, so that no metadata sent over S3 can have such a name.
CHECKSUM: Final = "s3:checksum:"
"""Begins the names of checksums: `s3:checksum:crc32` is the CRC32 of the object's bytes."""
META: Final = "X-Amz-Meta-"
"""Begins the names of metadata that users attach over S3, as in lakeFS: the header
`x-amz-meta-color` becomes `X-Amz-Meta-color`, with the rest in lower case."""
HEADER: Final = "http:"
"""Begins the names of `HEADERS`, as metadata has them: `http:cache-control`."""
HEADERS: Final = (
    "cache-control",
    "content-disposition",
    "content-encoding",
    "content-language",
    "expires",
)
"""The headers that a writer may choose, and a reader is sent."""


def checksums_of(metadata: Mapping[str, str]) -> dict[str, str]:
    """Returns the checksums among metadata, with their names."""
    return {name: value for name, value in metadata.items() if name.startswith(CHECKSUM)}


def without_checksums(metadata: Mapping[str, str]) -> dict[str, str]:
    """Returns metadata without the checksums. These follow from the bytes, and say nothing more."""
    return {name: value for name, value in metadata.items() if not name.startswith(CHECKSUM)}


_EXTERNAL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_MICROSECOND: Final = timedelta(microseconds=1)
_FIELDS: Final[tuple[pa.Field[Any], ...]] = (
    pa.field("path", pa.string(), nullable=False),
    pa.field("address", pa.string(), nullable=False),
    pa.field("size_bytes", pa.int64(), nullable=False),
    pa.field("checksum", pa.string(), nullable=False),
    pa.field("mtime", pa.timestamp("us", "UTC"), nullable=False),
    pa.field("content_type", pa.string()),
    pa.field("metadata", pa.map_(pa.string(), pa.string()), nullable=False),
)

ENTRY_SCHEMA: Final = pa.schema(_FIELDS)
"""The columns of a range, whose rows are in the order of `path`."""


@documented
@dataclass(frozen=True, slots=True)
class Entry:
    """One path of a tree, and the address of its bytes.

    `address` is relative to the storage root, or an absolute URL for imported data outside it.
    `checksum` comes from the writer, and is compared as text. It is "" if it is not known. `mtime`
    is UTC, to the microsecond.
    """

    path: str
    address: str
    size_bytes: int
    checksum: str
    mtime: datetime
    content_type: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict, hash=False)


def is_external(address: str) -> bool:
    """Whether an address is a URL outside the storage root, which is never collected."""
    return _EXTERNAL.match(address) is not None


def address_url(address: str, root: str) -> str:
    """Returns the URL of an object's address; `root` is the URL of the storage root."""
    return address if is_external(address) else f"{root.rstrip('/')}/{address}"


def same_content(left: Entry | None, right: Entry | None) -> bool:
    """Whether two entries are equal to a user: in checksum, size, content type and metadata.

    Addresses and dates may differ: uploading the same bytes again is no visible change. If a
    checksum is not known, the addresses must be equal too. Further checksums among the metadata are
    not compared.
    """
    if left is None or right is None:
        return left is right
    if left.address != right.address and not (left.checksum and right.checksum):
        return False
    return (
        left.checksum == right.checksum
        and left.size_bytes == right.size_bytes
        and left.content_type == right.content_type
        and _same_metadata(left.metadata, right.metadata)
    )


def _same_metadata(left: Mapping[str, str], right: Mapping[str, str]) -> bool:
    return left == right or without_checksums(left) == without_checksums(right)


def to_table(entries: Sequence[Entry]) -> pa.Table:
    """Returns a table (ENTRY_SCHEMA) with one row for each entry, in their order."""
    columns: list[pa.Array[Any]] = [
        pa.array([entry.path for entry in entries], pa.string()),
        pa.array([entry.address for entry in entries], pa.string()),
        pa.array([entry.size_bytes for entry in entries], pa.int64()),
        pa.array([entry.checksum for entry in entries], pa.string()),
        pa.array([(entry.mtime - EPOCH) // _MICROSECOND for entry in entries], pa.int64()).cast(
            pa.timestamp("us", "UTC")
        ),
        pa.array([entry.content_type for entry in entries], pa.string()),
        pa.array([list(entry.metadata.items()) for entry in entries], ENTRY_SCHEMA.types[-1]),
    ]
    return pa.Table.from_arrays(columns, schema=ENTRY_SCHEMA)


def from_table(table: pa.Table) -> list[Entry]:
    """Returns the entries of a table (ENTRY_SCHEMA), in its order."""
    table = table.set_column(4, "mtime", table.column("mtime").cast(pa.int64()))
    # The stubs allow nulls in every column; the schema does not.
    columns: list[list[Any]] = [column.to_pylist() for column in table.itercolumns()]
    columns[4] = [EPOCH + timedelta(microseconds=count) for count in columns[4]]
    columns[6] = [dict(pairs) for pairs in columns[6]]
    return list(map(Entry, *columns))
