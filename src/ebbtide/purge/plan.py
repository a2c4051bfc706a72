"""The plan of a purge: the named things and their objects, on storage before the first delete. Also
the report, which shows the plan and the outcome.

```
<purge_id>/plan.json            named things, figures, the checksums of all parts and of itself
<purge_id>/objects/             each address with size, checksum and paths (OBJECTS_SCHEMA)
<purge_id>/references.parquet   references that prevent the purge (REFERENCES_SCHEMA)
<purge_id>/named/, kept/        objects before other data's were left out, and those (the same)
<purge_id>/kept-references.parquet  references to kept objects (REFERENCES_SCHEMA)
<purge_id>/deleted/             the rows of objects/ with their outcomes (DELETED_SCHEMA)
<purge_id>/record-1.json        the signed record; each resume adds one more
```
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from typing import Any, Final

import pyarrow as pa

from ebbtide.arrow import make_schema, texts
from ebbtide.documents import HIDDEN, INLINE, documented
from ebbtide.errors import Refused
from ebbtide.formats.base import Identity
from ebbtide.gc.costs import retained_json, retained_of, warnings_of
from ebbtide.gc.keys import rows_of
from ebbtide.gc.parts import Part, PartRows
from ebbtide.gc.plan import as_json
from ebbtide.gc.report import error_json
from ebbtide.gc.runs import RunFolder, checksum_of
from ebbtide.purge.objects import OBJECTS_SCHEMA
from ebbtide.purge.references import (
    COLLECTION,
    COMMIT,
    COPY,
    HOLD,
    STAGED,
    WRITE,
    Reference,
    count_by_kind,
    to_table,
)
from ebbtide.purge.request import Named, Request
from ebbtide.storage import Retained
from ebbtide.store.purge_records import PurgeRow
from ebbtide.text import count_text

PLAN_FILE: Final = "plan.json"
REFERENCES_FILE: Final = "references.parquet"
KEPT_REFERENCES_FILE: Final = "kept-references.parquet"
NAMED_STEM: Final = "named/part"
"""The objects of a purge before those that other data needs were left out."""
KEPT_STEM: Final = "kept/part"
FORMAT_VERSION: Final = 1
REFERENCES_SHOWN: Final = 20

KINDS: Final = {
    COMMIT: ("commit", "commits"),
    COLLECTION: ("collection", "collections"),
    HOLD: ("hold", "holds"),
    STAGED: ("branch on which an object is staged", "branches on which objects are staged"),
    WRITE: ("write in progress", "writes in progress"),
    COPY: ("copy that a reading needs", "copies that a reading needs"),
}
"""The name of each kind of reference, in the singular and in the plural."""

DELETED_SCHEMA: Final = pa.schema(
    [*OBJECTS_SCHEMA, *make_schema(("outcome", pa.string()), ("error", pa.string()))]
)
"""`outcome` is `deleted`, `missing` or `failed`. `error` says why a delete failed."""


_IDENTITY: Final = ("format_name", "store_id", "repository_id", "repository_name")
"""The fields of the identity, which are fields of the plan in JSON."""


def _parts(content: Sequence[dict[str, Any]]) -> tuple[Part, ...]:
    return tuple(map(Part.from_json, content))


def _references(content: Sequence[Mapping[str, Any]]) -> tuple[Reference, ...]:
    return tuple(map(Reference.from_json, content))


_READERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    **dict.fromkeys(("planned_at", "promised_until"), datetime.fromisoformat),
    "named": Named.from_json,
    **dict.fromkeys(("parts", "kept"), _parts),
    **dict.fromkeys(("references", "kept_references"), _references),
    "retained": retained_of,
}
"""Reads the fields of a plan that JSON has in another form. Null stays None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PurgePlan:
    """The plan of a purge. `parts` have its objects. `references` are the first references that
    prevent the purge, and `reference_counts` counts all of them by kind. `foreign_count` counts
    foreign files, which stay when a whole repository is purged.

    `kept` are the named objects that stay because other data needs them, `kept_references` the
    first references to them, and `kept_reference_counts` counts all of these by kind. Until
    `promised_until`, signatures and locators of purged objects can be valid. `retained` is what the
    storage keeps of deleted objects; plans that were made before this field existed have None."""

    purge_id: str
    identity: Identity
    storage_url: str
    planned_at: datetime
    whole: bool
    named: Named
    parts: tuple[Part, ...]
    foreign_count: int = 0
    references: tuple[Reference, ...] = ()
    reference_counts: Mapping[str, int]
    kept: tuple[Part, ...] = ()
    kept_references: tuple[Reference, ...] = ()
    kept_reference_counts: Mapping[str, int] = field(default_factory=dict)
    promised_until: datetime | None = None
    retained: Retained | None = None

    @property
    def kept_count(self) -> int:
        """The number of named objects that stay."""
        return rows_of(self.kept)

    @property
    def kept_bytes(self) -> int:
        """The sum of the sizes of the named objects that stay."""
        return sum(part.bytes_total for part in self.kept)

    @property
    def object_count(self) -> int:
        """The number of objects in the plan."""
        return rows_of(self.parts)

    @property
    def bytes_total(self) -> int:
        """The sum of the objects' sizes."""
        return sum(part.bytes_total for part in self.parts)

    @property
    def reference_count(self) -> int:
        """The number of references that prevent the purge."""
        return sum(self.reference_counts.values())

    def to_json(self) -> dict[str, Any]:
        """Returns the plan as JSON, without the checksum."""
        values = {each.name: as_json(getattr(self, each.name)) for each in fields(self)}
        identity = values.pop("identity")
        return {"format": FORMAT_VERSION, **{name: identity[name] for name in _IDENTITY}, **values}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> PurgePlan:
        """Parses the JSON that `to_json` returned, or an older program without later fields. Raises
        KeyError, TypeError or ValueError for other JSON."""
        names = [each.name for each in fields(cls) if each.name in content]
        values = {name: content[name] for name in names}
        for name in _READERS.keys() & values:
            values[name] = None if values[name] is None else _READERS[name](values[name])
        identity = Identity(**{name: content[name] for name in _IDENTITY})
        return cls(identity=identity, **values)

    def without_shared(
        self,
        shared: Container[str],
        parts: Iterable[Part],
        kept: Iterable[Part],
        found: Sequence[Reference],
    ) -> PurgePlan:
        """Returns this plan with the objects of `parts` alone. `kept` are its other objects, which
        have the addresses `shared`. `found` are the references to these. Their named staged
        entries stay too."""
        staged = frozenset(each for each in self.named.staged if each.address not in shared)
        return replace(
            self,
            named=replace(self.named, staged=staged),
            parts=tuple(parts),
            kept=tuple(kept),
            kept_references=tuple(found[:REFERENCES_SHOWN]),
            kept_reference_counts=count_by_kind(found),
        )

    def with_references(self, found: Sequence[Reference]) -> PurgePlan:
        """Returns this plan with the references that prevent it."""
        return replace(
            self,
            references=tuple(found[:REFERENCES_SHOWN]),
            reference_counts=count_by_kind(found),
        )


