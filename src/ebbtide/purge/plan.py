"""The plan of a purge: the named things and their objects, on storage before the first delete.

```
<purge_id>/plan.json            named things, figures, the checksums of all parts and of itself
<purge_id>/objects/             each address with size, checksum and paths (OBJECTS_SCHEMA)
<purge_id>/references.parquet   references that prevent the purge (REFERENCES_SCHEMA)
<purge_id>/deleted/             the rows of objects/ with their outcomes (DELETED_SCHEMA)
<purge_id>/record-1.json        the signed record; each resume adds one more
```
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

import pyarrow as pa

from ebbtide.arrow import make_schema, texts
from ebbtide.errors import Refused
from ebbtide.formats.base import Identity
from ebbtide.gc.parts import Part, PartRows, read_part
from ebbtide.gc.runs import RunFolder, checksum_of
from ebbtide.purge.naming import Named
from ebbtide.purge.objects import OBJECTS_SCHEMA
from ebbtide.purge.references import Reference, count_by_kind, to_table

PLAN_FILE: Final = "plan.json"
REFERENCES_FILE: Final = "references.parquet"
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
    foreign files, which stay when a whole repository is purged."""

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
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> PurgePlan:
        """Parses the JSON that `to_json` returned. Raises KeyError, TypeError or ValueError for
        other JSON."""
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
            references=tuple(
                Reference(
                    each["kind"],
                    each["id"],
                    tuple(each["names"]),
                    each["entry_count"],
                    tuple(each["examples"]),
                )
                for each in content["references"]
            ),
            reference_counts=content["reference_counts"],
        )

    def with_references(self, found: list[Reference]) -> PurgePlan:
        """Returns this plan with the references that prevent it."""
        return replace(
            self,
            references=tuple(found[:REFERENCES_SHOWN]),
            reference_counts=count_by_kind(found),
        )


def write_objects(
    folder: RunFolder, tables: Iterable[pa.Table], *, stem: str = "objects/part"
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
