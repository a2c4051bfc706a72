"""A second reader of the embedded store's trees and ranges, for verification.

It depends on the files alone. It imports nothing that reads them for a run, so that both readers
cannot have the same defect. Not for: deciding or deleting.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from ebbtide.storage import Storage


@dataclass(frozen=True, slots=True)
class EmbeddedWalk:
    """The second reader of trees and ranges (`formats.base.Walk`)."""

    storage: Storage

    def tree(self, tree_id: str) -> str:
        """Returns the address of a tree: a Parquet file with a row for each range."""
        return f"_ebbtide/trees/{tree_id}.parquet"

    def nodes(self, tree: str) -> list[str]:
        """Returns the addresses of a tree's ranges: Parquet files with a row for each entry."""
        found = self._column(tree, "range_id")
        return [f"_ebbtide/ranges/{range_id}.parquet" for range_id in found]

    def content(self, node: str) -> Iterator[str]:
        """Returns the address of each entry of a range. Objects outside the root have URLs."""
        return iter(self._column(node, "address"))

    def _column(self, address: str, name: str) -> list[str]:
        data = self.storage.get(address)
        try:
            # Without Arrow's own threads, because this thread may already be one of a pool.
            table = pq.ParquetFile(pa.BufferReader(data)).read([name], use_threads=False)
            values = table.column(name).to_pylist()
        except (pa.ArrowException, OSError, KeyError) as error:
            raise ValueError(f"{address} can't be read as Parquet: {error}") from error
        if any(not isinstance(value, str) for value in values):
            raise ValueError(f"{address} has a row without {name}")
        return [str(value) for value in values]