def write_plan(folder: RunFolder, plan: PurgePlan, found: Sequence[Reference]) -> str:
    """Writes the plan, and all references that prevent it. Returns the plan's checksum."""
    PartRows().wrote(folder, REFERENCES_FILE, to_table(found), durable=True)
    content = plan.to_json()
    checksum = checksum_of(content)
    folder.put_json(PLAN_FILE, content | {"checksum": checksum})
    return checksum


def read_plan(folder: RunFolder, checksum: str) -> PurgePlan:
    """Reads the plan, and compares it with the checksum in the database. Raises Refused
    `plan_missing` or `plan_corrupt`."""
    content = folder.get_json(PLAN_FILE)
    if content is None:
        raise Refused("plan_missing", f"{folder.path}/{PLAN_FILE} is not there: restore it")
    try:
        if content.get("checksum") != checksum or checksum_of(content) != checksum:
            raise ValueError("its checksum is not the one recorded")
        return PurgePlan.from_json(content)
    except (KeyError, TypeError, ValueError) as error:
        raise Refused(
            "plan_corrupt", f"{folder.path}/{PLAN_FILE} is not as it was written: {error}"
        ) from error


def outcome_counts(table: pa.Table) -> dict[str, int]:
    """Returns the number of rows (DELETED_SCHEMA) for each outcome."""
    return dict(Counter(texts(table.column("outcome"))))


