"""The plan: the files that a sweep would delete, and why, in files that never change.

`plan.json` names each part of `candidates/` with its checksum, and has a checksum of itself. It
also names `commits.parquet` and `refs.parquet`, the commits and refs that the plan looked at. A
sweep deletes exactly the files that the plan names, without revived ones. Not for: making a plan
(`planner`) or carrying it out (`sweep`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from typing import Any, Final, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from ebbtide.arrow import make_schema, texts
from ebbtide.errors import Refused
from ebbtide.formats.base import Identity, Layout, RepositoryFormat
from ebbtide.gc.costs import StorageClasses, retained_of, warnings_of
from ebbtide.gc.parts import Count, Part, PartRows, encode_all, read_part
from ebbtide.gc.runs import PLAN_FILE, RunFolder, checksum_of
from ebbtide.gc.steps import Meter, Steps
from ebbtide.model import Commit, Ref
from ebbtide.retention.decision import Decision, Roots
from ebbtide.storage import Retained

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
PLAN_VERSION: Final = 1
REMOVAL: Final = "removal"
"""The mode of a plan for a gone repository, which deletes all its files."""


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
    def _expired(self) -> pa.ChunkedArray[Any]:
        return pc.invert(self.table.column("active"))

    def _of(self, name: str, chosen: pa.ChunkedArray[Any]) -> frozenset[str]:
        return frozenset(texts(self.table.column(name).filter(chosen)))


def write_commits(folder: RunFolder, roots: Roots, decision: Decision) -> Part:
    """Writes COMMITS_FILE."""
    active, recorded = decision.active, decision.recorded
    companions = {name: roots.companions[name] for name in recorded & roots.companions.keys()}

    def columns(commits: Sequence[Commit]) -> list[list[Any]]:  # those of COMMITS_SCHEMA
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

    def columns(refs: Sequence[Ref]) -> list[list[Any]]:  # those of REFS_SCHEMA
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
    """Returns the part with a plan's commits. Raises Refused `plan_foreign` if there is none:
    the plan was made for a gone repository."""
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
    names = ("commit_id", "tree_id", "active", "recorded", "companions")
    return PlannedCommits(read_part(folder, COMMITS_FILE, checksum, columns=names))


def as_json(value: Any) -> Any:
    """Returns the value of a field of a plan as JSON."""
    match value:
        case datetime():
            return value.isoformat()
        case Identity() | Retained():
            return asdict(value)
        case Mapping():
            return {name: as_json(each) for name, each in value.items()}
        case tuple():
            return [as_json(each) for each in value]
    return value.to_json() if hasattr(value, "to_json") else value


def _counts(content: Mapping[str, Any]) -> Mapping[str, Count]:
    return {name: Count.from_json(each) for name, each in content.items()}


def _parts(content: Sequence[dict[str, Any]]) -> tuple[Part, ...]:
    return tuple(map(Part.from_json, content))


_READERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "identity": lambda content: Identity(**content),
    **dict.fromkeys(("started_at", "cutoff", "clean_at", "read_at"), datetime.fromisoformat),
    **dict.fromkeys(("counts", "kinds"), _counts),
    "whole": Count.from_json,
    **dict.fromkeys(("candidates", "protected", "remaining", "absent"), _parts),
    **dict.fromkeys(("commits", "refs"), Part.from_json),
    **dict.fromkeys(("by_ref", "warnings", "refusal"), tuple),
    "retained": retained_of,
    "storage_classes": StorageClasses.from_json,
}
"""Reads the fields of a plan that JSON has in another form. Null stays None."""
_ADDED: Final = frozenset(
    ("inventory_url", "engine", "retained", "storage_classes", "absent", "absent_warning")
)
"""Fields that plans of older programs lack."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A plan as it is stored. `refusal` (kind, message) is set if a sweep needs a flag.

    `mode` is clean, incremental (continued from run `previous_id`) or REMOVAL. `mode_reason` says
    why a run is clean. A plan with REMOVAL deletes a gone repository, and has no `commits` and
    `refs`. `inventory_url` is the inventory that was read instead of a listing. `engine` is the
    name of the engine that made the plan. `retained` is what the storage keeps of deleted files;
    None in plans of older programs. `absent` are parts of the files that kept commits need, and
    that are not on the storage (`candidates.find_absent`). An incremental run does not look for
    them. `storage_classes` are those of the candidates; None if the listing gave none.

    `expired_count` counts the commits that lose their data. `gone_count` counts the commits that
    lost it to earlier runs. `forgettable_count` counts the commits of both that lose their records
    too. `young_slices` counts the slices that were not listed, because all their files are younger
    than the grace.

    For the next incremental run:

    - `read_at`: when the metadata was read. `clean_at`: when the last clean run began.
    - `closed_after`: slices that sort after it were closed then.
    - `remaining`: files in these slices that stay without being live, and whose protection may end
      without a report of the format.
    - `whole`: the count of all files on the storage, without foreign and system files.
    """

    run_id: str
    identity: Identity
    started_at: datetime
    cutoff: datetime
    grace_seconds: float = 0.0
    policy: Mapping[str, Any] | None = None  # as Policy.to_mapping gives it
    counts: Mapping[str, Count]
    kinds: Mapping[str, Count]
    candidates: tuple[Part, ...]
    protected: tuple[Part, ...] = ()
    commits: Part | None = None
    refs: Part | None = None
    active_count: int = 0
    expired_count: int = 0
    gone_count: int = 0
    forgettable_count: int = 0
    by_ref: tuple[Mapping[str, Any], ...] = ()  # RefSummary as a mapping
    warnings: tuple[str, ...] = ()
    seconds: Mapping[str, float]
    mode: str
    mode_reason: str | None = None
    previous_id: str | None = None
    clean_at: datetime
    read_at: datetime
    closed_after: str | None = None
    young_slices: int = 0
    remaining: tuple[Part, ...] = ()
    whole: Count
    inventory_url: str | None = None
    engine: str | None = None
    refusal: tuple[str, str] | None = None
    retained: Retained | None = None
    storage_classes: StorageClasses | None = None
    absent: tuple[Part, ...] = ()
    absent_warning: str | None = None

    @property
    def own_warnings(self) -> tuple[str, ...]:
        """The warnings, with those about storage classes."""
        return self.warnings + (self.storage_classes.warnings if self.storage_classes else ())

    @property
    def all_warnings(self) -> tuple[str, ...]:
        """The warnings, with those about absent files, about storage classes, and about deleted
        files that the storage keeps."""
        absent = () if self.absent_warning is None else (self.absent_warning,)
        retained = () if self.retained is None else warnings_of(self.retained)
        return (*absent, *self.own_warnings, *retained)

    @property
    def policy_sha256(self) -> str | None:
        """The checksum of the policy's JSON; None without a policy."""
        return None if self.policy is None else checksum_of(self.policy)

    def to_json(self) -> dict[str, Any]:
        """Returns the content of plan.json, with its checksum."""
        values = {each.name: as_json(getattr(self, each.name)) for each in fields(self)}
        content = {"version": PLAN_VERSION, **values}
        return content | {"checksum": checksum_of(content)}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Plan:
        """Returns the plan that `to_json` wrote. Raises KeyError, TypeError or ValueError for other
        content."""
        names = [each.name for each in fields(cls) if each.name not in _ADDED - content.keys()]
        values = {name: content[name] for name in names}
        for name in _READERS.keys() & values:
            values[name] = None if values[name] is None else _READERS[name](values[name])
        return cls(**values)

    @property
    def candidate_total(self) -> Count:
        """The count of all candidates."""
        return self.counts["candidate"]


