"""What the collector reads of a warehouse: the relations of its tables at one time, and what the
tables have come to need since.

No catalog can be asked to refuse commits. A writer may add a file that lay there for longer than
the grace, roll back to a snapshot, or register a table. So before each batch of deletes the
pointers of all tables are read, and what new metadata names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

import pyarrow as pa

from ebbtide.arrow import table_of
from ebbtide.formats.base import PROTECTED_SCHEMA, LateNeeds
from ebbtide.formats.iceberg.metadata import TableMetadata
from ebbtide.formats.iceberg.tables import TableStates, Warehouse, commit_id_of
from ebbtide.model import Commit, Ref, RefKind
from ebbtide.retention.decision import KEEP_EVERYTHING, Roots

_KINDS: Final[dict[str, RefKind]] = {"branch": "branch", "tag": "tag"}


@dataclass(frozen=True, slots=True)
class IcebergReading:
    """The relations of all tables of the catalog."""

    tables: TableStates
    now: datetime
    warnings: tuple[str, ...] = ()

    def roots(self) -> Roots:
        """Returns refs and snapshots. Every snapshot that a table lists is kept, whether or not a
        ref reaches it: readers name snapshots by their ids."""
        commits, stubs, checksums = [], set[str](), dict[str, str]()
        for commit_id, name, table, snapshot in self.tables.commit_ids():
            parents: tuple[str, ...] = ()
            if snapshot.parent_id is not None:
                parents = (commit_id_of(name, snapshot.parent_id),)
                if snapshot.parent_id not in table.snapshots:  # it has expired
                    stubs.add(parents[0])
            tree_id = table.tree_id(snapshot)
            checksums[tree_id] = ""
            commits.append(Commit(commit_id, parents, snapshot.at, tree_id))
        return Roots(
            now=self.now,
            refs=tuple(self._refs()),
            commits=tuple(commits),
            stub_ids=frozenset(stubs),
            tree_checksums=checksums,
            policy=KEEP_EVERYTHING,
            warnings=self.warnings,
        )

    def _refs(self) -> Iterator[Ref]:
        for name, table in self.tables.metadata.items():
            for ref in table.refs:
                yield Ref(
                    f"{name}@{ref.name}", _KINDS[ref.kind], commit_id_of(name, ref.snapshot_id)
                )

    def protected(self, among: Iterable[Sequence[str]] | None = None) -> Iterator[pa.Table]:
        """Yields the metadata files and the statistics of all tables."""
        del among  # they are few
        files = self.tables.files().items()
        rows = [(address, reason, None, None) for address, reason in files]
        yield table_of(rows, PROTECTED_SCHEMA)


@dataclass(slots=True)
class IcebergGuard(LateNeeds):
    """The guard of one sweep. `trees` are those that the sweep knows to be kept, and `tables` the
    tables as they were when it read them."""

    warehouse: Warehouse
    trees: frozenset[str]
    tables: Mapping[str, TableMetadata]
    _added: dict[str, str] = field(default_factory=dict)

    def needed(self) -> Mapping[str, str]:
        now = self.warehouse.read(self.tables)
        known = {table.address for table in self.tables.values()}
        changed_ones = {
            name: table for name, table in now.metadata.items() if table.address not in known
        }
        some = TableStates(now.pointers, changed_ones)
        self._added |= dict(self.warehouse.added(some, self.trees))
        self.trees |= some.trees()
        self.tables = now.metadata
        return self._added
