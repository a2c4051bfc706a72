"""The Parquet files of trees and ranges: one schema, one version, and one checksum each.

A missing or damaged file, and a file of an unknown version, raises Refused, and never counts as
empty. A run that reads trees to find live addresses must stop at such a file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Final, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from ebbtide.errors import NotFound, Refused
from ebbtide.storage import Storage

FORMAT_VERSION: Final = 1
_FORMAT_KEY: Final = "ebbtide.format"

Family = Literal["tree", "node"]
"""The name of the file in error kinds: `missing_tree`, `corrupt_node`, … A node is a range."""


def checksum_of(data: bytes) -> str:
    """Returns the SHA-256 of the bytes, in lower-case hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def encode(table: pa.Table) -> bytes:
    """Returns the bytes of a file of this version with the table's rows.

    The options keep the file small and quick to read. Dictionaries save nothing, because nearly all
    texts of a column differ. Readers know the schema, and use no statistics.
    """
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(
        sink,
        table.schema,
        compression="zstd",
        use_dictionary=False,
        write_statistics=False,
        store_schema=False,
    ) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata({_FORMAT_KEY: str(FORMAT_VERSION)})
    return sink.getvalue().to_pybytes()


def fetch(storage: Storage, address: str, checksum: str, *, family: Family) -> bytes:
    """Returns the bytes of a file, after comparing them with `checksum`.

    Raises Refused (`missing_…`, `corrupt_…`); Failed (`storage_error`) passes through.
    """
    try:
        data = storage.get(address)
    except NotFound:
        raise Refused(
            f"missing_{family}",
            f"{address} is missing, but needed: restore it, or give up the commits that need it",
            address=address,
        ) from None
    found = checksum_of(data)
    if found != checksum:
        raise corrupt(
            family, address, f"its {len(data)} bytes have the checksum {found}, not {checksum}"
        )
    return data


def decode(
    data: bytes,
    schema: pa.Schema,
    *,
    address: str,
    family: Family,
    columns: Sequence[str] | None = None,
) -> pa.Table:
    """Returns the rows of a file, with all columns or some.

    Raises Refused `unknown_format_version`, or `corrupt_…` if the file is no Parquet file of
    `schema`.
    """
    try:
        file = pq.ParquetFile(pa.BufferReader(data))
        _check_version(file.metadata.metadata or {}, address=address, family=family)
        if not file.schema_arrow.remove_metadata().equals(schema):
            raise corrupt(family, address, f"its columns are not those of a {family}")
        return file.read(columns=None if columns is None else list(columns), use_threads=False)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise corrupt(family, address, f"it can't be read as Parquet: {error}") from error


def corrupt(family: Family, address: str, why: str) -> Refused:
    """Returns the error for a file that is not as it was written."""
    return Refused(
        f"corrupt_{family}",
        f"{address} is damaged: {why}; restore it, or give up the commits that need it",
        address=address,
    )


def _check_version(metadata: dict[bytes, bytes], *, address: str, family: Family) -> None:
    version: Any = metadata.get(_FORMAT_KEY.encode())
    if version is None:
        raise corrupt(family, address, "it has no format version")
    if version != str(FORMAT_VERSION).encode():
        raise Refused(
            "unknown_format_version",
            f"{address} has format version {version.decode(errors='replace')}, this program knows "
            f"{FORMAT_VERSION}: use a newer ebbtide",
            address=address,
        )