@dataclass(frozen=True, slots=True)
class AuditedRun:
    """A run to verify: its plan, whose own checksum was checked, its folder, and the layout of the
    repository for the run. `check_removable` is set if the run deletes a whole gone repository. It
    raises Refused if the repository may not be removed now."""

    repository: RepositoryFormat
    plan: Plan
    folder: RunFolder
    steps: Steps
    meter: Meter
    layout: Layout
    check_removable: Callable[[], None] | None = None


def write_plan(folder: RunFolder, plan: Plan) -> str:
    """Writes plan.json, the last file of a plan. Returns its checksum."""
    content = plan.to_json()
    folder.put_json(PLAN_FILE, content)
    return str(content["checksum"])


def read_plan(
    folder: RunFolder, *, identity: Identity | None, recorded_checksum: str | None
) -> Plan:
    """Reads a plan for the repository of `identity`. None is for readers of history: the plans of a
    repository without a database may have been made before it was moved or copied.
    `recorded_checksum` is the plan's checksum in the database.

    Raises Refused `plan_missing`, `plan_corrupt`, `plan_foreign` or `unknown_format_version`.
    """
    where = f"{folder.path}/{PLAN_FILE}"
    try:
        content = folder.get_json(PLAN_FILE)
        if content is None:
            raise Refused("plan_missing", f"{where} is not there: plan again")
        if content.get("version") != PLAN_VERSION:
            raise Refused(
                "unknown_format_version",
                f"{where} has version {content.get('version')}, this program knows "
                f"{PLAN_VERSION}: use the program that made it, or plan again",
            )
        checksum = checksum_of(content)
        if content.get("checksum") != checksum:
            raise ValueError("its content does not match its checksum")
        plan = Plan.from_json(content)
        if identity is not None:
            check_identity(plan.identity, identity)
        if recorded_checksum is None:
            raise Refused(
                "plan_foreign",
                f"{where} is not recorded in the database: its run ended before it recorded the "
                "plan, or the plan belongs to another database. Plan again",
            )
        if checksum != recorded_checksum:
            raise ValueError("its checksum is not the one that the database recorded")
        return plan
    except (ValueError, KeyError, TypeError) as error:
        raise Refused(
            "plan_corrupt", f"{where} is not as it was written ({error}): plan again"
        ) from error


def check_identity(planned: Identity, actual: Identity) -> None:
    """Raises Refused `plan_foreign` if a plan was made for another repository or store."""
    same = (planned.format_name, planned.store_id) == (actual.format_name, actual.store_id)
    if not same or planned.repository_id not in (actual.repository_id, actual.former_id):
        raise Refused(
            "plan_foreign",
            f"the plan was made for repository {planned.repository_name} "
            f"({planned.store_id}/{planned.repository_id}), this is {actual.repository_name} "
            f"({actual.store_id}/{actual.repository_id}): sweep a plan of this repository",
        )
