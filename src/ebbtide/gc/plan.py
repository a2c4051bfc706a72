"""The plan: what a sweep would delete, and why, as files that do not change once written.

`plan.json` names each part of `candidates/` and `commits.parquet` with its checksum, and carries a
checksum of itself. A sweep deletes exactly what the plan names, less what came back to life.
Not for: making a plan (`planning`) or carrying it out (`sweep`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any, Final

import pyarrow as pa

from ebbtide.arrow import make_schema
from ebbtide.errors import Refused
from ebbtide.formats.base import Identity
from ebbtide.gc.counts import Count
from ebbtide.gc.gates import check_identity
from ebbtide.gc.parts import Part, PartRows, encode, read_part
from ebbtide.gc.runs import PLAN_FILE, RunFolder, checksum_of
from ebbtide.retention.decision import Decision, Roots

PLAN_VERSION: Final = 1
REMOVAL: Final = "removal"
"""The mode of a plan by which everything goes."""
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
"""Every commit that the plan looked at: whether its data stays (`active`), whether its record, tree
and ranges stay (`recorded`), the reason for the former, and what stays with the latter. The other
columns are those of `model.Commit`: with REFS_FILE they are all that was decided by."""
REFS_FILE: Final = "refs.parquet"
REFS_SCHEMA: Final = make_schema(
    ("name", pa.string()),
    ("kind", pa.string()),
    ("commit_id", pa.string()),
    ("expires_at", pa.timestamp("us", "UTC")),
    ("keeps_data", pa.bool_()),
)
"""Every ref that was not gone, with the columns of `model.Ref`."""


@dataclass(frozen=True, slots=True)
class Settled:
    """A part in the folder of the run that wrote it, which later plans refer to."""

    run_path: str
    part: Part

    def to_json(self) -> dict[str, Any]:
        """For plan.json."""
        return {"run_path": self.run_path, **self.part.to_json()}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Settled:
        """The one that `to_json` wrote. KeyError or TypeError when it is something else."""
        return cls(str(content["run_path"]), Part.from_json(content))


@dataclass(frozen=True, slots=True)
class Plan:
    """A durable plan. `refusal` (kind, message) is set where a sweep needs a flag to go on.

    `mode` is clean or incremental, the latter going on from run `previous_id`; `mode_reason` says
    why a clean run was made. It is REMOVAL for a gone repository, of which everything goes: there
    are no `commits` and `refs` then. `inventory_url` names the inventory in whose place nothing was
    listed.

    For the next incremental one: `read_at` is when the metadata was read, slices behind
    `closed_after` were closed off then; `remaining` and `settled` have what stays in those without
    being live, the latter until the format tells that it was dropped, and but for the keys of
    `unsettled`, which count no more; `young_slices` counts the slices that were not listed, since
    all in them is younger than the grace; `whole` counts everything in the storage; `clean_at` is
    when the last clean run began.

    `expired_count` counts the commits that lose their data, `gone_count` those that lost it to
    earlier runs, `forgettable_count` those of both that lose their records too.
    """

    run_id: str
    identity: Identity
    started_at: datetime
    cutoff: datetime
    grace_seconds: float
    policy: Mapping[str, Any] | None  # as Policy.to_mapping gives it
    counts: Mapping[str, Count]
    kinds: Mapping[str, Count]
    candidates: tuple[Part, ...]
    protected: tuple[Part, ...]
    commits: Part | None
    refs: Part | None
    active_count: int
    expired_count: int
    gone_count: int
    forgettable_count: int
    by_ref: tuple[Mapping[str, Any], ...]  # RefSummary as a mapping
    warnings: tuple[str, ...]
    seconds: Mapping[str, float]
    mode: str
    mode_reason: str | None
    previous_id: str | None
    clean_at: datetime
    read_at: datetime
    closed_after: str | None
    young_slices: int
    remaining: tuple[Part, ...]
    whole: Count
    settled: tuple[Settled, ...] = ()
    unsettled: tuple[Part, ...] = ()
    inventory_url: str | None = None
    refusal: tuple[str, str] | None = None

    @property
    def policy_sha256(self) -> str | None:
        """The checksum of the policy's JSON; None without a policy."""
        return None if self.policy is None else checksum_of(self.policy)

    def to_json(self) -> dict[str, Any]:
        """The content of plan.json, with its checksum."""
        content: dict[str, Any] = {
            "version": PLAN_VERSION,
            "run_id": self.run_id,
            "identity": asdict(self.identity),
            "started_at": self.started_at.isoformat(),
            "cutoff": self.cutoff.isoformat(),
            "grace_seconds": self.grace_seconds,
            "policy": self.policy,
            "counts": {name: count.to_json() for name, count in self.counts.items()},
            "kinds": {name: count.to_json() for name, count in self.kinds.items()},
            "candidates": [part.to_json() for part in self.candidates],
            "protected": [part.to_json() for part in self.protected],
            "commits": None if self.commits is None else self.commits.to_json(),
            "refs": None if self.refs is None else self.refs.to_json(),
            "active_count": self.active_count,
            "expired_count": self.expired_count,
            "gone_count": self.gone_count,
            "forgettable_count": self.forgettable_count,
            "by_ref": [dict(summary) for summary in self.by_ref],
            "warnings": list(self.warnings),
            "seconds": dict(self.seconds),
            "mode": self.mode,
            "mode_reason": self.mode_reason,
            "previous_id": self.previous_id,
            "clean_at": self.clean_at.isoformat(),
            "read_at": self.read_at.isoformat(),
            "closed_after": self.closed_after,
            "young_slices": self.young_slices,
            "remaining": [part.to_json() for part in self.remaining],
            "settled": [each.to_json() for each in self.settled],
            "unsettled": [part.to_json() for part in self.unsettled],
            "whole": self.whole.to_json(),
            "inventory_url": self.inventory_url,
            "refusal": list(self.refusal) if self.refusal else None,
        }
        return content | {"checksum": checksum_of(content)}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Plan:
        """The plan that `to_json` wrote. KeyError, TypeError or ValueError on anything else."""
        refusal = content["refusal"]
        return cls(
            run_id=content["run_id"],
            identity=Identity(**content["identity"]),
            started_at=datetime.fromisoformat(content["started_at"]),
            cutoff=datetime.fromisoformat(content["cutoff"]),
            grace_seconds=content["grace_seconds"],
            policy=content["policy"],
            counts={n: Count.from_json(count) for n, count in content["counts"].items()},
            kinds={n: Count.from_json(count) for n, count in content["kinds"].items()},
            candidates=tuple(Part.from_json(part) for part in content["candidates"]),
            protected=tuple(Part.from_json(part) for part in content["protected"]),
            commits=None if content["commits"] is None else Part.from_json(content["commits"]),
            refs=None if content["refs"] is None else Part.from_json(content["refs"]),
            active_count=content["active_count"],
            expired_count=content["expired_count"],
            gone_count=content["gone_count"],
            forgettable_count=content["forgettable_count"],
            by_ref=tuple(content["by_ref"]),
            warnings=tuple(content["warnings"]),
            seconds=content["seconds"],
            mode=content["mode"],
            mode_reason=content["mode_reason"],
            previous_id=content["previous_id"],
            clean_at=datetime.fromisoformat(content["clean_at"]),
            read_at=datetime.fromisoformat(content["read_at"]),
            closed_after=content["closed_after"],
            young_slices=content["young_slices"],
            remaining=tuple(Part.from_json(part) for part in content["remaining"]),
            settled=tuple(Settled.from_json(each) for each in content["settled"]),
            unsettled=tuple(Part.from_json(part) for part in content["unsettled"]),
            whole=Count.from_json(content["whole"]),
            inventory_url=content.get("inventory_url"),
            refusal=(refusal[0], refusal[1]) if refusal else None,
        )

    @property
    def candidate_total(self) -> Count:
        """All candidates together."""
        return self.counts["candidate"]


