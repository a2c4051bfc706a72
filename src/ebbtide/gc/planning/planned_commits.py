"""The commits and refs that a plan looked at, as files of the plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from ebbtide.arrow import make_schema, texts
from ebbtide.errors import Refused
from ebbtide.gc.parts import Part, PartRows, encode_all, read_part
from ebbtide.gc.runs import RunFolder
from ebbtide.model import Commit, Ref
from ebbtide.retention.decision import Decision, Roots

_Row = TypeVar("_Row")

COMMITS_FILE: Final = "commits.parquet"
COMMITS_SCHEMA: Final = make_schema(
    ("commit_id", pa.string()),
    ("created_at", pa.timestamp("us", "UTC")),
    ("tree_id", pa.string()),
    ("active", pa.bool_()),
    ("recorded", pa.bool_()),
    ("reason", pa.string()),
    ("companions", pa.list_(pa.string())),
    ("parent_ids", pa.list_(pa.string())),
    ("tombstoned", pa.bool_()),
    ("leased_until", pa.timestamp("us", "UTC")),
    ("is_content", pa.bool_()),
)
"""Each commit that the plan looked at.

`active`: its data stays, for this `reason`. `recorded`: its record, tree and ranges stay, with its
`companions`. The other columns are those of `model.Commit`. With the policy and REFS_FILE, they are
everything that the decision was made from.
"""
REFS_FILE: Final = "refs.parquet"
REFS_SCHEMA: Final = make_schema(
    ("name", pa.string()),
    ("kind", pa.string()),
    ("commit_id", pa.string()),
    ("expires_at", pa.timestamp("us", "UTC")),
    ("keeps_data", pa.bool_()),
)
"""Each ref that was not gone, with the columns of `model.Ref`."""
ROWS_AT_ONCE: Final = 5_000


@dataclass(frozen=True, slots=True)
class PlannedCommits:
    """The plan's decision on each commit, read from COMMITS_FILE. Each property makes its set anew:
    sets take several times as much memory as the table."""

    table: pa.Table

    @property
    def expired(self) -> frozenset[str]:
        """The commits whose data does not stay."""
        return self._of("commit_id", self._expired)

    @property
    def forgettable(self) -> frozenset[str]:
        """The expired commits whose record does not stay."""
        return self._of("commit_id", pc.and_not(self._expired, self.table.column("recorded")))

    @property
    def data_trees(self) -> frozenset[str]:
        """The trees whose data stays."""
        return self._of("tree_id", self.table.column("active"))

    @property
    def recorded_trees(self) -> frozenset[str]:
        """The trees that stay."""
        return self._of("tree_id", self.table.column("recorded"))

    @property
    def trees(self) -> frozenset[str]:
        """The trees of all commits."""
        return frozenset(texts(self.table.column("tree_id")))

    @property
    def companions(self) -> frozenset[str]:
        """The addresses that stay with the recorded commits."""
        return frozenset(texts(pc.list_flatten(self.table.column("companions"))))

    @property
    def reasons(self) -> Mapping[str, str]:
        """The reason for each commit whose data stays: commit id to reason."""
        kept = self.table.filter(self.table.column("active"))
        return dict(zip(texts(kept.column("commit_id")), texts(kept.column("reason")), strict=True))

    @property
    def _expired(self) -> pa.ChunkedArray[Any]:
        return pc.invert(self.table.column("active"))

    def _of(self, name: str, chosen: pa.ChunkedArray[Any]) -> frozenset[str]:
        return frozenset(texts(self.table.column(name).filter(chosen)))


def write_commits(folder: RunFolder, roots: Roots, decision: Decision) -> Part:
    """Writes COMMITS_FILE."""
    active, recorded = decision.active, decision.recorded
    companions = {name: roots.companions[name] for name in recorded & roots.companions.keys()}

    def columns(commits: Sequence[Commit]) -> list[list[Any]]:  # of the schema's types
        ids = [commit.commit_id for commit in commits]
        is_active = [commit_id in active for commit_id in ids]
        return [
            ids,
            [commit.created_at for commit in commits],
            [commit.tree_id for commit in commits],
            is_active,
            [commit_id in recorded for commit_id in ids],
            [active[name] if kept else None for name, kept in zip(ids, is_active, strict=True)],
            [companions.get(commit_id, ()) for commit_id in ids],
            [commit.parent_ids for commit in commits],
            [commit.tombstoned for commit in commits],
            [commit.leased_until for commit in commits],
            [commit.is_content for commit in commits],
        ]

    return _write_rows(
        folder, COMMITS_FILE, roots.commits, columns, COMMITS_SCHEMA, relation="commits"
    )


def write_refs(folder: RunFolder, roots: Roots) -> Part:
    """Writes REFS_FILE."""

    def columns(refs: Sequence[Ref]) -> list[list[Any]]:  # of the schema's types
        return [[getattr(ref, name) for ref in refs] for name in REFS_SCHEMA.names]

    return _write_rows(folder, REFS_FILE, roots.refs, columns, REFS_SCHEMA, relation="refs")


def _write_rows(
    folder: RunFolder,
    name: str,
    rows: Sequence[_Row],
    columns: Callable[[Sequence[_Row]], list[list[Any]]],
    schema: pa.Schema,
    *,
    relation: str,
) -> Part:
    # In batches: the columns of all rows would need as much memory as the rows themselves.
    tables = (
        pa.Table.from_arrays(
            [
                pa.array(column, schema_field.type)
                for column, schema_field in zip(
                    columns(rows[start : start + ROWS_AT_ONCE]), schema, strict=True
                )
            ],
            schema=schema,
        )
        for start in range(0, len(rows), ROWS_AT_ONCE)
    )
    answer = PartRows()
    data = encode_all(tables, schema)
    answer.encoded(folder, name, data, rows=len(rows), relation=relation, durable=True)
    return answer.parts()[0]


def commits_of(folder: RunFolder, part: Part | None) -> Part:
    """Returns the part with a plan's commits. Raises Refused `plan_foreign` if the plan has none,
    which is the plan of a gone repository."""
    if part is None:
        raise Refused(
            "plan_foreign",
            f"the plan in {folder.path} has no commits: the repository was gone when the "
            "plan was made",
        )
    return part


def read_commits(folder: RunFolder, part: Part | None) -> PlannedCommits:
    """Reads COMMITS_FILE. Raises Refused `plan_corrupt`, and as `commits_of`."""
    checksum = commits_of(folder, part).checksum
    names = ("commit_id", "tree_id", "active", "recorded", "reason", "companions")
    return PlannedCommits(read_part(folder, COMMITS_FILE, checksum, columns=names))
