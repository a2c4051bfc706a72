"""Ranges: files of sorted entries, which never change. No SQL here, so that executors can read
them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias, cast

import pyarrow as pa
import pyarrow.compute as pc

from ebbtide.storage import Storage
from ebbtide.store.content import files
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
    data = files.encode(table)
    storage.put(range_address(range_id), data)
    return RangeInfo(
        range_id=range_id,
        first_path=entries[0].path,
        last_path=entries[-1].path,
        entry_count=len(entries),
        bytes_total=bytes_total,
        checksum=files.checksum_of(data),
    )


def read_range(storage: Storage, info: RangeInfo) -> list[Entry]:
    """Returns the entries of a range, ascending by path.

    Raises Refused `missing_node`, `corrupt_node` (also if the entries differ from `info`) or
    `unknown_format_version`; Failed `storage_error`.
    """
    data = files.fetch(storage, info.address, info.checksum, family="node")
    table = files.decode(data, ENTRY_SCHEMA, address=info.address, family="node")
    _check_count(table, info.address, info.entry_count)
    if not _ascending(table.column("path")):
        raise files.corrupt("node", info.address, "its paths do not ascend")
    entries = from_table(table)
    if (entries[0].path, entries[-1].path) != (info.first_path, info.last_path):
        raise files.corrupt(
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
    data = files.fetch(storage, address, checksum, family="node")
    table = files.decode(data, ENTRY_SCHEMA, address=address, family="node", columns=columns)
    _check_count(table, address, entry_count)
    return table


def _check_count(table: pa.Table, address: str, entry_count: int) -> None:
    if table.num_rows != entry_count or entry_count < 1:
        raise files.corrupt(
            "node",
            address,
            f"it holds {count_text(table.num_rows, 'entry', 'entries')}, "
            f"its tree says {entry_count}",
        )


def _ascending(paths: pa.ChunkedArray[pa.StringScalar]) -> bool:
    if len(paths) < 2:
        return True
    return bool(pc.all(pc.less(paths.slice(0, len(paths) - 1), paths.slice(1))).as_py())
