"""The metadata of a lakeFS repository for the collector: the relations of one instant."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from ebbtide.arrow import texts
from ebbtide.errors import Failed
from ebbtide.formats.base import PROTECTED_SCHEMA, Protector
from ebbtide.formats.lakefs.refs import LakefsHistory
from ebbtide.formats.lakefs.urls import Namespace
from ebbtide.formats.plain import PlainReading
from ebbtide.retention import Policy
from ebbtide.retention.decision import Roots, decide
from ebbtide.storage import Storage

UNCOMMITTED: Final = "staged on a branch"
_COLUMNS: Final = ("physical_address", "creation_date")


@dataclass(frozen=True, slots=True)
class LakefsReading(PlainReading):
    """The relations of one instant.

    `folders` are the addresses of the folders with uncommitted addresses, which the server wrote
    before the commits were read. `closed` are the commits whose data a sweep is about to delete.
    `held` maps commits whose files an undo restored to the end of their hold.
    """

    storage: Storage
    namespace: Namespace
    history: LakefsHistory
    policy: Policy | None
    folders: tuple[str, ...]
    now: datetime
    closed: frozenset[str]
    held: Mapping[str, datetime]

    def roots(self) -> Roots:
        """Returns refs, all commits, and the policy. The checksum of a tree is its id.

        lakeFS closes no commit: a commit of `closed` is open again as soon as the policy keeps it.
        """
        commits = tuple(self.history.commits.values())
        holds = {
            commit_id: "restored by an undo"
            for commit_id, end in self.held.items()
            if end > self.now and commit_id in self.history.commits
        }
        roots = Roots(
            now=self.now,
            refs=self.history.refs,
            commits=commits,
            stub_ids=frozenset(),
            tree_checksums={commit.tree_id: commit.tree_id for commit in commits},
            policy=self.policy and self.policy.with_holds(holds),
            holds=holds,
            holds_end=dict(self.held),
        )
        if not self.closed:
            return roots
        gone = self.closed - decide(roots).active.keys()
        closed = (replace(each, tombstoned=each.commit_id in gone) for each in commits)
        return replace(roots, commits=tuple(closed))

    def protected(self, among: Iterable[Sequence[str]] | None = None) -> Iterator[pa.Table]:
        """Yields the uncommitted objects. `among` is ignored, because the server's files have no
        order. Raises Failed `lakefs_error` if a file cannot be read."""
        del among
        for folder in self.folders:
            for batch in self.storage.list(folder):
                for address in texts(batch.column("address")):
                    yield self._uncommitted(address)

    def _uncommitted(self, address: str) -> pa.Table:
        try:
            table = pq.read_table(pa.BufferReader(self.storage.get(address)), columns=[*_COLUMNS])
            named = table.column(_COLUMNS[0]).cast(pa.string())
            dates = table.column(_COLUMNS[1]).cast(pa.int64()).cast(pa.timestamp("s", "UTC"))
        except (pa.ArrowException, OSError, KeyError) as error:
            raise Failed(
                "lakefs_error",
                f"the server's list of uncommitted objects {self.storage.url}/{address} cannot be "
                f"read: {error}: run again",
            ) from error
        columns: list[Any] = [
            named,
            pa.repeat(pa.scalar(UNCOMMITTED), len(named)),
            pa.nulls(len(named), PROTECTED_SCHEMA.field("until").type),
            dates.cast(PROTECTED_SCHEMA.field("created_at").type),
        ]
        return pa.Table.from_arrays(columns, schema=PROTECTED_SCHEMA)

    def protectors(self, address: str) -> list[Protector]:
        """Returns the protection of one address, if a branch has it staged."""
        for table in self.protected():
            if address in table.column("address").to_pylist():
                return [Protector(reason=UNCOMMITTED)]
        return []
