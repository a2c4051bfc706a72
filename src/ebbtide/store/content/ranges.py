"""Ranges: files of sorted entries, which never change; and the form of the Parquet files of ranges
and trees: one schema, one version, and one checksum each.

A missing or damaged file, and a file of an unknown version, raises Refused, and never counts as
empty. A run that reads trees to find live addresses must stop at such a file. No SQL here, so that
executors can read them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias, cast

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ebbtide.errors import NotFound, Refused
from ebbtide.storage import Storage
from ebbtide.store.content.entries import ENTRY_SCHEMA, Entry, from_table, to_table
from ebbtide.store.content.layout import range_address
from ebbtide.store.names import checked_total
from ebbtide.text import count_text


@dataclass(frozen=True, slots=True)
class RangeInfo:
    """A range as its tree describes it. A range is never empty; both paths are inclusive.

    `bytes_total` is the sum of the sizes of its entries. `checksum` is the SHA-256 of its file.
    """

    range_id: str
    first_path: str
    last_path: str
    entry_count: int
    bytes_total: int
    checksum: str

    @property
    def address(self) -> str:
        """The address of the range's file."""
        return range_address(self.range_id)


ReadRange: TypeAlias = Callable[[RangeInfo], Sequence[Entry]]
"""A function that reads a range: `read_range` on a storage, or the method of a cache."""


def write_range(storage: Storage, entries: Sequence[Entry], *, range_id: str) -> RangeInfo:
    """Writes entries, strictly ascending by path, under a new id.

    Raises ValueError if there are no entries or they are out of order, InvalidInput
    `invalid_argument` as `checked_total` does, and the errors of `Storage.put`.
    """
    bytes_total = checked_total(sum(entry.size_bytes for entry in entries))
    table = to_table(entries)
    if not entries or not _ascending(table.column("path")):
        raise ValueError("the entries of a range ascend by path, and there is at least one")
    data = encode(table)
    storage.put(range_address(range_id), data)
    return RangeInfo(
        range_id=range_id,
        first_path=entries[0].path,
        last_path=entries[-1].path,
        entry_count=len(entries),
        bytes_total=bytes_total,
        checksum=checksum_of(data),
    )


def read_range(storage: Storage, info: RangeInfo) -> list[Entry]:
    """Returns the entries of a range, ascending by path.

    Raises Refused `missing_node`, `corrupt_node` (also if the entries differ from `info`) or
    `unknown_format_version`; Failed `storage_error`.
    """
    data = fetch(storage, info.address, info.checksum, family="node")
    table = decode(data, ENTRY_SCHEMA, address=info.address, family="node")
    _check_count(table, info.address, info.entry_count)
    if not _ascending(table.column("path")):
        raise corrupt("node", info.address, "its paths do not ascend")
    entries = from_table(table)
    if (entries[0].path, entries[-1].path) != (info.first_path, info.last_path):
        raise corrupt(
            "node", info.address, "its first and last path differ from those that its tree names"
        )
    return entries


def read_range_addresses(
    storage: Storage, range_id: str, checksum: str, *, entry_count: int
) -> pa.StringArray:
    """Returns the addresses that a range refers to, one for each entry. This includes addresses
    outside the storage root.

    Raises as `read_range` does.
    """
    table = read_range_columns(
        storage, range_id, checksum, entry_count=entry_count, columns=["address"]
    )
    return cast("pa.StringArray", table.column("address").combine_chunks())


def read_range_files(
    storage: Storage, range_id: str, checksum: str, *, entry_count: int
) -> pa.Table:
    """Returns columns `address` and `size_bytes` of a range's entries. This includes addresses
    outside the storage root.

    Raises as `read_range` does.
    """
    columns = ["address", "size_bytes"]
    return read_range_columns(storage, range_id, checksum, entry_count=entry_count, columns=columns)


def read_range_columns(
    storage: Storage, range_id: str, checksum: str, *, entry_count: int, columns: Sequence[str]
) -> pa.Table:
    """Returns some columns of ENTRY_SCHEMA, one row for each entry of a range, in the order of
    `path`.

    It reads the whole file, to check its checksum, and decodes only these columns. Raises as
    `read_range` does.
    """
    address = range_address(range_id)
    data = fetch(storage, address, checksum, family="node")
    table = decode(data, ENTRY_SCHEMA, address=address, family="node", columns=columns)
    _check_count(table, address, entry_count)
    return table


def _check_count(table: pa.Table, address: str, entry_count: int) -> None:
    if table.num_rows != entry_count or entry_count < 1:
        raise corrupt(
            "node",
            address,
            f"it holds {count_text(table.num_rows, 'entry', 'entries')}, "
            f"its tree says {entry_count}",
        )


def _ascending(paths: pa.ChunkedArray[pa.StringScalar]) -> bool:
    if len(paths) < 2:
        return True
    return bool(pc.all(pc.less(paths.slice(0, len(paths) - 1), paths.slice(1))).as_py())


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