def refusal_of(plan: PurgePlan) -> dict[str, str] | None:
    """Returns the reason why a plan cannot be carried out, or None."""
    if not plan.reference_count:
        return None
    counts = plan.reference_counts
    first = plan.references[0]
    if set(counts) == {HOLD}:
        return error_json(
            "purge_held",
            f"commit {first.id} is held ({', '.join(first.names)}), and has objects of this purge"
            f"{_more(plan)}: release the hold first. Nothing was deleted",
        )
    listed = ", ".join(count_text(count, *KINDS[kind]) for kind, count in sorted(counts.items()))
    return error_json(
        "purge_in_use",
        f"other data refers to the objects of this purge ({listed}): name that data too (the whole "
        "history names every commit with these objects), or remove the references. Nothing was "
        "deleted",
    )


def _more(plan: PurgePlan) -> str:
    others = plan.reference_count - 1
    return f" (and {count_text(others, 'more hold')})" if others else ""


@documented
@dataclass(frozen=True, slots=True, kw_only=True)
class PurgeFigures:
    """The figures of a purge: those of its record, or else those of its plan. `references` and
    `kept_references` are the first ones of all that the counts count. `warnings` are those for what
    the storage keeps of the objects; there are none before the purge is planned."""

    object_count: int = 0
    size_bytes: int = 0
    foreign_count: int = 0
    outcomes: Mapping[str, int] = field(default_factory=dict)
    reference_count: int = 0
    reference_counts: Mapping[str, int] = field(default_factory=dict)
    references: tuple[Reference, ...] = ()
    kept_count: int = 0
    kept_bytes: int = 0
    kept_reference_counts: Mapping[str, int] = field(default_factory=dict)
    kept_references: tuple[Reference, ...] = ()
    promised_until: datetime | None = None
    retained: Mapping[str, Any] | None = None  # JSON
    warnings: tuple[str, ...] = ()


@documented
@dataclass(frozen=True, slots=True)
class PurgeReport:
    """The state of a purge. `plan` is None before the purge is planned, and `record` before its
    record is written."""

    row: PurgeRow = field(metadata=INLINE)
    plan: PurgePlan | None = field(default=None, metadata=HIDDEN)
    record: dict[str, Any] | None = field(default=None, metadata=HIDDEN)
    figures: PurgeFigures = field(init=False, metadata=INLINE)

    def __post_init__(self) -> None:
        object.__setattr__(self, "figures", self._figures())

    def _figures(self) -> PurgeFigures:
        plan, record = self.plan, self.record or {}
        if plan is None:
            return PurgeFigures()
        retained = plan.retained
        warnings: tuple[str, ...] = ()
        if retained is not None:
            is_asked = Request.from_json(self.row.request).delete_versions
            warnings = warnings_of(retained, versions_deleted=is_asked)
        return PurgeFigures(
            object_count=record.get("object_count", plan.object_count),
            size_bytes=record.get("size_bytes", plan.bytes_total),
            foreign_count=plan.foreign_count,
            outcomes=record.get("outcomes", {}),
            reference_count=plan.reference_count,
            reference_counts=plan.reference_counts,
            references=plan.references,
            kept_count=plan.kept_count,
            kept_bytes=plan.kept_bytes,
            kept_reference_counts=plan.kept_reference_counts,
            kept_references=plan.kept_references,
            promised_until=plan.promised_until,
            retained=None if retained is None else retained_json(retained),
            warnings=warnings,
        )
