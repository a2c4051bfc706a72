"""Ranges: files of sorted entries, which never change once written. No SQL, so that executors
can read them."""

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
from ebbtide.wording import counted


@dataclass(frozen=True, slots=True)
class RangeInfo:
    """What a tree knows of one of its ranges: never empty, both paths inclusive.

    `bytes_total` is the sum of the sizes of the entries. `checksum` is that of the range's file.
    """

    range_id: str
    first_path: str
    last_path: str
    entry_count: int
    bytes_total: int
    checksum: str

    @property
    def address(self) -> str:
        """Where the range's file is."""
        return range_address(self.range_id)


ReadRange: TypeAlias = Callable[[RangeInfo], Sequence[Entry]]
"""How to read a range: `read_range` on a storage, or a cache's method."""


def write_range(storage: Storage, entries: Sequence[Entry], *, range_id: str) -> RangeInfo:
    """Write entries, strictly ascending by path, under a fresh id.

    Raises ValueError on entries that are empty or out of order, and what `Storage.put` raises.
    """
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
        bytes_total=sum(entry.size_bytes for entry in entries),
        checksum=files.checksum_of(data),
    )


def read_range(storage: Storage, info: RangeInfo) -> list[Entry]:
    """The entries of a range, ascending by path.

    Raises Refused: `missing_node`, `corrupt_node` (also when the entries are not those that
    `info` tells of), `unknown_format_version`; Failed (`storage_error`).
    """
    data = files.fetch(storage, info.address, info.checksum, family="node")
    table = files.decode(data, ENTRY_SCHEMA, address=info.address, family="node")
    _check_count(table, info.address, info.entry_count)
    if not _ascending(table.column("path")):
        raise files.corrupt("node", info.address, "its paths do not ascend")
    entries = from_table(table)
    if (entries[0].path, entries[-1].path) != (info.first_path, info.last_path):
        raise files.corrupt("node", info.address, "it does not begin and end as its tree says")
    return entries


def read_range_addresses(
    storage: Storage, range_id: str, checksum: str, *, entry_count: int
) -> pa.StringArray:
    """The addresses that a range refers to, one for each entry; also those outside the root.

    Raises as `read_range`.
    """
    table = read_range_columns(
        storage, range_id, checksum, entry_count=entry_count, columns=["address"]
    )
    return cast("pa.StringArray", table.column("address").combine_chunks())


def read_range_files(
    storage: Storage, range_id: str, checksum: str, *, entry_count: int
) -> pa.Table:
    """Columns `address` and `size_bytes` of a range's entries; also of those outside the root.

    Raises as `read_range`.
    """
    columns = ["address", "size_bytes"]
    return read_range_columns(storage, range_id, checksum, entry_count=entry_count, columns=columns)


def read_range_columns(
    storage: Storage, range_id: str, checksum: str, *, entry_count: int, columns: Sequence[str]
) -> pa.Table:
    """Some columns of ENTRY_SCHEMA, a row for each entry of a range, in the order of `path`.

    Reads the whole file, for its checksum, and decodes these columns. Raises as `read_range`.
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
            f"it holds {counted(table.num_rows, 'entry', 'entries')}, its tree says {entry_count}",
        )


def _ascending(paths: pa.ChunkedArray[pa.StringScalar]) -> bool:
    if len(paths) < 2:
        return True
    return bool(pc.all(pc.less(paths.slice(0, len(paths) - 1), paths.slice(1))).as_py())