@dataclass(frozen=True, slots=True)
class PlannedCommits:
    """What the plan decided of each commit, read back from COMMITS_FILE."""

    expired: frozenset[str]
    forgettable: frozenset[str]
    data_trees: frozenset[str]
    recorded_trees: frozenset[str]
    companions: frozenset[str]
    trees: frozenset[str] = frozenset()
    reasons: Mapping[str, str] = field(default_factory=dict)


def write_plan(folder: RunFolder, plan: Plan) -> str:
    """Write plan.json, the last file of a plan; its checksum."""
    content = plan.to_json()
    folder.put_json(PLAN_FILE, content)
    return str(content["checksum"])


def read_plan(folder: RunFolder, *, identity: Identity, recorded_checksum: str | None) -> Plan:
    """Read back a plan for the repository of `identity`. Refused `plan_missing`, `plan_corrupt`,
    `plan_foreign`, `unknown_format_version`.

    `recorded_checksum` is what the database remembers of it.
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
        check_identity(plan.identity, identity)
        if recorded_checksum is None:
            raise Refused(
                "plan_foreign",
                f"{where} is not recorded in the database: its run ended before, or another "
                "database made it; plan again",
            )
        if checksum != recorded_checksum:
            raise ValueError("its checksum is not the one that the database recorded")
        return plan
    except (ValueError, KeyError, TypeError) as error:
        raise Refused(
            "plan_corrupt", f"{where} is not as it was written ({error}): plan again"
        ) from error


def write_commits(folder: RunFolder, roots: Roots, decision: Decision) -> Part:
    """Write COMMITS_FILE."""
    commits = roots.commits
    active = decision.active
    columns: list[list[Any]] = [  # of the schema's types
        [commit.commit_id for commit in commits],
        [commit.created_at for commit in commits],
        [commit.tree_id for commit in commits],
        [commit.commit_id in active for commit in commits],
        [commit.commit_id in decision.recorded for commit in commits],
        [active.get(commit.commit_id) for commit in commits],
        [
            list(roots.companions.get(commit.commit_id, ()))
            if commit.commit_id in decision.recorded
            else []
            for commit in commits
        ],
        [commit.parent_ids for commit in commits],
        [commit.tombstoned for commit in commits],
        [commit.leased_until for commit in commits],
        [commit.is_content for commit in commits],
    ]
    return _write_columns(folder, COMMITS_FILE, columns, COMMITS_SCHEMA, group="commits")


def write_refs(folder: RunFolder, roots: Roots) -> Part:
    """Write REFS_FILE."""
    columns: list[list[Any]] = [  # of the schema's types
        [getattr(ref, name) for ref in roots.refs] for name in REFS_SCHEMA.names
    ]
    return _write_columns(folder, REFS_FILE, columns, REFS_SCHEMA, group="refs")


def _write_columns(
    folder: RunFolder, name: str, columns: list[list[Any]], schema: pa.Schema, *, group: str
) -> Part:
    arrays = [
        pa.array(column, schema_field.type)
        for column, schema_field in zip(columns, schema, strict=True)
    ]
    answer = PartRows()
    data = encode(pa.Table.from_arrays(arrays, schema=schema))
    answer.encoded(folder, name, data, rows=len(columns[0]), group=group, durable=True)
    return answer.parts()[0]


def read_commits(folder: RunFolder, part: Part | None) -> PlannedCommits:
    """Read COMMITS_FILE. Refused `plan_corrupt`, and `plan_foreign` for a plan without commits:
    that of a gone repository."""
    if part is None:
        raise Refused(
            "plan_foreign", f"{folder.path} holds the plan of a run that looked at no commit"
        )
    rows = read_part(folder, COMMITS_FILE, part.checksum).to_pylist()
    return PlannedCommits(
        expired=frozenset(row["commit_id"] for row in rows if not row["active"]),
        forgettable=frozenset(
            row["commit_id"] for row in rows if not row["active"] and not row["recorded"]
        ),
        data_trees=frozenset(row["tree_id"] for row in rows if row["active"]),
        recorded_trees=frozenset(row["tree_id"] for row in rows if row["recorded"]),
        companions=frozenset(address for row in rows for address in row["companions"]),
        trees=frozenset(row["tree_id"] for row in rows),
        reasons={row["commit_id"]: row["reason"] for row in rows if row["active"]},
    )
