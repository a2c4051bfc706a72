"""Trees and ranges of the embedded store, read a second time, for verification.

Written against the files alone: whatever reads them for a run is not imported here, so that the two
do not err alike. Not for: anything that decides or deletes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from ebbtide.storage import Storage


@dataclass(frozen=True, slots=True)
class EmbeddedWalk:
    """See `formats.base.Walk`."""

    storage: Storage

    def tree(self, tree_id: str) -> str:
        """A Parquet file, a row for each range."""
        return f"_ebbtide/trees/{tree_id}.parquet"

    def nodes(self, tree: str) -> list[str]:
        """The ranges' files: Parquet, a row for each entry."""
        found = self._column(tree, "range_id")
        return [f"_ebbtide/ranges/{range_id}.parquet" for range_id in found]

    def content(self, node: str) -> Iterator[str]:
        """The address of each entry. URLs of what lies outside the root are among them."""
        return iter(self._column(node, "address"))

    def _column(self, address: str, name: str) -> list[str]:
        data = self.storage.get(address)
        try:
            # Without threads of Arrow's own: this one may be of a pool.
            table = pq.ParquetFile(pa.BufferReader(data)).read([name], use_threads=False)
            values = table.column(name).to_pylist()
        except (pa.ArrowException, OSError, KeyError) as error:
            raise ValueError(f"{address} can't be read as Parquet: {error}") from error
        if any(not isinstance(value, str) for value in values):
            raise ValueError(f"{address} has a row without {name}")
        return [str(value) for value in values]
