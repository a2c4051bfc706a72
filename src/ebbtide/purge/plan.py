"""The plan of a purge: the named things and their objects, on storage before the first delete.

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
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final

import pyarrow as pa

from ebbtide.arrow import make_schema, texts
from ebbtide.errors import Refused
from ebbtide.formats.base import Identity
from ebbtide.gc.parts import Part, PartRows, read_part
from ebbtide.gc.retaining import retained_json, retained_of
from ebbtide.gc.runs import RunFolder, checksum_of
from ebbtide.purge.naming import Named
from ebbtide.purge.objects import OBJECTS_SCHEMA
from ebbtide.purge.references import Reference, count_by_kind, to_table
from ebbtide.storage import Retained

PLAN_FILE: Final = "plan.json"
REFERENCES_FILE: Final = "references.parquet"
KEPT_REFERENCES_FILE: Final = "kept-references.parquet"
OBJECTS_STEM: Final = "objects/part"
NAMED_STEM: Final = "named/part"
"""The objects of a purge before those that other data needs were left out."""
KEPT_STEM: Final = "kept/part"
FORMAT_VERSION: Final = 1
ROWS_PER_PART: Final = 10_000
"""The most addresses in one part. The outcomes of a part are recorded before the next is
deleted."""
REFERENCES_SHOWN: Final = 20

DELETED_SCHEMA: Final = pa.schema(
    [*OBJECTS_SCHEMA, *make_schema(("outcome", pa.string()), ("error", pa.string()))]
)
"""`outcome` is `deleted`, `missing` or `failed`. `error` says why a delete failed."""


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
        return sum(part.rows for part in self.kept)

    @property
    def kept_bytes(self) -> int:
        """The sum of the sizes of the named objects that stay."""
        return sum(part.bytes_total for part in self.kept)

    @property
    def object_count(self) -> int:
        """The number of objects in the plan."""
        return sum(part.rows for part in self.parts)

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
        return {
            "format": FORMAT_VERSION,
            "purge_id": self.purge_id,
            "format_name": self.identity.format_name,
            "store_id": self.identity.store_id,
            "repository_id": self.identity.repository_id,
            "repository_name": self.identity.repository_name,
            "storage_url": self.storage_url,
            "planned_at": self.planned_at.isoformat(),
            "whole": self.whole,
            "named": self.named.to_json(),
            "parts": [part.to_json() for part in self.parts],
            "foreign_count": self.foreign_count,
            "references": [reference.to_json() for reference in self.references],
            "reference_counts": dict(self.reference_counts),
            "kept": [part.to_json() for part in self.kept],
            "kept_references": [reference.to_json() for reference in self.kept_references],
            "kept_reference_counts": dict(self.kept_reference_counts),
            "promised_until": self.promised_until and self.promised_until.isoformat(),
            "retained": None if self.retained is None else retained_json(self.retained),
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> PurgePlan:
        """Parses the JSON that `to_json` returned. Raises KeyError, TypeError or ValueError for
        other JSON."""
        # Plans that were made before these fields existed do not have them.
        promised_until, retained = content.get("promised_until"), content.get("retained")
        return cls(
            purge_id=content["purge_id"],
            identity=Identity(
                content["format_name"],
                content["store_id"],
                content["repository_id"],
                content["repository_name"],
            ),
            storage_url=content["storage_url"],
            planned_at=datetime.fromisoformat(content["planned_at"]),
            whole=content["whole"],
            named=Named.from_json(content["named"]),
            parts=tuple(map(Part.from_json, content["parts"])),
            foreign_count=content["foreign_count"],
            references=tuple(map(Reference.from_json, content["references"])),
            reference_counts=content["reference_counts"],
            kept=tuple(map(Part.from_json, content.get("kept", ()))),
            kept_references=tuple(map(Reference.from_json, content.get("kept_references", ()))),
            kept_reference_counts=content.get("kept_reference_counts", {}),
            promised_until=promised_until and datetime.fromisoformat(promised_until),
            retained=None if retained is None else retained_of(retained),
        )

    def without_shared(
        self,
        shared: Container[str],
        parts: Iterable[Part],
        kept: Iterable[Part],
        found: list[Reference],
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

    def with_references(self, found: list[Reference]) -> PurgePlan:
        """Returns this plan with the references that prevent it."""
        return replace(
            self,
            references=tuple(found[:REFERENCES_SHOWN]),
            reference_counts=count_by_kind(found),
        )


def write_objects(
    folder: RunFolder, tables: Iterable[pa.Table], *, stem: str = OBJECTS_STEM
) -> list[Part]:
    """Writes objects (tables of OBJECTS_SCHEMA) as parts of at most ROWS_PER_PART rows."""
    answer = PartRows()
    number = 0
    for table in tables:
        for start in range(0, table.num_rows, ROWS_PER_PART):
            piece = table.slice(start, ROWS_PER_PART)
            answer.wrote(folder, f"{stem}-{number:05d}.parquet", piece, durable=True)
            number += 1
    return answer.parts()


def read_objects(folder: RunFolder, parts: Iterable[Part]) -> Iterator[pa.Table]:
    """Yields the objects (OBJECTS_SCHEMA), part by part. Raises Refused `plan_corrupt`."""
    for part in parts:
        yield read_part(folder, part.name, part.checksum).cast(OBJECTS_SCHEMA)


def write_plan(folder: RunFolder, plan: PurgePlan, found: list[Reference]) -> str:
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
